"""Files that were read as memory: rates of each, and latency."""

from __future__ import annotations

from collections.abc import Sequence

from k3gate.metrics import FILE_EXPERTS, FILE_LATENCY, FILE_READ
from k3gate.reports import charts, thread_figures, words
from k3gate.reports.evidence import SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import doubted, ends, highest, proof_line, range_of, threads_of, usable
from k3gate.units import NBSP

NAMES = (FILE_READ.name, FILE_EXPERTS.name, FILE_LATENCY.name)


def files(rows: Sequence[SampleRow], number: int) -> Figure | None:
    """A bar for each rate and each latency, by file; None where none was measured."""
    shown = [row for row in rows if usable(row.metric)]
    rates = [row for row in shown if row.metric.name != FILE_LATENCY.name]
    times = [row for row in shown if row.metric.name == FILE_LATENCY.name]
    if not shown:
        return None
    bars = []
    if rates:
        place = charts.scale(0, max(highest(row.metric) for row in rates), end=92)
        bars += [_bar(row, place) for row in rates]
    if times:
        place = charts.scale(0, max(highest(row.metric) for row in times), end=92)
        bars += [_bar(row, place) for row in times]
    read = [row for row in rates if row.metric.name == FILE_READ.name]
    title = "Files read as memory"
    if read:
        best = max(read, key=lambda row: row.metric.median or 0.0)
        title = doubted(f"A mapped file is read at up to {words.value(best.metric.median, 'B/s')}", [best])
    return Figure(
        anchor="fig-files",
        number=number,
        title=title,
        subtitle="Bandwidth in GB/s and latency in ns, each from 0; a file in memory is no evidence of how a node "
        "reads its own",
        source=proof_line(shown),
        links=ends(shown),
        head=("File, and how it is read", "Reading", "GB/s or ns", "95 % interval", "Threads", "State"),
        bars=tuple(bars),
    )


def _bar(row: SampleRow, place: charts.Scale) -> BarRow:
    metric, labels = row.metric, row.metric.labels
    slow = metric.name == FILE_LATENCY.name
    how = {FILE_READ.name: "straight on", FILE_EXPERTS.name: "experts in random order"}.get(
        metric.name, "latency"
    )
    who = "all cores" if labels.get("cpu_node") is None else f"node {labels['cpu_node']}"
    made = "made in " if labels.get("made") else ""
    figure, spread = words.rate(metric.median), range_of(metric)
    if slow:
        figure, spread = (
            f"{words.nanoseconds(metric.median)}{NBSP}ns",
            words.nanosecond_range(metric.interval),
        )
    return BarRow(
        title=f"{words.capital(f'{who}, {how}')}: {made}{labels.get('file')} ({_medium(row)})",
        sub="",
        chart=charts.cell(thread_figures.rate_bar(metric, place, "f-warm" if slow else "f-data")),
        figures=(figure, spread, threads_of(metric)),
        link=row.link,
        state=words.STATES[metric.state],
    )


def _medium(row: SampleRow) -> str:
    """ "page cache, ext4": from which memory the bytes come, and by which file system."""
    read_from, system = row.metric.labels.get("read_from"), row.metric.labels.get("file_system")
    return ", ".join(str(one) for one in dict.fromkeys((read_from, system)) if one) or "unknown"
