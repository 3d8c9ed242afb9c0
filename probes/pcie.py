"""Copies between host memory and GPUs over PCIe: every node by every GPU; see `pcie_plan` for the cases.

Copies wait at a gate in host memory until all of a batch are queued, so that a rate holds no launch (`pcie_copies`),
and what arrives is compared with what was sent (`pcie_memory`). Meanwhile the links are read at both ends
(`pcie_links`), and handed over as `pcie.link.rate`, and so is whether a GPU is slowed down (`pcie_clocks`).
`pcie_driver` is what is asked of CUDA, which `pcie_cuda` has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import metrics
from k3gate.probes import pcie_cuda, pcie_peer, pcie_plan
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile, State


class PcieProbe:
    """PCIe copies. See the module's text."""

    name = "pcie"
    title = "PCIe: copies between the memory of each node and each GPU, and links under load"
    metrics: Sequence[MetricDeclaration] = (
        metrics.LINK_RATE,
        metrics.PCIE_COPY,
        metrics.PCIE_SHARE,
        metrics.PCIE_DRAM,
        metrics.PCIE_TRIP,
        metrics.PCIE_TOKEN,
        metrics.PCIE_PINNED,
        metrics.PCIE_SLOWED,
        metrics.PCIE_DEVICE,
        metrics.PCIE_PEER,
        metrics.PCIE_NVBANDWIDTH,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Needs a GPU that CUDA can use, by the inventory, and cuda-bindings."""
        refused = pcie_plan.refusal(inventory)
        if refused is not None:
            return Reason(*refused)
        lacking = pcie_cuda.missing()
        return Reason(State.NOT_PRESENT, lacking) if lacking is not None else Applies()

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """See `pcie_plan`."""
        return pcie_plan.plan(self.name, inventory, profile, pcie_peer.find() is not None)

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case."""
        if case.parameters["kind"] == "nvbandwidth":
            yield from pcie_peer.measure(case, context)
        else:
            from k3gate.probes import pcie_measures

            yield from pcie_measures.measure(case, context)
