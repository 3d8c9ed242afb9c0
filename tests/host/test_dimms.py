"""Memory modules from the firmware's table: channels, rates, ceilings, and what is left open with a reason."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from k3gate import documents
from k3gate.host import dimms, smbios
from k3gate.host.dimms import Reason, Summary, summarize
from k3gate.host.smbios import MemoryArray, MemoryDevice, Processor
from k3gate.records import State

GIB = 2**30
MACHINES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "machines"
NAMES = sorted({path.parent.name for path in MACHINES.glob("*/DMI*.bin")})
LETTERS = "ABCDEFGHIJKL"


def memory(
    bank: str | None,
    gib: int | None = 64,
    configured: int = 4800,
    *,
    locator: str | None = "DIMM 0",
    rated: int | None = None,
    kind: int = 0x22,
    technology: int = 3,
    part: str = "PART-1",
    maker: str = "Maker",
    mib: int | None = None,
    detail: int = 0x2080,
    non_volatile: int = 0,
    group: int = 0,
) -> bytes:
    """A raw type 17 structure of the latest length; `gib` None: no module is installed."""
    texts = [locator or "", bank or "", maker, part]
    strings = [text.encode() for text in texts if text]
    number = iter(range(1, 9))
    index = [next(number) if text else 0 for text in texts]
    formatted = bytearray(0x5C)
    size = 0 if gib is None and mib is None else 0x7FFF
    struct.pack_into("<BBHHH", formatted, 0, 17, 0x5C, 0x40, 0x10, 0xFFFE)
    struct.pack_into("<HHH", formatted, 8, 80, 64, size)
    struct.pack_into("<BBBBBH", formatted, 0x0E, 9, group, index[0], index[1], kind if size else 2, detail)
    if size:
        struct.pack_into("<HB", formatted, 0x15, configured if rated is None else rated, index[2])
        struct.pack_into("<BB", formatted, 0x1A, index[3], 2)
        struct.pack_into("<IH", formatted, 0x1C, mib if mib is not None else (gib or 0) * 1024, configured)
        struct.pack_into("<B", formatted, 0x28, technology)
        struct.pack_into("<QQ", formatted, 0x34, non_volatile, 0)
    return bytes(formatted) + b"".join(s + b"\0" for s in strings) + (b"\0" if strings else b"\0\0")


def array(use: int = 3, location: int = 3, handle: int = 0x10, devices: int = 0) -> bytes:
    """An array; 0 devices: it does not tell how many slots it has."""
    formatted = bytearray(0x17)
    struct.pack_into(
        "<BBHBBBIHH", formatted, 0, 16, 0x17, handle, location, use, 6, 0x8000_0000, 0xFFFE, devices
    )
    return bytes(formatted) + b"\0\0"


def read(slots: Sequence[bytes], arrays: Sequence[bytes] = (), **facts: Any) -> Summary:
    """The summary of a table of these structures."""
    table = b"".join((*(arrays or (array(),)), *slots)) + b"\x7f\x04\xff\xfe\0\0"
    found = smbios.structures(table)
    assert found.problems == ()
    decoded = smbios.decode(found)
    summary = summarize(decoded.devices, decoded.arrays, facts.pop("processors", ()), **facts)
    consistent(summary)
    return summary


def consistent(summary: Summary) -> None:
    """Each field that is None has its reason, and no other has."""
    missing = {name for name in dimms.FIELDS if getattr(summary, name) is None}
    assert missing == set(summary.reasons)
    assert all(reason.text and reason.state is not State.OK for reason in summary.reasons.values())


def socket(channels: str = LETTERS, empty: str = "", number: int = 0, **changes: Any) -> list[bytes]:
    """One slot in each channel of a socket."""
    return [
        memory(f"P{number} CHANNEL {c}", **(changes | ({"gib": None} if c in empty else {})))
        for c in channels
    ]


@pytest.mark.case("MEM-01")
def test_mem_01_populated_channels_not_slots() -> None:
    """MEM-01: twelve slots, two of them empty, 6400 MT/s: 10 channels, 512.0 GB/s and not 614.4."""
    summary = read(socket(empty="CI", configured=6400))
    assert (summary.slots, summary.populated, summary.channels) == (12, 10, 10)
    assert summary.theoretical_bytes_per_s == 512.0e9
    assert summary.full_bytes_per_s == 614.4e9
    assert summary.dram_bytes == 640 * GIB


@pytest.mark.case("MEM-02")
def test_mem_02_a_dropped_module_is_named() -> None:
    """MEM-02: channel H has no module: it is named, and both ceilings are told, 179.2 and 204.8 GB/s."""
    summary = read(socket("ABCDEFGH", empty="H", gib=32, configured=3200, kind=0x1A))
    assert summary.empty_channels == ("socket 0 channel H (P0 CHANNEL H DIMM 0)",)
    assert (summary.channels, summary.configured_mts, summary.derating_percent) == (7, 3200, 0)
    assert (summary.theoretical_bytes_per_s, summary.full_bytes_per_s) == (179.2e9, 204.8e9)


@pytest.mark.case("MEM-03")
def test_mem_03_the_configured_speed_makes_the_ceiling() -> None:
    """MEM-03: rated 6400 runs at 6000; DDR3-1600 runs at 1067; unknown gives no ceiling."""
    summary = read(socket("ABCDEFGH", rated=6400, configured=6000))
    assert (summary.rated_mts, summary.configured_mts, summary.derating_percent) == (6400, 6000, 6.25)
    assert summary.theoretical_bytes_per_s == 384.0e9
    summary = read(socket("ABCD", rated=1600, configured=1067, kind=0x18))
    assert summary.derating_percent == pytest.approx(33.3, abs=0.05)
    assert summary.theoretical_bytes_per_s == 4 * 1067 * 8e6
    slots = socket("ABCDEFG", rated=6400, configured=6400)
    summary = read([*slots, memory("P0 CHANNEL H", rated=6400, configured=0)])
    assert (summary.rated_mts, summary.configured_mts, summary.channels) == (6400, None, 8)
    assert summary.theoretical_bytes_per_s is summary.full_bytes_per_s is None
    expected = Reason(State.NOT_PRESENT, "1 of 8 DRAM modules tell no configured speed")
    assert summary.reasons["theoretical_bytes_per_s"] == summary.reasons["configured_mts"] == expected


@pytest.mark.case("MEM-04")
@pytest.mark.parametrize("virtual", [True, False, None])
def test_mem_04_a_virtual_machine_is_not_evaluated(virtual: bool | None) -> None:
    """MEM-04: 64 slots of VMware, one with 16 GB of type Other and unknown speed: nothing is made of it."""
    slots = [
        memory(
            f"NVD #{n}",
            None if n else 16,
            configured=0,
            locator=f"RAM slot #{n}",
            kind=1,
            technology=0,
            maker="",
            part="",
        )
        for n in range(64)
    ]
    summary = read(slots, virtual=virtual)
    assert not summary.evaluated
    expected = dimms.VIRTUAL if virtual else dimms.LOOKS_VIRTUAL
    assert set(summary.reasons.values()) == {Reason(State.NOT_RUN, expected)}
    assert "population not evaluated" in expected
    assert summary.slots is summary.channels is summary.theoretical_bytes_per_s is None


def test_a_guest_with_a_plausible_table_is_not_evaluated_either() -> None:
    assert read(socket(), virtual=True).reasons["channels"].text == dimms.VIRTUAL
    qemu = [memory(None, 16, 0, kind=7, technology=0, maker="QEMU", part="")]
    assert read(qemu).reasons["channels"].text == dimms.LOOKS_VIRTUAL


@pytest.mark.case("MEM-05")
@pytest.mark.parametrize(
    "why",
    [Reason(State.NOT_PRESENT, "absent"), Reason(State.NOT_PERMITTED, "not permitted; readable by root")],
)
def test_mem_05_no_table_is_not_zero_modules(why: Reason) -> None:
    """MEM-05: absent and not permitted stay apart; nothing is reported as 0."""
    summary = summarize(None, missing=why)
    consistent(summary)
    assert set(summary.reasons.values()) == {why}
    assert summary.slots is summary.populated is summary.dimms is None
    assert summarize(None).reasons["slots"] == Reason(State.NOT_PRESENT, dimms.NO_TABLE)


def test_tables_without_slots_or_without_modules() -> None:
    assert read([], virtual=False).reasons["slots"].text == dimms.NO_SLOTS
    summary = read(socket(empty=LETTERS))
    assert (summary.slots, summary.populated, summary.channels) == (12, None, None)
    assert summary.reasons["populated"].state is State.FAILED
    assert "no module in any of 12 slots" in summary.reasons["populated"].text


@pytest.mark.case("MEM-08")
@pytest.mark.parametrize("kind", [0x22, 0x25])
def test_mem_08_fast_modules_are_not_clamped(kind: int) -> None:
    """MEM-08: 12 channels of MRDIMMs at 8800 MT/s: 844.8 GB/s; nor is more than 16 bits cut off."""
    summary = read(socket(configured=8800, kind=kind))
    assert (summary.channels, summary.theoretical_bytes_per_s) == (12, 844.8e9)


def test_two_modules_in_each_channel() -> None:
    slots = [
        memory(f"P{p} CHANNEL {c}", locator=f"DIMM {n}", rated=3200, configured=2933, kind=0x1A)
        for p in (0, 1)
        for c in "ABCDEFGH"
        for n in (0, 1)
    ]
    summary = read(slots)
    assert (summary.slots, summary.populated, summary.channels, summary.modules_per_channel) == (
        32,
        32,
        16,
        2,
    )
    assert summary.theoretical_bytes_per_s == 16 * 2933 * 8e6
    assert summary.mixed_sizes is summary.mixed_speeds is summary.mixed_parts is False


def test_each_channel_runs_at_its_slowest_module() -> None:
    slots = [
        memory("P0 CHANNEL A", configured=4800),
        memory("P0 CHANNEL A", configured=4400, locator="DIMM 1", gib=32, part="PART-2"),
        memory("P1 CHANNEL A", configured=5600),
    ]
    summary = read(slots)
    assert summary.theoretical_bytes_per_s == (4400 + 5600) * 8e6
    assert (summary.configured_mts, summary.channels) == (4400, 2)
    assert summary.mixed_sizes is summary.mixed_speeds is summary.mixed_parts is True


OPTANE = [
    {"kind": 0x1F, "technology": 0},
    {"technology": 7},
    {"technology": 4},
    {"technology": 0, "detail": 0x1080},
    {"technology": 0, "non_volatile": 126 * GIB},
    {"technology": 0, "part": "NMA1XXD128GPS"},
    {"technology": 0, "part": "NMB1XXD128GPS"},
    {"technology": 0, "mib": 129_408},
    {"technology": 0, "mib": 258_816},
    {"technology": 0, "mib": 517_632},
]


@pytest.mark.parametrize("hidden", OPTANE, ids=str)
def test_persistent_memory_is_never_dram(hidden: dict[str, Any]) -> None:
    """However the firmware shows it, it counts as no DRAM, makes no channel and does not slow the ceiling."""
    module = {"kind": 0x1A, "rated": 2666, "configured": 2666} | hidden
    slots = socket("ABCDEF", rated=3200, configured=2933, kind=0x1A, gib=16)
    slots += [memory("P0 CHANNEL A", locator="DIMM 1", **module), memory("P1 CHANNEL A", **module)]
    summary = read(slots)
    assert [dimm.kind for dimm in summary.dimms or ()] == ["dram"] * 6 + ["pmem"] * 2
    assert (summary.dram_bytes, summary.channels, summary.configured_mts) == (96 * GIB, 6, 2933)
    assert summary.pmem_bytes == 2 * (module["mib"] * 2**20 if "mib" in module else 64 * GIB)
    assert summary.empty_channels == ("socket 1 channel A (P1 CHANNEL A DIMM 0)",)
    assert summary.theoretical_bytes_per_s == 6 * 2933 * 8e6


@pytest.mark.parametrize("gib", [96, 128, 192, 256, 512])
def test_large_modules_are_dram(gib: int) -> None:
    assert read(socket(gib=gib)).dram_bytes == 12 * gib * GIB


def test_memory_beside_the_channels() -> None:
    """HBM and memory on CXL cards are listed and counted neither as slots nor as channels."""
    cards = smbios.structures(array(location=0xA4, handle=0x20) + b"\x7f\x04\0\0\0\0").structures[0]
    slots = [
        smbios.memory_device(smbios.structures(raw + b"\x7f\x04\0\0\0\0").structures[0]) for raw in socket()
    ]
    hbm = evolve(slots[0], memory_type="HBM2", device_locator="CPU0_HBM0", bank_locator=None)
    cxl = evolve(slots[0], array_handle=0x20, device_locator="CXL 1", bank_locator=None)
    arrays = [MemoryArray(0x10, "system board", "system memory"), smbios.memory_array(cards)]
    arrays[1] = evolve(arrays[1], use="system memory")
    vacant = MemoryDevice(2, array_handle=0x20, size_bytes=0)
    summary = summarize([hbm, *slots, cxl, vacant], arrays)
    consistent(summary)
    assert [dimm.kind for dimm in summary.dimms or ()] == ["hbm", *["dram"] * 12, "cxl", "cxl"]
    assert (summary.slots, summary.populated, summary.channels) == (12, 12, 12)
    only = summarize([hbm], arrays)
    consistent(only)
    assert (only.slots, only.populated, only.channels) == (0, 0, None)
    assert only.reasons["mixed_parts"].text == "no DRAM module is installed"


def test_a_table_that_leaves_out_slots_tells_no_channels() -> None:
    """Firmware that lists only what is plugged in shows no holes, and a cut table lacks what stood at its end."""
    summary = read(socket(), [array(devices=16)])
    for name in ("channels", "populated", "dram_bytes", "theoretical_bytes_per_s", "empty_channels"):
        assert getattr(summary, name) is None
        assert summary.reasons[name].text == "the table shows 12 of the board's 16 slots"
    assert read(socket(), [array(devices=12)]).channels == 12
    cut = "truncated: the structure at byte 9 is not whole"
    assert read(socket(), cut=cut).reasons["channels"].text == cut
    assert read(socket(), [array(devices=12)], cut=cut).channels == 12


def test_all_slots_filled_are_all_channels_of_the_processors_whatever_their_names() -> None:
    slots = [memory(None, locator=f"DIMM {number}") for number in range(1, 25)]
    assert read(slots).channels is None
    assert read(slots, channels_of_processors=24).channels == 24
    hole = [*slots[:-1], memory(None, None, locator="DIMM 24")]
    assert read(hole, channels_of_processors=24).channels is None


def test_letters_that_are_more_than_the_sockets_of_the_board_are_none() -> None:
    slots = [memory(None, locator=f"{letter}1") for letter in "ABCD"]
    assert {dimm.socket for dimm in read(slots, sockets=1).dimms or ()} == {None}
    assert [dimm.socket for dimm in read(slots[:2], sockets=2).dimms or ()] == [1, 2]


def test_processors_are_told_by_the_numbers_in_their_names() -> None:
    slots = socket("ABCD") + socket("ABCD", empty="ABCD", number=1)
    here, gone = Processor(socket="CPU 0", populated=True), Processor(socket="CPU 1", populated=False)
    assert read(slots, processors=(gone, here)).empty_channels == ()
    assert (
        len(
            read(
                slots, processors=(evolve(gone, socket="CPU 0"), evolve(here, socket="CPU 1"))
            ).empty_channels
            or ()
        )
        == 4
    )


def test_only_system_memory_counts() -> None:
    """A flash chip and video memory have arrays of their own."""
    other = array(use=5, handle=0x11)
    flash = bytearray(memory(None, 1, 0, locator="SPI", kind=9))
    struct.pack_into("<H", flash, 4, 0x11)
    summary = read([bytes(flash), *socket()], [other, array()])
    assert (summary.slots, summary.dram_bytes) == (12, 768 * GIB)
    assert summarize([MemoryDevice(1, size_bytes=GIB, memory_type="DDR5", array_handle=None)]).slots == 1


def test_locators_that_name_no_channel() -> None:
    slots = [memory(None, locator=f"PROC {p} DIMM {n}") for p in (1, 2) for n in range(1, 17)]
    summary = read(slots)
    assert (summary.slots, summary.populated, summary.configured_mts) == (32, 32, 4800)
    assert summary.channels is summary.theoretical_bytes_per_s is summary.empty_channels is None
    assert summary.reasons["channels"].text == "the locators (PROC 1 DIMM 1) do not name the channel"
    told = read(slots, channels_per_socket=8)
    assert (told.channels, told.theoretical_bytes_per_s) == (16, 16 * 4800 * 8e6)
    assert "all slots are filled" in told.notes[0]
    assert told.empty_channels is None
    assert read(slots, channels_per_socket=12).channels is None
    assert (
        read([*slots[:-1], memory(None, None, locator="PROC 2 DIMM 16")], channels_per_socket=8).channels
        is None
    )
    uneven = [*slots[:-1], memory(None, configured=4400, locator="PROC 2 DIMM 16")]
    assert "several speeds" in read(uneven, channels_per_socket=8).reasons["theoretical_bytes_per_s"].text


def test_a_lone_module_of_a_socket_has_a_channel() -> None:
    slots = [
        memory(None, 64 if n == 5 else None, 2400, kind=0x1A, locator=f"PROC {p} DIMM {n}")
        for p in (1, 2)
        for n in range(1, 17)
    ]
    summary = read(slots)
    assert (summary.channels, summary.theoretical_bytes_per_s) == (2, 38.4e9)
    assert summary.channel_list is None
    assert read([memory("BANK 0", locator="DIMM 0")]).channels == 1
    assert read([memory("BANK 0"), memory("BANK 1", locator="DIMM 1")]).channels is None


def lettered(filled: Sequence[str], sets: Sequence[int], sockets: str = "AB") -> list[bytes]:
    """Slots A1, A2, ..., B1, ...; `sets` of the first socket, the next one's go on from there."""
    return [
        memory(
            None,
            64 if f"{letter}{n}" in filled else None,
            3200,
            kind=0x1A,
            locator=f"{letter}{n}",
            group=group + index * max(sets) if group else 0,
        )
        for index, letter in enumerate(sockets)
        for n, group in enumerate(sets, 1)
    ]


def test_the_sets_of_slots_tell_the_channels() -> None:
    """Eight channels of two slots: A1 and A9 share one, A1 and A2 do not."""
    sets = [1] * 8 + [2] * 8
    summary = read(lettered(["A1", "A2", "A9", "B1"], sets))
    assert (summary.channels, summary.modules_per_channel) == (3, 2)
    assert summary.theoretical_bytes_per_s == 3 * 3200 * 8e6
    assert "socket 2 channel 8 (B8, B16)" in (summary.empty_channels or ())
    assert "sets of slots" in summary.notes[0]
    assert [dimm.channel for dimm in summary.dimms or ()][7:10] == ["8", "1", "2"]


@pytest.mark.parametrize(
    ("sets", "known", "channels"),
    [
        ([1] * 12, None, None),
        ([1] * 12, 12, 3),
        ([1] * 8 + [2] * 8, 12, None),
        ([0] * 16, None, None),
        (list(range(1, 17)), None, None),
        ([1, 1, 2, 2, 3, 3, 4, 4], None, None),
        ([1] * 8 + [2] * 4, None, None),
        ([1] * 4 + [2] * 4 + [1] * 4, None, None),
    ],
)
def test_other_sets_tell_nothing(sets: list[int], known: int | None, channels: int | None) -> None:
    summary = read(lettered(["A1", "A2", "B1"], sets), channels_per_socket=known)
    assert summary.channels == channels


def test_channels_of_an_empty_socket_are_not_missed() -> None:
    """The second processor is not there, so that its channels are no fault of the population."""
    slots = socket("ABCD") + socket("ABCD", empty="ABCD", number=1)
    here, gone = Processor(populated=True), Processor(populated=False)
    summary = read(slots, processors=(here, gone))
    assert summary.empty_channels == ()
    assert summary.theoretical_bytes_per_s == summary.full_bytes_per_s == 4 * 4800 * 8e6
    assert [channel.processor for channel in summary.channel_list or ()] == [True] * 4 + [False] * 4
    assert len(read(slots, processors=(here, here)).empty_channels or ()) == 4
    assert len(read(slots, processors=(here,)).empty_channels or ()) == 4
    # No record of the empty socket: the kernel's own count tells, unless more sockets hold modules.
    assert read(slots, processors=(here,), sockets=1).empty_channels == ()
    assert len(read(slots, processors=(here,), sockets=2).empty_channels or ()) == 4
    hole = socket("ABCD") + socket("ABCD", empty="BCD", number=1)
    assert len(read(hole, processors=(here,), sockets=1).empty_channels or ()) == 3
    assert len(read(slots, processors=(gone, here)).empty_channels or ()) == 4


def test_channels_that_the_table_leaves_out_are_in_the_whole_ceiling() -> None:
    summary = read(socket("ABCD"), channels_of_processors=8)
    assert summary.theoretical_bytes_per_s == 4 * 4800 * 8e6
    assert summary.full_bytes_per_s == 8 * 4800 * 8e6
    lone = read([memory(None, locator="DIMM 0")], channels_of_processors=8)
    assert lone.full_bytes_per_s == 8 * (lone.theoretical_bytes_per_s or 0)
    assert read([memory(None, locator="DIMM 0")]).full_bytes_per_s is None


@pytest.mark.parametrize(
    ("locator", "bank"), [("CXL0", ""), ("DIMM 0", "CPU0_CXL_1"), ("E3.S cxl slot 2", "")]
)
def test_an_expander_that_only_its_name_tells_is_no_channel(locator: str, bank: str) -> None:
    """Some firmware lists CXL memory as DDR5 of the board's own array."""
    summary = read([*socket("ABCD"), memory(bank or None, locator=locator)])
    assert summary.dimms is not None and summary.dimms[-1].kind == "cxl"
    assert (summary.channels, summary.slots) == (4, 4)
    assert summary.theoretical_bytes_per_s == 4 * 4800 * 8e6


def test_places_that_collide_are_not_trusted() -> None:
    """All slots claim one bank; the device locators tell them apart, or nothing does."""
    bank = "P0_Node0_Channel0_Dimm0"
    summary = read([memory(bank, locator=f"P1-DIMM{c}1") for c in "ABCD"])
    assert summary.channels == 4
    assert read([memory(bank, locator=f"slot {c}") for c in "ABCD"]).channels is None


def test_a_slot_of_unknown_spelling_beside_known_ones() -> None:
    empty = read([*socket(), memory("somewhere", None, locator="odd")])
    assert (empty.slots, empty.channels) == (13, 12)
    assert empty.notes == ("the locators of 1 slots name no channel",)
    filled = read([*socket(), memory("somewhere", locator="odd")])
    assert filled.reasons["channels"].text == "the locators (odd) do not name the channel"


@pytest.mark.parametrize(
    ("kind", "rated", "configured", "doubt"),
    [
        (0x18, 667, 667, "667 MT/s is no rate of DDR3"),
        (0x1A, 3200, 1600, "the configured 1600 MT/s is half of the rated 3200"),
        (0x1A, 0, 1200, "1200 MT/s is no rate of DDR4"),
        (0x23, 8533, 8533, "a channel of LPDDR5 is narrower"),
    ],
)
def test_speeds_that_are_no_rate_of_a_channel(kind: int, rated: int, configured: int, doubt: str) -> None:
    summary = read(socket(kind=kind, rated=rated, configured=configured))
    assert summary.channels == 12
    reason = summary.reasons["theoretical_bytes_per_s"]
    assert reason.state is State.FAILED
    assert reason.text.startswith(doubt)
    assert any(note.startswith(doubt) for note in summary.notes)


def test_a_module_above_its_rated_speed() -> None:
    summary = read(socket("AB", rated=2133, configured=3200, kind=0x1A))
    assert summary.derating_percent == pytest.approx(-50, abs=0.1)
    assert summary.theoretical_bytes_per_s == 2 * 3200 * 8e6


def test_rated_speeds_that_some_modules_keep_to_themselves() -> None:
    slots = socket("ABC", rated=3200, configured=2933, kind=0x1A)
    summary = read([*slots, memory("P0 CHANNEL D", rated=0, configured=2933, kind=0x1A)])
    assert (summary.rated_mts, summary.configured_mts, summary.mixed_speeds) == (None, 2933, None)
    assert summary.derating_percent == pytest.approx(8.34, abs=0.01)


def test_modules_of_unknown_kind_or_size() -> None:
    summary = read([*socket("ABC"), memory("P0 CHANNEL D", kind=0x77, technology=0)])
    assert [dimm.memory_type for dimm in summary.dimms or ()][-1] == "type 0x77"
    assert (summary.populated, summary.channels) == (4, None)
    assert summary.reasons["channels"].text == "of 1 of 4 modules the table does not tell the kind"
    new = read([*socket("ABC"), memory("P0 CHANNEL D", kind=0x77, technology=3)])
    assert new.channels == 4
    unsized = evolve(MemoryDevice(1), memory_type="DDR5", rated_mts=4800, configured_mts=4800)
    known = summarize([evolve(unsized, device_locator="CPU0_DIMM_A1")])
    consistent(known)
    assert (known.populated, known.dram_bytes, known.channels) == (1, None, 1)
    silent = summarize([MemoryDevice(1, device_locator="CPU0_DIMM_A1")])
    consistent(silent)
    assert (silent.slots, silent.populated, silent.channels) == (1, None, None)


def test_names_that_name_nothing_and_documents() -> None:
    summary = read([memory("P0 CHANNEL A", part="NO DIMM", maker="Unknown"), *socket("B")])
    modules = summary.dimms or ()
    assert (modules[0].part_number, modules[0].manufacturer) == (None, None)
    assert (modules[1].part_number, modules[1].manufacturer) == ("PART-1", "Maker")
    assert documents.plain(modules[1])["bank"] == "P0 CHANNEL B"
    documents.canonical(documents.plain(summary))


WORDS = st.sampled_from(
    [None, "A1", "A2", "B1", "DIMM 0", "DIMM_A1", "P0 CHANNEL A", "PROC 1 DIMM 1", "CPU1.B0", "x"]
)
NUMBERS = st.none() | st.sampled_from([0, 1, 7, 1600, 3200, 2**31, 2**63])
DEVICES = st.builds(
    MemoryDevice,
    handle=st.just(1),
    array_handle=st.sampled_from([None, 0, 16]),
    size_bytes=st.none() | st.sampled_from([0, 1, GIB, 126 * GIB, 2**60]),
    device_set=NUMBERS,
    device_locator=WORDS,
    bank_locator=WORDS,
    memory_type=st.sampled_from([None, "other", "DDR4", "DDR5", "HBM", "LPDDR5", "type 0x99"]),
    rated_mts=NUMBERS.map(lambda n: n or None),
    configured_mts=NUMBERS.map(lambda n: n or None),
    technology=st.sampled_from([None, "DRAM", "NVDIMM-N"]),
)
CPUS = st.lists(st.builds(Processor, populated=st.sampled_from([None, True, False])), max_size=3)


@given(st.lists(DEVICES, max_size=12), CPUS, st.sampled_from([None, 1, 2, 8]))
@settings(max_examples=300, deadline=None)
def test_any_records(devices: list[MemoryDevice], cpus: list[Processor], known: int | None) -> None:
    arrays = [MemoryArray(16, "system board", "system memory")]
    summary = summarize(devices, arrays, cpus, channels_per_socket=known)
    consistent(summary)
    if summary.theoretical_bytes_per_s is not None:
        assert summary.channels is not None
        assert summary.theoretical_bytes_per_s > 0


# Channels in use and GB/s of the ceiling; None where the table does not tell, with the reason beside it.
CEILINGS: dict[str, tuple[int | None, float | None]] = {
    "dmi-1s-altra-16of16": (8, 204.8),
    "dmi-1s-epyc7702p-speed-unknown": (8, 187.712),
    "dmi-1s-epyc9454p-9of12": (9, 345.6),
    "dmi-1s-threadripper-overclocked": (2, 51.2),
    "dmi-2s-cascadelake-optane-appdirect": (8, 170.624),
    "dmi-2s-epyc7302-nps4-gpu-server": (16, 409.6),
    "dmi-2s-epyc7402-mixed-sizes-and-speeds": (16, 273.024),
    "dmi-2s-epyc7551-only-2-dimms": (2, 38.4),
    "dmi-2s-epyc7601-supermicro-16of16": (16, 307.2),
    "dmi-2s-epyc7742-16of32": (16, 409.6),
    "dmi-2s-epyc7763-32x128-hpe": (None, None),  # PROC 1 DIMM 1 names no channel
    "dmi-2s-epyc7763-32x64-2dpc-2933": (16, 375.424),
    "dmi-2s-epyc7763-gpu-server": (16, 409.6),
    "dmi-2s-epyc9654-24x128-hgx": (24, 921.6),
    "dmi-2s-xeon6710e-16of32": (16, 614.4),
    "dmi-2s-xeon8280-optane-shown-as-ddr4": (None, None),  # DIMM5_CPU0 names no channel
    "dmi-2s-xeon8488c-single-dimm": (1, 38.4),
    "dmi-4s-xeon6330h-48x64": (24, 563.136),
    "sc-2s-cascadelake-8xt4-metal": (12, 255.936),
    "sc-2s-epyc7r13-milan-metal-m6a": (16, 375.424),
    "sc-2s-epyc9r14-genoa-metal": (24, 921.6),
    "sc-2s-epyc9r45-turin-metal": (24, 1228.8),
    "sc-2s-icelake-metal-x2idn": (16, 409.6),
    "smbios-1s-threadripper-x399": (4, 93.856),
    "smbios-2s-dell-r630-half-empty": (2, 29.856),
    "smbios-2s-supermicro-x9dbl-mixed": (6, 63.984),
    "smbios-4s-opteron-ddr3": (None, None),  # P1_1A names no channel, and no configured speed is told
}
PMEM = {"dmi-2s-cascadelake-optane-appdirect": 1011, "dmi-2s-xeon8280-optane-shown-as-ddr4": 1011}


@pytest.mark.skipif(not NAMES, reason="the captured machines are not beside the checkout")
@pytest.mark.parametrize("name", NAMES)
def test_captured_machines(name: str) -> None:
    stem = "" if (MACHINES / name / "DMI.bin").exists() else ".reconstructed"
    table = smbios.decode(smbios.structures((MACHINES / name / f"DMI{stem}.bin").read_bytes()))
    summary = summarize(table.devices, table.arrays, table.processors, virtual=False)
    consistent(summary)
    channels, ceiling = CEILINGS[name]
    assert summary.channels == channels
    told = summary.theoretical_bytes_per_s
    assert (None if told is None else round(told / 1e9, 6)) == ceiling
    assert (summary.pmem_bytes or 0) / GIB == PMEM.get(name, 0)
