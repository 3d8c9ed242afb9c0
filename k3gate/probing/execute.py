"""Runs one round of one group in a worker process and yields what happens.

A crash, a hang or a kill costs the case under way alone: what was finished stays, and the rest of the group
goes on in a fresh worker. One thread, one `select` loop; the worker and all that it started are killed and
reaped before `run` returns, also when the caller stops half-way.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from k3gate.documents import canonical, plain, structure
from k3gate.probing import launch, protocol, registry
from k3gate.probing.events import (
    CaseDone,
    CaseStarted,
    Event,
    Heartbeat,
    Output,
    Watched,
    WorkerEnded,
    WorkerStarted,
)
from k3gate.probing.plan import Execution
from k3gate.probing.protocol import ProtocolError
from k3gate.records import Case, Inventory, Metric, Round, Series, State
from k3gate.series import OF_MONITOR, check
from k3gate.units import duration

__all__ = [
    "CaseDone",
    "CaseStarted",
    "Event",
    "Executor",
    "Heartbeat",
    "Output",
    "Watched",
    "WorkerEnded",
    "WorkerStarted",
]

SILENCE_SECONDS = 30.0
"""How long a worker may give no sign before it counts as hung."""
CLOSED_SECONDS = 1.0
"""How long a worker that closed its results too early may take to die: its exit tells more than the pipe."""
RELEASE_BYTES_PER_SECOND = 1e9
"""How slowly a kernel may give memory back when a worker ends, at worst."""
_READ_BYTES = 2**16


class Executor:
    """Starts workers for the executions of one run, one at a time.

    `started` is the `time.monotonic()` of the run's begin, to which samples are stamped. `references` says
    where each probe lies ("module:class"); None: where the entry points say. `files`: what workers get
    as `Context.files`. `command` replaces the worker's command line (tests put a hostile one there). Leaving a `with`
    block stops whatever still runs.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        started: float | None = None,
        references: Mapping[str, str] | None = None,
        files: Mapping[str, int] | None = None,
        silence_s: float = SILENCE_SECONDS,
        command: Sequence[str] | None = None,
    ) -> None:
        if references is None:
            references = {listing.name: listing.value for listing in registry.installed()}
        self._references = references
        self._inventory = plain(inventory)
        self._files = dict(files or {})
        self._started = time.monotonic() if started is None else started
        self._silence_s = silence_s
        self._command = command or (sys.executable, "-P", "-m", "k3gate.probing.worker")
        self._worker: _Worker | None = None
        self._stopped = False

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, execution: Execution) -> Generator[Event, None, None]:
        """Run the cases of `execution` once. Each case that `stop` did not cut off ends in a `CaseDone`."""
        pending = list(execution.cases)
        tried = False
        while pending and not self._stopped:
            request = {
                "version": protocol.VERSION,
                "probe": self._references.get(execution.probe, ""),
                "round": execution.round,
                "cases": [plain(case) for case in pending],
                "inventory": self._inventory,
                "files": self._files,
                "started": self._started,
                "parent": os.getpid(),
            }
            try:
                worker = _Worker(self._command, request, pending, execution.round, self._silence_s)
            except OSError as error:
                reason = f"no worker process can be started: {registry.one_line(error)}"
                lost = Round(execution.round, State.FAILED, reason, 0.0, 0.0, 0.0, None)
                yield from (CaseDone(case, lost, (), Output()) for case in pending)
                return
            self._worker = worker
            try:
                yield from worker.events()
            finally:
                worker.close()
                self._worker = None
            left = pending[worker.finished :]
            if self._stopped or not left:
                pass
            elif worker.under_way is not None:
                yield worker.lost(left.pop(0))
            elif not worker.finished and not tried:
                # It died before any case began, of a fault of its start or killed by chance: once more.
                tried = True
            elif not worker.finished:
                yield from (worker.lost(case) for case in left)
                left = []
            pending = left
            yield worker.ended(stopped=self._stopped)

    def stop(self) -> None:
        """Kill the worker at once, for Ctrl-C; `run` then ends without a `CaseDone` of the case under way."""
        self._stopped = True
        if self._worker is not None:
            self._worker.kill()


class _Worker:
    """One worker process, from its start until it is reaped."""

    def __init__(
        self,
        command: Sequence[str],
        request: dict[str, Any],
        cases: Sequence[Case],
        round_: int,
        silence_s: float,
    ) -> None:
        self.finished = 0
        self.under_way: Case | None = None
        self._reason: str | None = None
        self._cases = cases
        self._round = round_
        self._silence_s = silence_s
        self._begun = self._heard = self._case_begun = time.monotonic()
        self._ended_s: float | None = None
        self._released = False
        self._closed: float | None = None
        self._started = float(request["started"])
        self._metrics: list[Metric] = []
        self._latest: dict[str, float] = {}
        self._line = bytearray()
        self._received = 0
        self._output = {"stdout": bytearray(), "stderr": bytearray()}
        self._dropped = 0
        self._reaped: int | None = None
        self._process, self._results, self._go = launch.start(command, request)
        self._selector = selectors.DefaultSelector()
        for name, file in (
            ("results", self._results),
            ("stdout", self._process.stdout),
            ("stderr", self._process.stderr),
        ):
            assert file is not None
            os.set_blocking(file.fileno(), False)
            self._selector.register(file, selectors.EVENT_READ, name)
        self._exit = launch.exit_descriptor(self._process.pid)
        if self._exit is not None:
            self._selector.register(self._exit, selectors.EVENT_READ, "exit")

    @property
    def process(self) -> int:
        """The worker's pid."""
        return self._process.pid

    def events(self) -> Iterator[Event]:
        """What the worker reports, until it is gone or must be killed."""
        try:
            while self._reason is None:
                ready = {key.data: key.fileobj for key, _ in self._selector.select(self._patience())}
                # The exit is looked at before the pipes are emptied, or the last lines could be missed.
                gone = self._is_gone()
                for name in ("stdout", "stderr"):
                    self._drain(name)
                if "results" in ready or gone:
                    yield from self._read_results(whole=gone)
                if gone:
                    break
                # Looked at after reading: our caller may have been away for longer than the limits.
                self._reason = self._overdue()
        except ProtocolError as error:
            self._reason = f"the worker {error}, and was killed"

    def lost(self, case: Case) -> CaseDone:
        """The end of a case that the worker took down with it; call after `close`."""
        whole = time.monotonic() - (self._case_begun if case is self.under_way else self._begun)
        reason = self._reason or launch.death(self._reaped)
        if case is not self.under_way:
            reason = f"before its first case, {reason}"
        done = Round(self._round, State.FAILED, reason, whole, 0.0, 0.0, self.process)
        return CaseDone(case, done, (), self._take_output())

    def ended(self, *, stopped: bool) -> WorkerEnded:
        """The last event of this worker; call after `close`."""
        reason = self._reason
        if stopped:
            reason = "it was stopped"
        elif reason is None and (self._reaped != 0 or not self._released):
            reason = launch.death(self._reaped)
        seconds = (self._ended_s or time.monotonic()) - self._begun
        return WorkerEnded(self.process, seconds, reason, self._take_output())

    def kill(self) -> None:
        """SIGKILL to the whole process group; it is reaped in `close` alone, so the id is still its own."""
        if self._reaped is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left, reap it, take the last output, close every descriptor."""
        self.kill()
        held = max((case.bytes for case in self._cases), default=0)
        try:
            # Giving a terabyte back takes the kernel minutes, and the next worker needs that memory.
            code = self._process.wait(timeout=10.0 + held / RELEASE_BYTES_PER_SECOND)
        except subprocess.TimeoutExpired:
            self._reason = (self._reason or "") + " it is stuck in the kernel and could not be ended"
        else:
            self._reaped = code
        self._ended_s = time.monotonic()
        for name in ("stdout", "stderr"):
            self._drain(name)
        self._selector.close()
        for file in (self._results, self._go, self._process.stdout, self._process.stderr):
            if file is not None:
                file.close()
        if self._exit is not None:
            os.close(self._exit)

    def _overdue(self) -> str | None:
        now = time.monotonic()
        case = self.under_way
        if self._closed is not None and not self._released and now - self._closed > CLOSED_SECONDS:
            return "it closed its results before it was done and was killed"
        if case is not None and now - self._case_begun > case.time_limit_s:
            return f"it ran longer than its limit of {duration(case.time_limit_s)} and was killed"
        if now - self._heard > self._silence():
            return f"it gave no sign for {duration(self._silence())} and was killed"
        return None

    def _silence(self) -> float:
        """The patience with a silent worker; one that gives its memory back cannot speak meanwhile."""
        if self.under_way is None and self.finished == len(self._cases):
            held = max((case.bytes for case in self._cases), default=0)
            return self._silence_s + held / RELEASE_BYTES_PER_SECOND
        return self._silence_s

    def _patience(self) -> float:
        """Seconds until the next limit; short where the kernel cannot tell us of the worker's exit."""
        now = time.monotonic()
        waits = [self._heard + self._silence() - now]
        if self.under_way is not None:
            waits.append(self._case_begun + self.under_way.time_limit_s - now)
        if self._closed is not None and not self._released:
            waits.append(self._closed + CLOSED_SECONDS - now)
        if self._exit is None:
            waits.append(0.05)
        return max(0.0, min(waits)) + 0.001

    def _is_gone(self) -> bool:
        """Whether the process has ended. It stays unreaped, which keeps its process group id from reuse."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # our parent left SIGCHLD ignored, so the kernel reaped it already
            return True

    def _drain(self, name: str) -> None:
        """Read a stream's waiting bytes, keep the first ones, count the others; a bounded bite at a time."""
        file = self._process.stdout if name == "stdout" else self._process.stderr
        assert file is not None
        kept = self._output[name]
        for _ in range(64):
            try:
                chunk = os.read(file.fileno(), _READ_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(file)
                return
            room = protocol.OUTPUT_BYTES - len(kept)
            kept += chunk[:room]
            self._dropped += max(0, len(chunk) - room)

    def _take_output(self) -> Output:
        output = Output(bytes(self._output["stdout"]), bytes(self._output["stderr"]), self._dropped)
        self._output = {"stdout": bytearray(), "stderr": bytearray()}
        self._dropped = 0
        return output

    def _read_results(self, *, whole: bool) -> Iterator[Event]:
        """Handle the lines that wait in the pipe; all of them when the worker is gone."""
        while True:
            try:
                chunk = os.read(self._results.fileno(), _READ_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(self._results)
                self._closed = time.monotonic()
                return
            self._received += len(chunk)
            if self._received > protocol.RESULT_BYTES:
                raise ProtocolError(f"sent more than {protocol.RESULT_BYTES} bytes of results")
            self._line += chunk
            *lines, rest = self._line.split(b"\n")
            self._line = rest
            for line in lines:
                yield from self._handle(bytes(line))
            if len(self._line) >= protocol.LINE_BYTES:
                raise ProtocolError(f"sent a line longer than {protocol.LINE_BYTES} bytes")
            if not whole:
                return

    def _handle(self, line: bytes) -> Iterator[Event]:
        document = protocol.parse(line)
        kind = document["type"]
        self._heard = time.monotonic()
        if kind == "ready":
            notes = document.get("notes")
            texts = notes if isinstance(notes, list) else []
            yield WorkerStarted(
                self.process,
                self._heard - self._begun,
                tuple(protocol.reason(note) or "" for note in texts[:10]),
            )
        elif kind == "heartbeat":
            yield Heartbeat(self.under_way, protocol.reason(document.get("note")) or "")
        elif kind == "started":
            if self.under_way is not None or self.finished >= len(self._cases):
                raise ProtocolError("began a case out of turn")
            if document.get("case") != self._cases[self.finished].name:
                raise ProtocolError("began a case out of turn")
            self.under_way = self._cases[self.finished]
            self._case_begun = self._heard
            yield CaseStarted(self.under_way, self._round, self.process)
        elif kind == "metric":
            self._metrics.append(self._metric(document.get("metric")))
        elif kind == "series":
            yield self._piece(document.get("series"))
        elif kind == "done":
            yield self._done(document)
            # Only now may the worker go on: our caller has stored the round. Its patience starts afresh.
            self._heard = time.monotonic()
            with contextlib.suppress(BrokenPipeError):
                self._go.write(b".")
        else:
            self._released = True

    def _metric(self, document: object) -> Metric:
        if self.under_way is None:
            raise ProtocolError("sent a metric of no case")
        try:
            metric = structure(document, Metric)
        except ValueError as error:
            raise ProtocolError(f"sent a metric that is none ({error})") from None
        if any(sample.round != self._round or sample.process != self.process for sample in metric.samples):
            raise ProtocolError("sent samples of another round or process")
        return metric

    def _piece(self, document: object) -> Watched:
        """A piece of a series, with times within this worker's life that never fall: the store relies on it."""
        case = self.under_way
        if case is None:
            raise ProtocolError("sent a series of no case")
        try:
            piece = structure(document, Series)
            check(piece)
        except ValueError as error:
            raise ProtocolError(f"sent a series that is none ({error})") from None
        key = canonical([piece.name, piece.unit, plain(piece.labels)])
        earliest = self._latest.get(key, self._begun - self._started)
        if piece.name in OF_MONITOR or len(key) > protocol.SERIES_KEY_CHARACTERS:
            raise ProtocolError(f"sent a series that is no worker's: {protocol.excerpt(piece.name.encode())}")
        latest = time.monotonic() - self._started
        # Times are rounded to milliseconds.
        if not piece.times or piece.times[0] < earliest - 0.01 or piece.times[-1] > latest + 0.01:
            raise ProtocolError("sent a series of times at which it did not run")
        self._latest[key] = piece.times[-1]
        if len(self._latest) > protocol.MOST_SERIES:
            raise ProtocolError(f"sent more than {protocol.MOST_SERIES} series")
        return Watched(case, piece)

    def _done(self, document: dict[str, Any]) -> CaseDone:
        case = self.under_way
        if case is None or document.get("case") != case.name:
            raise ProtocolError("ended a case that is not under way")
        try:
            state = State(str(document.get("state")))
        except ValueError:
            raise ProtocolError("ended a case in no known state") from None
        done = Round(
            round=self._round,
            state=state,
            reason=protocol.reason(document.get("reason")),
            seconds=protocol.seconds(document, "seconds"),
            timed_seconds=protocol.seconds(document, "timed_seconds"),
            setup_seconds=protocol.seconds(document, "setup_seconds"),
            process=self.process,
        )
        for name in ("stdout", "stderr"):
            self._drain(name)
        metrics = tuple(self._metrics) if state is State.OK else ()
        self._metrics = []
        self.under_way = None
        self.finished += 1
        return CaseDone(case, done, metrics, self._take_output())
