"""What loads the machine: threads that stream or multiply over and over, and the bytes that they moved by time."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
from attrs import define, field

from k3gate.errors import NotPresentError, ProbeError
from k3gate.probes import _native, gemm_kernels, pools, sharing, storage_files, storage_plan
from k3gate.probes.direct_reads import Stream as DirectReads
from k3gate.probes.gemm_products import PROVEN_INNER, PROVEN_WIDTH
from k3gate.probes.storage_direct import Evidence
from k3gate.probes.thermal_plan import FORMAT
from k3gate.probing.contract import Context
from k3gate.probing.registry import one_line
from k3gate.records import Case, Proof, Scalar

REGION_S = 0.2
"""About how long a loader works before it looks whether it is to end."""


class Meter:
    """Bytes moved by time: spans come in, means over windows go out, in the order of time."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float, float]] = deque()
        self.until: float | None = None
        """Up to when all that was moved is known."""

    def add(self, start: float, end: float, moved: float) -> None:
        """Bytes that were moved evenly from `start` to `end`, on the monotonic clock."""
        self._spans.append((start, end, moved))
        self.until = end

    def rate(self, start: float, end: float) -> float:
        """B/s over a window; what ended before it is forgotten, so that windows may only go on."""
        while self._spans and self._spans[0][1] <= start:
            self._spans.popleft()
        moved = 0.0
        for begun, ended, size in tuple(self._spans):
            held = min(end, ended) - max(start, begun)
            if held > 0:
                moved += size * held / (ended - begun)
        return moved / (end - start)


class Worker(Protocol):
    """Work that can be done again and again, on a team of its own."""

    part: str
    labels: dict[str, Scalar]

    def work(self) -> tuple[float, float, float]:
        """(start, end, bytes) of a region of about `REGION_S`."""
        ...

    def proofs(self) -> list[Proof]:
        """What shows that it did what it says; after the load."""
        ...


@define
class Loader:
    """A worker, the thread that drives it, and what it moved."""

    worker: Worker
    meter: Meter = field(factory=Meter)
    failure: str | None = None
    thread: threading.Thread | None = None

    def start(self, ended: threading.Event) -> None:
        """Work until `ended`."""
        # A thread that hangs in native code must not keep the process alive.
        self.thread = threading.Thread(target=self._drive, args=(ended,), daemon=True)
        self.thread.start()

    def _drive(self, ended: threading.Event) -> None:
        try:
            while not ended.is_set():
                self.meter.add(*self.worker.work())
        except Exception as error:
            self.failure = f"{self.worker.part}: {one_line(error)}"
            ended.set()


def window(region: Any) -> tuple[float, float]:
    """When the first thread of a region began and the last one ended."""
    return min(one.start for one in region.threads), max(one.end for one in region.threads)


class Stream:
    """Threads that read a pool of one memory node, over and over, their sums checked."""

    part = "memory"

    def __init__(self, context: Context, entry: dict[str, Any], isa: str) -> None:
        self._entry = entry
        self._team = sharing.team(context, entry["cpus"])
        self._pool = sharing.pool(context, entry["pool"])
        self._parts = [[part] for part in self._pool.parts(len(entry["cpus"]))]
        self._isa = isa
        self._before = pools.placement([self._pool])
        self._watch = pools.PinWatch(self._team)
        self._sums = pools.Checksums(self._parts)
        once = self._team.run("read", isa, self._parts, 1)
        self._passes = max(1, round(REGION_S / max(once.seconds, 1e-6)))
        _, self._page = pools.page_size([self._pool])
        self.labels: dict[str, Scalar] = {
            "part": self.part,
            "memory_node": entry["memory_node"],
            "threads": len(entry["cpus"]),
            "isa": isa,
        }

    def work(self) -> tuple[float, float, float]:
        """See `Worker`."""
        region = self._team.run("read", self._isa, self._parts, self._passes)
        self._watch.see(region)
        self._sums.see(region, self._passes)
        return (*window(region), float(sum(thread.bytes for thread in region.threads)))

    def proofs(self) -> list[Proof]:
        """See `Worker`."""
        after = pools.placement([self._pool])
        caches = self._entry["cache_bytes"]
        return [
            self._before if self._before.ok is not True else after,
            self._page,
            self._watch.proof(),
            self._sums.proof(),
            sharing.working_set(self._pool.bytes, caches, self._entry["level_2_bytes"]),
        ]


class Product:
    """Threads that multiply whole experts with many tokens, each its own; compared with float64 before and after."""

    part = "kernels"

    def __init__(self, context: Context, entry: dict[str, Any]) -> None:
        spec, cpus = entry["pool"], entry["cpus"]
        self._team = sharing.team(context, cpus)
        self._tokens = int(entry["tokens"])
        variant = next(one for one in gemm_kernels.variants([entry["path"]]) if one.format == FORMAT)
        seed = secrets.randbits(32)
        self._reference = gemm_kernels.prove_expert(variant, self._tokens, PROVEN_WIDTH, PROVEN_INNER, seed)
        if self._reference.ok is not True:
            raise ProbeError(f"kernel_reference: {self._reference.detail}")
        context.heartbeat("compared with float64")
        if not spec["pages"].startswith(pools.RESERVED):
            pools.check_available(spec["bytes"])
        node = -1 if spec["bind"] is None else int(spec["bind"])

        def build() -> Any:
            return variant.trial(
                True, entry["rows"], entry["depth"], spec["bytes"], spec["pages"], seed, node
            )

        trial = context.share(f"weights:{entry['memory_node']}", build)
        self._trial, self._trials = trial, [trial] * len(cpus)
        self._filled = pools.FilledPool(trial.pool, spec["bind"], spec["pages"], 0, trial.bind_error)
        self._watch = pools.PinWatch(self._team)
        once = _native.gemm_run_together(self._team, self._trials, self._tokens, 1)
        self._calls = max(1, round(REGION_S / max(once.seconds, 1e-6)))
        self.labels: dict[str, Scalar] = {
            "part": self.part,
            "memory_node": entry["memory_node"],
            "threads": len(cpus),
            "isa": variant.path,
        }

    def work(self) -> tuple[float, float, float]:
        """See `Worker`."""
        region = _native.gemm_run_together(self._team, self._trials, self._tokens, self._calls)
        self._watch.see(region)
        return (*window(region), float(sum(thread.bytes for thread in region.threads)))

    def proofs(self) -> list[Proof]:
        """See `Worker`."""
        return [
            self._reference,
            gemm_kernels.recomputed(self._trial, secrets.randbits(32)),
            self._watch.proof(),
            pools.placement([self._filled]),
        ]


class Drives:
    """A thread that reads the files of a place past the page cache, over and over."""

    part = "storage"

    def __init__(self, context: Context, case: Case, entry: dict[str, Any]) -> None:
        source = entry["source"]
        place = storage_files.shared(context, source)
        if place.refusal:
            raise NotPresentError(f"the file system of {place.place} has no direct reads")
        shape = storage_plan.MAIN
        self._stream = DirectReads([place], shape.block, shape.threads, shape.depth)
        self._stream.read(REGION_S)
        told = attrs.evolve(case, parameters={"sources": [source]})
        self._evidence = Evidence(context, told, [place], direct=True)
        self._read = 0
        self.labels: dict[str, Scalar] = {
            "part": self.part,
            "place": source["path"],
            "threads": shape.threads,
        }

    def work(self) -> tuple[float, float, float]:
        """See `Worker`."""
        start = time.monotonic()
        read = self._stream.read(REGION_S)
        self._read += read.bytes
        return start, time.monotonic(), float(read.bytes)

    def proofs(self) -> list[Proof]:
        """See `Worker`."""
        return self._evidence.proofs(self._read)


def workers(context: Context, case: Case) -> list[Loader]:
    """All that a case loads, set up and not started. A place that cannot be read so is left out, and what is printed
    says so: that of memory is worth a load all the same."""
    parameters = case.parameters
    isa = sharing.choose_isa(parameters["isa"], "read")
    makers: Sequence[Callable[[], Worker]] = [
        *(lambda entry=entry: Stream(context, entry, isa) for entry in parameters["streams"]),
        *(lambda entry=entry: Product(context, entry) for entry in parameters["products"]),
    ]
    found = [Loader(make()) for make in makers]
    for entry in parameters["drives"]:
        try:
            found.append(Loader(Drives(context, case, entry)))
        except NotPresentError as error:
            print(f"not loaded: {error}")
    return found
