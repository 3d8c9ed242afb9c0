"""Standard streams that are closed, full, or of another encoding: no reason for a traceback or a lost run."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any


def prepare() -> None:
    """Make stdout and stderr fit for any text; stderr, which only tells, also for a reader that is gone."""
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal's encoding lacks is shown as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Stderr(
            io.BufferedWriter(io.FileIO(2, "wb", closefd=False)),
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )


def silence(number: int) -> None:
    """Let nothing more be written to a stream, nor fail when Python flushes it at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


class _Stderr(io.TextIOWrapper):
    """Progress and notes: where they cannot be written the run goes on without them."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            silence(2)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            silence(2)
            with contextlib.suppress(OSError):
                super().flush()


def _open_closed() -> None:
    """Give closed standard streams the null device.

    Python has None for them, and their numbers would go to the next pipe that is opened, a worker's perhaps.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    streams: dict[str, Any] = {"stdout": 1, "stderr": 2}
    for name, number in streams.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
