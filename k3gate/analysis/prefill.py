"""Prefill: the ways in which prompts can be worked off, and the rate that nothing can exceed. Pure arithmetic.

A pass takes `prefill_batch` tokens. Attention over what came before is not counted, so ceilings hold for short prompts
and true rates fall with context.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from k3gate import units
from k3gate.analysis.ceilings import Rate, paper_rate, total
from k3gate.analysis.layout import Layout
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
    that holds the experts gives them all; None where a way is unknown. `arithmetic`: which of the two it is."""

    batch: int
    paths: tuple[PrefillPath, ...]
    ceiling: float | None
    arithmetic: str


def prefill(system: System, sizes: ModelSizes, layout: Layout, rates: Mapping[str, Rate]) -> Prefill:
    """Ceilings of prefill with `system.prefill_batch` tokens a pass, attention over long contexts not counted."""
    batch = system.prefill_batch
    paths = []
    # CPUs reach no weights in GPU memory, so that they take no part where the experts lie there.
    if layout.placement.experts != "gpu":
        paths.append(_on_cpu(system, sizes, layout, rates, batch))
    if system.gpus:
        paths.append(_on_gpu(system, sizes, layout, rates, batch))
    together = total([path.ceiling for path in paths])
    if together is None:
        return Prefill(batch, tuple(paths), None, "not known, since a way is not")
    shared, told = _shared_memory(system, sizes, layout, rates, batch)
    if len(paths) > 1 and shared is not None and shared < together:
        return Prefill(batch, tuple(paths), shared, told)
    return Prefill(batch, tuple(paths), together, "all ways at once" if len(paths) > 1 else paths[0].name)


def _shared_memory(
    system: System, sizes: ModelSizes, layout: Layout, rates: Mapping[str, Rate], batch: int
) -> tuple[float | None, str]:
    """Tokens/s at which all ways together read every expert of a pass once from where they lie, and the arithmetic."""
    tier = layout.placement.experts or "dram"
    held, read = rates.get(tier), _pass_bytes(system, sizes, batch)
    rate = held.bytes_per_s if held is not None else None
    if not rate or not read:
        return None, "the rate of the experts' memory is not known"
    return batch * rate / read, (
        f"all ways read the experts from {TIER_TITLES[tier]}: {batch:,} tokens / ({read / GB:,.0f} GB of experts a "
        f"pass / {rate / GB:,.1f} GB/s)"
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


def _on_cpu(
    system: System, sizes: ModelSizes, layout: Layout, rates: Mapping[str, Rate], batch: int
) -> PrefillPath:
    """Experts computed where they lie; the trunk where it lies. Reading is hidden behind computing, or it behind."""
    name = "experts computed by the CPUs"
    flops, told = cpu_flops(system)
    routed, trunk = _parameters(sizes)
    if flops is None or routed is None or trunk is None or routed + trunk <= 0:
        return PrefillPath(name, None, told if flops is None else "the parameters are not known")
    read = _pass_bytes(system, sizes, batch)
    held = rates.get(layout.placement.experts or "dram")
    rate = held.bytes_per_s if held is not None else None
    compute = 2 * routed * batch / flops
    move = None if read is None or not rate else read / rate
    text = f"{batch:,} x 2 x {routed / 1e9:.1f} G operations / {told}"
    seconds = max(compute, move or 0.0)
    if move is not None and move > compute:
        text = f"{(read or 0) / GB:,.0f} GB of experts a pass / {(rate or 0) / GB:,.0f} GB/s"
    if layout.placement.trunk == "gpu":
        more, said = gpu_flops(system)
        if more is None:
            # Without routed experts nothing is left to the CPUs, and nothing bounds them.
            return PrefillPath(
                name,
                batch / seconds if seconds else None,
                f"{batch:,} tokens / ({text}); trunk: {said}, not counted",
            )
        seconds += 2 * trunk * batch / more
        text += f" + {batch:,} x 2 x {trunk / 1e9:.1f} G / {said}"
    else:
        seconds += 2 * trunk * batch / flops
        text += f" + {batch:,} x 2 x {trunk / 1e9:.1f} G of the trunk / {flops / 1e12:,.1f} TFLOP/s"
    return PrefillPath(name, batch / seconds, f"{batch:,} tokens / ({text})")


def _on_gpu(
    system: System, sizes: ModelSizes, layout: Layout, rates: Mapping[str, Rate], batch: int
) -> PrefillPath:
    """All computed by GPUs; experts that lie elsewhere are streamed to them once a pass."""
    streamed = layout.placement.experts != "gpu"
    name = "experts streamed to the GPUs" if streamed else "all on the GPUs"
    flops, told = gpu_flops(system)
    routed, trunk = _parameters(sizes)
    used = None if routed is None or trunk is None else routed + trunk
    if flops is None or not used:
        return PrefillPath(name, None, told if flops is None else "the parameters are not known")
    compute = 2 * used * batch / flops
    text = f"{batch:,} x 2 x {used / 1e9:.1f} G operations / {told}"
    if not streamed:
        return PrefillPath(name, batch / compute, f"{batch:,} tokens / ({text})")
    read, pcie = _pass_bytes(system, sizes, batch), paper_rate(system, "pcie")[0]
    if read is None or pcie is None:
        return PrefillPath(name, None, "PCIe is not stated" if pcie is None else "the experts are not known")
    held = rates.get(layout.placement.experts or "dram")
    slower = held.bytes_per_s if held is not None and held.bytes_per_s else pcie
    move = read / min(pcie, slower)
    if move > compute:
        link = "PCIe" if pcie <= slower else TIER_TITLES[layout.placement.experts or "dram"]
        text = f"{read / GB:,.0f} GB of experts a pass / {min(pcie, slower) / GB:,.1f} GB/s of {link}"
    seconds = max(move, compute)
    return PrefillPath(name, batch / seconds, f"{batch:,} tokens / ({text})")


def _pass_bytes(system: System, sizes: ModelSizes, batch: int) -> float | None:
    """Routed bytes that a pass of `batch` tokens touches, routed uniformly."""
    routed = sizes.bytes_of(ROUTED, system.precision.experts)
    if routed is None or not sizes.experts or not sizes.experts_per_token:
        return None
    missed = (1 - sizes.experts_per_token / sizes.experts) ** batch
    return routed * (1 - missed)
