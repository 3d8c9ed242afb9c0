"""Two runs side by side: comparable or not, what differs in the machines, and metric by metric a ratio.

The ratio is B over A. Its interval is the 99 % Welch interval over the logarithms of the round medians,
widened by the drift between runs, since rounds of one run lie minutes apart and two runs hours. A difference
counts when the interval leaves 1 out and the ratio is at least 5 % off; "same" is said only where the whole
interval lies within 5 % of 1.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from k3gate import metrics as registry
from k3gate.documents import plain
from k3gate.host import volatile
from k3gate.metrics import RESIDENCY_BYTES, RESIDENCY_RATE
from k3gate.probing.outcomes import evidence
from k3gate.probing.statistics import round_medians
from k3gate.records import Better, Interval, Labels, Metric, RunRecord, RunStatus, Scalar, State
from k3gate.topology import nodes_of_packages
from k3gate.units import significant

CONFIDENCE = 0.99
MINIMUM_EFFECT = 0.05
DRIFT = 0.01
"""Standard deviation of the logarithm of a rate between two runs, beyond the scatter of its
rounds. Ours: it keeps a real loss of 10 % visible wherever a metric's own interval is under +-5 %."""

RULES = ("kernel", "stores", "counting")
"""Labels that say how bytes are counted: numbers that differ in one of them are never compared."""

SETTINGS = ("kernel.", "limits.", "cpu.governor", "cpu.smt", "cpu.boost", "cpu.scaling_driver", "cpu.allowed")
_CIRCUMSTANCES = ("machine",)
"""What others did during a run says nothing of the machine; the gate's check `idle` judges it, run by run."""

_IGNORED = ("provenance", "findings", "root", "machine.name", "machine.id", "machine.fingerprint")


@frozen
class Side:
    """One of the two runs, in the words of its header."""

    run: str
    machine_name: str | None
    fingerprint: str | None
    model: str | None
    profile: str
    started: str
    status: str
    version: str


@frozen
class Difference:
    """A field of the inventory that differs. `setting`: could be changed without other hardware."""

    field: str
    a: Any
    b: Any
    setting: bool


@frozen
class MetricComparison:
    """One metric of both runs. `ratio` is B / A, None where it cannot be formed."""

    probe: str
    case: str
    name: str
    title: str
    unit: str
    better: Better
    labels: Labels
    a: Metric | None
    b: Metric | None
    ratio: float | None
    interval: Interval | None
    verdict: str
    reason: str | None


@frozen
class Comparison:
    """The whole comparison. `verdict` speaks of B against A."""

    comparable: bool
    reasons: tuple[str, ...]
    same_machine: bool
    sides: tuple[Side, Side]
    differences: tuple[Difference, ...]
    metrics: tuple[MetricComparison, ...]
    verdict: str
    sentence: str


def compare(a: RunRecord, b: RunRecord) -> Comparison:
    """Compare run B with run A. Pure; never raises on records that the store gave."""
    reasons = tuple(_obstacles(a, b))
    same_machine = _same_machine(a, b)
    differences = tuple(_differences(a, b))
    metrics = tuple(_metrics(a, b, comparable=not reasons))
    verdict = _verdict(metrics) if not reasons else "cannot tell"
    return Comparison(
        comparable=not reasons,
        reasons=reasons,
        same_machine=same_machine,
        sides=(_side(a), _side(b)),
        differences=differences,
        metrics=metrics,
        verdict=verdict,
        sentence=_sentence(verdict, metrics, reasons, differences, _who(a, b, same_machine)),
    )


def _same_machine(a: RunRecord, b: RunRecord) -> bool:
    """Both were measured on one machine: two servers of one model have one fingerprint and two ids."""
    ids, kinds = (a.run.machine, b.run.machine), (a.run.fingerprint, b.run.fingerprint)
    return bool(ids[0]) and ids[0] == ids[1] and kinds[0] == kinds[1]


def _who(a: RunRecord, b: RunRecord, same_machine: bool) -> str:
    if same_machine:
        return "One machine, measured twice"
    alike = bool(a.run.fingerprint) and a.run.fingerprint == b.run.fingerprint
    known = bool(a.run.machine and b.run.machine)
    if alike:
        return "Two machines of one kind" if known else "One machine, or two of one kind"
    return "Two machines"


def document(comparison: Comparison) -> dict[str, Any]:
    """The JSON document of `k3gate diff --json`."""
    return {
        "comparable": comparison.comparable,
        "reasons": list(comparison.reasons),
        "same_machine": comparison.same_machine,
        "machines": [plain(side) for side in comparison.sides],
        "differences": [plain(difference) for difference in comparison.differences],
        "metrics": [
            {
                "probe": m.probe,
                "case": m.case,
                "name": m.name,
                "unit": m.unit,
                "better": m.better.value,
                "labels": plain(m.labels),
                "a": m.a.median if m.a else None,
                "b": m.b.median if m.b else None,
                "ratio": m.ratio,
                "interval": list(m.interval) if m.interval else None,
                "verdict": m.verdict,
                "reason": m.reason,
            }
            for m in comparison.metrics
        ],
        "verdict": comparison.verdict,
        "sentence": comparison.sentence,
    }


def _side(record: RunRecord) -> Side:
    run = record.run
    return Side(
        run.id,
        run.machine_name,
        run.fingerprint,
        record.inventory.cpu.model,
        run.profile,
        run.started,
        run.status.value,
        run.version,
    )


def _obstacles(a: RunRecord, b: RunRecord) -> Iterator[str]:
    if a.run.profile != b.run.profile:
        yield f"profiles differ: {a.run.profile} against {b.run.profile}; run both with the same one"
    for record in (a, b):
        if record.run.status is not RunStatus.COMPLETE:
            yield f"run {record.run.id} is {record.run.status.value}, not complete: resume it first"
    shared = {(o.probe, o.case) for o in a.outcomes if o.metrics} & {
        (o.probe, o.case) for o in b.outcomes if o.metrics
    }
    if not shared:
        yield "the runs have no measured case in common"


def _differences(a: RunRecord, b: RunRecord) -> Iterator[Difference]:
    left, right = _flat(plain(a.inventory)), _flat(plain(b.inventory))
    found = [
        Difference(field, left.get(field), right.get(field), field.startswith(SETTINGS))
        for field in sorted(left.keys() | right.keys())
        if left.get(field) != right.get(field) and not _ignored(field)
    ]
    if a.run.version != b.run.version:
        yield Difference("k3gate version", a.run.version, b.run.version, setting=True)
    # NPS and SNC are set in the firmware, and change every figure per node: named before all else.
    before, after = _nodes_per_socket(a), _nodes_per_socket(b)
    if before is not None and after is not None and before != after:
        yield Difference("NUMA nodes per socket", before, after, setting=True)
    yield from (d for d in found if d.setting)
    yield from (d for d in found if not d.setting)


def _nodes_per_socket(record: RunRecord) -> int | None:
    """How many nodes each socket holds; None where sockets differ, or where none is known."""
    inventory = record.inventory
    counts = {len(nodes) for nodes in nodes_of_packages(inventory.cpu, inventory.numa).values()}
    return counts.pop() if len(counts) == 1 else None


def _ignored(field: str) -> bool:
    plain_field = re.sub(r"\[[^]]*\]", "", field)
    return any(plain_field == name or plain_field.startswith(name + ".") for name in (*_IGNORED, *volatile))


def _flat(document: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted leaves; lists of scalars stay whole, records in lists are keyed by their id or place."""
    if isinstance(document, Mapping):
        flat: dict[str, Any] = {}
        for key, value in document.items():
            flat.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    if isinstance(document, list) and document and all(isinstance(item, Mapping) for item in document):
        flat = {}
        for place, item in enumerate(document):
            flat.update(_flat(item, f"{prefix}[{item.get('id', place)}]"))
        return flat
    return {prefix: document}


def _metrics(a: RunRecord, b: RunRecord, *, comparable: bool) -> Iterator[MetricComparison]:
    left, right = _keyed(a), _keyed(b)
    for key in dict.fromkeys((*left, *right)):
        probe, case, name, _ = key
        one, other = left.get(key), right.get(key)
        shown = one or other
        assert shown is not None
        ratio, interval, verdict, reason = _judge(one, other)
        if not comparable and verdict != "cannot tell":
            verdict, reason = "cannot tell", "the runs are not comparable"
        title = _title(shown)
        yield MetricComparison(
            probe,
            case,
            name,
            title,
            shown.unit,
            shown.better,
            shown.labels,
            one,
            other,
            ratio,
            interval,
            verdict,
            reason,
        )


def _title(metric: Metric) -> str:
    declaration = registry.find(metric.name)
    return declaration.title if declaration else metric.name


def _is_exact(metric: Metric) -> bool:
    """Whether the metric is a count or a size: two of them are equal or they are not."""
    declaration = registry.find(metric.name)
    return declaration is not None and declaration.exact


def _keyed(record: RunRecord) -> dict[tuple[str, str, str, str], Metric]:
    """Metrics by probe, case, name, tokens and their place among equals: labels such as threads differ by machine, and
    profiles take other numbers of tokens."""
    keyed: dict[tuple[str, str, str, str], Metric] = {}
    for outcome in record.outcomes:
        if outcome.probe in _CIRCUMSTANCES:
            continue
        seen: dict[tuple[str, Scalar], int] = defaultdict(int)
        for metric in evidence(outcome):
            point = (metric.name, metric.labels.get("tokens"))
            keyed[(outcome.probe, outcome.case, metric.name, f"{point[1]} {seen[point]}")] = metric
            seen[point] += 1
    return keyed


Judgement = tuple[float | None, Interval | None, str, str | None]


def _judge(a: Metric | None, b: Metric | None) -> Judgement:
    if a is None or b is None:
        return None, None, "cannot tell", f"not measured in run {'A' if a is None else 'B'}"
    if a.unit != b.unit:
        return None, None, "cannot tell", f"units differ: {a.unit} against {b.unit}"
    for rule in RULES:
        if a.labels.get(rule) != b.labels.get(rule):
            return (
                None,
                None,
                "cannot tell",
                f"counted differently: {rule} is {a.labels.get(rule)!r} against {b.labels.get(rule)!r}",
            )
    if a.median is None or b.median is None or a.median <= 0 or b.median <= 0:
        return None, None, "cannot tell", a.reason or b.reason or "no value in one of the runs"
    ratio = b.median / a.median
    if a.name == RESIDENCY_BYTES.name and (partial := _partly_held(a, b)) is not None:
        return ratio, None, "cannot tell", partial
    if _is_exact(a):
        interval: Interval | None = (ratio, ratio)
    else:
        interval = _ratio_interval(a, b)
    for side, metric in (("A", a), ("B", b)):
        if metric.state is not State.OK:
            reason = f"{metric.state.value} in run {side}"
            return ratio, interval, "cannot tell", f"{reason}: {metric.reason}" if metric.reason else reason
    if interval is None:
        return ratio, None, "cannot tell", "too few rounds for an interval"
    return ratio, interval, *_word(ratio, interval, a.better, _conditions(a, b))


def _partly_held(a: Metric, b: Metric) -> str | None:
    """Why the sizes that were held say nothing of the machines: they follow the plan and free memory."""
    for side, metric in (("A", a), ("B", b)):
        wanted = metric.labels.get("wanted_bytes")
        whole = isinstance(wanted, int | float) and metric.median is not None and metric.median >= wanted
        if metric.labels.get("memory") != "image" or not whole:
            return f"run {side} held a part of the image, as large as its plan made it"
    if a.labels.get("wanted_bytes") != b.labels.get("wanted_bytes"):
        return "the runs held the images of different targets"
    return None


def _word(ratio: float, interval: Interval, better: Better, conditions: str | None) -> tuple[str, str | None]:
    low, high = interval
    margin = (1 - MINIMUM_EFFECT, 1 / (1 - MINIMUM_EFFECT))
    if low > 1 or high < 1:
        if margin[0] <= low and high <= margin[1]:
            return "same", _join("the difference is below 5 %", conditions)
        if margin[0] < ratio < margin[1]:
            width = f"they differ, perhaps by less than 5 %: {significant(low)} to {significant(high)}"
            return "cannot tell", _join(width, conditions)
        if better is Better.NEITHER:
            return "cannot tell", _join("differs, and neither direction is better", conditions)
        return ("better" if (ratio > 1) == (better is Better.HIGHER) else "worse"), conditions
    if margin[0] <= low and high <= margin[1]:
        return "same", conditions
    width = f"the ratio lies between {significant(low)} and {significant(high)}, 1 included"
    return "cannot tell", _join(width, conditions)


def _join(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def _conditions(a: Metric, b: Metric) -> str | None:
    """Labels that differ without changing what is counted: said, so that nobody compares blindly."""
    keys = [k for k in dict.fromkeys((*a.labels, *b.labels)) if a.labels.get(k) != b.labels.get(k)]
    if not keys:
        return None
    return "measured with " + ", ".join(f"{k} {a.labels.get(k)} against {b.labels.get(k)}" for k in keys)


def _ratio_interval(a: Metric, b: Metric) -> Interval | None:
    """The 99 % interval of B / A, or None with fewer than two rounds on a side."""
    left, right = _round_logs(a), _round_logs(b)
    if not left or not right or min(len(left), len(right)) < 2:
        return None
    assert a.median is not None
    assert b.median is not None
    parts = [statistics.variance(side) / len(side) for side in (left, right)]
    variance = sum(parts)
    if variance > 0:
        from scipy.special import stdtrit

        freedom = variance**2 / sum(
            part**2 / (len(side) - 1) for part, side in zip(parts, (left, right), strict=True)
        )
        half = float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / 2)) * math.sqrt(variance)
    else:
        half = 0.0
    normal = statistics.NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
    half = math.hypot(half, normal * DRIFT * math.sqrt(2))
    centre = math.log(b.median / a.median)
    if half > 50:
        return None
    return math.exp(centre - half), math.exp(centre + half)


def _round_logs(metric: Metric) -> list[float] | None:
    medians = round_medians(metric.samples)
    return [math.log(m) for m in medians] if medians and min(medians) > 0 else None


_SECONDARY = (RESIDENCY_BYTES.name, RESIDENCY_RATE.name)
"""Their sizes follow the plan, and the rate of a whole image has one round: they rule nothing out."""


def _may_be_worse(metric: MetricComparison) -> bool:
    """B may have lost here: it has no sound value, or the interval reaches beyond 5 % of loss."""
    if metric.verdict != "cannot tell" or metric.name in _SECONDARY or metric.a is None:
        return False
    sound = metric.b is not None and metric.b.state is State.OK and metric.a.state is State.OK
    if not sound or metric.interval is None:
        return True
    low, high = metric.interval
    if metric.better is Better.LOWER:
        low = 1 / high if high > 0 else 0.0
    return low < 1 - MINIMUM_EFFECT


def _verdict(metrics: tuple[MetricComparison, ...]) -> str:
    words = {m.verdict for m in metrics}
    if words == {"same"}:
        return "same"
    if "better" in words and "worse" not in words:
        return "better" if not any(_may_be_worse(m) for m in metrics) else "cannot tell"
    if "worse" in words and "better" not in words:
        return "worse"
    return "cannot tell"


def _sentence(
    verdict: str,
    metrics: tuple[MetricComparison, ...],
    reasons: tuple[str, ...],
    differences: tuple[Difference, ...],
    who: str,
) -> str:
    if reasons:
        return "Not comparable: " + "; ".join(reasons) + "."
    counts = {
        word: sum(m.verdict == word for m in metrics) for word in ("better", "worse", "same", "cannot tell")
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    sentence = f"{who}: of {len(metrics)} metrics of B against A, {told}."
    settings = [d.field for d in differences if d.setting]
    if settings and counts["better"] + counts["worse"]:
        sentence += (
            f" Settings differ ({', '.join(settings[:4])}{', ...' if len(settings) > 4 else ''}): "
            "no difference may be laid to the hardware until they agree."
        )
    return sentence
