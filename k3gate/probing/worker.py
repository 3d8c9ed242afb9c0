"""The process that measures: `python -m k3gate.probing.worker`, started by `probing.execute` and nobody else.

It reads the request on stdin, runs the cases of one group for one round, and writes result lines to the pipe
whose number the request names (see `protocol`). It imports the probe and little else, since every round pays
for its start. It dies with its parent, is the first that the kernel ends when memory runs out, and leaves
Ctrl-C to the parent.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from k3gate.documents import plain
from k3gate.errors import NotPermittedError, NotPresentError, ProbeError
from k3gate.probing import protocol
from k3gate.probing.contract import Probe, SampleToken
from k3gate.probing.registry import create, one_line
from k3gate.records import (
    Case,
    Inventory,
    Labels,
    Metric,
    MetricDeclaration,
    Proof,
    Sample,
    Scalar,
    Series,
    State,
)
from k3gate.series import OF_MONITOR, check

T = TypeVar("T")

HEARTBEAT_SECONDS = 0.5
"""Heartbeats nearer to each other than this are not sent: a probe may call in every loop."""
SHORTEST_TIMED_SECONDS = 1e-3
"""A timed region under this is too short to be trusted (pyperf's rule)."""
_PR_SET_PDEATHSIG = 1


class Results:
    """The pipe to the parent. A parent that is gone ends the worker."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last = 0.0

    def send(self, document: dict[str, Any]) -> None:
        """One line; raises `ProbeError` where it is longer than a line may be or holds what JSON lacks."""
        try:
            line = json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ProbeError(f"a result cannot be sent: {one_line(error)}") from error
        if len(line) > protocol.LINE_BYTES:
            raise ProbeError(
                f"a result of {len(line)} bytes is longer than the {protocol.LINE_BYTES} allowed"
            )
        self._last = time.monotonic()
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def heartbeat(self, note: str = "") -> None:
        """A sign of life, unless a line went out just before and there is nothing to say."""
        if note or time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self.send({"type": "heartbeat", "note": note[:200]})


class Shared:
    """What the cases of the group share: built once, released in reverse order."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._releases: list[Callable[[], None]] = []

    def get(self, key: str, build: Callable[[], T], release: Callable[[T], None] | None) -> tuple[T, float]:
        """The object and the seconds that building it took now."""
        if key in self._objects:
            existing: T = self._objects[key]
            return existing, 0.0
        begun = time.monotonic()
        built = build()
        self._objects[key] = built
        if release is not None:
            self._releases.append(lambda: release(built))
        return built, time.monotonic() - begun

    def release(self) -> None:
        """Give all back; an error here is printed and costs no result."""
        while self._releases:
            try:
                self._releases.pop()()
            except Exception:
                traceback.print_exc()
        self._objects.clear()


class WorkerContext:
    """The `Context` of one round of one case."""

    def __init__(
        self,
        probe: Probe,
        case: Case,
        round_: int,
        started: float,
        results: Results,
        shared: Shared,
        doc: Any,
        files: Mapping[str, int],
    ) -> None:
        self.round = round_
        self.files = files
        self.seconds = max(0.0, case.seconds - case.setup_seconds)
        self.timed_seconds = 0.0
        self.setup_seconds = 0.0
        self._declared = set(probe.metrics)
        self._started = started
        self._results = results
        self._shared = shared
        self._document = doc
        self._inventory: Inventory | None = None

    @property
    def inventory(self) -> Inventory:
        """The machine as the parent read it; decoded when first asked for."""
        if self._inventory is None:
            from k3gate.documents import structure

            self._inventory = structure(self._document, Inventory)
        return self._inventory

    def share(self, key: str, build: Callable[[], T], release: Callable[[T], None] | None = None) -> T:
        """See `Context.share`."""
        shared, seconds = self._shared.get(key, build, release)
        self.setup_seconds += seconds
        self._results.heartbeat()
        return shared

    def sample(self, value: float, timed_seconds: float) -> SampleToken:
        """See `Context.sample`; the stamp is when the timed region began. Raises `ProbeError` on NaN."""
        value, timed_seconds = float(value), float(timed_seconds)
        if not math.isfinite(value) or not math.isfinite(timed_seconds) or timed_seconds < 0:
            raise ProbeError(f"a sample of {value!r} timed over {timed_seconds!r} s is no measurement")
        now = time.monotonic()
        self.timed_seconds += timed_seconds
        self._results.heartbeat()
        return SampleToken(value, now - self._started - timed_seconds, timed_seconds or None)

    def metric(
        self,
        declaration: MetricDeclaration,
        samples: Sequence[SampleToken],
        labels: dict[str, Scalar],
        proofs: Sequence[Proof] = (),
        state: State = State.OK,
        reason: str | None = None,
    ) -> Metric:
        """See `Context.metric`; one whose shortest timed region is under 1 ms is unstable and says so."""
        if declaration not in self._declared:
            raise ProbeError(f"the probe yields {declaration.name!r}, which its metrics do not declare")
        if not samples and state is State.OK:
            raise ProbeError(f"the probe yields {declaration.name!r} without a sample")
        timed = [token.timed_seconds for token in samples if token.timed_seconds is not None]
        if state is State.OK and not declaration.exact and timed and min(timed) < SHORTEST_TIMED_SECONDS:
            state = State.UNSTABLE
            reason = f"the shortest timed region lasted {min(timed) * 1e3:.3g} ms, under 1 ms"
        return Metric(
            name=declaration.name,
            unit=declaration.unit,
            better=declaration.better,
            labels=dict(labels),
            samples=tuple(Sample(one.value, self.round, os.getpid(), one.start_s) for one in samples),
            median=None,
            interval=None,
            state=state,
            reason=reason,
            proofs=tuple(proofs),
        )

    def heartbeat(self, note: str = "") -> None:
        """See `Context.heartbeat`."""
        self._results.heartbeat(note)

    def watched(
        self, name: str, unit: str, labels: Labels, times: Sequence[float], values: Sequence[float | None]
    ) -> None:
        """See `Context.watched`; raises `ProbeError` for what is no series."""
        piece = Series(
            name, unit, dict(labels), tuple(round(at - self._started, 3) for at in times), tuple(values)
        )
        try:
            check(piece)
        except ValueError as error:
            raise ProbeError(str(error)) from error
        if name in OF_MONITOR:
            raise ProbeError(f"series {name!r} is the monitor's own: give it another name")
        if times:
            self._results.send({"type": "series", "series": plain(piece)})

    def setup(self, seconds: float) -> None:
        """See `Context.setup`."""
        self.setup_seconds += max(0.0, float(seconds))


def run_case(probe: Probe, case: Case, context: WorkerContext, results: Results) -> None:
    """Run one round of a case and send what it yields. Whatever it raises becomes its state and reason."""
    results.send({"type": "started", "case": case.name})
    begun = time.monotonic()
    state, reason = State.OK, None
    try:
        for metric in probe.run(case, context):
            if not isinstance(metric, Metric):
                raise ProbeError(f"the probe yields a {type(metric).__name__} where a Metric belongs")
            results.send({"type": "metric", "metric": plain(metric)})
    except NotPermittedError as error:
        state, reason = State.NOT_PERMITTED, str(error)
    except NotPresentError as error:
        state, reason = State.NOT_PRESENT, str(error)
    except ProbeError as error:
        state, reason = State.FAILED, str(error)
    except BrokenPipeError:
        raise
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        state, reason = State.FAILED, one_line(error)
    # What native code and the probe printed must be in the pipes before the parent hears of the end.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    results.send(
        {
            "type": "done",
            "case": case.name,
            "state": state.value,
            "reason": protocol.reason(reason),
            "seconds": time.monotonic() - begun,
            "timed_seconds": context.timed_seconds,
            "setup_seconds": context.setup_seconds,
        }
    )


def protect(parent: int) -> list[str]:
    """Tie this process to its parent; returns notes on what the kernel refused.

    The check after the request for a death signal closes the gap in which the parent may have died already.
    """
    notes = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A core dump of a worker is as large as the memory that it measures.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            notes.append("this kernel refuses PR_SET_PDEATHSIG: the worker would outlive a killed parent")
    except (ImportError, OSError, AttributeError) as error:
        notes.append(f"no death signal could be asked for: {one_line(error)}")
    if os.getppid() != parent:
        os._exit(1)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError as error:
        notes.append(f"oom_score_adj could not be raised: {one_line(error)}")
    return notes


def main() -> int:
    """Read the request, run its cases, release what they shared. Exit code 0 unless the request is none."""
    raw = sys.stdin.buffer.read(protocol.REQUEST_BYTES + 1)
    try:
        request: dict[str, Any] = json.loads(raw[: protocol.REQUEST_BYTES])
        if request["version"] != protocol.VERSION:
            raise ValueError("another version")
        results, go = Results(int(request["results"])), int(request["go"])
    except (ValueError, KeyError, TypeError):
        print("k3gate.probing.worker is started by k3gate run; it reads a request on stdin", file=sys.stderr)
        return 2
    os.set_inheritable(int(request["results"]), False)
    os.set_inheritable(go, False)
    for file in request["files"].values():
        if file >= 0:
            os.set_inheritable(file, False)
    notes = protect(int(request["parent"]))
    try:
        probe = create(request["probe"])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 3
    shared = Shared()
    results.send({"type": "ready", "process": os.getpid(), "notes": notes})
    for document in request["cases"]:
        case = Case(**document)
        context = WorkerContext(
            probe,
            case,
            request["round"],
            request["started"],
            results,
            shared,
            request["inventory"],
            request["files"],
        )
        run_case(probe, case, context, results)
        # The parent stores the round first: its disk writes would disturb the next case, and what that one
        # prints would be taken for this one's.
        if not os.read(go, 1):
            return 1
    shared.release()
    results.send({"type": "end"})
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BrokenPipeError:
        # The parent is gone or has heard enough; there is nobody to tell.
        os._exit(1)
