"""How far a long pass has come, on stderr: over bytes in a line that is rewritten on a terminal, and now and then
elsewhere; over files on a terminal alone."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from k3gate.model.checkpoint.checksums import Pace
from k3gate.units import duration, quantity

_EVERY = {True: 0.5, False: 30.0}


@contextlib.contextmanager
def shown() -> Iterator[Callable[[Pace], None]]:
    """Gives what is to be called with the pace as often as one likes."""
    terminal = sys.stderr.isatty()
    last = [time.monotonic()]

    def tell(pace: Pace) -> None:
        if time.monotonic() - last[0] < _EVERY[terminal]:
            return
        last[0] = time.monotonic()
        line = (
            f"{quantity(pace.done, 'B')} of {quantity(pace.whole, 'B')}, {quantity(pace.rate(), 'B/s')}, "
            f"{duration(pace.left())} left"
        )
        print(
            f"\r{line:<70}" if terminal else f"k3gate: {line}",
            end="" if terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    try:
        yield tell
    finally:
        if terminal:
            print("\r" + " " * 70 + "\r", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def headers() -> Iterator[Callable[[int, int], None]]:
    """Gives what is to be called with the number of files whose header was read, and of all."""
    terminal = sys.stderr.isatty()
    told = [False]

    def tell(done: int, whole: int) -> None:
        if terminal:
            told[0] = True
            print(f"\r{f'headers of {done:,} of {whole:,} files':<70}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if told[0]:
            print("\r" + " " * 70 + "\r", end="", file=sys.stderr, flush=True)
