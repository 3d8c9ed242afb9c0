"""What a seller or an article states, held against the facts: premises first, then ceilings. Pure.

`false_assumption`: a premise contradicts the facts, or what is claimed is itself a fact about the model and another
one. `above_ceiling`: more than the machine can do or hold. `untestable`: something that decides is not stated.
`consistent`: nothing speaks against it, which is no proof of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from attrs import evolve

from k3gate import units
from k3gate.analysis import prediction
from k3gate.analysis.ceilings import paper_rate, tier_rate
from k3gate.analysis.claim_case import (
    ABOVE,
    CONSISTENT,
    FALSE,
    UNTESTABLE,
    Case,
    Judged,
    text,
    under_premises,
)
from k3gate.analysis.estimate import Estimate
from k3gate.analysis.premises import (
    CLOSE,
    check_premises,
    hold_bandwidth,
    hold_bytes,
    is_weights,
    trunk_bytes,
    weight_bytes,
)
from k3gate.analysis.system import CLAIM_KINDS, GB, GIB, KV_BYTES, Claim
from k3gate.model.sizes import ROUTED

MOST_CHASSIS = 64
_ORDER = (FALSE, ABOVE, UNTESTABLE, CONSISTENT)


def judge(claim: Claim, base: Estimate) -> Judged:
    """The verdict with all reasons; the worst decides, and a claim of which nothing could be said is untestable."""
    case = Case(claim, base, under_premises(claim, base))
    check_premises(case)
    _KINDS[claim.kind](case)
    found = {said.verdict for said in case.said if said.verdict is not None}
    verdict = next((word for word in _ORDER if word in found), UNTESTABLE)
    return Judged(claim, text(claim), verdict, tuple(said.reason for said in case.said))


# --- what is claimed -------------------------------------------------------------------------------------


def _decode(case: Case) -> None:
    claim, own = case.claim, case.own
    _own_arithmetic(case)
    foreign = _is_foreign(case)
    batch = own.demand.batch
    ceiling = None if own.decode.ceiling is None else own.decode.ceiling * batch
    _must_fit(case)
    if ceiling is None:
        why = "; ".join(own.decode.unknown) or "nothing to compute it from"
        case.say(f"the ceiling is not known: {why}", UNTESTABLE)
    else:
        together = f" x {batch} sequences" if batch > 1 else ""
        line = f"ceiling: {own.decode.arithmetic}{together}"
        if claim.high > ceiling:
            part = (
                ""
                if claim.low > ceiling or claim.low == claim.high
                else f"; {claim.low:g} alone is not above it"
            )
            case.say(f"{line}; {claim.high:g} tokens/s are above it{part}", ABOVE)
        else:
            case.say(f"{line}; {_share(case, ceiling)}", UNTESTABLE if foreign else CONSISTENT)
    expected = own.expected
    if expected.low is not None and expected.high is not None:
        low, high = (units.significant(value * batch, 2) for value in (expected.low, expected.high))
        case.say(f"expected of such machines: {low} to {high} tokens/s ({expected.basis})")
    if foreign:
        _foreign(case)


def _is_foreign(case: Case) -> bool:
    """Whether the claim was measured on another machine, by its own premises."""
    return "machine" in case.claim.premises


def _must_fit(case: Case) -> None:
    """A rate or a context of a machine that does not hold the model at all is more than it can do."""
    layout = case.own.layout
    if layout.fits is False:
        case.say("the model does not fit, so nothing of it holds: " + "; ".join(layout.shortages), ABOVE)


def _share(case: Case, ceiling: float) -> str:
    """What the claim takes of the ceiling; of one tier as a share of its rate, since people compare that."""
    claim, own = case.claim, case.own
    tiers = {part.tier for part in own.decode.parts if part.tier not in ("pcie", "network") and part.bytes}
    size = own.decode.memory_bytes()
    if len(tiers) == 1 and size:
        rate = own.decode.rate(next(iter(tiers)))
        if rate is not None and rate.bytes_per_s:
            kind = {"paper": "paper", "measured": "measured read"}.get(rate.basis, "measured read")
            moved = claim.high * size / own.demand.batch
            return (
                f"{claim.high:g} tokens/s x {size / GB:,.2f} GB = {moved / GB:,.1f} GB/s, "
                f"{moved / rate.bytes_per_s:.1%} of the {kind} rate, {rate.bytes_per_s / GB:,.1f} GB/s"
            )
    return f"{claim.high:g} tokens/s are {claim.high / ceiling:.0%} of it"


def _own_arithmetic(case: Case) -> None:
    """How the claim was reached, where its premises give it, and what the facts make of the same bandwidth."""
    rate, active = case.premise("bandwidth_gb_per_s"), case.premise("active_parameters_billion")
    bits, size = case.premise("bits_per_parameter"), case.premise("bytes_per_token_gb")
    if rate is None:
        return
    if active is not None and bits is not None:
        read = active * bits / 8
        told = f"{active:g} B x {bits:g} bits / 8 = {read:,.1f} GB"
    elif size is not None:
        read, told = size, f"{size:g} GB"
    else:
        return
    case.say(f"by its own premises: {rate:g} GB/s / ({told}) = {units.significant(rate / read)} tokens/s")
    weights = [p.bytes for p in case.own.decode.parts if is_weights(p) and p.tier == "dram"]
    known = [value for value in weights if value is not None]
    if weights and len(known) == len(weights) and size is None:
        total = sum(known) / GB
        case.say(
            f"by the facts: {rate:g} GB/s / {total:,.2f} GB of weights = {units.significant(rate / total, 2)} "
            "tokens/s at most"
        )


def _prototype(case: Case) -> None:
    """What is measured on another machine is no evidence of this one."""
    machine = case.claim.premises["machine"]
    case.say(
        f"prototype missing: it was measured on {machine}, not on this machine; no purchase rests on it",
        UNTESTABLE,
    )


def _foreign(case: Case) -> None:
    """A decode rate of another machine, scaled: an estimate with its limits."""
    _prototype(case)
    theirs = case.premise("machine_gb_per_s")
    own = tier_rate(case.base.system, "dram", case.base.read)
    if theirs is None or own.bytes_per_s is None:
        case.say("it cannot be scaled either: the read bandwidth of one of the machines is not known")
        return
    value, limit = own.bytes_per_s / GB, "measured"
    if own.basis == "paper":
        value, limit = (
            value * prediction.SUSTAINED,
            f"not measured, {prediction.SUSTAINED:g} of paper stands in",
        )
    low, high = (units.significant(rate * value / theirs, 2) for rate in (case.claim.low, case.claim.high))
    shown = low if low == high else f"{low} to {high}"
    case.say(
        f"scaled by read bandwidth, {value:,.0f} GB/s ({limit}) over {theirs:,.0f} GB/s: about {shown} tokens/s, an "
        "estimate that holds only for the same model file, runtime and placement, and leaves out sockets and compute"
    )


def _prefill(case: Case) -> None:
    claim, found = case.claim, case.own.prefill
    _must_fit(case)
    if _is_foreign(case):
        _prototype(case)
    for path in found.paths:
        told = "not known" if path.ceiling is None else f"at most {units.significant(path.ceiling)} tokens/s"
        case.say(f"{path.name}, {found.batch:,} tokens a pass: {told} ({path.arithmetic})")
    if found.ceiling is None:
        case.say("the ceiling is not known", UNTESTABLE)
    elif claim.high > found.ceiling:
        part = "" if claim.low > found.ceiling else f"; {claim.low:g} alone is not"
        case.say(f"{claim.high:g} tokens/s are above {units.significant(found.ceiling)}{part}", ABOVE)
        _pass_needed(case)
    else:
        case.say(f"{claim.high:g} tokens/s are below {units.significant(found.ceiling)}", CONSISTENT)


def _pass_needed(case: Case) -> None:
    """How many tokens a pass would have to hold for the GPUs to reach the lower end, PCIe alone counted."""
    own = case.own
    routed, pcie = own.sizes.bytes_of(ROUTED, own.system.precision.experts), paper_rate(own.system, "pcie")[0]
    if own.layout.placement.experts == "gpu" or not routed or not pcie:
        return
    case.say(
        f"all experts over PCIe take {routed / GB:,.0f} GB / {pcie / GB:,.1f} GB/s = {routed / pcie:,.0f} s, so that "
        f"{case.claim.low:g} tokens/s need a pass of {case.claim.low * routed / pcie:,.0f} tokens"
    )


def _bandwidth(case: Case) -> None:
    hold_bandwidth(case, case.claim.low, case.claim.high, ABOVE, "")
    if _is_foreign(case):
        _prototype(case)


def _bytes(case: Case) -> None:
    hold_bytes(case, case.claim.low, "")


def _fact(case: Case, fact: float | None, unit: str, told: str, close: float) -> None:
    claim = case.claim
    factor = CLAIM_KINDS[claim.kind].factor
    if fact is None:
        case.say(f"{told} is not known", UNTESTABLE)
        return
    shown = f"{fact / factor:,.1f} {unit}"
    inside = claim.low * (1 - close) <= fact <= claim.high * (1 + close)
    case.say(f"{told}: {shown}", CONSISTENT if inside else FALSE)


def _weights(case: Case) -> None:
    sizes, premises = case.base.sizes, case.claim.premises
    size = weight_bytes(case.own) if {"experts_bits", "trunk_bits"} & premises.keys() else sizes.bytes
    if size is None:
        _fact(case, None, "GB", "what all weights are at these bits", 0.02)
        return
    at = "" if size == sizes.bytes else " at the bits that the claim states"
    _fact(
        case, size, "GB", f"all weights of {sizes.source}{at}, {size:,} bytes = {size / GIB:,.1f} GiB", 0.02
    )


def _active(case: Case) -> None:
    _fact(case, case.base.sizes.active_parameters, "billion", "active parameters", CLOSE)


def _headroom(case: Case) -> None:
    claim, base = case.claim, case.base
    tier = base.layout.tier("dram")
    if tier is None or tier.capacity is None:
        case.say("the machine's memory is not stated", UNTESTABLE)
        return
    weights = weight_bytes(case.own)
    if weights is None:
        case.say("what the model weighs is not known", UNTESTABLE)
        return
    sizes = {"as released": base.sizes.bytes, "in the precision of the plan": weights}
    if weights == base.sizes.bytes:
        sizes.popitem()
    for what, size in sizes.items():
        left = tier.capacity - size * base.layout.copies
        line = (
            f"{tier.capacity_detail} = {units.gib(tier.capacity)}, less {size / GIB:,.1f} GiB of weights {what}: "
            f"{left / GIB:,.1f} GiB ({left / GB:,.1f} GB) remain before the operating system"
        )
        verdict = ABOVE if claim.high > max(left, 0) * 1.02 else CONSISTENT
        # What is planned decides; as released is what sellers speak of.
        case.say(line, verdict if size == weights else None)
    if tier.left is not None and base.layout.placement.trunk != "dram":
        case.say(
            f"as placed here, with the trunk elsewhere, {tier.left / GIB:,.1f} GiB remain after all that is assumed"
        )


def _gpu_free(case: Case) -> None:
    tier = case.own.layout.tier("gpu")
    if tier is None or tier.capacity is None or tier.need is None:
        case.say("the machine has no GPU of a stated size", UNTESTABLE)
        return
    trunk = trunk_bytes(case.own, tier)
    left = tier.capacity - trunk
    case.say(
        f"{tier.capacity / GB:,.1f} GB ({tier.capacity_detail}) less {trunk / GB:,.1f} GB of trunk leave "
        f"{left / GB:,.1f} GB, before cache, state and workspace",
        ABOVE if case.claim.high > max(left, 0) * 1.02 else CONSISTENT,
    )
    if case.claim.high > left:
        need = tier.capacity - case.claim.high
        case.say(
            f"so much is free only where the GPUs hold no more than {need / GB:,.1f} GB of the trunk; the rest of it "
            "is then read from DRAM for every token"
        )


def _context(case: Case) -> None:
    claim, base = case.claim, case.base
    most = base.sizes.max_context
    if most is not None and claim.high > most:
        case.say(f"{base.sizes.name} takes at most {most:,} tokens", ABOVE)
        return
    own = base.altered(demand=evolve(base.demand, context=int(claim.high), sequences=1, batch=1))
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


def _kv(case: Case) -> None:
    sizes, precision = case.own.sizes, case.own.system.precision
    kv = sizes.kv_bytes_per_token
    stated = case.premise("context") is not None
    most = case.own.demand.context if stated else sizes.max_context
    if kv is None or most is None:
        case.say("cache bytes or the longest context are not known", UNTESTABLE)
        return
    kv = round(kv * KV_BYTES[precision.kv])
    size = kv * most
    above, below = case.claim.high > size * 1.02, case.claim.high < size * (1 - CLOSE)
    shown = f"{size / GB:,.1f}" if size >= GB else f"{size / GB:.3g}"
    told = "as the claim states" if stated else "the longest context"
    case.say(
        f"{kv:,} B a token x {most:,} tokens, {told} = {shown} GB (compressed cache in "
        f"{precision.kv.upper()})",
        FALSE if above or below else CONSISTENT,
    )
    if above:
        case.say(
            "an engine that keeps keys and values of every head needs far more; that is the engine, not the model"
        )


def _accelerators(case: Case) -> None:
    own = case.own
    gpus = own.system.gpus
    if not gpus:
        case.say("the system names no accelerators", UNTESTABLE)
        return
    gpu, sizes = gpus[0], own.sizes
    weights = weight_bytes(own)
    cache = (sizes.kv_bytes_per_token or 0) * own.demand.context * own.demand.sequences
    if weights is None:
        case.say("what the model weighs is not known", UNTESTABLE)
        return
    room = gpu.bytes - own.system.reserve.gpu_workspace
    need = math.ceil((weights + cache) / room)
    case.say(
        f"({weights / GB:,.1f} GB of weights + {cache / GB:,.1f} GB of cache) / ({gpu.bytes / GB:,.0f} GB of "
        f"{gpu.model} less workspace) = {need} hold all of it",
        FALSE if case.claim.low > need else ABOVE if case.claim.high < need else CONSISTENT,
    )


def _chassis(case: Case) -> None:
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


def _cost(case: Case) -> None:
    price = case.base.system.prices.machine
    if price is None:
        case.say(
            "the file gives no price of the machine to hold it against ([prices] machine_usd)", UNTESTABLE
        )
        return
    inside = case.claim.low * 0.95 <= price <= case.claim.high * 1.05
    case.say(f"the file's price is {price:,.0f} USD", CONSISTENT if inside else FALSE)


_KINDS: dict[str, Callable[[Case], None]] = {
    "decode": _decode,
    "prefill": _prefill,
    "bandwidth": _bandwidth,
    "bytes_per_token": _bytes,
    "weights": _weights,
    "headroom": _headroom,
    "gpu_free": _gpu_free,
    "context": _context,
    "kv_per_request": _kv,
    "accelerators": _accelerators,
    "chassis": _chassis,
    "cost": _cost,
    "active_parameters": _active,
}


def judge_all(base: Estimate) -> Iterator[Judged]:
    """Every claim of the system, in the order of its file."""
    for claim in base.system.claims:
        yield judge(claim, base)
