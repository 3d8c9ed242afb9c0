"""Prefill: the ways in which prompts can be worked off, and the rate that nothing can exceed. Pure arithmetic.

A pass takes `prefill_batch` tokens. Attention over what came before is not counted, so ceilings hold for short prompts
and true rates fall with context.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from k3gate import units
from k3gate.analysis.ceilings import Rate, paper_rate, total
from k3gate.analysis.layout import Layout, most_hits
from k3gate.analysis.system import GB, ISAS, TIER_TITLES, System
from k3gate.model.sizes import ROUTED, TRUNK, ModelSizes


@frozen
class PrefillPath:
    """A way in which prompts can be worked off: tokens/s at most, None where something is not stated."""

    name: str
    ceiling: float | None
    arithmetic: str


@frozen
class Prefill:
    """The ways there are. `ceiling`: of all at once, since experts can be shared out, but never above what the memory
    that holds the experts gives them all, nor what the GPUs compute for them all; None where a way is unknown.
    `arithmetic`: which of these it is."""

    batch: int
    paths: tuple[PrefillPath, ...]
    ceiling: float | None
    arithmetic: str


@frozen
class _Pass:
    """What a pass of `batch` tokens needs: `read`, bytes of routed experts from where they lie; by token, parameters of
    routed experts there (`cold`) and on GPUs too (`hot`), and of the trunk; `told` of a hot set. None: not known."""

    batch: int
    read: float | None
    cold: float | None
    hot: float
    trunk: int | None
    told: str = ""


def prefill(system: System, sizes: ModelSizes, layout: Layout, rates: Mapping[str, Rate]) -> Prefill:
    """Ceilings of prefill with `system.prefill_batch` tokens a pass, attention over long contexts not counted.

    Where nobody measured what a hot set of experts catches, from no read to all that it can, whichever is faster.
    """
    found = [_ways(system, layout, rates, one) for one in _passes(system, sizes)]
    return max(found, key=lambda one: one.ceiling or 0.0)


def _ways(system: System, layout: Layout, rates: Mapping[str, Rate], work: _Pass) -> Prefill:
    paths = []
    # CPUs reach no weights in GPU memory, so that they take no part where the experts lie there.
    if layout.placement.experts != "gpu":
        paths.append(_on_cpu(system, layout, rates, work))
    if system.gpus:
        paths.append(_on_gpu(system, layout, rates, work))
    together = total([path.ceiling for path in paths])
    if together is None:
        return Prefill(work.batch, tuple(paths), None, "one of the ways is not known")
    if len(paths) < 2:
        return Prefill(work.batch, tuple(paths), together, paths[0].name)
    summed = " + ".join(units.significant(path.ceiling or 0.0) for path in paths)
    bounds = [(together, f"all ways at once: {summed} tokens/s")]
    # What all ways read or compute in the same place bounds them together.
    bounds += [
        (most, told)
        for most, told in (_shared_memory(layout, rates, work), _shared_gpus(system, layout, work))
        if most is not None
    ]
    most, told = min(bounds)
    return Prefill(work.batch, tuple(paths), most, told)


def _passes(system: System, sizes: ModelSizes) -> list[_Pass]:
    """The pass; of a hot set whose coverage nobody measured, without a hit and with all that it can catch."""
    batch, hot = system.prefill_batch, system.hot
    routed, trunk = _parameters(sizes)
    experts, chosen = sizes.experts, sizes.experts_per_token
    if hot is None or routed is None or not experts or not chosen:
        return [_Pass(batch, _pass_bytes(system, sizes, 0, 0.0), routed, 0.0, trunk)]
    coverage = hot.coverage(hot.experts)
    hits = (0.0, most_hits(hot.experts, chosen)) if coverage is None else (coverage,)
    why = "not measured, taken as it is fastest" if coverage is None else "measured curve"
    return [
        _Pass(
            batch,
            _pass_bytes(system, sizes, hot.experts, share),
            routed * (1 - share),
            routed * share,
            trunk,
            f"; the hot set catches {share:.1%} of the reads ({why})",
        )
        for share in hits
    ]


def _shared_memory(layout: Layout, rates: Mapping[str, Rate], work: _Pass) -> tuple[float | None, str]:
    """Tokens/s at which all ways together read every expert of a pass once from where they lie, and the arithmetic."""
    tier = layout.placement.experts or "dram"
    held, read = rates.get(tier), work.read
    rate = held.bytes_per_s if held is not None else None
    if not rate or not read:
        return None, "the rate of the experts' memory is not known"
    return work.batch * rate / read, (
        f"all ways read the experts from {TIER_TITLES[tier]}: {work.batch:,} tokens / ({read / GB:,.0f} GB of "
        f"experts a pass / {rate / GB:,.1f} GB/s){work.told}"
    )


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


def _on_cpu(system: System, layout: Layout, rates: Mapping[str, Rate], work: _Pass) -> PrefillPath:
    """Experts computed where they lie; trunk and hot experts where they lie. Reading is hidden behind computing, or it
    behind."""
    name = "experts computed by the CPUs"
    flops, told = cpu_flops(system)
    batch, cold, trunk = work.batch, work.cold, work.trunk
    if flops is None or cold is None or trunk is None or cold + work.hot + trunk <= 0:
        return PrefillPath(name, None, told if flops is None else "the parameters are not known")
    held = rates.get(layout.placement.experts or "dram")
    rate = held.bytes_per_s if held is not None else None
    compute = 2 * cold * batch / flops
    move = None if work.read is None or not rate else work.read / rate
    seconds, uncounted = max(compute, move or 0.0), ""
    terms = [f"{batch:,} x 2 x {cold / 1e9:.1f} G operations / {told}"]
    if move is not None and move > compute:
        terms = [f"{(work.read or 0) / GB:,.0f} GB of experts a pass / {(rate or 0) / GB:,.0f} GB/s"]
    if layout.placement.trunk != "gpu":
        seconds += 2 * trunk * batch / flops
        terms.append(f"{batch:,} x 2 x {trunk / 1e9:.1f} G of the trunk / {flops / 1e12:,.1f} TFLOP/s")
    parts = {"the trunk": trunk if layout.placement.trunk == "gpu" else 0, "hot experts": work.hot}
    for what, parameters in parts.items():
        more, said = gpu_flops(system)
        if parameters and more is None:
            uncounted += f"; {what}: {said}, not counted"
        elif parameters and more is not None:
            seconds += 2 * parameters * batch / more
            terms.append(f"{batch:,} x 2 x {parameters / 1e9:.1f} G of {what} / {said}")
    # Without routed experts nothing may be left to the CPUs, and nothing bounds them.
    ceiling = batch / seconds if seconds else None
    return PrefillPath(name, ceiling, f"{batch:,} tokens / ({' + '.join(terms)}){uncounted}{work.told}")


def _on_gpu(system: System, layout: Layout, rates: Mapping[str, Rate], work: _Pass) -> PrefillPath:
    """All computed by GPUs; experts that lie elsewhere are streamed to them once a pass."""
    streamed = layout.placement.experts != "gpu"
    name = "experts streamed to the GPUs" if streamed else "all on the GPUs"
    flops, told = gpu_flops(system)
    used = None if work.cold is None or work.trunk is None else work.cold + work.hot + work.trunk
    if flops is None or not used:
        return PrefillPath(name, None, told if flops is None else "the parameters are not known")
    batch = work.batch
    compute = 2 * used * batch / flops
    text = f"{batch:,} x 2 x {used / 1e9:.1f} G operations / {told}"
    if not streamed:
        return PrefillPath(name, batch / compute, f"{batch:,} tokens / ({text})")
    read, pcie = work.read, paper_rate(system, "pcie")[0]
    if read is None or pcie is None:
        return PrefillPath(name, None, "PCIe is not stated" if pcie is None else "the experts are not known")
    held = rates.get(layout.placement.experts or "dram")
    slower = held.bytes_per_s if held is not None and held.bytes_per_s else pcie
    move = read / min(pcie, slower)
    if move > compute:
        link = "PCIe" if pcie <= slower else TIER_TITLES[layout.placement.experts or "dram"]
        text = f"{read / GB:,.0f} GB of experts a pass / {min(pcie, slower) / GB:,.1f} GB/s of {link}"
    return PrefillPath(name, batch / max(move, compute), f"{batch:,} tokens / ({text}){work.told}")


def _pass_bytes(system: System, sizes: ModelSizes, hot: int, hits: float) -> float | None:
    """Bytes of routed experts beside the hot ones that a pass touches, what misses these routed uniformly."""
    routed = sizes.bytes_of(ROUTED, system.precision.experts)
    experts, chosen = sizes.experts, sizes.experts_per_token
    if routed is None or not experts or not chosen:
        return None
    cold = experts - hot
    if cold <= 0:
        return 0.0
    missed = max(0.0, 1 - chosen * (1 - hits) / cold) ** system.prefill_batch
    return routed * cold / experts * (1 - missed)
