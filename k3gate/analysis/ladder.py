"""The ladder: from paper to the running runtime, each rung as a rate and as a share of the rung above.

A rung that was not measured stays in the ladder with its state and reason; the share of the next one is then
taken of the nearest measured rung above it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from attrs import frozen

from k3gate.analysis.replayed import base_of, steps
from k3gate.metrics import (
    EXPERT_READ,
    KERNEL_EXPERT,
    KERNEL_PEER,
    KERNEL_WEIGHTS,
    MEMORY_READ,
    REPLAY_BANDWIDTH,
    SERVED_DECODE,
)
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.probing.outcomes import evidence
from k3gate.records import Interval, Metric, Outcome, RunRecord, State
from k3gate.units import significant


@frozen
class Rung:
    """One rung. `value`, `interval` in B/s; shares are fractions; `evidence` names the rows it rests on.

    `tokens_per_s` is value / bytes per token: a ceiling, as if nothing else took time. It is None where the
    rate or the bytes per token are unknown.
    """

    key: str
    title: str
    detail: str
    value: float | None
    interval: Interval | None
    of_above: float | None
    of_paper: float | None
    tokens_per_s: float | None
    state: State
    reason: str | None
    evidence: tuple[str, ...] = ()


@frozen
class _Reading:
    value: float | None
    interval: Interval | None
    state: State
    reason: str | None
    detail: str
    evidence: tuple[str, ...] = ()


def ladder(record: RunRecord, bytes_per_token: float | None, batch: int = 1) -> tuple[Rung, ...]:
    """The six rungs for a run. `bytes_per_token`: what the target reads from CPU memory for one token of each of
    `batch` sequences."""
    rungs: list[Rung] = []
    ceiling: float | None = None
    above: float | None = None
    paper: float | None = None
    for key, title, read in _RUNGS:
        reading = _runtime(record, bytes_per_token, batch) if read is None else read(record)
        state, reason, value = reading.state, reading.reason, reading.value
        if value is not None and paper is not None and value > paper:
            state = State.FAILED
            reason = (
                f"{significant(value / paper * 100)} % of the paper rate is above the physical limit: "
                "the fault is in the measurement or in the paper rate"
            )
        if key == "runtime" and value is not None and ceiling is not None and value > ceiling:
            state = State.FAILED
            reason = (
                f"{significant(value / ceiling * 100)} % of what memory was measured to give, with the bytes of the "
                "target's token: a measuring error, or another model than the target's"
            )
        usable = value is not None and state in (State.OK, State.UNSTABLE)
        if key == "read" and usable:
            ceiling = value if reading.interval is None else max(value or 0.0, reading.interval[1])
        rungs.append(
            Rung(
                key=key,
                title=title,
                detail=reading.detail,
                value=value,
                interval=reading.interval,
                of_above=value / above if usable and value and above else None,
                of_paper=value / paper if usable and value and paper else None,
                tokens_per_s=value / bytes_per_token if usable and value and bytes_per_token else None,
                state=state,
                reason=reason,
                evidence=reading.evidence,
            )
        )
        if usable:
            above = value
            if key == "paper":
                paper = value
    return tuple(rungs)


def find_metric(record: RunRecord, name: str, **labels: object) -> tuple[Outcome, Metric] | None:
    """The first metric of this name whose labels hold all of `labels`, with its outcome."""
    for outcome in record.outcomes:
        for metric in evidence(outcome):
            if metric.name == name and all(metric.labels.get(k) == v for k, v in labels.items()):
                return outcome, metric
    return None


def _paper(record: RunRecord) -> _Reading:
    memory = record.inventory.memory
    provenance = record.inventory.provenance.get("memory.theoretical_bytes_per_s")
    evidence = ("inventory:memory.theoretical_bytes_per_s",)
    value = memory.theoretical_bytes_per_s
    if value is None:
        reason = (provenance.reason if provenance else None) or "the firmware tables were not read"
        state = provenance.state if provenance and provenance.state is not State.OK else State.NOT_PRESENT
        return _Reading(None, None, state, reason, "populated channels x configured rate x 8 bytes", evidence)
    detail = f"{memory.channels} channels x {memory.configured_mts:,} MT/s x 8 bytes"
    return _Reading(value, None, State.OK, None, detail, evidence)


def _read(record: RunRecord) -> _Reading:
    return _machine(record, MEMORY_READ.name, "read.machine", "each reading its own node")


def _expert_reads(record: RunRecord) -> _Reading:
    what = "each reading experts of 17,547,264 bytes of its own node in random order"
    return _machine(record, EXPERT_READ.name, "experts.machine", what)


def _expert_kernels(record: RunRecord) -> _Reading:
    what = "each multiplying whole MXFP4 experts of its own node with one token"
    reading = _machine(record, KERNEL_EXPERT.name, "expert.machine", what, tokens=1)
    return attrs.evolve(reading, detail=reading.detail + _today(record))


def _today(record: RunRecord) -> str:
    """What a runtime's own library, where it is installed, has of our product on one core."""
    point = {"format": "mxfp4", "tokens": 1, "scope": "core", "shape": "expert_up"}
    theirs = find_metric(record, KERNEL_PEER.name, **point)
    ours = find_metric(record, KERNEL_WEIGHTS.name, **point)
    if theirs is None or ours is None or not theirs[1].median or not ours[1].median:
        return ""
    share = significant(theirs[1].median / ours[1].median * 100, 2)
    return f"; {theirs[1].labels.get('engine')} has {share} % of our rate on one core"


def _replay(record: RunRecord) -> _Reading:
    found = steps(record)
    base = base_of(found)
    what = "a miniature K3, token by token"
    if base is None:
        broken = next((one for one in found if one.label("factor") == "base"), None)
        reading = _machine(record, REPLAY_BANDWIDTH.name, "base", what, factor="base")
        reason = (broken.rate.reason if broken else None) or reading.reason
        state = broken.rate.state if broken else State.NOT_RUN
        if broken is not None and broken.measured:
            reason = reason or "its parts do not add up to a step, or it does not say what it replayed"
            state = State.FAILED
        return _Reading(None, None, state, reason, what)
    metric = base.bandwidth
    trunk = str(base.label("trunk"))
    detail = (
        f"{base.counted('threads')} pinned threads, {what}: {base.counted('layers')} layers of "
        f"{base.counted('experts')} experts, {'no trunk' if trunk == 'gpu' else f'trunk in {trunk.upper()}'}, context "
        f"{base.counted('context')}; bytes of weights, states and caches"
    )
    if metric is None:
        moved = sum(base.bytes.values()) * base.tokens_per_s
        return _Reading(moved, None, base.rate.state, base.rate.reason, detail, (base.key,))
    evidence = (f"{base.outcome.probe}/{base.outcome.case}#{metric.name}",)
    return _Reading(metric.median, metric.interval, metric.state, metric.reason, detail, evidence)


def _machine(record: RunRecord, name: str, case: str, what: str, **labels: object) -> _Reading:
    """The reading of the whole machine by a metric, or why there is none."""
    found = find_metric(record, name, scope="machine", **labels)
    if found is None:
        left = (one.reason for one in record.run.left_out if one.case == case)
        reason = next(
            (o.reason for o in record.outcomes if o.case == case and o.reason),
            next(left, "the run holds no such reading of the whole machine"),
        )
        return _Reading(None, None, State.NOT_RUN, reason, f"all cores, {what}")
    outcome, metric = found
    threads = metric.labels.get("threads")
    detail = f"{threads} pinned threads, {what}"
    evidence = (f"{outcome.probe}/{outcome.case}#{metric.name}",)
    return _Reading(metric.median, metric.interval, metric.state, metric.reason, detail, evidence)


def _runtime(record: RunRecord, bytes_per_token: float | None, batch: int) -> _Reading:
    """Tokens a second that a runtime gave, as the bytes that the target's tokens move in CPU memory."""
    what = "the model itself, served by a runtime"
    rows = [
        (outcome, metric)
        for outcome in record.outcomes
        for metric in evidence(outcome)
        if metric.name == SERVED_DECODE.name and metric.labels.get("streams") == batch
    ]
    if not rows:
        told = next((one.reason for one in record.outcomes if one.probe == _SERVED and one.reason), None)
        left = next((one.reason for one in record.run.left_out if one.probe == _SERVED), None)
        reason = told or left or f"the run holds no such reading of {batch} at once"
        return _Reading(None, None, State.NOT_RUN, reason, what)
    own = [row for row in rows if row[1].labels.get("architecture") == KIMI_K3]
    if not own:
        kind = rows[0][1].labels.get("architecture")
        reason = f"what was served is not proven to be Kimi K3 ({kind}): its rate is none of this model"
        return _Reading(None, None, State.NOT_RUN, reason, what)
    # Of several lengths of prompts the slowest, as for the check.
    outcome, metric = min(own, key=lambda row: row[1].median or 0.0)
    detail = f"{what}, {batch} at once, prompts of {metric.labels.get('prompt_tokens')} tokens"
    rows_of = (f"{outcome.probe}/{outcome.case}#{metric.name}",)
    if metric.median is None or bytes_per_token is None:
        reason = metric.reason or "the bytes of a token are not known"
        return _Reading(None, None, metric.state, reason, detail, rows_of)
    low, high = metric.interval or (metric.median, metric.median)
    interval = None if metric.interval is None else (low * bytes_per_token, high * bytes_per_token)
    return _Reading(metric.median * bytes_per_token, interval, metric.state, metric.reason, detail, rows_of)


_SERVED = "prototype"
_RUNGS: tuple[tuple[str, str, Callable[[RunRecord], _Reading] | None], ...] = (
    ("paper", "Paper", _paper),
    ("read", "Measured read", _read),
    ("expert_reads", "Expert-sized reads", _expert_reads),
    ("expert_kernels", "Expert kernels", _expert_kernels),
    ("replay", "Decode replay", _replay),
    ("runtime", "Running runtime", None),
)
