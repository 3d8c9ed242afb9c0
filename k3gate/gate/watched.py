"""What was watched while cases ran: errors that were counted, power and throttling."""

from __future__ import annotations

from collections.abc import Sequence

from k3gate import metrics, units
from k3gate.gate import hardware
from k3gate.gate.judgement import Judgement, unproven
from k3gate.records import Metric, RunRecord, State, Verdict

LEAST_LOAD_S = 600.0
"""How long cases must have run before it means something that nothing happened."""
_LONGER = "Run `k3gate run --profile standard`, or soak."
_SHOWN = 4


def errors(record: RunRecord) -> Judgement:
    """An uncorrected error fails; a corrected one, counters that are not there, or a short run leave it unproven."""
    row = ("machine/errors",)
    lost = _rose(record, "errors", metrics.ERRORS_UNCORRECTED.name)
    if lost:
        told = f"Errors that could not be corrected were counted under load: {_named(lost)}."
        return Judgement(Verdict.FAIL, told, _sum(lost), evidence=row)
    doubt = hardware.doubt(record.inventory)
    if doubt is not None:
        return unproven(f"No evidence about the hardware: {doubt}.", row)
    if not _figures(record, "errors", metrics.ERRORS_UNCORRECTED.name, source="memory"):
        why = hardware.because(record.inventory, "edac.corrected") or "the run does not hold its counters"
        return unproven(
            f"Memory errors are not counted here, so that ECC is unverified ({why}).",
            row,
            remedy="Load the EDAC driver of this processor (amd64_edac, skx_edac, i10nm_edac) and run again.",
        )
    mended = _rose(record, "errors", metrics.ERRORS_CORRECTED.name)
    if mended:
        return unproven(
            f"Errors were counted and corrected under load: {_named(mended)}.",
            row,
            observed=_sum(mended),
            remedy="Run again; where the same part counts again, have it reseated or replaced.",
        )
    short = _short(record, row)
    if short is not None:
        return short
    told = f"No error was counted in {units.duration(_load_s(record))} of load: {_counted(record)}."
    return Judgement(Verdict.PASS, told, 0.0, evidence=row)


def power(record: RunRecord) -> Judgement:
    """Throttling or a sensor at its limit fails; without power, or without a sign of throttling, it is unproven."""
    row = ("machine/power", "machine/throttling", "machine/heat")
    doubt = hardware.doubt(record.inventory)
    if doubt is not None:
        return unproven(f"No evidence about the hardware: {doubt}.", row)
    slowed = _rose(record, "throttling", metrics.THROTTLE_EVENTS.name)
    if slowed:
        told = f"Parts were slowed down for heat or power under load: {_named(slowed)}."
        return Judgement(Verdict.FAIL, told, _sum(slowed), evidence=row)
    cards = _slowed_gpus(record)
    if cards:
        told = f"GPUs were slowed down while they copied: {'; '.join(cards[:_SHOWN])}."
        return Judgement(Verdict.FAIL, told, f"{len(cards)} slowed down", evidence=("inventory:gpus",))
    rooms = _figures(record, "heat", metrics.TEMPERATURE_ROOM.name)
    tight = sorted((_lowest(metric), str(metric.labels.get("sensor"))) for metric in rooms)
    if tight and tight[0][0] <= 0:
        told = f"{tight[0][1]} reached its limit under load, and went {-tight[0][0]:g} degrees beyond it."
        return Judgement(Verdict.FAIL, told, tight[0][0], unit="degC", evidence=row)
    watts = _figures(record, "power", metrics.POWER_MEAN.name)
    if not watts:
        why = hardware.because(record.inventory, "sensors.power_zones") or "the run does not hold it"
        return unproven(
            f"Power was not read ({why}).",
            row,
            remedy="Run as root, or give the run its BMC with --bmc.",
        )
    counted = _figures(record, "throttling", metrics.THROTTLE_EVENTS.name, source="processors")
    if not counted and not tight:
        return unproven(
            "Power was read, and whether it was held down was not: neither throttling is counted nor does a "
            "sensor tell its limit.",
            row,
        )
    short = _short(record, row)
    if short is not None:
        return short
    parts = [f"{metric.labels.get('sensor')} {units.significant(metric.median or 0)} W" for metric in watts]
    room = f"; {tight[0][1]} stayed {tight[0][0]:g} degrees below its limit" if tight else ""
    none = "; no throttling was counted" if counted else ""
    told = (
        f"On average over {units.duration(_load_s(record))} of load: {', '.join(parts[:_SHOWN])}{none}{room}."
    )
    return Judgement(Verdict.PASS, told, _power(watts), unit="W", evidence=row)


def _slowed_gpus(record: RunRecord) -> list[str]:
    """GPUs whose library named a reason that harms, each with all that it named."""
    found: dict[str, str] = {}
    for outcome in record.outcomes:
        for metric in outcome.metrics:
            if metric.name == metrics.PCIE_SLOWED.name and _highest(metric) > 0:
                told = next(
                    (proof.detail for proof in metric.proofs if proof.name == "clocks"), "not told why"
                )
                found.setdefault(str(metric.labels.get("device")), told)
    return [f"{device} ({told})" for device, told in sorted(found.items())]


def _figures(record: RunRecord, case: str, name: str, *, source: str | None = None) -> list[Metric]:
    """Metrics of one outcome of the machine; of counters those of a source in all, where one is named."""
    return [
        metric
        for outcome in record.outcomes
        if (outcome.probe, outcome.case) == ("machine", case)
        for metric in outcome.metrics
        if metric.name == name
        and metric.median is not None
        and metric.state is State.OK
        and (source is None or dict(metric.labels) == {"source": source})
    ]


def _rose(record: RunRecord, case: str, name: str) -> list[Metric]:
    """Counters that rose in any sitting; a controller's that holds what its module counted is left out."""
    found = [one for one in _figures(record, case, name) if one.labels.get("counter") and _highest(one) > 0]
    modules = {
        str(one.labels["counter"]).partition("/")[0] for one in found if "/" in str(one.labels["counter"])
    }
    return [one for one in found if str(one.labels["counter"]).rpartition(" ")[0] not in modules]


def _named(found: Sequence[Metric]) -> str:
    parts = [f"{metric.labels.get('domain')} ({_highest(metric):,.0f})" for metric in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return units.listed(parts) + more


def _sum(found: Sequence[Metric]) -> float:
    return sum(sample.value for metric in found for sample in metric.samples)


def _highest(metric: Metric) -> float:
    return metric.interval[1] if metric.interval else metric.median or 0.0


def _lowest(metric: Metric) -> float:
    return metric.interval[0] if metric.interval else metric.median or 0.0


def _power(watts: Sequence[Metric]) -> float | None:
    """Of the whole machine where a BMC tells it, else of the packages; zones lie within one another."""
    for role, domain in (("bmc", None), ("cpu", "psys"), ("cpu", "package")):
        own = [
            m
            for m in watts
            if m.labels.get("role") == role and str(m.labels.get("domain") or "").startswith(domain or "")
        ]
        if own:
            values = [metric.median or 0.0 for metric in own]
            # A BMC tells the whole beside its supplies; packages add up.
            return sum(values) if domain == "package" else max(values)
    return None


def _counted(record: RunRecord) -> str:
    sources = [
        str(metric.labels["source"])
        for metric in _figures(record, "errors", metrics.ERRORS_UNCORRECTED.name)
        if set(metric.labels) == {"source"}
    ]
    return units.listed(sources)


def _load_s(record: RunRecord) -> float:
    return sum(phase.end_s - phase.start_s for phase in record.phases)


def _short(record: RunRecord, row: tuple[str, ...]) -> Judgement | None:
    load = _load_s(record)
    if load >= LEAST_LOAD_S:
        return None
    told = f"Only {units.duration(load)} of load were watched, less than {units.duration(LEAST_LOAD_S)}."
    return unproven(told, row, remedy=_LONGER)
