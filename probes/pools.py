"""Memory in a worker: allocated on a node, filled by pinned threads, and proven to be what was asked for.

Everything read from /proc is bounded. A proof that cannot be taken has `ok` None and the reason.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from attrs import define, field

from k3gate.errors import NotPermittedError, ProbeError
from k3gate.probes import _native
from k3gate.probes.smaps import smaps_fields
from k3gate.probes.working_sets import HUGE_PAGE, round_up
from k3gate.records import Proof
from k3gate.units import cpu_list, exact_bytes

RESERVED = "reserved"
"""How the kinds of pages begin that come from memory which the kernel has set aside."""
SAMPLED_PAGES = 4096
"""How many evenly spread pages of a pool are asked for their node."""
TOUCH_SLICE = 256 << 20
"""Bytes that a thread touches between two heartbeats."""
HUGE_SHARE = 0.99
"""From this share of huge pages on, a pool counts as made of them."""
_WORD = 1 << 64

Part = tuple[Any, int, int, int]
"""(pool, offset, bytes, seed), as `_native.Team` takes it."""


def error_text(number: int) -> str:
    """An errno as a person reads it: "ENOMEM (Cannot allocate memory)"."""
    return f"{errno.errorcode.get(number, number)} ({os.strerror(number)})"


@define
class FilledPool:
    """A pool that was touched. `node` None: not to be bound, as the kernel shows no NUMA information."""

    pool: Any
    node: int | None
    pages: str
    seed: int
    bind_error: int = 0
    filled: list[tuple[int, int]] = field(factory=list)

    @property
    def bytes(self) -> int:
        """The size really mapped."""
        return int(self.pool.bytes)

    def close(self) -> None:
        """Unmap it."""
        self.pool.close()

    def parts(self, count: int, start: int = 0, size: int | None = None) -> list[Part]:
        """A range of the pool in `count` contiguous parts of nearly equal size, whole base pages each."""
        size = self.bytes - start if size is None else size
        step = round_up(-(-size // count), 4096)
        edges = [min(size, i * step) for i in range(count + 1)]
        return [(self.pool, start + a, b - a, self.seed) for a, b in pairwise(edges)]


def make_team(cpus: Sequence[int]) -> Any:
    """A pinned thread team; the errors say which CPU was refused."""
    try:
        return _native.Team(list(cpus))
    except OSError as error:
        kind = NotPermittedError if error.errno == errno.EPERM else ProbeError
        raise kind(f"{error.strerror or error}: is the CPU online and in the allowed set?") from error


def allocate(size: int, pages: str, node: int | None) -> FilledPool:
    """Untouched memory, bound to its node where that is permitted. Raises `OSError` where there is none."""
    pool = _native.Pool(size, pages)
    refused = pool.bind(node) if node is not None else 0
    return FilledPool(pool, node, pages, secrets.randbits(64), refused)


def check_available(size: int) -> None:
    """Raise `ProbeError` where memory has gone since the run was planned, rather than be killed for it.

    `size`: bytes of all pools together, less those from reserved pages, which MemAvailable does not count.
    """
    available = available_bytes()
    if available is not None and size > 0.97 * available:
        raise ProbeError(
            f"{exact_bytes(size)} are wanted and only {exact_bytes(available)} are available now: memory was "
            "taken since the run was planned"
        )


def available_bytes() -> int | None:
    """MemAvailable now; None where the kernel does not say."""
    try:
        with open("/proc/meminfo", "rb") as file:
            found = re.search(rb"^MemAvailable:\s+(\d{1,15}) kB", file.read(65536), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def touch(
    team: Any,
    pools: Sequence[tuple[FilledPool, Sequence[int]]],
    heartbeat: Callable[[str], None],
    see: Callable[[Any], None] | None = None,
) -> tuple[float, int]:
    """Fill pools for the first time, all at once, each by the named CPUs of the team.

    `see` is shown every timed region. Returns (seconds of all threads' common windows, errno): errno is 0, or
    why it ended early; what was filled until then stands in `filled` of each pool.
    """
    seconds = 0.0
    for round_ in _slices(team, pools):
        parts, covered = round_
        region = team.touch(parts)
        seconds += region.seconds
        if see is not None:
            see(region)
        errors = [thread.error for thread in region.threads if thread.error]
        if errors:
            return seconds, int(errors[0])
        for pool, start, size in covered:
            pool.filled.append((start, size))
        heartbeat("touching memory")
    return seconds, 0


def verify(
    team: Any,
    pools: Sequence[tuple[FilledPool, Sequence[int]]],
    heartbeat: Callable[[str], None],
    see: Callable[[Any], None] | None = None,
) -> tuple[float, int, int]:
    """Read the pattern of all filled ranges back: (seconds, bytes found right, words found wrong).

    A thread that found a wrong word counts none of its bytes of that slice. `see` is shown every timed region.
    """
    seconds, right, wrong = 0.0, 0, 0
    for parts, _ in _slices(team, pools, filled_only=True):
        region = team.verify(parts)
        seconds += region.seconds
        if see is not None:
            see(region)
        right += sum(thread.bytes for thread in region.threads if thread.value == 0)
        wrong += sum(thread.value for thread in region.threads)
        heartbeat("verifying memory")
    return seconds, right, wrong


def _slices(
    team: Any, pools: Sequence[tuple[FilledPool, Sequence[int]]], filled_only: bool = False
) -> Iterator[tuple[list[list[Part]], list[tuple[FilledPool, int, int]]]]:
    """Parts for one call of the team after another: of each pool the next slice, split over its CPUs."""
    index = {cpu: i for i, cpu in enumerate(team.cpus)}
    done = [0] * len(pools)
    while True:
        parts: list[list[Part]] = [[] for _ in index]
        covered = []
        for number, (pool, cpus) in enumerate(pools):
            start = done[number]
            size = min(TOUCH_SLICE * len(cpus), pool.bytes - start)
            if size <= 0 or (filled_only and (start, size) not in pool.filled):
                continue
            for cpu, part in zip(cpus, pool.parts(len(cpus), start, size), strict=True):
                parts[index[cpu]].append(part)
            covered.append((pool, start, size))
            done[number] += size
        if not covered:
            return
        yield parts, covered


def build(
    size: int,
    pages: str,
    node: int | None,
    cpus: Sequence[int],
    team: Any,
    heartbeat: Callable[[str], None],
) -> FilledPool:
    """A pool filled by these CPUs of the team. Raises `ProbeError` with the errno where memory is refused."""
    check_available(0 if pages.startswith(RESERVED) else size)
    where = f"{exact_bytes(size)} in {pages} pages" + ("" if node is None else f" on node {node}")
    try:
        filled = allocate(size, pages, node)
    except OSError as error:
        raise ProbeError(f"no memory: {where}: {error_text(error.errno or 0)}") from error
    _, failed = touch(team, [(filled, cpus)], heartbeat)
    if failed:
        filled.close()
        raise ProbeError(f"no memory: touching {where}: {error_text(failed)}")
    return filled


# --- what proves it ----------------------------------------------------------------------------------------


def placement(pools: Sequence[FilledPool]) -> Proof:
    """Where the pages of these pools lie, asked of move_pages now."""
    said = []
    for one in pools:
        if one.node is None:
            return Proof("placement", None, "the kernel shows no NUMA information")
        if one.bind_error:
            return Proof("placement", None, _refusal("mbind", one.bind_error, f"on node {one.node}"))
        refused, nodes = one.pool.query_nodes(SAMPLED_PAGES)
        if refused:
            return Proof("placement", None, _refusal("move_pages", refused, f"on node {one.node}"))
        counts = Counter(nodes)
        if set(counts) != {one.node}:
            return Proof("placement", False, f"wanted on node {one.node}: {_counted(counts)}")
        said.append(f"all {len(nodes)} sampled pages on node {one.node}")
    return Proof("placement", True, "; ".join(said) + " (move_pages)")


def _refusal(call: str, number: int, where: str) -> str:
    text = f"{call} refused, {error_text(number)}: placement {where} was not set, and not looked up"
    if call == "move_pages":
        text = f"{call} refused, {error_text(number)}: placement {where} cannot be seen"
    if number in (errno.EPERM, errno.ENOSYS):
        text += "; needs a seccomp profile that permits it (container: --cap-add SYS_NICE)"
    return text


def _counted(counts: Counter[int]) -> str:
    words = []
    for node, number in counts.most_common(4):
        words.append(f"{number} pages on node {node}" if node >= 0 else f"{number} pages {error_text(-node)}")
    return ", ".join(words)


def page_size(pools: Sequence[FilledPool]) -> tuple[int | None, Proof]:
    """(page size that the pools really have, its proof), from /proc/self/smaps; None where it is mixed.

    The kernel may run out of huge pages half-way: then the size is not proven, and the figure stands with that
    word. The proof is false only where base pages were asked for and others came.
    """
    sizes: set[int | None] = set()
    said: list[str] = []
    for one in pools:
        try:
            fields = smaps_fields(int(one.pool.address))
        except OSError as error:
            return None, Proof("page_size", None, f"/proc/self/smaps: {error_text(error.errno or 0)}")
        size, text = _page_size(one, fields)
        if one.pool.advice_error:
            text += f", madvise for {one.pages} pages refused: {error_text(one.pool.advice_error)}"
        sizes.add(size)
        said.append(text)
    detail = "; ".join(dict.fromkeys(said)) + " (smaps)"
    asked_for_base = any(one.pages == "small" for one in pools)
    if len(sizes) == 1 and None not in sizes:
        size = sizes.pop()
        return size, Proof("page_size", not (asked_for_base and size == HUGE_PAGE), detail)
    return None, Proof("page_size", False if asked_for_base and "not found" not in detail else None, detail)


def _page_size(one: FilledPool, fields: dict[str, int]) -> tuple[int | None, str]:
    kernel = fields.get("KernelPageSize")
    if kernel is None:
        return None, "the mapping was not found"
    if one.pages.startswith(RESERVED):
        return kernel, f"KernelPageSize {kernel} bytes"
    share = fields.get("AnonHugePages", 0) / one.bytes
    if share >= HUGE_SHARE:
        return HUGE_PAGE, f"AnonHugePages {share:.1%} of the pool"
    if share == 0:
        return kernel, f"KernelPageSize {kernel} bytes, no huge pages"
    return None, f"mixed: huge pages are only {share:.1%} of the pool"


def resident(pools: Sequence[FilledPool]) -> Proof:
    """The proof "resident": none of these pools' bytes are in swap now, from /proc/self/smaps."""
    swapped = 0
    for one in pools:
        try:
            fields = smaps_fields(int(one.pool.address))
        except OSError as error:
            return Proof("resident", None, f"/proc/self/smaps: {error_text(error.errno or 0)}")
        if "Swap" not in fields:
            return Proof("resident", None, "/proc/self/smaps does not say what is in swap")
        swapped += fields["Swap"]
    return Proof("resident", swapped == 0, f"{swapped} bytes in swap after touching (smaps)")


class PinWatch:
    """Whether each thread stayed on its CPU: its affinity mask, and getcpu around every timed region."""

    def __init__(self, team: Any) -> None:
        self._cpus = list(team.cpus)
        masks = team.affinities()
        self._unread = any(not mask for mask in masks)
        self._wrong = [
            f"CPU {cpu} (mask {cpu_list(mask)})"
            for cpu, mask in zip(self._cpus, masks, strict=True)
            if mask and mask != [cpu]
        ]
        self._strayed: Counter[int] = Counter()

    def see(self, region: Any) -> None:
        """Take note of a timed region."""
        for cpu, thread in zip(self._cpus, region.threads, strict=True):
            seen = {thread.cpu_before, thread.cpu_after}
            if -1 in seen:
                self._unread = True
            elif seen != {cpu}:
                self._strayed[cpu] += 1

    def proof(self) -> Proof:
        """The proof "pinned"."""
        if self._wrong:
            return Proof("pinned", False, "not pinned: " + ", ".join(self._wrong[:4]))
        if self._strayed:
            cpus = cpu_list(sorted(self._strayed))
            return Proof("pinned", False, f"threads of CPUs {cpus} were seen on another CPU")
        if self._unread:
            return Proof("pinned", None, "sched_getaffinity or getcpu was refused")
        many = "1 thread" if len(self._cpus) == 1 else f"{len(self._cpus)} threads"
        return Proof("pinned", True, f"{many} on CPUs {cpu_list(self._cpus)} (sched_getaffinity, getcpu)")


def pattern_sum(part: Part) -> int:
    """What the words of a part add up to, modulo 2^64, by closed form: independent of the native code."""
    _, offset, size, seed = part
    words, first = size // 8, offset // 8
    positions = words * first + words * (words + 1) // 2
    return (words * seed + int(_native.PATTERN_STEP) * positions) % _WORD


class Checksums:
    """The kernel's output against the pattern's sum, over all timed regions of a case."""

    def __init__(self, parts: Sequence[Sequence[Part]]) -> None:
        self._expected = [sum(pattern_sum(part) for part in own) % _WORD for own in parts]
        self._regions = 0
        self._wrong = 0

    def see(self, region: Any, passes: int) -> None:
        """Take note of a timed region."""
        self._regions += 1
        pairs = zip(region.threads, self._expected, strict=True)
        self._wrong += any(thread.value != passes * wanted % _WORD for thread, wanted in pairs)

    def proof(self) -> Proof:
        """The proof "checksum"."""
        if not self._regions:
            return Proof("checksum", None, "no timed region")
        if self._wrong:
            return Proof(
                "checksum", False, f"{self._wrong} of {self._regions} timed regions read a wrong sum"
            )
        return Proof("checksum", True, "every timed region's sum equals the pattern's")


class StoredWords:
    """What a kernel that stores left in memory, against closed forms. It overwrites the pattern of its parts: give
    it pools of its own, or `team.prepare("read", parts)` before these are read again.
    """

    def __init__(self, team: Any, kernel: str, parts: Sequence[Sequence[Part]]) -> None:
        self._team, self._kernel, self._parts = team, kernel, parts
        self._regions = 0
        self._wrong = 0
        team.prepare(kernel, parts)

    def see(self, region: Any, passes: int) -> None:
        """Take note of a timed region: a word in each 64 KiB was spoilt before it."""
        self._regions += 1
        self._wrong += any(thread.value for thread in region.threads)

    def proof(self) -> Proof:
        """The proof "checksum"; reads all that was stored."""
        if not self._regions:
            return Proof("checksum", None, "no timed region")
        left = self._team.count_unwritten(self._kernel, self._parts).threads
        words, wrong = sum(thread.bytes for thread in left) // 8, sum(thread.value for thread in left)
        if self._wrong or wrong:
            detail = f"{self._wrong} of {self._regions} timed regions left words unwritten; "
            return Proof("checksum", False, f"{detail}{wrong} of {words} words are wrong")
        return Proof("checksum", True, f"all {words} stored words are right, and each timed region stored")


def traffic(kernel: str, isa: str) -> dict[str, Any]:
    """The row of `kernel_table` about a kernel; the instruction set has passed `sharing.choose_isa`."""
    return next(row for row in kernel_table() if (row["name"], row["isa"]) == (kernel, isa))


def kernel_table() -> list[dict[str, Any]]:
    """The kernels with their traffic model per 8-byte word, as the native code states it."""
    return list(_native.kernels())
