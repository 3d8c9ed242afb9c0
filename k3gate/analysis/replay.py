"""What the decode replay of a run says, and what it predicts for the whole of Kimi K3. Pure.

The prediction takes each part of a miniature's step by its share of the whole model: parts that stream weights or
caches by bytes, synchronisation and mixes by layers. It is an interval: the rounds scatter by so much, and `ALLOWANCE`
stands for what a larger model does otherwise. Each run holds it against itself: a miniature twice as deep, a batch and
other contexts are predicted from the base case in the same way, and must fall inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from k3gate.analysis import attention
from k3gate.analysis.replayed import (
    PARTS,
    Model,
    Step,
    against,
    base_of,
    by_format,
    model_of,
    scatter_of,
    steps,
)
from k3gate.model import k3
from k3gate.records import Interval, RunRecord, State

ALLOWANCE = 1.15
"""By how much a predicted time may be wrong either way, beside the scatter of its rounds: ours."""
BATCH_ALLOWANCE = 1.3
"""The same where the batch is another than the replayed one: arithmetic begins to count beside bytes."""
WIDEST = 2.0
"""High by low of a prediction that is worth stating."""
_KDA, _MLA = 887e6, 464e6
"""Bytes of attention weights of a layer in BF16, which say how projections share out (k3/layer.md of the facts)."""
_DENSE_BY_SHARED = k3.BYTES_BY_GROUP["dense_mlp"] / (k3.BYTES_BY_GROUP["shared_experts"] / k3.MOE_LAYERS)
_BLOCK = 12


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

    @property
    def counts(self) -> bool:
        """Whether it says something: what scatters falls inside or outside by luck, and into a wide interval anyhow."""
        return self.case.rate.state is State.OK and (self.predicted.narrow or not self.inside)

    @property
    def missed(self) -> bool:
        """Whether it counts, and the measured rate fell outside."""
        return self.counts and not self.inside


def whole_model(trunk: str, context: int, batch: int) -> Model:
    """All of Kimi K3."""
    return Model(
        k3.KDA_LAYERS, k3.MLA_LAYERS, k3.MOE_LAYERS, k3.DENSE_LAYERS, k3.VOCABULARY, batch, context, trunk
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
        factor = target.dense * _DENSE_BY_SHARED / own.expert_layers * by_format(own, target)
        seconds["dense"] = taken.get("shared", 0.0) * factor
        size["dense"] = base.bytes.get("shared", 0.0) * factor
        assumptions.append("the dense layer streams as the shared experts do")
    if target.trunk not in (own.trunk, "gpu"):
        told = f"a trunk in {target.trunk} streams as many bytes a second as the one in {own.trunk}"
        assumptions.append(told)
    less = more = 0.0
    if target.trunk != "gpu":
        core = attention.core(base, own, target, found)
        seconds[attention.PART] = core.seconds
        less = more = core.off
        size[attention.PART] = (
            base.bytes.get(attention.PART, 0.0) * attention.core_bytes(target) / attention.core_bytes(own)
        )
        assumptions += core.told
    elif own.trunk != "gpu":
        less = seconds["synchronisation"]
        assumptions.append(
            "of the waiting of threads between none and all of what they waited with a trunk remains"
        )
    allowance = ALLOWANCE
    if target.batch != own.batch:
        allowance = BATCH_ALLOWANCE
    if target.batch != 1:
        counted = "as uniform routing has it" if target.distinct is None else "as counted"
        assumptions.append(
            f"{target.batch} sequences touch {target.touched:.0f} experts of a layer in a step, {counted}, and bytes "
            "still decide"
        )
    if target.trunk == "gpu":
        assumptions.append("what GPUs and the links to them take is not in it: it is a ceiling")
    lost = not_kept(base)
    if lost is not None:
        assumptions.append(f"routing is that of the trace, though {lost}")
    scatter = scatter_of(base)
    whole = sum(seconds.values())
    return Prediction(
        1 / ((whole + more) * (1 + scatter) * allowance),
        1 / whole,
        (1 + scatter) * allowance / max(whole - less, whole / 10),
        MappingProxyType(seconds),
        MappingProxyType(size),
        base,
        tuple(assumptions),
    )


def not_kept(base: Step) -> str | None:
    """What of a trace the miniature has otherwise, as a clause; None where all was kept or no trace was replayed."""
    return base.text("not_kept")


def _ratios(own: Model, target: Model) -> dict[str, float]:
    """What each part of a miniature's step is multiplied by."""
    experts = target.expert_layers / own.expert_layers
    scale = by_format(own, target)
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


def self_tests(record: RunRecord) -> tuple[SelfTest, ...]:
    """Every deeper and every batched case, and every other context, against what the base case predicts for it.

    A context is predicted from the others, where there are two and rows of a cache took time between them.
    """
    found = steps(record)
    base = base_of(found)
    if base is None:
        return ()
    tests = []
    for one in found:
        if not one.usable or not _tests(one, base):
            continue
        others = tuple(other for other in found if other is not one)
        if one.label("factor") == "context" and not attention.measurable(base, others, one.number("context")):
            continue
        tests.append(SelfTest(one, predict(base, model_of(one), others)))
    return tuple(tests)


def _tests(one: Step, base: Step) -> bool:
    """Whether a case is what its factor says: otherwise like the base case, which predicts itself well."""
    match one.label("factor"):
        case "deep":
            return one.number("layers") >= 2 * base.number("layers") and one.alike(base, "layers", "experts")
        case "batch":
            return one.number("batch") > base.number("batch") and one.alike(base, "batch", "experts")
        case "context":
            return one.number("context") != base.number("context") and one.alike(base, "context", "experts")
    return False


@frozen
class Skew:
    """The rate under uneven routing by that under uniform routing, with its interval; the two cases."""

    ratio: float
    interval: Interval
    uneven: Step
    uniform: Step


def skew(record: RunRecord) -> Skew | None:
    """None where the run has not both cases, alike but for their routing."""
    found = steps(record)
    base = base_of(found)
    uniform = next(
        (one for one in found if one.label("factor") == "routing" and one.label("routing") == "uniform"), None
    )
    if base is None or uniform is None or not uniform.usable or not uniform.alike(base):
        return None
    return Skew(*against(base, uniform), base, uniform)
