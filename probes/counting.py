"""What the processor's own counters say of the bytes that a probe moved, and of the energy that it took.

The counters are those of memory controllers and see everybody's traffic, ours and that of others, so that they may show
more than was counted here. Less than the caches can account for contradicts a figure, which is then withheld.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from attrs import define, field, frozen

from k3gate.probing.contract import Context
from k3gate.records import Inventory, Labels, Proof
from k3gate.units import quantity, significant

T = TypeVar("T")
PROOF = "counter_check"
DEVICES = "/sys/bus/event_source/devices"
OTHERS = 1.25
"""Up to this multiple of our bytes the counters agree; beyond it others moved much besides."""
SLACK = 0.02
"""Of our bytes, for what is counted while counters are read one after another."""
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
_READ_FORMAT = 3
"""PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING of linux/perf_event.h: value, ns enabled, ns running."""
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQ40x")
"""struct perf_event_attr of 112 bytes: type, size, config, sample_period, sample_type, read_format, flags, wakeup,
bp_type, config1, config2."""
_ABSENT = (
    "no counters of memory controllers are shown; load intel_uncore or amd_uncore (a guest has none, "
    "and older kernels none for AMD)"
)


@frozen
class Count:
    """A counter's state: its value, and for how long it was wanted and did count, in ns."""

    value: int
    enabled: int
    running: int


class Source(Protocol):
    """Counters that are open."""

    @property
    def events(self) -> Sequence[Any]:
        """What each is of."""

    def read(self) -> list[Count]:
        """Each counter now, in the order of `events`."""

    def close(self) -> None:
        """Give them back."""


def risen(before: Count, after: Count) -> float | None:
    """Counts between two readings, of a counter of 64 bits that may have wrapped. Where it shared its hardware and ran
    for part of the time, scaled to the whole; None where it did not run at all."""
    value = (after.value - before.value) % 2**64
    enabled = (after.enabled - before.enabled) % 2**64
    running = (after.running - before.running) % 2**64
    if not running:
        return None
    return value * enabled / running


class Perf:
    """Counters of the kernel, opened by perf_event_open for whole units. Raises `OSError` where one is refused."""

    def __init__(self, events: Sequence[Any]) -> None:
        self.events: list[Any] = []
        self._descriptors: list[int] = []
        try:
            for event in events:
                for cpu in event.cpus:
                    self._descriptors.append(_open(event, cpu))
                    self.events.append(event)
        except OSError:
            self.close()
            raise

    def read(self) -> list[Count]:
        return [Count(*struct.unpack("<QQQ", os.read(one, 24))) for one in self._descriptors]

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _open(event: Any, cpu: int) -> int:
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "the number of perf_event_open is not known here")
    config, config1, config2 = event.config
    raw = _ATTRIBUTES.pack(event.type, 112, config, 0, 0, _READ_FORMAT, 0, 0, 0, config1, config2)
    libc = ctypes.CDLL(None, use_errno=True)
    close_on_exec = 8
    found = int(libc.syscall(number, raw, -1, cpu, -1, close_on_exec))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


@define
class Counting:
    """The counters around timed regions of a case. `source` None: there are none, and `reason` says why."""

    source: Source | None
    reason: str = ""
    totals: dict[str, float] = field(factory=dict)
    bytes: float = 0.0
    bus_bytes: float = 0.0
    lost: bool = False

    def around(self, work: Callable[[], T], moved: Callable[[T], tuple[float, float]]) -> T:
        """Do the work, and count what it moves: `moved` of its result gives (bytes, bytes with what a cached store
        reads besides)."""
        if self.source is None:
            return work()
        before = self.source.read()
        result = work()
        after = self.source.read()
        for event, one, other in zip(self.source.events, before, after, strict=True):
            counts = risen(one, other)
            if counts is None:
                self.lost = True
            else:
                self.totals[event.kind] = self.totals.get(event.kind, 0.0) + counts * event.scale
        own, bus = moved(result)
        self.bytes += own
        self.bus_bytes += bus
        return result

    def proof_beside(self, labels: Labels, whole: float) -> Proof:
        """The proof for a case that walks `whole` bytes; its labels tell the caches in play."""
        caches = labels.get("cache_bytes")
        return self.proof(caches / whole if isinstance(caches, int) and whole else 1.0)

    def proof(self, cached_share: float) -> Proof:
        """Whether the counters agree. `cached_share`: the part of our bytes that caches may have held."""
        if self.source is None:
            return Proof(PROOF, None, self.reason)
        counted = sum(self.totals.get(kind, 0.0) for kind in ("read", "written", "moved"))
        if self.lost or not self.bytes or not counted:
            return Proof(
                PROOF, None, "the counters did not run throughout: others use them, or they are switched off"
            )
        ratio = counted / self.bytes
        told = (
            f"memory controllers moved {quantity(counted, 'B')} while {quantity(self.bytes, 'B')} were counted here: "
            f"{significant(ratio)} of it{self._besides()}"
        )
        least = 1 - min(0.9, max(0.0, cached_share)) - SLACK
        if ratio < least:
            return Proof(
                PROOF,
                False,
                f"{told}; caches can account for no less than {significant(least)}: it was not all memory",
            )
        if counted > OTHERS * self.bus_bytes:
            return Proof(
                PROOF, None, f"{told}; others moved much besides, which neither confirms nor contradicts"
            )
        return Proof(PROOF, True, f"counter-checked: {told}")

    def _besides(self) -> str:
        parts = []
        if self.totals.get("linked"):
            parts.append(f"{quantity(self.totals['linked'], 'B')} were sent between sockets")
        joules = self.totals.get("energy")
        if joules:
            parts.append(
                f"{quantity(joules, 'J')} of processor and memory, {significant(joules / self.bytes * 1e9)} nJ a byte"
            )
        return "".join(f"; {part}" for part in parts)


def of(context: Context, nodes: Collection[int | None]) -> Counting:
    """The counters for a case that moves memory of these nodes; opened once a worker."""
    source, reason = context.share("counters", _opened, _closed)
    if source is not None and (other := _unseen(context.inventory, nodes)) is not None:
        return Counting(None, other)
    return Counting(source, reason)


def _unseen(inventory: Inventory, nodes: Collection[int | None]) -> str | None:
    """Why the controllers of the processors' DDR memory do not see all of what moves; None where they do."""
    used = [node for node in inventory.numa.nodes if node.id in nodes or None in nodes]
    other = next((node for node in used if node.kind not in ("dram", "unknown") or not node.cpus), None)
    if other is not None:
        return f"the counters are of the processors' DDR memory, and node {other.id} is of another kind"
    if any(node.memory_side_cache_bytes for node in used):
        return "a cache on the side of memory answers in place of the memory that the counters are of"
    return None


def _opened() -> tuple[Source | None, str]:
    try:
        units = os.listdir(DEVICES)  # noqa: PTH208 - no import of pathlib in a worker
    except OSError:
        units = []
    # Most machines without such units are guests, and every worker would pay for reading what describes none.
    if not any(one.startswith(("uncore_imc", "amd_umc")) for one in units):
        return None, _ABSENT
    from k3gate.host import perf_events
    from k3gate.host.files import Root

    root = Root("/")
    return opened(perf_events.events(root), perf_events.paranoid(root), Perf)


def opened(
    events: Sequence[Any], paranoid: int | None, make: Callable[[Sequence[Any]], Source]
) -> tuple[Source | None, str]:
    """The counters, or None and why not. Energy and links may be refused; memory's are what is wanted."""
    memory = [one for one in events if one.kind in ("read", "written", "moved")]
    if not memory:
        return None, _ABSENT
    for wanted in (events, memory):
        try:
            return make(wanted), ""
        except OSError as error:
            refused = error
    if refused.errno in (errno.EACCES, errno.EPERM):
        level = "unknown" if paranoid is None else paranoid
        return None, (
            f"not permitted (kernel.perf_event_paranoid is {level}): sudo sysctl kernel.perf_event_paranoid=0 until "
            "the next start, or give the process CAP_PERFMON"
        )
    return (
        None,
        f"the kernel opens no counters of memory controllers: {(refused.strerror or str(refused)).lower()}",
    )


def _closed(found: tuple[Source | None, str]) -> None:
    if found[0] is not None:
        found[0].close()
