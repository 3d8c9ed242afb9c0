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
from k3gate.analysis.system import System
from k3gate.model.sizes import ModelSizes

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
        prefill(system, sizes, layout, rates),
        known,
    )


@frozen
class Alternative:
    """A way to place the trunk, whatever was chosen."""

    key: str
    title: str
    estimate: Estimate


TRUNK_WAYS = (
    ("bf16_dram", "trunk in DRAM as released", "dram", None),
    ("q8_0_dram", "trunk in DRAM at Q8_0", "dram", 8.5),
    ("bf16_gpu", "trunk on the GPUs as released", "gpu", None),
    ("q8_0_gpu", "trunk on the GPUs at Q8_0", "gpu", 8.5),
)


def trunk_ways(base: Estimate) -> tuple[Alternative, ...]:
    """The four ways to lay out the trunk, those of which the machine has the memory at all."""
    system, found = base.system, []
    for key, title, tier, bits in TRUNK_WAYS:
        if (tier == "gpu" and not system.gpus) or (tier == "dram" and system.memory is None):
            continue
        placed = evolve(system.placement, trunk=tier, cache=tier, vision=tier)
        precision = evolve(system.precision, trunk=bits)
        found.append(
            Alternative(key, title, base.altered(evolve(system, placement=placed, precision=precision)))
        )
    return tuple(found)
