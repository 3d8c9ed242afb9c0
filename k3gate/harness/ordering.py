"""An order checked against a run, frozen over a judged one, and a delivered machine held against the lock."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from k3gate import tables
from k3gate.analysis import system_file
from k3gate.analysis.system import System
from k3gate.documents import plain
from k3gate.errors import UsageError
from k3gate.gate import bom, bom_links, lock
from k3gate.gate.bom import Line
from k3gate.harness import stored
from k3gate.harness.planning import read_system
from k3gate.records import Evidence, RunRecord, Verdict

if TYPE_CHECKING:
    from k3gate.store import Store

MAX_LOCK_BYTES = 16 << 20


@frozen
class Checked:
    """An order against a run: its lines and those of its links, and what they say together."""

    system: System
    run: str
    lines: tuple[Line, ...]
    links: tuple[Line, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Fail, unproven or pass."""
        return bom.verdict((*self.lines, *self.links))

    def document(self) -> dict[str, Any]:
        """The JSON of `k3gate bom check --json` and `verify --json`."""
        told: dict[str, Any] = {
            "bom": {"name": self.system.name, "digest": self.system.hash},
            "run": self.run,
            "verdict": self.verdict.value,
            "lines": [plain(line) for line in self.lines],
            "links": [plain(line) for line in self.links],
            "sentence": bom.sentence((*self.lines, *self.links)),
        }
        return dict(plain(told))


def check(store: Store, place: str, reference: str) -> Checked:
    """The order at `place` against a stored run; what it says is kept for the gate of that run."""
    system = read_system(place)
    record = store.load(store.resolve(reference))
    lines, links = bom.check(system, record.inventory), bom_links.check(system, record.inventory)
    _keep(store, system, record, lines, links)
    return Checked(system, record.run.id, lines, links)


def _keep(
    store: Store, system: System, record: RunRecord, lines: tuple[Line, ...], links: tuple[Line, ...]
) -> None:
    """Evidence for `bom.match` and `bom.links`, about this order and this run alone."""
    for check_id, verdict, sentence in (
        ("bom.match", bom.verdict(lines), bom.sentence(lines)),
        ("bom.links", bom_links.verdict(links), bom_links.sentence(links)),
    ):
        store.add_evidence(
            Evidence(
                check_id,
                system.hash,
                "bom",
                verdict,
                sentence[:2000],
                # The newest counts, and two orders may be checked within a second.
                datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
                {"run": record.run.id},
            )
        )
    store.add_subject(record.run.id, system.hash, "bom")


@frozen
class Frozen:
    """What freezing came to: a lock, or the reasons why there is none."""

    lock: dict[str, Any] | None
    refusals: tuple[str, ...]
    verdict: Verdict

    def document(self) -> dict[str, Any]:
        """The JSON of `k3gate bom freeze --json`."""
        return {"lock": self.lock, "verdict": self.verdict.value, "refusals": list(self.refusals)}


def freeze(
    store: Store, place: str, reference: str, *, criteria: str | None = None, target: str | None = None
) -> Frozen:
    """A lock for the order at `place` over a judged run; refused with reasons where the gate does not hold."""
    checked = check(store, place, reference)
    judged = stored.judge(store, checked.run, criteria=criteria, target=target)
    reasons = lock.refusals(judged.result)
    if reasons:
        failed = any(
            one.verdict is Verdict.FAIL
            for step in judged.result.steps
            for one in step.checks
            if step.step <= 6
        )
        bad = failed or checked.verdict is Verdict.FAIL
        return Frozen(None, reasons, Verdict.FAIL if bad else Verdict.UNPROVEN)
    made = lock.make(checked.system, judged.record, judged.result, checked.lines, stored.now())
    return Frozen(made, (), Verdict.PASS)


def verify(store: Store, place: str, reference: str) -> Checked:
    """A delivered machine, as a run tells of it, against the lock at `place`."""
    held = read_lock(place)
    system = system_file.read(held["bom"]["text"], f"in {Path(place).name}")
    if system.hash != held["bom"].get("digest"):
        raise UsageError(
            f"{Path(place).name}: the order in it is another than its digest says; take the original"
        )
    record = store.load(store.resolve(reference))
    return Checked(system, record.run.id, lock.verify(held, system, record.inventory))


def read_lock(place: str) -> Any:
    """A lock that is whole; `UsageError` where there is none."""
    path = Path(place)
    try:
        raw = tables.read_bytes(path, MAX_LOCK_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; name a lock of `k3gate bom freeze`"
        ) from error
    if raw is None:
        raise UsageError(f"cannot read {path}: it is no regular file; name a lock of `k3gate bom freeze`")
    if len(raw) > MAX_LOCK_BYTES:
        raise UsageError(f"{path.name} is larger than 16 MiB: it is no lock")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name} is no lock: {' '.join(str(error).split())[:120]}") from error
    return lock.read(document, path.name)
