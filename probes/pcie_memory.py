"""Host memory for copies: on a node, proven there, locked for the GPU as far as this process may, and what it holds.

A source holds a pattern that is seeded anew in each round, and a sink another one before each copy that is proven, so
that only a copy that was really made can leave the source's pattern in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import attrs
from attrs import define

from k3gate.errors import NotPermittedError
from k3gate.probes import pools, sharing
from k3gate.probes.pcie_driver import Device, Driver, PinningRefusedError
from k3gate.probing.contract import Context
from k3gate.records import Proof
from k3gate.units import exact_bytes

LEAST_PINNED = 1 << 20
"""The smallest buffer that is still tried: of less a rate would be one of launches."""
_GARBAGE = 0xA5


@define
class HostMemory:
    """A source and a sink of one node. `pinned`: so many bytes of each are locked, 0: none; `refusal`: why no more."""

    source: pools.FilledPool
    sink: pools.FilledPool
    team: Any
    pinned: int = 0
    refusal: str | None = None

    def address(self, pool: pools.FilledPool) -> int:
        """Where a pool begins."""
        return int(pool.pool.address)

    def spoil(self, size: int) -> None:
        """Another pattern into the sink's first bytes."""
        self.sink = attrs.evolve(self.sink, seed=secrets.randbits(64))
        self.team.touch(self._parts(size, self.sink.seed))

    def wrong_words(self, size: int) -> int:
        """How many words of the sink's first bytes are not the source's."""
        region = self.team.verify(self._parts(size, self.source.seed))
        return sum(thread.value for thread in region.threads)

    def _parts(self, size: int, seed: int) -> list[list[pools.Part]]:
        parts = self.sink.parts(len(self.team.cpus), 0, size)
        return [[(pool, start, length, seed)] for pool, start, length, _ in parts]

    def placement(self) -> Proof:
        """Where the pages of both lie now."""
        return pools.placement([self.source, self.sink])


def of_node(
    context: Context,
    driver: Driver,
    place: int,
    source: dict[str, Any],
    sink: dict[str, Any],
    *,
    locked: bool,
) -> HostMemory:
    """The memory of these two specifications, filled, and locked as far as that goes where it is to be; shared by the
    cases of a worker, which tell by `place` how many such they need at once.

    A device of the driver must have been asked for before.
    """
    threads = sharing.team(context, source["touch"])

    def build() -> HostMemory:
        made = [
            pools.build(spec["bytes"], spec["pages"], spec["bind"], spec["touch"], threads, context.heartbeat)
            for spec in (source, sink)
        ]
        memory = HostMemory(made[0], made[1], threads)
        if locked:
            lock(memory, driver, context.inventory.limits.memlock_bytes)
        return memory

    def release(memory: HostMemory) -> None:
        if memory.pinned:
            for pool in (memory.source, memory.sink):
                driver.unpin(memory.address(pool))
        memory.source.close()
        memory.sink.close()

    name = f"pcie memory {place} of node {source['node']}, {source['bytes']} bytes, {'' if locked else 'not '}locked"
    return context.share(name, build, release)


def lock(memory: HostMemory, driver: Driver, limit: int | None) -> None:
    """Lock both pools, or halves of them, down to `LEAST_PINNED`; what was refused stands in `refusal`."""
    size = min(memory.source.bytes, memory.sink.bytes)
    while size >= LEAST_PINNED:
        done: list[int] = []
        try:
            for pool in (memory.source, memory.sink):
                driver.pin(memory.address(pool), size)
                done.append(memory.address(pool))
        except PinningRefusedError as error:
            for address in done:
                driver.unpin(address)
            memory.refusal = _refused(size, error, limit)
            size //= 2
            continue
        memory.pinned = size
        return


def _refused(size: int, error: PinningRefusedError, limit: int | None) -> str:
    told = (
        "no limit on locked memory" if limit is None else f"a limit of {exact_bytes(limit)} on locked memory"
    )
    return f"locking {exact_bytes(size)} was refused ({error}); this process has {told} (ulimit -l)"


def pinned_size(memory: HostMemory, wanted: int) -> int:
    """How much of `wanted` can be copied from locked memory. Raises `NotPermittedError` where none can."""
    if not memory.pinned:
        raise NotPermittedError(
            f"no memory could be locked for the GPU: {memory.refusal}; raise it with `ulimit -l unlimited`, or in a "
            "container with --ulimit memlock=-1"
        )
    return min(wanted, memory.pinned)


class Arrived:
    """Whether what was copied is what was sent, looked at by a way of its own each time."""

    def __init__(self, memory: HostMemory, device: Device, size: int) -> None:
        self._memory, self._device, self._size = memory, device, size
        self._compared = self._wrong = 0

    def at_device(self, place: int) -> None:
        """The source's pattern was copied to this memory of the device: bring it back and compare it."""
        self._memory.spoil(self._size)
        stream = self._device.stream()
        self._device.copy_out(self._memory.address(self._memory.sink), place, self._size, stream)
        self._device.wait(stream)
        self.at_host()

    def at_host(self) -> None:
        """It was copied to the sink: compare it there."""
        self._compared += self._size // 8
        self._wrong += self._memory.wrong_words(self._size)

    def proof(self) -> Proof:
        """The proof "checksum"."""
        if not self._compared:
            return Proof("checksum", None, "nothing was compared")
        if self._wrong:
            return Proof("checksum", False, f"{self._wrong} of {self._compared} copied words are wrong")
        return Proof("checksum", True, f"all {self._compared} copied words are those that were sent")


class DeviceMemory:
    """Memory of a device that is given back at the end, spoilt at the beginning."""

    def __init__(self, device: Device, sizes: Sequence[int]) -> None:
        self._device = device
        self._wanted = list(sizes)
        self.places: list[int] = []

    def __enter__(self) -> list[int]:
        try:
            for size in self._wanted:
                self.places.append(self._device.allocate(size))
                self._device.fill(self.places[-1], size, _GARBAGE)
        except BaseException:
            self.__exit__()
            raise
        return self.places

    def __exit__(self, *_: object) -> None:
        while self.places:
            self._device.free(self.places.pop())
