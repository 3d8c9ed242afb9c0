"""SHA-256 of a checkpoint's files on all cores, and what they are held against.

Reading and hashing overlap: each thread has the kernel read ahead while it hashes, without a copy, where the kernel
holds the file; hashing releases the interpreter. What is done is handed on file by file, so that an interrupted pass
goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from mmap import MAP_PRIVATE, PROT_READ, mmap
from pathlib import Path

import orjson
from attrs import frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.checkpoint import _mapped
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.hub.address import is_address
from k3gate.model.checkpoint.readers import Part
from k3gate.model.checkpoint.tensors import open_file

BLOCK = 4 * 2**20
WINDOW = 4 * BLOCK
"""Mapped at once by a thread. The pages are the kernel's cache, and count as the process's too meanwhile."""
AHEAD = 64 * 2**20
_MANIFEST_BYTES = 64 * 2**20
_NAMES = ("SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt")
_LINE = re.compile(
    r"(?P<hex>[0-9a-fA-F]{64}) [ *](?P<name>.+)|SHA256 \((?P<other>.+)\) = (?P<bsd>[0-9a-fA-F]{64})"
)
_HEX = re.compile(r"[0-9a-f]{64}")


@frozen
class Sum:
    """The digest of a file, and by what the file is known to be the same one, unchanged: device, inode and the time
    that the kernel keeps of its last change, which nobody sets."""

    name: str
    size: int
    state: str
    sha256: str


@frozen
class Manifest:
    """What the files' digests should be, by name, and where that is written."""

    source: str
    sums: Mapping[str, str]


def manifest(found: FileSet, given: str | None) -> Manifest | None:
    """The digests that the files are held against: a file that is named, else SHA256SUMS beside the weights, else the
    names of the Hub's cache, whose blobs are called by their digests. None where there is none.

    A named file is a list as sha256sum writes it, or the JSON of an earlier inspection with checksums. An address
    (hf://...) stands for the digests that the Hub lists at its revision.
    """
    if given is not None and is_address(given):
        return _of_hub(given, [part.name for part in found.parts])
    if given is not None:
        return Manifest(printable(given), _read(Path(given)))
    for name in _NAMES:
        if (found.folder / name).is_file():
            return Manifest(name, _read(found.folder / name))
    blobs = {part.name: target.name for part in found.parts if (target := _target(part.path)) is not None}
    named = {name: blob for name, blob in blobs.items() if _HEX.fullmatch(blob)}
    return Manifest("the names of the Hub's cache", named) if named else None


def _of_hub(address: str, names: list[str]) -> Manifest:
    from k3gate.model.checkpoint.hub import reader

    commit, sums = reader.sums(address, names)
    if not sums:
        raise UsageError(
            f"{printable(address)}: the Hub lists no SHA-256 of any of the {len(names):,} files; give the address of "
            "the folder that holds them there"
        )
    return Manifest(f"{printable(address)} at {commit}", sums)


def _target(path: Path) -> Path | None:
    return path.resolve() if path.is_symlink() else None


def _read(path: Path) -> dict[str, str]:
    shown = printable(str(path))
    try:
        with open_file(path) as source:
            if source.size > _MANIFEST_BYTES:
                raise UsageError(f"{shown}: too large for a list of checksums; give the list itself")
            raw = source.read(0, _MANIFEST_BYTES)
    except OSError as error:
        raise UsageError(
            f"{shown}: {(error.strerror or str(error)).lower()}; give a list of checksums"
        ) from error
    sums = _of_json(raw) if raw.lstrip().startswith(b"{") else _of_lines(raw.decode("utf-8", "replace"))
    if not sums:
        raise UsageError(f"{shown}: no SHA-256 of any file in it; give a list as sha256sum writes it")
    return sums


def _of_lines(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is not None:
            name = (match["name"] or match["other"]).removeprefix("./")
            found[name] = (match["hex"] or match["bsd"]).lower()
    return found


def _of_json(raw: bytes) -> dict[str, str]:
    try:
        told = orjson.loads(raw)
        files = told["checksums"]["files"]
        return {str(name): str(value).removeprefix("sha256:") for name, value in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def known(parts: Sequence[Part], earlier: Sequence[Sum]) -> dict[str, Sum]:
    """Of earlier digests those whose files are the same ones, in the state that they had then."""
    by_name = {one.name: one for one in earlier}
    found: dict[str, Sum] = {}
    for part in parts:
        one = by_name.get(part.name)
        if one is None or part.size is None:
            continue
        now = part.path.stat()
        if (now.st_size, _state(now)) == (one.size, one.state):
            found[part.name] = one
    return found


def _state(file: os.stat_result) -> str:
    return f"{file.st_dev}:{file.st_ino}:{file.st_ctime_ns}"


def hash_files(
    parts: Sequence[Part], threads: int, progress: Callable[[int], None] | None = None
) -> Iterator[Sum]:
    """The digests of files, each as it is done, by so many threads. `progress`: bytes done since it was last called.

    `OSError` where a file cannot be read. Where the caller stops, threads stop within a block.
    """
    stop = [False]
    pending: set[Future[Sum]] = set()
    with ThreadPoolExecutor(threads) as pool:
        try:
            # The largest first, so that no thread is left alone with one at the end.
            queue = sorted((one for one in parts if one.size is not None), key=lambda one: -(one.size or 0))
            pending = {pool.submit(_hash, part, progress, stop) for part in queue}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            stop[0] = True
            for future in pending:
                future.cancel()


def _hash(part: Part, progress: Callable[[int], None] | None, stop: list[bool]) -> Sum:
    def more(length: int) -> bool:
        if progress is not None:
            progress(length)
        return not stop[0]

    told = hashlib.sha256()
    descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        offset = ahead = 0
        while offset < before.st_size and not stop[0]:
            if offset + AHEAD > ahead:
                os.posix_fadvise(descriptor, ahead, AHEAD, os.POSIX_FADV_WILLNEED)
                ahead += AHEAD
            length = min(WINDOW, before.st_size - offset)
            mapped = _map(descriptor, offset, length)
            if mapped is None:
                length = _add_read(told, descriptor, offset, length, more)
            else:
                so_far = told.copy()
                if not _add_mapped(told, mapped, more):
                    # Read again, and in the ordinary way, which tells what is wrong; progress has these bytes.
                    told = so_far
                    length = _add_read(told, descriptor, offset, length, lambda _: not stop[0])
            if not length:
                break
            offset += length
    finally:
        os.close(descriptor)
    return Sum(part.name, offset, _state(before), told.hexdigest())


def _map(descriptor: int, offset: int, length: int) -> mmap | None:
    """A window of a file, None where there is none: not every file system maps, and the file may have been cut."""
    try:
        return mmap(descriptor, length, MAP_PRIVATE, PROT_READ, offset=offset)
    except (OSError, ValueError):
        return None


def _add_mapped(told: hashlib._Hash, mapped: mmap, more: Callable[[int], bool]) -> bool:
    """Add a window where the kernel holds it, as a copy would take a seventh of the time. False where pages of it
    could not be had: zeros were added in their place."""
    with mapped:
        watched = _mapped.watch(mapped)
        try:
            with memoryview(mapped) as view:
                for start in range(0, len(view), BLOCK):
                    with view[start : start + BLOCK] as block:
                        told.update(block)
                        length = len(block)
                    if not more(length):
                        break
        finally:
            whole = _mapped.unwatch(watched)
    return whole


def _add_read(
    told: hashlib._Hash, descriptor: int, offset: int, length: int, more: Callable[[int], bool]
) -> int:
    """Add bytes by reading them. How many there were."""
    done = 0
    while done < length and (raw := os.pread(descriptor, min(BLOCK, length - done), offset + done)):
        told.update(raw)
        done += len(raw)
        if not more(len(raw)):
            break
    return done


@frozen
class Comparison:
    """The digests held against a manifest: names of files that differ, and of those it does not name."""

    source: str | None
    same: tuple[str, ...]
    differ: tuple[str, ...]
    unnamed: tuple[str, ...]


def compare(sums: Sequence[Sum], wanted: Manifest | None) -> Comparison:
    """Every file against what it should be."""
    names = sorted(one.name for one in sums)
    if wanted is None:
        return Comparison(None, (), (), tuple(names))
    by_name = {one.name: one.sha256 for one in sums}
    listed = [name for name in names if name in wanted.sums]
    return Comparison(
        wanted.source,
        same=tuple(name for name in listed if by_name[name] == wanted.sums[name]),
        differ=tuple(name for name in listed if by_name[name] != wanted.sums[name]),
        unnamed=tuple(name for name in names if name not in wanted.sums),
    )


def document(sums: Sequence[Sum], compared: Comparison) -> dict[str, object]:
    """The digests as JSON, which a later pass takes as its manifest."""
    return {
        "source": compared.source,
        "files": {one.name: f"sha256:{one.sha256}" for one in sums},
        "same": list(compared.same),
        "differ": list(compared.differ),
        "unnamed": list(compared.unnamed),
    }


class Pace:
    """Bytes done of a whole, at which rate, and how long the rest takes."""

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.done = 0
        self._begun = time.monotonic()

    def add(self, size: int) -> None:
        """Take note of so many bytes more."""
        self.done += size

    def rate(self) -> float:
        """Bytes per second since the beginning."""
        return self.done / max(time.monotonic() - self._begun, 1e-9)

    def left(self) -> float | None:
        """Seconds to the end; None before anything was done."""
        return (self.whole - self.done) / self.rate() if self.done else None
