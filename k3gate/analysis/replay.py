"""What the decode replay of a run says, and what it predicts for the whole of Kimi K3. Pure.

The prediction takes each part of a miniature's step by its share of the whole model: parts that stream weights or
caches by bytes, synchronisation and mixes by layers. It is an interval: the rounds scatter by so much, and `ALLOWANCE`
stands for what a larger model does otherwise. Each run holds it against itself: a miniature twice as deep and a batch
are predicted from the base case in the same way, and must fall inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from k3gate.metrics import REPLAY_BANDWIDTH, REPLAY_BYTES, REPLAY_CROSSED, REPLAY_PART, REPLAY_RATE
from k3gate.model import k3, traffic
from k3gate.probing.outcomes import evidence
from k3gate.records import Interval, Metric, Outcome, RunRecord, State

ALLOWANCE = 1.15
"""By how much a predicted time may be wrong either way, beside the scatter of its rounds: ours."""
BATCH_ALLOWANCE = 1.3
"""The same where the batch is another than the replayed one: arithmetic begins to count beside bytes."""
WIDEST = 2.0
"""High by low of a prediction that is worth stating."""
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
_MOST_SCATTER = 1e3
"""Beyond it nothing is said anyhow, and a rate of a stranger's bundle would become 0."""
_USABLE = (State.OK, State.UNSTABLE)
_RATES, _SECONDS, _BYTES = (1e-6, 1e6), 1e6, 1e15
"""Rates, times and bytes of a step that some machine could have; a stranger's bundle may say anything."""
_COUNT = 10**9
_LAYERS, _BATCH = (4, 10_000), (1, 10_000)
_ADDS_UP = 1.5
"""By how much the medians of the parts may add up to another time than that of a step, either way."""
_KDA, _MLA = 887e6, 464e6
"""Bytes of attention weights of a layer in BF16, which say how projections share out (k3/layer.md of the facts)."""
_DENSE_BY_SHARED = k3.BYTES_BY_GROUP["dense_mlp"] / (k3.BYTES_BY_GROUP["shared_experts"] / k3.MOE_LAYERS)
_BLOCK = 12
BITS: Mapping[str, float] = MappingProxyType({"bf16": 16.0, "q8_0": 8.5, "mxfp4": 4.25})


@frozen
class Step:
    """One replayed case: a step of `layers` layers for `batch` sequences. Seconds and bytes are medians, by part."""

    outcome: Outcome
    rate: Metric
    bandwidth: Metric | None
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]
    crossed: float | None

    def label(self, name: str) -> object:
        """A label of the case."""
        return self.rate.labels.get(name)

    def number(self, name: str) -> int:
        """A label that is a whole number that some machine could have; -1 where it is none."""
        value = self.rate.labels.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and 0 <= value <= _COUNT else -1  # type: ignore[operator,return-value]

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
            and self.seconds.get("routed", 0.0) > 0
            and self.bytes.get("routed", 0.0) >= k3.EXPERT_BYTES
            and _LAYERS[0] <= self.number("layers") <= _LAYERS[1]
            and _BATCH[0] <= self.number("batch") <= _BATCH[1]
            and 0 <= self.number("context") <= k3.MAX_CONTEXT
            and 0 <= self.number("head_rows") <= k3.VOCABULARY
            and self.label("trunk") in (*BITS, "gpu")
        )

    @property
    def key(self) -> str:
        """Its row among the evidence."""
        return f"{self.outcome.probe}/{self.outcome.case}#{self.rate.name}"


@frozen
class Prediction:
    """Tokens/s of each sequence, as an interval; seconds and bytes of a step by part; on what it rests."""

    low: float
    middle: float
    high: float
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]
    base: Step
    assumptions: tuple[str, ...]

    @property
    def interval(self) -> Interval:
        """(low, high) in tokens/s."""
        return self.low, self.high

    @property
    def narrow(self) -> bool:
        """Whether it is worth stating."""
        return self.high <= WIDEST * self.low


@frozen
class SelfTest:
    """A case that was measured, and what the base case predicted for it, in tokens/s of each sequence."""

    case: Step
    predicted: Prediction

    @property
    def inside(self) -> bool:
        """Whether the measured rate fell into the interval."""
        return self.predicted.low <= self.case.tokens_per_s <= self.predicted.high


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


def whole_model(trunk: str, context: int, batch: int) -> Model:
    """All of Kimi K3."""
    return Model(
        k3.KDA_LAYERS, k3.MLA_LAYERS, k3.MOE_LAYERS, k3.DENSE_LAYERS, k3.VOCABULARY, batch, context, trunk
    )


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


def for_target(record: RunRecord, trunk: str, context: int, batch: int) -> Prediction | None:
    """The whole model from the replayed case that is most like it; None where no case says anything of it."""
    found = steps(record)
    fitting = [one for one in found if one.usable and one.label("factor") in ("base", "trunk", "batch")]
    if trunk != "gpu":  # routed experts alone say nothing of a trunk
        fitting = [one for one in fitting if one.label("trunk") != "gpu"]
    if not fitting:
        return None

    def likeness(step: Step) -> tuple[bool, float, bool]:
        apart = abs(math.log(max(1, step.number("batch")) / max(1, batch)))
        return step.label("trunk") == trunk, -apart, step.label("factor") == "base"

    return predict(max(fitting, key=likeness), whole_model(trunk, context, batch), found)


def predict(base: Step, target: Model, found: tuple[Step, ...] = ()) -> Prediction:
    """A step of `target` from one of a miniature; of `found` those with another context tell what a cache's row takes.

    The base must have a trunk where the target has one.
    """
    own = model_of(base)
    assumptions = [f"{target.layers} layers take what {own.layers} took, part by part"]
    ratios = _ratios(own, target)
    taken = base.parts
    seconds = {part: value * ratios[part] for part, value in taken.items()}
    size = {part: value * ratios[part] for part, value in base.bytes.items()}
    if target.dense > own.dense and target.trunk != "gpu":
        factor = target.dense * _DENSE_BY_SHARED / own.expert_layers * _format(own, target)
        seconds["dense"] = taken.get("shared", 0.0) * factor
        size["dense"] = base.bytes.get("shared", 0.0) * factor
        assumptions.append("the dense layer streams as the shared experts do")
    if target.trunk not in (own.trunk, "gpu"):
        told = f"a trunk in {target.trunk} streams as many bytes a second as the one in {own.trunk}"
        assumptions.append(told)
    unsure = 0.0
    if target.trunk != "gpu":
        core, unsure, told = _core(base, own, target, found)
        seconds["attention_core"] = core
        size["attention_core"] = (
            base.bytes.get("attention_core", 0.0) * _core_bytes(target) / _core_bytes(own)
        )
        assumptions += [told] if told else []
    allowance = ALLOWANCE
    if target.batch != own.batch:
        allowance = BATCH_ALLOWANCE
        assumptions.append(
            f"{target.batch} sequences touch {target.touched:.0f} experts of a layer in a step, and bytes still decide"
        )
    if target.trunk == "gpu":
        assumptions.append("what GPUs and the links to them take is not in it: it is a ceiling")
    scatter = scatter_of(base)
    whole = sum(seconds.values())
    return Prediction(
        1 / ((whole + unsure) * (1 + scatter) * allowance),
        1 / whole,
        (1 + scatter) * allowance / max(whole - unsure, whole / 10),
        MappingProxyType(seconds),
        MappingProxyType(size),
        base,
        tuple(assumptions),
    )


def _ratios(own: Model, target: Model) -> dict[str, float]:
    """What each part of a miniature's step is multiplied by."""
    experts = target.expert_layers / own.expert_layers
    scale = _format(own, target)
    ratios = dict.fromkeys(PARTS, target.layers / own.layers)
    ratios["latent"] = ratios["shared"] = experts * scale
    ratios["router"] = experts  # its weights stay as they are
    ratios["routed"] = experts * target.touched / own.touched
    ratios["attention_projections"] = (
        scale * (target.kda * _KDA + target.mla * _MLA) / (own.kda * _KDA + own.mla * _MLA)
    )
    ratios["head"] = scale * target.head_rows / own.head_rows if own.head_rows else 0.0
    ratios["mix"] = _mixed(target.layers) / _mixed(own.layers) * target.batch / own.batch
    ratios["dense"] = 0.0
    if target.trunk == "gpu" and own.trunk != "gpu":
        ratios |= dict.fromkeys(set(PARTS) - {"routed", "synchronisation"}, 0.0)
    return ratios


def _mixed(layers: int) -> int:
    """Vectors that the mixes before attention and before the experts go over (k3/layer.md of the facts, AttnRes).

    Each goes over the inputs of the blocks of 12 layers so far, and the running sum; at a block's start the sum has
    just become one of these.
    """
    return sum(2 * (layer // _BLOCK + 2) - (layer % _BLOCK == 0) for layer in range(layers))


def _core(base: Step, own: Model, target: Model, found: tuple[Step, ...]) -> tuple[float, float, str]:
    """(seconds of states, caches and attention itself, how far they may lie off, what was assumed).

    Two contexts of the run give the time that a row of the cache takes; else it is between none and all of it.
    """
    now = base.parts.get("attention_core", 0.0)
    layers, many = target.layers / own.layers, target.batch / own.batch
    if target.context == own.context:
        return now * layers * many, 0.0, ""
    for other in found:
        same = all(
            other.label(name) == base.label(name)
            for name in ("trunk", "batch", "layers", "placement", "pages")
        )
        rows = other.number("context") - own.context
        if other.usable and same and other.label("factor") == "context" and rows:
            row = max(0.0, (other.parts.get("attention_core", 0.0) - now) / rows)
            rest = max(0.0, now - row * own.context)
            seconds = many * (rest * layers + row * target.context * target.mla / own.mla)
            between = f"{own.context:,} and {other.number('context'):,}"
            return seconds, 0.0, f"a row of the cache takes what it took between {between}"
    still = now * layers * many
    # Without a single row in the cache nothing says what one takes, but its bytes beside those of the states.
    grown = (
        still * target.context / own.context if own.context else now * _core_bytes(target) / _core_bytes(own)
    )
    told = "no other context was replayed: attention takes between what it took and what it takes row by row"
    return (grown + still) / 2, abs(grown - still) / 2, told


def _format(own: Model, target: Model) -> float:
    """Bytes of the target's trunk by those of the replayed one."""
    if target.trunk == own.trunk or target.trunk not in BITS or own.trunk not in BITS:
        return 1.0
    return BITS[target.trunk] / BITS[own.trunk]


def _core_bytes(model: Model) -> float:
    """States read and written, caches, and the products per head of MLA layers."""
    state = 2 * k3.HEADS * k3.HEAD_DIM**2 * 4
    cache = (k3.KV_LORA_RANK + k3.ROPE_DIM) * 2 * model.context
    heads = k3.HEADS * 2 * k3.HEAD_DIM * k3.KV_LORA_RANK * BITS.get(model.trunk, 16.0) / 8
    return model.batch * (model.kda * state + model.mla * cache) + model.mla * heads


def scatter_of(step: Step) -> float:
    """How far the rate may lie off over the rounds, as a share of it; a quarter where there is no interval."""
    if step.interval is None:
        return 0.25
    low, high = step.interval
    return min(_MOST_SCATTER, max(high / step.tokens_per_s, step.tokens_per_s / low) - 1)


def self_tests(record: RunRecord) -> tuple[SelfTest, ...]:
    """Every deeper and every batched case against what the base case predicts for it."""
    found = steps(record)
    base = base_of(found)
    if base is None:
        return ()
    return tuple(
        SelfTest(one, predict(base, model_of(one), found))
        for one in found
        if one.usable and one.label("factor") in ("deep", "batch")
    )


@frozen
class Skew:
    """The rate under uneven routing by that under uniform routing, with its interval; the two cases."""

    ratio: float
    interval: Interval
    uneven: Step
    uniform: Step


def skew(record: RunRecord) -> Skew | None:
    """None where the run has not both cases."""
    found = steps(record)
    base = base_of(found)
    uniform = next(
        (one for one in found if one.label("factor") == "routing" and one.label("routing") == "uniform"), None
    )
    if base is None or uniform is None or not uniform.usable:
        return None
    return Skew(*against(base, uniform), base, uniform)


def against(one: Step, other: Step) -> tuple[float, Interval]:
    """The rate of a step by that of another, with its interval: both must have been measured."""
    ratio = one.tokens_per_s / other.tokens_per_s
    factor = (1 + scatter_of(one)) * (1 + scatter_of(other))
    return ratio, (ratio / factor, ratio * factor)
