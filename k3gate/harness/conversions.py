"""A converted checkpoint held against its source, and what that proves kept in the store by its digest."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from k3gate.documents import digest as hashed
from k3gate.gate import conversions, criteria
from k3gate.gate.judgement import Judgement
from k3gate.harness import checkpoints
from k3gate.harness.stored import now
from k3gate.model.checkpoint.checksums import Pace
from k3gate.model.checkpoint.inspection import Inspection
from k3gate.model.conversion import comparison
from k3gate.model.conversion.comparison import Compared
from k3gate.model.conversion.mistakes import WORDS, Mistake
from k3gate.records import Evidence, Severity, Verdict
from k3gate.units import capital, count

CHECK = "quantization.lossless_or_bounded"
_LAYOUT = "quantization.layout"
_ROUTED, _TRUNK = "routed_experts", "trunk"
_JUDGED_BY_LOSS = frozenset({Mistake.TWICE})
"""Mistakes that are a loss and no confusion: the bound on the error decides."""


@frozen
class Result:
    """Both sides, what was found, and the verdict by the criteria."""

    source: Inspection
    converted: Inspection
    subject: str
    compared: Compared
    evidence: tuple[Evidence, ...]
    judged: Judgement
    bounds: Mapping[str, float]
    """The largest error that the criteria allow a weight of each part."""


def compare(
    source: str, converted: str, criteria_path: str | None, progress: Callable[[Pace], None]
) -> Result:
    """Compare all weights; `UsageError` where a side is no checkpoint, or both cannot belong together."""
    asked = criteria.load(criteria_path).of(CHECK)
    (here, source_found), (there, converted_found) = checkpoints.read(source), checkpoints.read(converted)
    task = comparison.prepare(here, there)
    pace = Pace(task.source.bytes)

    def done(size: int) -> None:
        pace.done = size
        progress(pace)

    compared = comparison.compare(task, len(os.sched_getaffinity(0)), done)
    gathered = _evidence(source_found, converted_found, compared, checkpoints.place_of(there))
    judged = conversions.judge_all(asked, gathered[0])
    bounds = {
        str(one.where["part"]): one.bound.max
        for one in asked
        if "part" in one.where and one.bound.max is not None
    }
    return Result(source_found, converted_found, gathered[0].subject, compared, gathered, judged, bounds)


def document(result: Result) -> dict[str, Any]:
    """The JSON of `k3gate quant --json`."""
    return {
        "verdict": result.judged.verdict,
        "reason": result.judged.reason,
        "source": {
            "place": result.source.place,
            "digest": result.source.digest,
            "architecture": result.source.architecture.name,
            "format": result.source.format,
        },
        "converted": {
            "place": result.converted.place,
            "digest": result.subject,
            "architecture": result.converted.architecture.name,
            "format": result.converted.format,
        },
        **comparison.document(result.compared),
    }


def subject(converted: Inspection) -> str:
    """The digest that stands for a converted file. A safetensors checkpoint has one of its own as a conversion, since
    a digest is of one kind, and as what was released it may be a checkpoint."""
    if converted.format == "gguf":
        return converted.digest
    return hashed(["converted", converted.digest])


def _evidence(
    source: Inspection, converted: Inspection, compared: Compared, place: Mapping[str, str]
) -> tuple[Evidence, ...]:
    own = subject(converted)
    verdict, detail = judge(converted, compared)
    data = {
        "source": source.digest,
        "architecture": source.architecture.name,
        "worst": _worst(compared),
        **place,
    }
    found = [Evidence(CHECK, own, "converted", verdict, detail, now(), data)]
    if converted.format == "gguf":
        found += checkpoints.evidence(converted, now())
    else:
        wrong = checkpoints.layout_titles(converted)
        told = f"{'; '.join(wrong)}." if wrong else "Codes, scales and config agree with each other."
        verdict = Verdict.FAIL if wrong else Verdict.PASS
        found.append(Evidence(_LAYOUT, own, "converted", verdict, told, now()))
    return tuple(found)


def judge(converted: Inspection, compared: Compared) -> tuple[Verdict, str]:
    """What the comparison says by itself, before any bound: mistakes and missing weights fail it."""
    mistakes = [one for one in compared.mistakes.values() if one.mistake not in _JUDGED_BY_LOSS]
    wrong = [
        f"{WORDS[one.mistake]} ({count(one.number, 'weight')} of {one.part}: {', '.join(one.weights[:2])})"
        for one in sorted(mistakes, key=lambda one: -one.number)
    ]
    damage = [finding.title for finding in converted.findings if finding.severity is Severity.HIGH]
    if compared.lacking and not compared.added:
        wrong.append(
            f"{count(compared.lacking, 'weight')} of the source missing: {', '.join(compared.missing[:3])}"
        )
    if wrong or damage:
        return Verdict.FAIL, f"{capital('; '.join((*damage, *wrong)))}."
    open_ = []
    if compared.not_read:
        open_.append(f"{count(compared.not_read, 'weight')} could not be compared ({compared.unread[0]})")
    if compared.lacking:
        open_.append(f"{count(compared.lacking, 'weight')} of the source have no counterpart by name")
    if compared.added:
        few = ", ".join(compared.unknown[:3])
        open_.append(f"{count(compared.added, 'weight')} of the converted file have no source: {few}")
    weights = sum(part.weights for part in compared.parts.values())
    if open_ or not weights:
        return Verdict.UNPROVEN, f"{capital('; '.join(open_ or ['nothing was compared']))}."
    exact = sum(part.exact for part in compared.parts.values())
    left = f"; left out: {', '.join(sorted(compared.left_out))}" if compared.left_out else ""
    told = "every number" if exact == weights else f"{exact:,} of them to the last number"
    return Verdict.PASS, f"{count(weights, 'weight')} compared, {told} as in the source{left}."


def _worst(compared: Compared) -> dict[str, Any]:
    """The largest error of one weight of the routed experts, and of all others; null: without bound."""
    found: dict[str, Any] = {}
    for key in (_ROUTED, _TRUNK):
        parts = [part for name, part in compared.parts.items() if (name == _ROUTED) is (key == _ROUTED)]
        error, weight = max((part.worst for part in parts), default=(0.0, ""))
        found[key] = {
            "weights": sum(part.weights for part in parts),
            "nmse": error if math.isfinite(error) else None,
            "weight": weight or None,
        }
    return found
