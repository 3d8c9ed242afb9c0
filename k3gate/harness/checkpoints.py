"""A checkpoint inspected, and what that proves kept in the store by its digest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from k3gate.documents import digest as hashed
from k3gate.harness.stored import now
from k3gate.model.checkpoint import checksums, files
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.model.checkpoint.checksums import Comparison, Sum
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.hub.address import is_address
from k3gate.model.checkpoint.inspection import Inspection, Progress, inspect
from k3gate.model.checkpoint.readers import UNFETCHED
from k3gate.records import Evidence, Severity, Verdict
from k3gate.units import count

if TYPE_CHECKING:
    from k3gate.store import Store

_OF_LAYOUT = frozenset(
    {
        *("scale_missing", "scale_shape", "scale_group", "scale_alone", "quantization_undeclared"),
        *("ignore_contradicted", "gguf_dialect", "unknown_type"),
    }
)
_OF_ALL = "checkpoint.checksums"
_OF_A_FILE = "checkpoint.file"
"""Digests of single files: no check's, kept so that a pass that was interrupted goes on."""
_OF_IDENTITY = frozenset({"not_identified", "config_contradicted"})


def read(place: str, progress: Progress | None = None) -> tuple[FileSet, Inspection]:
    """The checkpoint at `place`, on this machine or on a Hub (hf://...), its files and what they are; `UsageError`
    where there is none."""
    found = _find(place)
    return found, inspect(found, len(os.sched_getaffinity(0)), progress)


def _find(place: str) -> FileSet:
    if not is_address(place):
        return files.find(place)
    from k3gate.model.checkpoint.hub import reader

    return reader.find(place)


def sum_files(
    store: Store | None,
    found: FileSet,
    digest: str,
    progress: Callable[[checksums.Pace], None],
) -> list[Sum]:
    """The digests of all files that are there. Each is kept in the store as it is done: a pass that was interrupted
    goes on, with those files whose size and time of change are as they were. A new pass reads all."""
    earlier = [] if store is None else _unfinished(store, digest)
    parts = [part for part in found.parts if part.size is not None]
    done = checksums.known(parts, earlier)
    rest = [part for part in parts if part.name not in done]
    pace = checksums.Pace(sum(part.size or 0 for part in rest))
    lock = threading.Lock()

    def add(size: int) -> None:
        with lock:
            pace.add(size)
            progress(pace)

    sums = list(done.values())
    for one in checksums.hash_files(rest, len(os.sched_getaffinity(0)), add):
        sums.append(one)
        if store is not None:
            data = {"name": one.name, "size": one.size, "state": one.state, "sha256": one.sha256}
            store.add_evidence(
                Evidence(_OF_A_FILE, digest, _kind(found), Verdict.UNPROVEN, one.name, now(), data)
            )
    return sorted(sums, key=lambda one: one.name)


def _kind(found: FileSet) -> str:
    return "converted" if found.format == "gguf" else "checkpoint"


def _unfinished(store: Store, digest: str) -> list[Sum]:
    """The digests of files since the last pass that came to its end."""
    ended = max((one.gathered for one in store.evidence_on(digest, _OF_ALL)), default="")
    return [
        Sum(**one.data)
        for one in store.evidence_on(digest, _OF_A_FILE)
        if one.gathered > ended and "state" in one.data
    ]


def place_of(found: FileSet) -> dict[str, str]:
    """Where the files lie, for evidence: a digest of the place, since its name is nobody's business."""
    parts = [str(part.path.resolve()) for part in found.parts if found.reader.path is not None]
    return {"place": hashed(parts)[:23]} if parts else {}


def checksum_evidence(found: FileSet, digest: str, compared: Comparison) -> Evidence:
    """What the comparison of the digests says of step 1; every file must be there and be named."""
    verdict, detail = judge_checksums(found, compared)
    return Evidence(_OF_ALL, digest, _kind(found), verdict, detail, now(), place_of(found))


def judge_checksums(found: FileSet, compared: Comparison) -> tuple[Verdict, str]:
    """Whether the files are those of a list, in a sentence."""
    missing = sum(part.size is None for part in found.parts)
    if compared.differ:
        few = ", ".join(compared.differ[:5]) + (" ..." if len(compared.differ) > 5 else "")
        return Verdict.FAIL, f"{count(len(compared.differ), 'file')} not as in {compared.source}: {few}."
    if compared.source is None:
        return Verdict.UNPROVEN, "There is no list of checksums to hold the files against."
    if missing or compared.unnamed:
        return (
            Verdict.UNPROVEN,
            f"{count(len(compared.same), 'file')} as in {compared.source}; {missing} missing, and "
            f"{len(compared.unnamed)} that it does not name.",
        )
    return Verdict.PASS, f"{count(len(compared.same), 'file')}, all as in {compared.source}."


def keep(store: Store, found: Inspection, run: str | None) -> list[Evidence]:
    """Add what the inspection proves to the store, and say of a run that it is about this checkpoint."""
    gathered = evidence(found, now())
    keep_evidence(store, gathered, run)
    return gathered


def keep_evidence(store: Store, gathered: Iterable[Evidence], run: str | None) -> None:
    """Add evidence to the store, and say of a run that it is about its subjects."""
    if run is not None:
        run = store.resolve(run)
    for one in gathered:
        store.add_evidence(one)
        if run is not None:
            store.add_subject(run, one.subject, one.subject_kind)


def layout_titles(found: Inspection) -> list[str]:
    """What is wrong with the layout of quantized weights, in words."""
    titles = {finding.code: finding.title for finding in found.findings}
    return [titles[code] for code in sorted(_OF_LAYOUT & titles.keys())]


def evidence(found: Inspection, gathered: str) -> list[Evidence]:
    """What an inspection says: of a released checkpoint for step 1, of a GGUF file, which is a conversion, for
    step 3. One digest is one subject, of one kind. Nothing where a Hub did not give a file: then the digest is not
    the checkpoint's."""

    def about(check: str, kind: str, verdict: Verdict, detail: str, **data: str) -> Evidence:
        return Evidence(check, found.digest, kind, verdict, detail, gathered, data)

    if any(finding.code == UNFETCHED for finding in found.findings):
        return []
    titles = {finding.code: finding.title for finding in found.findings}
    layout = layout_titles(found)
    damage = [
        finding.title
        for finding in found.findings
        if finding.severity is Severity.HIGH and finding.code not in _OF_LAYOUT | _OF_IDENTITY
    ]
    told = (
        f"{found.content.tensors:,} tensors of {found.content.bytes:,} bytes in {found.shards.found:,} files"
    )
    other = [titles[code] for code in sorted(_OF_IDENTITY & titles.keys())]
    identified = found.architecture.name == KIMI_K3 and not other
    name = f"{found.architecture.name}: {found.architecture.because}" + "".join(f"; {one}" for one in other)
    if found.format == "gguf":
        wrong = [*damage, *layout, *([] if identified else [name])]
        detail = (
            f"{'; '.join(wrong)}." if wrong else f"{name}; {told}, in the layout of llama.cpp's main branch."
        )
        return [about("quantization.layout", "converted", Verdict.FAIL if wrong else Verdict.PASS, detail)]
    licence = next(iter(found.licences), None)
    return [
        about("checkpoint.identity", "checkpoint", Verdict.PASS if identified else Verdict.FAIL, f"{name}."),
        about(
            "checkpoint.complete",
            "checkpoint",
            Verdict.FAIL if damage else Verdict.PASS,
            f"{'; '.join(damage)}." if damage else f"{told}, as index and headers tell.",
        ),
        about(
            "checkpoint.licence",
            "checkpoint",
            Verdict.PASS if licence else Verdict.UNPROVEN,
            f"{licence[0]} lies beside the weights."
            if licence
            else "No licence file lies beside the weights.",
            **({"sha256": licence[1]} if licence else {}),
        ),
    ]
