"""A checkpoint inspected, and what that proves kept in the store by its digest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from k3gate.harness.stored import now
from k3gate.model.checkpoint import files
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.model.checkpoint.inspection import Inspection, inspect
from k3gate.records import Evidence, Severity, Verdict

if TYPE_CHECKING:
    from k3gate.store import Store

_OF_LAYOUT = frozenset(
    {
        *("scale_missing", "scale_shape", "scale_group", "scale_alone", "quantization_undeclared"),
        *("ignore_contradicted", "gguf_dialect", "unknown_type"),
    }
)
_OF_IDENTITY = frozenset({"not_identified", "config_contradicted"})


def read(place: str) -> Inspection:
    """The checkpoint at `place`; `UsageError` where there is none."""
    return inspect(files.find(place), len(os.sched_getaffinity(0)))


def keep(store: Store, found: Inspection, run: str | None) -> list[Evidence]:
    """Add what the inspection proves to the store, and say of a run that it is about this checkpoint."""
    gathered = evidence(found, now())
    if run is not None:
        run = store.resolve(run)
    for one in gathered:
        store.add_evidence(one)
        if run is not None:
            store.add_subject(run, one.subject, one.subject_kind)
    return gathered


def evidence(found: Inspection, gathered: str) -> list[Evidence]:
    """What an inspection says: of a released checkpoint for step 1, of a GGUF file, which is a conversion, for
    step 3. One digest is one subject, of one kind."""

    def about(check: str, kind: str, verdict: Verdict, detail: str, **data: str) -> Evidence:
        return Evidence(check, found.digest, kind, verdict, detail, gathered, data)

    titles = {finding.code: finding.title for finding in found.findings}
    layout = [titles[code] for code in sorted(_OF_LAYOUT & titles.keys())]
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
