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
    word, at_sign, machine = reference.partition("@")
    shown = printable(reference)[:80]
    if not rows:
        raise UsageError(f"the store holds no run yet, so none is {shown!r}: make one with k3gate run")
    if word == "latest":
        found = _on(rows, machine) if at_sign else rows
    else:
        found = [row for row in rows if row[0] == reference] or [
            row for row in rows if reference and str(row[0]).startswith(reference)
        ]
        if not found:
            raise UsageError(
                f"no run {shown!r} in the store: it holds {_listed(rows)}; k3gate runs lists all"
            )
    usable = [row for row in found if not complete_only or row[4] == RunStatus.COMPLETE.value]
    if not usable:
        raise UsageError(
            f"run {found[0][0]} is {found[0][4]}, and only a complete run is evidence: "
            f"resume it with k3gate run --resume {found[0][0]}"
        )
    if word != "latest" and len(usable) > 1:
        raise UsageError(f"run {shown!r} fits {len(usable)} runs ({_listed(usable)}): type more of the id")
    return str(usable[0][0])


def _on(rows: list[Row], machine: str) -> list[Row]:
    """The runs on a machine; raises `UsageError` where there is none, or two machines of that name."""
    found = [row for row in rows if _is_on(row, machine)]
    if not found:
        names = sorted({str(row[1] or row[3] or "unknown") for row in rows})[:SHOWN]
        raise UsageError(
            f"the store holds no run on machine {printable(machine)[:80]!r}: it knows {', '.join(names)}"
        )
    newest = {row[2] or row[3] or row[1]: row for row in reversed(found)}
    if len(newest) > 1:
        named = ", ".join(f"{key} with {row[0]}" for key, row in list(newest.items())[:SHOWN])
        raise UsageError(
            f"machine {printable(machine)[:80]!r} fits {len(newest)} machines ({named}): type a run or a machine's id"
        )
    return found


def _is_on(row: Row, machine: str) -> bool:
    name, identity, fingerprint = row[1], row[2] or "", row[3] or ""
    if not machine.removeprefix("sha256:"):
        return False
    return (
        name == machine
        or identity.startswith(machine)
        or fingerprint.removeprefix("sha256:").startswith(machine.removeprefix("sha256:"))
    )


def _listed(rows: list[Row]) -> str:
    return ", ".join(f"{row[0]} of {row[5]}" for row in rows[:SHOWN])
