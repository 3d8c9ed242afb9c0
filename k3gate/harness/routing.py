"""A trace of routing read or drawn, fitted where another shape is asked for, and described."""

from __future__ import annotations

import re

from k3gate.errors import UsageError
from k3gate.model import k3
from k3gate.model.routing import ownership, reading, synthesis
from k3gate.model.routing.description import Description
from k3gate.model.routing.fitting import fit
from k3gate.model.routing.statistics import describe
from k3gate.model.routing.trace import Trace

K3 = (k3.MOE_LAYERS, k3.EXPERTS, k3.EXPERTS_PER_TOKEN)
"""(layers with routed experts, experts of a layer, used of them)."""
Shape = tuple[int, int, int]
_SHAPE = re.compile(r"(\d{1,6})x(\d{1,6})x(\d{1,6})", re.ASCII)
_MAX_STEPS = 1024
"""Over which imbalance is taken."""


def shape(text: str | None) -> Shape | None:
    """ "k3" or LAYERSxEXPERTSxUSED; `UsageError` for anything else."""
    if text is None:
        return None
    if text.lower() == "k3":
        return K3
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r:.80} is no shape: write k3, or LAYERSxEXPERTSxUSED such as 26x256x8")
    layers, experts, used = map(int, match.groups())
    return layers, experts, used


def of_file(
    path: str, wanted: Shape | None, experts: int | None, seed: int, nodes: int, batch: int
) -> Description:
    """What the trace in a file shows, in its own shape or fitted to `wanted`."""
    trace = reading.read(path, experts)
    if wanted is None:
        return Description(trace, describe(trace), _imbalance(trace, nodes, batch), batch)
    fitted = fit(trace, *wanted, seed=seed)
    uneven = _imbalance(fitted.trace, nodes, batch)
    return Description(fitted.trace, fitted.realised, uneven, batch, fitted=fitted)


def of_model(
    wanted: Shape | None,
    tokens: int,
    sequences: int,
    reuse: float | None,
    skew: float | None,
    seed: int,
    nodes: int,
    batch: int,
) -> Description:
    """What the model shows in the shape `wanted` (None: Kimi K3's); see `synthesis.synthesize`."""
    made = synthesis.synthesize(tokens, *(wanted or K3), reuse, skew, seed, sequences)
    uneven = _imbalance(made.trace, nodes, batch)
    return Description(made.trace, made.realised, uneven, batch, modelled=made)


def check_curve(made: Description, wanted: Shape | None) -> None:
    """Raise `UsageError` where a curve would be taken for one that was measured of Kimi K3, and is not."""
    if made.modelled is not None:
        raise UsageError(
            "plan takes a curve that was measured, and the model's is none: give a recorded trace with --curve"
        )
    if wanted is None and made.trace.shape[1:] != K3[1:]:
        layers, experts, used = made.trace.shape
        raise UsageError(
            f"{made.trace.source} has {used} of {experts} experts used, and Kimi K3 {K3[2]} of {K3[1]}: add --shape k3 "
            f"for a curve of it, or --shape {layers}x{experts}x{used} for a model of the trace's own shape"
        )


def _imbalance(trace: Trace, nodes: int, batch: int) -> ownership.Imbalance:
    steps = max(1, min(_MAX_STEPS, trace.tokens // batch))
    return ownership.imbalance(trace.steps(steps, batch), trace.expert_count, nodes)
