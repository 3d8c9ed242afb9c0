"""The heat map: every CPU node by every memory node, of bandwidth or of latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from k3gate.records import NumaNode, RunRecord, Scalar, State
from k3gate.reports import words
from k3gate.reports.evidence import Index, SampleRow
from k3gate.reports.figures import Cell, Figure, Matrix
from k3gate.reports.readings import (
    conditions,
    doubted,
    ends,
    latency_title,
    numa_title,
    proof_line,
    runs_of,
    split_columns,
    usable,
)

Place = tuple[Scalar, Scalar]


@frozen
class Kind:
    """What a heat map shows: of which cases, in which words, in which colour."""

    case: str
    anchor: str
    absent: str
    caption: str
    title: Callable[[Mapping[Place, float]], str]
    subtitle: str
    number: Callable[[float], str]
    style: str


BANDWIDTH = Kind(
    case="read",
    anchor="fig-numa",
    absent="Bandwidth from every node to every node",
    caption="Bandwidth, GB/s",
    title=numa_title,
    subtitle="All physical cores of one node read from the memory of one node; framed cells are local; "
    "more ink is more bandwidth; median of the rounds",
    number=words.rate,
    style="bw",
)
LATENCY = Kind(
    case="latency",
    anchor="fig-latency",
    absent="Latency from every node to every node",
    caption="Latency, ns",
    title=latency_title,
    subtitle="One core of a node follows a random chain of pointers through the memory of one node; framed cells "
    "are local; more ink is more latency; median of the rounds",
    number=words.nanoseconds,
    style="lt",
)


def figure(
    rows: Sequence[SampleRow], kind: Kind, record: RunRecord, index: Index, number: int
) -> Figure | None:
    """The heat map of these rows; None where no cell was measured."""
    cells = {
        (row.metric.labels.get("cpu_node"), row.metric.labels.get("memory_node")): row
        for row in reversed(rows)
        if row.metric.labels.get("scope") == "node" and ".4k." not in row.outcome.case
    }
    cells = {key: row for key, row in cells.items() if None not in key}
    seen = {key: row for key, row in cells.items() if usable(row.metric)}
    if not seen:
        return None
    values = {key: row.metric.median or 0.0 for key, row in seen.items()}
    nodes = {node.id: node for node in record.inventory.numa.nodes}
    readers = sorted({int(str(c)) for c, _ in cells} | {n.id for n in nodes.values() if n.cpus})
    memories = sorted({int(str(m)) for _, m in cells} | set(nodes))
    low, high = min(values.values()), max(values.values())

    def cell(cpu: int, memory: int) -> Cell:
        row, local = cells.get((cpu, memory)), cpu == memory
        if row is not None and (cpu, memory) in values:
            value = values[cpu, memory]
            ink = 24 if high == low else round(6 + 36 * (value - low) / (high - low))
            mark = " (unstable)" if row.metric.state is State.UNSTABLE else ""
            return Cell(kind.number(value) + mark, row.link, ink, local)
        node = nodes.get(memory)
        if node is not None and node.memory_bytes == 0:
            return Cell("no memory", None, None, local)
        gap = index.case_link("memory", f"{kind.case}.node{cpu}.node{memory}")
        state = words.STATES[row.metric.state] if row is not None else "not run"
        return Cell(state, gap, None, local)

    parts = split_columns(memories, lambda node: _socket(record, node))
    matrices = tuple(
        Matrix(
            caption=kind.caption + ("" if len(parts) == 1 else f", part {n} of {len(parts)}"),
            groups=runs_of([_place(record, node) for node in part]),
            columns=tuple(_name(nodes.get(node), node) for node in part),
            rows=tuple(
                (f"node {cpu}", _place(record, cpu, ""), tuple(cell(cpu, memory) for memory in part))
                for cpu in readers
            ),
            big=len(readers) > 4 or len(part) > 4,
            style=kind.style,
        )
        for n, part in enumerate(parts, 1)
    )
    ordered = [row for row in rows if row in seen.values()]
    return Figure(
        anchor=kind.anchor,
        number=number,
        title=doubted(kind.title(values), ordered),
        subtitle=kind.subtitle,
        source=f"{conditions(ordered[0].metric)}. {proof_line(ordered)}",
        links=ends(ordered),
        matrices=matrices,
    )


def _name(node: NumaNode | None, number: int) -> str:
    """A memory node, with its kind where it has no CPUs: CXL and GPU memory are no DRAM of a socket."""
    if node is None or node.cpus:
        return f"node {number}"
    kinds = {"cxl": "CXL", "pmem": "persistent", "hbm": "HBM", "gpu": "GPU", "dram": "DRAM, no CPUs"}
    return f"node {number}, {kinds.get(node.kind, 'no CPUs')}"


def _socket(record: RunRecord, node: int) -> int | None:
    cpu = record.inventory.cpu
    found = next((n for n in record.inventory.numa.nodes if n.id == node), None)
    sockets = {cpu.package_of[c] for c in found.cpus if c in cpu.package_of} if found else set()
    return sockets.pop() if len(sockets) == 1 else None


def _place(record: RunRecord, node: int, prefix: str = "memory of ") -> str:
    socket = _socket(record, node)
    if socket is None:
        return f"{prefix}nodes without a socket" if prefix else "socket not known"
    return f"{prefix}socket {socket}"
