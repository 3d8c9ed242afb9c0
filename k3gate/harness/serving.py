"""A runtime that a run starts and measures: what is known of it before, and what the run proves of it afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from k3gate.documents import digest as hashed
from k3gate.documents import plain, printable
from k3gate.errors import UsageError
from k3gate.gate.targets import Target
from k3gate.harness import checkpoints, runtimes
from k3gate.harness.stored import now
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.model.checkpoint.hub.address import is_address
from k3gate.model.checkpoint.inspection import Inspection
from k3gate.records import Evidence, Outcome, Proof, RunRecord, Serving, Verdict
from k3gate.serving import cases, client, figures, identity, server, starting, table, tokenizers, trees
from k3gate.serving import runtimes as installed
from k3gate.serving.runtimes import WANTED_K3, Runtime, Wanted
from k3gate.serving.table import Entry
from k3gate.units import count

if TYPE_CHECKING:
    from k3gate.store import Store

PROBE = "prototype"
LOADED, IDENTITY = "runtime.loaded", "prototype.served_identity"
OF_OTHER_SIZES = "kimi-k3 of other sizes"
"""What says that it is Kimi K3 and has other numbers of layers or experts: it proves that a runtime knows the
architecture, and no rate."""
_K3_TYPES = ("kimi-k3", "kimi_k3")


@frozen
class Asked:
    """What the user asked for. `prompts`, `streams` None: by default."""

    command: str | None = None
    endpoint: str | None = None
    checkpoint: str | None = None
    model: str | None = None
    way: str = "chat"
    prompts: tuple[int, ...] | None = None
    tokens: int = 64
    streams: tuple[int, ...] = ()
    first_token_s: float = 1800.0
    idle_s: float = 600.0
    load_s: float = 7200.0
    table: str | None = None


@frozen
class Prepared:
    """What is to be measured, and what was learned of runtime and checkpoint on the way."""

    serving: Serving
    evidence: tuple[Evidence, ...] = ()
    runtime: Runtime | None = None


def prepare(asked: Asked, target: Target | None = None, rounds: int | None = None) -> Prepared:
    """Read the command, the checkpoint and the runtime. `UsageError` for what cannot be used."""
    if (asked.command is None) == (asked.endpoint is None):
        raise UsageError("give either --command, which is started, or --endpoint, which is there")
    streams = set(asked.streams) | ({target.decode_batch, target.sequences} if target else set())
    serving = Serving(
        model=asked.model,
        way=asked.way,
        lengths=asked.prompts or Serving().lengths,
        tokens=asked.tokens,
        streams=tuple(sorted(streams)),
        first_token_s=asked.first_token_s,
        idle_s=asked.idle_s,
        load_s=asked.load_s,
    )
    if asked.endpoint is not None:
        if asked.checkpoint is not None:
            raise UsageError(
                "--checkpoint says what a server that k3gate starts must have open: give --command, as an endpoint "
                "does not tell"
            )
        found = Prepared(evolve(serving, endpoint=client.endpoint_url(asked.endpoint)))
    else:
        found = _of_command(asked, serving)
    seconds = cases.seconds(found.serving, rounds or cases.ROUNDS)
    return evolve(found, serving=evolve(found.serving, seconds=seconds))


def _of_command(asked: Asked, serving: Serving) -> Prepared:
    words = server.arguments(asked.command or "")
    serving = evolve(serving, command=words)
    gathered: list[Evidence] = []
    wanted = WANTED_K3
    if asked.checkpoint is not None:
        if is_address(asked.checkpoint):
            raise UsageError("--checkpoint: name the files that the server opens on this machine")
        files, inspection = checkpoints.read(asked.checkpoint)
        try:
            parts = identity.wanted(files)
        except (OSError, ValueError) as error:
            raise UsageError(f"--checkpoint: {printable(str(error))[:200]}; give a whole one") from error
        wanted = wanted_of(inspection)
        gathered += checkpoints.evidence(inspection, now())
        serving = evolve(
            serving,
            checkpoint=inspection.digest,
            architecture=architecture(inspection),
            files=tuple(plain(one) for one in parts),
            bytes=sum(one.bytes for one in parts),
            tokenizer=str(files.folder / tokenizers.NAME) if tokenizers.NAME in files.tokenizers else None,
        )
    runtime, programs = of_program(words, asked.table, wanted)
    if runtime is not None:
        gathered.append(runtimes.evidence(runtime, wanted, now()))
        # What a build's number is worth stands with the runtime itself.
        title = f"{runtime.title} {(runtime.version or '').partition(',')[0]}".strip()
        serving = evolve(serving, runtime=title, build=runtime.build, programs=programs)
    else:
        serving = evolve(
            serving, build=hashed([trees.digest(Path(one)) for one in programs]), programs=programs
        )
    return Prepared(serving, tuple(gathered), runtime)


def architecture(found: Inspection) -> str:
    """What figures of this checkpoint are of."""
    if found.architecture.name == KIMI_K3:
        return KIMI_K3
    kind = found.stated.model_type if found.stated else None
    return OF_OTHER_SIZES if kind in _K3_TYPES else found.architecture.name


def wanted_of(found: Inspection) -> Wanted:
    """What a runtime's registry must name. A small model of Kimi K3's architecture asks for the same name."""
    if architecture(found) in (KIMI_K3, OF_OTHER_SIZES):
        return WANTED_K3
    return runtimes.of_inspection(found)


def of_program(
    words: Sequence[str], own: str | None = None, wanted: Wanted = WANTED_K3
) -> tuple[Runtime | None, tuple[str, ...]]:
    """The runtime that a command starts, None where the table does not know it; and the files or folders of which its
    processes must have one open."""
    program = Path(shutil.which(words[0]) or words[0]).absolute()
    entries = table.with_own(own)
    if any(program.name in entry.programs for entry in entries):
        found = installed.find(entries, wanted, [str(program)], os.environ)
        return (found[0] if found else None), (os.path.realpath(program),)
    top = words[words.index("-m") + 1].split(".")[0] if "-m" in words[:-1] else program.name
    entry = next((one for one in entries if one.package is not None and top in (_folder(one), one.id)), None)
    prefix = program.parent.parent
    if entry is not None and prefix.is_dir():
        found = installed.find([entry], wanted, [str(prefix)], os.environ)
        if found:
            return found[0], (f"{found[0].path}/{_folder(entry)}",)
    return None, (os.path.realpath(program),)


def _folder(entry: Entry) -> str:
    """The folder of a package's modules."""
    return entry.given[0].split("/")[0] if entry.given else (entry.package or "")


# --- afterwards ---


def conclude(store: Store, record: RunRecord) -> RunRecord:
    """Store what a run proves of its runtime; the record with that."""
    found = evidence(record, now())
    if not found:
        return record
    checkpoints.keep_evidence(store, found, record.run.id)
    return store.load(record.run.id)


def evidence(record: RunRecord, gathered: str) -> list[Evidence]:
    """For steps 2 and 4, of a run that started a runtime. Pure."""
    told = next((case.parameters for case in record.run.plan if case.probe == PROBE), None)
    outcomes = [one for one in record.outcomes if one.probe == PROBE]
    if told is None or not told.get("build") or not outcomes:
        return []
    name, kind = str(told.get("told")), str(told.get("architecture") or "")
    build, data = str(told["build"]), {"checkpoint": told.get("checkpoint"), "architecture": kind}
    verdict, detail = _identity(outcomes)
    served = Evidence(IDENTITY, build, "runtime", verdict, detail, gathered, {**data, "run": record.run.id})
    loaded, why = _loaded(outcomes, verdict, name, kind)
    own = {**data, "run": record.run.id} if loaded is Verdict.UNPROVEN else data
    return [Evidence(LOADED, build, "runtime", loaded, why, gathered, own), served]


def _identity(outcomes: Sequence[Outcome]) -> tuple[Verdict, str]:
    proofs = [
        proof
        for one in outcomes
        for metric in one.metrics
        for proof in metric.proofs
        if proof.name == figures.SERVED
    ]
    for ok, verdict in ((False, Verdict.FAIL), (None, Verdict.UNPROVEN), (True, Verdict.PASS)):
        found: Proof | None = next((proof for proof in proofs if proof.ok is ok), None)
        if found is not None:
            return verdict, found.detail
    reason = next((one.reason for one in outcomes if one.reason), None)
    return Verdict.UNPROVEN, f"It never answered ({reason})." if reason else "It never answered."


def _loaded(outcomes: Sequence[Outcome], served: Verdict, name: str, kind: str) -> tuple[Verdict, str]:
    load = next((one for one in outcomes if one.case == cases.LOAD), None)
    answers = sum(
        len(metric.samples)
        for one in outcomes
        for metric in one.metrics
        if metric.name == "prototype.load.seconds"
    )
    if load is not None and starting.unsupported(load.reason):
        return Verdict.FAIL, f"{name}: {load.reason}"
    if load is None or not answers:
        reason = load.reason if load is not None else "its start was not measured"
        return Verdict.UNPROVEN, f"{name} did not come to answer: {reason}"
    if served is not Verdict.PASS:
        return Verdict.UNPROVEN, f"{name} answered, but that it had loaded the checkpoint is not proven."
    if kind not in (KIMI_K3, OF_OTHER_SIZES):
        return Verdict.UNPROVEN, f"{name} loaded {kind or 'a model'} and answered, which is not Kimi K3."
    small = " of the architecture, smaller than Kimi K3," if kind == OF_OTHER_SIZES else ""
    return (
        Verdict.PASS,
        f"{name} loaded the checkpoint{small} and answered, in {count(answers, 'start')} of {len(load.rounds)}.",
    )
