"""Metrics held against bounds: one evaluator for every criterion that names a metric.

Within a cell (a CPU node and a memory node) the best stable variant counts; over cells the worst. A cell that
should be there and is not leaves the check unproven, unless another one fails it.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

from attrs import evolve, frozen

from k3gate import metrics, topology, units
from k3gate.gate import hardware
from k3gate.gate.criteria import CELL_LABELS, DEVICE_LABEL, OF_TARGET, PATH_LABEL, Criterion, Relative
from k3gate.gate.judgement import Judgement, badness, unproven
from k3gate.gate.targets import Target
from k3gate.probes import pcie_plan
from k3gate.probing.outcomes import evidence
from k3gate.records import (
    Better,
    Bound,
    Interval,
    Labels,
    Metric,
    MetricDeclaration,
    RunRecord,
    Scalar,
    State,
    Verdict,
)

_BANDWIDTH = "memory.bandwidth."
_MODEL = "architecture"
_THEORY = "inventory:memory.theoretical_bytes_per_s"
Cell = tuple[Scalar, Scalar]


@frozen
class _Row:
    """A metric and where it stands in the run."""

    evidence: str
    metric: Metric

    def cell(self, over: str) -> Cell:
        """What it is of: a CPU node and a memory node, a path, or a GPU."""
        labels = self.metric.labels
        if over not in CELL_LABELS:
            return labels.get(over), None
        return labels.get("cpu_node"), labels.get("memory_node")


@frozen
class _Divisor:
    """What values are divided by. `words`: "0.71 of the paper rate"; `shown`: the divisor with its unit."""

    value: float
    interval: Interval
    words: str
    shown: str
    evidence: tuple[str, ...]
    depends_on: str = ""
    """What decides where in `interval` the divisor lies, where that is no matter of noise."""


def judge(criterion: Criterion, record: RunRecord, target: Target) -> Judgement:
    """The verdict of a criterion that names a metric, on a complete run."""
    declaration = metrics.find(criterion.metric or "")
    assert declaration is not None  # the loader refuses names that are not declared
    doubt = hardware.doubt(record.inventory) if criterion.hardware else None
    if criterion.settled_by == "one_memory_node":
        settled = _one_memory_node(record)
        if settled is not None and doubt is None:
            return settled
        if settled is not None:
            return unproven(f"No evidence about the hardware: {doubt}. Seen here: {settled.reason}")
    where = {key: _label(value, target) for key, value in criterion.where.items()}
    rows = _rows(record, declaration.name, where)
    if criterion.over in CELL_LABELS:
        main = {node.id for node in topology.main_nodes(record.inventory)}
        rows = [row for row in rows if row.metric.labels.get("memory_node") in main]
    cells: dict[Cell, list[_Row]] = {}
    for index, row in enumerate(rows):
        cells.setdefault(row.cell(criterion.over) if criterion.over else (index, None), []).append(row)
    judged = [_judge_cell(criterion, declaration, variants, record, target) for variants in cells.values()]
    lacking = sorted(_expected(criterion, record) - set(cells), key=str)
    if not rows and (other := _of_another(declaration, where, record)) is not None:
        return evolve(other, bound=criterion.bound)
    if lacking or not rows:
        judged.append(_missing(criterion, declaration, lacking, record))
    decided = min(judged, key=lambda judgement: _rank(judgement, declaration))
    decided = evolve(decided, bound=criterion.bound)
    if doubt is not None:
        if not rows:
            return evolve(decided, reason=f"{decided.reason} Besides, {doubt}.")
        return evolve(
            decided,
            verdict=Verdict.UNPROVEN,
            reason=f"No evidence about the hardware: {doubt}. Measured: {decided.reason}",
            remedy="Measure on the bare machine, without limits on CPUs and memory.",
        )
    # CPUs that are missing make a rate lower; they excuse no amount that is too high.
    low = criterion.hardware and criterion.bound.min is not None and decided.verdict is Verdict.FAIL
    part = hardware.incomplete(record.inventory) if low else None
    if part is not None:
        reason = f"Not the whole machine: {part.reason}. Measured: {decided.reason}"
        return evolve(decided, verdict=Verdict.UNPROVEN, reason=reason, remedy=part.remedy)
    return decided


def _rank(judgement: Judgement, declaration: MetricDeclaration) -> tuple[int, float]:
    observed = judgement.observed
    value = float(observed) if isinstance(observed, int | float) else -math.inf
    return badness(judgement.verdict), -value if declaration.better is Better.LOWER else value


def _of_another(declaration: MetricDeclaration, where: Labels, record: RunRecord) -> Judgement | None:
    """Where it was measured, and of another model: that is not the same as not at all."""
    rest = {key: value for key, value in where.items() if key != _MODEL}
    rows = _rows(record, declaration.name, rest) if _MODEL in where else []
    if not rows:
        return None
    kind = rows[0].metric.labels.get(_MODEL)
    return unproven(
        f"{declaration.title} was measured of what is {kind} and not proven to be {where[_MODEL]}.",
        tuple(row.evidence for row in rows),
        remedy="Start the runtime with the files of the target's model, and name them with --checkpoint.",
    )


def _label(value: Scalar, target: Target) -> Scalar:
    """A label's value, or the figure of the target that it names."""
    if not isinstance(value, str) or not value.startswith(OF_TARGET):
        return value
    figure = target.value(value.removeprefix(OF_TARGET).strip())
    return int(figure) if figure is not None and figure == int(figure) else figure


def _rows(record: RunRecord, name: str, where: Labels) -> list[_Row]:
    return [
        _Row(f"{outcome.probe}/{outcome.case}#{metric.name}", metric)
        for outcome in record.outcomes
        for metric in evidence(outcome)
        if metric.name == name and all(_agrees(metric.labels, key, value) for key, value in where.items())
    ]


def _agrees(labels: Labels, key: str, value: Scalar) -> bool:
    found = labels.get(key)
    if key == "scope" and found == "sweep":
        found = "node"  # a node with another number of threads: its best setting counts
    return type(found) is type(value) and found == value


def _expected(criterion: Criterion, record: RunRecord) -> set[Cell]:
    """The cells that the inventory promises: real node ids, only where there are CPUs and memory; or GPUs with a
    link."""
    if criterion.over == DEVICE_LABEL:
        gpus = record.inventory.gpus or ()
        return {(gpu.address, None) for gpu in gpus if gpu.address and not gpu.shared_memory}
    if criterion.over not in CELL_LABELS:
        return set()
    readers = [node.id for node in record.inventory.numa.nodes if node.cpus]
    holders = [node.id for node in topology.main_nodes(record.inventory)]
    if criterion.where.get("placement") == "remote":
        return {(reader, holder) for reader in readers for holder in holders if reader != holder}
    return {(reader, reader) for reader in readers if reader in holders}


def _missing(
    criterion: Criterion, declaration: MetricDeclaration, lacking: list[Cell], record: RunRecord
) -> Judgement:
    """Why a metric is not in the run, as far as the run says it.

    A case that could have given it is named where one of its node, or of the metric's own kind, is known to
    have failed or to have been left out; rounds that were thinned are no reason, their case was measured.
    """
    probe = declaration.name.partition(".")[0]
    measured = {(o.probe, o.case) for o in record.outcomes if o.metrics}
    told = [
        (f"{o.probe}/{o.case}", f"{str(o.state).replace('_', ' ')}, {o.reason}")
        for o in record.outcomes
        if o.probe == probe and o.reason and o.state not in (State.OK, State.UNSTABLE)
    ]
    told += [
        (f"{left.probe}/{left.case}", f"left out, {left.reason}")
        for left in record.run.left_out
        if left.probe == probe and (left.probe, left.case) not in measured
    ]
    told = [(case, why) for case, why in told if _could_give(case.partition("/")[2], criterion, lacking)]
    what = declaration.title
    if lacking:
        words = _device_words if criterion.over == DEVICE_LABEL else _cell_words
        shown = ", ".join(words(cell) for cell in lacking[:4])
        what += f" of {shown}" + (f" and {len(lacking) - 4} more" if len(lacking) > 4 else "")
    # A metric that no command of this version gathers is not missing because some other case failed.
    because = f" ({told[0][0]}: {told[0][1]})" if told and criterion.gathered_by.startswith("k3gate ") else ""
    return unproven(f"Not measured in this run: {what}{because}.")


def _could_give(case: str, criterion: Criterion, lacking: list[Cell]) -> bool:
    """Whether a case's name says that it measures what is lacking: "read.node0.node1", "read.*.node1"."""
    if case in ("all", "*"):  # a probe that cannot measure here at all
        return True
    if (criterion.metric or "").startswith("storage."):
        told = case.partition(".")[2]
        wanted = "course" if criterion.metric == metrics.STORAGE_STEADY.name else "direct"
        return told.startswith((wanted, "refused", "file", "*"))
    if (criterion.metric or "").startswith("pcie."):
        ends = [pcie_plan.short(str(address)) for address, _ in lacking]
        return case.startswith(("copy.", "*")) and (not ends or case.endswith((*ends, "*")))
    family = "latency" if (criterion.metric or "").startswith("memory.latency.") else "read"
    if lacking:
        return any(fnmatchcase(f"{family}.node{reader}.node{holder}", case) for reader, holder in lacking)
    scope = criterion.where.get("scope")
    return scope is None or case == f"{family}.{scope}"


def _judge_cell(
    criterion: Criterion,
    declaration: MetricDeclaration,
    variants: list[_Row],
    record: RunRecord,
    target: Target,
) -> Judgement:
    usable = [row for row in variants if _defect(row.metric, declaration) is None]
    if not usable:
        row = variants[0]
        return unproven(f"{_place(row.metric)}: {_defect(row.metric, declaration)}.", (row.evidence,))
    sign = -1 if declaration.better is Better.LOWER else 1
    row = max(usable, key=lambda each: sign * _median(each.metric))
    flaw = _proof_flaw(row.metric, criterion.proofs)
    if flaw is not None:
        return unproven(f"{_place(row.metric)}: {flaw}.", (row.evidence,))
    share, _ = topology.paper_share(record.inventory, row.metric.labels)
    if declaration.name.startswith(_BANDWIDTH) and share is not None and _median(row.metric) > share:
        return unproven(
            f"{_place(row.metric)}: {_show(_median(row.metric), declaration.unit)} is above the physical "
            f"limit of {_show(share, declaration.unit)}: a fault of the measurement or of the paper rate.",
            (row.evidence, _THEORY),
        )
    return _compare(criterion, declaration, row, record, target)


def _median(metric: Metric) -> float:
    assert metric.median is not None  # callers look for defects first
    return metric.median


def _defect(metric: Metric, declaration: MetricDeclaration) -> str | None:
    """Why a metric cannot be judged, whatever the bound."""
    if metric.state is State.UNSTABLE:
        return f"unstable, so its median decides nothing ({metric.reason or 'no reason given'})"
    if metric.state is not State.OK:
        return f"{str(metric.state).replace('_', ' ')} ({metric.reason or 'no reason given'})"
    if metric.unit != declaration.unit:
        return f"in {metric.unit}, where {declaration.unit} is declared"
    if metric.median is None or metric.interval is None:
        return "too few rounds for an interval; measure with more rounds"
    low, high = metric.interval
    if not (math.isfinite(low) and math.isfinite(high) and low <= metric.median <= high):
        return "its interval does not hold its median; the stored figures are damaged"
    return None


def _proof_flaw(metric: Metric, wanted: tuple[str, ...]) -> str | None:
    """A proof that failed, or one of `wanted` that is not there."""
    for proof in metric.proofs:
        if proof.ok is False:
            return f"its proof of {proof.name.replace('_', ' ')} failed ({proof.detail})"
    for name in wanted:
        found = [proof for proof in metric.proofs if proof.name == name]
        if not any(proof.ok for proof in found):
            detail = f" ({found[0].detail})" if found else ""
            return f"{name.replace('_', ' ')} is not proven{detail}"
    return None


def _compare(
    criterion: Criterion, declaration: MetricDeclaration, row: _Row, record: RunRecord, target: Target
) -> Judgement:
    value = _median(row.metric)
    assert row.metric.interval is not None
    interval, unit = row.metric.interval, declaration.unit
    said = f"{_place(row.metric)}: {_show(value, unit)}"
    evidence: tuple[str, ...] = (row.evidence,)
    divisor: _Divisor | None = None
    if criterion.relative_to is not None:
        found = _divisor(criterion.relative_to, criterion.proofs, row, record, target)
        if isinstance(found, str):
            return unproven(f"{said} was measured, but {found}.", evidence)
        divisor = found
        # Both ends at their worst: wider than the interval of the ratio, never narrower.
        interval = (interval[0] / divisor.interval[1], interval[1] / divisor.interval[0])
        said = f"{said}, {units.significant(value / divisor.value)} of {divisor.words} ({divisor.shown})"
        value, unit, evidence = value / divisor.value, "1", evidence + divisor.evidence
    verdict, reason = _against(criterion.bound, interval, said, unit)
    if verdict is Verdict.UNPROVEN and divisor is not None and divisor.depends_on:
        low, high = row.metric.interval
        ends = {_against(criterion.bound, (low / end, high / end), said, unit)[0] for end in divisor.interval}
        if Verdict.UNPROVEN not in ends:
            reason = f"Not decided by bandwidth: it depends on {divisor.depends_on}. {said}."
    return Judgement(verdict, reason, value, interval, unit, criterion.bound, evidence)


def _against(bound: Bound, interval: Interval, said: str, unit: str) -> tuple[Verdict, str]:
    low, high = interval
    parts = []
    if bound.min is not None:
        parts.append(f"at least {_show(bound.min, unit)}")
    if bound.max is not None:
        parts.append(f"at most {_show(bound.max, unit)}")
    asked = " and ".join(parts)
    above = bound.min is None or low >= bound.min
    below = bound.max is None or high <= bound.max
    if above and below:
        return Verdict.PASS, f"{said}; {asked} is asked."
    if (bound.min is not None and high < bound.min) or (bound.max is not None and low > bound.max):
        return Verdict.FAIL, f"{said}; {asked} is asked."
    return Verdict.UNPROVEN, (
        f"Too noisy: the 95 % interval {_show(low, unit)} to {_show(high, unit)} straddles the bound, "
        f"{asked}. {said}. Measure with more rounds, on an idle machine."
    )


def _divisor(
    relative: Relative, proofs: tuple[str, ...], row: _Row, record: RunRecord, target: Target
) -> _Divisor | str:
    """The divisor for a row, or the sentence that says why there is none; it needs the row's proofs as well, or its
    own."""
    if relative.kind == "theory":
        share, words = topology.paper_share(record.inventory, row.metric.labels)
        if share is None:
            return words
        return _Divisor(share, (share, share), words, units.quantity(share, "B/s"), (_THEORY,))
    if relative.kind == "target":
        key = relative.key or ""
        nodes = len(topology.main_nodes(record.inventory))
        figure, least = target.value(key, nodes), target.least(key, nodes)
        if not figure or not least:
            return f"the target {target.name!r} gives no {key}"
        shown, depends = _show(figure, row.metric.unit), ""
        if least < figure:
            shown += f" with uniform routing, {_show(least, row.metric.unit)} where all sequences agree"
            depends = "how alike the sequences of a batch are routed"
        return _Divisor(figure, (least, figure), f"what the target asks ({key})", shown, (), depends)
    declaration = metrics.find(relative.key or "")
    assert declaration is not None
    wanted = dict(relative.where) | {label: row.metric.labels.get(label) for label in relative.same}
    found = _rows(record, declaration.name, wanted)
    usable = [
        each for each in found if _defect(each.metric, declaration) is None and _median(each.metric) > 0
    ]
    described = f"{declaration.title.lower()} of " + ", ".join(
        str(value) for value in relative.where.values()
    )
    if not usable:
        why = f" ({_defect(found[0].metric, declaration)})" if found else ""
        return f"there is no {described} to hold it against{why}"
    best = max(usable, key=lambda each: _median(each.metric))
    needed = proofs if relative.proofs is None else relative.proofs
    if (flaw := _proof_flaw(best.metric, needed)) is not None:
        return f"the {described} cannot be used: {flaw}"
    assert best.metric.interval is not None
    if best.metric.interval[0] <= 0:
        return f"the {described} has an interval that reaches 0"
    shown = units.quantity(_median(best.metric), declaration.unit)
    return _Divisor(_median(best.metric), best.metric.interval, f"the {described}", shown, (best.evidence,))


def _one_memory_node(record: RunRecord) -> Judgement | None:
    nodes = topology.main_nodes(record.inventory)
    if len(nodes) != 1 or any(node.cpus and node is not nodes[0] for node in record.inventory.numa.nodes):
        return None
    others = [node.id for node in record.inventory.numa.nodes if node.memory_bytes and not node.cpus]
    beside = f" Memory without CPUs is not judged here: nodes {units.cpu_list(others)}." if others else ""
    return Judgement(
        Verdict.PASS,
        f"One node with CPUs and memory: nothing is remote.{beside}",
        observed="one memory node",
        evidence=("inventory:numa.nodes",),
    )


def _place(metric: Metric) -> str:
    labels = metric.labels
    if labels.get("scope") == "machine" and metric.name.startswith(_BANDWIDTH):
        return "Whole machine"
    if labels.get(PATH_LABEL) is not None:
        threads, depth = labels.get("threads"), labels.get("depth")
        how = f", {units.count(threads, 'thread')} with {depth} under way" if isinstance(threads, int) else ""
        return f"{labels[PATH_LABEL]} ({labels.get('lies_on')}{how})"
    if labels.get(DEVICE_LABEL) is not None:
        way, node = labels.get("direction"), labels.get("memory_node")
        return f"GPU {labels[DEVICE_LABEL]}, {str(way).replace('_', ' ')}, memory of node {node}"
    if labels.get("cpu_node") is None:
        declaration = metrics.find(metric.name)
        return declaration.title if declaration else metric.name
    words = _cell_words((labels.get("cpu_node"), labels.get("memory_node")))
    return words[0].upper() + words[1:]


def _cell_words(cell: Cell) -> str:
    reader, holder = cell
    if holder is None or reader == holder:
        return f"node {reader}"
    return f"node {reader} reading memory of node {holder}"


def _device_words(cell: Cell) -> str:
    return f"GPU {cell[0]}"


def _show(value: float, unit: str) -> str:
    return units.quantity(value, unit)
