"""Installed runtimes looked through, and what that proves kept in the store by the digest of the build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from k3gate.errors import UsageError
from k3gate.harness import checkpoints
from k3gate.harness.stored import now
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.model.checkpoint.inspection import Inspection
from k3gate.records import Evidence, Verdict
from k3gate.serving import runtimes, table
from k3gate.serving.runtimes import NOT_LISTED, SUPPORTED, WANTED_K3, Runtime, Wanted

if TYPE_CHECKING:
    from k3gate.store import Store

CHECK = "runtime.registry"


def wanted(checkpoint: str | None) -> Wanted:
    """How runtimes call the architecture of a checkpoint, of Kimi K3 where none is given."""
    return WANTED_K3 if checkpoint is None else of_inspection(checkpoints.read(checkpoint)[1])


def of_inspection(found: Inspection) -> Wanted:
    """Kimi K3 goes by the names that are known of it; others by what they say of themselves. Pure."""
    if found.architecture.name == KIMI_K3:
        return WANTED_K3
    stated = found.stated
    if found.format == "gguf":
        kind = None if stated is None else stated.model_type
        return Wanted(found.architecture.name, (), None, kind)
    # Of a wrapper the first class is its own; what follows is of parts.
    classes = () if stated is None else stated.architectures[:1]
    return Wanted(found.architecture.name, classes, None if stated is None else stated.model_type, None)


def find(
    checkpoint: str | None, places: Sequence[str], own: str | None
) -> tuple[tuple[Runtime, ...], Wanted]:
    """All runtimes of the table, and what was looked for; `UsageError` for a bad place, table or checkpoint."""
    entries = table.with_own(own)
    name = wanted(checkpoint)
    return runtimes.find(entries, name, places, os.environ), name


def choose(found: Sequence[Runtime], name: str | None) -> Runtime:
    """The one that a run is about: by its id or title where there are several; `UsageError` else."""
    if not found:
        raise UsageError(
            "no runtime was found, so no run can be about one; name a place where one is installed"
        )
    fitting = [one for one in found if name is None or name.lower() in (one.id.lower(), one.title.lower())]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(sorted({one.id for one in found}))
    if not fitting:
        raise UsageError(f"no runtime {name!r:.60} was found: --runtime takes one of {known}")
    if name is None:
        raise UsageError(f"{len(found)} runtimes were found: say with --runtime which one is meant: {known}")
    raise UsageError(
        f"{name} was found in {len(fitting)} places: name the one that is meant, {fitting[0].path} or another"
    )


def keep(store: Store, chosen: Runtime, asked: Wanted, run: str | None) -> Evidence:
    """Add what a runtime's registry proves of Kimi K3, and say of a run that it is about this build."""
    gathered = evidence(chosen, asked, now())
    checkpoints.keep_evidence(store, [gathered], run)
    return gathered


def evidence(found: Runtime, asked: Wanted, gathered: str) -> Evidence:
    """What a registry says of step 2; of another model than Kimi K3 it says nothing. Pure."""
    verdict = {SUPPORTED: Verdict.PASS, NOT_LISTED: Verdict.FAIL}.get(found.architecture, Verdict.UNPROVEN)
    detail = f"{found.title} {found.version or ''}".strip() + f": {found.reason}"
    if asked.name != KIMI_K3:
        verdict, detail = Verdict.UNPROVEN, f"{detail} Asked for {asked.name}, which is not Kimi K3."
    data = {"runtime": found.id, "version": found.version, "architecture": asked.name}
    return Evidence(CHECK, found.build, "runtime", verdict, detail, gathered, data)
