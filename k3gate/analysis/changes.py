"""What one change would bring: each is the same estimate of a machine with that one thing altered. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from k3gate import units
from k3gate.analysis.ceilings import PAPER
from k3gate.analysis.estimate import Estimate, shrinks
from k3gate.analysis.layout import EXPERTS_ITEM
from k3gate.analysis.system import GB, MODULE_SPEEDS, TIER_TITLES, Extra, HotSet, MemoryModules, coverage
from k3gate.model.sizes import Q8_0_BITS, TRUNK

_SMALL = 0.005


@frozen
class Change:
    """One change. `after` None: it cannot be computed, and `note` says why."""

    key: str
    title: str
    after: Estimate | None
    note: str = ""


def changes(base: Estimate) -> tuple[Change, ...]:
    """The changes that make sense for this machine; those that would change nothing are left out."""
    return tuple(
        _on_paper(base, change)
        for change in (*_memory(base), *_trunk(base), *_socket(base), *_hot(base))
        if change.after is None or change.note or _differs(base, change.after)
    )


def _on_paper(base: Estimate, change: Change) -> Change:
    """The change, with a note where a measured rate gave way to paper, since both are then compared."""
    if change.after is None:
        return change
    before, after = base.decode.rate("dram"), change.after.decode.rate("dram")
    if before is None or after is None or before.basis == PAPER or after.basis != PAPER:
        return change
    told = "DRAM at its paper rate, since what was measured is not of this memory"
    return evolve(change, note=f"{change.note}; {told}" if change.note else told)


def _differs(before: Estimate, after: Estimate) -> bool:
    a, b = before.decode.ceiling, after.decode.ceiling
    if before.layout.fits != after.layout.fits:
        return True
    return a is None or b is None or abs(b / a - 1) > _SMALL


def _memory(base: Estimate) -> Iterator[Change]:
    system, memory = base.system, base.system.memory
    if memory is None:
        return
    have, all_ = system.populated_channels, system.all_channels
    if have is not None and all_ is not None and have < all_:
        modules = memory.modules + all_ - have
        full = evolve(memory, modules=modules, populated=None)
        title = f"fill the channels: {all_ - have} more modules, {modules} in all"
        if memory.slots is not None and modules > memory.slots:
            yield Change("fill_channels", title, None, f"the board has {memory.slots} slots")
        else:
            yield Change("fill_channels", title, base.altered(evolve(system, memory=full)))
    faster = _faster(memory)
    if faster is not None:
        rated = memory.rated_mts is not None and faster <= memory.rated_mts
        what = "these modules at their rated" if rated else "modules that run at"
        title = f"{what} {faster:,} MT/s, if processor and board take them"
        quick = evolve(memory, mts=faster, rated_mts=None if not rated else memory.rated_mts)
        yield Change("faster_dimms", title, base.altered(evolve(system, memory=quick)))


def _faster(memory: MemoryModules) -> int | None:
    """MT/s of the next faster modules of the same type, or at which these are rated; None where there is none."""
    mts, rated = memory.mts, memory.rated_mts
    if mts is None:
        return None
    if rated is not None and rated > mts:
        return rated
    # Another type of memory is another machine, not a change of modules.
    types = (
        [memory.type.lower()]
        if memory.type
        else [name for name, speeds in MODULE_SPEEDS.items() if mts in speeds]
    )
    if len(types) != 1:
        return None
    return next((speed for speed in MODULE_SPEEDS.get(types[0], ()) if speed > mts), None)


def _trunk(base: Estimate) -> Iterator[Change]:
    system, placed = base.system, base.layout.placement
    if not base.sizes.role(TRUNK):
        return
    if placed.trunk != "gpu" and placed.experts != "gpu":
        need = {
            name: size
            for name, bits in (
                ("as released", None),
                *((("at Q8_0", Q8_0_BITS),) if shrinks(base.sizes) else ()),
            )
            if (size := base.sizes.bytes_of(TRUNK, bits)) is not None
        }
        told = ", ".join(f"{size / GB:,.1f} GB {name}" for name, size in need.items())
        title = f"trunk on GPUs ({told})"
        if system.gpus:
            moved = evolve(placed, trunk="gpu", cache="gpu", vision="gpu")
            for bits in (system.precision.trunk, *((Q8_0_BITS,) if shrinks(base.sizes) else ())):
                after = base.altered(
                    evolve(system, placement=moved, precision=evolve(system.precision, trunk=bits))
                )
                if after.layout.fits is not False:
                    break
            yield Change("trunk_on_gpus", title, after)
        else:
            yield Change("trunk_on_gpus", title, None, _without_gpus(base))
    if system.precision.trunk is None and shrinks(base.sizes):
        smaller = evolve(system, precision=evolve(system.precision, trunk=Q8_0_BITS))
        yield Change("trunk_q8_0", "trunk at Q8_0 (8.5 bits a parameter)", base.altered(smaller))


def _without_gpus(base: Estimate) -> str:
    """What memory would be left to read; how fast cannot be told of GPUs that nobody named."""
    read = [part.bytes for part in base.decode.parts if part.what == EXPERTS_ITEM]
    tier = base.layout.placement.experts or "dram"
    rate = base.decode.rate(tier)
    if not read or read[0] is None or rate is None or not rate.bytes_per_s:
        return "the file names no GPU"
    return (
        f"the file names no GPU; {read[0] / GB:,.2f} GB a token would be left to {TIER_TITLES[tier]}, at most "
        f"{units.significant(rate.bytes_per_s / read[0], 2)} tokens/s before the GPUs' own time"
    )


def _socket(base: Estimate) -> Iterator[Change]:
    system, memory = base.system, base.system.memory
    if system.sockets != 1 or memory is None:
        return
    more = evolve(
        memory,
        modules=2 * memory.modules,
        slots=None,
        populated=None if memory.populated is None else 2 * memory.populated,
    )
    # Persistent memory and HBM hang on the processor; CXL cards do on slots of the board.
    own = [extra for extra in system.extras if extra.kind in ("pmem", "hbm")]
    beside = "".join(
        f" and as much {TIER_TITLES[kind]}" for kind in dict.fromkeys(extra.kind for extra in own)
    )
    yield Change(
        "second_socket",
        f"a second socket with as many modules{beside}",
        base.altered(
            evolve(
                system,
                sockets=2,
                memory=more,
                extras=tuple(_twice(extra) if extra in own else extra for extra in system.extras),
            )
        ),
    )


def _twice(extra: Extra) -> Extra:
    """As much again of a tier that hangs on each processor."""
    return evolve(
        extra,
        bytes=2 * extra.bytes,
        bytes_per_s=None if extra.bytes_per_s is None else 2 * extra.bytes_per_s,
        modules=None if extra.modules is None else 2 * extra.modules,
        detail=f"2 x {extra.detail}",
    )


def _hot(base: Estimate) -> Iterator[Change]:
    """As many experts of each layer as the GPUs' free memory takes."""
    system, sizes = base.system, base.sizes
    tier, one = base.layout.tier("gpu"), sizes.expert_bytes(system.precision.experts)
    if base.layout.placement.experts == "gpu" or not system.gpus or one is None or not sizes.expert_layers:
        return
    title = "a hot set of experts on the GPUs"
    if tier is None or tier.left is None or system.hot is not None:
        return
    room = tier.left if tier.items else (tier.capacity or 0)
    number = max(0, room) // (one * sizes.expert_layers)
    if number < 1:
        lacking = f"{one * sizes.expert_layers / GB:,.2f} GB take one expert of each layer; "
        yield Change("hot_experts", title, None, f"{lacking}{max(0, room) / GB:,.2f} GB are free")
        return
    number = min(number, sizes.experts or number)
    after = base.altered(evolve(system, hot=HotSet(number, system.curve)))
    known = coverage(system.curve, number)
    share = number / (sizes.experts or number)
    yield Change(
        "hot_experts",
        f"a hot set of {units.count(number, 'expert')} of each layer on the GPUs ({share:.1%} of all, "
        f"{number * one * sizes.expert_layers / GB:,.1f} GB)",
        after,
        f"the curve gives {known:.1%} of the reads"
        if known is not None
        else "how many reads it catches is not known without a measured curve ([hot_experts] curve)",
    )
