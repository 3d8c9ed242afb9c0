"""The lock of an order: what was frozen, by hashes, and the parts that the measured machine had. Pure.

A lock is JSON that people keep with the order. Its own digest shows whether it was altered; it is no signature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from k3gate import units
from k3gate.analysis.system import System
from k3gate.documents import digest, plain
from k3gate.errors import UsageError
from k3gate.gate import bom
from k3gate.gate.bom import NOT_MEASURED, SAME, WORSE, Line
from k3gate.records import Dimm, GateResult, Inventory, RunRecord, Verdict

FORMAT = 2
HOLDING = (Verdict.PASS, Verdict.WAIVED)


def refusals(result: GateResult) -> tuple[str, ...]:
    """Why the order may not be frozen: what of steps 1 to 6, match and links neither passes nor is waived."""
    found = []
    for step in result.steps:
        for check in step.checks:
            needed = step.step <= 6 or check.id in ("bom.match", "bom.links")
            if needed and check.verdict not in (*HOLDING, Verdict.NOT_APPLICABLE):
                found.append(f"{check.id} is {check.verdict}: {check.reason or 'no reason was given'}")
        if (
            step.step <= 6
            and step.verdict not in HOLDING
            and not any(line.startswith(f"{step.name}.") for line in found)
        ):
            found.append(f"step {step.step}, {step.name}, is {step.verdict}")
    return tuple(found)


def make(
    system: System, record: RunRecord, result: GateResult, lines: tuple[Line, ...], frozen: str
) -> dict[str, Any]:
    """The document of a lock; `frozen`: ISO 8601. The caller has seen that nothing refuses it."""
    verdicts = {check.id: check.verdict.value for step in result.steps for check in step.checks}
    waivers = [
        {"check": check.id, "who": check.waiver.who, "when": check.waiver.when, "why": check.waiver.why}
        for step in result.steps
        for check in step.checks
        if check.waiver is not None
    ]
    document: dict[str, Any] = {
        "k3gate_lock": FORMAT,
        "frozen": frozen,
        "version": result.version,
        "bom": {"name": system.name, "digest": system.hash, "text": system.text},
        "criteria": {"name": result.criteria, "digest": result.criteria_hash},
        "target": {"name": result.target, "digest": result.target_hash},
        "run": {
            "id": record.run.id,
            "digest": run_digest(record),
            "machine": record.run.machine,
            "fingerprint": record.run.fingerprint,
        },
        "verdicts": {
            "gate": result.verdict.value,
            "digest": digest(verdicts),
            "checks": verdicts,
            "waivers": waivers,
        },
        "lines": [plain(line) for line in lines],
        "parts": parts(record.inventory),
    }
    return {**document, "digest": digest(document)}


def run_digest(record: RunRecord) -> str:
    """What tells the run's content: the run, what the machine is, and every outcome; not what was judged later."""
    return digest(plain({"run": record.run, "inventory": record.inventory, "outcomes": record.outcomes}))


def read(document: Any, name: str) -> Mapping[str, Any]:
    """A lock that is whole; `UsageError` where the file `name` is none or was altered."""
    if not isinstance(document, dict) or document.get("k3gate_lock") != FORMAT:
        raise UsageError(f"{name} is no lock of this version: write one with `k3gate bom freeze`")
    rest = {key: value for key, value in document.items() if key != "digest"}
    try:
        whole = document.get("digest") == digest(rest)
    except ValueError:
        whole = False
    if not whole:
        raise UsageError(f"{name} was altered after it was written: its digest is another; take the original")
    _parts_read(document.get("parts"), name)
    bom_part = document.get("bom")
    if not isinstance(bom_part, dict) or not isinstance(bom_part.get("text"), str):
        raise UsageError(f"{name} holds no order: write it again with `k3gate bom freeze`")
    return document


def _parts_read(held: Any, name: str) -> None:
    """Raise `UsageError` where the parts are not as `parts` writes them: a digest can be computed again by anyone."""
    wrong = UsageError(f"{name} holds parts that no lock has: write it again with `k3gate bom freeze`")
    if not isinstance(held, dict) or not isinstance(held.get("cpu"), dict):
        raise wrong
    cpu, dimms, gpus = held["cpu"], held.get("dimms"), held.get("gpus")
    if not all(_text(value) for value in (held.get("board"), cpu.get("model"))):
        raise wrong
    if not all(_count(cpu.get(key)) for key in ("sockets", "cores")):
        raise wrong
    if not (gpus is None or (isinstance(gpus, list) and all(isinstance(one, str) for one in gpus))) or not (
        dimms is None or isinstance(dimms, dict)
    ):
        raise wrong
    for dimm in (dimms or {}).values():
        if not isinstance(dimm, dict):
            raise wrong
        numbers = [dimm.get(key) for key in ("bytes", "rated_mts", "configured_mts", "rank", "width")]
        texts = [dimm.get(key) for key in ("place", "part", "manufacturer", "type")]
        if not all(_count(value) for value in numbers) or not all(_text(value) for value in texts):
            raise wrong


def _count(value: Any) -> bool:
    """Whether it is a number of bytes, cores or transfers that a machine can have, or unknown."""
    return value is None or (type(value) is int and 0 <= value < 1 << 63)


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _by_place(dimms: tuple[Dimm, ...]) -> dict[str, Dimm]:
    """Modules by their place, not their row: a table that lost or moved a row tells the same of all others.

    Several of one place are numbered in the order of the table.
    """
    found: dict[str, Dimm] = {}
    for dimm in dimms:
        place = f"{dimm.bank or ''}:{dimm.locator or ''}"
        number = 1
        while (key := place if number == 1 else f"{place}#{number}") in found:
            number += 1
        found[key] = dimm
    return found


def parts(inventory: Inventory) -> dict[str, Any]:
    """The parts by place, as the firmware tells of them; null where it was not read."""
    dimms = inventory.memory.dimms
    return {
        "board": inventory.machine.board or inventory.machine.product,
        "cpu": {"model": inventory.cpu.model, "sockets": inventory.cpu.sockets, "cores": inventory.cpu.cores},
        "dimms": None
        if dimms is None
        else {
            key: {
                "place": dimm.locator or dimm.bank or "a slot without a name",
                "bytes": dimm.bytes,
                "type": dimm.memory_type,
                "rank": dimm.rank,
                "width": dimm.data_width,
                "part": dimm.part_number,
                "manufacturer": dimm.manufacturer,
                "rated_mts": dimm.rated_mts,
                "configured_mts": dimm.configured_mts,
            }
            for key, dimm in _by_place(dimms).items()
        },
        "gpus": None if inventory.gpus is None else [str(one.name) for one in inventory.gpus],
    }


def verify(lock: Mapping[str, Any], system: System, inventory: Inventory) -> tuple[Line, ...]:
    """A delivered machine against the lock: the order's lines, then every part that was measured then."""
    return (*bom.check(system, inventory), *_parts(lock.get("parts"), parts(inventory)))


def _parts(then: Any, now: dict[str, Any]) -> Iterator[Line]:
    """Part by part: whatever is another part is worse, since it is not what was measured."""
    told = then if isinstance(then, dict) else {}
    yield _compared("parts.board", "board as measured", told.get("board"), now["board"])
    cpu = told.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    for key in ("model", "sockets", "cores"):
        yield _compared(f"parts.cpu.{key}", f"processor as measured, {key}", cpu.get(key), now["cpu"][key])
    yield from _dimms(told.get("dimms"), now["dimms"])
    if told.get("gpus") is not None:
        yield _compared("parts.gpus", "GPUs as measured", told["gpus"], now["gpus"])


def _dimms(then: Any, now: dict[str, Any] | None) -> Iterator[Line]:
    if not isinstance(then, dict):
        yield Line(
            "parts.dimms",
            "modules as measured",
            "unknown",
            None,
            NOT_MEASURED,
            "the frozen run did not read them",
        )
        return
    if now is None:
        yield Line(
            "parts.dimms",
            "modules as measured",
            f"{len(then)} slots",
            None,
            NOT_MEASURED,
            "this run did not read the firmware's memory table, which needs root",
        )
        return
    changed = False
    for key in dict.fromkeys([*then, *now]):
        old, new = then.get(key), now.get(key)
        if old == new:
            continue
        changed = True
        place = (new or old or {}).get("place", key)
        yield Line(
            f"parts.dimms.{key}",
            f"module {place}",
            _told(old),
            _told(new),
            WORSE,
            _changed(place, old, new),
        )
    if not changed:
        yield Line("parts.dimms", "modules as measured", f"{len(then)} slots", f"{len(now)} slots", SAME)


_TITLES: Mapping[str, str] = {
    "bytes": "size",
    "type": "type",
    "rank": "rank",
    "width": "data width",
    "part": "part number",
    "manufacturer": "maker",
    "rated_mts": "rated speed",
    "configured_mts": "speed",
}
_UNITS = {"width": "bits", "rated_mts": "MT/s", "configured_mts": "MT/s"}


def _changed(place: str, old: Any, new: Any) -> str:
    """What of a module is another; where one of both is no module, what was there and what is."""
    if not (isinstance(old, dict) and isinstance(new, dict) and old.get("bytes") and new.get("bytes")):
        return f"{place} was {_told(old)}, and is {_told(new)} now"
    told = [
        f"{title} was {_value(key, old.get(key))}, and is {_value(key, new.get(key))} now"
        for key, title in _TITLES.items()
        if old.get(key) != new.get(key)
    ]
    return f"{place}: {'; '.join(told) or 'another place'}"


def _value(key: str, value: Any) -> str:
    if value is None:
        return "unknown"
    return units.gib(value) if key == "bytes" else f"{value} {_UNITS.get(key, '')}".rstrip()


def _told(dimm: Any) -> str:
    if not isinstance(dimm, dict):
        return "not there"
    if not dimm.get("bytes"):
        return "empty"
    kind = dimm.get("type")
    size = f"{dimm['bytes'] / 2**30:g} GiB{f' {kind}' if kind else ''}"
    speed = f"{dimm['configured_mts']} MT/s" if dimm.get("configured_mts") else "speed unknown"
    rank = f", rank {dimm['rank']}" if dimm.get("rank") else ""
    return f"{size} {dimm.get('part') or 'part unknown'}{rank} at {speed}"


def _compared(key: str, title: str, then: Any, now: Any) -> Line:
    if then is None or now is None:
        return Line(
            key, title, "unknown" if then is None else str(then), None, NOT_MEASURED, "a run did not read it"
        )
    if then == now:
        return Line(key, title, str(then), str(now), SAME)
    return Line(key, title, str(then), str(now), WORSE, f"it was {then}, and is {now} now")
