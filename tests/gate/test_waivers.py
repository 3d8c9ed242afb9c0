"""Waivers: who may waive what, when one holds, and what makes it lapse."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.errors import UsageError
from k3gate.gate import waivers, words
from k3gate.gate.targets import load as load_target
from k3gate.records import GateResult, Verdict, Waiver

WHEN = "2026-11-30T12:00:00Z"


def give(result: GateResult, check: str, **changes: Any) -> Waiver:
    said = {"who": "A. Buyer", "why": "measured by hand", "when": WHEN, **changes}
    return waivers.make(result, check, **said)


@pytest.fixture
def slow(make_record: Any, build: Any) -> Any:
    """A run whose local read fails."""
    outcomes = tuple(build.read(1, 1, 150e9) if o.case == "read.node1.node1" else o for o in build.sound())
    return make_record(outcomes)


def test_a_waiver_of_unproven_holds_and_is_counted(judge: Any, make_record: Any, build: Any) -> None:
    waiver = give(judge(make_record()), "roofline.latency")
    result = judge(make_record(waivers=(waiver,)))
    found = build.check_of(result, "roofline.latency")
    assert (found.verdict, found.decided) == (Verdict.WAIVED, Verdict.UNPROVEN)
    assert found.waiver == waiver
    assert result.waivers == 1
    assert result.notices == ()


def test_a_gate_with_every_open_check_waived_passes_with_n_waivers(judge: Any, make_record: Any) -> None:
    result = judge(make_record())
    open_ = [
        c.id for s in result.steps for c in s.checks if c.verdict is Verdict.UNPROVEN and c.id != "bom.steps"
    ]
    record = make_record(waivers=tuple(give(result, check) for check in open_))
    waived = judge(record)
    assert waived.verdict is Verdict.WAIVED
    assert waived.waivers == len(open_)
    assert words.headline(waived).endswith("all 33 checks pass or are waived.")
    assert words.decision(waived) == f"Pass with {len(open_)} waivers"
    assert waived.steps[0].verdict is Verdict.WAIVED
    assert words.without_waivers(waived) is Verdict.UNPROVEN


def test_a_failure_needs_the_word_for_it(judge: Any, slow: Any, build: Any) -> None:
    result = judge(slow)
    with pytest.raises(UsageError, match="--accept-failure"):
        give(result, "roofline.local")
    waiver = give(result, "roofline.local", accept_failure=True)
    again = judge(attrs.evolve(slow, waivers=(waiver,)))
    assert build.check_of(again, "roofline.local").verdict is Verdict.WAIVED
    assert words.without_waivers(again) is Verdict.FAIL


@pytest.mark.parametrize(
    ("check", "changes", "message"),
    [
        ("roofline.placement", {}, "passes"),
        ("prototype.decode", {}, "does not apply"),
        ("roofline.lokal", {}, "did you mean 'roofline.local'"),
        ("roofline.latency", {"who": "  "}, "--who"),
        ("roofline.latency", {"why": ""}, "--why"),
        ("roofline.latency", {"why": "x" * 2001}, "longer than 2000"),
    ],
)
def test_what_cannot_be_waived(judge: Any, make_record: Any, check: str, changes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        give(judge(make_record()), check, **changes)


def test_hostile_text_is_made_printable(judge: Any, make_record: Any) -> None:
    assert give(judge(make_record()), "roofline.latency", who="A\x1b[31m\nB").who == "A\\x1b[31m B"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"criteria": "sha256:other"}, "the criteria changed"),
        ({"run": "zzzz2222"}, "given for run zzzz2222"),
        ({"target": "sha256:other"}, "for another target"),
        ({"target": None}, "does not say for which target"),
        ({"observed": "0.5"}, "the observed value was 0.5"),
        ({"verdict": Verdict.UNPROVEN}, "the verdict was unproven and is fail now"),
    ],
)
def test_a_waiver_lapses_when_what_it_is_bound_to_changes(
    judge: Any, slow: Any, build: Any, changes: Any, word: str
) -> None:
    waiver = attrs.evolve(give(judge(slow), "roofline.local", accept_failure=True), id=7, **changes)
    result = judge(attrs.evolve(slow, waivers=(waiver,)))
    assert build.check_of(result, "roofline.local").verdict is Verdict.FAIL
    assert result.waivers == 0
    assert len(result.notices) == 1
    assert result.notices[0].startswith("Waiver 7 of roofline.local by A. Buyer does not hold: ")
    assert word in result.notices[0]


def test_a_waiver_lapses_when_the_criteria_change(
    judge: Any, slow: Any, build: Any, criteria: Any, tmp_path: Any
) -> None:
    from k3gate.gate.criteria import load

    path = tmp_path / "criteria.toml"
    path.write_text(criteria.text.replace("min = 0.65", "min = 0.6"))
    waiver = give(judge(slow), "roofline.local", accept_failure=True)
    result = judge(attrs.evolve(slow, waivers=(waiver,)), criteria=load(str(path)))
    assert build.check_of(result, "roofline.local").verdict is Verdict.FAIL
    assert "the criteria changed" in result.notices[0]
    path.write_text("# a comment changes nothing\n" + criteria.text)
    again = judge(attrs.evolve(slow, waivers=(waiver,)), criteria=load(str(path)))
    assert build.check_of(again, "roofline.local").verdict is Verdict.WAIVED


def test_a_small_shortfall_waived_for_one_target_is_not_waived_for_another(
    judge: Any, make_record: Any, build: Any
) -> None:
    """The observed value and the verdict are the same; what is asked of them is ten times as much."""
    asked = attrs.evolve(load_target("hybrid"), decode_tokens_per_s=19.0, hash="sha256:modest")
    greedy = attrs.evolve(load_target("hybrid"), decode_tokens_per_s=190.0, hash="sha256:greedy")
    record = make_record()
    waiver = give(judge(record, target=asked), "prototype.decode")
    waived = attrs.evolve(record, waivers=(waiver,))
    assert build.check_of(judge(waived, target=asked), "prototype.decode").verdict is Verdict.WAIVED
    other = judge(waived, target=greedy)
    assert build.check_of(other, "prototype.decode").verdict is Verdict.UNPROVEN
    assert "for another target" in other.notices[0]


def test_a_waiver_that_is_not_needed_is_told(judge: Any, slow: Any, make_record: Any) -> None:
    waiver = give(judge(slow), "roofline.local", accept_failure=True)
    result = judge(make_record(waivers=(waiver,)))
    assert "the check passes" in result.notices[0]
