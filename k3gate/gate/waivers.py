"""Waivers: a named person lets one check be.

Bound to check, run, criteria, target, verdict and observed value: a small shortfall that was accepted for one
target is not accepted for another, which may ask ten times as much of the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from k3gate.documents import canonical, plain, printable
from k3gate.errors import UsageError
from k3gate.records import CheckResult, GateResult, Verdict, Waiver
from k3gate.tables import near

MAX_WHO = 200
MAX_WHY = 2000


def observed_text(check: CheckResult) -> str:
    """The observed value as the one text that a waiver is bound to."""
    return canonical(plain(check.observed))


def make(
    result: GateResult, check: str, *, who: str, why: str, when: str, accept_failure: bool = False
) -> Waiver:
    """A waiver for a check of a judged run; `when`: ISO 8601. `UsageError` says why it cannot be."""
    checks = {each.id: each for step in result.steps for each in step.checks}
    found = checks.get(check)
    if found is None:
        raise UsageError(f"check {check!r} is unknown: {near(check, checks)}")
    if found.decided is Verdict.NOT_APPLICABLE:
        raise UsageError(f"{check} does not apply to target {result.target!r}: there is nothing to waive")
    if found.decided is Verdict.PASS:
        raise UsageError(f"{check} passes: there is nothing to waive")
    if found.decided is Verdict.FAIL and not accept_failure:
        raise UsageError(f"{check} fails: to waive a failure, give --accept-failure as well")
    return Waiver(
        id=None,
        run=result.run,
        check=check,
        criteria=result.criteria_hash,
        target=result.target_hash,
        observed=observed_text(found),
        verdict=found.decided,
        who=_said("who", who, MAX_WHO),
        when=_said("when", when, 64),
        why=_said("why", why, MAX_WHY),
    )


def _said(key: str, text: str, limit: int) -> str:
    clean = " ".join(printable(text).split())
    if not clean:
        raise UsageError(f"a waiver needs {key}: give --{key} with a text")
    if len(clean) > limit:
        raise UsageError(f"{key} is longer than {limit} characters: shorten it")
    return clean


def apply(
    check: CheckResult, waivers: Sequence[Waiver], *, run: str, criteria: str, target: str
) -> tuple[CheckResult, tuple[str, ...]]:
    """The check with the newest waiver that holds for it, and a notice for every one that lapsed."""
    notices: list[str] = []
    holding: Waiver | None = None
    for waiver in waivers:
        if waiver.check != check.id:
            continue
        changed = _changed(waiver, check, run, criteria, target)
        if changed is None:
            holding = waiver
        else:
            number = "" if waiver.id is None else f" {waiver.id}"
            notices.append(f"Waiver{number} of {check.id} by {waiver.who} does not hold: {changed}.")
    if holding is None:
        return check, tuple(notices)
    return evolve(check, verdict=Verdict.WAIVED, waiver=holding), tuple(notices)


def _changed(waiver: Waiver, check: CheckResult, run: str, criteria: str, target: str) -> str | None:
    """What changed since the waiver was given, or None where it holds."""
    if waiver.run != run:
        return f"it was given for run {waiver.run}, this is run {run}"
    if check.decided is Verdict.PASS:
        return "the check passes, so it is not needed"
    if check.decided is Verdict.NOT_APPLICABLE:
        return "the check does not apply to this target"
    if waiver.criteria != criteria:
        return "the criteria changed since it was given"
    if waiver.target != target:
        return "it was given for another target" if waiver.target else "it does not say for which target"
    if waiver.verdict is not check.decided:
        return f"the verdict was {waiver.verdict} and is {check.decided} now"
    if waiver.observed != observed_text(check):
        return f"the observed value was {waiver.observed[:80]} and is {observed_text(check)[:80]} now"
    return None
