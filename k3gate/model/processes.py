"""Work shared out to forked processes that end with us: on an error, an interrupt, and also when we are killed."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from k3gate.errors import MemoryShortageError

Item = TypeVar("Item")
Result = TypeVar("Result")
_PR_SET_PDEATHSIG = 1
_EVERY_SECONDS = 0.5


def in_order(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """The results in the order of the items; `tick` is called twice a second meanwhile.

    The processes are forked when this is called, and begin with what is in memory then; items and results travel
    through pipes. `MemoryShortageError` where one of them is killed from outside.
    """
    context = multiprocessing.get_context("fork")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(max(1, min(processes, len(items))), context, initializer=_begin)
    try:
        # Those that end early wait for their turn: results are small.
        futures = [pool.submit(function, item) for item in items]
        for future in futures:
            while not future.done():
                wait([future], timeout=_EVERY_SECONDS, return_when=FIRST_COMPLETED)
                tick()
            yield future.result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise MemoryShortageError(
            "a process that read the files was killed, as the kernel does when memory runs out; free memory, then "
            "start again"
        ) from error
    finally:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        with contextlib.suppress(BrokenProcessPool):
            pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """An interrupt is for us to handle, who then end the processes; and they end where we cannot."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
