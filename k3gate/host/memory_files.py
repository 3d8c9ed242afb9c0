"""What lies at a path that a user wants measured as memory: a file, or a folder in which to make one.

Looks and opens for reading; writes and makes nothing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from k3gate.errors import UsageError
from k3gate.records import Case, MemoryFile
from k3gate.units import exact_bytes

OPTION = "--memory-file"
PROBE = "memory"
"""Which measures them."""
MOUNTS = "/proc/self/mountinfo"
_MOUNTS_BYTES = 4 << 20
_WITHOUT_BLOCKS = ("hugetlbfs", "tmpfs", "ramfs")
"""File systems that hold data, yet may count no blocks: without a limit of their own they are as large as memory."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def look(path: str) -> MemoryFile:
    """What is at `path`, symbolic links followed. Raises `UsageError` for what cannot be mapped and read."""
    if not path.isprintable():
        raise UsageError(
            f"{OPTION}: {path!r} holds characters that cannot be printed: rename it, or link to it"
        )
    path = os.path.abspath(path)  # noqa: PTH100 - links stay as the user named them
    try:
        found = Path(path).stat()
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            return _folder(path, found)
        if kind != stat.S_IFREG:
            what = _KINDS.get(kind, "neither a file nor a folder")
            raise UsageError(f"{OPTION}: {path} is {what}: give a regular file, or a folder to make one in")
        return _file(path, found)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{OPTION}: {path}: {reason}: give a file that may be read, or a folder") from error


def asked(paths: Sequence[str], probes: Sequence[str] | None) -> tuple[MemoryFile, ...]:
    """What is at each path; raises `UsageError` also where the probes that are to run read no files."""
    if paths and probes and PROBE not in probes:
        raise UsageError(
            f"{OPTION} is measured by the probe {PROBE}, which --probe leaves out: add --probe {PROBE}"
        )
    found: dict[tuple[int, int], MemoryFile] = {}
    for path in paths:
        file = look(path)
        before = found.setdefault((file.device, file.inode), file)
        if before is not file:
            same = "" if before.path == file.path else f", which is {before.path},"
            raise UsageError(f"{OPTION}: {file.path}{same} is named twice: name each file or folder once")
    return tuple(found.values())


def refuse_changed(cases: Iterable[Case]) -> None:
    """Raise `UsageError` unless the files and folders of a stored plan are those that it was made with."""
    files = [case.parameters["file"] for case in cases if isinstance(case.parameters.get("file"), Mapping)]
    for planned in {str(file["path"]): file for file in files}.values():
        here = look(str(planned["path"]))
        names = ("device", "inode") if planned["folder"] else ("device", "inode", "bytes")
        changed = [name for name in names if getattr(here, name) != planned[name]]
        if changed:
            told = ", ".join(f"{name} was {planned[name]}, is {getattr(here, name)}" for name in changed)
            raise UsageError(f"{here.path} is not what the run was begun with: {told}: make a new run")


def _file(path: str, found: os.stat_result) -> MemoryFile:
    if found.st_size == 0:
        raise UsageError(f"{OPTION}: {path} is empty: give a file with what is to be read")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = _first_hole(descriptor, found.st_size)
        space = os.fstatvfs(descriptor)
        page = _page_bytes(space.f_bsize, path, found.st_dev)
    finally:
        os.close(descriptor)
    file_system, dax = mounted(path, found.st_dev)
    _refuse_without_data(path, file_system, space)
    return MemoryFile(path, False, found.st_size, data, found.st_dev, found.st_ino, file_system, dax, page)


def _folder(path: str, found: os.stat_result) -> MemoryFile:
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{OPTION}: {path}: no file can be made there: give a folder that may be written to")
    space = os.statvfs(path)
    file_system, dax = mounted(path, found.st_dev)
    _refuse_without_data(path, file_system, space)
    page = _page_bytes(space.f_bsize, path, found.st_dev)
    # hugetlbfs counts blocks only where its mount has a limit of its own.
    free = space.f_bavail * space.f_frsize if space.f_blocks else None
    return MemoryFile(path, True, free, free, found.st_dev, found.st_ino, file_system, dax, page)


def _refuse_without_data(path: str, file_system: str | None, space: os.statvfs_result) -> None:
    """What the kernel makes up as it is read, as in /proc and /sys, lies in no memory, and takes no new files."""
    made_up = space.f_blocks == 0 and file_system not in _WITHOUT_BLOCKS
    if made_up and not (file_system or "").startswith("fuse"):
        kind = f"a {file_system}" if file_system else "a file system"
        raise UsageError(f"{OPTION}: {path} is in {kind} that holds no data: give a file or folder that does")


def _first_hole(descriptor: int, size: int) -> int:
    """Bytes before the first hole: a hole is read from no memory of its own."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            return size
        raise


def _page_bytes(block: int, path: str, device: int) -> int:
    """What a mapping is made of: huge pages in a hugetlbfs, whose blocks they are; base pages elsewhere."""
    return block if mounted(path, device)[0] == "hugetlbfs" else os.sysconf("SC_PAGE_SIZE")


def mounted(path: str, device: int) -> tuple[str | None, bool]:
    """(the kind of file system at a path, whether it is mounted with DAX for all files); kind None: unknown."""
    try:
        with open(MOUNTS, "rb") as file:
            lines = file.read(_MOUNTS_BYTES).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None, False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    real = os.path.realpath(path)
    best: tuple[int, str, bool] | None = None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, told = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(told) < 3:
            continue
        options = {*fields[5].split(","), *told[2].split(",")}
        dax = bool(options & {"dax", "dax=always"})
        if fields[2] == wanted:
            return told[0], dax
        # Some file systems give their files a device number that no mount has: the nearest mount above counts.
        point = re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), fields[4])
        inside = f"{real}/".startswith(f"{point.rstrip('/')}/")
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), told[0], dax)
    return (best[1], best[2]) if best else (None, False)


def describe(file: MemoryFile) -> str:
    """How it stands in a sentence: its path, and its size where it has one."""
    if file.folder:
        return f"a file that is made in {file.path}"
    return f"{file.path} of {exact_bytes(file.bytes or 0)}"
