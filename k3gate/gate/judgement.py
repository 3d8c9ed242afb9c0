"""What a rule or a bound says of a check, and the order of verdicts from bad to good."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from k3gate.records import Bound, Evidence, Interval, Verdict

_ORDER = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.WAIVED, Verdict.PASS)


@frozen
class Judgement:
    """A verdict with its reason. `remedy` None: the criterion's own; `observed` in `unit`, or a word."""

    verdict: Verdict
    reason: str
    observed: float | str | None = None
    interval: Interval | None = None
    unit: str | None = None
    bound: Bound = field(factory=Bound)
    evidence: tuple[str, ...] = ()
    remedy: str | None = None


def unproven(
    reason: str,
    evidence: tuple[str, ...] = (),
    *,
    remedy: str | None = None,
    observed: float | str | None = None,
    unit: str | None = None,
) -> Judgement:
    """Not decided, and why."""
    return Judgement(Verdict.UNPROVEN, reason, evidence=evidence, remedy=remedy, observed=observed, unit=unit)


def by_evidence(found: Evidence) -> Judgement:
    """What one piece of evidence says by itself."""
    verdict = found.verdict if found.verdict in (Verdict.PASS, Verdict.FAIL) else Verdict.UNPROVEN
    return Judgement(verdict, found.detail, observed=found.subject, evidence=(f"evidence:{found.subject}",))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of verdicts, those that do not apply left out; unproven where none is left."""
    found = set(verdicts)
    return next((verdict for verdict in _ORDER if verdict in found), Verdict.UNPROVEN)


def badness(verdict: Verdict) -> int:
    """0 for the worst verdict; what does not apply comes last."""
    return _ORDER.index(verdict) if verdict in _ORDER else len(_ORDER)
