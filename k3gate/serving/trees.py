"""Files of an installed package, from a folder or from a wheel that was not installed. Reads are bounded."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

from k3gate.documents import printable
from k3gate.errors import UsageError

MOST_SOURCE = 8 << 20
"""Of a source file or a package's own description."""
MOST_LIBRARY = 2 << 30
_MOST_NAMES = 500_000


class UnreadableError(Exception):
    """A file that is there cannot be read; the text says why."""


class Tree(Protocol):
    """Where packages lie. Names are relative, with slashes."""

    place: str

    def names(self, folder: str = "") -> list[str]:
        """What lies in a folder, by name alone; nothing where it is none."""
        ...

    def read(self, name: str, most: int = MOST_SOURCE) -> bytes | None:
        """A whole file; None where there is none. Raises `UnreadableError`."""
        ...

    def where(self, name: str) -> str:
        """The file as a user finds it."""
        ...


class Folder:
    """A folder: site-packages, or an unpacked wheel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = printable(str(path))

    def names(self, folder: str = "") -> list[str]:
        """As `Tree` has it."""
        try:
            with os.scandir(self.path / folder) as found:
                return sorted(entry.name for _, entry in zip(range(_MOST_NAMES), found, strict=False))
        except OSError:
            return []

    def read(self, name: str, most: int = MOST_SOURCE) -> bytes | None:
        """As `Tree` has it. A pipe or a device is no file."""
        try:
            with regular(self.path / name) as descriptor:
                size = os.fstat(descriptor).st_size
                if size > most:
                    raise UnreadableError(f"it has {size:,} bytes, more than {most:,}")
                with open(descriptor, "rb", closefd=False) as file:
                    return file.read(most)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UnreadableError(error.strerror or "it cannot be read") from None

    def where(self, name: str) -> str:
        """As `Tree` has it."""
        return printable(str(self.path / name))


class Wheel:
    """A wheel as it was downloaded."""

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` where it is no wheel."""
        self.place = printable(str(path))
        try:
            self._archive = zipfile.ZipFile(path)
            infos = self._archive.infolist()
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or "it is no wheel"
            raise UsageError(f"cannot read {self.place}: {reason}; give a wheel that is whole") from None
        self._infos = {info.filename: info for info in infos[:_MOST_NAMES]}
        self._folders: dict[str, set[str]] = {}
        for name in self._infos:
            parts = PurePosixPath(name).parts
            for depth, part in enumerate(parts):
                self._folders.setdefault("/".join(parts[:depth]), set()).add(part)

    def names(self, folder: str = "") -> list[str]:
        """As `Tree` has it."""
        return sorted(self._folders.get(folder.strip("/"), ()))

    def read(self, name: str, most: int = MOST_SOURCE) -> bytes | None:
        """As `Tree` has it."""
        info = self._infos.get(name)
        if info is None or info.is_dir():
            return None
        if info.file_size > most:
            raise UnreadableError(f"it has {info.file_size:,} bytes, more than {most:,}")
        try:
            with self._archive.open(info) as file:
                return file.read(most)
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError):
            raise UnreadableError("the wheel is damaged there") from None

    def where(self, name: str) -> str:
        """As `Tree` has it."""
        return printable(f"{self.place}/{name}")


@contextmanager
def regular(path: Path) -> Iterator[int]:
    """The descriptor of a regular file, without waiting for one that is none; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def find_strings(path: Path, words: tuple[str, ...]) -> dict[str, int]:
    """Offset of each word that a program or library holds as a whole text, which ends where the word does.

    A text that merely contains a word is another text: the compiler ends each with a zero byte, and may let one that
    is the end of a longer one lie in it. Raises `OSError`.
    """
    found: dict[str, int] = {}
    with regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if not 0 < size <= MOST_LIBRARY:
            return found
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            for word in words:
                pattern = re.compile(rb"(?<![A-Za-z0-9_-])" + re.escape(word.encode()) + rb"\x00")
                hit = pattern.search(content)
                if hit is not None:
                    found[word] = hit.start()
    return found


def digest(path: Path) -> str | None:
    """SHA-256 of a file; None where it cannot be read."""
    try:
        with regular(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
