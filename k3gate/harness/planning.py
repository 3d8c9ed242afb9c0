"""A system's file, a target, a model and perhaps a run brought together for a plan; published results to test it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from k3gate import tables, units
from k3gate.analysis import backtest, planning, published, system_file
from k3gate.analysis.backtest import Backtest
from k3gate.analysis.layout import Demand, resolved
from k3gate.analysis.planning import Plan
from k3gate.analysis.system import System
from k3gate.errors import UsageError
from k3gate.gate import targets
from k3gate.model import sizes
from k3gate.model.sizes import ModelSizes

if TYPE_CHECKING:
    from k3gate.records import RunRecord
    from k3gate.store import Store

MAX_JSON_BYTES = 8 << 20


def read_system(place: str) -> System:
    """The system in a TOML file; `UsageError` in one line where it is none."""
    path = Path(place)
    text, data = tables.read(path, "system")
    return system_file.of_table(text, data, path.name)


def read_model(place: str) -> ModelSizes:
    """Sizes of the model at `place`: a checkpoint, a config.json, or what `k3gate inspect --json` wrote."""
    path = Path(place)
    if path.suffix == ".json" and path.is_file() and not path.name.endswith(".index.json"):
        document = _json(path)
        if "groups" in document and "shards" in document:
            return sizes.of_document(document, path.name)
        from k3gate.model.shapes import of_config

        return of_config(document, path.name)
    from k3gate.harness import checkpoints

    _, found = checkpoints.read(place)
    return sizes.of_inspection(found)


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise UsageError(f"{path.name} is larger than 8 MiB: give a config.json or an inspection")
        document = json.loads(raw)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name another file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name} is not valid JSON: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path.name} is no JSON object: give a config.json or an inspection")
    return document


def plan(
    place: str,
    *,
    target: str | None = None,
    model: str | None = None,
    store: Store | None = None,
    run: str | None = None,
) -> Plan:
    """The plan of the system at `place`. `run`: a stored run whose measured rates refine it, taken from `store`."""
    described = read_system(place)
    if model is not None:
        found = read_model(model)
    elif described.model is not None:
        found = described.model
    elif described.model_path is not None:
        found = read_model(str(Path(place).parent / described.model_path))
    else:
        found = sizes.kimi_k3()
    if not found.bytes:
        raise UsageError(
            f"{found.name}: {found.source} hold no weights at all, so that there is nothing to plan for: "
            "give a checkpoint whose shards are there, or its config.json"
        )
    described = resolved(_priced(described, target), found)
    wanted = demand(described, target, found)
    if wanted.trunk == "q8_0" and not described.precision.trunk_stated:
        described = evolve(described, precision=evolve(described.precision, trunk=sizes.Q8_0_BITS))
    record = None
    if run is not None:
        assert store is not None
        record = store.load(store.resolve(run))
    return planning.plan(
        described,
        found,
        wanted,
        measured(record, described),
        record.run.id if record is not None else None,
        uncompared(record, described),
    )


def _priced(described: System, target: str | None) -> System:
    """The system with the target's prices where it states none of its own."""
    if target is None:
        return described
    asked, own = targets.load(target).prices, described.prices
    prices = evolve(
        own,
        machine=own.machine or asked.get("machine_usd"),
        hour=own.hour or asked.get("hour_usd"),
        kwh=own.kwh or asked.get("kwh_usd"),
    )
    return evolve(described, prices=prices)


def demand(described: System, target: str | None, model: ModelSizes) -> Demand:
    """What the target asks; where none is named, the least demanding one that fits the system's placement."""
    on_gpus = "gpu" in (described.placement.trunk, described.placement.experts)
    asked = targets.load(target or ("hybrid" if on_gpus else "residency-lab"))
    context = asked.context
    if target is None and model.max_context is not None:
        context = min(context, model.max_context)
    return Demand(
        name=asked.name,
        context=context,
        sequences=asked.sequences,
        batch=asked.decode_batch,
        vision=asked.vision,
        trunk=asked.trunk,
        decode_tokens_per_s=asked.decode_tokens_per_s,
        prefill_tokens_per_s=asked.prefill_tokens_per_s,
        load_seconds=asked.load_seconds,
    )


def measured(record: RunRecord | None, described: System) -> dict[str, tuple[float, str]]:
    """Rates by tier that a run measured soundly, in B/s, with the row they stand in. Empty without a run.

    `UsageError` for a run of a machine whose processors or memory are not those described.
    """
    if record is None:
        return {}
    from k3gate.analysis.ladder import ladder
    from k3gate.gate import hardware
    from k3gate.records import State

    doubt = hardware.doubt(record.inventory)
    if doubt is not None:
        raise UsageError(f"run {record.run.id} says nothing of this hardware: {doubt}; plan without --run")
    _same_machine(record, described)
    for rung in ladder(record, None):
        if rung.key == "read" and rung.value is not None and rung.state is State.OK:
            doubt = (
                "; not all of its parts were compared, see the notes" if uncompared(record, described) else ""
            )
            return {"dram": (rung.value, f"measured read of the whole machine, run {record.run.id}{doubt}")}
    raise UsageError(
        f"run {record.run.id} holds no sound read of the whole machine: measure again, or plan without --run"
    )


_DECIDE = (
    *("cpu.model", "cpu.sockets", "cpu.cores"),
    *("memory.modules", "memory.size", "memory.type", "memory.speed", "memory.channels"),
)
"""Lines of an order that decide how fast memory is read. More than was ordered is another machine too."""


_STATED = {
    "cpu.model": "processor",
    "memory.modules": "memory modules",
    "memory.speed": "speed of memory",
    "memory.channels": "channels in use",
}


def uncompared(record: RunRecord | None, described: System) -> tuple[str, ...]:
    """What decides how fast memory is read and could not be compared with the run: in sentences, with the reason."""
    if record is None:
        return ()
    from k3gate.gate import bom

    lines = [line for line in bom.check(described, record.inventory) if line.key in _DECIDE]
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if line.found is None:
            reasons.setdefault(line.reason or "the run does not hold it", []).append(line.title)
    silent = [title for key, title in _STATED.items() if key not in {line.key for line in lines}]
    if silent:
        reasons["the file does not state it"] = silent
    return tuple(
        f"not compared with run {record.run.id}, which may be of another machine: {', '.join(titles)} ({why})"
        for why, titles in reasons.items()
    )


def _same_machine(record: RunRecord, described: System) -> None:
    from k3gate.gate import bom

    unlike = [
        f"{line.title} {line.ordered}, the run's {line.found}"
        for line in bom.check(described, record.inventory)
        if line.key in _DECIDE and line.found is not None and line.verdict != bom.SAME
    ]
    unlike += _another_size(record, described)
    if unlike:
        raise UsageError(
            f"run {record.run.id} is of another machine than {described.name!r}: {'; '.join(unlike)}; name a run of "
            "this one, correct the file, or plan without --run"
        )


MOST_KEPT = 0.1
"""What firmware and kernel keep of the modules' bytes at most (ours): the run tells what the kernel was left."""


def _another_size(record: RunRecord, described: System) -> list[str]:
    """Where the modules were not read, the memory that the kernel counts still tells another machine."""
    there = record.inventory.memory.total_bytes
    if described.memory is None or there is None or record.inventory.memory.dimms is not None:
        return []
    ordered = described.memory.bytes
    if ordered * (1 - MOST_KEPT) <= there <= ordered:
        return []
    return [f"memory {units.gib(ordered)}, the run's {units.gib(there)}"]


def against_published(place: str | None) -> Backtest:
    """The predictor against the published results in a CSV file; None: those that are shipped."""
    path = published.SHIPPED if place is None else Path(place)
    try:
        raw = tables.read_bytes(path, MAX_JSON_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a CSV file") from error
    if raw is None:
        raise UsageError(f"cannot read {path}: it is no regular file; name a CSV file")
    if len(raw) > MAX_JSON_BYTES:
        raise UsageError(f"{path.name} is larger than 8 MiB: split it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    return backtest.run(published.parse(text, path.name))
