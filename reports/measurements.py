"""Figures from the metrics of a run: the NUMA matrix, rates, scatter of the rounds, page sizes, residency."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from markupsafe import Markup

from k3gate import metrics, units
from k3gate.analysis.expectation import Expectation
from k3gate.analysis.loading import Loading
from k3gate.records import MetricDeclaration, RunRecord
from k3gate.reports import (
    charts,
    file_figures,
    isa_figure,
    kernel_figures,
    latency_figures,
    matrix,
    network_figures,
    pcie_figures,
    replay_figures,
    residency_figure,
    soak_figures,
    storage_figures,
    store_figure,
    thread_figures,
    timelines,
    words,
)
from k3gate.reports.evidence import Index, SampleRow
from k3gate.reports.figures import Absent, BarRow, Figure
from k3gate.reports.readings import (
    beside_paper,
    conditions,
    confounders,
    doubted,
    ends,
    half_width,
    highest,
    is_local,
    node_of,
    proof_line,
    range_of,
    rates_title,
    round_medians,
    round_step,
    scope_of,
    signed,
    spread,
    usable,
)
from k3gate.units import NBSP

MOST_ROWS = 48
_WIDEST = 2.0
"""Of the scatter that is drawn to scale, as a share of the median."""
_RATES = (
    *("fig-numa", "fig-rates", "fig-pages", "fig-sweep", "fig-experts", "fig-stores"),
    *("fig-roofline", "fig-isa"),
)
"""Figures of bandwidth, beside which stands what of the machine may have lowered it."""


class Measurements:
    """All figures of the measurements section; numbers follow `first`."""

    def __init__(
        self,
        record: RunRecord,
        index: Index,
        first: int,
        expected: Expectation | None = None,
        loading: Loading | None = None,
    ) -> None:
        self._record = record
        self._expected = expected
        self._loading = loading
        self._index = index
        self._next = first
        everything = self._of(metrics.MEMORY_READ)
        # The points of the sweep have a figure of their own.
        self._reads = [row for row in everything if scope_of(row) != "sweep"]
        self._swept = everything
        self._latencies = self._of(metrics.LATENCY_IDLE)
        self._loaded = self._of(metrics.LATENCY_LOADED, metrics.UNDER_LOAD)
        self._experts = self._of(metrics.EXPERT_READ)
        self._stored = self._of(metrics.MEMORY_WRITE, metrics.MEMORY_COPY, metrics.MEMORY_TRIAD)
        self._files = [row for row in self._index.samples if row.metric.name in file_figures.NAMES]
        items: tuple[Figure | Absent, ...] = (
            self._matrix(self._reads, matrix.BANDWIDTH),
            self._matrix(self._latencies, matrix.LATENCY),
            self._rates(),
            self._rounds(),
            self._pages(),
            self._threads(),
            self._expert_reads(),
            self._stores(),
            self._staircase(),
            self._under_load(),
            *self._kernels(),
            *self._replayed(),
            self._residency(),
            *self._mapped_files(),
            *self._soak(),
            *self._storage(),
            *self._pcie(),
            *self._network(),
            *self._timelines(),
        )
        spoiled = confounders(record)
        self.items = tuple(
            attrs.evolve(item, source=f"{item.source} {spoiled}")
            if isinstance(item, Figure) and item.anchor in _RATES
            else item
            for item in items
        )

    def _of(self, *declarations: MetricDeclaration) -> list[SampleRow]:
        names = {one.name for one in declarations}
        return [row for row in self._index.samples if row.metric.name in names]

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _missing(self, title: str, prefix: str, of: str = "memory") -> Absent:
        """The line for a figure without data: state and reason of the first case of that probe that should have it."""
        return self._absent(title, lambda probe, case: probe == of and case.startswith(prefix))

    def _absent(self, title: str, fits: Callable[[str, str], bool]) -> Absent:
        """The same of the first case, by probe and name, that fits."""
        for outcome in self._record.outcomes:
            if fits(outcome.probe, outcome.case):
                reason = outcome.reason or next((m.reason for m in outcome.metrics if m.reason), None)
                link = self._index.case_link(outcome.probe, outcome.case)
                return Absent(title, words.STATES[outcome.state], reason or "no figure was stored", link)
        for left in self._record.run.left_out:
            if fits(left.probe, left.case):
                link = self._index.gaps.get(f"{left.probe}/{left.case}")
                return Absent(title, "not run", left.reason, link)
        return Absent(title, "not run", "no case of this run measures it", None)

    def _soak(self) -> list[Figure | Absent]:
        found = soak_figures.figures(self._record, self._index, self._next)
        self._next += len(found)
        return [*found] if found else [self._missing("Rate under lasting load", "soak", "thermal")]

    def _timelines(self) -> list[Figure]:
        found = timelines.figures(self._record, self._next)
        self._next += len(found)
        return found

    # --- NUMA ------------------------------------------------------------------------------------------

    def _matrix(self, rows: Sequence[SampleRow], kind: matrix.Kind) -> Figure | Absent:
        figure = matrix.figure(rows, kind, self._record, self._index, self._next)
        self._next += figure is not None
        return figure or self._missing(kind.absent, f"{kind.case}.node")

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
        order = {"core": 0, "node": 1, "socket": 2, "machine": 3}
        wanted.sort(key=lambda row: (order.get(scope_of(row), len(order)), node_of(row)))
        bars = []
        for row in wanted:
            metric = row.metric
            parts = thread_figures.rate_bar(metric, place, "f-data")
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
            title=doubted(rates_title(best), wanted),
            subtitle="Read bandwidth in GB/s from 0, beside the paper rate of the memory that is read (a node's and a "
            f"socket's: their even share); bar: median; whisker: 95 % interval over rounds{tail}",
            source=f"{conditions(wanted[-1].metric)}. {proof_line(wanted)}",
            links=ends(wanted),
            head=("Who reads", "Read bandwidth", "GB/s", "95 % interval", "On paper", "Of paper", "State"),
            bars=tuple(bars),
        )

    def _row(self, row: SampleRow, parts: Sequence[Markup]) -> BarRow:
        metric = row.metric
        who = words.capital(words.reading(row.metric.labels) or row.outcome.title or row.outcome.case)
        threads = metric.labels.get("threads")
        many = words.count(threads, "thread") if isinstance(threads, int) else "threads unknown"
        return BarRow(
            title=f"{who}, {many}",
            sub="",
            chart=charts.cell(parts),
            figures=(
                words.rate(metric.median),
                range_of(metric),
                *beside_paper(metric, self._record.inventory),
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
        # What a stranger's bundle says may be a median that its samples never had: held at the edges.
        reach = min(_WIDEST, max(0.01, reach * 1.08))
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

        def named(row: SampleRow, first: bool) -> str:
            labels = row.metric.labels
            return f"node {labels.get('cpu_node')}, pages of {words.size(labels.get('page_size'))}"

        bars, ratios = thread_figures.beside(pairs, ("f-data2", "f-data"), named)
        title = "Read bandwidth with pages of 4 KiB"
        if ratios:
            loss = (1 - min(ratios)) * 100
            title = (
                f"Pages of 4{NBSP}KiB keep {units.significant(min(ratios) * 100, 2)}{NBSP}% of the bandwidth"
                if loss >= 0
                else "Small pages cost no bandwidth here"
            )
            title = doubted(title, [row for pair in pairs for row in pair])
        return Figure(
            anchor="fig-pages",
            number=self._number(),
            title=title,
            subtitle="Local read bandwidth of a node in GB/s from 0, by the page size really obtained",
            source=proof_line([row for row, _ in pairs]),
            links=ends(small),
            head=("Node and page size", "Read bandwidth", "GB/s", "95 % interval", "Of large pages", "State"),
            bars=bars,
        )

    def _threads(self) -> Figure | Absent:
        figure = thread_figures.sweep(self._swept, self._next)
        self._next += figure is not None
        return figure or self._missing("Bandwidth by the number of threads", "sweep.")

    def _expert_reads(self) -> Figure | Absent:
        figure = thread_figures.experts(self._experts, self._reads, self._next)
        self._next += figure is not None
        return figure or self._missing("Reading routed experts in random order", "experts.")

    def _stores(self) -> Figure | Absent:
        figure = store_figure.stores(self._stored, self._reads, self._record.inventory, self._next)
        self._next += figure is not None
        return figure or self._missing("Bandwidth of the kernels that store", "copy")

    def _staircase(self) -> Figure | Absent:
        figure = latency_figures.staircase(self._latencies, self._record.inventory.cpu, self._next)
        self._next += figure is not None
        return figure or self._missing("Latency by size", "staircase.")

    def _under_load(self) -> Figure | Absent:
        figure = latency_figures.loaded(self._loaded, self._next)
        self._next += figure is not None
        return figure or self._missing("Latency under load", "loaded.")

    def _kernels(self) -> tuple[Figure | Absent, ...]:
        """Nothing where the run knows no products at all, as those of earlier versions."""
        run = self._record.run
        known = {one.probe for one in run.plan} | {one.probe for one in run.left_out}
        if "gemm" not in known | {one.probe for one in self._record.outcomes}:
            return ()
        found: list[Figure | Absent] = []
        for draw, title, prefix in (
            (kernel_figures.roofline, "Roofline", "expert."),
            (kernel_figures.crossing, "Where products turn from memory to arithmetic", "expert."),
            (isa_figure.by_isa, "Arithmetic by instruction set", "peak."),
        ):
            figure = draw(self._record, self._index, self._next)
            self._next += figure is not None
            why = kernel_figures.lacking(self._record) if prefix == "expert." else None
            absent = Absent(title, "not known", why, None) if why else self._missing(title, prefix, "gemm")
            found.append(figure or absent)
        # Of a library that is not installed nothing is missing.
        figure = kernel_figures.beside(self._record, self._index, self._next)
        self._next += figure is not None
        return (*found, figure) if figure is not None else tuple(found)

    def _replayed(self) -> tuple[Figure | Absent, ...]:
        """Nothing where the run knows no replay at all, as those of earlier versions."""
        if not self.replayed:
            return ()
        found: list[Figure | Absent] = []
        draw: Callable[[int], Figure | None]
        for title, case, draw in (
            ("A token's time", "base", lambda n: replay_figures.token(self._expected, self._index, n)),
            ("One factor at a time", "base", lambda n: replay_figures.factors(self._record, self._index, n)),
            (
                "The prediction held against itself",
                "deep",
                lambda n: replay_figures.against_itself(self._record, self._index, n),
            ),
        ):
            figure = draw(self._next)
            self._next += figure is not None
            found.append(figure or self._missing_replay(title, case))
        return tuple(found)

    @property
    def replayed(self) -> bool:
        """Whether the run knows the replay, so that its figures or what they lack are told here."""
        run = self._record.run
        known = {one.probe for one in run.plan} | {one.probe for one in run.left_out}
        return replay_figures.PROBE in known | {one.probe for one in self._record.outcomes}

    def _missing_replay(self, title: str, case: str) -> Absent:
        """As `_missing`, of this probe alone; where all of it was left out, or the case ran, there is more to say."""
        probe = replay_figures.PROBE
        for outcome in self._record.outcomes:
            if (outcome.probe, outcome.case) == (probe, case):
                why = outcome.reason or next((one.reason for one in outcome.metrics if one.reason), None)
                reason = (
                    why
                    or "what was replayed says nothing of this target, or its parts do not add up to a step"
                )
                link = self._index.case_link(probe, case)
                return Absent(title, words.STATES[outcome.state] if why else "not known", reason, link)
        for left in self._record.run.left_out:
            if left.probe == probe and left.case in (case, "*"):
                return Absent(title, "not run", left.reason, self._index.gaps.get(f"{probe}/{left.case}"))
        return Absent(title, "not run", "no case of this run measures it", None)

    def _mapped_files(self) -> tuple[Figure | Absent, ...]:
        """Nothing where the user named no file."""
        figure = file_figures.files(self._files, self._next)
        self._next += figure is not None
        if figure is not None:
            return (figure,)
        run = self._record.run
        named = [case.name for case in run.plan] + [left.case for left in run.left_out]
        asked = any(name.startswith("file") for name in named)
        return (self._missing("Files read as memory", "file"),) if asked else ()

    def _storage(self) -> tuple[Figure | Absent, ...]:
        """Nothing where the run knows no storage at all, as those of earlier versions."""
        if not storage_figures.known(self._record):
            return ()
        found: list[Figure | Absent] = []
        draw: Callable[[int], Figure | None]
        for title, case, draw in (
            ("Storage", "direct", lambda n: storage_figures.sweep(self._index, n)),
            (
                "How long loading takes",
                "direct",
                lambda n: storage_figures.load(self._loading, self._index, n),
            ),
            (
                "Storage in the course of a long read",
                "course",
                lambda n: storage_figures.course(self._index, n),
            ),
        ):
            figure = draw(self._next)
            self._next += figure is not None
            found.append(figure or self._missing_storage(title, case))
        return tuple(found)

    def _missing_storage(self, title: str, case: str) -> Absent:
        """As `_missing`, of this probe alone, whose cases carry the number of their place."""
        kinds = (case, "refused", "*")
        return self._absent(
            title,
            lambda probe, name: (
                probe == storage_figures.PROBE and (name == "*" or name.partition(".")[2].startswith(kinds))
            ),
        )

    def _network(self) -> tuple[Figure | Absent, ...]:
        """Nothing where no peer was named, which stands under what is left out."""
        figure = network_figures.network(self._index, self._next)
        self._next += figure is not None
        if figure is not None:
            return (figure,)
        asked = any(case.probe == network_figures.PROBE for case in self._record.run.plan)
        return (self._missing("The network to the peer", "to_peer.", network_figures.PROBE),) if asked else ()

    @property
    def copied(self) -> bool:
        """Whether copies to GPUs were planned, so that their figures or what they lack are told here."""
        return any(case.probe == pcie_figures.PROBE for case in self._record.run.plan)

    def _pcie(self) -> tuple[Figure | Absent, ...]:
        found: list[Figure | Absent] = []
        for draw in (pcie_figures.matrix, pcie_figures.details):
            figure = draw(self._index, self._next)
            self._next += figure is not None
            found += [figure] if figure is not None else []
        if found or not self.copied:
            return tuple(found)
        return (
            self._absent(
                "Copies between memory and GPUs",
                lambda probe, case: probe == pcie_figures.PROBE and case.startswith(("copy.", "*")),
            ),
        )

    def _residency(self) -> Figure | Absent:
        figure = residency_figure.residency(self._record, self._index, self._next)
        self._next += figure is not None
        return figure or self._missing("Holding the image of the model in memory", "residency.")
