"""What the readers of headers hand on: tensors, problems, and how bytes are asked for."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from attrs import field, frozen

from k3gate.documents import printable
from k3gate.records import Severity

LONGEST_NAME = 300
"""Bytes of a tensor's name that a message shows; a file may give a name of any length."""
TOLD = 20
"""How many problems of one kind are told one by one; the others are counted."""


class Tensor(NamedTuple):
    """A tensor as its file tells of it.

    `dtype` is the name that the format uses ("BF16", "U8", "Q8_0"); `shape` in row-major order, the last axis is
    contiguous; `begin` and `end` are bytes from the start of the file; `elements` are as the type counts them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    elements: int

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.end - self.begin


@frozen
class Problem:
    """What is wrong with a file. `code` groups problems of one kind; HIGH: the file cannot be used as it is."""

    code: str
    severity: Severity
    file: str
    text: str
    bytes: int | None = None
    """How many bytes are missing or too many, where that is the problem."""


@frozen
class Header:
    """What the header of one file says. `header_bytes`: all bytes before the first tensor may begin."""

    file: str
    size: int
    format: str
    header_bytes: int = 0
    tensors: tuple[Tensor, ...] = field(default=(), repr=False)
    metadata: dict[str, object] = field(factory=dict, repr=False)
    problems: tuple[Problem, ...] = ()
    digest: str = ""
    """SHA-256 of what names the tensors: their names, types, shapes and places."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors together, as the header declares them."""
        return sum(tensor.end - tensor.begin for tensor in self.tensors)


class Source(Protocol):
    """Bytes that can be asked for by position: a local file, or a file of a Hub by range requests."""

    name: str
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer at the end. `OSError` where they cannot be had."""
        ...


class LocalFile:
    """A file that is open for reading; its size is that of the open file."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.name = name
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor

    def read(self, offset: int, length: int) -> bytes:
        """As in `Source`; one call of the system may give less than was asked for."""
        parts: list[bytes] = []
        while length > 0:
            part = os.pread(self._descriptor, min(length, 1 << 30), offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]


@contextmanager
def open_file(path: Path) -> Iterator[LocalFile]:
    """The file at `path`, named by the last part of its path. `OSError` where it cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield LocalFile(descriptor, printable(path.name))
    finally:
        os.close(descriptor)


class Problems:
    """Collects problems; of one kind so many are told one by one, and the rest in one sentence."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: list[Problem] = []
        self._counts: dict[str, int] = {}

    def add(self, code: str, text: str, severity: Severity = Severity.HIGH, size: int | None = None) -> None:
        """Take note of a problem of this file; `text` is made fit to be shown."""
        self._counts[code] = self._counts.get(code, 0) + 1
        if self._counts[code] <= TOLD:
            self._found.append(Problem(code, severity, self._file, printable(text), size))

    def told(self) -> tuple[Problem, ...]:
        """All that was noted, in order."""
        more = [
            Problem(code, Severity.HIGH, self._file, f"{number - TOLD:,} more of this kind")
            for code, number in self._counts.items()
            if number > TOLD
        ]
        return (*self._found, *more)


def shown(name: str) -> str:
    """A tensor's name as a message shows it: quoted, printable, and cut where it is long."""
    text = printable(name).replace("\n", "\\n")
    return repr(text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}...")


def check_layout(tensors: list[Tensor], start: int, add: Callable[[str, str], None]) -> int:
    """Whether the tensors cover `start` to their end without holes, each byte once. Returns where they end.

    Holes are the padding of GGUF for the caller to allow; this is the rule of safetensors.
    """
    position = start
    for tensor in tensors:
        if tensor.begin != position:
            break
        position = tensor.end
    else:
        return position
    position = start
    before: Tensor | None = None
    for tensor in sorted(tensors, key=lambda one: (one.begin, one.end)):
        if tensor.begin < position and before is not None and tensor.end > tensor.begin:
            add(
                "overlap",
                f"tensors {shown(before.name)} [{before.begin - start}, {before.end - start}] and "
                f"{shown(tensor.name)} [{tensor.begin - start}, {tensor.end - start}] share bytes",
            )
        elif tensor.begin > position:
            add(
                "hole",
                f"{tensor.begin - position} bytes before tensor {shown(tensor.name)} "
                f"[{tensor.begin - start}, {tensor.end - start}] belong to no tensor",
            )
        if tensor.end >= position:
            position, before = tensor.end, tensor
    return position
