"""What a claim takes for granted, held against the facts of the model and the description of the machine. Pure."""

from __future__ import annotations

from k3gate import units
from k3gate.analysis.ceilings import Part, paper_rate, tier_rate
from k3gate.analysis.claim_case import CONSISTENT, FALSE, UNTESTABLE, Case, above, part_above
from k3gate.analysis.estimate import Estimate, trunk_ways
from k3gate.analysis.layout import TRUNK_ITEM, Tier, bytes_at, split
from k3gate.analysis.system import GB, GIB, TIER_TITLES
from k3gate.model.sizes import EMBEDDING, ROUTED, TRUNK, VISION

CLOSE = 0.05
"""How far a premise may be off a fact and still be a rounding of it (ours)."""
WEIGHED = 0.02
"""How far stated weights may be off and still be a rounding (ours)."""


def off(stated: float, fact: float, close: float = CLOSE) -> bool:
    """Whether a stated number is further off a fact than a rounding."""
    return abs(stated - fact) > close * fact


def check_premises(case: Case) -> None:
    """Every premise of a claim."""
    sizes = case.base.sizes
    for key, fact, what in (
        ("active_parameters_billion", _billion(sizes.active_parameters), "B parameters active for a token"),
        ("total_parameters_billion", _billion(sizes.parameters), "B parameters in all"),
    ):
        stated = case.premise(key)
        if stated is None or fact is None:
            continue
        if off(stated, fact):
            why = _routed_alone(case, stated) if key == "active_parameters_billion" else ""
            case.say(f"premise {stated:,.10g} {what}: {sizes.source} give {fact:,.1f}{why}", FALSE)
        else:
            case.say(f"premise {stated:,.10g} {what}: as {sizes.source} ({fact:,.1f})")
    _weights(case)
    layers = case.premise("layers")
    if layers is not None and sizes.layers is not None and layers != sizes.layers:
        case.say(f"premise {layers:,.10g} layers: {sizes.source} give {sizes.layers}", FALSE)
    _channels(case)
    _memory(case)
    context = case.premise("context")
    if context is not None and sizes.max_context is not None and context > sizes.max_context:
        case.say(f"premise of {context:,.0f} tokens: {sizes.name} takes at most {sizes.max_context:,}", FALSE)
    _bits(case)
    _bandwidth_premise(case)
    _bytes_premise(case)
    tier = case.claim.premises.get("tier")
    placed = case.base.layout.placement.experts
    if tier is not None and tier != placed:
        case.say(
            f"premise that the routed experts are read from {TIER_TITLES.get(str(tier), str(tier))}: they lie in "
            f"{TIER_TITLES[placed or 'dram']}",
            FALSE,
        )


def _weights(case: Case) -> None:
    """Weights as released, or in the precision of the claim and the plan; either may be meant."""
    stated, sizes = case.premise("weights_gb"), case.base.sizes
    if stated is None:
        return
    known = {f"{sizes.source} give": sizes.bytes}
    own = weight_bytes(case.own)
    if own is not None and own != sizes.bytes:
        known["in the precision planned they are"] = own
    told = "; ".join(
        f"{what} {size / GB:,.1f} GB, which are {size / GIB:,.1f} GiB" for what, size in known.items()
    )
    good = any(not off(stated, size / GB, WEIGHED) for size in known.values())
    case.say(f"premise {stated:,.10g} GB of weights: {told}", None if good else FALSE)


def _billion(value: int | None) -> float | None:
    return None if value is None else value / 1e9


def _routed_alone(case: Case, stated: float) -> str:
    """Why so few: who multiplies all parameters by 16/896 counts the routed experts alone."""
    sizes = case.base.sizes
    routed = sum(group.parameters or 0 for group in sizes.role(ROUTED))
    share = sizes.share_of(routed)
    if not share or off(stated, share / 1e9):
        return ""
    trunk = sum(group.parameters or 0 for group in sizes.role(TRUNK)) / 1e9
    return f" ({share / 1e9:.1f} routed and {trunk:.1f} of the trunk); {stated:g} B are about the routed experts alone"


def _channels(case: Case) -> None:
    stated, own = case.premise("channels"), case.base.system.populated_channels
    if stated is None or own is None:
        return
    if stated != own:
        memory = case.base.system.memory
        modules = f" ({memory.modules} modules)" if memory else ""
        case.say(f"premise {stated:,.10g} memory channels: {own} hold a module{modules}", FALSE)
    else:
        case.say(f"premise {stated:,.10g} memory channels: as planned")


def _memory(case: Case) -> None:
    stated, memory = case.premise("memory_gb"), case.base.system.memory
    if stated is None or memory is None:
        return
    there = memory.bytes * case.base.system.nodes
    # Memory is sold in GiB and often written GB, so that either is meant.
    same = any(not off(stated, there / unit, 0.01) for unit in (GB, GIB))
    case.say(
        f"premise {stated:,.10g} GB of DRAM: planned are {there / GB:,.1f} GB = {there / GIB:,.0f} GiB",
        None if same else FALSE,
    )


def _bits(case: Case) -> None:
    stated, sizes, bits = case.premise("bits_per_parameter"), case.base.sizes, case.own.system.precision
    routed, trunk, all_ = (
        sizes.bytes_of(ROUTED, bits.experts),
        sizes.bytes_of(TRUNK, bits.trunk),
        weight_bytes(case.own) or sizes.bytes,
    )
    parameters = sum(group.parameters or 0 for group in sizes.role(ROUTED))
    if stated is None or not routed or not parameters or not sizes.parameters:
        return
    of_routed, of_all = routed * 8 / parameters, all_ * 8 / sizes.parameters
    if not off(stated, of_routed, 0.02):
        active, share = sizes.active_parameters, sizes.share_of(parameters)
        rest = 0.0 if active is None or share is None else 1 - share / active
        case.say(
            f"premise {stated:g} bits a parameter: so the routed experts are stored; {rest:.0%} of what a token uses "
            f"is trunk, stored at {(trunk or 0) * 8 / max(1, _trunk_parameters(case)):.3g} bits"
        )
    elif off(stated, of_all, 0.02):
        case.say(
            f"premise {stated:g} bits a parameter: the routed experts have {of_routed:.3g}, all weights {of_all:.3g}",
            FALSE,
        )


def _trunk_parameters(case: Case) -> int:
    return sum(group.parameters or 0 for group in case.base.sizes.role(TRUNK))


def _bandwidth_premise(case: Case) -> None:
    stated = case.premise("bandwidth_gb_per_s")
    if stated is None:
        return
    hold_bandwidth(case, stated * GB, stated * GB, FALSE, "premise ")


def hold_bandwidth(case: Case, low: float, high: float, verdict: str, lead: str) -> None:
    """A read bandwidth of DRAM against the paper rate; `lead`: how the sentence starts, empty for a claim itself."""
    paper, detail = paper_rate(case.base.system, "dram")
    told = f"{low / GB:,.10g}" if low == high else f"{low / GB:,.10g} to {high / GB:,.10g}"
    if paper is None:
        case.say(f"{lead}{told} GB/s of DRAM: {detail}", None if lead else UNTESTABLE)
    elif above(low, paper):
        case.say(
            f"{lead}{told} GB/s of DRAM: on paper {paper / GB:,.1f} GB/s ({detail}) is the most", verdict
        )
    else:
        share = f"{low / paper:.0%}" if low == high else f"{low / paper:.0%} to {high / paper:.0%}"
        case.say(
            f"{lead}{told} GB/s of DRAM: {share} of the paper rate, {paper / GB:,.1f} GB/s ({detail})"
            f"{part_above(case, paper) if not lead else ''}",
            None if lead else CONSISTENT,
        )


def _bytes_premise(case: Case) -> None:
    stated = case.premise("bytes_per_token_gb")
    if stated is not None:
        hold_bytes(case, (stated * GB, stated * GB), "premise ")


def hold_bytes(case: Case, stated: tuple[float, float], lead: str) -> None:
    """Whether so few bytes a token, `stated` from the one to the other, can be had by a placement that fits; what the
    other placements read."""
    low, high = stated
    ways = trunk_ways(case.own, case.base.system.precision.trunk)
    shown = f"{low / GB:,.10g}" if low == high else f"{low / GB:,.10g} to {high / GB:,.10g}"
    need = f"{lead}{shown} GB read for a token"
    if not ways:
        case.say(f"{need}: the file names neither DRAM nor GPUs to read from", UNTESTABLE)
        return
    rate = case.premise("bandwidth_gb_per_s") or _dram_rate(case)
    side = "GPU memory" if case.own.layout.placement.experts == "gpu" else "the memory of the CPUs"
    supported, lines = False, []
    for way in ways:
        own = way.estimate
        weights = _slow_weights(own)
        gpu = own.layout.tier("gpu")
        if own.layout.placement.trunk == "gpu" and gpu is not None:
            lines.append(_gpu_line(way.title, own))
        elif rate and weights and own.layout.placement.experts == "dram":
            lines.append(
                f"{way.title}: {weights / GB:,.2f} GB of weights are read from DRAM for a token, and {rate:,.10g} GB/s "
                f"gives at most {units.significant(rate * GB / weights, 2)} tokens/s"
            )
        elif weights:
            lines.append(f"{way.title}: {weights / GB:,.2f} GB of weights are read from {side} for a token")
        if weights and high >= weights * (1 - CLOSE) and own.layout.fits:
            supported = True
    every = [way.estimate.decode.memory_bytes() for way in ways]
    most = None if None in every else max(size for size in every if size is not None)
    if most is not None and case.own.demand.batch == 1 and low > most * (1 + CLOSE):
        case.say(f"{need}: a token reads {most / GB:,.2f} GB at most, wherever its trunk lies", FALSE)
    elif supported:
        case.say(f"{need}: a placement that fits reads no more", None if lead else CONSISTENT)
    else:
        routed = _routed_bytes(case.own)
        whole = "; it holds only while the GPUs hold the whole trunk and its cache"
        case.say(
            f"{need}: no placement that fits in this machine at {case.own.demand.context:,} tokens reads so little "
            f"from {side}{whole if routed and high >= routed * (1 - CLOSE) else ''}",
            FALSE,
        )
    for line in lines:
        case.say(line)


def _slow_weights(own: Estimate) -> float:
    """Bytes of weights that a token reads from the side where the experts lie."""
    on_gpu = own.layout.placement.experts == "gpu"
    return sum(
        part.bytes or 0 for part in own.decode.parts if is_weights(part) and (part.tier == "gpu") == on_gpu
    )


def _routed_bytes(own: Estimate) -> float:
    return sum(part.bytes or 0 for part in own.decode.parts if part.what == "routed experts")


def is_weights(part: Part) -> bool:
    """Whether a part of a step is weights, groups of the trunk that lie by themselves included."""
    return part.what not in ("recurrent state", "KV cache", "activations", "sums over machines")


def trunk_bytes(own: Estimate, tier: Tier) -> int:
    """Bytes of the trunk in a tier, groups that lie by themselves included; copies for each node not."""
    placed, bits = own.layout.placement, own.system.precision.trunk
    lying = split(own.sizes.role(TRUNK), placed.trunk, placed.groups, TRUNK_ITEM)
    return sum(bytes_at(groups, bits) or 0 for where, _, groups in lying if where == tier.name)


def weight_bytes(own: Estimate) -> int | None:
    """Bytes of all weights in the precision of the plan; None where one is not to be known."""
    bits = own.system.precision
    each = [
        own.sizes.bytes_of(ROUTED, bits.experts),
        *(own.sizes.bytes_of(role, bits.trunk) for role in (TRUNK, EMBEDDING)),
        own.sizes.bytes_of(VISION),
    ]
    return None if None in each else sum(one for one in each if one is not None)


def _gpu_line(title: str, own: Estimate) -> str:
    """How a trunk on the GPUs fits there, and what is left for the cache."""
    tier = own.layout.tier("gpu")
    assert tier is not None
    capacity = tier.capacity or 0
    trunk = trunk_bytes(own, tier)
    if trunk > capacity:
        return f"{title}: {trunk / GB:,.1f} GB do not fit in {capacity / GB:,.1f} GB ({tier.capacity_detail})"
    cache = sum(item.bytes or 0 for item in tier.items if item.what == "KV cache")
    rest = sum(item.bytes or 0 for item in tier.items if item.what == "recurrent state")
    left = capacity - trunk - rest
    fits = "fits" if cache <= left else "does not fit there"
    return (
        f"{title}: {trunk / GB:,.1f} GB and {rest / GB:,.1f} GB of state leave {left / GB:,.1f} GB of "
        f"{capacity / GB:,.1f} GB, and the KV cache of {own.demand.context:,} tokens, {cache / GB:,.1f} GB, {fits}"
    )


def _dram_rate(case: Case) -> float | None:
    rate = tier_rate(case.base.system, "dram", case.base.read).bytes_per_s
    return None if rate is None else rate / GB
