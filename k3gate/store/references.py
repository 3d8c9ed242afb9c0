"""Which run a user means, and the list to choose from."""

from __future__ import annotations

from attrs import frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.records import RunStatus, Verdict
from k3gate.store.database import Row, Statements

SHOWN = 5


@frozen
class RunSummary:
    """One line of `k3gate runs`. `verdict` and `target` are those of the newest evaluation, if there is one."""

    id: str
    machine_name: str | None
    machine: str | None
    fingerprint: str | None
    profile: str
    status: RunStatus
    started: str
    seconds: float | None
    version: str
    cases: int
    verdict: Verdict | None
    target: str | None


def read_summaries(at: Statements) -> list[RunSummary]:
    """All runs, newest first."""
    rows = at.rows(
        "SELECT run.id, machine.name, machine.machine_id, machine.fingerprint, profile, status, started, seconds, "
        "run.version, (SELECT COUNT(*) FROM outcome WHERE outcome.run_id = run.id), evaluation.verdict, "
        "COALESCE(evaluation.target, run.target) FROM run JOIN machine ON machine.id = run.machine_id "
        "LEFT JOIN evaluation ON evaluation.id = (SELECT MAX(e.id) FROM evaluation e WHERE e.run_id = run.id) "
        "ORDER BY started DESC, sequence DESC"
    )
    return [
        RunSummary(
            id=row[0],
            machine_name=row[1],
            machine=row[2],
            fingerprint=row[3],
            profile=row[4],
            status=RunStatus(row[5]),
            started=row[6],
            seconds=row[7],
            version=row[8],
            cases=row[9],
            verdict=Verdict(row[10]) if row[10] else None,
            target=row[11],
        )
        for row in rows
    ]


def resolve(at: Statements, reference: str, *, complete_only: bool) -> str:
    """The id of the one run that `reference` names; raises `UsageError` for none or several."""
    rows = at.rows(
        "SELECT run.id, machine.name, machine.machine_id, machine.fingerprint, status, started FROM run "
        "JOIN machine ON machine.id = run.machine_id ORDER BY started DESC, sequence DESC"
    )
    if complete_only:
        rows = [row for row in rows if row[4] == RunStatus.COMPLETE.value]
    word, at_sign, machine = reference.partition("@")
    shown = printable(reference)[:80]
    if not rows:
        kind = "complete run" if complete_only else "run"
        raise UsageError(f"the store holds no {kind} yet, so none is {shown!r}: make one with k3gate run")
    if word == "latest":
        found = [row for row in rows if _is_on(row, machine)] if at_sign else rows
        if not found:
            names = sorted({str(row[1] or row[3] or "unknown") for row in rows})[:SHOWN]
            raise UsageError(f"the store holds no run on machine {machine!r}: it knows {', '.join(names)}")
        return str(found[0][0])
    found = [row for row in rows if row[0] == reference] or [
        row for row in rows if reference and str(row[0]).startswith(reference)
    ]
    if len(found) == 1:
        return str(found[0][0])
    listed = ", ".join(_named(row) for row in (found or rows)[:SHOWN])
    if found:
        raise UsageError(f"run {shown!r} fits {len(found)} runs ({listed}): type more of the id")
    raise UsageError(f"no run {shown!r} in the store: it holds {listed}; k3gate runs lists all")


def _is_on(row: Row, machine: str) -> bool:
    name, identity, fingerprint = row[1], row[2] or "", row[3] or ""
    if not machine:
        return False
    return (
        name == machine
        or identity.startswith(machine)
        or fingerprint.removeprefix("sha256:").startswith(machine.removeprefix("sha256:"))
    )


def _named(row: Row) -> str:
    return f"{row[0]} of {row[5]}"
