"""What a probe is. Third parties implement `Probe` and register it in the entry-point group `k3gate.probes`.

A probe plans in the parent process and measures in a worker. Both create it without arguments, so it keeps no
state between the two: all that `run` needs stands in the case's parameters (JSON) or in the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from attrs import frozen

from k3gate.records import (
    Case,
    Inventory,
    Labels,
    LeftOut,
    Metric,
    MetricDeclaration,
    Profile,
    Proof,
    Scalar,
    State,
)

T = TypeVar("T")

ENTRY_POINT_GROUP = "k3gate.probes"


@frozen
class Applies:
    """The probe can measure on this machine."""


@frozen
class Reason:
    """Why a probe cannot measure on this machine; becomes the state and reason of its one outcome."""

    state: State
    text: str


@frozen
class Planned:
    """The cases of a probe, and what it leaves out by itself because the machine lacks it, with the sum."""

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...] = ()


class Context(Protocol):
    """What a worker offers to the case that it runs."""

    round: int
    """Which round this is, from 0."""
    seconds: float
    """The time that the timed regions of this round may take in all."""
    files: Mapping[str, int]
    """Descriptors of files without a name that the run keeps open for its workers, by the folders that a case names in
    its parameter `scratch`; below 0 where none could be made there: the negative errno."""

    @property
    def inventory(self) -> Inventory:
        """The machine, as the parent read it."""

    def share(self, key: str, build: Callable[[], T], release: Callable[[T], None] | None = None) -> T:
        """The object `key` of this worker, built once and shared by the cases of the group; time in `build`
        is booked as set-up. `release` is called when the worker ends."""

    def sample(self, value: float, timed_seconds: float) -> SampleToken:
        """A sample of this round, taken now, whose timed region lasted `timed_seconds`; stamps it."""

    def metric(
        self,
        declaration: MetricDeclaration,
        samples: Sequence[SampleToken],
        labels: dict[str, Scalar],
        proofs: Sequence[Proof] = (),
        state: State = State.OK,
        reason: str | None = None,
    ) -> Metric:
        """A metric of this round; median and interval are derived by the parent over all rounds."""

    def heartbeat(self, note: str = "") -> None:
        """Tell the parent that work goes on; must be called at least every 10 seconds."""

    def watched(
        self, name: str, unit: str, labels: Labels, times: Sequence[float], values: Sequence[float | None]
    ) -> None:
        """A piece of a series, stored beside what the monitor tells. `times`: of `time.monotonic()`, rising over
        all pieces; a value holds until the next, and None ends it. Names of the monitor's own series are refused."""

    def setup(self, seconds: float) -> None:
        """Book time that was set-up (allocating, touching, warming up) and not timed."""


@frozen
class SampleToken:
    """A value taken in this round, its stamp, and the seconds of its timed region (None: none was timed)."""

    value: float
    start_s: float
    timed_seconds: float | None = None


@runtime_checkable
class Probe(Protocol):
    """A module that measures one thing."""

    name: str
    """Short, lower case; the first part of its case names and of its metrics."""
    title: str
    """What it measures, in one line."""
    metrics: Sequence[MetricDeclaration]
    """The metrics that it yields."""

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Whether this machine has what the probe needs. Reads only the inventory."""

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """The cases for this machine and budget, most important first. Pure."""

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """Measure one round of a case in a worker; yields its metrics. Raises `ProbeError` and its kind."""
