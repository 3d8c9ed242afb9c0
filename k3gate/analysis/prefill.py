"""Prefill: the ways in which prompts can be worked off, and the rate that nothing can exceed. Pure arithmetic.

A pass takes `prefill_batch` tokens. Attention over what came before is not counted, so ceilings hold for short prompts
and true rates fall with context. Two rates are told: where all tokens of a pass choose the same experts, which nothing
can exceed, and where they choose uniformly.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from k3gate import units
from k3gate.analysis.ceilings import Rate, keep, paper_rate, total
from k3gate.analysis.layout import Layout, most_hits
from k3gate.analysis.system import GB, ISAS, TIER_TITLES, System
from k3gate.model.sizes import ROUTED, TRUNK, ModelSizes


@frozen
class PrefillPath:
    """A way in which prompts can be worked off: tokens/s at most, None where something is not stated.

    `uniform`: the same where the tokens of a pass choose their experts uniformly.
    """

    name: str
    ceiling: float | None
    arithmetic: str
    uniform: float | None
    uniform_arithmetic: str


@frozen
class Prefill:
    """The ways there are. `ceiling`: of all at once, since experts can be shared out, but never above what the memory
    that holds the experts gives them all, nor what the GPUs compute for them all; None where a way is unknown.
    `arithmetic`: which of these it is. No pass reads fewer experts than where all of its tokens choose alike, which is
    the ceiling; `uniform` is where they choose uniformly, and most prompts are nearer to that."""

    batch: int
    paths: tuple[PrefillPath, ...]
    ceiling: float | None
    arithmetic: str
    uniform: float | None
    uniform_arithmetic: str


@frozen
class _Way:
    """A way under one choice of experts."""

    name: str
    rate: float | None
    arithmetic: str


@frozen
class _Ways:
    """All ways under one choice of experts, and what they give together."""

    ways: tuple[_Way, ...]
    rate: float | None
    arithmetic: str


@frozen
class _Pass:
    """What a pass of `batch` tokens needs; None: not known.

    `read`: bytes of routed experts by the tier that they are read from, that where they lie as the last, before it
    memory that could have kept them. By token: parameters of routed experts there (`cold`) and on GPUs too (`hot`), of
    all of them (`routed`), and of the trunk. `told`: of a hot set.
    """

    batch: int
    read: Mapping[str, float] | None
    cold: float | None
    hot: float
    routed: float | None
    trunk: int | None
    told: str = ""


def prefill(
    system: System,
    sizes: ModelSizes,
    layout: Layout,
    rates: Mapping[str, Rate],
    read: Mapping[str, tuple[float, str]] | None = None,
) -> Prefill:
    """Rates of prefill with `system.prefill_batch` tokens a pass, attention over long contexts not counted. `read`: as
    for a decode step.

    Where nobody measured what a hot set of experts catches, from no read to all that it can, whichever is faster.
    """
    found = []
    for alike in (True, False):
        passes = _passes(system, sizes, layout, read or {}, alike=alike)
        found.append(
            max((_ways(system, layout, rates, one) for one in passes), key=lambda one: one.rate or 0.0)
        )
    most, uniform = found
    paths = tuple(
        PrefillPath(one.name, one.rate, one.arithmetic, other.rate, other.arithmetic)
        for one, other in zip(most.ways, uniform.ways, strict=True)
    )
    return Prefill(system.prefill_batch, paths, most.rate, most.arithmetic, uniform.rate, uniform.arithmetic)


def _ways(system: System, layout: Layout, rates: Mapping[str, Rate], work: _Pass) -> _Ways:
    ways = []
    # CPUs reach no weights in GPU memory, so that they take no part where the experts lie there.
    if layout.placement.experts != "gpu":
        ways.append(_on_cpu(system, layout, rates, work))
    if system.gpus:
        ways.append(_on_gpu(system, layout, rates, work))
    together = total([way.rate for way in ways])
    if together is None:
        return _Ways(tuple(ways), None, "one of the ways is not known")
    if len(ways) < 2:
        return _Ways(tuple(ways), together, ways[0].name)
    summed = " + ".join(units.significant(way.rate or 0.0) for way in ways)
    bounds = [(together, f"all ways at once: {summed} tokens/s")]
    # What all ways read or compute in the same place bounds them together.
    bounds += [
        (most, told)
        for most, told in (_shared_memory(rates, work), _shared_gpus(system, layout, work))
        if most is not None
    ]
    most, told = min(bounds)
    return _Ways(tuple(ways), most, told)


def _passes(
    system: System, sizes: ModelSizes, layout: Layout, read: Mapping[str, tuple[float, str]], *, alike: bool
) -> list[_Pass]:
    """The pass, its tokens choosing experts alike or uniformly. Of a hot set whose coverage nobody measured, uniformly
    without a hit and with all that it can catch; alike the best of both, since a share between may be fastest.
    """
    batch, hot = system.prefill_batch, system.hot
    routed, trunk = _parameters(sizes)
    experts, chosen = sizes.experts, sizes.experts_per_token

    def moved(number: int, share: float) -> Mapping[str, float] | None:
        size = _pass_bytes(system, sizes, number, share, alike=alike)
        tier = layout.placement.experts or "dram"
        if size is None:
            return None
        # What free memory keeps of passes before is no part of a rate that uniform choice gives.
        kept = keep(system, layout, read, tier, size) if alike else {}
        return {**kept, tier: size - sum(kept.values())}

    if hot is None or routed is None or not experts or not chosen:
        return [_Pass(batch, moved(0, 0.0), routed, 0.0, routed, trunk)]
    coverage = hot.coverage(hot.experts)
    most = most_hits(hot.experts, chosen)
    if coverage is None and alike:
        told = f"; the hot set catches up to {most:.1%} of the reads (not measured, taken as it is fastest)"
        return [_Pass(batch, moved(hot.experts, most), routed * (1 - most), 0.0, routed, trunk, told)]
    hits = (0.0, most) if coverage is None else (coverage,)
    why = "not measured, taken as it is fastest" if coverage is None else "measured curve"
    return [
        _Pass(
            batch,
            moved(hot.experts, share),
            routed * (1 - share),
            routed * share,
            routed,
            trunk,
            f"; the hot set catches {share:.1%} of the reads ({why})",
        )
        for share in hits
    ]


def _reading(rates: Mapping[str, Rate], read: Mapping[str, float] | None) -> tuple[float | None, str]:
    """Seconds to read the experts of a pass once, one tier after the other, and the arithmetic; None where the rate of
    the tier that they lie in is not known. Memory that may have kept some and has no stated rate counts no time."""
    if not read or not sum(read.values()):
        return None, ""
    seconds, told = 0.0, []
    *_, own = read
    for tier, size in read.items():
        held = rates.get(tier)
        rate = held.bytes_per_s if held is not None else None
        if size and not rate and tier == own:
            return None, ""
        if size and rate:
            seconds += size / rate
            told.append(
                f"{size / GB:,.1f} GB of experts a pass / {rate / GB:,.1f} GB/s of {TIER_TITLES[tier]}"
            )
    return seconds or None, " + ".join(told)


def _shared_memory(rates: Mapping[str, Rate], work: _Pass) -> tuple[float | None, str]:
    """Tokens/s at which all ways together read every expert of a pass once from where they lie, and the arithmetic."""
    seconds, told = _reading(rates, work.read)
    if seconds is None:
        return None, "the rate of the experts' memory is not known"
    return work.batch / seconds, f"all ways read the experts: {work.batch:,} tokens / ({told}){work.told}"


def _shared_gpus(system: System, layout: Layout, work: _Pass) -> tuple[float | None, str]:
    """Tokens/s at which the GPUs compute what every token needs of them whichever way it takes, and the arithmetic."""
    flops, told = gpu_flops(system)
    on_gpu = work.hot + ((work.trunk or 0) if layout.placement.trunk == "gpu" else 0)
    if flops is None or not on_gpu:
        return None, told
    return flops / (2 * on_gpu), (
        f"all ways compute {on_gpu / 1e9:.1f} G parameters of every token on the GPUs: {told} / "
        f"(2 x {on_gpu / 1e9:.1f} G operations){work.told}"
    )


def cpu_flops(system: System) -> tuple[float | None, str]:
    """FLOP/s of the CPUs of all machines at the stated clock, and the arithmetic."""
    if system.cores is None or system.sockets is None or system.hertz is None or system.isa is None:
        return None, "cores, clock or instruction set are not stated"
    each = ISAS[system.isa]
    value = system.nodes * system.sockets * system.cores * system.hertz * each
    machines = f"{system.nodes} machines x " if system.nodes > 1 else ""
    sockets = units.count(system.sockets, "socket")
    return value, (
        f"{machines}{sockets} x {system.cores} cores x {system.hertz / 1e9:g} GHz x {each:g} "
        f"operations ({system.isa}) = {value / 1e12:,.1f} TFLOP/s"
    )


def gpu_flops(system: System) -> tuple[float | None, str]:
    """FLOP/s of all GPUs, and the arithmetic."""
    if not system.gpus or any(gpu.flops is None for gpu in system.gpus):
        return None, "the FLOP/s of the GPUs are not stated"
    value = system.nodes * sum(gpu.count * (gpu.flops or 0) for gpu in system.gpus)
    return value, f"{value / 1e12:,.0f} TFLOP/s of all GPUs"


HEADS = ("lm_head", "embed_tokens")
"""Groups of the trunk that turn a state into a next token: the last, and a tied table (`sizes`). Of a prompt only the
last token needs them."""


def _parameters(sizes: ModelSizes) -> tuple[int | None, int | None]:
    """Parameters that a token of a prompt uses: of the routed experts, of the trunk without its head."""
    active = sizes.active_parameters
    if active is None:
        return None, None
    trunk = sizes.role(TRUNK)
    routed = active - sum(group.parameters or 0 for group in trunk)
    return routed, sum(group.parameters or 0 for group in trunk if group.name not in HEADS)


def _on_cpu(system: System, layout: Layout, rates: Mapping[str, Rate], work: _Pass) -> _Way:
    """Experts computed where they lie; trunk and hot experts where they lie. CPUs, GPUs and memory work at once: the
    slowest of them decides."""
    name = "experts computed by the CPUs"
    flops, told = cpu_flops(system)
    batch, cold, trunk = work.batch, work.cold, work.trunk
    if flops is None or cold is None or trunk is None or (work.routed or 0) + trunk <= 0:
        return _Way(name, None, told if flops is None else "the parameters are not known")
    on_gpu = layout.placement.trunk == "gpu"
    parts = {"routed experts": cold, "the trunk": 0.0 if on_gpu else trunk}
    shown = _giga(parts)
    ends = [(2 * sum(parts.values()) * batch / flops, f"{batch:,} x 2 x ({shown}) / {told}")]
    move, read = _reading(rates, work.read)
    if move is not None:
        ends.append((move, read))
    more, said = gpu_flops(system)
    beside = {"the trunk": float(trunk) if on_gpu else 0.0, "hot experts": work.hot}
    shown, uncounted = _giga(beside), ""
    if shown and more is None:
        uncounted = f"; {shown}: {said}, not counted"
    elif shown and more is not None:
        ends.append((2 * sum(beside.values()) * batch / more, f"{batch:,} x 2 x ({shown}) / {said}"))
    seconds, text = max(ends)
    # Without routed experts nothing may be left to the CPUs, and nothing bounds them.
    return _Way(
        name, batch / seconds if seconds else None, f"{batch:,} tokens / ({text}){uncounted}{work.told}"
    )


def _giga(parts: Mapping[str, float]) -> str:
    """ "48.6 G of routed experts + 55.6 G of the trunk": parameters by what has any."""
    return " + ".join(f"{value / 1e9:.1f} G of {what}" for what, value in parts.items() if value)


def _on_gpu(system: System, layout: Layout, rates: Mapping[str, Rate], work: _Pass) -> _Way:
    """All computed by GPUs; experts that lie elsewhere are streamed to them once a pass."""
    streamed = layout.placement.experts != "gpu"
    name = "experts streamed to the GPUs" if streamed else "all on the GPUs"
    flops, told = gpu_flops(system)
    used = None if work.routed is None or work.trunk is None else work.routed + work.trunk
    if flops is None or not used:
        return _Way(name, None, told if flops is None else "the parameters are not known")
    batch = work.batch
    ends = [(2 * used * batch / flops, f"{batch:,} x 2 x {used / 1e9:.1f} G operations / {told}")]
    if streamed:
        pcie = paper_rate(system, "pcie")[0]
        if work.read is None or pcie is None:
            return _Way(name, None, "PCIe is not stated" if pcie is None else "the experts are not known")
        size = sum(value for tier, value in work.read.items() if tier != "gpu")
        ends.append((size / pcie, f"{size / GB:,.1f} GB of experts a pass / {pcie / GB:,.1f} GB/s of PCIe"))
        move, read = _reading(rates, work.read)
        if move is not None:
            ends.append((move, read))
    seconds, text = max(ends)
    return _Way(name, batch / seconds, f"{batch:,} tokens / ({text}){work.told if streamed else ''}")


def _pass_bytes(system: System, sizes: ModelSizes, hot: int, hits: float, *, alike: bool) -> float | None:
    """Bytes of routed experts beside the hot ones that a pass touches, what misses these routed uniformly; `alike`:
    where all tokens choose the experts of one."""
    routed = sizes.bytes_of(ROUTED, system.precision.experts)
    experts, chosen = sizes.experts, sizes.experts_per_token
    if routed is None or not experts or not chosen:
        return None
    cold = experts - hot
    if cold <= 0:
        return 0.0
    if alike:
        return routed * chosen * (1 - hits) / experts
    missed = max(0.0, 1 - chosen * (1 - hits) / cold) ** system.prefill_batch
    return routed * cold / experts * (1 - missed)
