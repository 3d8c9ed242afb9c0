"""Ctrl-C in the first moments, while modules are imported: the end without a traceback, nothing is open yet.

It imports next to nothing itself, or it would come too late.
"""

from __future__ import annotations

import os
import signal


def _ends(number: int, frame: object) -> None:
    os._exit(130)  # EXIT_INTERRUPTED


def begin() -> bool:
    """Take Ctrl-C, unless the program that imports k3gate handles it in its own way."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _ends)
    except ValueError:  # not in the main thread
        return False
    return True


def over() -> None:
    """Give Ctrl-C back to Python, whose exception `main` handles."""
    if taken:
        signal.signal(signal.SIGINT, signal.default_int_handler)


taken = begin()
