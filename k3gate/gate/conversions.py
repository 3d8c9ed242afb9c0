"""What a comparison of a converted checkpoint with its source says: without known mistakes, and within bounds. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from k3gate.gate.criteria import Criterion
from k3gate.gate.judgement import Judgement, badness, by_evidence, unproven
from k3gate.records import Evidence, Verdict

PARTS = {"routed_experts": "the routed experts", "trunk": "all other weights"}
"""What a bound can be about, in words."""


def judge(criterion: Criterion, found: Evidence) -> Judgement:
    """One entry: without a bound the comparison's own verdict, else the largest error of a weight of one part."""
    rows = (f"evidence:{found.subject}",)
    part = criterion.where.get("part")
    if part is None:
        return by_evidence(found)
    words, limit = PARTS[str(part)], criterion.bound.max
    told = found.data.get("worst")
    known = told.get(part) if isinstance(told, dict) else None
    if not isinstance(known, dict) or limit is None:
        return unproven(f"The comparison says nothing of {words}.", rows)
    if known.get("weights") == 0:
        return Judgement(Verdict.NOT_APPLICABLE, f"Nothing was compared of {words}.", evidence=rows)
    worst = known.get("nmse")
    error = float(worst) if isinstance(worst, int | float) else math.inf
    weight = f" ({known['weight']})" if isinstance(known.get("weight"), str) else ""
    shown = f"{error:.2g}" if math.isfinite(error) else "without bound"
    if error > limit:
        reason = (
            f"Of {words}{weight} the largest relative square error is {shown}, and {limit:.2g} is allowed."
        )
    elif error:
        reason = f"Of {words}{weight} the largest relative square error is {shown}; {limit:.2g} is allowed."
    else:
        reason = f"Of {words} every number is the source's."
    return Judgement(
        Verdict.FAIL if error > limit else Verdict.PASS,
        reason,
        observed=error if math.isfinite(error) else None,
        unit="1",
        bound=criterion.bound,
        evidence=rows,
    )


def judge_all(entries: Iterable[Criterion], found: Evidence) -> Judgement:
    """The worst of a check's entries, with the reasons of all that are as bad."""
    judged = [judge(entry, found) for entry in entries]
    first = min(judged, key=lambda one: badness(one.verdict))
    reasons = " ".join(dict.fromkeys(one.reason for one in judged if one.verdict is first.verdict))
    return Judgement(first.verdict, reasons, first.observed, unit=first.unit, evidence=first.evidence)
