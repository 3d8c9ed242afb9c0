"""How threads and the size of reads change the rate: the thread sweep, and routed experts in random order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from k3gate import units
from k3gate.records import Metric
from k3gate.reports import charts, words
from k3gate.reports.evidence import SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import doubted, ends, highest, node_of, proof_line, range_of, usable
from k3gate.units import NBSP


def sweep(reads: Sequence[SampleRow], number: int) -> Figure | None:
    """Read bandwidth of each node by the number of its threads; None where nothing was swept."""
    swept = [row for row in reads if usable(row.metric) and row.metric.labels.get("scope") == "sweep"]
    nodes = {row.metric.labels.get("cpu_node") for row in swept}
    shown = [
        row
        for row in reads
        if usable(row.metric)
        and row.metric.labels.get("cpu_node") in nodes
        and row.metric.labels.get("placement") == "local"
        and not row.outcome.case.startswith("read.4k")
    ]
    if not swept:
        return None
    shown.sort(key=lambda row: (node_of(row), _threads(row)))
    place = charts.scale(0, max(highest(row.metric) for row in shown), end=92)
    best = {
        node: max(
            (row for row in shown if row.metric.labels.get("cpu_node") == node),
            key=lambda row: row.metric.median or 0.0,
        )
        for node in nodes
    }
    first = min(best.values(), key=node_of)
    return Figure(
        anchor="fig-sweep",
        number=number,
        title=doubted(
            f"Node {first.metric.labels.get('cpu_node')} reads fastest with "
            f"{words.count(_threads(first), 'thread')}",
            best.values(),
        ),
        subtitle="Local read bandwidth in GB/s from 0, by threads: one per physical core first, SMT siblings after; "
        "dark: the best of its node",
        source=f"The checks of local bandwidth take the best setting. {proof_line(shown)}",
        links=ends(shown),
        head=("Node and threads", "Read bandwidth", "GB/s", "95 % interval", "Of the best", "State"),
        bars=tuple(_bar(row, place, best[row.metric.labels.get("cpu_node")]) for row in shown),
    )


def _threads(row: SampleRow) -> int:
    threads = row.metric.labels.get("threads")
    return threads if isinstance(threads, int) else 0


def _bar(row: SampleRow, place: charts.Scale, best: SampleRow) -> BarRow:
    metric = row.metric
    parts = rate_bar(metric, place, "f-data" if row is best else "f-data2")
    share = (metric.median or 0) / (best.metric.median or 1)
    return BarRow(
        title=f"Node {metric.labels.get('cpu_node')}, {words.count(_threads(row), 'thread')}",
        sub="",
        chart=charts.cell(parts),
        figures=(words.rate(metric.median), range_of(metric), units.significant(share)),
        link=row.link,
        state=words.STATES[metric.state],
    )


def rate_bar(metric: Metric, place: charts.Scale, style: str) -> list[Markup]:
    """The median as a bar from 0, with the interval as a whisker where there is one."""
    parts = [charts.band(0, place(metric.median or 0), "25%", "50%", style)]
    if metric.interval:
        parts.append(charts.whisker(place(metric.interval[0]), place(metric.interval[1]), "wi"))
    return parts


def beside(
    pairs: Sequence[tuple[SampleRow, SampleRow | None]],
    styles: tuple[str, str],
    title: Callable[[SampleRow, bool], str],
) -> tuple[tuple[BarRow, ...], list[float]]:
    """Rows of readings, each followed by the one that it is held against, and their ratios to it.

    `styles`: of the reading, and of the other; `title(row, first)` names a row.
    """
    top = max(highest(row.metric) for pair in pairs for row in pair if row is not None)
    place = charts.scale(0, top, end=92)
    bars, ratios = [], []
    for row, other in pairs:
        for shown in (row, other):
            if shown is None:
                continue
            metric, first = shown.metric, shown is row
            ratio = "–"
            if first and other is not None and other.metric.median:
                ratios.append((metric.median or 0) / other.metric.median)
                ratio = units.significant(ratios[-1])
            bars.append(
                BarRow(
                    title=title(shown, first),
                    sub="",
                    chart=charts.cell(rate_bar(metric, place, styles[not first])),
                    figures=(words.rate(metric.median), range_of(metric), ratio),
                    link=shown.link,
                    state=words.STATES[metric.state],
                )
            )
    return tuple(bars), ratios


def experts(rows: Sequence[SampleRow], reads: Sequence[SampleRow], number: int) -> Figure | None:
    """Experts in random order beside reading straight on by the same threads; None where none was read."""
    rows = [row for row in rows if usable(row.metric)]
    if not rows:
        return None
    pairs = [(row, _straight(row, reads)) for row in rows]
    bars, ratios = beside(pairs, ("f-data", "f-data2"), _how)
    title = "Reading routed experts in random order"
    if ratios:
        title = (
            f"Experts in random order keep {units.significant(min(ratios) * 100, 2)}{NBSP}% of the bandwidth"
        )
        title = doubted(title, [row for pair in pairs for row in pair])
    return Figure(
        anchor="fig-experts",
        number=number,
        title=title,
        subtitle="Read bandwidth in GB/s from 0; an expert is 17,547,264 bytes in six tensors",
        source=proof_line(rows),
        links=ends(rows),
        head=("Who reads, and how", "Read bandwidth", "GB/s", "95 % interval", "Of straight on", "State"),
        bars=bars,
    )


def _how(shown: SampleRow, first: bool) -> str:
    how = "experts in random order" if first else "straight on"
    return f"{words.capital(words.reading(shown.metric.labels) or shown.outcome.case)}, {how}"


def _straight(row: SampleRow, reads: Sequence[SampleRow]) -> SampleRow | None:
    """The reading of the same scope, CPUs and memory that goes straight on."""
    keys = ("scope", "cpu_node", "memory_node", "threads")
    wanted = [row.metric.labels.get(key) for key in keys]
    if wanted[0] == "image":
        wanted[0] = "machine"  # the same threads, over a pool just beyond the caches
    return next(
        (
            other
            for other in reads
            if usable(other.metric)
            and [other.metric.labels.get(key) for key in keys] == wanted
            and not other.outcome.case.startswith("read.4k")
        ),
        None,
    )
