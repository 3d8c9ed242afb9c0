"""What is measured of a mapped file in a worker, and what proves it. See `file_plan` for the cases.

Of a file whose content is not known, every timed region must come to the sum that was taken while it was warmed: that
shows that all of it was loaded and that it did not change, not that it is right.
"""

from __future__ import annotations

import mmap
import os
import random
import resource
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from k3gate import metrics
from k3gate.model import k3
from k3gate.probes import bandwidth, experts, file_plan, latency, pools, sharing
from k3gate.probes.chase import BLOCK
from k3gate.probes.mapped_file import SLICE, MappedFile, open_or_make, refuse_cut
from k3gate.probes.scatter import Scatter
from k3gate.probes.smaps import smaps_fields
from k3gate.probes.working_sets import HUGE_PAGE
from k3gate.probing.contract import Context
from k3gate.records import Case, Metric, Proof, Scalar

TURN_SECONDS = 5.0
"""A turn of a latency walk may take this long, untimed, for the sake of its proof."""
RESIDENT_SHARE = 0.999
"""From this share on, a file counts as being in memory."""
_WORD = 1 << 64


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """`parameters`: file, window (bytes of it), cpus that warm it; readers and layout, or cpu and walked_bytes."""
    parameters = case.parameters
    warming = sharing.team(context, parameters["cpus"])
    mapped = context.share(
        f"file:{parameters['file']['path']}",
        lambda: open_or_make(parameters, warming, context),
        MappedFile.close,
    )
    refuse_cut(mapped)
    if parameters["kernel"] == "scatter":
        yield _latency(case, context, mapped)
    else:
        yield _read(case, context, mapped)


# --- measuring ----------------------------------------------------------------------------------------------


def _read(case: Case, context: Context, mapped: MappedFile) -> Metric:
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
    traffic = pools.traffic("read", isa)
    samples = bandwidth.whole_passes(context, team, traffic, parts, watch, sums)
    proofs, labels = _proven(case, mapped, watch, sums.proof(), seen, pool.bytes)
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
