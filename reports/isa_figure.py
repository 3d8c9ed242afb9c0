"""Arithmetic by instruction set: what a core does on registers, and a product by each."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from k3gate import metrics, units
from k3gate.analysis.kernels import Point, products, usable
from k3gate.records import Metric, Outcome, RunRecord, State
from k3gate.reports import charts, words
from k3gate.reports.evidence import Index, Link, SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.kernel_figures import PATHS, rows_of_metric
from k3gate.reports.readings import ends, proof_line

_NEAR = 0.12
_LEAST, _MOST = 1e-4, 1e4
"""Instructions a cycle beyond which no core has any."""


def by_isa(record: RunRecord, index: Index, number: int) -> Figure | None:
    """A row for each instruction set: arithmetic of a core, the clock it was done at, products at both ends."""
    outcomes = [one for one in record.outcomes if one.case.startswith(("peak.", "isa."))]
    paths = list(dict.fromkeys(path for one in outcomes if (path := _path_of(one)) in PATHS))
    paths.sort(key=list(PATHS).index)
    if not paths:
        return None
    peaks = [
        row for row in rows_of_metric(index, metrics.KERNEL_PEAK) if row.metric.labels.get("scope") == "core"
    ]
    top = max((row.metric.median or 0.0 for row in peaks if usable(row.metric)), default=1.0)
    place = charts.scale(0, top, end=96)
    bars: list[BarRow] = []
    for path in paths:
        own = [row for row in peaks if row.metric.labels.get("path") == path]
        bars += [_isa_row(row, place, record, index) for row in own] or [_absent_row(path, outcomes, index)]
    timed = any(one.shape == "expert_up" for one in products(record, "isa"))
    if not timed:
        bars = [attrs.evolve(bar, figures=bar.figures[:3]) for bar in bars]
    can = [path for path in paths if any(row.metric.labels.get("path") == path for row in peaks)]
    return Figure(
        anchor="fig-isa",
        number=number,
        title=f"The best instruction set that this machine can use is {PATHS[can[0]]}"
        if can
        else "No instruction set was timed",
        subtitle="Arithmetic on registers of one core in FLOP/s from 0; instructions a cycle at the clock that the "
        "core achieved right after"
        + (
            "; an expert's gate or up from MXFP4 weights by one core with 1 token and with the number told"
            if timed
            else ""
        ),
        source="This machine can: what stands here. The runtime uses: not shown, since no runtime's log or counter is "
        f"part of this run. {proof_line(peaks) if peaks else ''}",
        links=ends(peaks) if peaks else (),
        head=(
            *("Instruction set", "Arithmetic of a core", "FLOP/s", "In a cycle", "Clock"),
            *(("1 token", "Many tokens") if timed else ()),
            "State",
        ),
        bars=tuple(bars),
    )


def _path_of(outcome: Outcome) -> str:
    """The path that a case names: peak.SCOPE.PATH.TYPE, peak.PATH, isa.FORMAT.PATH."""
    words_ = outcome.case.split(".")
    return words_[2] if len(words_) > 2 else words_[-1]


def _isa_row(row: SampleRow, place: charts.Scale, record: RunRecord, index: Index) -> BarRow:
    metric = row.metric
    path, kind = str(metric.labels.get("path")), str(metric.labels.get("type"))
    beside = {one.name: one for one in row.outcome.metrics}
    clock = beside.get(metrics.CORE_CLOCK.name)
    ends_ = _ends_of(record, path) if _of_its_product(path, kind) else ()
    value = metric.median if usable(metric) else None
    return BarRow(
        title=f"{PATHS.get(path, path)} on {kind.upper()}",
        sub="",
        chart=charts.cell([charts.band(0, place(value), "25%", "50%", "f-data")] if value else []),
        figures=(
            words.value(value, "FLOP/s"),
            _per_cycle(beside.get(metrics.KERNEL_PER_CYCLE.name), path),
            words.value(clock.median, "Hz") if clock and usable(clock) else "unknown",
            words.value(ends_[0].weights.median, "B/s") if ends_ else "–",
            f"{words.value(ends_[-1].flops.median, 'FLOP/s')} ({ends_[-1].tokens})" if ends_ else "–",
        ),
        link=row.link,
        state=words.STATES[metric.state],
    )


def _of_its_product(path: str, kind: str) -> bool:
    """Whether a path's products of MXFP4 are made by instructions of this type: a path of two has two rows."""
    return kind == ("bf16" if path.endswith("bf16") else "float32" if path == "generic" else "int8")


def _per_cycle(metric: Metric | None, path: str) -> str:
    """ "1.98 of 2": beside the whole number of units, where it is near one; of tiles always, in 16 cycles."""
    if metric is None or metric.median is None or not _LEAST < metric.median < _MOST:
        return "unknown"
    tiles = path.startswith("amx")
    value = metric.median * (metrics.TILE_CYCLES if tiles else 1)
    whole = max(1, round(value))
    if not tiles and abs(value - whole) > _NEAR * whole:
        return units.significant(value)
    return f"{units.significant(value)} of {whole}" + (f" in {metrics.TILE_CYCLES}" if tiles else "")


def _ends_of(record: RunRecord, path: str) -> Sequence[Point]:
    for one in products(record, "isa"):
        if one.format == "mxfp4" and one.points[0].weights.labels.get("path") == path:
            return one.points
    return ()


def _absent_row(path: str, outcomes: Sequence[Outcome], index: Index) -> BarRow:
    own = [one for one in outcomes if _path_of(one) == path]
    state = own[0].state if own else State.NOT_RUN
    link: Link | None = index.case_link(own[0].probe, own[0].case) if own else None
    return BarRow(PATHS.get(path, path), "", charts.cell([]), ("–",) * 5, link, words.STATES[state])
