"""A file that is mapped to be read as memory: opened, and brought into memory; or made in a folder, and filled.

A file that exists is mapped for reading alone, and what it holds is not known. So its words are summed once while it
is warmed, by the plainest kernel. A file that k3gate makes has no name, so that nothing is left of it however the
worker ends, and holds the pattern of any pool, whose sum is known.
"""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define

from k3gate.errors import NotPermittedError, ProbeError
from k3gate.model import k3
from k3gate.probes import _native, file_plan, pools
from k3gate.probing.contract import Context
from k3gate.units import exact_bytes

SLICE = 32 << 20
"""Bytes that a thread warms, or writes, between two heartbeats."""
_WORD = 1 << 64


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


def open_or_make(parameters: Any, team: Any, context: Context) -> MappedFile:
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


def refuse_cut(mapped: MappedFile) -> None:
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


def _may_ask(descriptor: int) -> bool:
    """mincore tells the owner of a file, and who may write to it, the truth; others hear that all is there."""
    found = os.fstat(descriptor)
    user = os.geteuid()
    return user in (0, found.st_uid) or os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=True)
