from __future__ import annotations

import attrs
import pytest

from k3gate.metrics import MEMORY_READ
from k3gate.probing import outcomes, plan
from k3gate.records import Case, Metric, Proof, Round, Sample, State

CASE = Case("memory", "read", "read it", "g", {}, 1.0, 10)
PINNED = Proof("pinned", True, "CPU 0")


def ran(number: int, state: State = State.OK, reason: str | None = None) -> Round:
    return Round(number, state, reason, 1.0, 0.5, 0.2, 100 + number)


def metric(number: int, *values: float, labels=None, **more) -> Metric:
    taken = tuple(Sample(value, number, 100 + number, 0.0) for value in values)
    fields = {"state": State.OK, "proofs": (PINNED,), **more}
    return Metric(
        MEMORY_READ.name,
        MEMORY_READ.unit,
        MEMORY_READ.better,
        labels or {"node": 0},
        taken,
        None,
        None,
        **fields,
    )


def merged(*rounds, case: Case = CASE):
    outcome = None
    for number, item in enumerate(rounds):
        round_, new = item if isinstance(item, tuple) else (ran(number), [item])
        outcome = outcomes.merge(outcome, case, round_, new)
    return outcome


def test_rounds_gather_samples_by_name_and_labels() -> None:
    both = [
        (
            ran(n),
            [
                metric(n, 100 + n, labels={"node": 0, "t": 1}),
                metric(n, 50 + n / 2, labels={"t": 1, "node": 1}),
            ],
        )
        for n in range(3)
    ]
    outcome = merged(*both)
    assert outcome.state is State.OK and outcome.reason is None
    assert outcome.seconds == 3.0 and [one.round for one in outcome.rounds] == [0, 1, 2]
    assert [one.median for one in outcome.metrics] == [101, 50.5]
    assert [sample.process for sample in outcome.metrics[0].samples] == [100, 101, 102]


def test_pages_that_differ_between_rounds_leave_one_figure_with_the_word_for_it() -> None:
    """The kernel may run out of huge pages half-way: the case has all its rounds, its page size is mixed."""
    huge, mixed = {"node": 0, "page_size": 2**21}, {"node": 0, "page_size": None}
    proof = Proof("page_size", True, "AnonHugePages 100 %")
    outcome = merged(
        metric(0, 100, labels=huge, proofs=(PINNED, proof)),
        metric(1, 101, labels=mixed, proofs=(PINNED, Proof("page_size", None, "mixed: only 37 %"))),
        metric(2, 102, labels=huge, proofs=(PINNED, proof)),
    )
    (one,) = outcome.metrics
    assert outcome.state is State.OK and len(one.samples) == 3
    assert one.labels["page_size"] is None
    assert next(p for p in one.proofs if p.name == "page_size").ok is None
    small = {"node": 0, "page_size": 4096}
    differing = merged(*(metric(n, 100, labels=huge if n else small, proofs=(proof,)) for n in range(3)))
    (one,) = differing.metrics
    assert "rounds differ: 4096 and 2097152 bytes" in one.proofs[0].detail


def test_page_sizes_that_a_probe_yields_side_by_side_stay_apart() -> None:
    sizes = ({"node": 0, "page_size": size} for size in (4096, 2**21))
    labels = list(sizes)
    outcome = merged(
        *((ran(n), [metric(n, 50 + i, labels=one) for i, one in enumerate(labels)]) for n in range(3))
    )
    assert [one.labels["page_size"] for one in outcome.metrics] == [4096, 2**21]
    assert [len(one.samples) for one in outcome.metrics] == [3, 3]


def test_a_round_that_comes_twice_counts_once() -> None:
    outcome = merged(metric(0, 100), metric(1, 101), metric(2, 102), (ran(1), [metric(1, 99)]))
    assert sorted(sample.value for sample in outcome.metrics[0].samples) == [99, 100, 102]
    assert len(outcome.rounds) == 3


def test_an_outcome_of_too_few_rounds_is_unstable_and_says_so() -> None:
    outcome = merged(metric(0, 100), metric(1, 100))
    assert (outcome.state, outcome.reason) == (State.UNSTABLE, "2 of 3 rounds ran")


@pytest.mark.parametrize("state", [State.FAILED, State.NOT_PERMITTED, State.NOT_PRESENT])
def test_one_failed_round_decides_and_keeps_the_samples_of_the_others(state: State) -> None:
    outcome = merged(metric(0, 100), (ran(1, state, "died of SIGSEGV"), []))
    assert outcome.state is state
    assert outcome.reason == "round 2 of 3: died of SIGSEGV; later rounds were not tried"
    assert [sample.value for sample in outcome.metrics[0].samples] == [100]


def test_proofs_join_to_the_worst_with_its_detail() -> None:
    yes, unseen, no = Proof("p", True, "a"), Proof("p", None, "b"), Proof("p", False, "c")
    assert outcomes.join_proofs([yes], [unseen], [yes]) == (unseen,)
    assert outcomes.join_proofs([unseen], [no], [yes]) == (no,)
    assert outcomes.join_proofs([yes], [attrs.evolve(yes, detail="later")]) == (yes,)


def test_a_failed_proof_fails_the_metric_though_its_samples_agree() -> None:
    bad = Proof("placement", False, "3 of 8 pages on node 1")
    outcome = merged(metric(0, 100), metric(1, 100, proofs=(bad,)), metric(2, 100))
    assert outcome.metrics[0].state is State.FAILED
    assert outcome.reason == "memory.bandwidth.read: proof placement failed: 3 of 8 pages on node 1"


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_figure_that_one_round_withholds_is_nowhere_left(order: tuple[int, ...]) -> None:
    """What a wrong kernel reached in other rounds is no speed."""
    wrong = Proof("timed_output", False, "3 of 80 outputs beyond their bounds")
    withheld = metric(order[0], state=State.FAILED, reason="withheld: timed_output", proofs=(wrong,))
    rounds = {order[0]: withheld, **{n: metric(n, 100.0, 101.0) for n in order[1:]}}
    [found] = merged(*(rounds[n] for n in range(3))).metrics
    assert (found.samples, found.median, found.interval) == ((), None, None)
    assert found.state is State.FAILED and "timed_output" in (found.reason or "")


def test_a_probes_own_verdict_outlives_the_derived_ones() -> None:
    short = metric(0, 100, state=State.UNSTABLE, reason="the timed region lasted 0.2 ms")
    first = merged(short)
    assert "0.2 ms; 1 of the 3 rounds" in first.metrics[0].reason
    outcome = merged(short, metric(1, 100), metric(2, 100))
    assert outcome.state is State.UNSTABLE
    assert outcome.metrics[0].reason == "the timed region lasted 0.2 ms"


def test_a_case_without_a_metric_is_no_success() -> None:
    outcome = merged(*[(ran(n), []) for n in range(3)])
    assert (outcome.state, outcome.reason) == (State.FAILED, "no metric came of it")


@pytest.mark.case("STO-05")
def test_sto_05_a_resumed_run_measures_only_what_is_missing() -> None:
    other = attrs.evolve(CASE, name="other")
    lost = attrs.evolve(CASE, name="lost", group="h")
    everything = plan.executions([CASE, other, lost])
    stored = [
        merged(metric(0, 100), metric(1, 100)),
        merged(metric(0, 100), case=other),
        merged((ran(0, State.FAILED, "hung"), []), case=lost),
    ]
    left = outcomes.remaining(everything, stored)
    assert [(one.round, one.group, [c.name for c in one.cases]) for one in left] == [
        (1, "g", ["other"]),
        (2, "g", ["read", "other"]),
    ]
    assert outcomes.remaining(everything, []) == everything
