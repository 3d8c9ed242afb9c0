"""How fast weights come from storage: the sweep of direct reads, how long a load takes stage by stage, a long read."""

from __future__ import annotations

from markupsafe import Markup

from k3gate import metrics, units
from k3gate.analysis.loading import Loading, Stage
from k3gate.records import RunRecord
from k3gate.reports import charts, thread_figures, words
from k3gate.reports.evidence import Index, Link, SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import doubted, ends, highest, proof_line, range_of, usable
from k3gate.units import NBSP

PROBE = "storage"
_HEIGHT, _TOP, _BOTTOM, _AXIS_Y = 170, 12, 128, 138


def sweep(index: Index, number: int) -> Figure | None:
    """A bar for each way to read past the page cache, fio's beside ours; None where none was measured."""
    rows = _of(index, metrics.STORAGE_READ.name)
    if not rows:
        return None
    several = len({row.metric.labels.get("path") for row in rows}) > 1
    peers = {_shape(row): row for row in _of(index, metrics.STORAGE_PEER.name)}
    cpu = {_shape(row): row for row in _of(index, metrics.STORAGE_CPU.name)}
    rows.sort(key=lambda row: (str(row.metric.labels.get("path")), _numbers(row)))
    place = charts.scale(0, max(highest(row.metric) for row in (*rows, *peers.values())), end=92)
    best = max(rows, key=lambda row: row.metric.median or 0.0)
    bars = []
    for row in rows:
        used, peer = cpu.get(_shape(row)), peers.get(_shape(row))
        bars.append(
            BarRow(
                title=_how(row, several),
                sub="",
                chart=charts.cell(
                    thread_figures.rate_bar(row.metric, place, "f-data" if row is best else "f-data2")
                ),
                figures=(
                    words.rate(row.metric.median),
                    range_of(row.metric),
                    "not run" if peer is None else words.rate(peer.metric.median),
                    _ratio(row, peer),
                    "unknown" if used is None else _cpu(used.metric.median),
                ),
                link=row.link,
                state=words.STATES[row.metric.state],
            )
        )
    labels = best.metric.labels
    stood_in = "" if labels.get("asked") else "; no place was named, so k3gate's own store stood in"
    rate = words.value(best.metric.median, "B/s")
    return Figure(
        anchor="fig-storage",
        number=number,
        title=doubted(f"Storage ({labels.get('lies_on')}) delivers up to {rate}", [best]),
        subtitle="Read past the page cache in GB/s from 0, by blocks, threads and depth; dark: the best. fio: the same "
        "files, block, threads and depth in the same run; CPU: of the reading threads, 0.1 s/GB is a tenth of a core "
        "per GB/s",
        source=f"Read from {labels.get('path')}{stood_in}. {proof_line(rows)}",
        links=ends(rows),
        head=(
            *("How it is read", "Load rate", "GB/s", "95 % interval", "fio, GB/s"),
            *("Of fio", "CPU, s/GB", "State"),
        ),
        bars=tuple(bars),
    )


def load(found: Loading | None, index: Index, number: int) -> Figure | None:
    """How long all weights take, by what they pass; None where no direct read can be used."""
    if found is None:
        return None
    links = {
        (f"{row.outcome.probe}/{row.outcome.case}#{row.metric.name}"): row
        for row in index.samples
        if row.outcome.probe == PROBE
    }
    place = charts.scale(0, max(stage.seconds for stage in found.stages), end=92)
    bars = [_stage(stage, place, links) for stage in found.stages]
    loader = found.stage("safetensors")
    title = f"Loading takes {units.duration(found.floor.seconds)} at least"
    if loader is not None:
        title += (
            f", {units.duration(loader.seconds)} as a loader of safetensors reads, bound by {found.bound}"
        )
    rows = [row for stage in found.stages if stage.reading and (row := links.get(stage.reading.key))]
    return Figure(
        anchor="fig-load",
        number=number,
        title=doubted(title, rows),
        subtitle=f"Time for all {units.exact_bytes(found.bytes, NBSP)} of weights at each rate, from 0, the page cache "
        "cold; computed from rates, not a load that was watched",
        source=f"Read from {found.path}. No loader is faster than the drives; the stages of one that reads ahead "
        "overlap, and the slowest counts.",
        links=ends(rows) if rows else (),
        head=("What weights pass", "Time", "Time", "GB/s", "95 % interval", "State"),
        bars=tuple(bars),
    )


def course(index: Index, number: int) -> Figure | None:
    """The rate in the course of a long read, and what was left of it; None where none was made."""
    rows = [row for row in _of(index, metrics.STORAGE_COURSE.name) if row.metric.samples]
    if not rows:
        return None
    steady = {row.outcome.case: row.metric.median for row in _of(index, metrics.STORAGE_STEADY.name)}
    begun = {row.anchor: row.metric.samples[0].start_s for row in rows}
    until = max(row.metric.samples[-1].start_s - begun[row.anchor] for row in rows) + 0.5
    at = charts.ticks(max(sample.value for row in rows for sample in row.metric.samples) / 1e9)
    place, level = charts.scale(0, until), charts.scale(0, at[-1], start=_BOTTOM, end=_TOP)
    parts: list[Markup] = charts.levels(level, at, lambda value: units.significant(value))
    for row in reversed(rows):
        points = [
            (place(sample.start_s - begun[row.anchor]), level(sample.value / 1e9))
            for sample in row.metric.samples
        ]
        parts.append(charts.curve(points, _HEIGHT, "c-roof" if row is rows[0] else "c-thin"))
    parts += charts.axis(
        place, [tick for tick in charts.ticks(until) if tick <= until], _AXIS_Y, lambda t: f"{t:,.0f}{NBSP}s"
    )
    shares = [(steady.get(row.outcome.case) or 0.0) / _first(row) for row in rows]
    kept = min(shares)
    told = f"After {until:.0f}{NBSP}s on end {words.share(kept, 2)} of the first rate is left"
    bars = []
    width = charts.scale(0, max(highest(row.metric) for row in rows), end=92)
    for row, share in zip(rows, shares, strict=True):
        low, high = (width(edge) for edge in row.metric.interval or (0.0, 0.0))
        bars.append(
            BarRow(
                title=str(row.metric.labels.get("path")),
                sub="",
                chart=charts.cell([charts.band(low, max(high, low + 0.5), "25%", "50%", "f-data2")]),
                figures=(
                    words.rate(_first(row)),
                    words.rate(steady.get(row.outcome.case)),
                    units.significant(share),
                ),
                link=row.link,
                state=words.STATES[row.metric.state],
            )
        )
    return Figure(
        anchor="fig-course",
        number=number,
        title=told,
        subtitle="Read past the page cache in GB/s over the seconds of a read without a pause; the first rate is that "
        "of its first tenth, the last that of its last third",
        source=proof_line(rows),
        links=ends(rows),
        plot=charts.svg(parts, height=_HEIGHT, key="course", title=told, desc=f"{told}."),
        head=("Place", "Range", "At first, GB/s", "At last, GB/s", "Kept", "State"),
        bars=tuple(bars),
    )


def known(record: RunRecord) -> bool:
    """Whether the run knows the probe at all; those of earlier versions do not."""
    run = record.run
    names = {one.probe for one in run.plan} | {one.probe for one in run.left_out}
    return PROBE in names | {one.probe for one in record.outcomes}


def _of(index: Index, name: str) -> list[SampleRow]:
    return [row for row in index.samples if row.metric.name == name and usable(row.metric)]


def _shape(row: SampleRow) -> tuple[object, ...]:
    labels = row.metric.labels
    own = labels.get("cpu_node") if row.metric.name != metrics.STORAGE_PEER.name else None
    return (labels.get("path"), *_numbers(row), own if labels.get("scope") == "node" else None)


def _numbers(row: SampleRow) -> tuple[int, ...]:
    labels = row.metric.labels
    return tuple(
        value if isinstance(value := labels.get(key), int) else 0
        for key in ("block_bytes", "threads", "depth")
    )


def _how(row: SampleRow, several: bool) -> str:
    """ "1 MiB, 4 threads with 16 under way"."""
    labels = row.metric.labels
    _, threads, depth = _numbers(row)
    where = f"{labels.get('path')}: " if several else ""
    node = f", cores of node {labels['cpu_node']}" if labels.get("cpu_node") is not None else ""
    many = f"{words.count(threads, 'thread')} with {depth} under way"
    return f"{where}{words.size(labels.get('block_bytes'))}, {many}{node}"


def _ratio(row: SampleRow, peer: SampleRow | None) -> str:
    if peer is None or not peer.metric.median:
        return "–"
    return units.significant((row.metric.median or 0.0) / peer.metric.median)


def _cpu(value: float | None) -> str:
    return "unknown" if value is None else units.significant(value * 1e9, 2)


def _first(row: SampleRow) -> float:
    values = [sample.value for sample in row.metric.samples]
    some = values[: max(1, len(values) // 10)]
    return sum(some) / len(some) or 1.0


def _stage(stage: Stage, place: charts.Scale, rows: dict[str, SampleRow]) -> BarRow:
    row = rows.get(stage.reading.key) if stage.reading else None
    main = stage.key in ("drives", "steady", "safetensors")
    style = "f-grey" if stage.reading is None else "f-warm" if main else "f-warm2"
    link: Link | None = row.link if row is not None else None
    edges = dict.fromkeys(words.rate(edge) for edge in stage.interval or ())
    interval = "–".join(edges) if stage.interval else "on paper"
    return BarRow(
        title=words.capital(stage.title),
        sub="",
        chart=charts.cell([charts.band(0, place(stage.seconds), "25%", "50%", style)]),
        figures=(units.duration(stage.seconds), words.rate(stage.rate), interval),
        link=link,
        state="on paper" if row is None else words.STATES[row.metric.state],
    )
