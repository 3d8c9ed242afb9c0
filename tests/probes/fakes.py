"""Fakes: a context that only keeps books, threads that do nothing, pools that hold no memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from k3gate.probes import pools
from k3gate.probes.layout import ARRAYS
from k3gate.probes.memory import MemoryProbe
from k3gate.probing.contract import SampleToken
from k3gate.records import Case, Inventory, Metric, Profile, Sample, State

SIZE = 64 << 20


class FakeContext:
    """Stands in for a worker's context: shares and stamps, sends nothing."""

    def __init__(self, inventory: Inventory, seconds: float = 0.2) -> None:
        self.round, self.seconds, self.inventory = 0, seconds, inventory
        self.files: dict[str, int] = {}
        self.shared: dict[str, Any] = {}
        self.releases: list[tuple[Any, Any]] = []
        self.timed: list[float] = []
        self.booked = 0.0

    def share(self, key, build, release=None):
        if key not in self.shared:
            self.shared[key] = build()
            if release is not None:
                self.releases.append((release, self.shared[key]))
        return self.shared[key]

    def sample(self, value: float, timed_seconds: float) -> SampleToken:
        self.timed.append(timed_seconds)
        return SampleToken(value, time.monotonic(), timed_seconds or None)

    def metric(self, declaration, samples, labels, proofs=(), state=State.OK, reason=None) -> Metric:
        taken = tuple(Sample(one.value, self.round, os.getpid(), one.start_s) for one in samples)
        name, unit, better = declaration.name, declaration.unit, declaration.better
        return Metric(name, unit, better, labels, taken, None, None, state, reason, tuple(proofs))

    def heartbeat(self, note: str = "") -> None:
        pass

    def setup(self, seconds: float) -> None:
        self.booked += seconds

    def close(self) -> None:
        while self.releases:
            release, thing = self.releases.pop()
            release(thing)


@attrs.define
class FakeThread:
    """What one thread reports of a region."""

    start: float = 0.0
    end: float = 0.0
    bytes: int = 0
    value: int = 0
    cpu_before: int = 0
    cpu_after: int = 0
    error: int = 0


@attrs.define
class FakeRegion:
    """A timed region as `_native.Team` gives it."""

    seconds: float
    threads: list[FakeThread]


@attrs.define
class FakeMemory:
    """Stands in for `_native.Pool`: `nodes` says where the sampled pages lie; every page is on node 0 else."""

    bytes: int
    address: int = 0
    advice_error: int = 0
    nodes: Callable[[], list[int]] | None = None
    closed: bool = False

    def query_nodes(self, samples: int) -> tuple[int, list[int]]:
        return 0, self.nodes() if self.nodes else [0] * samples

    def close(self) -> None:
        self.closed = True


class FakeTeam:
    """Stands in for `_native.Team`. The regions of each call last `seconds` in turn, the last one for ever.

    Its threads find what was written and stay on their CPUs; `bend(call, number, threads)` may change the
    reports of the `number`-th region (from 0) of "run", "touch" or "verify" before they are given back.
    """

    def __init__(
        self,
        cpus: Sequence[int],
        seconds: Sequence[float] = (0.1,),
        bend: Callable[[str, int, list[FakeThread]], None] | None = None,
        hertz: Sequence[float] = (),
    ) -> None:
        self.hertz = list(hertz)
        self.cpus = list(cpus)
        self.calls: list[tuple[str, int]] = []
        self._seconds = list(seconds)
        self._bend = bend

    def clocks(self) -> list[float]:
        return self.hertz

    def affinities(self) -> list[list[int]]:
        return [[cpu] for cpu in self.cpus]

    def run(self, kernel: str, isa: str, parts: Sequence[Sequence[pools.Part]], passes: int) -> FakeRegion:
        values = [passes * sum(pools.pattern_sum(part) for part in own) % (1 << 64) for own in parts]
        if kernel != "read":
            values = [0] * len(parts)  # every word was stored
        return self._region("run", parts, values, passes, ARRAYS[kernel.removesuffix("_nt")])

    def prepare(self, kernel: str, parts: Sequence[Sequence[pools.Part]]) -> FakeRegion:
        return self._region("prepare", parts, [0] * len(parts), 1)

    def count_unwritten(self, kernel: str, parts: Sequence[Sequence[pools.Part]]) -> FakeRegion:
        return self._region("count_unwritten", parts, [0] * len(parts), 1)

    def touch(self, parts: Sequence[Sequence[pools.Part]]) -> FakeRegion:
        return self._region("touch", parts, [0] * len(parts), 1)

    def verify(self, parts: Sequence[Sequence[pools.Part]]) -> FakeRegion:
        return self._region("verify", parts, [0] * len(parts), 1)

    def _region(
        self,
        call: str,
        parts: Sequence[Sequence[pools.Part]],
        values: Sequence[int],
        passes: int,
        arrays: int = 1,
    ) -> FakeRegion:
        number = sum(1 for name, _ in self.calls if name == call)
        self.calls.append((call, passes))
        seconds = self._seconds[min(number, len(self._seconds) - 1)]
        threads = [
            FakeThread(0.0, seconds, passes * sum(part[2] for part in own) // arrays, value, cpu, cpu)
            for cpu, own, value in zip(self.cpus, parts, values, strict=True)
        ]
        if self._bend is not None:
            self._bend(call, number, threads)
        return FakeRegion(seconds, threads)


def fake_pool(size: int, node: int | None = 0, pages: str = "small", **memory: Any) -> pools.FilledPool:
    """A pool of no memory, filled all over."""
    return pools.FilledPool(FakeMemory(size, **memory), node, pages, seed=7, filled=[(0, size)])


def case_on_two_cpus(inventory: Inventory, name: str, size: int = SIZE) -> Case:
    """A case of profile standard on two CPUs and node 0, its pools of `size` bytes in base pages."""
    cases = MemoryProbe().cases(inventory, Profile("standard", 1200.0, image_bytes=10**9)).cases
    case = next(one for one in cases if one.name == name)
    specs = [{**spec, "bytes": size, "pages": "small", "touch": [0, 1]} for spec in case.parameters["pools"]]
    parameters = {**case.parameters, "pools": specs}
    parameters |= {"readers": [[0, 1]]} if "readers" in parameters else {"cpus": [0, 1]}
    return attrs.evolve(case, parameters=parameters, labels={**case.labels, "cache_bytes": SIZE // 16})
