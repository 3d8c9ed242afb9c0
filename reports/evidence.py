"""Where a statement leads: every sample row, inventory field, gap and waiver of a page, with its anchor.

Anchors are made of counters only, never of names, so that no name from a machine reaches an id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from k3gate.records import (
    CheckResult,
    Evidence,
    GateResult,
    Inventory,
    Metric,
    Outcome,
    Provenance,
    RunRecord,
    State,
    Waiver,
)
from k3gate.reports import words
from k3gate.units import cpu_list


@frozen
class Link:
    """A reference on the page; without `href` the text stands alone."""

    text: str
    href: str | None


@frozen
class SampleRow:
    """A metric of the run with its number."""

    anchor: str
    number: str
    outcome: Outcome
    metric: Metric

    @property
    def link(self) -> Link:
        return Link(self.number, f"#{self.anchor}")


@frozen
class FieldRow:
    """A field of the inventory with its value and where it came from."""

    anchor: str
    name: str
    value: str
    provenance: Provenance | None


@frozen
class WaiverRow:
    """A waiver. `check` None: it lapsed, since no check of this judgement carries it."""

    anchor: str
    number: str
    waiver: Waiver
    check: CheckResult | None


@frozen
class EvidenceRow:
    """A fact gathered elsewhere about a subject."""

    anchor: str
    number: str
    evidence: Evidence


@frozen
class CheckRow:
    """A check with its number, "4.1"."""

    number: str
    step: int
    check: CheckResult


class Index:
    """All anchors of a page but those of the gaps, which are added when these are known."""

    def __init__(self, record: RunRecord, gate: GateResult) -> None:
        self.record = record
        self.checks = tuple(
            CheckRow(f"{step.step}.{place}", step.step, check)
            for step in gate.steps
            for place, check in enumerate(step.checks, 1)
        )
        self.samples = tuple(self._samples(record.outcomes))
        self.fields = tuple(self._fields(record.inventory))
        self.waivers = tuple(self._waivers())
        self.evidence = tuple(
            EvidenceRow(f"e{n}", f"E{n}", item) for n, item in enumerate(record.evidence, 1)
        )
        self.gaps: dict[str, Link] = {}
        self._by_metric: dict[tuple[str, str, str | None], SampleRow] = {}
        for row in self.samples:
            key = (row.outcome.probe, row.outcome.case)
            self._by_metric.setdefault((*key, None), row)
            self._by_metric.setdefault((*key, row.metric.name), row)
        self._by_field = {row.name: row for row in self.fields}

    def sample(self, metric: Metric) -> SampleRow:
        """The row of a metric of this run."""
        return next(row for row in self.samples if row.metric is metric)

    def case_link(self, probe: str, case: str) -> Link | None:
        """Where a case of this run is shown: its first samples, or the gap it left."""
        row = self._by_metric.get((probe, case, None))
        return row.link if row else self.gaps.get(f"{probe}/{case}")

    def resolve(self, name: str) -> Link:
        """The link for an evidence id: "PROBE/CASE#METRIC", "PROBE/CASE" or "inventory:FIELD"."""
        if name.startswith("inventory:"):
            field = name.removeprefix("inventory:")
            row = self._by_field.get(field)
            return Link(field, f"#{row.anchor}") if row else Link(field, None)
        place, _, metric = name.partition("#")
        probe, _, case = place.partition("/")
        sample = self._by_metric.get((probe, case, metric or None))
        if sample is not None:
            return sample.link
        return self.gaps.get(place) or Link(name, None)

    def links(self, row: CheckRow) -> list[Link]:
        """All that a check leads to: waiver, evidence of this run, evidence gathered elsewhere, gap."""
        check = row.check
        found = [
            Link(w.number, f"#{w.anchor}") for w in self.waivers if w.check is not None and w.check is check
        ]
        found += self._shortened(dict.fromkeys(self.resolve(name) for name in check.evidence))
        found += [Link(e.number, f"#{e.anchor}") for e in self.evidence if e.evidence.check == check.id]
        if check.id in self.gaps:
            found.append(self.gaps[check.id])
        return list(dict.fromkeys(found))

    def _shortened(self, links: Iterable[Link]) -> Iterable[Link]:
        """Runs of four and more samples in a row as their first and last: "S-0001 to", "S-0022"."""
        order = {row.link: place for place, row in enumerate(self.samples)}
        runs: list[list[Link]] = []
        for link in links:
            last = order.get(runs[-1][-1]) if runs else None
            if last is not None and order.get(link) == last + 1:
                runs[-1].append(link)
            else:
                runs.append([link])
        for run in runs:
            yield from run if len(run) < 4 else (Link(f"{run[0].text} to", run[0].href), run[-1])

    @staticmethod
    def _samples(outcomes: Iterable[Outcome]) -> Iterable[SampleRow]:
        number = 0
        for outcome in outcomes:
            for metric in outcome.metrics:
                number += 1
                yield SampleRow(f"s-{number:04d}", f"S-{number:04d}", outcome, metric)

    def _fields(self, inventory: Inventory) -> Iterable[FieldRow]:
        named = [
            name.removeprefix("inventory:")
            for row in self.checks
            for name in row.check.evidence
            if name.startswith("inventory:")
        ]
        named += ["memory.theoretical_bytes_per_s"]
        for place, name in enumerate(sorted({*inventory.provenance, *named}), 1):
            provenance = inventory.provenance.get(name)
            yield FieldRow(f"i{place}", name, field_value(inventory, name, provenance), provenance)

    def _waivers(self) -> Iterable[WaiverRow]:
        active = [(row.check.waiver, row.check) for row in self.checks if row.check.waiver is not None]
        lapsed = [w for w in self.record.waivers if not any(_same_waiver(w, waiver) for waiver, _ in active)]
        for number, (waiver, check) in enumerate([*active, *((w, None) for w in lapsed)], 1):
            yield WaiverRow(f"w{number}", f"W{number}", waiver, check)


def _same_waiver(one: Waiver, other: Waiver) -> bool:
    return one == other or (one.id is not None and one.id == other.id)


def field_value(inventory: Inventory, name: str, provenance: Provenance | None) -> str:
    """The value of a dotted field in words; an unknown one is its state."""
    item: Any = inventory
    for part in name.split("."):
        item = item.get(part) if isinstance(item, Mapping) else getattr(item, part, None)
        if item is None:
            break
    if item is None:
        state = provenance.state if provenance else State.NOT_PRESENT
        return words.STATES[state] if state is not State.OK else "none"
    return _spelled(item, name)


def _spelled(item: Any, name: str) -> str:
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, int | float):
        if name.endswith("_bytes_per_s"):
            return words.value(float(item), "B/s", 5)
        return words.size(item) if name.endswith("_bytes") else f"{item:,}"
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        return "; ".join(f"{key}: {value}" for key, value in item.items()) or "none"
    if isinstance(item, tuple | list):
        if item and all(isinstance(entry, int) and not isinstance(entry, bool) for entry in item):
            return cpu_list(list(item))
        if all(isinstance(entry, str | int | float) for entry in item):
            return ", ".join(str(entry) for entry in item) or "none"
        return words.count(len(item), "entry", "entries")
    return "known"
