"""What shows that bytes came from a drive: not from memory, not from holes, not made smaller, not above its link."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from attrs import define, frozen

from k3gate.probes import _storage
from k3gate.probes.storage_files import OpenFile, OpenFiles
from k3gate.records import Drive, Proof, StoragePath
from k3gate.units import exact_bytes, quantity

COLD_SHARE = 0.01
"""Up to this share of pages in memory a file counts as cold."""
LEAST_FROM_DRIVES = 0.98
"""Of the bytes that were read, at least, by the drives' own count."""
COMPRESSIBLE = 0.5
"""Content that a fast compressor makes smaller than this may be answered without the medium."""
_SECTOR = 512
_SAMPLES, _SAMPLE_BYTES = 32, 64 << 10
_FIEMAP = 0xC020660B
"""FS_IOC_FIEMAP of linux/fs.h."""
_HEAD, _EXTENT = struct.Struct("=QQLLLL"), struct.Struct("=QQQQQLLLL")
_EXTENTS_AT_ONCE, _MOST_EXTENTS = 512, 200_000
_LAST, _UNKNOWN, _DELAYED, _ENCODED, _ENCRYPTED, _INLINE, _UNWRITTEN = 0x1, 0x2, 0x4, 0x8, 0x80, 0x200, 0x800


def may_ask(file: OpenFile) -> bool:
    """mincore tells a file's owner, and who may write to it, the truth; others hear that all is in memory."""
    found = os.fstat(file.buffered)
    user = os.geteuid()
    return user in (0, found.st_uid) or os.access(
        f"/proc/self/fd/{file.buffered}", os.W_OK, effective_ids=True
    )


def resident(files: Sequence[OpenFile]) -> float | str:
    """The share of the files' pages that is in memory, or why it is not known."""
    pages = found = 0
    for one in files:
        if not may_ask(one):
            return "how much is in memory is told to the files' owner alone (mincore)"
        refused, all_pages, in_memory = _storage.resident(one.buffered, 0, one.bytes)
        if refused:
            return f"mincore: {os.strerror(refused)}"
        pages, found = pages + all_pages, found + in_memory
    return found / pages if pages else "there are no pages"


def uncached(before: float | str, after: float | str, *, direct: bool) -> Proof:
    """Cold before; and after direct reads too, or they went through the page cache after all."""
    if isinstance(before, str) or isinstance(after, str):
        return Proof("uncached", None, before if isinstance(before, str) else str(after))
    told = f"in memory: {before:.2%} before, {after:.2%} after (mincore)"
    cold = before <= COLD_SHARE and (after <= COLD_SHARE or not direct)
    if cold:
        return Proof("uncached", True, told)
    why = "it could not be dropped" if before > COLD_SHARE else "direct reads went through the page cache"
    return Proof("uncached", False, f"{told}: {why}, so this is no figure of storage")


@define
class Extents:
    """Where a file's bytes lie, in bytes by kind. `reason`: why that is not known."""

    data: int = 0
    unwritten: int = 0
    encoded: int = 0
    inline: int = 0
    count: int = 0
    reason: str | None = None


def extents(file: OpenFile) -> Extents:
    """By FIEMAP, else by SEEK_HOLE, which knows holes alone."""
    found = Extents()
    at = 0
    while at < file.bytes and found.count < _MOST_EXTENTS:
        buffer = bytearray(_HEAD.size + _EXTENTS_AT_ONCE * _EXTENT.size)
        _HEAD.pack_into(buffer, 0, at, file.bytes - at, 1, 0, _EXTENTS_AT_ONCE, 0)
        try:
            fcntl.ioctl(file.buffered, _FIEMAP, buffer)
        except OSError as error:
            return _by_holes(file, error)
        mapped = _HEAD.unpack_from(buffer)[3]
        if not mapped:
            break
        last = False
        for index in range(mapped):
            logical, _, length, _, _, flags, *_ = _EXTENT.unpack_from(
                buffer, _HEAD.size + index * _EXTENT.size
            )
            size = max(0, min(logical + length, file.bytes) - max(logical, at))
            at, last = max(at, logical + length), bool(flags & _LAST)
            found.count += 1
            if flags & (_UNWRITTEN | _DELAYED | _UNKNOWN):
                found.unwritten += size
            elif flags & _INLINE:
                found.inline += size
            elif flags & _ENCODED and not flags & _ENCRYPTED:
                found.encoded += size
            else:
                found.data += size
        if last:
            break
    return found


def _by_holes(file: OpenFile, refused: OSError) -> Extents:
    found = Extents(reason=f"FIEMAP: {os.strerror(refused.errno or 0)}; holes by SEEK_HOLE")
    at = 0
    while at < file.bytes and found.count < _MOST_EXTENTS:
        try:
            begin = os.lseek(file.buffered, at, os.SEEK_DATA)
            end = os.lseek(file.buffered, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                break
            return Extents(reason=f"neither FIEMAP nor SEEK_HOLE tells where it lies ({error.strerror})")
        found.data += max(0, min(end, file.bytes) - begin)
        found.count += 1
        at = end
    return found


def written(files: OpenFiles) -> Proof:
    """Every byte that is read lies on the medium, as it is: no hole, nothing inline, unwritten or made smaller."""
    maps = [extents(one) for one in files.files]
    data, whole = sum(one.data for one in maps), files.bytes
    reason = next((one.reason for one in maps if one.reason), None)
    kinds = {
        "made smaller by the file system": sum(one.encoded for one in maps),
        "inline in metadata": sum(one.inline for one in maps),
        "never written": sum(one.unwritten for one in maps),
    }
    bad = [f"{exact_bytes(size)} {kind}" for kind, size in kinds.items() if size]
    hole = whole - data - sum(kinds.values())
    if hole > 0 and not (reason and not data):
        bad.insert(0, f"{hole:,} bytes are holes")
    if bad:
        return Proof(
            "written", False, f"of {whole:,} bytes {', '.join(bad)}: reading them is no figure of a drive"
        )
    if reason and not data:
        return Proof("written", None, reason)
    if reason:
        return Proof("written", None, f"no holes, but compression is not seen ({reason})")
    number = sum(one.count for one in maps)
    return Proof("written", True, f"all of {whole:,} bytes lie in {number:,} extents of data (FIEMAP)")


def incompressible(files: OpenFiles) -> Proof:
    """Samples of the content, by zlib's fastest level."""
    whole, made, taken = files.bytes, 0, 0
    for index in range(_SAMPLES):
        at = whole * index // _SAMPLES
        for one in files.files:
            if at < one.bytes:
                content = os.pread(one.buffered, _SAMPLE_BYTES, at)
                made += len(zlib.compress(content, 1)) if content else 0
                taken += len(content)
                break
            at -= one.bytes
    if not taken:
        return Proof("incompressible", None, "no content could be sampled")
    share = made / taken
    told = f"{taken:,} sampled bytes compress to {share:.0%} (zlib)"
    if share < COMPRESSIBLE:
        return Proof(
            "incompressible", False, f"{told}: a drive or a file system may answer such content from memory"
        )
    return Proof("incompressible", True, told)


@frozen
class Counted:
    """Bytes that the drives have delivered since the system began, or why that is not known."""

    bytes: int | None
    reason: str = ""


def delivered(drives: Sequence[str], classes: Path = Path("/sys/class/block")) -> Counted:
    """Of the drives by their names. A multipath NVMe drive counts in its paths where its head does not."""
    total = 0
    if not drives:
        return Counted(None, "which drives lie below is not known")
    for name in drives:
        try:
            if (classes / name / "queue/iostats").read_text().strip() == "0":
                return Counted(None, f"{name} does not count what it delivers (iostats is off)")
            own = _sectors(classes / name)
            paths = _paths_of(name, classes)
            total += max(own, sum(_sectors(path) for path in paths))
        except (OSError, ValueError, IndexError) as error:
            return Counted(None, f"the counters of {name} are not there ({error})")
    return Counted(total * _SECTOR)


def _sectors(folder: Path) -> int:
    """Third field of Documentation/block/stat.rst: sectors of 512 bytes that were read."""
    return int((folder / "stat").read_text().split()[2])


def _paths_of(name: str, classes: Path) -> list[Path]:
    controller, n, number = name.rpartition("n")
    if not (n and controller.startswith("nvme") and number.isdigit()):
        return []
    return sorted(classes.glob(f"{controller}c*n{number}"))


def from_drives(before: Counted, after: Counted, read: int) -> Proof:
    """That the drives delivered what was read, by their own count."""
    if before.bytes is None or after.bytes is None:
        return Proof("from_drives", None, before.reason or after.reason)
    share = (after.bytes - before.bytes) / read if read else 0.0
    told = f"the drives delivered {share:.1%} of the bytes that were read (their counters)"
    if share < LEAST_FROM_DRIVES:
        return Proof("from_drives", False, f"{told}: the rest came from somewhere else")
    return Proof("from_drives", True, told)


def ceiling(rate: float, drives: Sequence[Drive], places: Sequence[StoragePath]) -> Proof:
    """That the rate is not above what the drives' links carry, at the best that these can do."""
    names = {name for place in places for name in place.drives}
    used = [one for one in drives if one.name in names]
    links = [one.link.best_bytes_per_s for one in used if one.link and one.link.best_bytes_per_s]
    if not used or len(links) < len(names):
        return Proof("ceiling", None, "the links of the drives are not told")
    carried = sum(links)
    told = f"{quantity(rate, 'B/s')} of the {quantity(carried, 'B/s')} that the links of the drives carry"
    if rate > carried:
        return Proof("ceiling", False, f"{told}: no drive delivered that")
    return Proof("ceiling", True, told)


def pinned(region: _storage.ReadRegion, cpus: Sequence[int]) -> Proof:
    """Whether threads stayed on their CPUs."""
    strayed = sum(
        not thread.cpu_before == thread.cpu_after == cpu
        for thread, cpu in zip(region.threads, cpus, strict=True)
    )
    told = f"{len(cpus)} threads on CPUs {cpus[0]} to {cpus[-1]}"
    return Proof("pinned", not strayed, told if not strayed else f"{strayed} of {told} strayed")
