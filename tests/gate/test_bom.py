"""An order against a machine: line by line same, better, worse or not measured, and what a lock holds on to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from k3gate.analysis import system_file
from k3gate.errors import UsageError
from k3gate.gate import bom, lock
from k3gate.gate.evaluator import evaluate
from k3gate.gate.rules import evidence as rule
from k3gate.records import Dimm, Evidence, Inventory, RunRecord, Verdict

GIB = 2**30
ORDER = """name = "two sockets"
[cpu]
model = "Xeon Platinum 8562Y+"
sockets = 2
cores = 32
[memory]
type = "DDR5"
modules = 16
module_gib = 128
mts = 5600
rated_mts = 5600
channels = 8
part = "M321R4GA3BB6-CQK"
"""


def dimm(number: int, **changes: Any) -> Dimm:
    one = Dimm(
        locator=f"P{number // 8}-DIMM{'ABCDEFGH'[number % 8]}1",
        bytes=128 * GIB,
        populated=True,
        kind="dram",
        memory_type="DDR5",
        rated_mts=5600,
        configured_mts=5600,
        rank=2,
        data_width=64,
        manufacturer="Samsung",
        part_number="M321R4GA3BB6-CQK",
    )
    return attrs.evolve(one, **changes)


def machine(bare_metal: Inventory, *changed: Dimm, **memory: Any) -> Inventory:
    dimms = [dimm(number) for number in range(16)]
    for one in changed:
        dimms[next(n for n, d in enumerate(dimms) if d.locator == one.locator)] = one
    return attrs.evolve(bare_metal, memory=attrs.evolve(bare_metal.memory, dimms=tuple(dimms), **memory))


def lines(text: str, inventory: Inventory) -> dict[str, bom.Line]:
    return {line.key: line for line in bom.check(system_file.read(text, "order.toml"), inventory)}


def test_what_was_ordered_and_is_there_is_the_same(bare_metal: Inventory) -> None:
    found = lines(ORDER, machine(bare_metal))
    assert {line.verdict for line in found.values()} == {"same"}
    assert set(found) == {
        *("cpu.model", "cpu.sockets", "cpu.cores", "memory.modules", "memory.size", "memory.type"),
        *("memory.speed", "memory.rated", "memory.part", "memory.channels"),
    }
    assert bom.verdict(found.values()) is Verdict.PASS


@pytest.mark.parametrize(
    ("change", "key", "verdict", "told"),
    [
        ({"configured_mts": 4800}, "memory.speed", "worse", "P1-DIMMC1 has 4,800 MT/s, not 5,600 MT/s"),
        ({"bytes": 64 * GIB}, "memory.size", "worse", "P1-DIMMC1 has 64.0 GiB, not 128 GiB"),
        ({"part_number": "OTHER"}, "memory.part", "worse", "P1-DIMMC1 has OTHER, not M321R4GA3BB6-CQK"),
        ({"memory_type": "DDR4"}, "memory.type", "worse", "P1-DIMMC1 has DDR4"),
        ({"bytes": 0, "populated": False}, "memory.modules", "worse", "ordered are 16, there are 15"),
        (
            {"bytes": 256 * GIB},
            "memory.size",
            "worse",
            "P1-DIMMC1 has 256 GiB, the others 128 GiB on 16 channels: channels hold unlike amounts",
        ),
        ({"configured_mts": None}, "memory.speed", "not measured", "does not tell it of every module"),
    ],
)
def test_one_module_that_differs_is_named(
    bare_metal: Inventory, change: dict[str, Any], key: str, verdict: str, told: str | None
) -> None:
    line = lines(ORDER, machine(bare_metal, dimm(10, **change)))[key]
    assert line.verdict == verdict
    assert told is None if line.reason is None else told in line.reason


def test_more_memory_is_better_only_where_channels_stay_even(bare_metal: Inventory) -> None:
    """A 17th module lies on a channel that another one has already; sizes in pairs leave all channels alike."""
    larger = machine(bare_metal, *(dimm(number, bytes=256 * GIB) for number in range(16)))
    assert lines(ORDER, larger)["memory.size"].verdict == "better"
    more = machine(bare_metal)
    extra = (*more.memory.dimms, dimm(16, locator="P1-DIMMA2"))
    line = lines(ORDER, attrs.evolve(more, memory=attrs.evolve(more.memory, dimms=extra)))["memory.modules"]
    assert line.verdict == "worse" and "17 modules on 16 channels" in line.reason
    pairs = [
        dimm(
            number,
            locator=f"P{number}",
            socket=number // 16,
            channel=str(number % 8),
            bytes=(128, 256)[row] * GIB,
        )
        for number in range(16)
        for row in (0, 1)
    ]
    even = attrs.evolve(more, memory=attrs.evolve(more.memory, dimms=tuple(pairs), channels=8))
    found = lines(ORDER, even)
    assert found["memory.modules"].verdict == found["memory.size"].verdict == "better"


def test_every_line_that_an_order_states_is_checked_or_said_to_be_open(bare_metal: Inventory) -> None:
    text = (
        'name = "c"\n[cpu]\ncores = {}\n[memory]\nmodules = 16\nmodule_gib = 128\nslots = {}\nchannels = 3\n'
    )
    there = machine(bare_metal, slots=32)
    found = lines(text.format(64, 99), there)
    assert found["cpu.cores"].verdict == "worse" and found["cpu.cores"].title == "cores of a socket"
    assert (
        found["memory.slots"].verdict == "worse"
        and "ordered are 99, there are 32" in found["memory.slots"].reason
    )
    assert found["memory.channels"].verdict == "not measured" and "follows from the sockets" in (
        found["memory.channels"].reason
    )
    found = lines(text.format(32, 32), there)
    assert found["cpu.cores"].verdict == found["memory.slots"].verdict == "same"


def test_another_processor_is_worse_and_more_sockets_are_better(bare_metal: Inventory) -> None:
    found = lines(ORDER.replace("8562Y+", "8592+").replace("sockets = 2", "sockets = 1"), machine(bare_metal))
    assert found["cpu.model"].verdict == "worse"
    assert found["cpu.sockets"].verdict == "better"


@pytest.mark.parametrize(
    ("ordered", "found", "same"),
    [
        ("Xeon Platinum 8592+", "INTEL(R) XEON(R) PLATINUM 8592+", True),
        ("AMD EPYC 9755", "AMD EPYC 9755 128-Core Processor", True),
        ("EPYC 975", "AMD EPYC 9755 128-Core Processor", False),
        ("Xeon Platinum 8592", "INTEL(R) XEON(R) PLATINUM 8592+", False),
        ("Intel", "INTEL(R) XEON(R)", False),
        ("Xeon", "Intel(R) Xeon(R) Gold 5118 CPU @ 2.30GHz", False),
        ("Gold 5118", "Intel(R) Xeon(R) Gold 5118 CPU @ 2.30GHz", True),
        ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Max-Q", False),
        ("H200", "NVIDIA H200 SXM5 141GB", True),
        ("H11DSi-NT", "Supermicro H11DSi-NT", True),
        ("ProLiant DL385 Gen10 Plus v2", "HPE ProLiant DL385 Gen10 Plus v2", True),
        ("Lenovo ThinkSystem SR665", "ThinkSystem SR665", True),
        ("ROMED8-2T", "ASRockRack ROMED8-2T", True),
        ("KRPA-U16 Series", "ASUSTeK COMPUTER INC. KRPA-U16 Series", True),
        ("H11DSi-NT", "Supermicro H12DSi-NT6", False),
        ("Intel Xeon 6 6980P", "Intel(R) Xeon(R) 6980P", True),
        ("Tesla V100 32 GB", "Tesla V100-PCIE-32GB", True),
        ("Tesla V100 16 GB", "Tesla V100-PCIE-32GB", False),
    ],
)
def test_names_of_processors_are_compared_without_marks(ordered: str, found: str, same: bool) -> None:
    assert bom.same_part(ordered, found) is same


def test_what_was_not_read_is_not_measured_and_not_zero(bare_metal: Inventory, make_inventory: Any) -> None:
    found = lines(
        ORDER + '[[gpu]]\nmodel = "H200"\ncount = 8\nmemory_gb = 141\n[storage]\ndrives = 4\n', bare_metal
    )
    for key in ("memory.modules", "memory.size", "memory.part", "gpu.1", "storage"):
        assert found[key].verdict == "not measured" and found[key].found is None and found[key].reason
    assert bom.verdict(found.values()) is Verdict.UNPROVEN
    guest = lines(ORDER, make_inventory("vm"))
    assert {line.verdict for line in guest.values()} == {"not measured"}
    assert "virtual" in guest["cpu.model"].reason
    assert bom.verdict(()) is Verdict.UNPROVEN


# --- the lock ---


@pytest.fixture
def frozen(bare_metal: Inventory, make_record: Callable[..., RunRecord], criteria: Any) -> dict[str, Any]:
    from k3gate.gate.targets import load

    record = make_record(inventory=machine(bare_metal))
    result = evaluate(record, criteria, load("residency-lab"), evaluated="2026-11-30", version="0")
    system = system_file.read(ORDER, "order.toml")
    return lock.make(system, record, result, bom.check(system, record.inventory), "2026-11-30T00:00:00+00:00")


def verify(frozen: dict[str, Any], inventory: Inventory) -> list[bom.Line]:
    held = lock.read(frozen, "order.lock")
    return list(lock.verify(held, system_file.read(held["bom"]["text"], "order.lock"), inventory))


def test_a_lock_holds_hashes_of_all_that_decides(frozen: dict[str, Any]) -> None:
    for name in ("bom", "criteria", "target", "run", "verdicts"):
        assert frozen[name]["digest"].startswith("sha256:")
    assert lock.read(frozen, "order.lock") == frozen


def test_the_same_machine_verifies(frozen: dict[str, Any], bare_metal: Inventory) -> None:
    assert {line.verdict for line in verify(frozen, machine(bare_metal))} == {"same"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"part_number": "OTHER"},
            "P1-DIMMC1: part number was M321R4GA3BB6-CQK, and is OTHER now",
        ),
        ({"bytes": 256 * GIB}, "P1-DIMMC1: size was 128 GiB, and is 256 GiB now"),
        ({"configured_mts": 4800}, "P1-DIMMC1: speed was 5600 MT/s, and is 4800 MT/s now"),
        ({"rank": 1}, "P1-DIMMC1: rank was 2, and is 1 now"),
        ({"memory_type": "DDR4"}, "P1-DIMMC1: type was DDR5, and is DDR4 now"),
        ({"data_width": 32}, "P1-DIMMC1: data width was 64 bits, and is 32 bits now"),
        ({"manufacturer": None}, "P1-DIMMC1: maker was Samsung, and is unknown now"),
        (
            {"bytes": 0, "populated": False},
            "P1-DIMMC1 was 128 GiB DDR5 M321R4GA3BB6-CQK, rank 2 at 5600 MT/s, and is empty now",
        ),
    ],
)
def test_a_changed_module_is_worse_and_what_changed_is_named(
    frozen: dict[str, Any], bare_metal: Inventory, change: dict[str, Any], told: str
) -> None:
    found = verify(frozen, machine(bare_metal, dimm(10, **change)))
    assert bom.verdict(found) is Verdict.FAIL
    (line,) = [line for line in found if line.title == "module P1-DIMMC1"]
    assert (line.verdict, line.reason) == ("worse", told)
    assert "P1-DIMMC1" in bom.sentence(found)


def test_a_machine_whose_modules_cannot_be_read_is_unproven(
    frozen: dict[str, Any], bare_metal: Inventory
) -> None:
    assert bom.verdict(verify(frozen, bare_metal)) is Verdict.UNPROVEN


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document["bom"].update(text='name = "other"'),
        lambda document: document["parts"]["cpu"].update(sockets=4),
        lambda document: document.update(k3gate_lock=9),
        lambda document: document.pop("digest"),
        lambda document: document.update(later=float("nan")),
    ],
)
def test_an_altered_lock_is_refused(frozen: dict[str, Any], spoil: Any) -> None:
    document = copy.deepcopy(frozen)
    spoil(document)
    with pytest.raises(UsageError, match=r"order\.lock"):
        lock.read(document, "order.lock")


@pytest.mark.parametrize(
    "dimms",
    [
        [],
        "none",
        {"a": "a module"},
        {"a": {"bytes": "many"}},
        {"a": {"bytes": 1, "rank": "two"}},
        {"a": {"bytes": 1, "type": 5}},
        {"a": {"bytes": 1, "configured_mts": []}},
        {"a": {"place": {}}},
        {"a": {"bytes": 10**400}},
        {"a": {"bytes": -5}},
    ],
)
def test_a_lock_with_parts_that_none_has_is_refused(frozen: dict[str, Any], dimms: Any) -> None:
    """Its digest computed again, so that only its content tells."""
    from k3gate.documents import digest

    document = copy.deepcopy(frozen)
    document["parts"]["dimms"] = dimms
    document["digest"] = digest({key: value for key, value in document.items() if key != "digest"})
    with pytest.raises(UsageError, match=r"order\.lock holds parts that no lock has"):
        lock.read(document, "order.lock")


@pytest.mark.parametrize(
    "part",
    [
        {"board": {"a": 1}},
        {"cpu": {"model": 5, "sockets": 2, "cores": 64}},
        {"cpu": {"model": "x", "sockets": -2, "cores": 64}},
        {"cpu": {"model": "x", "sockets": 2, "cores": 10**400}},
        {"gpus": [5]},
    ],
)
def test_parts_of_a_lock_are_texts_and_counts(frozen: dict[str, Any], part: dict[str, Any]) -> None:
    from k3gate.documents import digest

    document = copy.deepcopy(frozen)
    document["parts"].update(part)
    document["digest"] = digest({key: value for key, value in document.items() if key != "digest"})
    with pytest.raises(UsageError, match=r"order\.lock holds parts that no lock has"):
        lock.read(document, "order.lock")


def test_a_row_that_is_missing_or_moved_in_the_table_names_no_other_module(
    frozen: dict[str, Any], bare_metal: Inventory
) -> None:
    whole = machine(bare_metal)
    dimms = whole.memory.dimms
    turned = attrs.evolve(whole, memory=attrs.evolve(whole.memory, dimms=tuple(reversed(dimms))))
    assert {line.verdict for line in verify(frozen, turned)} == {"same"}
    less = attrs.evolve(whole, memory=attrs.evolve(whole.memory, dimms=dimms[1:]))
    named = [line.title for line in verify(frozen, less) if line.key.startswith("parts.dimms.")]
    assert named == [f"module {dimms[0].locator}"]


def test_an_order_that_states_nothing_says_so() -> None:
    assert bom.sentence(()) == "The order states no part that could be checked."


def test_an_order_checked_on_another_run_says_nothing_of_this_one(
    make_record: Callable[..., RunRecord], criteria: Any
) -> None:
    from k3gate.gate.targets import load

    (entry,) = criteria.of("bom.match")
    other = Evidence(
        "bom.match", "sha256:order", "bom", Verdict.PASS, "all the same", "2026", {"run": "zzzz9999"}
    )
    target = load("residency-lab")
    assert rule(entry, make_record(evidence=(other,)), target).verdict is Verdict.UNPROVEN
    own = attrs.evolve(other, data={"run": "abcd2345"})
    assert rule(entry, make_record(evidence=(other, own)), target).verdict is Verdict.PASS
