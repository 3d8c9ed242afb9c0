"""Claims that are facts about the model: its weights, what of them a token uses, the cache of a request. Pure."""

from __future__ import annotations

from k3gate.analysis.claim_case import CONSISTENT, FALSE, UNTESTABLE, Case
from k3gate.analysis.layout import bytes_at
from k3gate.analysis.premises import CLOSE, WEIGHED, weight_bytes
from k3gate.analysis.system import CLAIM_KINDS, GB, GIB, KV_BYTES
from k3gate.model.sizes import EMBEDDING, ROUTED, TRUNK, VISION


def weights(case: Case) -> None:
    """The weights at the bits that the claim states, else at those of the system that it is about, else as released."""
    sizes, claim = case.own.sizes, case.claim
    of_claim = bool({"experts_bits", "trunk_bits"} & claim.premises.keys())
    size = weight_bytes(case.own) if of_claim or case.own.system.precision.stated else sizes.bytes
    released = f"all weights of {sizes.source}, {sizes.bytes:,} bytes = {sizes.bytes / GIB:,.1f} GiB"
    if size == sizes.bytes:
        _fact(case, size, "GB", released, WEIGHED)
        return
    whose = "at the bits that the claim states" if of_claim else "at the bits of this system ([precision])"
    case.say(f"{released}: {sizes.bytes / GB:,.1f} GB as released")
    if size is None:
        _fact(case, None, "GB", f"what they are {whose}", WEIGHED)
        return
    told = f"{whose}: {_sum(case)}, {size / GIB:,.1f} GiB"
    # Who speaks of the model as it was released is right, whatever this system makes of it.
    if not of_claim and _inside(case, sizes.bytes, WEIGHED):
        case.say(f"{told}: {size / GB:,.1f} GB; the claim is of the model as released", CONSISTENT)
        return
    _fact(case, size, "GB", told, WEIGHED)


def _sum(case: Case) -> str:
    """ "990.4 GB of routed experts (2,722.7 B x 2.91 bits / 8) + 1.8 GB of vision (as released)"."""
    sizes, bits = case.own.sizes, case.own.system.precision
    told = []
    for what, roles, each in (
        ("routed experts", (ROUTED,), bits.experts),
        ("trunk and embedding table", (TRUNK, EMBEDDING), bits.trunk),
        ("vision", (VISION,), None),
    ):
        groups = tuple(group for role in roles for group in sizes.role(role))
        size = bytes_at(groups, each)
        if size:
            count = sum(group.parameters or 0 for group in groups) / 1e9
            stored = "as released" if each is None else f"{count:,.1f} B x {each:g} bits / 8"
            told.append(f"{size / GB:,.1f} GB of {what} ({stored})")
    return " + ".join(told)


def active(case: Case) -> None:
    """Parameters active for a token against the model's own."""
    _fact(case, case.base.sizes.active_parameters, "billion", "active parameters", CLOSE)


def kv_per_request(case: Case) -> None:
    """Bytes of cache of one request against the model's own, in the precision of the claim or the plan."""
    sizes, precision = case.own.sizes, case.own.system.precision
    kv = sizes.kv_bytes_per_token
    stated = case.premise("context") is not None
    most = case.own.demand.context if stated else sizes.max_context
    if kv is None or most is None:
        case.say("cache bytes or the longest context are not known", UNTESTABLE)
        return
    kv = round(kv * KV_BYTES[precision.kv])
    size = kv * most
    above, below = case.claim.low > size * 1.02, case.claim.high < size * (1 - CLOSE)
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


def _fact(case: Case, fact: float | None, unit: str, told: str, close: float) -> None:
    factor = CLAIM_KINDS[case.claim.kind].factor
    if fact is None:
        case.say(f"{told} is not known", UNTESTABLE)
        return
    shown = f"{fact / factor:,.1f} {unit}"
    case.say(f"{told}: {shown}", CONSISTENT if _inside(case, fact, close) else FALSE)


def _inside(case: Case, fact: float, close: float) -> bool:
    return case.claim.low * (1 - close) <= fact <= case.claim.high * (1 + close)
