"""Runs and their measurements as rows, and rows as the records that were saved."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from k3gate.documents import canonical, digest, plain, printable, structure
from k3gate.errors import UsageError
from k3gate.records import (
    Better,
    Case,
    Inventory,
    LeftOut,
    Metric,
    Outcome,
    Proof,
    Round,
    Run,
    RunStatus,
    Sample,
    State,
)
from k3gate.store.database import Statements, insert, insert_many, insert_with_id, update
from k3gate.store.processes import Writer


def insert_run(at: Statements, run: Run, inventory: Inventory, writer: Writer) -> None:
    """Add a run with the machine as it was."""
    (sequence,) = at.rows("SELECT COALESCE(MAX(sequence), 0) + 1 FROM run")[0]
    insert(
        at,
        "run",
        id=run.id,
        sequence=sequence,
        machine_id=_machine(at, run),
        inventory=canonical(plain(inventory)),
        **_columns(run),
        **_writer(writer),
    )


def update_run(at: Statements, run: Run, writer: Writer) -> None:
    """Replace the columns of a run that may change; a run that is `running` belongs to `writer` from now on."""
    require(at, run.id)
    changed = _columns(run) | (_writer(writer) if run.status is RunStatus.RUNNING else {})
    update(at, "run", run.id, machine_id=_machine(at, run), **changed)


def _machine(at: Statements, run: Run) -> int:
    identity = digest(plain([run.machine, run.fingerprint, run.machine_name]))
    found = at.rows("SELECT id FROM machine WHERE digest = :digest", digest=identity)
    if found:
        return int(found[0][0])
    return insert_with_id(
        at,
        "machine",
        digest=identity,
        machine_id=run.machine,
        fingerprint=run.fingerprint,
        name=text(run.machine_name),
    )


def text(value: str | None) -> str | None:
    """A text as any database takes it: what is no UTF-8 and what is no character as visible escapes."""
    return None if value is None else printable(value)


def require(at: Statements, run_id: str) -> None:
    """Raise `UsageError` where the store does not hold the run."""
    if not at.rows("SELECT 1 FROM run WHERE id = :id", id=run_id):
        raise UsageError(
            f"the store holds no run {printable(run_id)[:80]!r}: k3gate runs lists what it holds"
        )


def _columns(run: Run) -> dict[str, Any]:
    return {
        "profile": text(run.profile),
        "version": text(run.version),
        "started": run.started,
        "ended": run.ended,
        "status": run.status.value,
        "seconds": run.seconds,
        "target": text(run.target),
        "target_text": text(run.target_text),
        "command": text(run.command),
        "notices": canonical(plain(run.notices)),
        "split": canonical(plain(run.split)),
        "plan": canonical(plain(run.plan)),
        "left_out": canonical(plain(run.left_out)),
    }


def _writer(writer: Writer) -> dict[str, Any]:
    return {
        "pid": writer.pid,
        "boot": writer.boot,
        "process_ticks": writer.ticks,
        "host": writer.host,
    }


def read_run(at: Statements, run_id: str) -> tuple[Run, Inventory]:
    """A run and its machine; raises `UsageError` where the store does not hold it, `ValueError` for bad rows."""
    require(at, run_id)
    row = at.rows(
        "SELECT run.id, machine.machine_id, machine.fingerprint, machine.name, profile, version, started, ended, "
        "status, seconds, target, command, notices, split, plan, left_out, inventory, "
        "target_text "
        "FROM run JOIN machine ON machine.id = run.machine_id WHERE run.id = :id",
        id=run_id,
    )[0]
    run = Run(
        id=row[0],
        machine=row[1],
        fingerprint=row[2],
        machine_name=row[3],
        profile=row[4],
        version=row[5],
        started=row[6],
        ended=row[7],
        status=RunStatus(row[8]),
        seconds=row[9],
        target=row[10],
        command=row[11],
        notices=structure(json.loads(row[12]), tuple[str, ...]),
        split=structure(json.loads(row[13]), dict[str, float]),
        plan=structure(json.loads(row[14]), tuple[Case, ...]),
        left_out=structure(json.loads(row[15]), tuple[LeftOut, ...]),
        target_text=row[17],
    )
    return run, structure(json.loads(row[16]), Inventory)


def save_outcome(at: Statements, run_id: str, outcome: Outcome, new_round: int | None) -> None:
    """Add or replace an outcome; of its samples only those of `new_round` are written (None: all of them)."""
    require(at, run_id)
    probe, case = printable(outcome.probe), printable(outcome.case)
    columns = {
        "title": printable(outcome.title),
        "state": outcome.state.value,
        "reason": text(outcome.reason),
        "seconds": outcome.seconds,
        "rounds_planned": outcome.rounds_planned,
    }
    found = at.rows(
        "SELECT id FROM outcome WHERE run_id = :run AND probe = :probe AND case_name = :name",
        run=run_id,
        probe=probe,
        name=case,
    )
    if found:
        key = int(found[0][0])
        update(at, "outcome", key, **columns)
    else:
        (position,) = at.rows("SELECT COUNT(*) FROM outcome WHERE run_id = :run", run=run_id)[0]
        key = insert_with_id(
            at,
            "outcome",
            run_id=run_id,
            position=position,
            probe=probe,
            case_name=case,
            **columns,
        )
    at.rows("DELETE FROM round WHERE outcome_id = :key", key=key)
    insert_many(
        at,
        "round",
        (
            {"outcome_id": key, "position": position, **plain(round_)}
            for position, round_ in enumerate(outcome.rounds)
        ),
    )
    kept = [_save_metric(at, key, place, metric, new_round) for place, metric in enumerate(outcome.metrics)]
    for (stored,) in at.rows("SELECT id FROM metric WHERE outcome_id = :key", key=key):
        if stored not in kept:
            at.rows("DELETE FROM metric WHERE id = :stored", stored=stored)


def _save_metric(at: Statements, outcome: int, position: int, metric: Metric, new_round: int | None) -> int:
    low, high = metric.interval or (None, None)
    columns = {
        "position": position,
        "unit": printable(metric.unit),
        "better": metric.better.value,
        "median": metric.median,
        "low": low,
        "high": high,
        "state": metric.state.value,
        "reason": text(metric.reason),
        "proofs": canonical(plain(metric.proofs)),
    }
    name, labels = printable(metric.name), canonical(plain(metric.labels))
    found = at.rows(
        "SELECT id FROM metric WHERE outcome_id = :outcome AND name = :name AND labels = :labels",
        outcome=outcome,
        name=name,
        labels=labels,
    )
    if found:
        key = int(found[0][0])
        update(at, "metric", key, **columns)
    else:
        key = insert_with_id(at, "metric", outcome_id=outcome, name=name, labels=labels, **columns)
    _save_samples(at, key, metric.samples, new_round)
    return key


def _save_samples(at: Statements, metric: int, samples: tuple[Sample, ...], new_round: int | None) -> None:
    """Add the samples of a new round where they follow those stored; else write all anew, in their order."""
    first = len(samples)
    while first > 0 and samples[first - 1].round == new_round:
        first -= 1
    (stored,) = at.rows("SELECT COUNT(*) FROM sample WHERE metric_id = :metric", metric=metric)[0]
    if new_round is None or stored != first:
        at.rows("DELETE FROM sample WHERE metric_id = :metric", metric=metric)
        first = 0
    insert_many(
        at,
        "sample",
        (
            {"metric_id": metric, "position": place, **plain(samples[place])}
            for place in range(first, len(samples))
        ),
    )


def read_outcomes(at: Statements, run_id: str) -> tuple[Outcome, ...]:
    """All outcomes of a run, in the order in which they were saved; raises `ValueError` for bad rows."""
    rounds: dict[int, list[Round]] = defaultdict(list)
    for row in at.rows(
        "SELECT outcome_id, round, round.state, round.reason, round.seconds, timed_seconds, setup_seconds, process "
        "FROM round JOIN outcome ON outcome.id = outcome_id WHERE run_id = :run "
        "ORDER BY outcome_id, round.position",
        run=run_id,
    ):
        rounds[row[0]].append(Round(row[1], State(row[2]), *row[3:]))
    samples: dict[int, list[Sample]] = defaultdict(list)
    for row in at.rows(
        "SELECT metric_id, value, round, process, start_s FROM sample "
        "JOIN metric ON metric.id = metric_id JOIN outcome ON outcome.id = outcome_id WHERE run_id = :run "
        "ORDER BY metric_id, sample.position",
        run=run_id,
    ):
        samples[row[0]].append(Sample(*row[1:]))
    metrics: dict[int, list[Metric]] = defaultdict(list)
    for row in at.rows(
        "SELECT metric.id, outcome_id, name, unit, better, labels, median, low, high, metric.state, metric.reason, "
        "proofs FROM metric JOIN outcome ON outcome.id = outcome_id WHERE run_id = :run "
        "ORDER BY outcome_id, metric.position",
        run=run_id,
    ):
        metrics[row[1]].append(_metric(row, samples[row[0]]))
    outcomes = tuple(
        Outcome(
            probe=row[1],
            case=row[2],
            state=State(row[4]),
            reason=row[5],
            seconds=row[6],
            rounds_planned=row[7],
            rounds=tuple(rounds[row[0]]),
            metrics=tuple(metrics[row[0]]),
            title=row[3],
        )
        for row in at.rows(
            "SELECT id, probe, case_name, title, state, reason, seconds, rounds_planned FROM outcome "
            "WHERE run_id = :run ORDER BY position",
            run=run_id,
        )
    )
    for outcome in outcomes:
        check_finite(outcome)
    return outcomes


def _metric(row: tuple[Any, ...], samples: Iterable[Sample]) -> Metric:
    labels = json.loads(row[5])
    if not isinstance(labels, dict):
        raise ValueError("the labels of a metric are no JSON object")
    return Metric(
        name=row[2],
        unit=row[3],
        better=Better(row[4]),
        labels=labels,
        samples=tuple(samples),
        median=row[6],
        interval=None if row[7] is None else (row[7], row[8]),
        state=State(row[9]),
        reason=row[10],
        proofs=tuple(Proof(**proof) for proof in json.loads(row[11])),
    )


def check_finite(outcome: Outcome) -> None:
    """Raise `ValueError` for an outcome with a number that is none: it would come back as another one."""
    numbers: list[float | None] = [outcome.seconds]
    for round_ in outcome.rounds:
        numbers += [round_.seconds, round_.timed_seconds, round_.setup_seconds]
    for metric in outcome.metrics:
        numbers += [metric.median, *(metric.interval or ())]
        numbers += [number for sample in metric.samples for number in (sample.value, sample.start_s)]
        numbers += [label for label in metric.labels.values() if isinstance(label, float)]
    if not all(number is None or math.isfinite(number) for number in numbers):
        raise ValueError(
            f"case {outcome.probe}/{outcome.case} holds a number that is not finite: None is unknown"
        )
