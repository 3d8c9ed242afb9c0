"""Which tier takes the time of a predicted token, and what is said where two do or one was not measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from k3gate.analysis import expectation, limits, replay
from k3gate.metrics import MEMORY_READ
from k3gate.records import Inventory, Metric, Outcome, Run, RunRecord, RunStatus, State

Make = Callable[..., Outcome]


@pytest.fixture(scope="session")
def record(make_inventory: Callable[..., Inventory]) -> Callable[..., RunRecord]:
    """`record(outcome, ..., read=100e9)`: a complete run of these cases, and of a read of the whole machine."""

    def make(*outcomes: Outcome, read: float | None = None) -> RunRecord:
        run = Run("a", None, None, None, "standard", "0", "t", None, RunStatus.COMPLETE)
        rows = outcomes
        if read is not None:
            row = Metric(
                MEMORY_READ.name, "B/s", MEMORY_READ.better, {"scope": "machine"}, (), read, None, State.OK
            )
            rows = (*outcomes, Outcome("memory", "read.machine", State.OK, None, 1.0, 3, (), (row,)))
        return RunRecord(run, make_inventory("bare_metal"), rows)

    return make


def shares(found: limits.Limit | None) -> dict[str, float]:
    assert found is not None
    return {one.key: one.share for one in found.tiers}


def prediction(record: Any, outcome: Outcome, trunk: str = "bf16") -> replay.Prediction:
    found = replay.for_target(record(outcome), trunk, 8192, 1)
    assert found is not None
    return found


def test_what_streams_at_the_read_rate_is_bound_by_bandwidth(record: Any, make_replay: Make) -> None:
    found = limits.limit(prediction(record, make_replay(stream=100e9)), 105e9)
    assert shares(found) == pytest.approx(
        {"memory": 100 / 105, "arithmetic": 5 / 105, "synchronisation": 0}, rel=5e-3
    )
    assert found is not None
    assert found.words == "bandwidth-bound"
    assert found.unknown == ()


def test_what_streams_far_below_the_read_rate_is_bound_by_arithmetic(record: Any, make_replay: Make) -> None:
    found = limits.limit(prediction(record, make_replay(stream=100e9)), 300e9)
    assert shares(found)["memory"] == pytest.approx(1 / 3, rel=1e-3)
    assert found is not None
    assert found.words == "compute-bound"


@pytest.mark.parametrize(
    ("read", "words"), [(183e9, "bandwidth-bound and compute-bound"), (170e9, "bandwidth-bound")]
)
def test_two_tiers_within_a_fifth_are_both_named(
    record: Any, make_replay: Make, read: float, words: str
) -> None:
    found = limits.limit(prediction(record, make_replay(stream=100e9)), read)
    assert found is not None
    assert found.words == words


def test_threads_that_wait_are_a_tier_of_their_own(record: Any, make_replay: Make) -> None:
    found = limits.limit(prediction(record, make_replay(stream=100e9, waiting=0.03)), 100e9)
    assert found is not None
    assert found.limiting == ("synchronisation",)
    assert sum(shares(found).values()) == pytest.approx(1)


def test_a_part_faster_than_the_read_rate_counts_as_memory_alone(record: Any, make_replay: Make) -> None:
    assert shares(limits.limit(prediction(record, make_replay(stream=100e9)), 50e9))["memory"] == 1.0


def test_gpus_and_their_links_are_not_known_where_they_hold_the_trunk(record: Any, make_replay: Make) -> None:
    found = limits.limit(prediction(record, make_replay(), "gpu"), 100e9)
    assert found is not None
    assert found.unknown == ("GPUs", "the links to them")


def test_without_a_read_rate_nothing_is_shared_out(record: Any, make_replay: Make) -> None:
    assert limits.limit(prediction(record, make_replay()), None) is None
    found = expectation.expected(record(make_replay()), "bf16", 8192, 1)
    assert found is not None
    assert found.limit is None


def test_an_expectation_says_whether_it_held_and_what_speaks_against_it(
    record: Any, make_replay: Make
) -> None:
    alone = expectation.expected(record(make_replay(), read=110e9), "bf16", 8192, 1)
    assert alone is not None
    assert alone.doubts == ()
    assert alone.held.startswith("It was not held against itself in this run")
    assert alone.limit is not None
    good = make_replay("batch.4", "batch", batch=4, distinct=40.0)
    tested = record(make_replay(), make_replay("deep", "deep", layers=8, slower=2.0), good, read=110e9)
    found = expectation.expected(tested, "bf16", 8192, 1)
    assert found is not None
    assert found.doubts == ("it failed its own test in deep",)
    assert found.held == "Held against itself in 2 cases of this run (deep and batch.4), it held in 1."
    shaky = make_replay(state=State.UNSTABLE, scatter=0.3)
    doubted = expectation.expected(record(shaky), "bf16", 8192, 1)
    assert doubted is not None
    assert doubted.doubts[0] == "the replay was unstable"
    assert doubted.doubts[1].startswith("it is too wide: its upper end is 2.7 times its lower")
    assert expectation.expected(record(), "bf16", 8192, 1) is None


def test_unstable_cases_count_as_nothing_and_that_is_said(record: Any, make_replay: Make) -> None:
    base, deep = make_replay(), make_replay("deep", "deep", layers=8)
    shaky = make_replay("batch.4", "batch", batch=4, distinct=40.0, state=State.UNSTABLE, slower=9.0)
    found = expectation.expected(record(base, deep, shaky), "bf16", 8192, 1)
    assert found is not None
    assert found.held == (
        "Held against itself in this run (deep), it held. Counted as nothing: batch.4 (unstable)."
    )
    assert found.doubts == ()
    alone = expectation.expected(record(base, shaky), "bf16", 8192, 1)
    assert alone is not None
    assert alone.held == "No case of this run holds it to account. Counted as nothing: batch.4 (unstable)."


def test_a_case_that_was_predicted_too_widely_to_fail_counts_as_nothing_unless_it_failed(
    record: Any, make_replay: Make
) -> None:
    wide = make_replay(scatter=0.4)
    found = expectation.expected(record(wide, make_replay("deep", "deep", layers=8)), "bf16", 8192, 1)
    assert found is not None
    assert found.held.endswith("Counted as nothing: deep (predicted too widely to fail).")
    far = make_replay("deep", "deep", layers=8, slower=5.0)
    failed = expectation.expected(record(wide, far), "bf16", 8192, 1)
    assert failed is not None
    assert "it failed its own test in deep" in failed.doubts


def test_the_hit_rate_against_published_results_is_told_as_that_of_plans(
    record: Any, make_replay: Make
) -> None:
    from k3gate.harness import planning

    found = expectation.expected(record(make_replay()), "bf16", 8192, 1)
    made = planning.against_published(None)
    assert found is not None
    assert (
        f"Predictions of k3gate plan, which rest on paper rates and not on a replay, hold {made.inside} of "
        in (found.published)
    )
    assert f"of {len(made.testable)} published results, and {made.inside_without} of them" in found.published


def test_a_trace_that_was_not_kept_is_a_doubt(record: Any, make_replay: Make) -> None:
    lost = "not kept within 5 points with 16 of 32 experts: reuse 60.0% instead of 29.5%"
    found = expectation.expected(record(make_replay(not_kept=lost)), "bf16", 8192, 1)
    assert found is not None
    assert found.doubts == (f"the trace was replayed otherwise than it is, {lost}",)
