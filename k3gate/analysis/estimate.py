"""A system, a model and a demand put together: residency, a decode step, prefill, what may be expected. Pure.

Claims, changes and placements that were not chosen are the same estimate of an altered system, so that no figure is
computed in two ways.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from k3gate.analysis.ceilings import Decode, decode, tier_rate
from k3gate.analysis.layout import Demand, Layout, lay_out, resolved
from k3gate.analysis.prediction import Expected, expect
from k3gate.analysis.prefill import Prefill, prefill
from k3gate.analysis.system import TIER_TITLES, System
from k3gate.model.sizes import Q8_0_BITS, TRUNK, ModelSizes

Read = Mapping[str, tuple[float, str]]


@frozen
class Estimate:
    """What follows from one description. `read`: rates by tier that a run measured."""

    system: System
    sizes: ModelSizes
    demand: Demand
    layout: Layout
    decode: Decode
    expected: Expected
    prefill: Prefill
    read: Read

    def altered(self, system: System | None = None, demand: Demand | None = None) -> Estimate:
        """The same model on another system, or for another demand. What was measured holds for its own parts alone."""
        changed, read = system or self.system, dict(self.read)
        measured = changed.measured
        if (changed.memory, changed.sockets) != (self.system.memory, self.system.sockets):
            read.pop("dram", None)
            measured = evolve(measured, dram=None)
        if changed.gpus != self.system.gpus:
            read.pop("gpu", None)
            measured = evolve(measured, gpu=None)
        if changed.extras != self.system.extras:
            read.pop("pmem", None)
            measured = evolve(measured, pmem=None)
        return estimate(evolve(changed, measured=measured), self.sizes, demand or self.demand, read)


def estimate(system: System, sizes: ModelSizes, demand: Demand, read: Read | None = None) -> Estimate:
    """Everything of one description; `UsageError` for a placement on what is not there."""
    known = read or {}
    system = resolved(system, sizes)
    layout = lay_out(system, sizes, demand)
    step = decode(system, sizes, demand, layout, known)
    tiers = ("gpu", "dram", *(extra.kind for extra in system.extras), "nvme")
    rates = {tier: tier_rate(system, tier, known) for tier in tiers}
    return Estimate(
        system,
        sizes,
        demand,
        layout,
        step,
        expect(step, system),
        prefill(system, sizes, layout, rates, known),
        known,
    )


@frozen
class Alternative:
    """A way to place the trunk, whatever was chosen."""

    key: str
    title: str
    estimate: Estimate


_WHERE = {"dram": "in DRAM", "gpu": "on the GPUs"}


def trunk_ways(base: Estimate, *bits: float | None) -> tuple[Alternative, ...]:
    """The ways to lay out the trunk for which the machine has the memory at all: as released, at Q8_0 where that is
    smaller, and at the bits of the plan and at those of `bits`; at last as it is planned, where that is another place.
    """
    system, sizes, found = base.system, base.sizes, []
    stored: dict[float | None, tuple[str, str]] = {None: ("bf16", "as released")}
    if shrinks(sizes):
        stored[Q8_0_BITS] = ("q8_0", "at Q8_0")
    for each in (system.precision.trunk, *bits):
        if each is not None:
            stored.setdefault(each, (f"{each:g}_bits", f"at {each:g} bits a parameter"))
    for tier, there in (("dram", system.memory is not None), ("gpu", bool(system.gpus))):
        for each, (key, title) in stored.items() if there else ():
            placed = evolve(system.placement, trunk=tier, cache=tier, vision=tier)
            precision = evolve(system.precision, trunk=each)
            found.append(
                Alternative(
                    f"{key}_{tier}",
                    f"trunk {_WHERE[tier]} {title}",
                    base.altered(evolve(system, placement=placed, precision=precision)),
                )
            )
    if base.layout.placement.trunk not in _WHERE:
        where = TIER_TITLES[base.layout.placement.trunk or "dram"]
        found.append(Alternative("planned", f"trunk in {where}, as planned", base))
    return tuple(found)


def shrinks(sizes: ModelSizes) -> bool:
    """Whether the trunk at Q8_0 is smaller than it is stored."""
    stored, smaller = (sizes.bytes_of(TRUNK, bits) for bits in (None, Q8_0_BITS))
    return stored is not None and smaller is not None and smaller < stored
