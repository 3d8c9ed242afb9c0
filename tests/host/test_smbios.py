"""The decoder of the firmware's table: fields by version, hostile tables, and real tables of captured machines."""

from __future__ import annotations

import json
import re
import resource
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from k3gate.host import smbios
from k3gate.host.smbios import EntryPoint, Structure

GIB = 2**30
MACHINES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "machines"
NAMES = sorted({path.parent.name for path in MACHINES.glob("*/DMI*.bin")})

Fields = Mapping[int, tuple[str, int]]


def raw(
    kind: int, length: int, fields: Fields | None = None, strings: Sequence[bytes] = (), handle: int = 0x100
) -> bytes:
    """One structure of `length` bytes; fields as offset -> (struct format, value)."""
    formatted = bytearray(length)
    struct.pack_into("<BBH", formatted, 0, kind, length, handle)
    for offset, (form, value) in (fields or {}).items():
        struct.pack_into("<" + form, formatted, offset, value)
    return bytes(formatted) + (b"".join(s + b"\0" for s in strings) + b"\0" if strings else b"\0\0")


END = raw(127, 4)


def one(kind: int, length: int, fields: Fields | None = None, strings: Sequence[bytes] = ()) -> Structure:
    """The structure as it is read from a table."""
    read = smbios.structures(raw(kind, length, fields, strings) + END)
    assert read.problems == ()
    return read.structures[0]


def module(length: int = 0x5C, **changes: tuple[int, str, int]) -> smbios.MemoryDevice:
    """A module of a newer table; changes as offset, format and value."""
    fields = {
        0x08: ("H", 80),
        0x0A: ("H", 64),
        0x0C: ("H", 0x7FFF),
        0x0E: ("B", 9),
        0x10: ("B", 1),
        0x11: ("B", 2),
        0x12: ("B", 0x22),
        0x13: ("H", 0x2080),
        0x15: ("H", 6400),
        0x17: ("B", 3),
        0x18: ("B", 4),
        0x19: ("B", 5),
        0x1A: ("B", 6),
        0x1B: ("B", 2),
        0x1C: ("I", 65536),
        0x20: ("H", 6000),
        0x22: ("H", 1100),
        0x24: ("H", 1100),
        0x26: ("H", 1100),
        0x28: ("B", 3),
        0x29: ("H", 8),
        0x34: ("Q", 0),
        0x3C: ("Q", 64 * GIB),
        0x44: ("Q", 2**64 - 1),
        0x4C: ("Q", 0),
    }
    fields |= {offset: (form, value) for offset, form, value in changes.values()}
    size = {"B": 1, "H": 2, "I": 4, "Q": 8}
    whole = {at: told for at, told in fields.items() if at + size[told[0]] <= length}
    strings = [b"DIMM 0", b"P0 CHANNEL A", b"Maker", b"SERIAL77", b"ASSET77", b"PART-1   "]
    return smbios.memory_device(one(17, length, whole, strings))


def test_entry_points_of_both_kinds() -> None:
    three = bytearray(b"_SM3_\0\x18\x03\x05\0\x01\0" + struct.pack("<IQ", 4711, 0))
    three[5] = -sum(three) % 256
    assert smbios.entry_point(bytes(three)) == EntryPoint(3, 5, 4711, None, False, True)
    two = bytearray(31)
    two[:8] = b"_SM_\0\x1f\x02\x08"
    two[16:21] = b"_DMI_"
    struct.pack_into("<HIH", two, 22, 3000, 0, 55)
    assert smbios.entry_point(bytes(two)) == EntryPoint(2, 8, 3000, 55, True, False)
    assert smbios.entry_point(b"_SM_\0\x1f\x02\x08") == EntryPoint(2, 8, None, None, True, None)
    for nothing in (b"", b"_SM_", b"_SM3_", b"_DMI_" + bytes(10), bytes(64)):
        assert smbios.entry_point(nothing) is None


def test_a_module_of_a_new_table() -> None:
    read = module()
    assert read == smbios.MemoryDevice(
        handle=0x100,
        array_handle=0,
        total_width=80,
        data_width=64,
        size_bytes=64 * GIB,
        form_factor="DIMM",
        device_set=0,
        device_locator="DIMM 0",
        bank_locator="P0 CHANNEL A",
        memory_type="DDR5",
        type_detail=("synchronous", "registered"),
        rated_mts=6400,
        configured_mts=6000,
        manufacturer="Maker",
        part_number="PART-1",
        rank=2,
        minimum_mv=1100,
        maximum_mv=1100,
        configured_mv=1100,
        technology="DRAM",
        operating_modes=("volatile",),
        firmware_version=None,
        non_volatile_bytes=0,
        volatile_bytes=64 * GIB,
        cache_bytes=None,
        logical_bytes=0,
    )
    assert "77" not in repr(read)


@pytest.mark.parametrize(
    ("length", "last", "missing"),
    [
        (0x15, "type_detail", "rated_mts"),
        (0x1B, "part_number", "rank"),
        (0x1C, "rank", "configured_mts"),
        (0x22, "configured_mts", "minimum_mv"),
        (0x28, "configured_mv", "technology"),
        (0x54, "logical_bytes", ""),
    ],
)
def test_older_tables_lack_the_newer_fields(length: int, last: str, missing: str) -> None:
    read = module(length)
    assert getattr(read, last) is not None
    assert not missing or getattr(read, missing) is None
    assert read.size_bytes == (64 * GIB if length >= 0x20 else None)


@pytest.mark.parametrize(
    ("word", "extended", "size"),
    [
        (0, 0, 0),
        (0xFFFF, 65536, None),
        (16384, 0, 16 * GIB),
        (0x8000 | 512, 0, 512 * 1024),
        (0x7FFF, 129_408, 129_408 * 2**20),
        (0x7FFF, 0x8000_0000 | 1024, GIB),
        (0x7FFF, 0, None),
    ],
)
def test_sizes(word: int, extended: int, size: int | None) -> None:
    assert module(size=(0x0C, "H", word), wide=(0x1C, "I", extended)).size_bytes == size


def test_rates_beyond_16_bits_and_unknown_ones() -> None:
    fast = {"a": (0x15, "H", 0xFFFF), "b": (0x20, "H", 0xFFFF), "c": (0x54, "I", 70_000)}
    read = module(**fast, d=(0x58, "I", 0x8000_0000 | 66_000))
    assert (read.rated_mts, read.configured_mts) == (70_000, 66_000)
    assert module(0x54, a=(0x15, "H", 0xFFFF)).rated_mts is None
    assert module(a=(0x15, "H", 0), b=(0x20, "H", 0)).configured_mts is None


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0x01, "other"),
        (0x02, None),
        (0x00, None),
        (0x14, "DDR2 FB-DIMM"),
        (0x18, "DDR3"),
        (0x1A, "DDR4"),
        (0x1F, "logical non-volatile device"),
        (0x20, "HBM"),
        (0x22, "DDR5"),
        (0x23, "LPDDR5"),
        (0x24, "HBM3"),
        (0x77, "type 0x77"),
    ],
)
def test_memory_types(number: int, name: str | None) -> None:
    assert module(kind=(0x12, "B", number)).memory_type == name


def test_strings_that_are_missing_blank_or_hostile() -> None:
    s = one(1, 0x08, {4: ("B", 1), 5: ("B", 2), 6: ("B", 9)}, [b"  ", b"\x1b[31m\xff"])
    assert smbios.system(s) == smbios.System(None, "\\x1b[31m\\xff", None)
    s = one(1, 0x06, {4: ("B", 1), 5: ("B", 0)}, [b"Maker   of\tboxes "])
    assert smbios.system(s) == smbios.System("Maker of boxes", None, None)


def test_releases_and_the_mark_of_a_virtual_machine_in_type_0() -> None:
    def bios(length: int, **at: int) -> smbios.Bios:
        return smbios.bios(one(0, length, {int(k[1:], 16): ("B", v) for k, v in at.items()}))

    assert bios(0x18, x13=0x1C).virtual_machine is True
    assert bios(0x18, x13=0x0C).virtual_machine is False
    assert bios(0x13).virtual_machine is None
    unknown = bios(0x18, x14=0xFF, x15=0xFF, x16=0xFF, x17=0xFF)
    assert (unknown.release, unknown.controller_release) == (None, None)
    assert bios(0x16, x14=1).controller_release is None


def test_machine_without_serial_numbers() -> None:
    """The strings of serial numbers, asset tags and the UUID never reach a record."""
    strings = [b"Maker", b"Box", b"1.0", b"SERIAL77"]
    table = raw(1, 0x1B, {4: ("B", 1), 5: ("B", 2), 6: ("B", 3), 7: ("B", 4)}, strings)
    table += raw(2, 0x0F, {4: ("B", 1), 5: ("B", 2), 6: ("B", 3), 7: ("B", 4), 8: ("B", 4)}, strings)
    table += raw(3, 0x15, {4: ("B", 1), 5: ("B", 0x97), 7: ("B", 4), 8: ("B", 4), 0x12: ("B", 2)}, strings)
    numbers = {0x14: 5, 0x15: 14, 0x16: 2, 0x17: 8}
    table += raw(
        0,
        0x18,
        {4: ("B", 1), 5: ("B", 2), 8: ("B", 3), **{at: ("B", n) for at, n in numbers.items()}},
        strings,
    )
    read = smbios.structures(table + END)
    decoded = smbios.decode(read)
    assert decoded.system == smbios.System("Maker", "Box", "1.0")
    assert decoded.boards == (smbios.Board("Maker", "Box", "1.0"),)
    assert decoded.chassis == (smbios.Chassis("rack mount chassis", 2),)
    assert decoded.bios == smbios.Bios("Maker", "Box", "1.0", "5.14", "2.8", virtual_machine=False)
    assert "77" not in repr(decoded) + repr(read)


def test_processors_with_counts_of_both_widths() -> None:
    fields: dict[int, tuple[str, int]] = {
        0x04: ("B", 1),
        0x07: ("B", 2),
        0x10: ("B", 3),
        0x14: ("H", 3700),
        0x16: ("H", 2400),
        0x18: ("B", 0x41),
        0x23: ("B", 96),
        0x24: ("B", 96),
        0x25: ("B", 0xFF),
        0x2E: ("H", 384),
    }
    strings = [b"P0", b"Maker", b"Model"]
    assert smbios.processor(one(4, 0x30, fields, strings)) == smbios.Processor(
        "P0", "Maker", "Model", True, "enabled", 3700, 2400, 96, 96, 384
    )
    fields.pop(0x2E)
    assert smbios.processor(one(4, 0x28, fields, strings)).threads is None
    empty = smbios.processor(one(4, 0x1A, {0x18: ("B", 0)}))
    assert (empty.populated, empty.status, empty.cores) == (False, None, None)
    assert smbios.processor(one(4, 0x12)).populated is None


def test_slots() -> None:
    fields: dict[int, tuple[str, int]] = {
        4: ("B", 1),
        5: ("B", 0xC3),
        6: ("B", 13),
        7: ("B", 4),
        0x0D: ("H", 1),
        0x0F: ("B", 0x41),
        0x10: ("B", 0x0B),
    }
    assert smbios.slot(one(9, 0x11, fields, [b"SLOT1"])) == smbios.Slot(
        "SLOT1", "PCI Express 5 x16", "x16", True, "0001:41:01.3"
    )
    nowhere = fields | {7: ("B", 3), 0x0F: ("B", 0xFF), 0x10: ("B", 0xFF)}
    read = smbios.slot(one(9, 0x11, nowhere))
    assert (read.bus_address, read.in_use) == (None, False)
    assert smbios.slot(one(9, 0x0D, {5: ("B", 0xEE), 7: ("B", 2)})) == smbios.Slot(kind="type 0xEE")
    for number, name in ((0x13, "AGP 8x"), (0x17, "M.2 socket 3"), (0x1F, "PCI Express 2 SFF-8639")):
        assert smbios.slot(one(9, 0x0D, {5: ("B", number)})).kind == name
    for number, name in (
        (0x26, "OCP NIC 3.0 small"),
        (0xB6, "PCI Express 3 x16"),
        (0xBD, "PCI Express 4 x16"),
    ):
        assert smbios.slot(one(9, 0x0D, {5: ("B", number)})).kind == name


def test_arrays_and_mapped_addresses() -> None:
    fields: dict[int, tuple[str, int]] = {4: ("B", 3), 5: ("B", 3), 6: ("B", 6), 7: ("I", 0x8000_0000)}
    fields |= {0x0D: ("H", 24), 0x0F: ("Q", 6 * 2**40)}
    assert smbios.memory_array(one(16, 0x17, fields)) == smbios.MemoryArray(
        0x100, "system board", "system memory", "multi-bit ECC", 6 * 2**40, 24
    )
    assert smbios.memory_array(one(16, 0x0F, {4: ("B", 0xA4), 7: ("I", 1024)})).maximum_bytes == 2**20
    assert smbios.memory_array(one(16, 0x0F, {7: ("I", 0x8000_0000)})).maximum_bytes is None
    mapped = one(19, 0x1F, {4: ("I", 0xFFFF_FFFF), 0x0C: ("H", 7), 0x0E: ("B", 8), 0x17: ("Q", 2**40 - 1)})
    assert smbios.array_mapping(mapped) == smbios.ArrayMapping(7, 0, 2**40 - 1, 8)
    mapped = one(20, 0x13, {8: ("I", 2**20 - 1), 0x0C: ("H", 7), 0x0E: ("H", 9), 0x10: ("B", 0xFF)})
    assert smbios.device_mapping(mapped) == smbios.DeviceMapping(7, 9, 0, GIB - 1, None, 0, 0)
    assert smbios.array_mapping(one(19, 0x0F, {4: ("I", 0xFFFF_FFFF)})) == smbios.ArrayMapping(0)


def test_power_supplies() -> None:
    fields: dict[int, tuple[str, int]] = {5: ("B", 1), 0x0C: ("H", 2000), 0x0E: ("H", 3 << 7 | 2)}
    read = smbios.power_supply(one(39, 0x16, fields, [b"PSU1"]))
    assert read == smbios.PowerSupply("PSU1", 2000, "OK", True, True)
    assert smbios.power_supply(one(39, 0x10, {0x0C: ("H", 0x8000), 0x0E: ("H", 4)})) == smbios.PowerSupply(
        present=False, plugged=False
    )


def test_the_table_ends_at_its_marker() -> None:
    read = smbios.structures(raw(1, 8) + END + raw(2, 8) + b"\xff" * 100)
    assert [s.type for s in read.structures] == [1, 127]
    assert read.problems == ()
    assert smbios.structures(raw(1, 8) + END[:4]).problems == ()


@pytest.mark.parametrize(
    ("table", "count", "problem"),
    [
        (b"", 0, "no end marker"),
        (raw(1, 8), 1, "no end marker"),
        (raw(1, 8) + b"\x11\x03\0\0\0\0" + END, 1, "byte 10 has a length of 3"),
        (raw(1, 8) + raw(17, 92)[:50], 1, "byte 10 is not whole"),
        (raw(1, 8) + b"\x11", 1, "byte 10 is not whole"),
        (raw(1, 8) + raw(17, 92, {}, [b"DIMM"])[:-2], 1, "strings of the structure at byte 10 do not end"),
        (raw(1, 8, {}, [b"x"] * 300) + END, 2, "more than 255 strings"),
        (raw(1, 8, {}, [b"x" * 5000]) + END, 2, "more than 4096 characters"),
        (raw(1, 4) * 20_001 + END, 20_000, "more than 20000 structures"),
        (raw(1, 4, {}, [b"x" * 4000]) * 300 + END, 261, "larger than 1048576 bytes"),
    ],
)
def test_what_is_whole_is_read_and_the_rest_told(table: bytes, count: int, problem: str) -> None:
    read = smbios.structures(table)
    assert len(read.structures) == count
    assert problem in "; ".join(read.problems)


def test_the_entry_point_is_compared() -> None:
    table = raw(1, 8) + END
    assert smbios.structures(table, EntryPoint(3, 5, 9000)).problems == ()
    assert smbios.structures(raw(1, 8), EntryPoint(2, 8, 10, 1, True)).problems == ()
    short = smbios.structures(raw(1, 8), EntryPoint(3, 5, 9000)).problems
    assert short == (
        "truncated: the table has no end marker",
        "truncated: the entry point tells 9000 bytes",
    )
    wrong = smbios.structures(table, EntryPoint(2, 8, len(table), 7, True)).problems
    assert wrong == ("the entry point tells 7 structures, found 2",)
    cut = smbios.structures(table + raw(2, 8), EntryPoint(2, 8, 10, None, True))
    assert [s.type for s in cut.structures] == [1]


REAL = (
    raw(0, 0x18, {4: ("B", 1)}, [b"Maker"])
    + raw(4, 0x30, {4: ("B", 1), 0x18: ("B", 0x41)}, [b"CPU0"])
    + raw(9, 0x11, {4: ("B", 1)}, [b"SLOT"])
    + raw(16, 0x17, {5: ("B", 3)})
    + raw(17, 0x5C, {0x0C: ("H", 0x7FFF), 0x10: ("B", 1), 0x1C: ("I", 65536)}, [b"DIMM 0"])
    + raw(19, 0x1F)
    + raw(20, 0x23)
    + raw(39, 0x16)
    + END
)


def bounded(table: bytes, entry: bytes) -> None:
    point = smbios.entry_point(entry)
    read = smbios.structures(table, point)
    decoded = smbios.decode(read)
    assert len(read.structures) <= smbios.STRUCTURES
    assert len(read.problems) <= smbios.PROBLEMS + 4
    assert all(len(s.strings) <= 255 for s in read.structures)
    assert all(len(text) <= 4096 and text.isprintable() for s in read.structures for text in s.strings)
    assert sum(len(s.formatted) for s in read.structures) <= len(table)
    assert len(decoded.devices) <= len(table) // 4


ANY_BYTES: dict[str, Any] = {"table": st.binary(max_size=2000), "entry": st.binary(max_size=40)}
CHANGED: dict[str, Any] = {
    "cut": st.integers(0, len(REAL)),
    "changes": st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(0, 255)), max_size=12),
    "length": st.integers(0, 2 * len(REAL)),
}


@given(**ANY_BYTES)
@example(table=b"\x11\x04\0\0" * 3, entry=b"_SM_\0\x1f\x02\x08")
@settings(max_examples=300, deadline=None)
def test_random_bytes(table: bytes, entry: bytes) -> None:
    bounded(table, entry)


@given(**CHANGED)
@settings(max_examples=500, deadline=None)
def test_truncated_and_changed_tables(cut: int, changes: list[tuple[int, int]], length: int) -> None:
    table = bytearray(REAL)
    for position, value in changes:
        table[position] = value
    bounded(bytes(table[:cut]), b"_SM3_\0\x18\x03\x05\0\x01\0" + struct.pack("<IQ", length, 0))


@contextmanager
def at_most_more(size: int) -> Iterator[None]:
    """Lets this process map so many bytes more than it has; beyond that comes a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("short", "strategies", "count"),
    [
        (test_random_bytes, ANY_BYTES, 75_000),
        (test_truncated_and_changed_tables, CHANGED, 25_000),
    ],
)
def test_hundred_thousand_tables_in_bounded_memory(
    short: Any, strategies: dict[str, Any], count: int
) -> None:
    tables = 0

    @given(**strategies)
    @settings(max_examples=count, deadline=None, database=None)
    def many(**drawn: Any) -> None:
        nonlocal tables
        tables += 1
        short.hypothesis.inner_test(**drawn)

    with at_most_more(256 * 2**20):
        many()
    assert tables >= count


def told(name: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((MACHINES / name / "expected.json").read_text())
    return next((part for part in expected.values() if isinstance(part, dict) and "dimm_slots" in part), {})


def amount(text: str) -> int:
    match = re.fullmatch(r"(\d+) (MB|GB)", text)
    assert match is not None, text
    return int(match[1]) * {"MB": 2**20, "GB": 2**30}[match[2]]


def captured(name: str) -> smbios.Table:
    stem = "" if (MACHINES / name / "DMI.bin").exists() else ".reconstructed"
    point = smbios.entry_point((MACHINES / name / f"smbios_entry_point{stem}.bin").read_bytes())
    assert point is not None
    return smbios.decode(smbios.structures((MACHINES / name / f"DMI{stem}.bin").read_bytes(), point))


@pytest.mark.skipif(not NAMES, reason="the captured machines are not beside the checkout")
@pytest.mark.parametrize("name", NAMES)
def test_captured_tables(name: str) -> None:
    expected, table = told(name), captured(name)
    assert table.problems == ()
    modules = [device for device in table.devices if device.size_bytes]
    assert (len(table.devices), len(modules)) == (expected["dimm_slots"], expected["dimms_populated"])
    sizes: Counter[int] = Counter()
    for text, count in expected["size_histogram"].items():
        sizes[amount(text)] += count
    assert Counter(device.size_bytes for device in modules) == sizes
    rates = {
        tuple(
            None if part in ("Unknown", "?") else int(part.split()[0]) for part in text.split(" -> ")
        ): count
        for text, count in expected["rated_vs_configured"].items()
    }
    assert Counter((device.rated_mts, device.configured_mts) for device in modules) == rates
    places = [
        (slot["locator"], slot["bank"].replace("Not Specified", "") or None) for slot in expected["slots"]
    ]
    assert [(device.device_locator, device.bank_locator) for device in table.devices] == places
    populated = [cpu for cpu in table.processors if cpu.populated]
    assert len(table.processors) == expected["cpu_sockets_total"]
    assert len(populated) == expected["cpu_sockets_populated"]
    assert [str(cpu.cores) for cpu in populated] == expected["cores_per_socket"]
    assert [str(cpu.threads) for cpu in populated] == expected["threads_per_socket"]
    assert [str(array.devices) for array in table.arrays] == [a["devices"] for a in expected["memory_arrays"]]
