"""What the monitor of a run gives: series and phases in the store, and the outcomes `machine/...` of the run.

A sitting (from start or resumption to its end) is one round of these outcomes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

from attrs import evolve

from k3gate import metrics
from k3gate import series as names
from k3gate.host import redfish
from k3gate.host.redfish import Access
from k3gate.probing import bystanders, monitor, outcomes, sources
from k3gate.probing.monitor import Account, Monitor
from k3gate.records import (
    Case,
    Inventory,
    Labels,
    Metric,
    MetricDeclaration,
    Outcome,
    Phase,
    Round,
    Sample,
    Series,
    State,
)

SAVED_S = 20.0
"""How often series go to the store, between two workers."""
LONG_S = 60.0
"""How often they do while a case goes on that takes longer than this: a kill must not cost hours of them."""
_TITLES = {
    "heat": "Temperatures while it was measured",
    "power": "Power while it was measured",
    "throttling": "Throttling while it was measured",
    "errors": "Errors that the machine counted while it was measured",
    "others": "Processes and drives of others while it was measured",
    "monitor": "What the monitor itself cost",
}
_MOST_NAMES = 5
_LEAST_SHARE = 0.002
Keep = Callable[[Sequence[Series], Sequence[Phase]], None]


class Watch:
    """The monitor of one sitting; use as a context around the workers.

    `keep` stores series and phases; `base`: the monotonic time that stamps count from.
    """

    def __init__(self, inventory: Inventory, base: float, keep: Keep, bmc: Access | None = None) -> None:
        self._inventory = inventory
        self._base = base
        self._keep = keep
        self._parts: list[Series] = []
        self._told: list[Series] = []
        self._phases: list[Phase] = []
        storage = inventory.storage
        self._drives = None if storage is None else tuple(drive.name for drive in storage.drives)
        self._stack = ExitStack()
        service = self._stack.enter_context(redfish.Service(bmc)) if bmc is not None else None
        self._monitor = Monitor(sources.build(inventory, bmc=service), base)
        self._before = bystanders.look(self._drives)
        self._begun = self._saved = time.monotonic()

    def __enter__(self) -> Watch:
        self._stack.enter_context(self._monitor)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, case: Case, round_: int) -> None:
        """A round of a case begins."""
        self._monitor.begin(case, round_)

    def end(self) -> None:
        """It is over."""
        self._monitor.end()

    def add(self, piece: Series) -> None:
        """A piece of a series that a worker told; the outcomes of the run are not of these."""
        self._told.append(piece)

    def within_case(self) -> None:
        """Store what came, in a case that goes on and on: writing disturbs it, but seldom."""
        if time.monotonic() - self._saved >= LONG_S:
            self.save()

    def between_workers(self) -> None:
        """Store what came, now and then."""
        if time.monotonic() - self._saved >= SAVED_S:
            self.save()

    def save(self) -> None:
        """Store what came since the last time."""
        series, phases = self._monitor.drain()
        self._parts += series
        self._phases += phases
        self._saved = time.monotonic()
        told, self._told = self._told, []
        if series or told or phases:
            self._keep((*series, *told), phases)

    def outcomes(self, earlier: Iterable[Outcome]) -> Iterator[Outcome]:
        """The outcomes of the run with this sitting in them; after its end."""
        known = {one.case: one for one in earlier if one.probe == "machine"}
        seconds = time.monotonic() - self._begun
        others = bystanders.between(self._before, bystanders.look(self._drives), os.getpid())
        found = told(
            monitor.joined(self._parts),
            self._phases,
            self._inventory,
            self._monitor.accounts(),
            others,
            seconds,
        )
        at = time.monotonic() - self._base
        for name, (state, reason, figures) in found.items():
            yield _outcome(known.get(name), name, state, reason, figures, at)


Figures = list[tuple[MetricDeclaration, Labels, float]]
Told = dict[str, tuple[State, str | None, Figures]]


def told(
    series: Sequence[Series],
    phases: Sequence[Phase],
    inventory: Inventory,
    accounts: Sequence[Account],
    others: bystanders.Others,
    seconds: float,
) -> Told:
    """By outcome: its state, why it has no figures, and its figures. Pure."""
    return {
        "heat": _or_why(list(_heat(series)), inventory, "sensors.readings"),
        "power": _or_why(list(_power(series, phases)), inventory, "sensors.power_zones"),
        "throttling": _or_why(list(_events(series, "throttle")), inventory, "sensors.counters"),
        "errors": _or_why(
            [*_events(series, "corrected"), *_events(series, "uncorrected")], inventory, "edac.corrected"
        ),
        "others": (State.OK, None, list(_others(others, inventory, seconds))),
        "monitor": (State.OK, None, list(_cost(accounts))),
    }


def notices(found: Iterable[Outcome]) -> Iterator[str]:
    """What of it a person must be told at once: new errors, and throttling."""
    words = {
        metrics.ERRORS_CORRECTED.name: "corrected error",
        metrics.ERRORS_UNCORRECTED.name: "uncorrected error",
        metrics.THROTTLE_EVENTS.name: "throttling event",
    }
    for outcome in found:
        for metric in outcome.metrics if outcome.probe == "machine" else ():
            if metric.name in words and metric.labels.get("counter") and metric.samples:
                count = metric.samples[-1].value
                plural = "" if count == 1 else "s"
                if count > 0:
                    yield f"{metric.labels.get('domain')}: {count:,.0f} new {words[metric.name]}{plural} during the run"


def _or_why(figures: Figures, inventory: Inventory, field: str) -> tuple[State, str | None, Figures]:
    if figures:
        return State.OK, None, figures
    note = inventory.provenance.get(field)
    if note is None or note.state is State.OK:
        return State.NOT_PRESENT, "nothing here tells of it", []
    return note.state, note.reason, []


def _heat(series: Sequence[Series]) -> Iterator[tuple[MetricDeclaration, Labels, float]]:
    for one in series:
        values = [value for value in one.values if value is not None]
        if one.name != names.TEMPERATURE or not values:
            continue
        labels = {key: one.labels.get(key) for key in ("sensor", "role", "of")}
        limit = one.labels.get("limit")
        yield metrics.TEMPERATURE_HIGHEST, labels, max(values)
        if isinstance(limit, int | float):
            yield metrics.TEMPERATURE_ROOM, labels, limit - max(values)


def _power(
    series: Sequence[Series], phases: Sequence[Phase]
) -> Iterator[tuple[MetricDeclaration, Labels, float]]:
    for one in series:
        if one.name != names.POWER:
            continue
        labels = {key: one.labels.get(key) for key in ("sensor", "role", "of", "domain")}
        mean = names.mean_within(one, [(phase.start_s, phase.end_s) for phase in phases])
        highest = max((value for value in one.values if value is not None), default=None)
        if mean is not None and highest is not None:
            yield metrics.POWER_MEAN, labels, mean
            yield metrics.POWER_HIGHEST, labels, highest


# What a counter is of, by the first word of its name.
_SOURCES = {
    "edac": "memory",
    "aer": "links",
    "interrupt": "machine checks",
    "smart": "drives",
    "throttle": "processors",
}


def _events(series: Sequence[Series], kind: str) -> Iterator[tuple[MetricDeclaration, Labels, float]]:
    """The new events of each source in all, and of each counter that rose."""
    declaration = {
        "corrected": metrics.ERRORS_CORRECTED,
        "uncorrected": metrics.ERRORS_UNCORRECTED,
        "throttle": metrics.THROTTLE_EVENTS,
    }[kind]
    totals: dict[str, float] = {}
    rose: list[tuple[Labels, float]] = []
    for one in series:
        if one.name != names.EVENTS or one.labels.get("kind") != kind:
            continue
        new = names.risen(one)
        counter = str(one.labels.get("counter"))
        first = counter.partition(" ")[0]
        if first == "interrupt" and kind == "throttle":
            first = "throttle"
        of = _SOURCES.get(first, "other")
        # A controller's count holds those of its modules.
        if new is not None and not (of == "memory" and "/" in counter):
            totals[of] = totals.get(of, 0.0) + new
        if new:
            rose.append(({"counter": counter, "domain": one.labels.get("domain"), "source": of}, new))
    for of, new in totals.items():
        yield declaration, {"source": of}, new
    for labels, new in rose:
        yield declaration, labels, new


def _others(
    others: bystanders.Others, inventory: Inventory, seconds: float
) -> Iterator[tuple[MetricDeclaration, Labels, float]]:
    whole = seconds * max(1, len(inventory.cpu.online or ()))
    for name, used in others.names[:_MOST_NAMES]:
        if used / whole >= _LEAST_SHARE:
            yield metrics.PROCESS_SHARE, {"process": name}, min(1.0, used / whole)
    for when, load in zip(("before", "after"), others.loads, strict=True):
        if load is not None:
            yield metrics.LOAD, {"when": when}, load
    if others.disk_bytes is not None and seconds > 0:
        yield metrics.DISK_OTHER, {"scope": "machine"}, others.disk_bytes / seconds


def _cost(accounts: Sequence[Account]) -> Iterator[tuple[MetricDeclaration, Labels, float]]:
    seconds = max((one.seconds for one in accounts), default=0.0)
    if seconds > 0:
        yield metrics.MONITOR_CPU, {"scope": "machine"}, sum(one.cpu_s for one in accounts) / seconds
    for one in accounts:
        yield metrics.MONITOR_LATENESS, {"source": one.name}, one.worst_late_s
        for declaration, value in (
            (metrics.MONITOR_MISSED, one.missed),
            (metrics.MONITOR_FAILED, one.failed),
        ):
            if value:
                yield declaration, {"source": one.name}, float(value)


def _outcome(
    earlier: Outcome | None, name: str, state: State, reason: str | None, figures: Figures, at: float
) -> Outcome:
    number = earlier.rounds[-1].round + 1 if earlier and earlier.rounds else 0
    process = os.getpid()
    case = Case("machine", name, _TITLES[name], "machine", {}, 0.0, 0, rounds=number + 1)
    round_ = Round(number, state, reason, 0.0, 0.0, 0.0, process)
    found = [
        Metric(
            declaration.name,
            declaration.unit,
            declaration.better,
            labels,
            (Sample(value, number, process, at),),
            None,
            None,
            State.OK,
        )
        for declaration, labels, value in figures
    ]
    merged = outcomes.merge(earlier, case, round_, found)
    # Not which sitting it was, but why, and what to do.
    return merged if state is State.OK or merged.metrics else evolve(merged, reason=reason)
