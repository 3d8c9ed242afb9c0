"""Two runs side by side: what a buyer reads, and what must not be claimed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from k3gate.analysis.comparison import compare, document
from k3gate.metrics import MEMORY_READ
from k3gate.probing.statistics import summarise
from k3gate.records import Inventory, Metric, Outcome, Run, RunRecord, RunStatus, Sample, State

MakeInventory = Callable[..., Inventory]
LABELS = {"scope": "node", "kernel": "read", "stores": "none", "counting": "loads", "threads": 2}


def metric(rates: list[float], **labels: Any) -> Metric:
    """A read bandwidth with one sample a round, summarised as a run does it."""
    samples = tuple(Sample(rate, number, 100 + number, float(number)) for number, rate in enumerate(rates))
    summary = summarise(samples, MEMORY_READ)
    return Metric(
        MEMORY_READ.name,
        MEMORY_READ.unit,
        MEMORY_READ.better,
        {**LABELS, **labels},
        samples,
        summary.median,
        summary.interval,
        summary.state,
        summary.reason,
    )


def record(inventory: Inventory, metrics: Mapping[str, Metric], **run: Any) -> RunRecord:
    """A complete quick run that holds these metrics, one case each."""
    head = Run(
        id="aaaaaaaa",
        machine="m",
        fingerprint=inventory.machine.fingerprint,
        machine_name="here",
        profile="quick",
        version="0",
        started="2026-11-30T00:00:00+00:00",
        ended=None,
        status=RunStatus.COMPLETE,
    )
    outcomes = tuple(
        Outcome("memory", case, State.OK, None, 1.0, 5, metrics=(one,)) for case, one in metrics.items()
    )
    return RunRecord(attrs.evolve(head, **run), inventory, outcomes)


def test_a_loss_of_ten_percent_is_flagged_wherever_the_interval_is_under_five_percent(
    make_inventory: MakeInventory,
) -> None:
    inventory = make_inventory()
    chance = random.Random(1)
    flagged = 0
    for _ in range(200):
        rounds = chance.choice([3, 5, 8, 15])
        scatter = chance.uniform(0.001, 0.06)
        one = metric([25e9 * math.exp(chance.gauss(0, scatter)) for _ in range(rounds)])
        assert one.median is not None
        assert one.interval is not None
        low, high = one.interval
        if max(high - one.median, one.median - low) / one.median >= 0.05 or one.state is not State.OK:
            continue
        slower = attrs.evolve(
            one,
            samples=tuple(attrs.evolve(s, value=s.value * 0.9) for s in one.samples),
            median=one.median * 0.9,
            interval=(low * 0.9, high * 0.9),
        )
        result = compare(record(inventory, {"c": one}), record(inventory, {"c": slower}, id="bbbbbbbb"))
        assert result.metrics[0].verdict == "worse", (rounds, scatter, result.metrics[0])
        assert result.verdict == "worse"
        flagged += 1
    assert flagged > 20


def test_equal_runs_are_never_called_better_or_worse_more_than_once_in_a_hundred(
    make_inventory: MakeInventory,
) -> None:
    inventory = make_inventory()
    chance = random.Random(2)
    words = []
    for _ in range(300):
        pair = [metric([20e9 * math.exp(chance.gauss(0, 0.03)) for _ in range(5)]) for _ in range(2)]
        result = compare(record(inventory, {"c": pair[0]}), record(inventory, {"c": pair[1]}))
        words.append(result.metrics[0].verdict)
    assert words.count("better") + words.count("worse") <= 3
    assert words.count("same") > 0


def test_another_profile_is_named_as_not_comparable(make_inventory: MakeInventory) -> None:
    inventory = make_inventory()
    one = metric([20e9, 20.1e9, 20.2e9])
    result = compare(record(inventory, {"c": one}), record(inventory, {"c": one}, profile="smoke"))
    assert not result.comparable
    assert "profiles differ: quick against smoke" in result.reasons[0]
    assert result.verdict == "cannot tell"
    assert {m.verdict for m in result.metrics} == {"cannot tell"}
    assert result.sentence.startswith("Not comparable: profiles differ")


def test_an_interrupted_run_is_named_as_not_comparable(make_inventory: MakeInventory) -> None:
    inventory = make_inventory()
    one = metric([20e9, 20.1e9, 20.2e9])
    result = compare(
        record(inventory, {"c": one}), record(inventory, {"c": one}, status=RunStatus.INTERRUPTED)
    )
    assert not result.comparable
    assert "interrupted, not complete" in result.reasons[0]


@pytest.mark.case("BW-04")
@pytest.mark.parametrize("rule", ["kernel", "stores", "counting"])
def test_numbers_counted_by_other_rules_are_refused_bw_04(make_inventory: MakeInventory, rule: str) -> None:
    inventory = make_inventory()
    ours = metric([20e9, 20.1e9, 20.2e9])
    theirs = metric([30e9, 30.1e9, 30.2e9], **{rule: "another"})
    result = compare(record(inventory, {"c": ours}), record(inventory, {"c": theirs}))
    (only,) = result.metrics
    assert only.verdict == "cannot tell"
    assert only.ratio is None
    assert only.reason is not None
    assert f"counted differently: {rule}" in only.reason


def test_an_unstable_metric_reads_cannot_tell(make_inventory: MakeInventory) -> None:
    inventory = make_inventory()
    steady = metric([20e9, 20.1e9, 20.2e9])
    wild = metric([5e9, 20e9, 50e9])
    assert wild.state is State.UNSTABLE
    (only,) = compare(record(inventory, {"c": steady}), record(inventory, {"c": wild})).metrics
    assert only.verdict == "cannot tell"
    assert only.reason is not None
    assert only.reason.startswith("unstable in run B: ")


def test_a_metric_that_one_run_lacks_is_listed_and_not_judged(make_inventory: MakeInventory) -> None:
    inventory = make_inventory()
    one = metric([20e9, 20.1e9, 20.2e9])
    result = compare(record(inventory, {"c": one, "d": one}), record(inventory, {"c": one}))
    lacking = next(m for m in result.metrics if m.case == "d")
    assert (lacking.verdict, lacking.reason) == ("cannot tell", "not measured in run B")


def test_settings_come_before_hardware_and_forbid_a_conclusion(make_inventory: MakeInventory) -> None:
    before = make_inventory("bare_metal")
    after = make_inventory("bare_metal", kernel={"numa_balancing": True}, memory={"configured_mts": 4800})
    slow, fast = metric([20e9, 20.1e9, 20.2e9]), metric([30e9, 30.1e9, 30.2e9])
    result = compare(record(before, {"c": slow}), record(after, {"c": fast}))
    fields = [d.field for d in result.differences]
    assert fields[0] == "kernel.numa_balancing"
    assert "memory.configured_mts" in fields
    assert result.verdict == "better"
    assert "Settings differ (kernel.numa_balancing)" in result.sentence


def test_volatile_fields_and_free_memory_are_no_difference(make_inventory: MakeInventory) -> None:
    before = make_inventory()
    (node,) = before.numa.nodes
    after = make_inventory(
        memory={"available_bytes": 1},
        kernel={"load_average": (9.0, 9.0, 9.0)},
        numa={"nodes": (attrs.evolve(node, free_bytes=1),)},
    )
    one = metric([20e9, 20.1e9, 20.2e9])
    assert compare(record(before, {"c": one}), record(after, {"c": one})).differences == ()


def test_sizes_are_equal_or_not_and_what_others_did_is_not_compared(make_inventory: MakeInventory) -> None:
    inventory = make_inventory()
    image = {"memory": "image", "wanted_bytes": 10**9}
    held = attrs.evolve(metric([1e9]), name="memory.residency.bytes", unit="B", labels=image, state=State.OK)
    both = record(inventory, {"residency.image": held})
    busy = attrs.evolve(both.outcomes[0], probe="machine", case="idle")
    result = compare(both, attrs.evolve(both, outcomes=(*both.outcomes, busy)))
    assert [(m.case, m.verdict, m.interval) for m in result.metrics] == [
        ("residency.image", "same", (1.0, 1.0))
    ]
    for changes in (
        {"median": 0.9e9},  # a part of the image: as large as free memory let the plan make it
        {"labels": {"memory": "pool", "wanted_bytes": None}},
        {"median": 2e9, "labels": {"memory": "image", "wanted_bytes": 2 * 10**9}},  # another target's
    ):
        other = attrs.evolve(held, **changes)
        for pair in ((held, other), (other, held)):
            (only,) = compare(*(record(inventory, {"residency.image": one}) for one in pair)).metrics
            assert only.verdict == "cannot tell", changes
            assert only.reason


def test_a_difference_that_may_be_drift_is_not_called_same(make_inventory: MakeInventory) -> None:
    """Rounds lie minutes apart and scatter little; two runs lie hours apart, and 3 % between them is open."""
    inventory = make_inventory()
    one = metric([20e9, 20.001e9, 20.002e9])
    other = metric([value * 0.97 for value in (20e9, 20.001e9, 20.002e9)])
    (only,) = compare(record(inventory, {"c": one}), record(inventory, {"c": other})).metrics
    assert only.verdict == "cannot tell"
    assert only.interval[0] < 0.95 < 1.0 < only.interval[1]


def test_same_is_said_only_of_an_interval_that_lies_within_five_percent(
    make_inventory: MakeInventory,
) -> None:
    inventory = make_inventory()
    one = metric([20e9 * (1 + step / 1000) for step in (-9, -5, 0, 5, 9)])
    other = attrs.evolve(metric([sample.value * 0.955 for sample in one.samples]))
    (only,) = compare(record(inventory, {"c": one}), record(inventory, {"c": other})).metrics
    assert only.interval[0] < 0.95 and only.interval[1] < 1.0
    assert only.verdict == "cannot tell"
    assert "perhaps by less than 5 %" in only.reason
    (only,) = compare(record(inventory, {"c": one}), record(inventory, {"c": one})).metrics
    assert only.verdict == "same"


def test_two_servers_of_one_model_are_not_one_machine(make_inventory: MakeInventory) -> None:
    """The fingerprint names the hardware without serials; machine.id tells its two copies apart."""
    inventory = make_inventory()
    one = metric([20e9, 20.1e9, 20.2e9])
    first = record(inventory, {"c": one})
    for machine, words, same in (
        ("m", "One machine, measured twice", True),
        ("n", "Two machines of one kind", False),
        (None, "One machine, or two of one kind", False),
    ):
        result = compare(first, record(inventory, {"c": one}, machine=machine))
        assert result.sentence.startswith(words + ": ")
        assert result.same_machine is same


def test_a_lower_latency_is_better(make_inventory: MakeInventory) -> None:
    from k3gate.records import Better

    inventory = make_inventory()
    slow = attrs.evolve(metric([200.0, 201.0, 202.0]), better=Better.LOWER)
    fast = attrs.evolve(metric([100.0, 101.0, 102.0]), better=Better.LOWER)
    (only,) = compare(record(inventory, {"c": slow}), record(inventory, {"c": fast})).metrics
    assert only.verdict == "better"
    assert only.ratio == pytest.approx(0.5, rel=0.01)


def test_the_document_has_the_published_keys(make_inventory: MakeInventory) -> None:
    inventory = make_inventory()
    one = metric([20e9, 20.1e9, 20.2e9])
    result = document(compare(record(inventory, {"c": one}), record(inventory, {"c": one})))
    assert {"comparable", "reasons", "machines", "metrics", "verdict"} <= result.keys()
    assert {"name", "labels", "ratio", "interval", "verdict"} <= result["metrics"][0].keys()
    assert result["metrics"][0]["ratio"] == 1.0
    assert result["verdict"] == "same"


@pytest.mark.case("TOP-12")
def test_top_12_another_node_mode_is_named_before_any_rate(make_inventory: MakeInventory) -> None:
    """NPS4 against NPS1 of one machine: a firmware setting, which no rate per node survives."""
    inventory = make_inventory("bare_metal")
    whole = inventory.numa.nodes
    halves = tuple(
        attrs.evolve(node, id=2 * node.id + half, cpus=node.cpus[half::2], distances={})
        for node in whole
        for half in (0, 1)
    )
    split = attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=halves))
    one = metric([20e9, 20.1e9, 20.2e9])
    other = metric([10e9, 10.1e9, 10.2e9])
    result = compare(record(inventory, {"c": one}), record(split, {"c": other}))
    first = result.differences[0]
    assert (first.field, first.a, first.b, first.setting) == ("NUMA nodes per socket", 1, 2, True)
    assert "Settings differ (NUMA nodes per socket" in result.sentence
    assert "no difference may be laid to the hardware" in result.sentence


def test_a_case_that_failed_in_one_run_is_neither_the_same_nor_out_of_the_way(
    make_inventory: MakeInventory,
) -> None:
    """B's whole machine crashed in round 4, and one core is faster: nothing says that B is better."""
    inventory = make_inventory()
    whole, core = metric([20e9, 20.1e9, 20.2e9]), metric([10e9, 10.1e9, 10.2e9], scope="core")
    fast = metric([12e9, 12.1e9, 12.2e9], scope="core")
    a = record(inventory, {"read.machine": whole, "read.core": core})
    b = record(inventory, {"read.machine": whole, "read.core": fast})
    assert compare(a, b).verdict == "better"
    crashed = attrs.evolve(b.outcomes[0], state=State.FAILED, reason="round 4 of 9: SIGBUS")
    missing = attrs.evolve(b, outcomes=b.outcomes[1:])
    halved = metric([8e9, 8.1e9, 8.2e9])
    unstable = attrs.evolve(halved, state=State.UNSTABLE, reason="scatter")
    shaky = record(inventory, {"read.machine": unstable, "read.core": fast})
    for other in (attrs.evolve(b, outcomes=(crashed, b.outcomes[1])), missing, shaky):
        result = compare(a, other)
        assert result.verdict == "cannot tell"
        whole_of = [m for m in result.metrics if m.case == "read.machine"]
        assert [m.verdict for m in whole_of] == ["cannot tell"]


def test_another_version_of_the_tool_is_named_first(make_inventory: MakeInventory) -> None:
    inventory = make_inventory()
    one = metric([20e9, 20.1e9, 20.2e9])
    other = metric([10e9, 10.1e9, 10.2e9])
    result = compare(record(inventory, {"c": one}), record(inventory, {"c": other}, version="9.9"))
    first = result.differences[0]
    assert (first.field, first.a, first.b) == ("k3gate version", "0", "9.9")
    assert "k3gate version" in result.sentence


@pytest.mark.case("BW-06")
def test_bw_06_kernel_settings_that_differ_come_first_and_take_the_blame(
    make_inventory: MakeInventory,
) -> None:
    """Balancing on against off, huge pages 'madvise' against 'always', and 12 % less: no word on hardware."""
    kernel = {"numa_balancing": True, "transparent_hugepage": "madvise"}
    before = make_inventory("bare_metal", kernel=kernel)
    after = make_inventory(
        "bare_metal",
        kernel={"numa_balancing": False, "transparent_hugepage": "always"},
        memory={"configured_mts": 4800},
    )
    fast, slow = metric([25e9, 25.1e9, 25.2e9]), metric([22e9, 22.1e9, 22.2e9])
    result = compare(record(before, {"c": fast}), record(after, {"c": slow}))
    told = [(d.field, d.a, d.b) for d in result.differences]
    assert told[:2] == [
        ("kernel.numa_balancing", True, False),
        ("kernel.transparent_hugepage", "madvise", "always"),
    ]
    assert ("memory.configured_mts", 5600, 4800) in told[2:]
    assert [m.verdict for m in result.metrics] == ["worse"]
    assert "Settings differ (kernel.numa_balancing, kernel.transparent_hugepage)" in result.sentence
    assert "no difference may be laid to the hardware until they agree" in result.sentence
    alike = compare(record(before, {"c": fast}), record(before, {"c": slow}))
    assert "hardware" not in alike.sentence, "the same settings, the same machine: nothing to warn of"


@pytest.mark.case("BW-11")
@pytest.mark.parametrize("rates", [[30e9, 30.1e9, 30.2e9], [20e9, 20.1e9, 20.2e9]])
def test_bw_11_smt_on_against_off_is_a_setting_and_no_conclusion(
    make_inventory: MakeInventory, rates: list[float]
) -> None:
    """One host, with SMT and without: its state is stored and named, whichever way the rates go."""
    on = make_inventory("bare_metal")
    cores = tuple(range(64))
    off = make_inventory(
        "bare_metal",
        cpu={
            "smt": False,
            "smt_control": "off",
            "threads": 64,
            "online": cores,
            "allowed": cores,
            "offline": tuple(range(64, 128)),
            "siblings": tuple((cpu,) for cpu in cores),
        },
    )
    result = compare(record(on, {"c": metric([25e9, 25.1e9, 25.2e9])}), record(off, {"c": metric(rates)}))
    settings = {d.field: (d.a, d.b) for d in result.differences if d.setting}
    assert settings["cpu.smt"] == (True, False)
    assert settings["cpu.smt_control"] == ("on", "off")
    first = [d.field for d in result.differences][: len(settings)]
    assert set(first) == set(settings), "settings come before what follows from them"
    assert "cpu.smt" in result.sentence
    assert "no difference may be laid to the hardware until they agree" in result.sentence
