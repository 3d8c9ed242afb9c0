"""Runs in a database: SQLite, or another that an SQLAlchemy URL names. What was stored stays stored."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from attrs import frozen

from k3gate.documents import printable
from k3gate.errors import StorageError, UsageError
from k3gate.records import (
    Evidence,
    GateResult,
    Inventory,
    Outcome,
    Phase,
    Run,
    RunRecord,
    RunStatus,
    Series,
    Waiver,
)
from k3gate.store import judgements, processes, references, rows, schema, watched
from k3gate.store.database import Database, SQLiteDatabase, Statements, insert, update
from k3gate.store.judgements import EvaluationSummary, StoredEvaluation
from k3gate.store.references import RunSummary

__all__ = ["Artifact", "EvaluationSummary", "RunSummary", "Store", "StoredEvaluation", "open_store"]

T = TypeVar("T")

ARTIFACT_BYTES = 2**20


@frozen
class Artifact:
    """What a worker printed. `size`: its bytes before the cut to `ARTIFACT_BYTES`; `note` says so."""

    probe: str | None
    case: str | None
    name: str
    data: bytes
    size: int
    note: str | None


class Store:
    """The runs of one database. Each method is one transaction: all of it is stored, or nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.location = database.name

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user must know of this store: a rollback journal in place of the write-ahead log."""
        return tuple(self._database.notices)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def transaction(self, work: Callable[[Statements], T]) -> T:
        """Several steps in one transaction."""
        return self._database.write(work)

    def begin_run(self, run: Run, inventory: Inventory) -> None:
        """Add a run; while it is `running` it belongs to this process."""
        writer = processes.current()
        self._database.write(lambda at: rows.insert_run(at, run, inventory, writer))

    def update_run(self, run: Run) -> None:
        """Replace status, stamps, notices and split of a run."""
        writer = processes.current()
        self._database.write(lambda at: rows.update_run(at, run, writer))

    def save_outcome(self, run_id: str, outcome: Outcome, new_round: int | None = None) -> None:
        """Add or replace an outcome, with the samples of `new_round` (None: all). `ValueError` on a NaN."""
        rows.check_finite(outcome)
        self._database.write(lambda at: rows.save_outcome(at, run_id, outcome, new_round))

    def save_outcomes(self, run_id: str, outcomes: Sequence[Outcome]) -> None:
        """Add or replace several outcomes at once, each with all of its samples. `ValueError` on a NaN."""
        for outcome in outcomes:
            rows.check_finite(outcome)

        def work(at: Statements) -> None:
            for outcome in outcomes:
                rows.save_outcome(at, run_id, outcome, None)

        self._database.write(work)

    def _read(self, work: Callable[[Statements], T]) -> T:
        try:
            return self._database.read(work)
        except (
            AttributeError,
            IndexError,
            KeyError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            cause = printable(" ".join(str(error).split())[:200])
            raise UsageError(
                f"store {self.location} holds a row that cannot be read ({cause}): import its run again "
                "into another --store"
            ) from error

    def load(self, run_id: str) -> RunRecord:
        """A run with all that was measured, its waivers, and the evidence on its subjects and its machine."""

        def work(at: Statements) -> RunRecord:
            run, inventory = rows.read_run(at, run_id)
            return RunRecord(
                run,
                inventory,
                rows.read_outcomes(at, run_id),
                judgements.read_evidence(at, run_id, run.fingerprint),
                judgements.read_waivers(at, run_id),
                watched.read_series(at, run_id),
                watched.read_phases(at, run_id),
            )

        return self._read(work)

    def add_watched(self, run_id: str, series: Sequence[Series], phases: Sequence[Phase]) -> None:
        """Add pieces of series and phases of a run. `ValueError` on a NaN."""
        self._database.write(lambda at: watched.add(at, run_id, series, phases))

    def resolve(self, reference: str, *, complete_only: bool = False) -> str:
        """The id of the one run that an id, its beginning, "latest" or "latest@MACHINE" names."""
        return self._read(lambda at: references.resolve(at, reference, complete_only=complete_only))

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        return self._read(references.read_summaries)

    def add_evaluation(self, result: GateResult, criteria_text: str, target_text: str) -> int:
        """Add a judgement beside earlier ones; returns its id."""
        return self._database.write(
            lambda at: judgements.add_evaluation(at, result, criteria_text, target_text)
        )

    def evaluations(self, run_id: str) -> list[EvaluationSummary]:
        """The judgements of a run, oldest first."""
        return self._read(lambda at: judgements.read_summaries(at, run_id))

    def evaluation(self, key: int) -> GateResult:
        """One judgement as it was made."""
        return self.stored_evaluation(key).result

    def stored_evaluation(self, key: int) -> StoredEvaluation:
        """One judgement with the texts of its criteria and target."""
        return self._read(lambda at: judgements.read_evaluation(at, key))

    def add_waiver(self, waiver: Waiver) -> Waiver:
        """Add a waiver; returns it with its id."""
        return self._database.write(lambda at: judgements.add_waiver(at, waiver))

    def waivers(self, run_id: str) -> tuple[Waiver, ...]:
        """All waivers of a run, lapsed ones too."""
        return self._read(lambda at: judgements.read_waivers(at, run_id))

    def add_evidence(self, evidence: Evidence) -> None:
        """Add a fact about a subject; it joins every run that is about the subject."""
        self._database.write(lambda at: judgements.add_evidence(at, evidence))

    def evidence_on(self, subject: str, check: str) -> tuple[Evidence, ...]:
        """What was gathered on a subject for one check, oldest first."""
        return self._read(lambda at: judgements.read_evidence_on(at, subject, check))

    def add_subject(self, run_id: str, subject: str, kind: str) -> None:
        """Say that a run is about a subject, by digest."""
        self._database.write(lambda at: judgements.add_subject(at, run_id, subject, kind))

    def subjects(self, run_id: str) -> list[tuple[str, str]]:
        """Digest and kind of what a run is about."""
        found = self._read(
            lambda at: at.rows(
                "SELECT subject, kind FROM run_subject JOIN subject ON digest = subject WHERE run_id = :run "
                "ORDER BY subject",
                run=run_id,
            )
        )
        return [(row[0], row[1]) for row in found]

    def add_artifact(self, run_id: str, case: tuple[str, str] | None, name: str, data: bytes) -> None:
        """Keep what a worker printed, its first MiB; `case` is (probe, case)."""
        cut = len(data) > ARTIFACT_BYTES
        note = f"cut to the first {ARTIFACT_BYTES} of {len(data)} bytes" if cut else None
        probe, case_name = case or (None, None)
        one = Artifact(probe, case_name, name, data[:ARTIFACT_BYTES], len(data), note)
        self._database.write(lambda at: insert_artifact(at, run_id, one))

    def artifacts(self, run_id: str) -> list[Artifact]:
        """What the workers of a run printed, in the order of arrival."""
        found = self._read(
            lambda at: at.rows(
                "SELECT probe, case_name, name, data, size, note FROM artifact WHERE run_id = :run "
                "ORDER BY id",
                run=run_id,
            )
        )
        return [Artifact(*row) for row in found]

    def abandon_dead(self) -> list[str]:
        """Mark runs `abandoned` whose process is gone without a word; returns their ids."""

        def dead(at: Statements) -> list[str]:
            here = processes.current()
            return [
                str(row[0])
                for row in at.rows(
                    "SELECT id, pid, boot, process_ticks, host FROM run WHERE status = :status",
                    status=RunStatus.RUNNING.value,
                )
                if processes.is_gone(processes.Writer(*row[1:]), here)
            ]

        def mark(at: Statements) -> list[str]:
            lost = dead(at)
            for run_id in lost:
                update(at, "run", run_id, status=RunStatus.ABANDONED.value)
            return lost

        # A store that cannot be written can still be read; the next start that may write marks them.
        try:
            return self._database.write(mark) if self._read(dead) else []
        except StorageError:
            return []


def insert_artifact(at: Statements, run_id: str, one: Artifact) -> None:
    """Add an artifact as it is."""
    insert(
        at,
        "artifact",
        run_id=run_id,
        probe=one.probe,
        case_name=one.case,
        name=one.name,
        size=one.size,
        note=one.note,
        data=one.data,
    )


def open_store(location: str | None = None, *, create: bool = True) -> Store:
    """The store at `location` (a path or an SQLAlchemy URL), else $K3GATE_STORE, else the user's own.

    Raises `UsageError` where it cannot be used, is newer than this version, or is missing without `create`.
    """
    where = _place(location)
    database: Database
    if "://" in where:
        from k3gate.store.engine import EngineDatabase

        database = EngineDatabase(where, create=create)
    else:
        database = _sqlite(Path(where).expanduser().absolute(), create)
    try:
        schema.prepare(database)
    except BaseException:
        database.close()
        raise
    return Store(database)


def folder_of(location: str | None = None) -> str | None:
    """The folder of the store's file, or of the user's own store for one behind a URL, without links in it; where it is
    not there yet, the nearest one above. None: there is none."""
    where = _place(location)
    path = _default() if "://" in where else Path(where).expanduser().absolute()
    folder = next((one for one in path.parents if one.is_dir()), None)
    return None if folder is None else os.path.realpath(folder)


def _place(location: str | None) -> str:
    return location or os.environ.get("K3GATE_STORE") or str(_default())


def _default() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or ""
    folder = Path(base) if Path(base).is_absolute() else Path("~/.local/share").expanduser()
    return folder / "k3gate" / "runs.sqlite"


def _sqlite(path: Path, create: bool) -> SQLiteDatabase:
    from k3gate.mounts import is_network
    from k3gate.store.filesystems import filesystem_type, read_mountinfo

    hint = "name another place with --store or K3GATE_STORE"
    try:
        there = path.exists()
        if there and not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"store {path} is no file: {hint}")
        if not there and not create:
            raise UsageError(f"there is no store {path}: make a run first (k3gate run), or {hint}")
        if not there:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"store {path} cannot be used ({error.strerror}): {hint}") from error
    kind = filesystem_type(path.parent.resolve(), read_mountinfo())
    return SQLiteDatabase(path, network=kind if is_network(kind) else None)
