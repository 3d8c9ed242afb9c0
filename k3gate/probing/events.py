"""What an `Executor` tells while it runs a round of a group."""

from __future__ import annotations

from attrs import frozen

from k3gate.records import Case, Metric, Round, Series


@frozen
class Output:
    """What was printed during a case: the first 256 KiB of each stream, and how many bytes were dropped."""

    stdout: bytes = b""
    stderr: bytes = b""
    dropped: int = 0


@frozen
class WorkerStarted:
    """A worker is set up after `seconds`; `notes` say which protection the kernel refused."""

    process: int
    seconds: float
    notes: tuple[str, ...]


@frozen
class CaseStarted:
    """A case begins in a worker."""

    case: Case
    round: int
    process: int


@frozen
class Heartbeat:
    """Work goes on; `note` is the probe's, or empty."""

    case: Case | None
    note: str


@frozen
class Watched:
    """A piece of a series that the case under way tells."""

    case: Case
    series: Series


@frozen
class CaseDone:
    """A round of a case is over: its metrics when `round.state` is ok, none otherwise."""

    case: Case
    round: Round
    metrics: tuple[Metric, ...]
    output: Output


@frozen
class WorkerEnded:
    """A worker is gone and reaped. `reason` None: it ended with all done. `seconds`: its whole life."""

    process: int
    seconds: float
    reason: str | None
    output: Output


Event = WorkerStarted | CaseStarted | Heartbeat | Watched | CaseDone | WorkerEnded
