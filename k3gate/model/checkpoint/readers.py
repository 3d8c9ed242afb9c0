"""Where the files of a checkpoint lie, and how they are opened: what a folder here and one of a Hub have in common."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.checkpoint.tensors import Source, open_file

MOST_NAMES = 100_000
"""Names that are read of one folder."""
UNFETCHED = "unfetched"
"""The code of files that another machine did not give: that says nothing of the checkpoint."""


@frozen
class Part:
    """A file with weights. `size` None: it is not there or cannot be read, and `trouble` says why."""

    name: str
    _path: Path | None
    size: int | None
    trouble: str | None = None

    @property
    def path(self) -> Path:
        """Where it lies on this machine; `ValueError` where it lies elsewhere."""
        if self._path is None:
            raise ValueError(f"{self.name} is no file of this machine")
        return self._path


class Reader(Protocol):
    """A folder with files. Names are relative to it; a name that leads into another folder has "/" in it."""

    @property
    def path(self) -> Path | None:
        """Where the folder lies on this machine; None where it lies elsewhere."""

    def names(self) -> list[str]:
        """What is in the folder, sorted, `MOST_NAMES` at most. `UsageError` where that is not told."""

    def part(self, name: str) -> Part:
        """A file by its name: its size, or why it has none."""

    def open(self, name: str) -> AbstractContextManager[Source]:
        """The file, named by the last part of its name. `OSError` where it cannot be opened."""

    def ahead(self, names: list[str]) -> AbstractContextManager[object]:
        """While this lasts these files will be opened in this order: what takes its time may begin with them."""

    def why(self, name: str, error: OSError) -> str:
        """What is in the way of a file, in words."""


def unread(reader: Reader) -> str:
    """The code of the problem that a file cannot be read."""
    return "unreadable" if reader.path is not None else UNFETCHED


def small(reader: Reader, name: str, limit: int) -> bytes:
    """A whole file of at most `limit` bytes; `ValueError` for a longer one, of which none is read."""
    with reader.open(name) as source:
        raw = source.read(0, min(source.size, limit) + 1) if source.size <= limit else None
    if raw is None or len(raw) > limit:
        raise ValueError(f"more than {limit:,} bytes")
    return raw


@frozen
class LocalReader:
    """A folder of this machine."""

    path: Path = field()

    def names(self) -> list[str]:
        """See `Reader`."""
        return names_in(self.path)

    def part(self, name: str) -> Part:
        """See `Reader`; links are followed."""
        path = self.path / name
        try:
            found = path.stat()
        except OSError as error:
            return Part(name, path, None, why(path, error))
        if not stat.S_ISREG(found.st_mode):
            return Part(name, path, None, "it is no regular file")
        return Part(name, path, found.st_size)

    def open(self, name: str) -> AbstractContextManager[Source]:
        """See `Reader`."""
        return open_file(self.path / name)

    def ahead(self, names: list[str]) -> AbstractContextManager[object]:
        """See `Reader`; there is nothing to begin with."""
        return nullcontext()

    def why(self, name: str, error: OSError) -> str:
        """See `Reader`."""
        return why(self.path / name, error)


def names_in(folder: Path) -> list[str]:
    """The names in a folder of this machine, sorted, `MOST_NAMES` at most; `UsageError` where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False))
    except OSError as error:
        raise UsageError(f"{printable(str(folder))}: {why(folder, error)}; make it readable") from error


def why(path: Path, error: OSError) -> str:
    """What is in the way, in words: where a broken link leads, a loop, a right that is missing."""
    if error.errno == errno.ELOOP:
        return "its links go in a circle"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        try:
            return f"a link to {printable(str(path.readlink()))}, which is not there"
        except OSError:
            return "it is not there"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "it may not be read"
    return (error.strerror or str(error)).lower()
