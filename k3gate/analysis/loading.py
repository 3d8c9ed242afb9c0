"""How long loading the weights takes, as far as storage was measured, and what bounds it. Pure.

No loader is faster than the drives. One that goes through the page cache has a rate of its own, which was measured as a
whole; where it falls behind the drives, the slower of page cache and copying is what holds it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from k3gate import metrics
from k3gate.probing.outcomes import evidence
from k3gate.records import Interval, Metric, RunRecord, State

PROBE = "storage"
NEAR = 0.85
"""From this share of another rate on, a rate counts as bound by it."""


@frozen
class Reading:
    """A metric that can be used, and its place in the run."""

    key: str
    case: str
    metric: Metric

    @property
    def rate(self) -> float:
        """B/s."""
        return self.metric.median or 0.0


@frozen
class Stage:
    """Something that weights pass: `rate` in B/s, `seconds` for all of them. `reading` None: not measured, but known
    from the inventory."""

    key: str
    title: str
    rate: float
    seconds: float
    interval: Interval | None
    reading: Reading | None


@frozen
class Loading:
    """The stages of loading `bytes` from a path, in the order in which weights pass them."""

    path: str
    asked: bool
    bytes: int
    stages: tuple[Stage, ...]

    def stage(self, key: str) -> Stage | None:
        """One of them; None where it was not measured."""
        return next((one for one in self.stages if one.key == key), None)

    @property
    def floor(self) -> Stage:
        """What the drives deliver, after a while where that was measured: no loader is faster."""
        found = [one for one in self.stages if one.key in ("drives", "steady")]
        return min(found, key=lambda one: one.rate)

    @property
    def bound(self) -> str:
        """What bounds the way that loaders go, as a part of a sentence; the drives where that was not measured."""
        link, floor, loader = self.stage("link"), self.floor, self.stage("safetensors")
        drives = "the links of the drives" if link and floor.rate >= NEAR * link.rate else "the drives"
        if loader is None or loader.rate >= NEAR * floor.rate:
            return drives
        cached = [one for one in (self.stage("read"), self.stage("mmap")) if one is not None]
        copy = self.stage("copy")
        through = max(cached, key=lambda one: one.rate, default=None)
        if copy is not None and (through is None or copy.rate < through.rate):
            return "copying into memory by one thread"
        return "the file system's page cache"


def loading(record: RunRecord, size: int) -> Loading | None:
    """Of all places together where these were read so, else of the first; None where no direct read can be used."""
    found = readings(record)
    direct = [one for one in found if one.metric.name == metrics.STORAGE_READ.name]
    whole = [one for one in direct if one.metric.labels.get("scope") == "all"] or direct
    if not whole:
        return None
    best = max(whole, key=lambda one: one.rate)
    path = str(best.metric.labels.get("path"))
    own = [one for one in found if one.metric.labels.get("path") == path]
    stages = tuple(_stages(record, best, own, found, size))
    return Loading(path, best.metric.labels.get("asked") is True, size, stages)


def readings(record: RunRecord) -> list[Reading]:
    """All figures of storage that can be used, unstable ones too."""
    return [
        Reading(f"{outcome.probe}/{outcome.case}#{metric.name}", outcome.case, metric)
        for outcome in record.outcomes
        if outcome.probe == PROBE
        for metric in evidence(outcome)
        if metric.state in (State.OK, State.UNSTABLE) and metric.median
    ]


def _stages(
    record: RunRecord, best: Reading, own: Sequence[Reading], everything: Sequence[Reading], size: int
) -> Iterator[Stage]:
    links = _links(record, str(best.metric.labels.get("drives") or ""))
    if links is not None:
        yield Stage("link", "links of the drives, on paper", links, size / links, None, None)
    yield _stage("drives", "drives, past the page cache", best, size)
    for name, key, title in _MEASURED:
        way = key if name == metrics.STORAGE_LOADER.name else None
        reading = _of(everything if key in ("copy", "hash") else own, name, way)
        if reading is not None:
            yield _stage(key, title, reading, size)


_MEASURED = (
    (metrics.STORAGE_STEADY.name, "steady", "drives, after a minute and more"),
    (metrics.STORAGE_LOADER.name, "read", "reads through a cold page cache"),
    (metrics.STORAGE_LOADER.name, "mmap", "a mapping, its page cache cold"),
    (metrics.STORAGE_CACHED.name, "copy", "copying from the page cache into memory"),
    (metrics.STORAGE_LOADER.name, "safetensors", "all of it as a loader of safetensors does, one thread"),
    (metrics.STORAGE_HASH.name, "hash", "checksums, where they are wanted"),
)


def _stage(key: str, title: str, reading: Reading, size: int) -> Stage:
    return Stage(key, title, reading.rate, size / reading.rate, reading.metric.interval, reading)


def _of(found: Sequence[Reading], name: str, way: str | None) -> Reading | None:
    own = [
        one
        for one in found
        if one.metric.name == name and (way is None or one.metric.labels.get("way") == way)
    ]
    return max(own, key=lambda one: one.rate, default=None)


def _links(record: RunRecord, drives: str) -> float | None:
    """What the links of these drives carry together, where all of them are told."""
    names = set(filter(None, drives.split(", ")))
    storage = record.inventory.storage
    rates = [
        one.link.best_bytes_per_s
        for one in (storage.drives if storage else ())
        if one.name in names and one.link is not None and one.link.best_bytes_per_s
    ]
    return sum(rates) if names and len(rates) == len(names) else None
