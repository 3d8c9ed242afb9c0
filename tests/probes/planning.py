"""Short words for tests of what the memory probe plans."""

from __future__ import annotations

import attrs

from k3gate.probes.memory import MemoryProbe
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, NumaNode, Profile

QUICK = Profile("quick", 180.0)
GB = 10**9


def plan_of(inventory: Inventory, profile: Profile = QUICK) -> Planned:
    """What the memory probe plans."""
    return MemoryProbe().cases(inventory, profile)


def names_of(planned: Planned) -> set[str]:
    """The names of all cases."""
    return {case.name for case in planned.cases}


def case_of(planned: Planned, name: str) -> Case:
    """The case of that name."""
    return next(case for case in planned.cases if case.name == name)


def image_nodes(planned: Planned) -> set[int]:
    """The nodes that the image is laid on."""
    return {spec["node"] for spec in case_of(planned, "residency.image").parameters["pools"]}


def with_nodes(inventory: Inventory, *nodes: NumaNode) -> Inventory:
    """The same machine with these nodes."""
    return attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=nodes))
