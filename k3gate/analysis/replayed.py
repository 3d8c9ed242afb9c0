"""What a run replayed: its cases as steps of a miniature, by part, and which of them something follows from. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from attrs import field, frozen

from k3gate.documents import printable
from k3gate.metrics import REPLAY_BANDWIDTH, REPLAY_BYTES, REPLAY_CROSSED, REPLAY_PART, REPLAY_RATE
from k3gate.model import k3, traffic
from k3gate.probing.outcomes import evidence
from k3gate.records import Interval, Metric, Outcome, RunRecord, State

PARTS = (
    *(
        "attention_projections",
        "attention_core",
        "router",
        "latent",
        "routed",
        "shared",
        "dense",
        "head",
        "mix",
    ),
    "synchronisation",
)
STREAMING = frozenset(PARTS) - {"mix", "synchronisation"}
UNKNOWN_SCATTER = 0.25
_MOST_SCATTER = 1e3
"""Beyond it nothing is said anyhow, and a rate of a stranger's bundle would become 0."""
_USABLE = (State.OK, State.UNSTABLE)
_RATES, _SECONDS, _BYTES = (1e-6, 1e6), 1e6, 1e15
"""Rates, times and bytes of a step that some machine could have; a stranger's bundle may say anything."""
_COUNT = 10**9
_LAYERS, _BATCH = (4, 10_000), (1, 10_000)
_ADDS_UP = 1.5
"""By how much the medians of the parts may add up to another time than that of a step, either way."""
BITS: Mapping[str, float] = MappingProxyType({"bf16": 16.0, "q8_0": 8.5, "mxfp4": 4.25})
_NEEDED = tuple(part for part in PARTS if part in STREAMING and part != "dense")
_ROUNDED = 0.02
"""Of distinct experts by used ones: bytes are means over steps."""
_FACTORS = ("trunk", "placement", "batch", "context", "layers", "experts", "pages", "threads", "head_rows")
"""Labels that tell cases apart, beside routing and what follows from it."""
_TEXT = 200


@frozen
class Step:
    """One replayed case: a step of `layers` layers for `batch` sequences. Seconds and bytes are medians, by part;
    `scatter`: how far the seconds of a part may lie off over the rounds, as a share of them."""

    outcome: Outcome
    rate: Metric
    bandwidth: Metric | None
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]
    crossed: float | None
    scatter: Mapping[str, float] = field(factory=dict)

    def label(self, name: str) -> object:
        """A label of the case."""
        return self.rate.labels.get(name)

    def number(self, name: str) -> int:
        """A label that is a whole number that some machine could have; -1 where it is none."""
        value = self.rate.labels.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT:
            return value
        return -1

    def text(self, name: str) -> str | None:
        """A label that is a text, fit for one line; None where it is none."""
        value = self.rate.labels.get(name)
        if not isinstance(value, str) or not value:
            return None
        told = printable(value[:_TEXT]).replace("\n", " ").replace("\t", " ")
        return told if len(value) <= _TEXT else f"{told}..."

    def figure(self, name: str) -> str:
        """A label that is a number, in words; "unknown" where it is none that a machine could have."""
        value = self.rate.labels.get(name)
        known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _COUNT
        return f"{value:g}" if known else "unknown"

    def alike(self, other: Step, *but: str) -> bool:
        """Whether both replayed the same but for the factors `but`."""
        return all(self.label(name) == other.label(name) for name in _FACTORS if name not in but)

    def counted(self, name: str) -> str:
        """The same in words: "64", "an unknown number of"."""
        value = self.number(name)
        return f"{value:,}" if value >= 0 else "an unknown number of"

    @property
    def tokens_per_s(self) -> float:
        """Of each sequence, the median; 0 where there is none that a machine could have."""
        rate = self.rate.median
        return rate if rate is not None and _RATES[0] <= rate <= _RATES[1] else 0.0

    @property
    def interval(self) -> Interval | None:
        """(low, high) of the rate over the rounds; None where there is none that holds the rate."""
        if self.rate.interval is None:
            return None
        low, high = self.rate.interval
        return (low, high) if 0 < low <= self.tokens_per_s <= high <= _RATES[1] else None

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds of a step by part, which add up to the step; medians alone need not."""
        scale = 1 / (self.tokens_per_s * sum(self.seconds.values()))
        return {part: value * scale for part, value in self.seconds.items()}

    @property
    def measured(self) -> bool:
        """Whether its rate is evidence."""
        return self.rate.state in _USABLE and self.tokens_per_s > 0

    @property
    def usable(self) -> bool:
        """Whether something follows from it: its parts add up to a step, and it says what it replayed."""
        whole = sum(self.seconds.values())
        return (
            self.measured
            and 1 / _ADDS_UP <= whole * self.tokens_per_s <= _ADDS_UP
            and _LAYERS[0] <= self.number("layers") <= _LAYERS[1]
            and _BATCH[0] <= self.number("batch") <= _BATCH[1]
            and 0 <= self.number("context") <= k3.MAX_CONTEXT
            and 0 <= self.number("head_rows") <= k3.VOCABULARY
            and self.label("trunk") in (*BITS, "gpu")
            and all(
                self.seconds.get(part, 0.0) > 0 and self.bytes.get(part, 0.0) > 0 for part in self._streamed
            )
            and self._distinct
        )

    @property
    def _streamed(self) -> tuple[str, ...]:
        """Parts that it must have: without one of them the whole would seem faster than it is."""
        return ("routed",) if self.label("trunk") == "gpu" else _NEEDED

    @property
    def _distinct(self) -> bool:
        """Whether a layer's routed experts are as many as so many sequences can use."""
        each = self.bytes["routed"] / self.number("layers") / k3.EXPERT_BYTES / k3.EXPERTS_PER_TOKEN
        return 1 - _ROUNDED <= each <= self.number("batch") + _ROUNDED

    @property
    def key(self) -> str:
        """Its row among the evidence."""
        return f"{self.outcome.probe}/{self.outcome.case}#{self.rate.name}"


@frozen
class Model:
    """What a step is of: layers of each kind, rows of the head, batch, context, format of the trunk.

    `distinct`: routed experts of a layer that a step touches, None: as uniform routing has it.
    """

    kda: int
    mla: int
    expert_layers: int
    dense: int
    head_rows: int
    batch: int
    context: int
    trunk: str
    distinct: float | None = None

    @property
    def layers(self) -> int:
        """Of both kinds."""
        return self.kda + self.mla

    @property
    def touched(self) -> float:
        """Routed experts of a layer that a step touches."""
        return float(traffic.distinct_experts(self.batch)) if self.distinct is None else self.distinct


def steps(record: RunRecord) -> tuple[Step, ...]:
    """The replayed cases that have figures, in the order of the run."""
    found = []
    for outcome in record.outcomes:
        own = [metric for metric in evidence(outcome) if metric.name.startswith("replay.")]
        rate = next((one for one in own if one.name == REPLAY_RATE.name), None)
        if rate is None:
            continue
        found.append(
            Step(
                outcome,
                rate,
                next((one for one in own if one.name == REPLAY_BANDWIDTH.name), None),
                _by_part(own, REPLAY_PART.name, _SECONDS),
                _by_part(own, REPLAY_BYTES.name, _BYTES),
                next((one.median for one in own if one.name == REPLAY_CROSSED.name), None),
                {
                    str(one.labels.get("part")): relative(one.median, one.interval)
                    for one in own
                    if one.name == REPLAY_PART.name and one.labels.get("part") in PARTS
                },
            )
        )
    return tuple(found)


def _by_part(metrics: list[Metric], name: str, most: float) -> dict[str, float]:
    return {
        str(one.labels.get("part")): one.median
        for one in metrics
        if one.name == name
        and one.labels.get("part") in PARTS
        and one.median is not None
        and 0 <= one.median <= most
    }


def base_of(found: tuple[Step, ...]) -> Step | None:
    """The base case, where it is evidence."""
    return next((one for one in found if one.label("factor") == "base" and one.usable), None)


def model_of(step: Step) -> Model:
    """What a case replayed."""
    layers = step.number("layers")
    mla = layers // 4
    routed = step.bytes.get("routed", 0.0)
    return Model(
        kda=layers - mla,
        mla=mla,
        expert_layers=layers,
        dense=0,
        head_rows=step.number("head_rows"),
        batch=step.number("batch"),
        context=step.number("context"),
        trunk=str(step.label("trunk")),
        distinct=routed / layers / k3.EXPERT_BYTES if routed and layers else None,
    )


def by_format(own: Model, target: Model) -> float:
    """Bytes of the target's trunk by those of the replayed one."""
    if target.trunk == own.trunk or target.trunk not in BITS or own.trunk not in BITS:
        return 1.0
    return BITS[target.trunk] / BITS[own.trunk]


def scatter_of(step: Step) -> float:
    """How far the rate may lie off over the rounds, as a share of it; a quarter where there is no interval."""
    return relative(step.tokens_per_s, step.interval)


def relative(value: float | None, interval: Interval | None) -> float:
    """How far a figure may lie off, as a share of it; `UNKNOWN_SCATTER` where there is no interval that holds it."""
    if value is None or interval is None:
        return UNKNOWN_SCATTER
    low, high = interval
    if not 0 < low <= value <= high < math.inf:
        return UNKNOWN_SCATTER
    return min(_MOST_SCATTER, max(high / value, value / low) - 1)


def against(one: Step, other: Step) -> tuple[float, Interval]:
    """The rate of a step by that of another, with its interval: both must have been measured."""
    ratio = one.tokens_per_s / other.tokens_per_s
    factor = (1 + scatter_of(one)) * (1 + scatter_of(other))
    return ratio, (ratio / factor, ratio * factor)
