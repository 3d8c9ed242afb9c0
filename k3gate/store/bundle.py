"""A run as one file that travels: a zip of JSON documents and artifacts, each with its size and SHA-256.

A bundle may come from a stranger. Nothing in it is executed, no name in it becomes a path, and every size is
checked before and while it is read. Members:

    manifest.json         {"format", "k3gate", "run", "members": {name: {"bytes", "sha256"}}}
    run.json              the run record, its subjects, evidence and waivers
    evaluations.json      each judgement with the texts of its criteria and target
    artifacts/NNNN        what the workers printed; run.json says of which case
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from k3gate import __version__
from k3gate.atomic import replacing
from k3gate.documents import canonical, plain, printable, structure
from k3gate.errors import StorageError, UsageError
from k3gate.records import GateResult, Outcome, RunRecord, RunStatus
from k3gate.series import check as check_series
from k3gate.store import ARTIFACT_BYTES, Artifact, insert_artifact, judgements, processes, rows, watched
from k3gate.store.database import Statements

if TYPE_CHECKING:
    from k3gate.store import Store

FORMAT = 1
MEMBERS = 10_000
MEMBER_BYTES = 2**28
TOTAL_BYTES = 2**30
BUNDLE_BYTES = 2**30
DIRECTORY_BYTES = 2**21
DEPTH = 64
_DOCUMENTS = ("run.json", "evaluations.json")
_ARTIFACT = re.compile(r"artifacts/[0-9]{4}")


def export_run(store: Store, run_id: str, path: Path) -> None:
    """Write a run to `path`, whole or not at all; raises `UsageError` where that place is taken or refused."""
    if path.exists() and not _is_bundle(path):
        raise UsageError(f"cannot write {path}: it is there and is no bundle; name another file with -o")
    members = _members(store, run_id)
    manifest = {
        "format": FORMAT,
        "k3gate": __version__,
        "run": run_id,
        "members": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in members.items()
        },
    }
    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in {"manifest.json": _json(manifest), **members}.items():
                # A fixed stamp: the same run gives the same bytes.
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"cannot write {path}: {error.strerror}; free some space, or use -o"
            ) from error
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another place with -o") from error


def _is_bundle(path: Path) -> bool:
    """Whether `path` is a file that `export_run` made, and may be replaced."""
    if not path.is_file():
        return False
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            return {"manifest.json", *_DOCUMENTS} <= set(archive.namelist())
    except (UsageError, OSError, zipfile.BadZipFile, ValueError):
        return False


def _members(store: Store, run_id: str) -> dict[str, bytes]:
    record = store.load(run_id)
    artifacts = store.artifacts(run_id)
    document = {
        "record": plain(record),
        "subjects": [list(subject) for subject in store.subjects(run_id)],
        "artifacts": [
            {
                "member": f"artifacts/{number:04d}",
                "probe": one.probe,
                "case": one.case,
                "name": one.name,
                "size": one.size,
                "note": one.note,
            }
            for number, one in enumerate(artifacts)
        ],
    }
    evaluations = [store.stored_evaluation(one.id) for one in store.evaluations(run_id)]
    return {
        "run.json": _json(document),
        # The texts as they are: their hashes must hold in the other store.
        "evaluations.json": _json(
            [{**attrs.asdict(one, recurse=False), "result": plain(one.result)} for one in evaluations]
        ),
        **{f"artifacts/{number:04d}": one.data for number, one in enumerate(artifacts)},
    }


def _json(document: Any) -> bytes:
    return canonical(document).encode("utf-8", "surrogatepass")


def check_bundle(path: Path) -> None:
    """Raise `UsageError` where `path` is no bundle, or a damaged one: before a store is made for it."""
    _read(path)


def import_bundle(store: Store, path: Path) -> str:
    """Check a bundle and add its run in one transaction; returns the run's id.

    The same run twice changes nothing. Raises `UsageError` with one line for a file that is no bundle, is
    damaged, is too large, or holds another run under an id that the store knows.
    """
    members = _read(path)
    try:
        document = plain(_load(members["run.json"]))
        record = structure(document["record"], RunRecord)
        evaluations = structure(_load(members["evaluations.json"]), tuple[judgements.StoredEvaluation, ...])
        artifacts = [_artifact(one, members) for one in document["artifacts"]]
        subjects = [(str(one[0]), str(one[1])) for one in document["subjects"]]
        _check_outcomes(record.outcomes)
        _check_watched(record)
        for one in evaluations:
            _check_text(one.criteria_text + one.target_text)
            _check_observed(one.result)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise _refuse(path, f"its content is no run ({_line(error)})") from error
    if record.run.status is RunStatus.RUNNING:
        # Whoever measured it did so elsewhere; here nobody goes on with it.
        record = attrs.evolve(record, run=attrs.evolve(record.run, status=RunStatus.ABANDONED))
    run = record.run
    if not re.fullmatch(r"[a-z0-9]{8}", run.id):
        raise _refuse(path, "its run has no id of ours")
    if any(one.result.run != run.id for one in evaluations) or any(w.run != run.id for w in record.waivers):
        raise _refuse(path, "it judges another run than it holds")
    if not {one.subject for one in record.evidence} <= {
        run.fingerprint,
        *(subject for subject, _ in subjects),
    }:
        raise _refuse(path, "it holds evidence on what its run is not about")

    def work(at: Statements) -> None:
        if at.rows("SELECT 1 FROM run WHERE id = :id", id=run.id):
            _require_same(at, record, path)
        else:
            nobody = processes.Writer(None, None, None, None)
            rows.insert_run(at, run, record.inventory, nobody)
            for outcome in record.outcomes:
                rows.save_outcome(at, run.id, outcome, None)
            watched.add(at, run.id, record.series, record.phases)
            for artifact in artifacts:
                insert_artifact(at, run.id, artifact)
        for subject, kind in subjects:
            judgements.add_subject(at, run.id, subject, kind)
        _add_judgements(at, record, evaluations)

    try:
        store.transaction(work)
    except (OverflowError, ValueError) as error:
        raise _refuse(path, f"it holds a value that no store takes ({_line(error)})") from error
    return run.id


def _check_outcomes(outcomes: tuple[Outcome, ...]) -> None:
    """Raise `ValueError` where outcomes or metrics stand twice, or hold what no run of ours holds."""
    if len({(one.probe, one.case) for one in outcomes}) < len(outcomes):
        raise ValueError("an outcome stands twice")
    for outcome in outcomes:
        rows.check_finite(outcome)
        for metric in outcome.metrics:
            if not all(
                value is None or isinstance(value, str | int | float) for value in metric.labels.values()
            ):
                raise ValueError("a label is neither text nor number")
        keys = {(metric.name, canonical(plain(metric.labels))) for metric in outcome.metrics}
        if len(keys) < len(outcome.metrics):
            raise ValueError("a metric stands twice in an outcome")


def _check_watched(record: RunRecord) -> None:
    for one in record.series:
        check_series(one)
        if not all(value is None or isinstance(value, str | int | float) for value in one.labels.values()):
            raise ValueError("a label is neither text nor number")
    keys = {(one.name, one.unit, canonical(plain(one.labels))) for one in record.series}
    if len(keys) < len(record.series):
        raise ValueError("a series stands twice")
    if not all(math.isfinite(one.start_s) and math.isfinite(one.end_s) for one in record.phases):
        raise ValueError("a phase has no finite time")


def _check_observed(result: GateResult) -> None:
    for step in result.steps:
        for check in step.checks:
            if not (check.observed is None or isinstance(check.observed, str | int | float)):
                raise ValueError("a check observed what is neither text nor number")


def _require_same(at: Statements, record: RunRecord, path: Path) -> None:
    """Raise `UsageError` where the store holds another run of this id."""
    run, inventory = rows.read_run(at, record.run.id)
    own = (run, inventory, rows.read_outcomes(at, run.id), watched.read_series(at, run.id))
    if own != (record.run, record.inventory, record.outcomes, record.series):
        raise UsageError(
            f"cannot import {path}: the store holds another run with the id {run.id}; import it into another --store"
        )


def _add_judgements(
    at: Statements, record: RunRecord, evaluations: tuple[judgements.StoredEvaluation, ...]
) -> None:
    """Add the judgements that the store lacks."""
    known = {
        row[0] for row in at.rows("SELECT digest FROM evaluation WHERE run_id = :run", run=record.run.id)
    }
    for one in evaluations:
        if judgements.evaluation_digest(one.result, one.criteria_text, one.target_text) not in known:
            judgements.add_evaluation(at, one.result, one.criteria_text, one.target_text)
    for waiver in record.waivers:
        judgements.add_waiver(at, waiver)
    for evidence in record.evidence:
        judgements.add_evidence(at, evidence)


def _artifact(document: dict[str, Any], members: dict[str, bytes]) -> Artifact:
    text = [document["probe"], document["case"], document["note"]]
    if not all(one is None or isinstance(one, str) for one in text) or not isinstance(document["name"], str):
        raise ValueError("an artifact's labels are no text")
    if not isinstance(document["size"], int) or not _ARTIFACT.fullmatch(document["member"]):
        raise ValueError("an artifact has no size, or is no member of its own")
    if len(members[document["member"]]) > ARTIFACT_BYTES:
        raise ValueError(f"an artifact is longer than {ARTIFACT_BYTES} bytes")
    return Artifact(
        document["probe"],
        document["case"],
        document["name"],
        members[document["member"]],
        document["size"],
        document["note"],
    )


def _read(path: Path) -> dict[str, bytes]:
    """All members of a bundle, checked against its manifest."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _refuse(path, "it is no file")
        if path.stat().st_size > BUNDLE_BYTES:
            raise _refuse(path, f"it is larger than {BUNDLE_BYTES} bytes")
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            names = [info.filename for info in infos]
            if len(infos) > MEMBERS or len(set(names)) < len(names):
                raise _refuse(path, "it has too many members, or two of one name")
            strange = [
                n for n in names if not (n in ("manifest.json", *_DOCUMENTS) or _ARTIFACT.fullmatch(n))
            ]
            if strange:
                raise _refuse(path, f"it holds {strange[0][:60]!r}, which is no part of a bundle")
            if sum(info.file_size for info in infos) > TOTAL_BYTES:
                raise _refuse(path, f"it unpacks to more than {TOTAL_BYTES} bytes")
            members = {info.filename: _member(archive, info, path) for info in infos}
    except FileNotFoundError:
        raise UsageError(f"cannot import {path}: there is no such file") from None
    except OSError as error:
        raise _refuse(path, error.strerror or "it cannot be read") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise _refuse(path, "it is no bundle, or is damaged") from error
    except Exception as error:
        # zlib.error and its kind have no common base with the above.
        if isinstance(error, UsageError):
            raise
        raise _refuse(path, "it is damaged") from error
    _check(path, members)
    return members


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    if info.file_size > MEMBER_BYTES:
        raise _refuse(path, f"its {info.filename} unpacks to more than {MEMBER_BYTES} bytes")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise _refuse(path, f"its {info.filename} is packed in a way that bundles are not")
    with archive.open(info) as file:
        # The declared size is the stranger's word: one byte more is asked for than it allows.
        data = file.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise _refuse(path, f"its {info.filename} is not of its declared size")
    return data


def _check(path: Path, members: dict[str, bytes]) -> None:
    try:
        manifest = _load(members.pop("manifest.json"))
        form, listed = manifest["format"], manifest["members"]
        if form != FORMAT:
            raise _refuse(path, f"its format is {form!r:.40}, this k3gate reads {FORMAT}: upgrade k3gate")
        sums = {name: (entry["bytes"], entry["sha256"]) for name, entry in listed.items()}
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise _refuse(path, "it has no readable manifest") from error
    found = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in members.items()}
    for name in (*_DOCUMENTS, *sums, *found):
        if found.get(name) != sums.get(name) or name not in found:
            raise _refuse(path, f"its {name[:60]!r} does not agree with the manifest: fetch the bundle again")


def _check_directory(path: Path) -> None:
    """Raise `UsageError` unless the file ends with the end record of a plain zip whose directory is short.

    `zipfile` reads a directory of any length before it can be asked about it; and whoever puts bytes before or
    after the archive wants it to be taken for something else.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 22))
        end = file.read(22)
    if len(end) < 22 or not end.startswith(b"PK\x05\x06"):
        raise _refuse(path, "it is no bundle, or is damaged")
    count, length, start, comment = struct.unpack("<10xHIIH", end)
    if count > MEMBERS or length > DIRECTORY_BYTES:
        raise _refuse(path, "it has too many members, or two of one name")
    if comment or start + length + 22 != size:
        raise _refuse(path, "it is no bundle, or is damaged")


def _load(data: bytes) -> Any:
    """A JSON document of bounded depth; raises `ValueError` for anything else, also for NaN and 1e999."""

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:20]} is no finite number")
        return number

    document = json.loads(data.decode("utf-8"), parse_constant=finite, parse_float=finite)
    level, depth = [document], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > DEPTH:
            raise ValueError(f"it is nested more than {DEPTH} deep")
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return document


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError("a text holds a NUL")
    text.encode("utf-8")


def _line(error: Exception) -> str:
    return printable(" ".join(str(error).split())[:200])


def _refuse(path: Path, why: str) -> UsageError:
    return UsageError(f"cannot import {path}: {why}")
