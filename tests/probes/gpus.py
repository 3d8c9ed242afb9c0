"""Machines with GPUs for the tests of the PCIe probe."""

from __future__ import annotations

from typing import Any

import attrs

from k3gate.host import pcie
from k3gate.records import Gpu, Inventory

FIRST, SECOND = "0000:41:00.0", "0000:81:00.0"
BEST = (32.0, 16)


def card(address: str = FIRST, node: int | None = 0, **changes: Any) -> Gpu:
    """An idle GPU of NVIDIA's with a link of generation 5."""
    link = pcie.made(address, (2.5, 16), BEST, "0000:40:01.0", BEST)
    return attrs.evolve(
        Gpu("NVIDIA X", "nvidia", address, node=node, link=link, memory_bytes=2**36), **changes
    )


def with_gpus(inventory: Inventory, *gpus: Gpu) -> Inventory:
    """The machine with these GPUs."""
    return attrs.evolve(inventory, gpus=gpus)
