"""Latency by the size of what is walked through, and under load against the bandwidth reached."""

from __future__ import annotations

from collections.abc import Sequence

from k3gate.metrics import LATENCY_LOADED, UNDER_LOAD
from k3gate.records import Cpu
from k3gate.reports import charts, words
from k3gate.reports.evidence import SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import doubted, ends, node_of, proof_line, usable


def staircase(rows: Sequence[SampleRow], cpu: Cpu, number: int) -> Figure | None:
    """A bar for each size, on a logarithmic scale; None where none was measured."""
    shown = [row for row in rows if usable(row.metric) and row.metric.labels.get("scope") == "staircase"]
    if not shown:
        return None
    several = len({row.metric.labels.get("cpu_node") for row in shown}) > 1
    shown.sort(key=node_of)
    values = [row.metric.median or 0.0 for row in shown]
    place = charts.scale(min(values) / 1.3, max(values), log=True, end=92)
    bars = [_step(row, place, several, _fits(row, cpu)) for row in shown]
    return Figure(
        anchor="fig-staircase",
        number=number,
        title=doubted(
            f"From {words.nanoseconds(min(values))} ns in the first cache to "
            f"{words.nanoseconds(max(values))} ns in memory",
            shown,
        ),
        subtitle="Latency of dependent loads by the size of the chain, on a logarithmic scale; each cache is a step",
        source=proof_line(shown),
        links=ends(shown),
        head=("Size of the chain", "Latency", "ns", "95 % interval", "Fits into", "State"),
        bars=tuple(bars),
    )


def _step(row: SampleRow, place: charts.Scale, several: bool, fits: str) -> BarRow:
    metric = row.metric
    node = f"node {metric.labels.get('cpu_node')}, " if several else ""
    return BarRow(
        title=words.capital(f"{node}{words.size(metric.labels.get('pool_bytes'))}"),
        sub="",
        chart=charts.cell([charts.band(0, place(metric.median or 1e-9), "25%", "50%", "f-warm")]),
        figures=(words.nanoseconds(metric.median), words.nanosecond_range(row.metric.interval), fits),
        link=row.link,
        state=words.STATES[metric.state],
    )


def _fits(row: SampleRow, cpu: Cpu) -> str:
    """The smallest cache that holds the chain."""
    size = row.metric.labels.get("pool_bytes")
    if not isinstance(size, int | float) or not cpu.caches:
        return "unknown"
    holding = [
        cache for cache in cpu.caches if cache.bytes >= size and not cache.kind.lower().startswith("instr")
    ]
    return f"level {min(cache.level for cache in holding)}" if holding else "memory"


def loaded(rows: Sequence[SampleRow], number: int) -> Figure | None:
    """Latency against the bandwidth that the loading threads reached, never against the delay between reads."""
    by_point: dict[tuple[object, object], dict[str, SampleRow]] = {}
    for row in rows:
        if usable(row.metric):
            key = (row.metric.labels.get("cpu_node"), row.metric.labels.get("delay"))
            by_point.setdefault(key, {})[row.metric.name] = row
    points = [
        (pair[UNDER_LOAD.name], pair[LATENCY_LOADED.name])
        for pair in by_point.values()
        if UNDER_LOAD.name in pair and LATENCY_LOADED.name in pair
    ]
    if not points:
        return None
    points.sort(key=lambda pair: (node_of(pair[0]), pair[0].metric.median or 0.0))
    place = charts.scale(0, max(chased.metric.median or 0.0 for _, chased in points), end=92)
    several = len({load.metric.labels.get("cpu_node") for load, _ in points}) > 1
    bars = []
    for load, chased in points:
        node = f"node {load.metric.labels.get('cpu_node')}, " if several else ""
        bars.append(
            BarRow(
                title=words.capital(f"{node}at {words.value(load.metric.median, 'B/s')}"),
                sub="",
                chart=charts.cell(
                    [charts.band(0, place(chased.metric.median or 0.0), "25%", "50%", "f-warm")]
                ),
                figures=(
                    words.nanoseconds(chased.metric.median),
                    words.nanosecond_range(chased.metric.interval),
                    str(load.metric.labels.get("load_threads") or "unknown"),
                ),
                link=chased.link,
                state=words.STATES[chased.metric.state],
            )
        )
    worst = max(points, key=lambda pair: pair[1].metric.median or 0.0)
    return Figure(
        anchor="fig-loaded",
        number=number,
        title=doubted(
            f"Under load memory answers in up to {words.nanoseconds(worst[1].metric.median)} ns", worst
        ),
        subtitle="Latency in ns from 0, against the read bandwidth that the other cores of the node reached meanwhile",
        source=proof_line([chased for _, chased in points]),
        links=ends([chased for _, chased in points]),
        head=("Bandwidth reached", "Latency", "ns", "95 % interval", "Loading threads", "State"),
        bars=tuple(bars),
    )
