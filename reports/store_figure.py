"""The kernels that store beside reading: what they count, what the bus carries, and what of the paper rate that is."""

from __future__ import annotations

from collections.abc import Sequence

from k3gate import units
from k3gate.records import Inventory, Metric
from k3gate.reports import charts, words
from k3gate.reports.evidence import SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import (
    beside_paper,
    doubted,
    ends,
    highest,
    is_local,
    node_of,
    proof_line,
    scope_of,
    usable,
)
from k3gate.reports.thread_figures import rate_bar
from k3gate.units import NBSP

_ORDER = ("read", "write", "write_nt", "copy", "copy_nt", "triad", "triad_nt")
_STORES = {"cached": "ordinary stores", "non_temporal": "stores past the caches", "none": "no stores"}


def stores(
    rows: Sequence[SampleRow], reads: Sequence[SampleRow], inventory: Inventory, number: int
) -> Figure | None:
    """A row for each kernel of each node, reading first; None where no kernel that stores was measured."""
    rows = [row for row in rows if usable(row.metric)]
    if not rows:
        return None
    nodes = {row.metric.labels.get("cpu_node") for row in rows}
    shown = [
        *rows,
        *(
            row
            for row in reads
            if usable(row.metric)
            and scope_of(row) == "node"
            and is_local(row)
            and row.metric.labels.get("cpu_node") in nodes
        ),
    ]
    shown.sort(key=lambda row: (node_of(row), _place(row.metric)))
    place = charts.scale(0, max(highest(row.metric) * _carried(row.metric) for row in shown), end=92)
    return Figure(
        anchor="fig-stores",
        number=number,
        title=_title(rows),
        subtitle="Bandwidth of a node's own memory in GB/s from 0; dark: the bytes that the kernel counts; pale: what "
        "the bus carries by the kernel's model, in which an ordinary store reads each line before it writes it",
        source=f"Reading is what decode rests on. {proof_line(rows)}",
        links=ends(rows),
        head=(
            "Node and kernel",
            "Bandwidth",
            "GB/s counted",
            "GB/s on the bus, modelled",
            "GB/s on paper",
            "Of paper, modelled",
            "State",
        ),
        bars=tuple(_bar(row, place, inventory) for row in shown),
    )


def _place(metric: Metric) -> int:
    kernel = str(metric.labels.get("kernel"))
    return _ORDER.index(kernel) if kernel in _ORDER else len(_ORDER)


def _carried(metric: Metric) -> float:
    """Bytes on the bus for each byte counted, by the kernel's model."""
    counted, bus = (metric.labels.get(f"{kind}_bytes_per_word") for kind in ("counted", "bus"))
    return bus / counted if isinstance(counted, int) and isinstance(bus, int) and counted else 1.0


def _bar(row: SampleRow, place: charts.Scale, inventory: Inventory) -> BarRow:
    metric = row.metric
    labels = metric.labels
    carried = (metric.median or 0.0) * _carried(metric)
    parts = [charts.band(0, place(carried), "25%", "50%", "f-data2"), *rate_bar(metric, place, "f-data")]
    kernel = str(labels.get("kernel")).removesuffix("_nt")
    stores_ = "" if kernel == "read" else f", {_STORES.get(str(labels.get('stores')), 'stores not told')}"
    return BarRow(
        title=f"Node {labels.get('cpu_node')}, {kernel}{stores_}",
        sub="",
        chart=charts.cell(parts),
        figures=(words.rate(metric.median), words.rate(carried), *beside_paper(metric, inventory, carried)),
        link=row.link,
        state=words.STATES[metric.state],
    )


def _title(rows: Sequence[SampleRow]) -> str:
    """How much of streaming stores' copy rate ordinary stores keep, where both were measured on a node."""
    rates = {(row.metric.labels.get("cpu_node"), row.metric.labels.get("kernel")): row for row in rows}
    pairs = [
        (row, streamed)
        for (node, kernel), row in rates.items()
        if kernel == "copy" and (streamed := rates.get((node, "copy_nt"))) is not None
    ]
    kept = [(row.metric.median or 0) / (streamed.metric.median or 1) for row, streamed in pairs]
    if not kept:
        return "Bandwidth of the kernels that store"
    least = units.significant(min(kept) * 100, 2)
    title = f"A copy with ordinary stores keeps {least}{NBSP}% of the rate of one past the caches"
    return doubted(title, [row for pair in pairs for row in pair])
