"""A mapped file in a worker: opened, warmed or made, and proven to be read from memory. See `file_plan` for the cases.

A file that exists is mapped for reading alone, and what it holds is not known. So its bytes are summed once while it
is warmed, by the plainest kernel, and every timed region must come to the same sum: that shows that all of it was
loaded and that it did not change, not that it is right. A file that k3gate makes has no name, so that nothing is
left of it however the worker ends, and holds the pattern of any pool, whose sum is known.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import resource
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define

from k3gate import metrics
from k3gate.errors import NotPermittedError, ProbeError
from k3gate.model import k3
from k3gate.probes import _native, experts, file_plan, latency, pools, sharing
from k3gate.probes.chase import BLOCK
from k3gate.probes.scatter import Scatter
from k3gate.probes.smaps import smaps_fields
from k3gate.probes.working_sets import HUGE_PAGE
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, Proof, Scalar
from k3gate.units import exact_bytes

SLICE = 32 << 20
"""Bytes that a thread warms, or writes, between two heartbeats."""
TURN_SECONDS = 5.0
"""A turn of a latency walk may take this long, untimed, for the sake of its proof."""
RESIDENT_SHARE = 0.999
"""From this share on, a file counts as being in memory."""
_WORD = 1 << 64

Timed = Callable[..., list[SampleToken]]
"""Timed regions of whole passes: (context, team, kernel, isa, parts, watch, sums)."""


@define
class MappedFile:
    """A file as a worker has it. `sums`: of the words of all, and of whole experts, modulo 2^64; None where the
    pattern tells. `before`: the share that was in memory before it was warmed, None where that is not told."""

    path: str
    descriptor: int
    pool: pools.FilledPool
    medium: str
    dax: bool | None
    sums: dict[str, int] | None = None
    before: float | None = None

    def close(self) -> None:
        """Unmap and close it; a file that was made is gone then."""
        self.pool.close()
        os.close(self.descriptor)

    def in_memory(self) -> float | None:
        """The share that is in memory now (mincore); None where the kernel would not tell this user the truth."""
        if self.medium not in (file_plan.PAGE_CACHE, file_plan.TMPFS) or not _may_ask(self.descriptor):
            return None
        refused, found = self.pool.pool.count_resident()
        return None if refused else float(found / self.pool.bytes)


def measure(case: Case, context: Context, timed: Timed) -> Iterator[Metric]:
    """`parameters`: file, window (bytes of it), cpus that warm it; readers and layout, or cpu and walked_bytes."""
    parameters = case.parameters
    warming = sharing.team(context, parameters["cpus"])
    mapped = context.share(
        f"file:{parameters['file']['path']}", lambda: _mapped(parameters, warming, context), MappedFile.close
    )
    _refuse_cut(mapped)
    if parameters["kernel"] == "scatter":
        yield _latency(case, context, mapped)
    else:
        yield _read(case, context, mapped, timed)


# --- opening ------------------------------------------------------------------------------------------------


def _mapped(parameters: Any, team: Any, context: Context) -> MappedFile:
    file, size = parameters["file"], parameters["window"]
    if file["folder"] and file_plan.medium(file["file_system"], file["dax"]) == file_plan.TMPFS:
        pools.check_available(size)
    descriptor = _make(file["path"], size) if file["folder"] else _open(file)
    try:
        memory = _native.Pool.of_file(descriptor, size, file["page_bytes"], file["folder"])
    except OSError as error:
        os.close(descriptor)
        hint = ": are enough huge pages free?" if file["file_system"] == "hugetlbfs" else ""
        number = pools.error_text(error.errno or 0)
        raise ProbeError(f"{file['path']} could not be mapped: {number}{hint}") from error
    pool = pools.FilledPool(memory, None, "file", secrets.randbits(63))
    dax = _native.file_is_dax(descriptor)
    mapped = MappedFile(
        file["path"],
        descriptor,
        pool,
        file_plan.medium(file["file_system"], file["dax"] if dax is None else dax),
        dax,
    )
    try:
        if file["folder"]:
            _fill(mapped, team, context)
        else:
            mapped.before = mapped.in_memory()
            mapped.sums = _warm(mapped, team, context)
    except BaseException:
        mapped.close()
        raise
    return mapped


def _open(file: dict[str, Any]) -> int:
    try:
        # A FIFO that has taken its place must not be waited for.
        descriptor = os.open(file["path"], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise NotPermittedError(f"{file['path']}: {error.strerror}") from error
    except OSError as error:
        raise ProbeError(f"{file['path']}: {error.strerror}") from error
    here = os.fstat(descriptor)
    if (here.st_dev, here.st_ino, here.st_size) != (file["device"], file["inode"], file["bytes"]):
        os.close(descriptor)
        raise ProbeError(
            f"{file['path']} is not what was planned: it had {file['bytes']} bytes and inode {file['inode']}, and has "
            f"{here.st_size} and {here.st_ino}"
        )
    return descriptor


def _make(folder: str, size: int) -> int:
    try:
        try:
            descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
            descriptor, name = tempfile.mkstemp(prefix=".k3gate-", dir=folder)
            Path(name).unlink()
        os.ftruncate(descriptor, size)
    except OSError as error:
        raise ProbeError(
            f"no file of {exact_bytes(size)} can be made in {folder}: {error.strerror}"
        ) from error
    return descriptor


def _refuse_cut(mapped: MappedFile) -> None:
    size = os.fstat(mapped.descriptor).st_size
    if size < mapped.pool.bytes:
        raise ProbeError(f"{mapped.path} was cut to {size} bytes while it was measured")


def _slices(parts: Sequence[pools.Part]) -> Iterator[list[list[pools.Part]]]:
    """The parts of all threads, a slice of each after another: every thread works on its own part alone."""
    most = max(part[2] for part in parts)
    for start in range(0, most, SLICE):
        yield [
            [(memory, offset + start, min(SLICE, size - start), seed)] if start < size else []
            for memory, offset, size, seed in parts
        ]


def _fill(mapped: MappedFile, team: Any, context: Context) -> None:
    """Write the pattern, each thread its own part; what goes to a drive is there before anything is timed."""
    for parts in _slices(mapped.pool.parts(len(team.cpus))):
        errors = [thread.error for thread in team.touch(parts).threads if thread.error]
        if errors:
            raise ProbeError(
                f"writing a file of {exact_bytes(mapped.pool.bytes)} in {mapped.path}: "
                f"{pools.error_text(int(errors[0]))}: is there still room?"
            )
        if mapped.medium == file_plan.PAGE_CACHE:
            os.fdatasync(mapped.descriptor)
        context.heartbeat("writing a file")


def _warm(mapped: MappedFile, team: Any, context: Context) -> dict[str, int]:
    """Bring the file into memory, and sum its words by the plainest kernel: of whole experts, and of all."""
    whole = mapped.pool.bytes // k3.EXPERT_BYTES * k3.EXPERT_BYTES
    sums = []
    for start, size in ((0, whole), (whole, mapped.pool.bytes - whole)):
        total = 0
        for parts in _slices(mapped.pool.parts(len(team.cpus), start, size)) if size else ():
            total += sum(thread.value for thread in team.run("read", "generic", parts, 1).threads)
            context.heartbeat("bringing the file into memory")
        sums.append(total)
    return {"experts": sums[0] % _WORD, "own": sum(sums) % _WORD}


# --- measuring ----------------------------------------------------------------------------------------------


def _read(case: Case, context: Context, mapped: MappedFile, timed: Timed) -> Metric:
    parameters, pool = case.parameters, mapped.pool
    isa = sharing.choose_isa(parameters["isa"], "read")
    [cpus] = parameters["readers"]
    team = sharing.team(context, cpus)
    if parameters["layout"] == "experts":
        parts = experts.deal(pool, experts.order(pool.bytes, random.Random(pool.seed)), len(cpus))
    else:
        parts = [[part] for part in pool.parts(len(cpus))]
    sums = pools.Checksums(parts) if mapped.sums is None else SameSums(mapped.sums[parameters["layout"]])
    watch, seen = pools.PinWatch(team), Residence(mapped)
    samples = timed(context, team, "read", isa, parts, watch, sums)
    proofs, labels = _proven(case, mapped, watch, sums.proof(), seen, pool.bytes)
    traffic = next(row for row in pools.kernel_table() if (row["name"], row["isa"]) == ("read", isa))
    labels |= {"isa": isa, "stores": traffic["stores"], "counting": traffic["counting"]}
    declaration = metrics.FILE_READ
    if parameters["layout"] == "experts":
        declaration, labels["expert_bytes"] = metrics.FILE_EXPERTS, k3.EXPERT_BYTES
    state, reason = sharing.state_of(proofs)
    return context.metric(declaration, samples, labels, proofs, state, reason)


def _latency(case: Case, context: Context, mapped: MappedFile) -> Metric:
    size = case.parameters["walked_bytes"]
    team = sharing.team(context, [case.parameters["cpu"]])
    wanted = context.share(
        f"words:{mapped.path}:{size}", lambda: _first_words(mapped.descriptor, size, context.heartbeat)
    )
    walk = Scatter(team, 0, (mapped.pool.pool, 0, size, secrets.randbits(63)), wanted)
    watch, seen = pools.PinWatch(team), Residence(mapped)
    samples = latency.walks(context, walk, context.seconds, watch, TURN_SECONDS)
    proofs, labels = _proven(case, mapped, watch, walk.proof(), seen, size)
    labels |= {"stores": "none", "counting": "dependent loads, one line each"}
    state, reason = sharing.state_of(proofs)
    return context.metric(metrics.FILE_LATENCY, samples, labels, proofs, state, reason)


def _first_words(descriptor: int, size: int, heartbeat: Callable[[str], None]) -> int:
    """What the first words of all blocks add up to, modulo 2^64, by a mapping of its own and no native code."""
    total = 0
    with mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        for start in range(0, size, SLICE):
            with memoryview(memory) as view, view[start : start + SLICE] as piece, piece.cast("Q") as words:
                total += sum(words[:: BLOCK // 8])
            heartbeat("summing the file's blocks")
    return total % _WORD


# --- what proves it -----------------------------------------------------------------------------------------


class SameSums:
    """The kernel's output against the sum that was taken while the file was warmed, over all timed regions."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._regions = 0
        self._wrong = 0

    def see(self, region: Any, passes: int) -> None:
        """Take note of a timed region."""
        self._regions += 1
        found = sum(thread.value for thread in region.threads) % _WORD
        self._wrong += found != passes * self._wanted % _WORD

    def proof(self) -> Proof:
        """The proof "checksum"."""
        if not self._regions:
            return Proof("checksum", None, "no timed region")
        if self._wrong:
            return Proof(
                "checksum",
                False,
                f"{self._wrong} of {self._regions} timed regions read another sum than before",
            )
        if not self._wanted:
            return Proof(
                "checksum", None, "the words add up to 0: a sum does not show whether they were read"
            )
        return Proof("checksum", True, "every timed region's sum is the one taken while the file was warmed")


class Residence:
    """Where the file lay, and whether it was in memory, while something was timed."""

    def __init__(self, mapped: MappedFile) -> None:
        self._mapped = mapped
        self._nodes = _nodes(mapped)
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt

    def proofs(self) -> list[Proof]:
        """The proofs "placement" and "in_memory", taken at the end."""
        return [self._placement(), self._in_memory()]

    def _placement(self) -> Proof:
        """A file has no wanted place: true where its place is seen and stayed the same."""
        before, after = self._nodes, _nodes(self._mapped)
        if isinstance(before, str) or isinstance(after, str):
            told = before if isinstance(before, str) else after
            return Proof("placement", None, f"{told}{_device_node(self._mapped)}")
        unknown = [node for node in after if node < 0]
        if unknown:
            few = f"the kernel names no node for {sum(after[node] for node in unknown)} of {after.total()} pages"
            return Proof(
                "placement", None, f"{few} ({pools.error_text(-unknown[0])}){_device_node(self._mapped)}"
            )
        told = ", ".join(
            f"{number / after.total():.1%} on node {node}" for node, number in sorted(after.items())
        )
        if before != after:
            return Proof(
                "placement", False, f"pages moved while they were read; at the end {told} (move_pages)"
            )
        return Proof("placement", True, f"of {after.total():,} sampled pages {told} (move_pages)")

    def _in_memory(self) -> Proof:
        """From memory, and from no drive: no page had to be waited for, and all are there at the end."""
        mapped = self._mapped
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - self._faults
        after = mapped.in_memory()
        if mapped.medium == file_plan.DAX:
            told = "loads reach the device itself (DAX, no page cache)"
        elif mapped.medium == file_plan.HUGE_PAGES:
            told = "huge pages are never on a drive"
        elif after is None:
            told = "how much is in memory is told to the file's owner alone (mincore)"
        else:
            before = "" if mapped.before is None else f"{mapped.before:.1%} before it was warmed, "
            told = f"in memory: {before}{after:.1%} at the end (mincore)"
        told = f"{mapped.medium}; {told}; {faults} major faults while it was read (getrusage)"
        whole = after is None or after >= RESIDENT_SHARE
        hint = "" if whole and not faults else ": it does not stay in memory, so this is no figure of memory"
        return Proof("in_memory", whole and not faults, told + hint)


def _proven(
    case: Case, mapped: MappedFile, watch: pools.PinWatch, sums: Proof, seen: Residence, size: int
) -> tuple[list[Proof], dict[str, Scalar]]:
    """(all proofs, the labels of the case with what was found)."""
    page_size, page_proof = _page_size(mapped)
    placement, in_memory = seen.proofs()
    caches = case.labels["cache_bytes"]
    known = caches if isinstance(caches, int) else None
    enough = sharing.working_set(size, known, case.parameters["level_2_bytes"])
    labels = {**case.labels, "page_size": page_size, "dax": mapped.dax, "read_from": mapped.medium}
    return [placement, page_proof, watch.proof(), sums, enough, in_memory], labels


def _nodes(mapped: MappedFile) -> Counter[int] | str:
    """Sampled pages by node, or why there is no answer; what is below 0 is a negative errno."""
    refused, nodes = mapped.pool.pool.query_nodes(pools.SAMPLED_PAGES)
    if refused:
        return f"move_pages refused, {pools.error_text(refused)}: where the file lies cannot be seen"
    return Counter(nodes)


def _device_node(mapped: MappedFile) -> str:
    """Of a file that is read from its device: the node of that, as sysfs has it; "" where it has none."""
    if mapped.medium != file_plan.DAX:
        return ""
    device = os.fstat(mapped.descriptor).st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for folder in (place, *place.parents):
        try:
            node = int((folder / "numa_node").read_text(encoding="ascii")[:16])
        except (OSError, ValueError):
            continue
        return f"; its device {place.name} belongs to node {node} (sysfs)" if node >= 0 else ""
    return ""


def _page_size(mapped: MappedFile) -> tuple[int | None, Proof]:
    """(the page size that maps the file, its proof), from /proc/self/smaps; None where it is mixed or not told."""
    try:
        fields = smaps_fields(int(mapped.pool.pool.address))
    except OSError as error:
        return None, Proof("page_size", None, f"/proc/self/smaps: {pools.error_text(error.errno or 0)}")
    kernel = fields.get("KernelPageSize")
    if kernel is None:
        return None, Proof("page_size", None, "the mapping was not found (smaps)")
    if mapped.medium == file_plan.DAX:
        return None, Proof("page_size", None, "the kernel does not tell by which pages a DAX file is mapped")
    huge = (fields.get("ShmemPmdMapped", 0) + fields.get("FilePmdMapped", 0)) / mapped.pool.bytes
    if kernel == HUGE_PAGE or kernel > HUGE_PAGE or not huge:
        return kernel, Proof("page_size", True, f"KernelPageSize {kernel} bytes (smaps)")
    if huge >= pools.HUGE_SHARE:
        return HUGE_PAGE, Proof("page_size", True, f"mapped by huge pages to {huge:.1%} (smaps)")
    return None, Proof("page_size", None, f"mixed: huge pages map only {huge:.1%} of the file (smaps)")


def _may_ask(descriptor: int) -> bool:
    """mincore tells the owner of a file, and who may write to it, the truth; others hear that all is there."""
    found = os.fstat(descriptor)
    user = os.geteuid()
    return user in (0, found.st_uid) or os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=True)
