"""The files that the storage probe reads: shards that lie there, or one of our own, filled once a run.

Shards are opened for reading alone. A file of our own has no name and is held open by the run (`Context.files`), so
that its workers share it and nothing is left of it however they end.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import define

from k3gate.errors import NotPermittedError, NotPresentError, ProbeError
from k3gate.probes import _storage
from k3gate.probing.contract import Context
from k3gate.units import exact_bytes

SLICE = 128 << 20
"""Bytes of a file of our own that are written and flushed between two heartbeats."""
KEPT_FREE = 64 << 20
"""Bytes that a file of our own leaves free at least."""
Range = tuple[int, int, int]
"""(file descriptor, first byte, bytes), as `_storage.Reader` takes it."""


@define
class OpenFile:
    """`buffered` goes through the page cache, `direct` past it; `direct` None: the file system refused that."""

    path: str
    bytes: int
    buffered: int
    direct: int | None


@define
class OpenFiles:
    """All files of a place, as far as they are to be read. `own`: made by us. `refusal`: errno of O_DIRECT."""

    place: str
    files: list[OpenFile]
    own: bool
    refusal: int = 0

    @property
    def bytes(self) -> int:
        """Of all files, as far as they are to be read."""
        return sum(one.bytes for one in self.files)

    def close(self) -> None:
        """Close what was opened here; a file of our own stays with the run."""
        for one in self.files:
            for descriptor in (one.buffered, one.direct):
                if descriptor is not None:
                    os.close(descriptor)
        self.files.clear()

    def name_of(self, descriptor: int) -> str:
        """The path of an open file; of our own the folder that it lies in."""
        return next((one.path for one in self.files if descriptor in (one.buffered, one.direct)), self.place)

    def ranges(self, block: int, threads: int, *, direct: bool = True) -> list[list[Range]]:
        """All whole blocks of the files in their order, in as many contiguous parts of nearly equal size."""
        whole = [
            (descriptor, one.bytes // block)
            for one in self.files
            if (descriptor := one.direct if direct else one.buffered) is not None
        ]
        total = sum(blocks for _, blocks in whole)
        if total < threads:
            raise ProbeError(f"{self.place} holds {total} blocks of {block:,} bytes for {threads} threads")
        edges = [total * part // threads for part in range(threads + 1)]
        parts: list[list[Range]] = []
        for first, last in pairwise(edges):
            part, begin = [], 0
            for descriptor, blocks in whole:
                low, high = max(first, begin), min(last, begin + blocks)
                if low < high:
                    part.append((descriptor, (low - begin) * block, (high - low) * block))
                begin += blocks
            parts.append(part)
        return parts


def trouble(error: OSError, path: str) -> ProbeError:
    """What the kernel said of a file, as the error that decides the state of the case."""
    number = error.errno or 0
    name = errno.errorcode.get(number, str(number))
    told = f"{path}: {os.strerror(number)} ({name})"
    if number in (errno.EACCES, errno.EPERM):
        return NotPermittedError(f"{told}: run as a user who may read it")
    if number in (errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ESTALE, errno.EREMOTEIO):
        return ProbeError(f"{told}: the drive, or what lies on it, is gone or damaged")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return ProbeError(f"{told}: free some space, or name another folder with --storage")
    return ProbeError(told)


def shared(context: Context, source: Mapping[str, Any]) -> OpenFiles:
    """The files of a place, opened once a worker; a file of our own is filled first where it is not yet."""
    return context.share(f"files:{source['path']}", lambda: _open(context, source), OpenFiles.close)


def _open(context: Context, source: Mapping[str, Any]) -> OpenFiles:
    found = OpenFiles(source["path"], [], source["scratch"] is not None)
    try:
        if source["scratch"] is not None:
            fill(context, source)
            number = context.files[source["scratch"]]
            _add(found, f"/proc/self/fd/{number}", source["bytes"], source["path"])
        else:
            left = int(source["bytes"])
            for file in source["files"]:
                if left > 0:
                    _unchanged(file)
                    _add(found, file["path"], min(left, file["bytes"]), file["path"])
                    left -= file["bytes"]
    except BaseException:
        found.close()
        raise
    return found


def _unchanged(file: Mapping[str, Any]) -> None:
    try:
        here = Path(file["path"]).stat()
    except OSError as error:
        raise trouble(error, file["path"]) from error
    if (here.st_dev, here.st_ino, here.st_size) != (file["device"], file["inode"], file["bytes"]):
        raise ProbeError(
            f"{file['path']} is not what was planned: it had {file['bytes']:,} bytes and inode {file['inode']}, and "
            f"has {here.st_size:,} and {here.st_ino}"
        )


def _add(found: OpenFiles, path: str, size: int, shown: str) -> None:
    # A FIFO that has taken its place must not be waited for.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        buffered = os.open(path, flags)
    except OSError as error:
        raise trouble(error, shown) from error
    one = OpenFile(shown, size, buffered, None)
    found.files.append(one)
    try:
        one.direct = os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise trouble(error, shown) from error
        found.refusal = error.errno


def fill(context: Context, source: Mapping[str, Any]) -> int:
    """Write random bytes into the run's own file up to its size; returns how many are there. What another worker wrote
    stays. `ProbeError` where there is no room."""
    folder, wanted = str(source["scratch"]), int(source["bytes"])
    descriptor = context.files.get(folder, -errno.EBADF)
    if descriptor < 0:
        error = OSError(-descriptor, os.strerror(-descriptor))
        raise trouble(error, f"no file can be made in {folder}")
    there = os.fstat(descriptor).st_size
    there -= there % SLICE if there < wanted else 0
    if there >= wanted:
        return there
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < wanted - there + KEPT_FREE:
        raise NotPresentError(
            f"a file of {exact_bytes(wanted)} has no room in {folder}, where {exact_bytes(free)} are free: free "
            "some space, or name another folder with --storage"
        )
    for begin in range(there, wanted, SLICE):
        refused = _storage.write_random(descriptor, begin, min(SLICE, wanted - begin), secrets.randbits(64))
        if not refused:
            refused = _flush(descriptor)
        if refused:
            raise trouble(
                OSError(refused, os.strerror(refused)), f"writing {exact_bytes(wanted)} in {folder}"
            )
        context.heartbeat("writing a file to be read")
    return wanted


def _flush(descriptor: int) -> int:
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def evict(files: Sequence[OpenFile]) -> None:
    """Have the kernel forget these files' pages, and no others; dirty ones stay, and are seen by `resident`."""
    for one in files:
        os.posix_fadvise(one.buffered, 0, one.bytes, os.POSIX_FADV_DONTNEED)


def raise_for(region: _storage.ReadRegion, name_of: Callable[[int], str]) -> None:
    """Raise what the first thread that failed met, with the file and the place in it."""
    for thread in region.threads:
        if thread.error == errno.ENODATA:
            raise ProbeError(
                f"{name_of(thread.file)} ended at byte {thread.at:,}: it was cut while it was read"
            )
        if thread.error:
            where = (
                f"{name_of(thread.file)} at byte {thread.at:,}" if thread.file >= 0 else "pinning a thread"
            )
            raise trouble(OSError(thread.error, os.strerror(thread.error)), where)
