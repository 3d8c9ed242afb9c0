"""What a metric says in words and numbers: rounds, scatter, conditions, proofs, titles of figures."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from k3gate import topology, units
from k3gate.metrics import OTHER_SHARE, STEAL_SHARE
from k3gate.records import Inventory, Metric, RunRecord, Scalar, State
from k3gate.reports import machine, words
from k3gate.reports.evidence import Link, SampleRow
from k3gate.reports.unseen import SEEN
from k3gate.units import NBSP

MOST_COLUMNS = 8


def residency_title(wanted: object, held: int, image: bool, usable: int | None) -> str:
    if isinstance(wanted, int | float) and wanted > 0:
        if image and held >= wanted:
            return f"The image of {words.value(float(wanted), 'B')} was held and verified in full"
        if usable is not None and usable < wanted:
            return (
                f"The target wants {words.value(float(wanted), 'B')}; this process may use "
                f"{words.value(float(usable), 'B')}"
            )
    kind = "of the image" if image else "in a small pool, not the image"
    return f"{words.value(float(held), 'B')} {kind} were held and verified"


def round_medians(metric: Metric) -> list[tuple[int, float]]:
    """(round, median of its samples), by round."""
    rounds: dict[int, list[float]] = defaultdict(list)
    for sample in metric.samples:
        rounds[sample.round].append(sample.value)
    return [(number, statistics.median(values)) for number, values in sorted(rounds.items())]


def usable(metric: Metric) -> bool:
    return metric.state in SEEN and metric.median is not None and metric.median > 0


def scope_of(row: SampleRow) -> str:
    return str(row.metric.labels.get("scope"))


def node_of(row: SampleRow) -> float:
    """Where the node whose cores measure stands among nodes: by its number; what names none comes last."""
    node = row.metric.labels.get("cpu_node")
    return node if isinstance(node, int) else math.inf


def is_local(row: SampleRow) -> bool:
    labels = row.metric.labels
    remote = labels.get("cpu_node") != labels.get("memory_node") or labels.get("placement") == "remote"
    return not remote and not row.outcome.case.startswith("read.4k")


def highest(metric: Metric) -> float:
    return max(metric.median or 0.0, metric.interval[1] if metric.interval else 0.0)


def spread(metric: Metric) -> float:
    """The largest distance of a round's median from the median of all, as a share."""
    median = metric.median or 1.0
    return max((abs(value / median - 1) for _, value in round_medians(metric)), default=0.0)


def half_width(metric: Metric) -> float:
    if metric.interval is None or not metric.median:
        return 0.0
    return max(abs(edge / metric.median - 1) for edge in metric.interval)


def range_of(metric: Metric) -> str:
    if metric.interval is None:
        return "no interval"
    return "–".join(words.rate(edge) for edge in metric.interval)


def microseconds_of(metric: Metric) -> tuple[str, str]:
    """(median, its interval) of a time, in µs without the unit."""
    if metric.interval is None:
        return words.microseconds(metric.median), "no interval"
    return words.microseconds(metric.median), "–".join(words.microseconds(edge) for edge in metric.interval)


def threads_of(metric: Metric) -> str:
    threads = metric.labels.get("threads")
    return f"{threads:,}" if isinstance(threads, int) else "unknown"


def beside_paper(metric: Metric, inventory: Inventory, carried: float | None = None) -> tuple[str, str]:
    """(paper rate in GB/s of the memory that is read, share of it), each a word where it is not known.

    `carried`: what the share is of, where it is not the median. Where the proof of the ceiling does not hold, the
    paper rate is in doubt, and so is a share of it.
    """
    rate, _ = topology.paper_share(inventory, metric.labels)
    if rate is None:
        return "unknown", "unknown"
    if any(proof.name == "ceiling" and proof.ok is not True for proof in metric.proofs):
        return words.rate(rate), "not known"
    return words.rate(rate), words.share(((metric.median or 0.0) if carried is None else carried) / rate)


def confounders(record: RunRecord) -> str:
    """What of this machine is known to spoil rates, as the inventory and the run found it."""
    found = list(machine.settings(record.inventory))
    bad = [f"{one.name}: {one.found} ({one.effect})" for one in found if one.spoils]
    unknown = [one.name for one in found if one.found == machine.UNKNOWN]
    parts = [
        f"May lower these figures: {'; '.join(bad)}." if bad else "No setting was found that lowers them."
    ]
    if unknown:
        parts.append(f"Not known: {words.listed(unknown)}.")
    for declaration, who in ((OTHER_SHARE, "Other processes"), (STEAL_SHARE, "A hypervisor")):
        share = next(
            (m.median for o in record.outcomes for m in o.metrics if m.name == declaration.name), None
        )
        told = "an unknown share" if share is None else words.share(share, 2)
        parts.append(f"{who} took {told} of the CPU time.")
    return " ".join(parts)


def signed(mark: float) -> str:
    sign = "+" if mark > 0 else units.MINUS
    return f"{sign}{units.significant(abs(mark) * 100, 2)}{NBSP}%"


def round_step(reach: float) -> float:
    return next((s for s in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if reach / s < 3.0), 5.0)


def conditions(metric: Metric) -> str:
    labels = metric.labels
    parts = []
    if labels.get("page_size") is not None:
        parts.append(f"pages of {words.size(labels['page_size'])}")
    if labels.get("pool_bytes") is not None:
        pool = f"working set {words.size(labels['pool_bytes'])}"
        cache = labels.get("cache_bytes")
        amount = labels["pool_bytes"]
        if isinstance(cache, int) and cache > 0 and isinstance(amount, int | float):
            pool += f", {units.significant(amount / cache, 2)} times the last-level caches in play"
        parts.append(pool)
    if labels.get("isa"):
        parts.append(f"{labels.get('kernel', 'read')} kernel, {labels['isa']}")
    if labels.get("counting"):
        parts.append(str(labels["counting"]))
    return words.capital("; ".join(parts)) if parts else "Conditions stand with the samples"


def proof_line(rows: Sequence[SampleRow]) -> str:
    """Which proofs hold for all rows, which fail or were not seen, by how many."""
    tally: dict[str, list[bool | None]] = defaultdict(list)
    for row in rows:
        for proof in row.metric.proofs:
            tally[proof.name.replace("_", " ")].append(proof.ok)
    if not tally:
        return "No proof is stored with these figures."
    held = [name for name, seen in tally.items() if all(seen) and len(seen) >= len(rows)]
    parts = [f"Proven for every case: {words.listed(held)}." if held else ""]
    for name, seen in tally.items():
        broken, unknown = sum(ok is False for ok in seen), sum(ok is None for ok in seen)
        if broken:
            parts.append(f"{words.capital(name)} failed in {broken} of {len(rows)}.")
        if unknown:
            parts.append(f"{words.capital(name)} was not seen in {unknown} of {len(rows)}.")
        if not broken and not unknown and len(seen) < len(rows):
            parts.append(f"{words.capital(name)} is proven for {len(seen)} of {len(rows)}.")
    return " ".join(part for part in parts if part)


def ends(rows: Sequence[SampleRow]) -> tuple[Link, ...]:
    return (rows[0].link,) if len(rows) == 1 else (rows[0].link, rows[-1].link)


def doubted(title: str, rows: Iterable[SampleRow | None]) -> str:
    """`title`, with a word of doubt where a row that it rests on was not stable."""
    unstable = any(row is not None and row.metric.state is not State.OK for row in rows)
    return f"{title} (unstable)" if unstable else title


def numa_title(rates: Mapping[tuple[Scalar, Scalar], float]) -> str:
    local = [rate for (cpu, memory), rate in rates.items() if cpu == memory]
    remote = [rate for (cpu, memory), rate in rates.items() if cpu != memory]
    if local and remote:
        middle = statistics.median(local)
        loss = 1 - min(remote) / middle
        if loss <= 0:
            return "Reading from another node costs no bandwidth"
        return f"Reading from another node costs up to {words.share(loss, 2)} of the bandwidth"
    if local:
        return (
            f"One node reads its own memory at {words.value(local[0], 'B/s')}; there is no other to read from"
            if len(local) == 1
            else f"Local reads reach {words.rate(min(local))} to {words.value(max(local), 'B/s')}"
        )
    return f"Reads from another node reach up to {words.value(max(remote), 'B/s')}"


def latency_title(latencies: Mapping[tuple[Scalar, Scalar], float]) -> str:
    local = [value for (cpu, memory), value in latencies.items() if cpu == memory]
    remote = [value for (cpu, memory), value in latencies.items() if cpu != memory]
    if local and remote:
        return (
            f"Local memory answers in {words.nanoseconds(statistics.median(local))} ns, other nodes' in up to "
            f"{words.nanoseconds(max(remote))} ns"
        )
    if local:
        return f"Local memory answers in {words.nanoseconds(statistics.median(local))} ns"
    return f"Memory of other nodes answers in up to {words.nanoseconds(max(remote))} ns"


def rates_title(best: dict[str, float | None]) -> str:
    node, machine = best.get("node"), best.get("machine")
    if node and machine and machine < node:
        return (
            f"The whole machine reads {words.value(machine, 'B/s')}, less than one node alone, which reads "
            f"{words.value(node, 'B/s')}"
        )
    names = {"core": "one core reads", "node": "a node", "socket": "a socket", "machine": "the whole machine"}
    parts = [f"{names[scope]} {words.value(rate, 'B/s')}" for scope, rate in best.items() if rate]
    return words.capital(words.listed(parts)) if parts else "Read bandwidth"


def split_columns(nodes: Sequence[int], socket: Callable[[int], int | None]) -> list[list[int]]:
    """Columns of each table: all where they are few, else by socket, and never more than eight."""
    if len(nodes) <= MOST_COLUMNS:
        return [list(nodes)]
    groups: dict[object, list[int]] = defaultdict(list)
    for node in nodes:
        groups[socket(node)].append(node)
    parts = []
    for group in groups.values():
        pieces = -(-len(group) // MOST_COLUMNS)
        width = -(-len(group) // pieces)
        parts += [group[start : start + width] for start in range(0, len(group), width)]
    return parts


def runs_of(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return tuple(runs)
