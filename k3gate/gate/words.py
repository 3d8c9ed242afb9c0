"""The gate in words: one decision line, the reasons behind it. The terminal and the report say the same."""

from __future__ import annotations

from k3gate.gate.judgement import badness
from k3gate.gate.steps import STEPS
from k3gate.records import CheckResult, GateResult, StepResult, Verdict
from k3gate.units import count, quantity

DECISION = {
    Verdict.PASS: "Pass",
    Verdict.WAIVED: "Pass",
    Verdict.FAIL: "Fail",
    Verdict.UNPROVEN: "Not proven",
}
_TITLES = {step.number: step.title for step in STEPS}


def decision(result: GateResult) -> str:
    """The decision word: "Pass", "Pass with 2 waivers", "Fail", "Not proven"."""
    word = DECISION.get(result.verdict, str(result.verdict))
    if result.verdict is Verdict.WAIVED:
        return f"{word} with {count(result.waivers, 'waiver')}"
    return word


def headline(result: GateResult) -> str:
    """The decision as a sentence or two, with the number of checks that stand behind it."""
    found = counts(result)
    applicable = sum(n for verdict, n in found.items() if verdict is not Verdict.NOT_APPLICABLE)
    failed, open_ = found[Verdict.FAIL], found[Verdict.UNPROVEN]
    if result.verdict is Verdict.FAIL:
        text = f"{count(failed, 'check')} of {applicable} {'fails' if failed == 1 else 'fail'}"
        text += f" and {open_} {'lacks' if open_ == 1 else 'lack'} evidence" if open_ else ""
        return f"{decision(result)}. For target {result.target}, {text}."
    if result.verdict is Verdict.UNPROVEN:
        return (
            f"{decision(result)}. For target {result.target}, {open_} of {count(applicable, 'check')} "
            f"{'lacks' if open_ == 1 else 'lack'} evidence; none fails."
        )
    how = "pass or are waived" if result.waivers else "pass"
    return f"{decision(result)}. For target {result.target}, all {count(applicable, 'check')} {how}."


def reasons(result: GateResult, limit: int = 3) -> tuple[str, ...]:
    """The checks that decide, the worst first, each with its reason; at most `limit`.

    A check that only counts other checks (bom.steps) comes last.
    """
    deciding = [check for step in result.steps for check in step.checks if check.verdict is result.verdict]
    deciding.sort(key=lambda check: check.id == "bom.steps")
    return tuple(f"{check.id}: {check.reason or check.claim}" for check in deciding[:limit])


def step_reason(step: StepResult) -> str:
    """Why a step has its verdict, in one line: the deciding check, and how many more there are."""
    if step.verdict is Verdict.PASS:
        return f"all {len([c for c in step.checks if c.verdict is Verdict.PASS])} checks pass"
    deciding = [check for check in step.checks if check.verdict is step.verdict]
    if not deciding:
        return "no check was decided"
    first = deciding[0]
    name = first.id.partition(".")[2].replace("_", " ")
    more = f" ({len(deciding) - 1} more)" if len(deciding) > 1 else ""
    return f"{name}: {first.reason or first.claim}{more}"


def step_title(step: StepResult) -> str:
    """The name of a step as people read it: "Roofline", "BOM"."""
    return _TITLES.get(step.step, step.name)


def counts(result: GateResult) -> dict[Verdict, int]:
    """How many checks have each verdict."""
    checks = [check.verdict for step in result.steps for check in step.checks]
    return {verdict: checks.count(verdict) for verdict in Verdict}


def without_waivers(result: GateResult) -> Verdict:
    """What the gate would say if nobody had waived anything."""
    decided = {
        c.decided for step in result.steps for c in step.checks if c.decided is not Verdict.NOT_APPLICABLE
    }
    return min(decided, key=badness, default=Verdict.UNPROVEN)


def observed(check: CheckResult) -> str:
    """The observed value as shown: "0.731", "26.3 GB/s", a word, or "not known"."""
    if check.observed is None:
        return "not known"
    return check.observed if isinstance(check.observed, str) else quantity(check.observed, check.unit)


def bound(check: CheckResult) -> str:
    """The bound as shown: "at least 0.65", or "none" where the check has no bound."""
    parts = []
    if check.bound.min is not None:
        parts.append(f"at least {quantity(check.bound.min, check.unit)}")
    if check.bound.max is not None:
        parts.append(f"at most {quantity(check.bound.max, check.unit)}")
    return " and ".join(parts) or "none"
