"""Starts a worker process, and says in words how one ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

SIGNAL_WORDS: Mapping[int, str] = {
    signal.SIGILL: "it ran an instruction that this CPU lacks",
    signal.SIGSEGV: "it touched memory that is not its own",
    signal.SIGBUS: "a page of memory could not be provided, as when a mapped file was cut, or a huge page pool or a "
    "disk is used up",
    signal.SIGFPE: "it divided by zero or overflowed",
    signal.SIGABRT: "it gave up by itself; its stderr says why",
    signal.SIGKILL: "somebody killed it, most often the kernel because memory ran out: see dmesg",
    signal.SIGTERM: "somebody ended it",
}


def start(
    command: Sequence[str], request: dict[str, Any]
) -> tuple[subprocess.Popen[bytes], BinaryIO, BinaryIO]:
    """The process, the pipe of its results and that of our go-ahead; raises `OSError` where none starts.

    Of the request's `files` it gets the descriptors, under the same numbers.
    """
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as always:

        def pipe(ours: int) -> tuple[int, int]:
            """Our end and the worker's."""
            ends = os.pipe()
            on_failure.callback(os.close, ends[ours])
            always.callback(os.close, ends[1 - ours])
            return ends[ours], ends[1 - ours]

        results, their_results = pipe(0)
        go, their_go = pipe(1)
        # The request lies in memory, not in a pipe, so a worker that never reads it cannot block us.
        file = always.enter_context(open(os.memfd_create("k3gate-request"), "w+b"))
        ends = {"results": their_results, "go": their_go}
        file.write(json.dumps(request | ends, allow_nan=False).encode())
        file.seek(0)
        process = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(*ends.values(), *(file for file in request.get("files", {}).values() if file >= 0)),
            start_new_session=True,
            env=_environment(),
            bufsize=0,
        )
        on_failure.pop_all()
        return process, open(results, "rb", buffering=0), open(go, "wb", buffering=0)


def _environment() -> dict[str, str]:
    """The worker's environment: ours, in the C locale, so that no library prints a decimal comma."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LC_") and name not in ("LANG", "LANGUAGE", "PYTHONWARNINGS", "PYTHONSTARTUP")
    }
    environment.update(LC_ALL="C", LANG="C", PYTHONUTF8="1", PYTHONHASHSEED="0")
    return environment


def exit_descriptor(process: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the kernel has none."""
    try:
        return os.pidfd_open(process)
    except (OSError, AttributeError):
        return None


def death(code: int | None) -> str:
    """How a process ended, in words; `code` as of `Popen.returncode`."""
    if code is None:
        return "the worker could not be ended"
    return f"the worker {exit_words(code)}{' before it was done' if code >= 0 else ''}"


def exit_words(code: int) -> str:
    """What an exit code says, as of `Popen.returncode`: "ended with exit code 1", "died of SIGKILL: ..."."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    words = SIGNAL_WORDS.get(-code)
    return f"died of {name}" + (f": {words}" if words else "")
