from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.documents import pretty
from k3gate.errors import UsageError
from k3gate.probing import plan, profiles
from k3gate.probing.contract import Applies, Planned, Reason
from k3gate.records import Case, LeftOut, Profile, State


class FixedProbe:
    """A probe with the given cases, for planning only."""

    title = "fixed"
    metrics = ()

    def __init__(self, cases=(), left_out=(), applies=None, name="fixed") -> None:
        self.name = name
        self._planned = Planned(tuple(cases), tuple(left_out))
        self._applies = applies or Applies()

    def applies(self, inventory):
        return self._applies

    def cases(self, inventory, profile):
        return self._planned

    def run(self, case, context):
        raise AssertionError("planning measures nothing")


def case(name: str, group: str = "g", seconds: float = 1.0, **more) -> Case:
    more = {"probe": "fixed", "title": name, "parameters": {}, "bytes": 10, **more}
    return Case(name=name, group=group, seconds=seconds, **more)


def test_rounds_are_interleaved_over_groups(make_inventory) -> None:
    cases = [case("a1", "a"), case("b1", "b", rounds=4), case("a2", "a")]
    planned = plan.plan([FixedProbe(cases)], make_inventory(), profiles.load("quick"))
    order = [(one.round, one.key, [c.name for c in one.cases]) for one in planned.executions]
    assert order == [
        (0, "fixed/a", ["a1", "a2"]),
        (0, "fixed/b", ["b1"]),
        (1, "fixed/a", ["a1", "a2"]),
        (1, "fixed/b", ["b1"]),
        (2, "fixed/a", ["a1", "a2"]),
        (2, "fixed/b", ["b1"]),
        (3, "fixed/b", ["b1"]),
    ]
    assert planned.seconds == pytest.approx(10 + 7 * plan.WORKER_START_SECONDS)


def test_rounds_are_thinned_to_three_before_a_case_is_dropped(make_inventory) -> None:
    planned = plan.plan([FixedProbe([case("a", rounds=20)])], make_inventory(), Profile("tiny", 10.0))
    assert [c.rounds for c in planned.cases] == [6]
    (left,) = planned.left_out
    assert left.case == "a" and "14 of 20 rounds" in left.reason and "9.0 s" in left.reason
    assert planned.seconds <= 9.0


def test_the_least_important_cases_are_dropped_with_the_sum(make_inventory) -> None:
    cases = [case("first"), case("second"), case("third", rounds=10)]
    planned = plan.plan([FixedProbe(cases)], make_inventory(), Profile("tiny", 9.0))
    assert [(c.name, c.rounds) for c in planned.cases] == [("first", 3), ("second", 3)]
    (left,) = planned.left_out
    assert left.case == "third"
    assert "3 rounds of it take 3.0 s; with it the plan takes 9.9 s, more than the 8.1 s" in left.reason


def test_a_cheap_case_is_not_dropped_for_standing_behind_a_dear_one(make_inventory) -> None:
    cases = [case("first"), case("dear", seconds=9.0), case("cheap", seconds=0.5), case("late", seconds=0.5)]
    planned = plan.plan([FixedProbe(cases)], make_inventory(), Profile("tiny", 8.0))
    assert [c.name for c in planned.cases] == ["first", "cheap", "late"]
    (left,) = planned.left_out
    assert left.case == "dear"
    assert "3 rounds of it take 27 s; with it the plan takes 34 s" in left.reason


def test_dropping_takes_from_the_longest_probe(make_inventory) -> None:
    long = FixedProbe([case(f"l{i}", seconds=5.0) for i in range(3)])
    short = FixedProbe([case("s", probe="short")], name="short")
    planned = plan.plan([short, long], make_inventory(), Profile("tiny", 25.0))
    assert [(c.probe, c.name) for c in planned.cases] == [("short", "s"), ("fixed", "l0")]
    assert [one.case for one in planned.left_out] == ["l1", "l2"]


def _first_with_set_up() -> list[Case]:
    return [
        case("dear", "a", seconds=2.0),
        case("builds", "b", seconds=9.0, setup_seconds=5.0),
        case("follows", "b", seconds=1.0, setup_seconds=0.5),
        case("more", "b", seconds=1.0, setup_seconds=0.5),
    ]


def test_a_case_that_comes_back_without_the_first_of_its_group_is_priced_with_its_set_up(
    make_inventory,
) -> None:
    """The worker must build what the group shares, whichever case of it comes first."""
    probe = FixedProbe(_first_with_set_up())
    planned = plan.plan([probe], make_inventory(), Profile("tiny", 32.0))
    assert [(c.name, c.seconds, c.setup_seconds) for c in planned.cases] == [
        ("dear", 2.0, 0.0),
        ("follows", 5.5, 5.0),
        ("more", 1.0, 0.5),
    ]
    # 2 + 5.5 in three rounds of two workers are 24.3 s; the plan of 24 s has no room for them.
    planned = plan.plan([probe], make_inventory(), Profile("tiny", 24.0 / plan.BUDGET_SHARE))
    assert [c.name for c in planned.cases] == ["dear"]


def test_a_chosen_case_is_priced_with_the_set_up_of_its_group(make_inventory) -> None:
    probe = FixedProbe(_first_with_set_up())
    chosen = plan.plan([probe], make_inventory(), profiles.load("quick"), only=["*/follows", "*/more"])
    assert [(c.name, c.seconds, c.setup_seconds) for c in chosen.cases] == [
        ("follows", 5.5, 5.0),
        ("more", 1.0, 0.5),
    ]


def test_planning_looks_at_each_of_many_cases_a_few_times_only(make_inventory, monkeypatch) -> None:
    """Large machines have thousands of cells: a plan that counts all of them anew for each takes minutes."""
    counted = 0
    honest = plan.executions

    def counting(cases):
        nonlocal counted
        found = list(cases)
        counted += len(found)
        return honest(found)

    monkeypatch.setattr(plan, "executions", counting)
    many = [case(f"c{number}", f"g{number % 64}", seconds=0.1) for number in range(2000)]
    planned = plan.plan([FixedProbe(many)], make_inventory(), profiles.load("quick"))
    assert 0 < len(planned.cases) < 2000
    assert counted < 20 * len(many)


def test_a_group_beyond_the_usable_memory_is_left_out_with_the_arithmetic(make_inventory) -> None:
    cases = [case("fits", "a", bytes=900_000_000), case("big", "b", bytes=900_000_001)]
    inventory = make_inventory(limits={"usable_memory_bytes": 10**9})
    planned = plan.plan([FixedProbe(cases)], inventory, profiles.load("quick"))
    assert [c.name for c in planned.cases] == ["fits"]
    (left,) = planned.left_out
    assert (
        left.case == "big" and "0.9 GB" in left.reason and "1.0 GB" in left.reason and "90 %" in left.reason
    )


def test_unknown_memory_is_never_taken_as_enough(make_inventory) -> None:
    inventory = make_inventory(limits={"usable_memory_bytes": None}, memory={"available_bytes": None})
    planned = plan.plan([FixedProbe([case("a")])], inventory, profiles.load("quick"))
    assert planned.cases == () and "unknown" in planned.left_out[0].reason


def test_a_probe_that_does_not_apply_has_one_outcome_with_its_reason(make_inventory) -> None:
    probe = FixedProbe(applies=Reason(State.NOT_PRESENT, "no GPU here"))
    planned = plan.plan([probe], make_inventory(), profiles.load("quick"))
    (outcome,) = planned.refused
    assert (outcome.probe, outcome.state, outcome.reason) == ("fixed", State.NOT_PRESENT, "no GPU here")


@pytest.mark.parametrize(
    "cases",
    [
        [case("a"), case("a")],
        [case("a", probe="other")],
        [case("a", rounds=0)],
        [case("a", seconds=float("nan"))],
    ],
)
def test_a_probe_that_plans_nonsense_fails_alone(make_inventory, cases) -> None:
    good = FixedProbe([case("fine", probe="good")], name="good")
    planned = plan.plan([FixedProbe(cases), good], make_inventory(), profiles.load("quick"))
    assert [c.name for c in planned.cases] == ["fine"]
    assert planned.refused[0].state is State.FAILED and "planning failed" in planned.refused[0].reason


def test_only_selects_cases_and_refuses_a_pattern_without_a_hit(make_inventory) -> None:
    probe = FixedProbe([case("read.node0"), case("read.node1"), case("write")])
    chosen = plan.plan([probe], make_inventory(), profiles.load("quick"), only=["fixed/read.*"], rounds=1)
    assert [(c.name, c.rounds) for c in chosen.cases] == [("read.node0", 1), ("read.node1", 1)]
    with pytest.raises(UsageError, match=r"'fixed/wrte'.*did you mean 'fixed/write'"):
        plan.plan([probe], make_inventory(), profiles.load("quick"), only=["fixed/wrte"])


def test_a_time_limit_is_never_under_the_estimate(make_inventory) -> None:
    planned = plan.plan([FixedProbe([case("a", seconds=50.0)])], make_inventory(), profiles.load("standard"))
    assert planned.cases[0].time_limit_s == 150.0


def test_the_dry_run_names_cases_seconds_bytes_and_what_is_left_out(make_inventory) -> None:
    probe = FixedProbe([case("a"), case("b", seconds=900.0)], [LeftOut("fixed", "c", "no node 1\x1b[31m")])
    planned = plan.plan([probe], make_inventory(), profiles.load("smoke"))
    page = plan.text(planned)
    assert "fixed/a" in page and "10.0 B" in page and "20 s of profile smoke" in page
    assert "left out: fixed/b: 3 rounds" in page and "no node 1\\x1b[31m" in page
    shown = json.loads(pretty(plan.document(planned)))
    assert shown["cases"][0]["case"] == "a" and len(shown["executions"]) == 3
    assert shown["seconds"] == planned.seconds and [one["case"] for one in shown["left_out"]] == ["c", "b"]


def test_the_dry_run_fits_a_page(make_inventory) -> None:
    """Titles and reasons are sentences: they are folded, and nothing of them is cut."""
    long = "Read: 64 cores read memory of node 0 (local), over 4,831.8 MB " * 3
    probe = FixedProbe([case("read.node0.node0", title=long.strip())], [LeftOut("fixed", "x", long.strip())])
    told = plan.text(plan.plan([probe], make_inventory(), profiles.load("quick")))
    assert max(len(line) for line in told.splitlines()) <= 100
    assert " ".join(told.split()).count(" ".join(long.split())) == 2


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="'quik' is unknown: did you mean 'quick'"):
        profiles.load("quik")
    assert profiles.load("smoke", image_bytes=5).image_bytes is None
    assert profiles.load("standard", image_bytes=5).image_bytes == 5


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 50), st.integers(1, 12), st.integers(0, 2**34)),
        max_size=12,
    )
)
def test_a_plan_keeps_to_its_budget_and_names_every_case_that_it_drops(make_inventory, drawn) -> None:
    cases = [case(f"c{i}", g, s, rounds=r, bytes=b) for i, (g, s, r, b) in enumerate(drawn)]
    planned = plan.plan([FixedProbe(cases)], make_inventory(), profiles.load("quick"))
    assert planned.seconds <= 180 * plan.BUDGET_SHARE
    assert planned.bytes <= make_inventory().limits.usable_memory_bytes * 0.9
    kept = {c.name for c in planned.cases}
    assert {c.name for c in cases} - kept <= {one.case for one in planned.left_out}
    assert sum(len(one.cases) for one in planned.executions) == sum(c.rounds for c in planned.cases)
    assert all(c.rounds >= min(3, drawn[int(c.name[1:])][2]) for c in planned.cases)
