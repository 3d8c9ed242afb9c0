"""Claims of what a machine does: tokens/s of decode and prefill, bandwidth, bytes read for a token. Pure."""

from __future__ import annotations

from k3gate import units
from k3gate.analysis import prediction
from k3gate.analysis.ceilings import paper_rate, tier_rate
from k3gate.analysis.claim_case import ABOVE, CONSISTENT, UNTESTABLE, Case, above, part_above, tokens
from k3gate.analysis.premises import hold_bandwidth, hold_bytes, is_weights
from k3gate.analysis.system import GB
from k3gate.model.sizes import ROUTED


def decode(case: Case) -> None:
    """Tokens/s of decoding against the ceiling under the claim's own premises; of another machine no evidence."""
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
        if above(claim.low, ceiling):
            case.say(f"{line}; {tokens(claim.low)} above it", ABOVE)
        elif own.decode.without_hits is not None and above(claim.low, own.decode.without_hits * batch):
            case.say(
                f"{line}; {tokens(claim.low)} more than without a hit, so that free memory must have kept "
                "experts, and how many reads it catches is not stated",
                UNTESTABLE,
            )
        else:
            told = f"{line}; {_share(case, ceiling)}{part_above(case, ceiling)}"
            case.say(told, UNTESTABLE if foreign else CONSISTENT)
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
    # By the bytes of the ceiling, the least that a step can read, so that no share is above all of it.
    own = case.own
    stated = case.claim.low if above(case.claim.high, ceiling) else case.claim.high
    bare = own.decode.without_hits
    if bare is not None:
        return f"{tokens(stated)} {min(1.0, stated / bare / own.demand.batch):.0%} of it without a hit"
    parts = [part for part in own.decode.parts if part.tier not in ("pcie", "network") and part.least]
    tiers, size = {part.tier for part in parts}, sum(part.least or 0 for part in parts)
    if len(tiers) == 1 and size:
        rate = own.decode.rate(next(iter(tiers)))
        if rate is not None and rate.bytes_per_s:
            kind = {"paper": "paper", "measured": "measured read"}.get(rate.basis, "measured read")
            batch = own.demand.batch
            moved = stated * size / batch
            times = f" / {batch} sequences x" if batch > 1 else " x"
            return (
                f"{tokens(stated).rsplit(' ', 1)[0]}{times} {size / GB:,.2f} GB = {moved / GB:,.1f} GB/s, "
                f"{min(1.0, moved / rate.bytes_per_s):.1%} of the {kind} rate, {rate.bytes_per_s / GB:,.1f} GB/s"
            )
    return f"{tokens(stated)} {min(1.0, stated / ceiling):.0%} of it"


def _own_arithmetic(case: Case) -> None:
    """How the claim was reached, where its premises give it, and what the facts make of the same bandwidth."""
    rate, active = case.premise("bandwidth_gb_per_s"), case.premise("active_parameters_billion")
    bits, size = case.premise("bits_per_parameter"), case.premise("bytes_per_token_gb")
    if rate is None:
        return
    if active is not None and bits is not None:
        read = active * bits / 8
        told = f"({active:,.10g} B x {bits:,.10g} bits / 8 = {read:,.1f} GB)"
    elif size is not None:
        read, told = size, f"{size:,.10g} GB"
    else:
        return
    case.say(f"by its own premises: {rate:,.10g} GB/s / {told} = {units.significant(rate / read)} tokens/s")
    weights = [p.bytes for p in case.own.decode.parts if is_weights(p) and p.tier == "dram"]
    known = [value for value in weights if value is not None]
    if weights and len(known) == len(weights) and size is None:
        total = sum(known) / GB
        case.say(
            f"by the facts: {rate:,.10g} GB/s / {total:,.2f} GB of weights = {units.significant(rate / total, 2)} "
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


def prefill(case: Case) -> None:
    """Tokens/s of prefill against all ways at once."""
    claim, found = case.claim, case.own.prefill
    _must_fit(case)
    if _is_foreign(case):
        _prototype(case)
    for path in found.paths:
        told = _both(path.ceiling, path.arithmetic, path.uniform, path.uniform_arithmetic)
        case.say(f"{path.name}, {found.batch:,} tokens a pass: {told}")
    if len(found.paths) > 1 and found.ceiling is not None:
        told = _both(found.ceiling, found.arithmetic, found.uniform, found.uniform_arithmetic)
        case.say(f"together: {told}")
    if found.ceiling is None:
        case.say("the ceiling is not known", UNTESTABLE)
    elif above(claim.low, found.ceiling):
        case.say(f"{tokens(claim.low)} above {units.significant(found.ceiling)}", ABOVE)
        _pass_needed(case)
    elif found.uniform is not None and above(claim.low, found.uniform):
        case.say(
            f"{tokens(claim.low)} more than the {units.significant(found.uniform)} of uniform choice, so "
            "that the tokens of a pass must choose like experts, and how like is not stated",
            UNTESTABLE,
        )
        _pass_needed(case)
    else:
        told = f"{tokens(claim.low)} not above {units.significant(found.ceiling)}"
        case.say(f"{told}{part_above(case, found.ceiling)}", CONSISTENT)


def _both(most: float | None, told: str, uniform: float | None, uniform_told: str) -> str:
    """What a way gives where all tokens of a pass choose alike, and where they choose uniformly."""
    if most is None:
        return f"not known ({told})"
    line = f"at most {units.significant(most)} tokens/s ({told})"
    if uniform is None or uniform == most:
        return line
    return f"{line}; {units.significant(uniform)} where tokens choose uniformly ({uniform_told})"


def _pass_needed(case: Case) -> None:
    """How many tokens a pass would have to hold for the GPUs to reach the lower end, PCIe alone counted."""
    own = case.own
    routed, pcie = own.sizes.bytes_of(ROUTED, own.system.precision.experts), paper_rate(own.system, "pcie")[0]
    if own.layout.placement.experts == "gpu" or not routed or not pcie:
        return
    case.say(
        f"all experts, which uniform choice touches, over PCIe take {routed / GB:,.0f} GB / {pcie / GB:,.1f} GB/s = "
        f"{routed / pcie:,.0f} s, so that {case.claim.low:,.10g} tokens/s need a pass of "
        f"{case.claim.low * routed / pcie:,.0f} tokens"
    )


def bandwidth(case: Case) -> None:
    """B/s of DRAM against the paper rate."""
    hold_bandwidth(case, case.claim.low, case.claim.high, ABOVE, "")
    if _is_foreign(case):
        _prototype(case)


def bytes_per_token(case: Case) -> None:
    """Bytes read for a token against every placement of the trunk that fits."""
    hold_bytes(case, (case.claim.low, case.claim.high), "")
