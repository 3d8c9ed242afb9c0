"""Reading a trace of routing from a file that nobody vouches for: JSON lines or npz, bounded, never unpickled."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.routing import jsonl, npz
from k3gate.model.routing.trace import Trace
from k3gate.units import quantity

MAX_BYTES = 1 << 30
FORMS = "give JSON lines or npz, as docs/routing.md has them"
_OTHERS = (
    (b"\x93NUMPY", "is a bare .npy file: save it by numpy.savez(FILE, experts=ARRAY)"),
    (b"\x1f\x8b", "is compressed by gzip: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd: unpack it first"),
    (b"\x80", f"is a pickle, which is never read, since reading it runs it: {FORMS}"),
)


def read(path: str, experts: int | None = None) -> Trace:
    """The trace in a file. `experts`: of a layer, where the file does not say; None: the largest id + 1.

    `UsageError` says in one line which file, which line or token, what is wrong with it, and what to do.
    """
    name = shown(path)
    try:
        # Without waiting: a pipe that nobody writes would hold the command up for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return _of_file(file, name, experts)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the trace {name}: {reason}; name another file") from error


def shown(path: str) -> str:
    """A path fit for one line."""
    text = printable(Path(path).name).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= 100 else f"{text[:100]}..."


def _of_file(file: BinaryIO, name: str, experts: int | None) -> Trace:
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"cannot read the trace {name}: it is no regular file; write it to a file first")
    if about.st_size == 0:
        raise UsageError(f"{name} is empty: {FORMS}")
    if about.st_size > MAX_BYTES:
        raise UsageError(
            f"{name} has {quantity(about.st_size, 'B')}, above the {quantity(MAX_BYTES, 'B')} that are read: "
            "give a part of the trace"
        )
    head = file.read(8)
    file.seek(0)
    for magic, what in _OTHERS:
        if head.startswith(magic):
            raise UsageError(f"{name} {what}")
    if head.startswith(b"PK"):
        return npz.read(file, name, experts)
    return jsonl.read(file, name, experts)
