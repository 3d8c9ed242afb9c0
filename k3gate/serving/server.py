"""A server that k3gate starts itself, and ends itself: its processes, its log, and how it ended.

The program is started without a shell. `keeper` owns its tree; closing the lifeline, which every end of this process
does, ends that. The API key stands in a command as `$K3GATE_API_KEY`, which is replaced here and nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from k3gate.documents import decode, printable
from k3gate.errors import UsageError
from k3gate.probing import launch
from k3gate.serving import failures, processes
from k3gate.serving.client import KEY
from k3gate.serving.failures import Failure
from k3gate.serving.processes import Process

GRACE_S = 20.0
"""What a server gets to end itself after SIGTERM; giving a terabyte back takes a while."""
FIRST_BYTES, LAST_BYTES = 64 << 10, 128 << 10
"""Of the log, so much from its beginning and its end is kept."""
_END_BYTES_PER_S = 1e9
_STAND_IN = "$" + KEY
_KEY_OPTIONS = ("--api-key", "--api_key", "--hf-token", "--token")


def arguments(text: str) -> tuple[str, ...]:
    """The words of a command line; `UsageError` for one that cannot be started, or that holds a key."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command cannot be read: {error}; quote it as for a shell") from None
    if not words:
        raise UsageError('--command is empty: write it like --command "llama-server -m FILE --port 8080"')
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equal, value = word.partition("=")
        if option in _KEY_OPTIONS and (value if equal else after) != _STAND_IN:
            raise UsageError(
                f"--command holds a key after {option}, and a run stores its command: put the key into {KEY} and "
                f"write '{_STAND_IN}' in its place"
            )
    own = os.environ.get(KEY, "").strip()
    if own and any(own in word for word in words):
        raise UsageError(f"--command holds the key of {KEY}: write '{_STAND_IN}' in its place")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"--command: {printable(words[0])[:100]} is not there, or is no program: give its path"
        )
    return tuple(words)


class Log:
    """What a server prints, its beginning and its end, read by a thread as it comes. `key` is taken out."""

    def __init__(self, descriptor: int, key: str | None) -> None:
        self._descriptor, self._key = descriptor, key
        self._first, self._last, self._size = bytearray(), bytearray(), 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="server's log", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """All that is kept; between beginning and end a line that says what is not."""
        with self._lock:
            first, last, size = bytes(self._first), bytes(self._last), self._size
        lost = size - len(first) - len(last)
        between = f"\n... {lost:,} bytes left out ...\n" if lost > 0 else ""
        told = decode(first) + between + decode(last)
        return told.replace(self._key, "(the key)") if self._key else told

    def wait(self, seconds: float) -> None:
        """Until the last byte was read, or so long."""
        self._thread.join(seconds)

    def _read(self) -> None:
        with open(self._descriptor, "rb", buffering=0) as file:
            while True:
                try:
                    raw = file.read(1 << 16)
                except OSError:
                    return
                if not raw:
                    return
                with self._lock:
                    room = FIRST_BYTES - len(self._first)
                    self._size += len(raw)
                    self._first += raw[:room]
                    self._last += raw[room:] if room > 0 else raw
                    del self._last[: max(0, len(self._last) - LAST_BYTES)]


class Server:
    """One server, from its start until nothing of it is left. Use as a context, or `stop` it.

    Raises `UsageError` where the program cannot be started.
    """

    def __init__(self, command: Sequence[str], key: str | None = None, grace_s: float = GRACE_S) -> None:
        self.command = tuple(command)
        self.begun = time.monotonic()
        self._grace_s = grace_s
        self._exit: int | None = None
        self._stopped = False
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._report, report = os.pipe2(os.O_CLOEXEC)
        log, their_log = os.pipe2(os.O_CLOEXEC)
        words = [word.replace(_STAND_IN, key) if key else word for word in self.command]
        try:
            self._keeper = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "k3gate.serving.keeper"),
                    *(str(lifeline), str(report), str(grace_s), *words),
                ],
                stdin=subprocess.DEVNULL,
                stdout=their_log,
                stderr=their_log,
                pass_fds=(lifeline, report),
                start_new_session=True,
                env=_environment(os.environ),
            )
        finally:
            for descriptor in (lifeline, report, their_log):
                os.close(descriptor)
        self.log = Log(log, key)
        self._told = b""
        self._seen: dict[tuple[int, int], Process] = {}
        told = self._next_report()
        if "started" not in told:
            self.stop()
            reason = os.strerror(int(told.get("refused") or 0)) if told else "its keeper did not start"
            raise UsageError(f"--command: {printable(words[0])[:100]} cannot be started: {reason}")
        self.pid = int(told["started"])
        os.set_blocking(self._report, False)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the program that was started still runs."""
        if self._exit is None and not self._stopped:
            told = self._next_report()
            if "exit" in told:
                self._exit = int(told["exit"])
            elif self._keeper.poll() is not None:
                # The keeper was killed, and the server with it.
                self._exit = -int(signal.SIGKILL)
                self._end_strays()
        return self._exit is None and not self._stopped

    @property
    def ended(self) -> str:
        """How it ended, in words."""
        if self.alive:
            return "it runs"
        code = self._exit
        if code is None:
            return "it was ended"
        return f"it {launch.exit_words(code)}"

    def why(self) -> Failure:
        """What its log says of that."""
        self.log.wait(1.0)
        return failures.why(self.log.text())

    def tree(self) -> tuple[Process, ...]:
        """Its processes now."""
        found = processes.tree(self._keeper.pid, processes.table())
        for one in found:
            self._seen[one.pid, one.started] = one
        return found

    def stop(self, beat: Callable[[], None] = lambda: None) -> None:
        """End it and all that it started: SIGTERM, a while, SIGKILL. `beat` is called meanwhile."""
        if self._lifeline < 0:
            return
        held = sum(one.own + one.shared for pid, _ in self._seen if (one := processes.memory(pid)))
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b".")
        until = time.monotonic() + self._grace_s + 10.0 + held / _END_BYTES_PER_S
        while self._keeper.poll() is None and time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(0.2)
            beat()
        self._stopped = True
        os.close(self._lifeline)
        self._lifeline = -1
        if self._keeper.poll() is None:
            self._keeper.kill()
            self._keeper.wait()
        self._end_strays()
        os.close(self._report)
        self.log.wait(2.0)

    def _end_strays(self) -> None:
        """What of the tree outlived its keeper, where that was killed."""
        now = processes.table()
        for pid, started in self._seen:
            if pid in now and now[pid].started == started:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _next_report(self) -> dict[str, int]:
        """The next line of the keeper; nothing where there is none."""
        while b"\n" not in self._told:
            try:
                raw = os.read(self._report, 4096)
            except (BlockingIOError, OSError):
                return {}
            if not raw:
                return {}
            self._told += raw
        line, _, self._told = self._told.partition(b"\n")
        try:
            told = json.loads(line)
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Ours without the key, which the server gets where its command names it."""
    return {name: value for name, value in ours.items() if name != KEY}
