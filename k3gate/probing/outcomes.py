"""Rounds become outcomes, and stored outcomes tell what is still to be measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from k3gate import metrics as registry
from k3gate.documents import canonical, plain
from k3gate.probing.plan import Execution
from k3gate.probing.statistics import Summary, summarise
from k3gate.records import Case, Metric, MetricDeclaration, Outcome, Proof, Round, State

_WORST = (
    State.FAILED,
    State.NOT_PERMITTED,
    State.NOT_PRESENT,
    State.UNSTABLE,
    State.NOT_RUN,
    State.OK,
)
"""States from worst to best: the order in which one round or metric decides the outcome."""


def merge(earlier: Outcome | None, case: Case, round_: Round, new: Sequence[Metric]) -> Outcome:
    """The outcome of `case` after one more round. `new`: that round's metrics.

    Samples are appended to the metric of the same name and labels, proofs are joined, median and interval
    derived anew. A round that was stored before is replaced, never counted twice. The page size is found and
    not chosen: where it differs between rounds the label becomes None, and the figure stays one.
    """
    rounds = [one for one in (earlier.rounds if earlier else ()) if one.round != round_.round]
    rounds = sorted([*rounds, round_], key=lambda one: one.round)
    stored = earlier.metrics if earlier else ()
    # A probe that yields one figure for each page size means them apart.
    apart = _repeats(stored) or _repeats(new)
    collected: dict[str, Metric] = {}
    for metric in stored:
        samples = tuple(sample for sample in metric.samples if sample.round != round_.round)
        collected[_key(metric, apart)] = attrs.evolve(_own(metric), samples=samples)
    for metric in new:
        known = collected.get(_key(metric, apart))
        collected[_key(metric, apart)] = metric if known is None else _joined(known, metric)
    derived = tuple(_derived(metric) for metric in collected.values())
    state, reason = _verdict(case, rounds, derived)
    return Outcome(
        probe=case.probe,
        case=case.name,
        state=state,
        reason=reason,
        seconds=sum(one.seconds for one in rounds),
        rounds_planned=case.rounds,
        rounds=tuple(rounds),
        metrics=derived,
        title=case.title,
    )


_LOST = (State.FAILED, State.NOT_PERMITTED, State.NOT_PRESENT)


def evidence(outcome: Outcome) -> tuple[Metric, ...]:
    """The metrics of an outcome as far as they may be believed.

    Where a round failed, what the rounds before it gave is kept and shown, and decides nothing: the worker that
    died in the fourth of nine may have met the very fault that a buyer must know.
    """
    if outcome.state not in _LOST:
        return outcome.metrics
    return tuple(
        metric
        if metric.state in _LOST
        else attrs.evolve(metric, state=outcome.state, reason=outcome.reason or metric.reason)
        for metric in outcome.metrics
    )


def due(execution: Execution, outcomes: Iterable[Outcome]) -> Execution | None:
    """`execution` with the cases that are still to be run, or None.

    A case whose round is stored is done. A case that failed in any round, or that the machine refuses, is not
    tried again: its outcome is decided, and a hang would cost its whole limit once more.
    """
    known = {(outcome.probe, outcome.case): outcome for outcome in outcomes}
    left = []
    for case in execution.cases:
        outcome = known.get((case.probe, case.name))
        ran = [] if outcome is None else [one for one in outcome.rounds if one.state is not State.NOT_RUN]
        if any(one.state is not State.OK or one.round == execution.round for one in ran):
            continue
        left.append(case)
    return attrs.evolve(execution, cases=tuple(left)) if left else None


def remaining(executions: Iterable[Execution], outcomes: Iterable[Outcome]) -> tuple[Execution, ...]:
    """What a resumed run has still to do; see `due`."""
    stored = tuple(outcomes)
    return tuple(left for execution in executions if (left := due(execution, stored)) is not None)


def join_proofs(*groups: Iterable[Proof]) -> tuple[Proof, ...]:
    """One proof a name: any False makes it False, else any None makes it None; the detail is the worst's."""
    joined: dict[str, Proof] = {}
    for proof in (proof for group in groups for proof in group):
        before = joined.get(proof.name)
        if before is None or _rank(proof) > _rank(before):
            joined[proof.name] = proof
    return tuple(joined.values())


def _rank(proof: Proof) -> int:
    return {True: 0, None: 1, False: 2}[proof.ok]


_FOUND = "page_size"


def _key(metric: Metric, apart: bool) -> str:
    labels = {name: value for name, value in metric.labels.items() if apart or name != _FOUND}
    return canonical([metric.name, plain(labels)])


def _repeats(metrics: Sequence[Metric]) -> bool:
    return len({_key(metric, apart=False) for metric in metrics}) < len(metrics)


def _joined(known: Metric, new: Metric) -> Metric:
    """Both metrics' samples and proofs; the worse of the verdicts that their probe gave, with its reason."""
    worse = min(known, new, key=lambda metric: _WORST.index(metric.state))
    labels, proofs = dict(known.labels), join_proofs(known.proofs, new.proofs)
    if labels.get(_FOUND) != new.labels.get(_FOUND):
        detail = (
            f"rounds differ: {labels.get(_FOUND) or 'mixed'} and {new.labels.get(_FOUND) or 'mixed'} bytes"
        )
        labels[_FOUND] = None
        proofs = join_proofs(proofs, (Proof(_FOUND, None, detail),))
    # A round that withholds its figure, as what it computed was wrong, leaves none of the others standing.
    withheld = any(one.state is State.FAILED and not one.samples for one in (known, new))
    return attrs.evolve(
        known,
        labels=labels,
        samples=() if withheld else (*known.samples, *new.samples),
        proofs=proofs,
        state=worse.state,
        reason=worse.reason,
    )


def _summary(metric: Metric) -> Summary:
    """What samples and proofs say of a metric. A failed proof fails it: its samples are of something else."""
    declaration = registry.find(metric.name) or MetricDeclaration(
        metric.name, metric.unit, metric.better, metric.name, ""
    )
    summary = summarise(metric.samples, declaration)
    false = [f"proof {proof.name} failed: {proof.detail}" for proof in metric.proofs if proof.ok is False]
    if not false:
        return summary
    return Summary(summary.median, summary.interval, State.FAILED, "; ".join(false))


def _own(metric: Metric) -> Metric:
    """A stored metric with the verdict that its probe gave by itself, less what was derived from samples."""
    derived = _summary(metric).reason
    own = metric.reason
    if own == derived:
        return attrs.evolve(metric, state=State.OK, reason=None)
    if own is not None and derived is not None:
        own = own.removesuffix(f"; {derived}")
    return attrs.evolve(metric, reason=own)


def _derived(metric: Metric) -> Metric:
    """The metric with median and interval, and the worse of its probe's verdict and that of the samples."""
    summary = _summary(metric)
    return attrs.evolve(
        metric,
        median=summary.median,
        interval=summary.interval,
        state=min(metric.state, summary.state, key=_WORST.index),
        reason="; ".join(reason for reason in (metric.reason, summary.reason) if reason) or None,
    )


def _verdict(case: Case, rounds: Sequence[Round], derived: Sequence[Metric]) -> tuple[State, str | None]:
    worst = min(rounds, key=lambda one: _WORST.index(one.state))
    if worst.state is not State.OK:
        missing = case.rounds - len(rounds)
        rest = "; later rounds were not tried" if missing > 0 else ""
        told = worst.reason or "no reason was given"
        return worst.state, f"round {worst.round + 1} of {case.rounds}: {told}{rest}"
    if len(rounds) < case.rounds:
        return State.UNSTABLE, f"{len(rounds)} of {case.rounds} rounds ran"
    metric = min(derived, key=lambda one: _WORST.index(one.state), default=None)
    if metric is None:
        return State.FAILED, "no metric came of it"
    return metric.state, None if metric.state is State.OK else f"{metric.name}: {metric.reason}"
