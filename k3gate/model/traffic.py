"""Bytes that CPU memory moves for decoded tokens of Kimi K3. Pure arithmetic, every part named.

Model of one decode step, which gives every one of `batch` sequences one token:
  weights of the trunk once + the distinct routed experts once
  + per sequence 2 x 434,110,464 (state read and written) + 27,648 x context (KV cache read)
Left out, being under a thousandth: one embedding row, one KV entry written, convolution state, activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from attrs import frozen

from k3gate.errors import UsageError
from k3gate.model import k3, residency


@frozen
class Traffic:
    """Bytes of one decode step from and to CPU memory, in all and by part."""

    bytes: int
    parts: Mapping[str, int]
    distinct_experts: float


def distinct_experts(batch: int, experts: int = k3.EXPERTS, used: int = k3.EXPERTS_PER_TOKEN) -> Fraction:
    """Expected distinct routed experts of a layer for `batch` tokens, routed uniformly and independently.

    Of Kimi K3 896 (1 - (1 - 16/896)^batch), of another model with its own numbers. Measured routing is uneven and
    repeats itself, so it touches fewer.
    """
    if batch < 1:
        raise UsageError(f"batch {batch} cannot be: give 1 or more")
    missed = (1 - Fraction(used, experts)) ** batch
    return experts * (1 - missed)


def step(trunk: str, context: int, batch: int, *, alike: bool = False) -> Traffic:
    """One decode step with the trunk laid out as `trunk` ("bf16", "q8_0", "gpu").

    With "gpu" the trunk, the KV cache and the state are read from GPU memory and count nothing here.
    `alike`: all tokens of the batch choose the same experts, the least that a step can read.
    """
    residency.check(trunk, context, batch)
    distinct = distinct_experts(1 if alike else batch)
    parts = {"experts": round(distinct * k3.MOE_LAYERS * k3.EXPERT_BYTES)}
    if trunk != "gpu":
        parts["trunk"] = k3.TRUNK_READ_BYTES if trunk == "bf16" else k3.TRUNK_Q8_0_READ_BYTES
        parts["state"] = 2 * k3.STATE_BYTES * batch
        parts["kv_cache"] = k3.KV_BYTES_PER_TOKEN * context * batch
    return Traffic(sum(parts.values()), MappingProxyType(parts), float(distinct))


def weights_per_token(trunk: str) -> int:
    """Bytes of weights for one token at batch 1: 136,990,303,232 as released."""
    parts = step(trunk, 0, 1).parts
    return parts["experts"] + parts.get("trunk", 0)


def bytes_per_token(trunk: str, context: int, batch: int = 1, *, alike: bool = False) -> int:
    """Bytes of one decode step: one token of each of `batch` sequences of `context` tokens; see `step`.

    Bandwidth divided by that of `alike` sequences is the most tokens/s that each of them can get, if nothing
    else took time. Uniform routing is an estimate above what was seen, so it gives no ceiling.
    """
    return step(trunk, context, batch, alike=alike).bytes
