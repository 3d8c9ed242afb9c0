"""How much memory the probe takes, of which kind: room, its split over nodes, reserved huge pages."""

from __future__ import annotations

import attrs
import pytest
from planning import GB, case_of, plan_of, with_nodes

from k3gate.probes import working_sets
from k3gate.probes.memory import MemoryProbe
from k3gate.probing.plan import plan as whole_plan
from k3gate.records import HugePagePool, Inventory, NumaNode, Profile


def _reserving(inventory: Inventory, page: int, pages: dict[int, int]) -> Inventory:
    """The same machine with so many free reserved pages by node, taken from what is free there."""
    nodes = tuple(
        attrs.evolve(
            node,
            free_bytes=(node.free_bytes or 0) - page * pages.get(node.id, 0),
            huge_pages=(HugePagePool(page, pages.get(node.id, 0), pages.get(node.id, 0)),),
        )
        for node in inventory.numa.nodes
    )
    free = sum(node.free_bytes or 0 for node in nodes)
    return attrs.evolve(
        with_nodes(inventory, *nodes),
        memory=attrs.evolve(inventory.memory, available_bytes=free),
        limits=attrs.evolve(inventory.limits, usable_memory_bytes=free),
    )


@pytest.mark.parametrize(("page", "kind"), [(2 << 20, "reserved_2m"), (1 << 30, "reserved_1g")])
def test_an_image_in_reserved_pages_is_held_and_takes_nothing_from_other_memory(
    make_inventory, page: int, kind: str
) -> None:
    inventory = _reserving(
        make_inventory("bare_metal"), page, {0: 350 * 2**30 // page, 1: 350 * 2**30 // page}
    )
    profile = Profile("standard", 1200.0, image_bytes=600 * GB)
    case = case_of(plan_of(inventory, profile), "residency.image")
    pools = case.parameters["pools"]
    assert [(spec["node"], spec["pages"]) for spec in pools] == [(0, kind), (1, kind)]
    assert 600 * GB <= sum(spec["bytes"] for spec in pools) < 600 * GB + 2 * page
    assert all(spec["bytes"] % page == 0 for spec in pools)
    assert case.bytes == 0
    assert case.parameters["reserved_bytes"] == sum(spec["bytes"] for spec in pools)
    assert case.parameters["note"] is None
    # The whole run's plan compares Case.bytes with the memory that may be used, and must not drop it.
    assert "residency.image" in {one.name for one in whole_plan([MemoryProbe()], inventory, profile).cases}


def test_what_reserved_pages_do_not_hold_comes_from_other_memory_of_the_node(make_inventory) -> None:
    page = 2 << 20
    inventory = _reserving(
        make_inventory("bare_metal"), page, {0: 200 * 2**30 // page, 1: 100 * 2**30 // page}
    )
    case = case_of(
        plan_of(inventory, Profile("standard", 1200.0, image_bytes=600 * 2**30)), "residency.image"
    )
    got = {(spec["node"], spec["pages"]): spec["bytes"] for spec in case.parameters["pools"]}
    assert got == {
        (0, "reserved_2m"): 200 * 2**30,
        (0, "transparent"): 100 * 2**30,
        (1, "reserved_2m"): 100 * 2**30,
        (1, "transparent"): 200 * 2**30,
    }
    assert case.bytes == 300 * 2**30
    assert case.parameters["reserved_bytes"] == 300 * 2**30
    assert case.labels["nodes"] == "0,1"


def test_an_image_beyond_reserved_and_other_memory_says_what_it_took_of_both(make_inventory) -> None:
    page = 2 << 20
    inventory = _reserving(make_inventory("bare_metal"), page, {0: 200 * 2**30 // page})
    case = case_of(plan_of(inventory, Profile("standard", 1200.0, image_bytes=1560 * GB)), "residency.image")
    usable = inventory.limits.usable_memory_bytes or 0
    assert 0.89 * usable < case.bytes <= 0.9 * usable
    assert case.parameters["reserved_bytes"] == 200 * 2**30
    assert "of reserved huge pages" in case.parameters["note"]


def test_a_pool_of_reserved_pages_to_read_takes_nothing_from_other_memory(make_inventory) -> None:
    page = 2 << 20
    case = case_of(
        plan_of(_reserving(make_inventory("bare_metal"), page, {0: 4096, 1: 4096})), "read.node0.node0"
    )
    assert case.parameters["pools"][0]["pages"] == "reserved_2m"
    assert (case.bytes, case.parameters["reserved_bytes"]) == (0, case.labels["pool_bytes"])
    assert case.setup_seconds > 0
    ordinary = case_of(plan_of(make_inventory("bare_metal")), "read.node0.node0")
    assert (ordinary.bytes, ordinary.parameters["reserved_bytes"]) == (ordinary.labels["pool_bytes"], 0)


def test_reserved_pages_are_not_taken_for_page_cache_that_a_node_would_give_back(make_inventory) -> None:
    """What is available and not free is shared out by what each node has in use: reserved pages are not."""
    inventory = _reserving(make_inventory("bare_metal"), 1 << 30, {0: 300})
    first, second = inventory.numa.nodes
    cached = attrs.evolve(second, free_bytes=(second.free_bytes or 0) - 100 * 2**30)
    rooms = working_sets.room(with_nodes(inventory, first, cached)).nodes
    assert rooms[1] > 0.9 * 0.9 * (second.free_bytes or 0)
    assert rooms[0] < 0.9 * ((first.free_bytes or 0) + 10 * 2**30)


@pytest.mark.parametrize("total", [None, 500 * GB, 100 * GB])
@pytest.mark.parametrize("wanted", [1, 90 * GB, 450 * GB, 2000 * GB])
def test_a_split_never_exceeds_a_nodes_room_the_total_or_what_is_wanted(
    wanted: int, total: int | None
) -> None:
    from k3gate.probes.working_sets import HUGE_PAGE, Room, split

    rooms = {0: 10 * GB, 1: 300 * GB, 2: 0}
    shares = split(wanted, {0: 100, 1: 300, 2: 100}, Room(total, rooms))
    assert all(size <= rooms[node] and size % HUGE_PAGE == 0 for node, size in shares.items())
    held = sum(shares.values())
    assert held <= wanted + HUGE_PAGE - 1
    assert total is None or held <= total
    # Nor less than there is room for, but for a page a node.
    assert held >= min(wanted, sum(rooms.values()), total or wanted) - 3 * HUGE_PAGE


def test_room_is_90_percent_of_what_each_node_and_the_machine_have(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    rooms = working_sets.room(inventory)
    assert rooms.total == int(0.9 * inventory.limits.usable_memory_bytes)
    assert rooms.nodes == {node.id: int(0.9 * (node.free_bytes or 0)) for node in inventory.numa.nodes}
    crowded = attrs.evolve(inventory.numa.nodes[0], free_bytes=10 * GB)
    taken = attrs.evolve(
        with_nodes(inventory, crowded, inventory.numa.nodes[1]),
        memory=attrs.evolve(
            inventory.memory, available_bytes=10 * GB + (inventory.numa.nodes[1].free_bytes or 0)
        ),
    )
    case = case_of(plan_of(taken, Profile("standard", 1200.0, image_bytes=380 * GB)), "residency.image")
    sizes = {spec["node"]: spec["bytes"] for spec in case.parameters["pools"]}
    assert 8.9 * GB < sizes[0] <= 9 * GB
    assert sizes[1] <= 0.9 * (inventory.numa.nodes[1].free_bytes or 0)


def test_what_a_full_node_cannot_hold_goes_to_spare_reserved_pages_and_then_to_other_memory() -> None:
    page = 2 << 20
    nodes = [NumaNode(node, (node,), 100 * page, 0) for node in (0, 1, 2)]
    rooms = working_sets.Room(60 * page, {0: 40 * page, 1: 0, 2: 40 * page})
    reserved = {0: HugePagePool(page, 50, 50)}

    def spread(pages: int) -> list[dict[int, int]]:
        both = working_sets.spread(pages * page, nodes, rooms, reserved)
        return [{node: size // page for node, size in part.items()} for part in both]

    assert spread(30) == [{0: 10}, {2: 20}]
    assert spread(90) == [{0: 50}, {2: 40}]
    assert spread(500) == [{0: 50}, {0: 30, 2: 30}]
