"""Reads past the page cache: the sweep over blocks, threads and depth, and the long read that shows what drives keep.

Where a file system refuses O_DIRECT, one case reads through a cold page cache instead and says so; the others say that
they could not be measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from k3gate import metrics
from k3gate.errors import NotPresentError
from k3gate.probes import storage_files, storage_proofs
from k3gate.probes.direct_reads import Read, Stream
from k3gate.probes.storage_files import OpenFiles
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, Proof, Scalar, State, StoragePath

REGION_SECONDS = 0.15
LEAST_REGION_SECONDS = 1e-3
"""A shorter region is too short to be trusted."""
WARM_UP_SECONDS = 0.1
LEAST_SAMPLES = 3
BUFFERS = "transparent huge pages, where there are some"
"""Where blocks come to lie: a loader that reads into base pages hands its drive many pieces for a block."""
COURSE_SECONDS = 0.5
"""A piece of a long read."""


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """`parameters`: sources, block, threads, depth, cpus, and fallback: whether this case stands in."""
    parameters = case.parameters
    places = [storage_files.shared(context, source) for source in parameters["sources"]]
    refused = next((place for place in places if place.refusal), None)
    direct = refused is None
    if refused is not None and not parameters["fallback"]:
        raise NotPresentError(
            f"{_refusal(refused)}: see the case that reads through a cold page cache instead"
        )
    depth = parameters["depth"] if direct else 1
    threads = parameters["threads"] if direct else parameters["threads"] * parameters["depth"]
    stream = Stream(places, parameters["block"], threads, depth, parameters["cpus"], direct=direct)
    if direct:
        context.setup(stream.read(WARM_UP_SECONDS).seconds)
    evidence = Evidence(context, case, places, direct=direct)
    reads = list(_regions(context, stream, places, direct=direct))
    proofs = evidence.proofs(sum(one.bytes for one in reads), statistics.median(one.rate for one in reads))
    if stream.cpus:
        proofs.append(storage_proofs.pinned(reads[-1].region, stream.cpus))
    labels: dict[str, Scalar] = {**case.labels, "direct": direct, "engine": stream.engine, "buffers": BUFFERS}
    rates = [context.sample(read.rate, read.seconds) for read in reads]
    if not direct:
        labels |= {"way": "buffered", "threads": threads, "depth": 1}
        told = f"{_refusal(places[0])}: read through a cold page cache, which is not device speed"
        yield figure(context, metrics.STORAGE_LOADER, rates, labels, proofs, told)
        return
    yield figure(context, metrics.STORAGE_READ, rates, labels, proofs)
    cpu = [context.sample(read.cpu_seconds / read.bytes, read.seconds) for read in reads if read.bytes]
    # CPU time is a circumstance of the rate: it stands and falls with the same proofs.
    yield figure(context, metrics.STORAGE_CPU, cpu, labels, proofs)


def course(case: Case, context: Context) -> Iterator[Metric]:
    """A long read without a pause: its course, and what is left of the rate in its last third."""
    parameters = case.parameters
    places = [storage_files.shared(context, source) for source in parameters["sources"]]
    refused = next((place for place in places if place.refusal), None)
    if refused is not None:
        raise NotPresentError(_refusal(refused))
    stream = Stream(
        places, parameters["block"], parameters["threads"], parameters["depth"], parameters["cpus"]
    )
    context.setup(stream.read(WARM_UP_SECONDS).seconds)
    evidence = Evidence(context, case, places, direct=True)
    reads: list[Read] = []
    samples: list[SampleToken] = []
    while sum(one.seconds for one in reads) < parameters["seconds"]:
        read = stream.read(COURSE_SECONDS)
        reads.append(read)
        samples.append(context.sample(read.rate, read.seconds))
        context.heartbeat("reading on end")
    proofs = evidence.proofs(sum(one.bytes for one in reads), statistics.median(one.rate for one in reads))
    labels: dict[str, Scalar] = {**case.labels, "direct": True, "engine": stream.engine, "buffers": BUFFERS}
    last = reads[-max(1, len(reads) // 3) :]
    steady = sum(one.bytes for one in last) / sum(one.seconds for one in last)
    yield figure(context, metrics.STORAGE_COURSE, samples, labels, proofs)
    yield figure(context, metrics.STORAGE_STEADY, [context.sample(steady, 0.0)], labels, proofs)


def _regions(
    context: Context, stream: Stream, places: Sequence[OpenFiles], *, direct: bool
) -> Iterator[Read]:
    """Timed regions until the case's seconds are used. Through the page cache no thread may come round to what it read
    before, so that the files are dropped again before that."""
    taken, spent, furthest = 0, 0.0, 0
    seconds = REGION_SECONDS
    while taken < LEAST_SAMPLES or spent + seconds <= context.seconds:
        if not direct and 2 * furthest > stream.part_bytes:
            _drop(places)
            furthest = 0
        read = stream.read(seconds)
        context.heartbeat("reading")
        if not direct:
            furthest += max(thread.bytes for thread in read.region.threads)
            if furthest > stream.part_bytes:
                # What was read again was in memory by then.
                _drop(places)
                context.setup(read.seconds)
                seconds, furthest = seconds / 4, 0
                if seconds < LEAST_REGION_SECONDS:
                    raise NotPresentError(
                        f"{places[0].place} holds too little to be read through a cold page cache"
                    )
                continue
        taken, spent = taken + 1, spent + read.seconds
        yield read


def _drop(places: Sequence[OpenFiles]) -> None:
    for place in places:
        storage_files.evict(place.files)


class Evidence:
    """What is looked at before and after the timed regions of a case."""

    def __init__(self, context: Context, case: Case, places: Sequence[OpenFiles], *, direct: bool) -> None:
        self._places, self._direct = places, direct
        self._context = context
        wanted = {source["path"] for source in case.parameters["sources"]}
        storage = context.inventory.storage
        self._drives = storage.drives if storage else ()
        self._lying: list[StoragePath] = [
            one for one in (storage.paths if storage else ()) if one.path in wanted
        ]
        for place in places:
            storage_files.evict(place.files)
        self._files = [one for place in places for one in place.files]
        self._before = storage_proofs.resident(self._files)
        self._counted = storage_proofs.delivered(self.names)

    @property
    def names(self) -> list[str]:
        """The drives below all places, where all of them are known."""
        names = [set(one.drives) for one in self._lying]
        return sorted(set().union(*names)) if names and all(names) else []

    def proofs(self, read: int, rate: float | None = None) -> list[Proof]:
        """All of them, after so many bytes were read; `rate`: of direct reads, in B/s."""
        counted = storage_proofs.delivered(self.names)
        after = storage_proofs.resident(self._files)
        found = [
            storage_proofs.uncached(self._before, after, direct=self._direct),
            storage_proofs.from_drives(self._counted, counted, read),
        ]
        found += self._content()
        if rate is not None:
            found.append(storage_proofs.ceiling(rate, self._drives, self._lying))
        return found

    def _content(self) -> list[Proof]:
        """Of what the files hold, which does not change: looked at once a worker."""
        return [
            proof
            for place in self._places
            for proof in self._context.share(
                f"content:{place.place}",
                partial(_content_of, place),
            )
        ]


def _content_of(place: OpenFiles) -> list[Proof]:
    return [storage_proofs.written(place), storage_proofs.incompressible(place)]


def figure(
    context: Context,
    declaration: Any,
    samples: Sequence[SampleToken],
    labels: Mapping[str, Scalar],
    proofs: Sequence[Proof],
    told: str | None = None,
) -> Metric:
    """A metric of a round; where a proof is false its figure is withheld, in all rounds."""
    false = [f"{proof.name.replace('_', ' ')}: {proof.detail}" for proof in proofs if proof.ok is False]
    if false:
        return context.metric(
            declaration, [], dict(labels), proofs, State.FAILED, f"withheld: {'; '.join(false)}"
        )
    return context.metric(declaration, samples, dict(labels), proofs, State.OK, told)


def _refusal(place: OpenFiles) -> str:
    return f"the file system of {place.place} has no direct reads (O_DIRECT: EINVAL)"
