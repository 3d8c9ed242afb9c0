"""Evaluations, waivers and evidence as rows. Rows are only ever added."""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

from k3gate.documents import canonical, digest, plain, structure
from k3gate.errors import UsageError
from k3gate.records import Bound, CheckResult, Evidence, GateResult, StepResult, Verdict, Waiver
from k3gate.store.database import Statements, insert, insert_many, insert_with_id
from k3gate.store.rows import require, text


@frozen
class EvaluationSummary:
    """One line of the list of evaluations of a run."""

    id: int
    evaluated: str
    verdict: Verdict
    target: str
    target_hash: str
    criteria: str
    criteria_hash: str
    waivers: int
    version: str


@frozen
class StoredEvaluation:
    """An evaluation with the texts that it was made by."""

    result: GateResult
    criteria_text: str
    target_text: str


def add_evaluation(at: Statements, result: GateResult, criteria_text: str, target_text: str) -> int:
    """Add a judgement with all its checks; returns its id."""
    require(at, result.run)
    steps = [
        {name: getattr(step, name) for name in ("step", "name", "verdict", "question")}
        for step in result.steps
    ]
    key = insert_with_id(
        at,
        "evaluation",
        run_id=result.run,
        digest=evaluation_digest(result, criteria_text, target_text),
        verdict=result.verdict.value,
        target=text(result.target),
        target_hash=result.target_hash,
        target_text=target_text,
        criteria=text(result.criteria),
        criteria_hash=result.criteria_hash,
        criteria_text=criteria_text,
        waivers=result.waivers,
        version=text(result.version),
        evaluated=result.evaluated,
        notices=canonical(plain(result.notices)),
        steps=canonical(plain(steps)),
    )
    checks = [(step.step, check) for step in result.steps for check in step.checks]
    insert_many(at, "check_result", (_check_row(key, place, *check) for place, check in enumerate(checks)))
    return key


def evaluation_digest(result: GateResult, criteria_text: str, target_text: str) -> str:
    """What tells one judgement from another, also in another store: waivers have other ids there."""
    document = plain(result)
    for step in document["steps"]:
        for check in step["checks"]:
            if check["waiver"]:
                check["waiver"]["id"] = None
    return digest([document, criteria_text, target_text])


def _check_row(evaluation: int, position: int, step: int, check: CheckResult) -> dict[str, Any]:
    low, high = check.interval or (None, None)
    return {
        "evaluation_id": evaluation,
        "position": position,
        "step": step,
        "check_id": text(check.id),
        "claim": text(check.claim),
        "verdict": check.verdict.value,
        "decided": check.decided.value,
        "observed": canonical(plain(check.observed)),
        "low": low,
        "high": high,
        "bound_min": check.bound.min,
        "bound_max": check.bound.max,
        "unit": text(check.unit),
        "reason": text(check.reason),
        "source": text(check.source),
        "remedy": text(check.remedy),
        "waiver": canonical(plain(check.waiver)) if check.waiver else None,
        "evidence": canonical(plain(check.evidence)),
    }


def read_summaries(at: Statements, run_id: str) -> list[EvaluationSummary]:
    """The evaluations of a run, oldest first."""
    return [
        EvaluationSummary(row[0], row[1], Verdict(row[2]), *row[3:])
        for row in at.rows(
            "SELECT id, evaluated, verdict, target, target_hash, criteria, criteria_hash, waivers, version "
            "FROM evaluation WHERE run_id = :run ORDER BY id",
            run=run_id,
        )
    ]


def read_evaluation(at: Statements, key: int) -> StoredEvaluation:
    """One evaluation as it was made; raises `UsageError` where there is none of this id."""
    found = at.rows(
        "SELECT run_id, target, target_hash, criteria, criteria_hash, verdict, waivers, version, evaluated, "
        "notices, steps, criteria_text, target_text FROM evaluation WHERE id = :key",
        key=key,
    )
    if not found:
        raise UsageError(f"the store holds no evaluation {key}: k3gate show lists those of a run")
    row = found[0]
    checks: dict[int, list[CheckResult]] = {}
    for check in at.rows(
        "SELECT step, check_id, claim, verdict, decided, observed, low, high, bound_min, bound_max, unit, reason, "
        "source, remedy, waiver, evidence FROM check_result WHERE evaluation_id = :key ORDER BY position",
        key=key,
    ):
        checks.setdefault(check[0], []).append(_check(check))
    result = GateResult(
        run=row[0],
        target=row[1],
        target_hash=row[2],
        criteria=row[3],
        criteria_hash=row[4],
        verdict=Verdict(row[5]),
        waivers=row[6],
        version=row[7],
        evaluated=row[8],
        notices=tuple(json.loads(row[9])),
        steps=tuple(
            StepResult(
                step["step"],
                step["name"],
                Verdict(step["verdict"]),
                tuple(checks.get(step["step"], ())),
                step["question"],
            )
            for step in json.loads(row[10])
        ),
    )
    return StoredEvaluation(result, row[11], row[12])


def _check(row: tuple[Any, ...]) -> CheckResult:
    return CheckResult(
        id=row[1],
        claim=row[2],
        verdict=Verdict(row[3]),
        decided=Verdict(row[4]),
        observed=json.loads(row[5]),
        interval=None if row[6] is None else (row[6], row[7]),
        bound=Bound(row[8], row[9]),
        unit=row[10],
        reason=row[11],
        source=row[12],
        remedy=row[13],
        waiver=structure(json.loads(row[14]), Waiver) if row[14] else None,
        evidence=tuple(json.loads(row[15])),
    )


def add_waiver(at: Statements, waiver: Waiver) -> Waiver:
    """Add a waiver; one that is there already is given back as it stands."""
    require(at, waiver.run)
    # A waiver of before the column keeps the digest that it has, or an import would add it again.
    told = [getattr(waiver, name) for name in _WAIVER if name != "target" or waiver.target is not None]
    identity = digest(plain(told))
    found = at.rows("SELECT id FROM waiver WHERE digest = :digest", digest=identity)
    key = int(found[0][0]) if found else _insert_waiver(at, waiver, identity)
    return Waiver(key, *(getattr(waiver, name) for name in _WAIVER))


_WAIVER = ("run", "check", "criteria", "observed", "verdict", "who", "when", "why", "target")


def _insert_waiver(at: Statements, waiver: Waiver, identity: str) -> int:
    return insert_with_id(
        at,
        "waiver",
        digest=identity,
        run_id=waiver.run,
        check_id=text(waiver.check),
        criteria_hash=waiver.criteria,
        observed=text(waiver.observed),
        verdict=waiver.verdict.value,
        who=text(waiver.who),
        made=text(waiver.when),
        why=text(waiver.why),
        target_hash=waiver.target,
    )


def read_waivers(at: Statements, run_id: str) -> tuple[Waiver, ...]:
    """The waivers of a run, oldest first, lapsed ones too: which hold is the gate's to say."""
    return tuple(
        Waiver(row[0], row[1], row[2], row[3], row[4], Verdict(row[5]), *row[6:])
        for row in at.rows(
            "SELECT id, run_id, check_id, criteria_hash, observed, verdict, who, made, why, "
            "target_hash "
            "FROM waiver WHERE run_id = :run ORDER BY id",
            run=run_id,
        )
    )


def add_evidence(at: Statements, evidence: Evidence) -> None:
    """Add a fact about a subject; the same fact twice is kept once."""
    identity = digest(plain(evidence))
    if at.rows("SELECT id FROM evidence WHERE digest = :digest", digest=identity):
        return
    _add_subject(at, evidence.subject, evidence.subject_kind)
    insert(
        at,
        "evidence",
        digest=identity,
        check_id=evidence.check,
        subject=evidence.subject,
        verdict=evidence.verdict.value,
        detail=text(evidence.detail),
        gathered=text(evidence.gathered),
        data=canonical(plain(evidence.data)),
    )


def add_subject(at: Statements, run_id: str, subject: str, kind: str) -> None:
    """Say that a run is about a subject: its evidence joins the run."""
    require(at, run_id)
    _add_subject(at, subject, kind)
    known = at.rows(
        "SELECT 1 FROM run_subject WHERE run_id = :run AND subject = :subject", run=run_id, subject=subject
    )
    if not known:
        insert(at, "run_subject", run_id=run_id, subject=subject)


def _add_subject(at: Statements, subject: str, kind: str) -> None:
    if not at.rows("SELECT 1 FROM subject WHERE digest = :digest", digest=subject):
        insert(at, "subject", digest=subject, kind=text(kind))


def read_evidence_on(at: Statements, subject: str, check: str) -> tuple[Evidence, ...]:
    """What was gathered on a subject for one check, oldest first, whatever run it joins."""
    return _evidence_where(at, "subject = :subject AND check_id = :check_id", subject=subject, check_id=check)


def read_evidence(at: Statements, run_id: str, fingerprint: str | None) -> tuple[Evidence, ...]:
    """What is known of the run's subjects and of its machine, oldest first."""
    return _evidence_where(
        at,
        "subject = :machine OR subject IN (SELECT subject FROM run_subject WHERE run_id = :run)",
        run=run_id,
        machine=fingerprint or "",
    )


def _evidence_where(at: Statements, condition: str, **values: str) -> tuple[Evidence, ...]:
    """The rows that a condition of ours holds for; what comes from outside is in `values`."""
    return tuple(
        Evidence(row[0], row[1], row[2], Verdict(row[3]), row[4], row[5], json.loads(row[6]))
        for row in at.rows(
            "SELECT check_id, subject, kind, verdict, detail, gathered, data FROM evidence "
            f"JOIN subject ON subject.digest = evidence.subject WHERE {condition} ORDER BY evidence.id",
            **values,
        )
    )
