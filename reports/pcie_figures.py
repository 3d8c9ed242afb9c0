"""Copies between host memory and GPUs: the matrix of nodes and GPUs, and what else the probe tells of the way there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from k3gate.metrics import (
    PCIE_COPY,
    PCIE_DEVICE,
    PCIE_NVBANDWIDTH,
    PCIE_PEER,
    PCIE_SHARE,
    PCIE_TOKEN,
    PCIE_TRIP,
)
from k3gate.probes.pcie_plan import short
from k3gate.records import Labels, Metric, State
from k3gate.reports import charts, thread_figures, words
from k3gate.reports.evidence import Index, SampleRow
from k3gate.reports.figures import BarRow, Cell, Figure, Matrix
from k3gate.reports.readings import (
    doubted,
    ends,
    highest,
    microseconds_of,
    proof_line,
    range_of,
    split_columns,
    usable,
)
from k3gate.units import NBSP, significant

PROBE = "pcie"
_CELLS = ("cell", "both")
_WAYS = (
    ("copy", "host_to_device", False, "Host to device, GB/s"),
    ("copy", "device_to_host", False, "Device to host, GB/s"),
    ("both", "host_to_device", True, "Host to device beside the other way, GB/s"),
    ("both", "device_to_host", True, "Device to host beside the other way, GB/s"),
)
_DIRECTIONS = {"host_to_device": "to", "device_to_host": "from"}
Place = tuple[int, str]


def matrix(index: Index, number: int) -> Figure | None:
    """Every memory node by every GPU, each way; None where no cell was measured."""
    rows = [
        row
        for row in index.samples
        if row.metric.name == PCIE_COPY.name and row.metric.labels.get("scope") in _CELLS
    ]
    ways = [(kind, caption, _cells(rows, way, both)) for kind, way, both, caption in _WAYS]
    seen = [row for _, _, cells in ways for row in cells.values() if usable(row.metric)]
    if not seen:
        return None
    gpus = sorted({str(row.metric.labels["device"]) for row in rows})
    nodes = sorted({int(str(row.metric.labels["memory_node"])) for row in rows})
    values = [row.metric.median or 0.0 for row in seen]
    matrices = [
        _matrix(kind, caption, cells, nodes, [gpus[n] for n in part], (min(values), max(values)), index)
        for kind, caption, cells in ways
        if cells
        for part in split_columns(range(len(gpus)), lambda _: None)
    ]
    return Figure(
        anchor="fig-pcie",
        number=number,
        title=doubted(_title(ways[0][2], ways[1][2]), seen),
        subtitle="Copies of locked memory, timed by the GPU, launches left out; framed cells are nearest to their GPU; "
        "more ink is a higher rate; median of the rounds",
        source=proof_line(rows),
        links=ends(seen),
        matrices=tuple(matrices),
    )


def _cells(rows: Sequence[SampleRow], direction: str, together: bool) -> dict[Place, SampleRow]:
    found = {}
    for row in rows:
        labels = row.metric.labels
        node, device = labels.get("memory_node"), labels.get("device")
        if (labels.get("direction"), labels.get("together")) != (direction, together):
            continue
        if isinstance(node, int) and isinstance(device, str):
            found[node, device] = row
    return found


def _matrix(
    kind: str,
    caption: str,
    cells: Mapping[Place, SampleRow],
    nodes: Sequence[int],
    gpus: Sequence[str],
    edges: tuple[float, float],
    index: Index,
) -> Matrix:
    low, high = edges

    def cell(node: int, gpu: str) -> Cell:
        row = cells.get((node, gpu))
        near = row is not None and row.metric.labels.get("placement") == "near"
        if row is None:
            return Cell("not run", index.case_link(PROBE, f"{kind}.node{node}.{short(gpu)}"), None, near)
        if not usable(row.metric):
            return Cell(words.STATES[row.metric.state], row.link, None, near)
        value = row.metric.median or 0.0
        ink = 24 if high == low else round(6 + 36 * (value - low) / (high - low))
        mark = " (unstable)" if row.metric.state is State.UNSTABLE else ""
        return Cell(words.rate(value) + mark, row.link, ink, near)

    return Matrix(
        caption=caption,
        groups=(("GPU at", len(gpus)),),
        columns=tuple(short(gpu) for gpu in gpus),
        rows=tuple((f"node {node}", "", tuple(cell(node, gpu) for gpu in gpus)) for node in nodes),
        big=len(gpus) > 4 or len(nodes) > 4,
        corner="Memory of",
    )


def _title(*ways: Mapping[Place, SampleRow]) -> str:
    """What the worst far memory costs, and where what a GPU reads must lie; else the slowest GPU's own rate."""
    worst: tuple[float, int, str, int] | None = None
    best: dict[str, list[float]] = {}
    for cells in ways:
        for gpu in {gpu for _, gpu in cells}:
            own = {
                node: row.metric.median or 0.0
                for (node, one), row in cells.items()
                if one == gpu and usable(row.metric)
            }
            if not own:
                continue
            fast, slow = max(own, key=lambda node: own[node]), min(own, key=lambda node: own[node])
            best.setdefault(gpu, []).append(own[fast])
            ratio = own[slow] / own[fast]
            if len(own) > 1 and (worst is None or ratio < worst[0]):
                worst = ratio, slow, gpu, fast
    if worst is not None and worst[0] < 0.9:
        ratio, slow, gpu, fast = worst
        return (
            f"GPU {short(gpu)} copies memory of node {slow} at {significant(ratio, 2)} of the rate of node {fast}: "
            f"what it reads must lie on node {fast}"
        )
    if not best:
        return "Copies between memory and GPUs"
    lowest = min(min(rates) for rates in best.values())
    tail = "" if worst is None else "; from which node costs little"
    many = "The GPU copies" if len(best) == 1 else "Every GPU copies"
    return f"{many} {words.value(lowest, 'B/s')} or more each way{tail}"


def details(index: Index, number: int) -> Figure | None:
    """A bar for all that the matrix does not hold; None where there is nothing."""
    rows = [row for row in index.samples if row.outcome.probe == PROBE and usable(row.metric)]
    rates = [row for row in rows if _is_rate(row.metric)]
    trips = [row for row in rows if row.metric.name in (PCIE_TRIP.name, PCIE_TOKEN.name)]
    if not rates and not trips:
        return None
    shares = {_key(row): row.metric for row in rows if row.metric.name == PCIE_SHARE.name}
    bars = []
    for some, style in ((rates, "f-data"), (trips, "f-warm")):
        for inside in (False, True):
            # The memory of a GPU is a hundred times as fast as the way to it.
            own = [row for row in some if (row.metric.name == PCIE_DEVICE.name) is inside]
            if own:
                place = charts.scale(0, max(highest(row.metric) for row in own), end=92)
                bars += [_bar(row, place, style, shares) for row in own]
    return Figure(
        anchor="fig-pcie-details",
        number=number,
        title=doubted(_trip_title(trips, rates), trips[:1]),
        subtitle="Rates in GB/s and round trips in µs, each from 0, a GPU's own memory to a scale of its own; bar: "
        "median; whisker: 95 % interval over rounds",
        source=proof_line([*rates, *trips]),
        links=ends([*rates, *trips]),
        head=("What is copied", "Reading", "GB/s or µs", "95 % interval", "Of the link", "State"),
        bars=tuple(bars),
    )


def _is_rate(metric: Metric) -> bool:
    """Of the sizes, those that a reader can tell apart: the smallest, 1 MiB and the largest stand for the rest."""
    if metric.name in (PCIE_PEER.name, PCIE_DEVICE.name, PCIE_NVBANDWIDTH.name):
        return True
    if metric.name != PCIE_COPY.name or metric.labels.get("scope") in _CELLS:
        return False
    size = metric.labels.get("bytes")
    return metric.labels.get("scope") in ("all", "loaded") or size in (4 << 10, 1 << 20, 256 << 20)


def _key(row: SampleRow) -> tuple[str, str, str]:
    labels = row.metric.labels
    return row.outcome.case, str(labels.get("direction")), str(labels.get("bytes"))


def _trip_title(trips: Sequence[SampleRow], rates: Sequence[SampleRow]) -> str:
    token = next(
        (
            row.metric
            for row in trips
            if row.metric.name == PCIE_TOKEN.name and row.metric.labels.get("way") == "queued"
        ),
        None,
    )
    if token is not None and token.median:
        return (
            f"A token's activations need {words.microseconds(token.median)}{NBSP}µs to go to memory and back "
            f"{token.labels.get('trips')} times"
        )
    return f"{words.capital(words.count(len(rates), 'rate'))} beside the matrix"


def _bar(
    row: SampleRow, place: charts.Scale, style: str, shares: Mapping[tuple[str, str, str], Metric]
) -> BarRow:
    metric = row.metric
    slow = style == "f-warm"
    figure, spread = microseconds_of(metric) if slow else (words.rate(metric.median), range_of(metric))
    share = shares.get(_key(row)) if metric.name == PCIE_COPY.name else None
    return BarRow(
        title=words.capital(_what(metric)),
        sub="",
        chart=charts.cell(thread_figures.rate_bar(metric, place, style)),
        figures=(figure, spread, words.share(share.median) if share is not None else ""),
        link=row.link,
        state=words.STATES[metric.state],
    )


def _what(metric: Metric) -> str:
    labels = metric.labels
    return _TOLD.get(metric.name, _copy)(labels)


def _gpu(labels: Labels, key: str = "device") -> str:
    return f"GPU {short(str(labels.get(key)))}"


def _copy(labels: Labels) -> str:
    way = _DIRECTIONS.get(str(labels.get("direction")), "to or from")
    if labels.get("scope") == "all":
        return f"{way} all {labels.get('gpus')} GPUs at once"
    told = f"{way} {_gpu(labels)}, memory of node {labels.get('memory_node')}"
    if labels.get("scope") == "loaded":
        threads = labels.get("threads")
        others = words.count(threads, "other core") if isinstance(threads, int) else "other cores"
        return f"{told}, beside {others} that read it"
    kind = "" if labels.get("memory") == "pinned" else ", not locked"
    return f"{told}{kind}, {words.size(labels.get('bytes'))} at a time"


def _trip(labels: Labels) -> str:
    how = "queued and timed by the GPU" if labels.get("way") == "queued" else "each waited for by the host"
    return f"{_gpu(labels)} and node {labels.get('memory_node')}, {how}"


_TOLD: Mapping[str, Callable[[Labels], str]] = {
    PCIE_TRIP.name: lambda labels: f"a row there and back: {_trip(labels)}",
    PCIE_TOKEN.name: lambda labels: f"the rows of a token: {_trip(labels)}",
    PCIE_DEVICE.name: lambda labels: f"{_gpu(labels)}, its own memory",
    PCIE_PEER.name: lambda labels: (
        f"from {_gpu(labels)} to {_gpu(labels, 'peer')}, {words.bare(str(labels.get('access')))}"
    ),
    PCIE_NVBANDWIDTH.name: lambda labels: (
        f"{_DIRECTIONS.get(str(labels.get('direction')), 'to or from')} {_gpu(labels)}, by nvbandwidth"
    ),
}
