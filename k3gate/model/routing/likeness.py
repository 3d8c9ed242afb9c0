"""Whether a trace is of Kimi K3, of another model, or of neither: nearly K3's shape, where something went wrong. Pure.

A trace of another model is fitted to K3's shape; one that is nearly of K3's would be fitted too, and nobody would see
that it was recorded wrongly, with the dense layer in it, or with other experts a token than the model uses.
"""

from __future__ import annotations

from k3gate.errors import UsageError
from k3gate.model import k3
from k3gate.model.routing.trace import Trace

_COUNTED = 0.9
"""Of K3's experts: where nobody said how many there are, the largest id of a short trace is not much below."""


def check(trace: Trace) -> None:
    """`UsageError` in one line where a trace has nearly K3's shape; some of its layers alone may be there."""
    layers, experts, used = trace.shape
    of_k3 = experts == k3.EXPERTS or (trace.counted and _COUNTED * k3.EXPERTS <= experts <= k3.EXPERTS)
    if of_k3 and used == k3.EXPERTS_PER_TOKEN and layers <= k3.MOE_LAYERS:
        return
    if not of_k3 and (trace.counted or (layers, used) != (k3.MOE_LAYERS, k3.EXPERTS_PER_TOKEN)):
        return
    cure = "record it again, or fit it on purpose: k3gate routing FILE --shape k3 --save FITTED.jsonl"
    if layers == k3.LAYERS and used == k3.EXPERTS_PER_TOKEN:
        cure = f"layer 0 is dense and routes nothing, leave it out; or {cure}"
    raise UsageError(
        f"{trace.source} has {layers} layers with {used} of {experts} experts, and Kimi K3 {k3.MOE_LAYERS} with "
        f"{k3.EXPERTS_PER_TOKEN} of {k3.EXPERTS}: {cure}"
    )
