"""Figures from the metrics of a run: the NUMA matrix, rates, scatter of the rounds, page sizes, residency."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from k3gate import units
from k3gate.metrics import EXPERT_READ, MEMORY_READ
from k3gate.records import RunRecord, State
from k3gate.reports import charts, residency_figure, thread_figures, words
from k3gate.reports.evidence import Index, SampleRow
from k3gate.reports.figures import Absent, BarRow, Cell, Figure, Matrix
from k3gate.reports.readings import (
    conditions,
    ends,
    half_width,
    highest,
    is_local,
    numa_title,
    proof_line,
    range_of,
    rates_title,
    round_medians,
    round_step,
    runs_of,
    scope_of,
    signed,
    split_columns,
    spread,
    threads_of,
    usable,
)
from k3gate.units import NBSP

MOST_ROWS = 48


class Measurements:
    """All figures of the measurements section; numbers follow `first`."""

    def __init__(self, record: RunRecord, index: Index, first: int) -> None:
        self._record = record
        self._index = index
        self._next = first
        everything = [row for row in index.samples if row.metric.name == MEMORY_READ.name]
        # The points of the sweep have a figure of their own.
        self._reads = [row for row in everything if scope_of(row) != "sweep"]
        self._swept = everything
        self._experts = [row for row in index.samples if row.metric.name == EXPERT_READ.name]
        self.items: tuple[Figure | Absent, ...] = (
            self._matrix(),
            self._rates(),
            self._rounds(),
            self._pages(),
            self._threads(),
            self._expert_reads(),
            self._residency(),
        )

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _missing(self, title: str, prefix: str) -> Absent:
        """The line for a figure without data: state and reason of the first case that should have it."""
        for outcome in self._record.outcomes:
            if outcome.case.startswith(prefix):
                reason = outcome.reason or next((m.reason for m in outcome.metrics if m.reason), None)
                link = self._index.case_link(outcome.probe, outcome.case)
                return Absent(title, words.STATES[outcome.state], reason or "no figure was stored", link)
        for left in self._record.run.left_out:
            if left.case.startswith(prefix):
                link = self._index.gaps.get(f"{left.probe}/{left.case}")
                return Absent(title, "not run", left.reason, link)
        return Absent(title, "not run", "no case of this run measures it", None)

    # --- NUMA ------------------------------------------------------------------------------------------

    def _matrix(self) -> Figure | Absent:
        cells = {
            (row.metric.labels.get("cpu_node"), row.metric.labels.get("memory_node")): row
            for row in reversed(self._reads)
            if row.metric.labels.get("scope") == "node" and not row.outcome.case.startswith("read.4k")
        }
        cells = {key: row for key, row in cells.items() if None not in key}
        seen = {key: row for key, row in cells.items() if usable(row.metric)}
        title = "Bandwidth from every node to every node"
        if not seen:
            return self._missing(title, "read.node")
        rates = {key: row.metric.median or 0.0 for key, row in seen.items()}
        nodes = {node.id: node for node in self._record.inventory.numa.nodes}
        readers = sorted({int(str(c)) for c, _ in cells} | {n.id for n in nodes.values() if n.cpus})
        memories = sorted({int(str(m)) for _, m in cells} | set(nodes))
        low, high = min(rates.values()), max(rates.values())

        def cell(cpu: int, memory: int) -> Cell:
            row, local = cells.get((cpu, memory)), cpu == memory
            if row is not None and (cpu, memory) in rates:
                value = rates[cpu, memory]
                ink = 24 if high == low else round(6 + 36 * (value - low) / (high - low))
                mark = " (unstable)" if row.metric.state is State.UNSTABLE else ""
                return Cell(words.rate(value) + mark, row.link, ink, local)
            node = nodes.get(memory)
            if node is not None and node.memory_bytes == 0:
                return Cell("no memory", None, None, local)
            gap = self._index.case_link("memory", f"read.node{cpu}.node{memory}")
            state = words.STATES[row.metric.state] if row is not None else "not run"
            return Cell(state, gap, None, local)

        parts = split_columns(memories, lambda node: self._socket(node))
        matrices = tuple(
            Matrix(
                caption=f"Bandwidth, GB/s{'' if len(parts) == 1 else f', part {n} of {len(parts)}'}",
                groups=runs_of([self._place(node) for node in part]),
                columns=tuple(f"node {node}" for node in part),
                rows=tuple(
                    (f"node {cpu}", self._place(cpu, ""), tuple(cell(cpu, memory) for memory in part))
                    for cpu in readers
                ),
                big=len(readers) > 4 or len(part) > 4,
            )
            for n, part in enumerate(parts, 1)
        )
        ordered = [row for row in self._reads if row in seen.values()]
        proofs = proof_line(ordered)
        return Figure(
            anchor="fig-numa",
            number=self._number(),
            title=numa_title(rates),
            subtitle=(
                "All physical cores of one node read from the memory of one node; framed cells are local; "
                "more ink is more bandwidth; median of the rounds"
            ),
            source=f"{conditions(ordered[0].metric)}. {proofs}",
            links=ends(ordered),
            matrices=matrices,
        )

    def _socket(self, node: int) -> int | None:
        cpu = self._record.inventory.cpu
        found = next((n for n in self._record.inventory.numa.nodes if n.id == node), None)
        sockets = {cpu.package_of[c] for c in found.cpus if c in cpu.package_of} if found else set()
        return sockets.pop() if len(sockets) == 1 else None

    def _place(self, node: int, prefix: str = "memory of ") -> str:
        socket = self._socket(node)
        if socket is None:
            return f"{prefix}nodes without a socket" if prefix else "socket not known"
        return f"{prefix}socket {socket}"

    # --- rates -----------------------------------------------------------------------------------------

    def _rates(self) -> Figure | Absent:
        wanted = [row for row in self._reads if usable(row.metric) and is_local(row)]
        title = "One core, one node, the whole machine"
        if not wanted:
            return self._missing(title, "read.")
        paper = self._record.inventory.memory.theoretical_bytes_per_s
        top = max(
            [highest(row.metric) for row in wanted]
            + ([paper] if paper and any(scope_of(r) == "machine" for r in wanted) else [])
        )
        place = charts.scale(0, top, end=92)
        order = {"core": 0, "node": 1, "machine": 2}
        wanted.sort(key=lambda row: order.get(scope_of(row), 3))
        bars = []
        for row in wanted:
            metric = row.metric
            parts = [charts.band(0, place(metric.median or 0), "25%", "50%", "f-data")]
            if metric.interval:
                parts.append(charts.whisker(place(metric.interval[0]), place(metric.interval[1]), "wi"))
            if paper and scope_of(row) == "machine":
                parts.append(charts.vertical(place(paper), "12%", "88%", "target"))
            bars.append(self._row(row, parts))
        best = {
            scope: max((r.metric.median or 0 for r in wanted if scope_of(r) == scope), default=None)
            for scope in order
        }
        tail = "; upright stroke: paper rate of the machine" if paper and best["machine"] else ""
        return Figure(
            anchor="fig-rates",
            number=self._number(),
            title=rates_title(best),
            subtitle=f"Read bandwidth in GB/s from 0; bar: median; whisker: 95 % interval over rounds{tail}",
            source=f"{conditions(wanted[-1].metric)}. {proof_line(wanted)}",
            links=ends(wanted),
            head=("Who reads", "Read bandwidth", "GB/s", "95 % interval", "Threads", "State"),
            bars=tuple(bars),
        )

    def _row(self, row: SampleRow, parts: Sequence[Markup]) -> BarRow:
        metric = row.metric
        return BarRow(
            title=words.capital(words.reading(row.metric.labels) or row.outcome.title or row.outcome.case),
            sub="",
            chart=charts.cell(parts),
            figures=(
                words.rate(metric.median),
                range_of(metric),
                threads_of(metric),
            ),
            link=row.link,
            state=words.STATES[metric.state],
        )

    def _rounds(self) -> Figure | Absent:
        rows = [row for row in self._reads if usable(row.metric) and row.metric.samples]
        title = "Scatter of the rounds"
        if not rows:
            return self._missing(title, "read.")
        left_out = ""
        if len(rows) > MOST_ROWS:
            rows = sorted(rows, key=lambda r: (is_local(r), spread(r.metric)), reverse=True)[:MOST_ROWS]
            left_out = (
                f" The {MOST_ROWS} of {len(self._reads)} cases shown are the local ones and those that "
                "scatter most; the others stand under Samples."
            )
        reach = max(max(spread(row.metric), half_width(row.metric)) for row in rows)
        reach = max(0.01, reach * 1.08)
        place = charts.scale(1 - reach, 1 + reach, start=2, end=98)
        step = round_step(reach)
        marks = [n * step for n in range(-int(reach / step), int(reach / step) + 1)]
        bars = []
        for row in rows:
            metric, median = row.metric, row.metric.median or 1.0
            parts = [
                charts.vertical(place(1 + mark), 0, "100%", "g" if abs(mark) > 1e-9 else "one")
                for mark in marks
            ]
            if metric.interval:
                low, high = (edge / median for edge in metric.interval)
                parts.append(charts.band(place(low), place(high), "30%", "40%", "f-data2"))
            parts += [
                charts.dot(place(value / median), "50%", "f-data") for _, value in round_medians(metric)
            ]
            bars.append(
                BarRow(
                    title=words.capital(
                        words.reading(row.metric.labels) or row.outcome.title or row.outcome.case
                    ),
                    sub="",
                    chart=charts.cell(parts),
                    figures=(
                        words.rate(metric.median),
                        f"±{NBSP}{units.significant(spread(metric) * 100, 2)}{NBSP}%",
                        str(len(round_medians(metric))),
                    ),
                    link=row.link,
                    state=words.STATES[metric.state],
                )
            )
        axis = charts.cell(
            [
                charts.text(
                    place(1 + mark),
                    18,
                    "median" if abs(mark) < 1e-9 else signed(mark),
                    style="tb" if abs(mark) < 1e-9 else "",
                    anchor="middle",
                )
                for mark in marks
            ]
        )
        widest = max(rows, key=lambda row: spread(row.metric))
        return Figure(
            anchor="fig-rounds",
            number=self._number(),
            title=(
                f"Rounds scatter by up to ±{NBSP}{units.significant(spread(widest.metric) * 100, 2)}{NBSP}% "
                f"({words.reading(widest.metric.labels) or widest.outcome.title or widest.outcome.case})"
            ),
            subtitle=(
                "Dot: median of one round in a process of its own, relative to the median of all; "
                "band: 95 % interval over rounds. The axis does not start at 0"
            ),
            source=f"A check compares the band with its bound.{left_out}",
            links=ends(rows),
            head=("Case", "Rounds against their median", "GB/s", "Scatter", "Rounds", "State"),
            axis=axis,
            bars=tuple(bars),
        )

    def _pages(self) -> Figure | Absent:
        small = [row for row in self._reads if row.outcome.case.startswith("read.4k.") and usable(row.metric)]
        if not small:
            return self._missing("Small against large pages", "read.4k.")
        large = {
            row.metric.labels.get("cpu_node"): row
            for row in self._reads
            if scope_of(row) == "node" and is_local(row) and usable(row.metric)
        }
        pairs = [(row, large.get(row.metric.labels.get("cpu_node"))) for row in small]
        top = max(highest(r.metric) for pair in pairs for r in pair if r is not None)
        place = charts.scale(0, top, end=92)
        bars, ratios = [], []
        for row, other in pairs:
            for shown in (row, other):
                if shown is None:
                    continue
                metric = shown.metric
                parts = [
                    charts.band(
                        0, place(metric.median or 0), "25%", "50%", "f-data2" if shown is row else "f-data"
                    )
                ]
                if metric.interval:
                    parts.append(charts.whisker(place(metric.interval[0]), place(metric.interval[1]), "wi"))
                ratio = "–"
                if shown is row and other is not None and other.metric.median:
                    ratios.append((metric.median or 0) / other.metric.median)
                    ratio = units.significant(ratios[-1])
                bars.append(
                    BarRow(
                        title=f"node {metric.labels.get('cpu_node')}, "
                        f"pages of {words.size(metric.labels.get('page_size'))}",
                        sub="",
                        chart=charts.cell(parts),
                        figures=(words.rate(metric.median), range_of(metric), ratio),
                        link=shown.link,
                        state=words.STATES[metric.state],
                    )
                )
        title = "Read bandwidth with pages of 4 KiB"
        if ratios:
            loss = (1 - min(ratios)) * 100
            title = (
                f"Pages of 4{NBSP}KiB keep {units.significant(min(ratios) * 100, 2)}{NBSP}% of the bandwidth"
                if loss >= 0
                else "Small pages cost no bandwidth here"
            )
        return Figure(
            anchor="fig-pages",
            number=self._number(),
            title=title,
            subtitle="Local read bandwidth of a node in GB/s from 0, by the page size really obtained",
            source=proof_line([row for row, _ in pairs]),
            links=ends(small),
            head=("Node and page size", "Read bandwidth", "GB/s", "95 % interval", "Of large pages", "State"),
            bars=tuple(bars),
        )

    def _threads(self) -> Figure | Absent:
        figure = thread_figures.sweep(self._swept, self._next)
        self._next += figure is not None
        return figure or self._missing("Bandwidth by the number of threads", "sweep.")

    def _expert_reads(self) -> Figure | Absent:
        figure = thread_figures.experts(self._experts, self._reads, self._next)
        self._next += figure is not None
        return figure or self._missing("Reading routed experts in random order", "experts.")

    def _residency(self) -> Figure | Absent:
        figure = residency_figure.residency(self._record, self._index, self._next)
        self._next += figure is not None
        return figure or self._missing("Holding the image of the model in memory", "residency.")
