"""The process that owns a server and all that it starts: `python -m k3gate.serving.keeper`, started by `server` alone.

It ends them when it is told, when the server ends, and when whoever started it is gone in any way: the lifeline is a
pipe whose other end dies with its owner. Orphans of the tree come back to it (PR_SET_CHILD_SUBREAPER), so that none is
lost; and the server gets SIGKILL where the keeper itself dies first. It needs no control group and no root.

    keeper LIFELINE REPORT GRACE_S PROGRAM [ARGUMENT]...

Reports, as JSON lines: {"started": pid}, {"refused": errno}, {"exit": code as of waitstatus_to_exitcode}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_SECONDS = 0.05
_ABANDONED_GRACE_S = 3.0
"""What a server gets to end itself where nobody waits for it any more."""


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Keeper:
    """One server. `run` returns when nothing of its tree is left."""

    def __init__(self, lifeline: int, report: int, grace_s: float, command: Sequence[str]) -> None:
        self._lifeline, self._report, self._grace_s = lifeline, report, grace_s
        self._command = list(command)
        self._server = 0
        self._ended = False

    def run(self) -> int:
        """Start the server, wait for its end or the order to end it, and end the tree."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._start()
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN | select.POLLHUP)
        poll.register(wake_read, select.POLLIN)
        grace = self._grace_s
        while not self._ended:
            for descriptor, _ in poll.poll():
                if descriptor == self._lifeline:
                    grace = self._grace_s if os.read(self._lifeline, 1) else _ABANDONED_GRACE_S
                    self._end(grace)
                    return 0
                if signal.SIGTERM in os.read(wake_read, 4096):
                    self._end(_ABANDONED_GRACE_S)
                    return 0
            self._reap()
        # Nothing that the server left behind stays either.
        self._end(grace)
        return 0

    def _start(self) -> None:
        keeper = os.getpid()
        self._server = os.fork()
        if self._server:
            self._say(started=self._server)
            return
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() == keeper:
                os.execvp(self._command[0], self._command)
        except OSError as error:
            self._say(refused=error.errno)
        finally:
            os._exit(127)

    def _say(self, **told: int | None) -> None:
        with contextlib.suppress(OSError):
            os.write(self._report, json.dumps(told).encode() + b"\n")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._server:
                self._ended = True
                self._say(exit=os.waitstatus_to_exitcode(status))

    def _end(self, grace_s: float) -> None:
        """SIGTERM to all, a while to end, then SIGKILL until nothing is left."""
        for pid in descendants(os.getpid()):
            _kill(pid, signal.SIGTERM)
        until = time.monotonic() + grace_s
        while True:
            self._reap()
            left = descendants(os.getpid())
            if not left:
                return
            if time.monotonic() >= until:
                for pid in left:
                    _kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)


def descendants(pid: int) -> list[int]:
    """All processes below one, by their parents as /proc has them; those that have ended and wait to be reaped too."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  # names alone, many times a second
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                parents.setdefault(int(file.read(1024).rpartition(b")")[2].split()[1]), []).append(int(name))
    found, rest = [], [pid]
    while rest:
        below = parents.pop(rest.pop(), [])
        found += below
        rest += below
    return found


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def main() -> int:
    """Exit code 2 where it is started by somebody else."""
    try:
        lifeline, report, grace_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
        command = sys.argv[4:]
        for descriptor in (lifeline, report):
            os.set_inheritable(descriptor, False)
        if not command:
            raise ValueError
    except (IndexError, ValueError, OSError):
        print("k3gate.serving.keeper is started by k3gate alone", file=sys.stderr)
        return 2
    return Keeper(lifeline, report, grace_s, command).run()


if __name__ == "__main__":
    raise SystemExit(main())
