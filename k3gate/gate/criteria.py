"""Criteria: what each check asks, as data. Read strictly from TOML; the shipped file is data/criteria.toml.

The hash is `documents.digest` of the parsed content, so comments and spacing change nothing; the text is
kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from k3gate import metrics, tables
from k3gate.documents import canonical, digest
from k3gate.errors import UsageError
from k3gate.gate.steps import CHECKS
from k3gate.gate.targets import KEYS as TARGET_KEYS
from k3gate.records import Bound, Scalar
from k3gate.tables import Table

SHIPPED = Path(__file__).parent / "data" / "criteria.toml"

RULES = (
    *("bare_metal", "population", "speed", "placement", "residency", "kernel_reference"),
    *("replay", "skew", "sustained", "errors", "power", "pcie_links"),
    *("evidence", "served", "licence", "conversion", "steps"),
)
"""What is no bound, by name; `k3gate.gate.rules` and `modules` have the code of each."""
INSTEAD = ("replay", "load_time", "unnamed_storage")
"""What a check can say where its metric was not measured."""
SETTLED_BY = ("one_memory_node",)
"""Facts of the inventory that pass a check without a measurement."""
SUBJECTS = ("checkpoint", "converted", "runtime", "machine", "bom")
"""Kinds of subject that evidence can be about."""
CONVERTED_PARTS = ("routed_experts", "trunk")
"""What of a converted file has a bound of its own."""
CELL_LABELS = ("cpu_node", "memory_node")
"""Labels over which the worst can be taken; the inventory says which values must be there."""
PATH_LABEL = "path"
"""Another one: of a place that was named, the best way to read it counts."""
DEVICE_LABEL = "device"
"""Another one: of each GPU that the inventory promises, copies with the node that serves it best count."""
OF_TARGET = "target "
"""How a figure of the target is named."""
PROOFS = (
    *("placement", "page_size", "pinned", "checksum", "working_set"),
    *("kernel_reference", "timed_output"),
    *("uncached", "from_drives", "written", "incompressible", "gated"),
)

_KEYS = (
    *("id", "step", "claim", "metric", "where", "over", "relative_to", "min", "max", "rule", "subject"),
    *(
        "applies_if",
        "hardware",
        "instead",
        "proofs",
        "settled_by",
        "source",
        "date",
        "machines",
        "gathered_by",
        "remedy",
    ),
)
_LEAST = ("sustained", "min")
"""A rule that has one bound."""
_BOUND_KEYS = ("where", "over", "relative_to", "min", "max", "proofs", "settled_by", "instead")
_IDENTITY = ("id", "metric", "rule", "where", "relative_to", "applies_if")
"""Two entries that agree in these ask the same thing."""
_MAX_ENTRIES = 400


@frozen
class Relative:
    """What a value is divided by: the paper rate ("theory"), a figure of the target, or another metric.

    A metric of name `key` counts where its labels hold `where` and agree with the value's in `same`. `proofs`: what
    must be proven of it; None: what the criterion asks of the value.
    """

    kind: str
    key: str | None = None
    where: Mapping[str, Scalar] = field(factory=dict)
    same: tuple[str, ...] = ()
    proofs: tuple[str, ...] | None = None


@frozen
class Criterion:
    """One entry: a metric with bounds, or a rule. Several may share an id; the worst one decides."""

    id: str
    step: int
    claim: str
    source: str
    date: str
    gathered_by: str
    remedy: str | None = None
    metric: str | None = None
    where: Mapping[str, Scalar] = field(factory=dict)
    over: str | None = None
    relative_to: Relative | None = None
    bound: Bound = field(factory=Bound)
    rule: str | None = None
    subject: str | None = None
    applies_if: str | None = None
    hardware: bool = False
    proofs: tuple[str, ...] = ()
    settled_by: str | None = None
    instead: str | None = None
    machines: int | None = None

    @property
    def unit(self) -> str | None:
        """The unit of what is observed: the metric's, "1" for a share of something else, None for a rule."""
        if self.metric is None:
            return None
        declaration = metrics.find(self.metric)
        return "1" if self.relative_to is not None or declaration is None else declaration.unit

    def to_settle(self) -> str:
        """What would give the evidence: a sentence."""
        return f"Run `{self.gathered_by}`." if self.gathered_by.startswith("k3gate ") else self.gathered_by


@frozen
class Criteria:
    """A whole file: every check of the table has at least one entry."""

    name: str
    text: str
    hash: str
    checks: tuple[Criterion, ...]

    def of(self, check: str) -> tuple[Criterion, ...]:
        """The entries of a check, in the order of the file."""
        return tuple(entry for entry in self.checks if entry.id == check)


def load(path: str | None = None) -> Criteria:
    """The criteria in a file, the shipped ones where `path` is None. `UsageError` names entry and key."""
    where = SHIPPED if path is None else Path(path)
    text, data = tables.read(where, "criteria")
    name = where.name
    top = Table(f"criteria file {name}", data, ("name", "check"))
    title = top.text("name")
    entries = data.get("check")
    if not isinstance(entries, list) or not 0 < len(entries) <= _MAX_ENTRIES:
        raise top.refuse("check", f"must be a list of 1 to {_MAX_ENTRIES} entries, each under [[check]]")
    checks = tuple(_entry(name, number, entry) for number, entry in enumerate(entries, 1))
    missing = [check for check in CHECKS if check not in {entry.id for entry in checks}]
    if missing:
        raise UsageError(
            f"criteria file {name}: no entry for {', '.join(missing)}; add one, every check must be declared"
        )
    seen: dict[str, int] = {}
    for number, entry in enumerate(entries, 1):
        key = canonical({part: entry.get(part) for part in _IDENTITY})
        if key in seen:
            first = seen[key]
            raise UsageError(
                f"criteria file {name}: check {number} ({entry['id']}) repeats check {first}; remove one"
            )
        seen[key] = number
    return Criteria(title, text, digest(data), checks)


def _entry(file: str, number: int, data: Any) -> Criterion:
    named = data.get("id") if isinstance(data, dict) else None
    label = f" ({named})" if isinstance(named, str) and len(named) < 80 else ""
    table = Table(f"criteria file {file}, check {number}{label}", data, _KEYS)
    check = table.choice("id", tuple(CHECKS))
    step = table.integer("step", 1, 7)
    if step != CHECKS[check]:
        raise table.refuse("step", f"is {step}, but {check} belongs to step {CHECKS[check]}; correct it")
    metric, rule = table.optional_text("metric"), table.optional_text("rule")
    if (metric is None) == (rule is None):
        raise table.refuse("metric", "and rule: give exactly one of the two")
    date = table.text("date")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise table.refuse("date", f'must be written as "YYYY-MM-DD", not {date!r:.40}')
    applies_if = table.optional_text("applies_if")
    if applies_if is not None and applies_if not in TARGET_KEYS:
        raise table.refuse(
            "applies_if", f"{applies_if!r} is no figure of a target; {tables.near(applies_if, TARGET_KEYS)}"
        )
    common: dict[str, Any] = {
        "id": check,
        "step": step,
        "claim": table.text("claim"),
        "source": table.text("source"),
        "date": date,
        "gathered_by": table.text("gathered_by"),
        "remedy": table.optional_text("remedy"),
        "applies_if": applies_if,
        "hardware": table.flag("hardware"),
        "instead": table.choice("instead", INSTEAD) if "instead" in table.data else None,
        "machines": table.integer("machines", 0, 1_000_000, -1) if "machines" in table.data else None,
    }
    if rule is not None:
        return Criterion(**common, **_rule(table, rule))
    assert metric is not None
    return Criterion(**common, **_bound(table, metric))


def _rule(table: Table, rule: str) -> dict[str, Any]:
    table.choice("rule", RULES)
    bounded = rule == "conversion" and "where" in table.data
    for key in _BOUND_KEYS:
        if key in table.data and not (bounded and key in ("where", "max")) and (rule, key) != _LEAST:
            raise table.refuse(
                key, f"has no meaning beside rule {rule!r}; remove it or give a metric instead"
            )
    needs_subject = rule in ("evidence", "served", "licence", "conversion")
    if needs_subject != ("subject" in table.data):
        raise table.refuse(
            "subject",
            "says what evidence is about: give it with rule 'evidence', 'served', 'licence' or 'conversion' only",
        )
    found: dict[str, Any] = {"rule": rule}
    found["subject"] = table.choice("subject", SUBJECTS) if needs_subject else None
    if rule == _LEAST[0]:
        return {**found, "bound": Bound(_least_share(table), None)}
    return {**found, **_error_bound(table)} if bounded else found


def _least_share(table: Table) -> float:
    """What of the rate of the first minute must be left."""
    least = table.number("min")
    if least is None or not 0 < least <= 1:
        raise table.refuse(
            "min", "must be a number above 0 and up to 1: what of the first minute's rate is to last"
        )
    if "machines" not in table.data:
        raise table.refuse("machines", "is missing; say how many machines stand behind the bound, 0 if none")
    return least


def _error_bound(table: Table) -> dict[str, Any]:
    """The largest error that a part of a converted file may have."""
    inner = table.table("where", ("part",))
    part = inner.choice("part", CONVERTED_PARTS)
    limit = table.number("max")
    if limit is None or limit < 0:
        raise table.refuse("max", "must be a number from 0 on: the largest relative square error of a weight")
    if "machines" not in table.data:
        raise table.refuse("machines", "is missing; say how many machines stand behind the bound, 0 if none")
    return {"where": {"part": part}, "bound": Bound(None, limit)}


def _bound(table: Table, metric: str) -> dict[str, Any]:
    _known_metric(table, "metric", metric)
    if "subject" in table.data:
        raise table.refuse("subject", "belongs to rule 'evidence'; remove it")
    low, high = table.number("min"), table.number("max")
    if low is None and high is None:
        raise table.refuse("min", "and max are both missing; give at least one")
    if low is not None and high is not None and low > high:
        raise table.refuse("min", f"{low} is above max {high}; nothing could pass")
    if "machines" not in table.data:
        raise table.refuse("machines", "is missing; say how many machines stand behind the bound, 0 if none")
    over = table.optional_text("over")
    if over is not None:
        over = over.removeprefix("worst of ")
        known = (*CELL_LABELS, PATH_LABEL, DEVICE_LABEL)
        if f"worst of {over}" != table.data["over"] or over not in known:
            raise table.refuse("over", f'must read "worst of LABEL" with one of {", ".join(known)}')
    settled = table.choice("settled_by", SETTLED_BY) if "settled_by" in table.data else None
    return {
        "metric": metric,
        "where": _where(table),
        "over": over,
        "relative_to": _relative(table),
        "bound": Bound(low, high),
        "proofs": table.texts("proofs", PROOFS),
        "settled_by": settled,
    }


def _where(table: Table) -> Mapping[str, Scalar]:
    """Labels; one that reads "target KEY" names a figure of the target."""
    labels = table.labels("where")
    for key, value in labels.items():
        if isinstance(value, str) and value.startswith(OF_TARGET):
            figure = value.removeprefix(OF_TARGET).strip()
            if figure not in TARGET_KEYS:
                raise table.refuse(
                    "where",
                    f"{key} = {value!r:.60} names no figure of a target; {tables.near(figure, TARGET_KEYS)}",
                )
    return labels


def _relative(table: Table) -> Relative | None:
    value = table.data.get("relative_to")
    if value is None or value == "none":
        return None
    if isinstance(value, dict):
        inner = table.table("relative_to", ("metric", "where", "same", "proofs"))
        name = inner.text("metric")
        _known_metric(inner, "metric", name)
        proofs = inner.texts("proofs", PROOFS) if "proofs" in inner.data else None
        return Relative("metric", name, inner.labels("where"), inner.texts("same", CELL_LABELS), proofs)
    if value == "theory":
        return Relative("theory")
    if isinstance(value, str) and value.startswith(OF_TARGET):
        key = value.removeprefix(OF_TARGET).strip()
        if key not in TARGET_KEYS:
            raise table.refuse(
                "relative_to", f"{key!r} is no figure of a target; {tables.near(key, TARGET_KEYS)}"
            )
        return Relative("target", key)
    raise table.refuse(
        "relative_to",
        f'{value!r:.40} is unknown; use "theory", "target KEY" or {{ metric = "NAME", same = ["cpu_node"] }}',
    )


def _known_metric(table: Table, key: str, name: str) -> None:
    if metrics.find(name) is None:
        raise table.refuse(key, f"{name!r} is no declared metric; {tables.near(name, metrics.names())}")
