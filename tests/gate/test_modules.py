"""Population and speed of the memory modules, judged from what the firmware's table told."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.records import Channel, Dimm, Memory, MemoryArray, Provenance, State, Verdict

GIB = 2**30


def channel(name: str, gib: int = 64, mts: int | None = 4800, modules: int = 1) -> Channel:
    """A channel with `modules` of DRAM that hold `gib` GiB in all; none for 0."""
    there = modules if gib else 0
    return Channel(f"socket 0 channel {name}", (f"DIMM_{name}1",), there, there, gib * GIB if gib else 0, mts)


def memory(*channels: Channel, **changes: Any) -> Memory:
    used = [one for one in channels if one.dram]
    empty = tuple(f"{one.name} ({one.slots[0]})" for one in channels if not one.dram)
    dimms = tuple(
        Dimm(
            locator=one.slots[0],
            socket=0,
            channel=one.name[-1],
            bytes=one.dram_bytes,
            populated=bool(one.dram),
            kind="dram" if one.dram else None,
        )
        for one in channels
        for _ in range(max(1, one.modules))
    )
    fields: dict[str, Any] = {
        "dimms": dimms,
        "arrays": (MemoryArray("system board", "multi-bit ECC", None, len(dimms)),),
        "slots": len(channels),
        "populated": len(used),
        "channels": len(used),
        "channel_list": channels,
        "empty_channels": empty,
        "modules_per_channel": max((one.modules for one in channels), default=0),
        "configured_mts": 4800,
        "rated_mts": 4800,
        "derating_percent": 0.0,
        "mixed_sizes": False,
    }
    return Memory(total_bytes=2**41, **{**fields, **changes})


@pytest.fixture
def judged(check: Any, make_record: Any, bare_metal: Any) -> Any:
    """`judged("roofline.population", memory, provenance={...}, model=...)`."""

    def judge(name: str, found: Memory, model: str = "EXAMPLE", **provenance: Provenance) -> Any:
        cpu = attrs.evolve(bare_metal.cpu, model=model, sockets=1)
        told = {f"memory.{field}": entry for field, entry in provenance.items()}
        inventory = attrs.evolve(bare_metal, cpu=cpu, memory=found, provenance=told)
        return check(make_record(None, inventory), name)

    return judge


def test_all_channels_alike_pass(judged: Any) -> None:
    found = judged(
        "roofline.population", memory(*(channel(one) for one in "ABCDEFGH")), model="AMD EPYC 7763"
    )
    assert found.verdict is Verdict.PASS
    assert found.observed == "8 of 8 channels"
    assert found.reason == "All 8 channels are populated alike."
    assert found.evidence == ("inventory:memory.dimms",)
    both = memory(*(channel(one, 128, modules=2) for one in "ABCD"))
    both = judged("roofline.population", both, model="Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz")
    assert both.reason == "All 4 channels are populated alike, 2 modules each."


@pytest.mark.case("MEM-02")
def test_mem_02_an_empty_channel_fails_and_is_named_whatever_the_speed(judged: Any) -> None:
    found = memory(*(channel(one) for one in "ABCDEFG"), channel("H", 0))
    population = judged("roofline.population", found)
    assert population.verdict is Verdict.FAIL
    assert "1 of 8 memory channels is empty: socket 0 channel H (DIMM_H1)" in population.reason
    assert "interleaves more coarsely" in population.reason
    assert population.remedy.startswith("Fill the empty channels")
    assert judged("roofline.speed", found).verdict is Verdict.PASS


def test_a_board_with_too_few_slots_for_its_processor_fails(judged: Any) -> None:
    eight = memory(*(channel(one) for one in "ABCDEFGH"))
    found = judged("roofline.population", eight, model="AMD EPYC 9654 96-Core Processor")
    assert found.verdict is Verdict.FAIL
    assert "slots for 8 of the 12 channels of AMD EPYC 9654" in found.reason
    assert judged("roofline.population", eight, model="AMD EPYC 7763").verdict is Verdict.PASS


def test_uneven_channels_fail(judged: Any) -> None:
    found = judged("roofline.population", memory(channel("A"), channel("B"), channel("C", 32)))
    assert found.verdict is Verdict.FAIL
    assert "32.0 GiB at socket 0 channel C, up to 64.0 GiB" in found.reason


@pytest.mark.parametrize(
    ("entry", "words", "remedy"),
    [
        (Provenance(State.NOT_PERMITTED, None, "the table is readable by root only"), "by root only", "sudo"),
        (
            Provenance(State.NOT_RUN, None, "virtual machine, population not evaluated"),
            "not evaluated",
            "k3gate run",
        ),
        (
            Provenance(State.NOT_PRESENT, None, "the locators (DIMM5_CPU0) do not name it"),
            "DIMM5",
            "k3gate run",
        ),
    ],
)
def test_what_is_not_known_is_unproven_with_the_way_to_know_it(
    judged: Any, entry: Provenance, words: str, remedy: str
) -> None:
    """MEM-04, MEM-05: never a failure about missing channels where the table cannot be believed or read."""
    for name, field in (("population", "channels"), ("speed", "configured_mts")):
        found = judged(f"roofline.{name}", Memory(total_bytes=2**41), **{field: entry})
        assert found.verdict is Verdict.UNPROVEN
        assert words in found.reason
        assert remedy in found.remedy


def test_channels_without_names_pass_only_where_the_processors_number_is_met(judged: Any) -> None:
    plain = {"channel_list": None, "empty_channels": None, "dimms": (), "arrays": ()}
    full = memory(**plain, channels=8, slots=16, populated=16)
    assert judged("roofline.population", full, model="AMD EPYC 7763 64-Core").verdict is Verdict.PASS
    two = memory(**plain, channels=2, slots=2, populated=2)
    found = judged("roofline.population", two, model="AMD EPYC 9654 96-Core")
    assert found.verdict is Verdict.FAIL
    assert "modules in 2 of the 12 channels" in found.reason
    assert judged("roofline.population", full, model="EXAMPLE 9X55").verdict is Verdict.UNPROVEN
    mixed = attrs.evolve(full, mixed_sizes=True)
    assert judged("roofline.population", mixed, model="AMD EPYC 7763").verdict is Verdict.FAIL


def test_slots_that_name_no_channel_prove_nothing(judged: Any) -> None:
    four = memory(*(channel(one) for one in "ABCD"))
    unnamed = attrs.evolve(four, dimms=(*four.dimms, Dimm(locator="X9", bytes=0, populated=False)))
    assert "1 of 5 slots name no channel" in judged("roofline.population", unnamed).reason


def test_as_many_channels_as_slots_prove_nothing_where_the_processor_is_not_known(judged: Any) -> None:
    """A board may have slots for fewer channels than its processor."""
    found = judged("roofline.population", memory(*(channel(one) for one in "ABCDEFGH")))
    assert found.verdict is Verdict.UNPROVEN
    assert "how many channels EXAMPLE has is not known" in found.reason


@pytest.mark.parametrize("model", ["AMD EPYC 9654", "EXAMPLE"])
def test_fewer_modules_than_channels_fail_whatever_the_slots_are_called(judged: Any, model: str) -> None:
    dimms = tuple(
        Dimm(locator=f"PROC 1 DIMM {n}", bytes=64 * GIB, populated=n < 11, kind="dram") for n in range(12)
    )
    unnamed = memory(
        dimms=dimms, channels=None, channel_list=None, empty_channels=None, populated=11, slots=12
    )
    found = judged("roofline.population", unnamed, model=model)
    full = attrs.evolve(unnamed, populated=12, dimms=tuple(attrs.evolve(d, populated=True) for d in dimms))
    assert judged("roofline.population", full, model=model).verdict is Verdict.UNPROVEN
    if model == "EXAMPLE":
        assert found.verdict is Verdict.UNPROVEN
    else:
        assert found.verdict is Verdict.FAIL
        assert "modules for the 12 channels of AMD EPYC 9654" in found.reason


def test_a_module_that_the_kernel_does_not_use_is_not_passed(judged: Any) -> None:
    """Firmware maps out a bad module and goes on listing it."""
    whole = memory(*(channel(one) for one in "ABCDEFGH"), dram_bytes=512 * GIB)
    for total, verdict in ((502, Verdict.PASS), (440, Verdict.UNPROVEN)):
        found = judged(
            "roofline.population", attrs.evolve(whole, total_bytes=total * GIB), model="AMD EPYC 7763"
        )
        assert found.verdict is verdict
    assert "as if one or more were not used" in found.reason


def test_sockets_with_unlike_numbers_of_channels_fail(judged: Any) -> None:
    both = memory(*(channel(one) for one in "ABCD"))
    second = tuple(attrs.evolve(dimm, socket=1) for dimm in both.dimms[:2])
    six = (MemoryArray("system board", None, None, 6),)
    found = judged("roofline.population", attrs.evolve(both, arrays=six, dimms=(*both.dimms, *second)))
    assert found.verdict is Verdict.FAIL
    assert "socket 0: 4, socket 1: 2" in found.reason


def test_speeds_that_firmware_may_give_as_clocks_decide_nothing(judged: Any) -> None:
    """Configured is half of rated: the table gives the clock, or the modules are slowed; nobody can tell."""
    half = memory(channel("A"), configured_mts=1600, rated_mts=3200, derating_percent=50.0)
    doubt = Provenance(State.FAILED, None, "the configured 1600 MT/s is half of the rated 3200")
    found = judged("roofline.speed", half, theoretical_bytes_per_s=doubt)
    assert found.verdict is Verdict.UNPROVEN
    assert "half of the rated" in found.reason


@pytest.mark.case("MEM-03")
@pytest.mark.parametrize(
    ("configured", "rated", "percent", "verdict"),
    [
        (4800, 4800, 0.0, Verdict.PASS),
        (6000, 6400, 6.25, Verdict.FAIL),
        (3200, 2133, -50.0, Verdict.PASS),
        (2934, 2933, -0.03, Verdict.PASS),
        (2933, 2934, 0.03, Verdict.PASS),
        (None, 4800, None, Verdict.UNPROVEN),
        (4800, None, None, Verdict.UNPROVEN),
    ],
)
def test_mem_03_the_configured_speed_is_held_against_the_rated_one(
    judged: Any, configured: int | None, rated: int | None, percent: float | None, verdict: Verdict
) -> None:
    speeds = {"configured_mts": configured, "rated_mts": rated, "derating_percent": percent}
    found = judged("roofline.speed", memory(channel("A"), **speeds))
    assert found.verdict is verdict
    if verdict is Verdict.FAIL:
        assert "6.25 % below their rated speed: the slowest at 6,000 MT/s" in found.reason


def test_two_modules_on_a_channel_are_named_as_the_likely_cause(judged: Any) -> None:
    slow = {"configured_mts": 2933, "rated_mts": 3200, "derating_percent": 8.34}
    found = judged("roofline.speed", memory(channel("A", 128, modules=2), **slow))
    assert "Two modules on a channel often cost that." in found.reason


def test_a_table_that_was_cut_decides_nothing(judged: Any) -> None:
    """The slow and the missing modules may stand in the part that is lost."""
    lost = memory(*(channel(one) for one in "ABCDEFGH"), channels=None, channel_list=None, populated=None)
    told = Provenance(State.NOT_PRESENT, None, "the table shows 8 of the board's 16 slots")
    for name, field in (("population", "channels"), ("speed", "populated")):
        found = judged(f"roofline.{name}", lost, model="AMD EPYC 7763", **{field: told})
        assert found.verdict is Verdict.UNPROVEN
        assert "8 of the board's 16 slots" in found.reason
    slow = attrs.evolve(lost, derating_percent=10.0)
    assert judged("roofline.speed", slow, model="AMD EPYC 7763").verdict is Verdict.FAIL


def test_a_processor_without_modules_fails(
    judged: Any, check: Any, make_record: Any, bare_metal: Any
) -> None:
    one = memory(*(channel(name) for name in "ABCD"))
    inventory = attrs.evolve(bare_metal, memory=one, cpu=attrs.evolve(bare_metal.cpu, model="X", sockets=2))
    found = check(make_record(None, inventory), "roofline.population")
    assert found.verdict is Verdict.FAIL
    assert "1 of 2 processors have memory modules" in found.reason


def test_one_module_that_is_known_to_be_slowed_is_enough(judged: Any) -> None:
    """Six of eight modules hide their rated speed; the other two run 8 % below theirs."""
    some = memory(channel("A"), configured_mts=2933, rated_mts=None, derating_percent=8.34)
    found = judged("roofline.speed", some)
    assert found.verdict is Verdict.FAIL
    assert "8.34 % below" in found.reason
    untold = judged("roofline.speed", attrs.evolve(some, configured_mts=None))
    assert untold.verdict is Verdict.FAIL
    assert "a speed that not all of them tell" in untold.reason
