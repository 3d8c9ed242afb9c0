"""The tables, as SQLAlchemy typed declarative models: the source of truth for the migrations.

Only migrations and databases other than SQLite import this module, for SQLAlchemy alone takes a third of a
second to import; the statements in `rows`, `judgements` and `references` are portable SQL over these tables.
Documents that are only ever read whole (inventory, plan, labels, proofs) are canonical JSON in a text column;
whatever is searched, joined or compared has a column. Stamps are ISO 8601 texts in UTC.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Constraints get predictable names, so that a later migration can address them on any database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {str: Text, float: Double, int: Integer, bytes: LargeBinary}


def _of_run(index: bool = True) -> Mapped[str]:
    return mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=index)


class Machine(Base):
    """A machine as a run named it; `digest` is that of id, fingerprint and name together."""

    __tablename__ = "machine"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    machine_id: Mapped[str | None] = mapped_column(index=True)
    fingerprint: Mapped[str | None] = mapped_column(index=True)
    name: Mapped[str | None] = mapped_column(index=True)


class Run(Base):
    """A run with the machine as it was then. `sequence`: order of arrival in this store, for equal stamps.

    `pid`, `boot`, `process_ticks` and `host` say which process writes it, see `processes`.
    """

    __tablename__ = "run"

    id: Mapped[str] = mapped_column(primary_key=True)
    sequence: Mapped[int]
    machine_id: Mapped[int] = mapped_column(ForeignKey("machine.id"), index=True)
    profile: Mapped[str]
    version: Mapped[str]
    started: Mapped[str] = mapped_column(index=True)
    ended: Mapped[str | None]
    status: Mapped[str] = mapped_column(index=True)
    seconds: Mapped[float | None]
    target: Mapped[str | None]
    command: Mapped[str | None]
    notices: Mapped[str]
    split: Mapped[str]
    plan: Mapped[str]
    left_out: Mapped[str]
    inventory: Mapped[str]
    pid: Mapped[int | None]
    boot: Mapped[str | None]
    process_ticks: Mapped[int | None] = mapped_column(BigInteger)
    host: Mapped[str | None]
    target_text: Mapped[str | None]


class Outcome(Base):
    """What became of a case."""

    __tablename__ = "outcome"
    __table_args__ = (UniqueConstraint("run_id", "probe", "case_name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = _of_run(index=False)
    position: Mapped[int]
    probe: Mapped[str]
    case_name: Mapped[str]
    title: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str | None]
    seconds: Mapped[float]
    rounds_planned: Mapped[int]


class Round(Base):
    """One execution of a case in a fresh process."""

    __tablename__ = "round"

    outcome_id: Mapped[int] = mapped_column(ForeignKey("outcome.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    round: Mapped[int]
    state: Mapped[str]
    reason: Mapped[str | None]
    seconds: Mapped[float]
    timed_seconds: Mapped[float]
    setup_seconds: Mapped[float]
    process: Mapped[int | None]


class Metric(Base):
    """A metric of an outcome; `labels` (canonical JSON) and name are its key. Low and high: the interval."""

    __tablename__ = "metric"
    __table_args__ = (UniqueConstraint("outcome_id", "name", "labels"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    outcome_id: Mapped[int] = mapped_column(ForeignKey("outcome.id", ondelete="CASCADE"))
    position: Mapped[int]
    name: Mapped[str] = mapped_column(index=True)
    unit: Mapped[str]
    better: Mapped[str]
    labels: Mapped[str]
    median: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    state: Mapped[str]
    reason: Mapped[str | None]
    proofs: Mapped[str]


class Sample(Base):
    """One observed value of a metric, in the order of the record."""

    __tablename__ = "sample"
    __table_args__ = ({"sqlite_with_rowid": False},)

    metric_id: Mapped[int] = mapped_column(ForeignKey("metric.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[float]
    round: Mapped[int]
    process: Mapped[int]
    start_s: Mapped[float]


class Series(Base):
    """A quantity watched while the run went on, or a piece of it: pieces of one name and labels follow one another.

    `points`: JSON, [[seconds since the run began, ...], [value or null, ...]]; a value holds until the next.
    """

    __tablename__ = "series"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = _of_run()
    name: Mapped[str]
    unit: Mapped[str]
    labels: Mapped[str]
    points: Mapped[str]


class Phase(Base):
    """When a round of a case ran, in seconds since the run began."""

    __tablename__ = "phase"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = _of_run()
    probe: Mapped[str]
    case_name: Mapped[str]
    round: Mapped[int]
    start_s: Mapped[float]
    end_s: Mapped[float]


class Artifact(Base):
    """What a worker wrote, bounded. `size`: bytes before the cut; `note` says what was cut."""

    __tablename__ = "artifact"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = _of_run()
    probe: Mapped[str | None]
    case_name: Mapped[str | None]
    name: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    note: Mapped[str | None]
    data: Mapped[bytes]


class Subject(Base):
    """What evidence is about, by digest: a checkpoint, a converted file, a runtime build, a machine."""

    __tablename__ = "subject"

    digest: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]


class RunSubject(Base):
    """The subjects of a run: its evidence is theirs and its machine's (by fingerprint)."""

    __tablename__ = "run_subject"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    subject: Mapped[str] = mapped_column(ForeignKey("subject.digest"), primary_key=True)


class Evidence(Base):
    """A fact about a subject. `digest` is that of the whole record, so that one fact is kept once."""

    __tablename__ = "evidence"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    check_id: Mapped[str]
    subject: Mapped[str] = mapped_column(ForeignKey("subject.digest"), index=True)
    verdict: Mapped[str]
    detail: Mapped[str]
    gathered: Mapped[str]
    data: Mapped[str]


class Evaluation(Base):
    """One judgement of a run; rows are only ever added. `steps`: the steps without their checks, as JSON."""

    __tablename__ = "evaluation"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = _of_run()
    digest: Mapped[str] = mapped_column(index=True)
    verdict: Mapped[str]
    target: Mapped[str]
    target_hash: Mapped[str]
    target_text: Mapped[str]
    criteria: Mapped[str]
    criteria_hash: Mapped[str]
    criteria_text: Mapped[str]
    waivers: Mapped[int]
    version: Mapped[str]
    evaluated: Mapped[str]
    notices: Mapped[str]
    steps: Mapped[str]


class CheckResult(Base):
    """A check of an evaluation. `observed` is JSON (number, word or null); `waiver` the one applied, as JSON.

    The design's table "check", under a name that is no SQL keyword.
    """

    __tablename__ = "check_result"

    evaluation_id: Mapped[int] = mapped_column(
        ForeignKey("evaluation.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int]
    check_id: Mapped[str]
    claim: Mapped[str]
    verdict: Mapped[str]
    decided: Mapped[str]
    observed: Mapped[str]
    low: Mapped[float | None]
    high: Mapped[float | None]
    bound_min: Mapped[float | None]
    bound_max: Mapped[float | None]
    unit: Mapped[str | None]
    reason: Mapped[str | None]
    source: Mapped[str | None]
    remedy: Mapped[str | None]
    waiver: Mapped[str | None]
    evidence: Mapped[str]


class Waiver(Base):
    """A person's decision to let one check be; rows are only ever added."""

    __tablename__ = "waiver"
    __table_args__ = (Index(None, "run_id", "check_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)
    run_id: Mapped[str] = _of_run(index=False)
    check_id: Mapped[str]
    criteria_hash: Mapped[str]
    observed: Mapped[str]
    verdict: Mapped[str]
    who: Mapped[str]
    made: Mapped[str]
    why: Mapped[str]
    target_hash: Mapped[str | None]
