"""Claims of what a machine holds: memory left, context that fits, accelerators and chassis needed. Pure."""

from __future__ import annotations

import math

from attrs import evolve

from k3gate import units
from k3gate.analysis.claim_case import ABOVE, CONSISTENT, FALSE, UNTESTABLE, Case
from k3gate.analysis.layout import Tier
from k3gate.analysis.premises import trunk_bytes, weight_bytes
from k3gate.analysis.system import GB, GIB, KV_BYTES, Claim

MOST_CHASSIS = 64


def headroom(case: Case) -> None:
    """Bytes of DRAM beside the weights that lie there, as placed and in the precision of the plan."""
    claim, base = case.claim, case.base
    tier = base.layout.tier("dram")
    if tier is None or tier.capacity is None:
        case.say("the machine's memory is not stated", UNTESTABLE)
        return
    own, sizes = case.own.layout.tier("dram"), {"as released": base.sizes.bytes}
    if own is None or own.need is None:
        case.say("what the memory must hold is not known", UNTESTABLE)
        return
    weights = weight_bytes(case.own)
    if weights is not None and weights != base.sizes.bytes:
        sizes["in the precision of the plan"] = weights
    start = f"{tier.capacity_detail} = {units.gib(tier.capacity)}, less"
    # What lies there decides; all of the model, as it is released, is what sellers speak of.
    for what, size in sizes.items():
        case.say(_remains(f"{start} {size / GIB:,.1f} GiB of weights {what}", tier.capacity - size))
    left = tier.capacity - own.weights()
    line = _remains(f"{start} {own.weights() / GIB:,.1f} GiB of weights that lie there ({_held(own)})", left)
    case.say(f"{line}{_rest(claim, left)}", ABOVE if claim.low > max(left, 0) * 1.02 else CONSISTENT)


def _remains(what: str, left: int) -> str:
    return f"{what}: {left / GIB:,.1f} GiB ({left / GB:,.1f} GB) remain before the operating system"


def _held(tier: Tier) -> str:
    """ "59.0 GB of trunk, 14.5 GB of hot experts": the weights of a tier."""
    found = [
        f"{(item.bytes or 0) / GB:,.1f} GB of {item.what}"
        for item in tier.items
        if item.weights and item.bytes
    ]
    return ", ".join(found) or "none"


def _rest(claim: Claim, left: float) -> str:
    """Of a range that begins below what is left, that it ends above."""
    return (
        f"; {claim.high / GB:,.10g} GB are more"
        if claim.low != claim.high and claim.high > left * 1.02
        else ""
    )


def gpu_free(case: Case) -> None:
    """Bytes of GPU memory beside all weights that lie there."""
    claim, tier = case.claim, case.own.layout.tier("gpu")
    if tier is None or tier.capacity is None or tier.need is None:
        case.say("the machine has no GPU of a stated size", UNTESTABLE)
        return
    left = tier.capacity - tier.weights()
    case.say(
        f"{tier.capacity / GB:,.1f} GB ({tier.capacity_detail}) less {_held(tier)} leave {left / GB:,.1f} GB, before "
        f"cache, state and workspace{_rest(claim, left)}",
        ABOVE if claim.low > max(left, 0) * 1.02 else CONSISTENT,
    )
    if claim.low > left and case.own.layout.placement.trunk == "gpu":
        need = tier.capacity - claim.low - (tier.weights() - trunk_bytes(case.own, tier))
        case.say(
            f"so much is free only where the GPUs hold no more than {max(0.0, need) / GB:,.1f} GB of the trunk; the "
            "rest of it is then read from DRAM for every token"
        )


def context(case: Case) -> None:
    """Tokens of one sequence against the model's longest context and the room for its cache."""
    claim, base = case.claim, case.base
    most = base.sizes.max_context
    if most is not None and claim.high > most:
        case.say(f"{base.sizes.name} takes at most {most:,} tokens", ABOVE)
        return
    own = case.own.altered(demand=evolve(base.demand, context=int(claim.high), sequences=1, batch=1))
    cache = own.layout.placement.cache or "dram"
    others = [one for one in own.layout.tiers if one.left is not None and one.left < 0 and one.name != cache]
    if others:
        case.say("the model does not fit, so no context does: " + "; ".join(own.layout.shortages), ABOVE)
    tier = own.layout.tier(cache)
    kv = next((item for item in tier.items if item.what == "KV cache"), None) if tier else None
    if tier is None or kv is None or kv.bytes is None or tier.left is None:
        case.say("what the cache needs, or its tier holds, is not known", UNTESTABLE)
        return
    line = f"{int(claim.high):,} tokens of KV cache are {kv.bytes / GB:,.1f} GB in {tier.title}"
    if tier.left < 0:
        room = max(0, tier.left + kv.bytes)
        tokens = int(room / (kv.bytes / claim.high))
        case.say(
            f"{line}; beside the rest {room / GB:,.1f} GB are left for it: at most {tokens:,} tokens", ABOVE
        )
        case.say("; ".join(own.layout.shortages))
    else:
        case.say(f"{line}; it fits, and {tier.left / GB:,.1f} GB are left", CONSISTENT)


def accelerators(case: Case) -> None:
    """How many of the first kind of GPU hold weights and cache."""
    own = case.own
    gpus = own.system.gpus
    if not gpus:
        case.say("the system names no accelerators", UNTESTABLE)
        return
    gpu, sizes = gpus[0], own.sizes
    weights = weight_bytes(own)
    values = (sizes.kv_bytes_per_token or 0) * KV_BYTES[own.system.precision.kv]
    cache = values * own.demand.context * own.demand.sequences
    if weights is None:
        case.say("what the model weighs is not known", UNTESTABLE)
        return
    room = gpu.bytes - own.system.reserve.gpu_workspace
    need = math.ceil((weights + cache) / room)
    case.say(
        f"({weights / GB:,.1f} GB of weights + {cache / GB:,.1f} GB of cache) / {room / GB:,.1f} GB = {need} hold all "
        f"of it ({gpu.model}: {gpu.bytes / GB:,.1f} GB less {(gpu.bytes - room) / GB:,.1f} GB of workspace)",
        FALSE if case.claim.low > need else ABOVE if case.claim.high < need else CONSISTENT,
    )


def chassis(case: Case) -> None:
    """The fewest such chassis that hold all, against the number that is stated to be needed."""
    own = case.own
    for number in range(1, MOST_CHASSIS + 1):
        layout = own.altered(evolve(own.system, nodes=number)).layout
        if layout.fits is None:
            case.say(
                "whether such a chassis holds all is not known: " + "; ".join(layout.unknown), UNTESTABLE
            )
            return
        if layout.fits:
            break
        if number <= case.claim.high:
            case.say(f"{units.count(number, 'chassis', 'chassis')}: " + "; ".join(layout.shortages))
    else:
        case.say(f"not even {MOST_CHASSIS} such chassis hold all of it", ABOVE)
        return
    tiers = ", ".join(
        f"{tier.need / GB:,.1f} of {tier.capacity / GB:,.1f} GB of {tier.title}"
        for tier in layout.tiers
        if tier.need and tier.capacity
    )
    verdict = FALSE if case.claim.low > number else ABOVE if case.claim.high < number else CONSISTENT
    holds = "holds" if number == 1 else "hold"
    case.say(f"{units.count(number, 'chassis', 'chassis')} {holds} all: {tiers}", verdict)
