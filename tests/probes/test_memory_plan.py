"""What the memory probe plans on synthetic machines: CPUs, nodes, working sets, memory, budget."""

from __future__ import annotations

import attrs
import pytest
from planning import GB, QUICK, case_of, image_nodes, names_of, plan_of, with_nodes

from k3gate.errors import UsageError
from k3gate.probes.memory import MemoryProbe
from k3gate.probing.contract import Reason
from k3gate.records import Cache, HugePagePool, Inventory, NumaNode, Profile


def test_two_sockets_get_every_cell_with_one_thread_per_core(make_inventory) -> None:
    planned = plan_of(make_inventory("bare_metal"))
    cells = {f"read.node{c}.node{m}" for c in (0, 1) for m in (0, 1)}
    others = {"read.core.node0", "read.core.node1", "read.machine", "read.interleaved", "residency.image"}
    others |= {"read.4k.node0", "read.4k.node1", "experts.machine", "experts.node0", "experts.node1"}
    sweep = {f"sweep.node0.t{threads}" for threads in (8, 16, 24, 64)}
    latency = {f"latency.node{c}.node{m}" for c in (0, 1) for m in (0, 1)}
    latency |= {"latency.4k.node0", "staircase.node0", "loaded.node0"}
    stores = {"copy.node0", "copy_nt.node0"}
    assert names_of(planned) == cells | others | sweep | latency | stores
    remote = case_of(planned, "read.node1.node0")
    assert remote.parameters["readers"] == [list(range(32, 64))]
    assert remote.labels["placement"] == "remote"
    assert remote.labels["threads"] == 32
    assert remote.parameters["pools"][0]["touch"] == list(range(32))
    assert (
        remote.group
        == case_of(planned, "read.node0.node0").group
        == case_of(planned, "read.core.node0").group
    )
    machine = case_of(planned, "read.machine")
    assert machine.labels["cache_bytes"] == 120 * 2**20
    assert machine.bytes >= 4 * 120 * 2**20
    assert [spec["node"] for spec in machine.parameters["pools"]] == [0, 1]


def test_a_memory_only_node_is_a_target_only(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    cxl = NumaNode(5, (), 256 * 2**30, 255 * 2**30, "cxl", {0: 14, 1: 24, 5: 10})
    planned = plan_of(with_nodes(inventory, *inventory.numa.nodes, cxl))
    names = {name for name in names_of(planned) if "node5" in name}
    cells = {"node0.node5", "node1.node5"}
    assert names == {f"{kind}.{cell}" for kind in ("read", "latency") for cell in cells}
    assert image_nodes(planned) == {0, 1}
    assert case_of(planned, "read.machine").labels["threads"] == 64


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [("unknown", {0}), ("gpu", {0}), ("cxl", {0}), ("pmem", {0}), ("dram", {0, 5}), ("hbm", {0, 5})],
)
def test_the_image_lies_on_memory_without_cpus_only_where_its_kind_is_known_to_do(
    make_inventory, kind: str, nodes: set[int]
) -> None:
    inventory = make_inventory("vm")
    bare = NumaNode(5, (), 8 * 2**30, 7 * 2**30, kind, {0: 14, 5: 10})
    inventory = with_nodes(inventory, *inventory.numa.nodes, bare)
    inventory = attrs.evolve(
        inventory,
        memory=attrs.evolve(inventory.memory, total_bytes=16 * 2**30, available_bytes=11 * 2**30),
        limits=attrs.evolve(inventory.limits, usable_memory_bytes=11 * 2**30),
    )
    planned = plan_of(inventory, Profile("standard", 1200.0, image_bytes=9 * 2**30))
    assert image_nodes(planned) == nodes
    note = case_of(planned, "residency.image").parameters["note"] or ""
    assert (f"node 5 has memory of kind {kind} and no CPUs" in note) == (5 not in nodes)
    assert image_nodes(plan_of(inventory)) == nodes


def test_no_image_is_laid_where_only_memory_of_an_unknown_kind_is(make_inventory) -> None:
    inventory = make_inventory("vm")
    first = attrs.evolve(inventory.numa.nodes[0], memory_bytes=0)
    bare = NumaNode(5, (), 8 * 2**30, 7 * 2**30, "unknown", {0: 14, 5: 10})
    planned = plan_of(with_nodes(inventory, first, bare))
    assert "residency.image" not in names_of(planned)
    assert any("node 5 has memory of kind unknown" in one.reason for one in planned.left_out)


def test_a_node_without_memory_is_no_column_but_its_cpus_read_elsewhere(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    first, second = inventory.numa.nodes
    bare = attrs.evolve(second, memory_bytes=0, free_bytes=0)
    planned = plan_of(
        with_nodes(
            attrs.evolve(inventory, memory=attrs.evolve(inventory.memory, total_bytes=first.memory_bytes)),
            first,
            bare,
        )
    )
    assert not any(name.endswith("node1") for name in names_of(planned))
    assert "read.node1.node0" in names_of(planned)
    without = {one.case for one in planned.left_out if "node 1 has no memory" in one.reason}
    assert without == {"read.*.node1", "latency.*.node1"}
    assert case_of(planned, "read.machine").labels["threads"] == 64


@pytest.mark.parametrize("profile", [QUICK, Profile("standard", 1200.0)])
def test_where_no_node_has_memory_and_cpus_what_needs_both_is_named_as_left_out(
    make_inventory, profile: Profile
) -> None:
    """As on machines whose memory nodes all have no CPUs: the cells stand, and nothing else vanishes unsaid."""
    inventory = make_inventory("bare_metal")
    first, second = inventory.numa.nodes
    without = [attrs.evolve(one, memory_bytes=0, free_bytes=0) for one in (first, second)]
    memory = [
        attrs.evolve(one, id=one.id + 2, cpus=(), distances={0: 10 + one.id, 1: 11 - one.id})
        for one in (first, second)
    ]
    without = [
        attrs.evolve(one, distances={2: 17 + 11 * one.id, 3: 28 - 11 * one.id, one.id: 10}) for one in without
    ]
    planned = plan_of(with_nodes(inventory, *without, *memory), profile)
    cells = {f"{kind}.node{c}.node{m}" for kind in ("read", "latency") for c in (0, 1) for m in (2, 3)}
    assert cells | {"read.machine", "experts.machine", "read.interleaved"} == {
        name for name in names_of(planned) if name != "residency.image"
    }
    machine = case_of(planned, "read.machine")
    assert [spec["node"] for spec in machine.parameters["pools"]] == [2, 3]
    assert "each memory of the node nearest to it" in machine.title
    told = {one.case: one.reason for one in planned.left_out}
    assert len(told) == len(planned.left_out), "each is named once"
    families = (
        "read.core",
        "read.4k",
        "experts",
        "sweep",
        "latency.4k",
        "staircase",
        "loaded",
        "copy",
        "copy_nt",
    )
    for family in families:
        assert "no node has both memory and CPUs" in told[f"{family}.node*"]
    for family in ("write", "write_nt", "triad", "triad_nt"):
        assert f"{family}.*" in told or f"{family}.node*" in told
    whole = plan_of(inventory, profile)
    assert not any("both memory and CPUs" in one.reason for one in whole.left_out)
    assert "each its own node's memory" in case_of(whole, "read.machine").title
    alone = case_of(plan_of(make_inventory("vm"), profile), "read.machine")
    assert "CPU 0 reads its own node's memory" in alone.title


@pytest.mark.case("TOP-07")
def test_top_07_only_the_allowed_cpus_are_used_by_their_ids(make_inventory) -> None:
    planned = plan_of(make_inventory("bare_metal", cpu={"allowed": (3, 4)}))
    used = {
        cpu
        for case in planned.cases
        for group in case.parameters.get("readers", [case.parameters.get("cpus", [])])
        for cpu in group
    }
    assert used == {3, 4}
    assert "read.node1.node0" not in names_of(planned)
    assert "read.node0.node1" in names_of(planned)


@pytest.mark.case("TOP-05")
def test_top_05_an_offline_cpu_is_left_out_even_if_the_node_still_names_it(make_inventory) -> None:
    online = tuple(cpu for cpu in range(128) if cpu not in (7, 71))
    planned = plan_of(make_inventory("bare_metal", cpu={"online": online, "offline": (7, 71)}))
    cpus = case_of(planned, "read.node0.node0").parameters["readers"][0]
    assert 7 not in cpus and 71 not in cpus
    assert len(cpus) == 31


@pytest.mark.case("TOP-06")
def test_top_06_without_cpu_0_its_sibling_stands_in(make_inventory) -> None:
    online = tuple(range(1, 128))
    planned = plan_of(make_inventory("bare_metal", cpu={"online": online, "offline": (0,)}))
    cpus = case_of(planned, "read.node0.node0").parameters["readers"][0]
    assert len(cpus) == 32
    assert 64 in cpus and 0 not in cpus
    assert case_of(planned, "read.core.node0").parameters["readers"] == [[1]]


def test_no_usable_cpu_is_a_reason_not_a_crash(make_inventory) -> None:
    applies = MemoryProbe().applies(make_inventory("vm", cpu={"allowed": ()}))
    assert isinstance(applies, Reason)
    assert "allowed" in applies.text


def _twelve_domains(make_inventory) -> Inventory:
    domains = tuple(tuple(range(i * 8, i * 8 + 8)) for i in range(12))
    everything = tuple(range(96))
    memory = 768 * GB
    return make_inventory(
        "vm",
        cpu={
            "online": everything,
            "allowed": everything,
            "siblings": tuple((cpu,) for cpu in everything),
            "caches": (
                Cache(1, "Instruction", 32768, 96, 1, tuple((cpu,) for cpu in everything)),
                Cache(2, "Unified", 10**6, 96, 1, tuple((cpu,) for cpu in everything)),
                Cache(3, "Unified", 96 * 10**6, 12, 8, domains),
            ),
        },
        numa={"nodes": (NumaNode(0, everything, memory, memory - GB, "dram", {0: 10}),)},
        memory={"total_bytes": memory, "available_bytes": memory - GB},
        limits={"usable_memory_bytes": memory - GB},
    )


@pytest.mark.case("BW-03")
def test_bw_03_working_set_is_four_times_all_caches_and_less_is_refused(make_inventory) -> None:
    inventory = _twelve_domains(make_inventory)
    with pytest.raises(UsageError, match=r"100\.0 MB is too small here: at least 4,608\.0 MB .*1,152\.0 MB"):
        plan_of(inventory, attrs.evolve(QUICK, working_set_bytes=100 * 10**6))
    planned = plan_of(inventory)
    for case in planned.cases:
        if not case.name.startswith("read."):
            continue
        assert case.labels["pool_bytes"] >= 4608 * 10**6
        assert case.bytes == case.labels["pool_bytes"]
        if case.labels["scope"] != "core":
            assert case.labels["cache_bytes"] == 1152 * 10**6
            assert "1,152.0 MB of last-level caches" in case.title
    larger = plan_of(inventory, attrs.evolve(QUICK, working_set_bytes=20 * GB))
    assert case_of(larger, "read.node0.node0").bytes >= 20 * GB
    assert case_of(larger, "read.machine").bytes >= 20 * GB


def test_unknown_caches_are_said_and_not_taken_for_none(make_inventory) -> None:
    planned = plan_of(make_inventory("vm", cpu={"caches": ()}))
    case = case_of(planned, "read.node0.node0")
    assert case.labels["cache_bytes"] is None
    assert case.bytes == 256 << 20
    assert "cache sizes unknown" in case.title


def test_what_does_not_fit_is_left_out_with_the_arithmetic(make_inventory) -> None:
    inventory = _twelve_domains(make_inventory)
    small = attrs.evolve(inventory, limits=attrs.evolve(inventory.limits, usable_memory_bytes=2 * GB))
    planned = plan_of(small)
    kept = {name for name in names_of(planned) if not name.startswith(("latency.", "staircase."))}
    assert kept == {"residency.image"}, "one core's chain is beyond its own caches in far less memory"
    reason = next(one.reason for one in planned.left_out if one.case == "read.machine")
    assert "5.0 GB" in reason and "1.8 GB" in reason and "90%" in reason


def test_a_full_node_refuses_its_own_cells_but_page_cache_does_not(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    first, second = inventory.numa.nodes
    full = attrs.evolve(first, free_bytes=10**8)
    taken = attrs.evolve(
        with_nodes(inventory, full, second),
        memory=attrs.evolve(inventory.memory, available_bytes=10**8 + (second.free_bytes or 0)),
    )
    planned = plan_of(taken)
    assert "read.node0.node0" not in names_of(planned)
    assert "read.node1.node1" in names_of(planned)
    assert any("on node 0" in one.reason for one in planned.left_out)
    cached = with_nodes(inventory, full, second)  # the machine's available memory is still nearly all
    assert "read.node0.node0" in names_of(plan_of(cached))


def test_nodes_that_show_far_less_than_the_machine_are_not_believed(make_inventory) -> None:
    inventory = make_inventory("vm")
    node = attrs.evolve(inventory.numa.nodes[0], memory_bytes=2**28, free_bytes=2**20)
    assert "read.node0.node0" in names_of(plan_of(with_nodes(inventory, node)))


@pytest.mark.parametrize(
    ("free", "policy", "kind"),
    [(1 << 20, "always", "reserved_2m"), (3, "madvise", "transparent"), (0, "never", "small")],
)
def test_page_kind_follows_what_is_found(make_inventory, free: int, policy: str, kind: str) -> None:
    inventory = make_inventory("vm", kernel={"transparent_hugepage": policy})
    node = attrs.evolve(inventory.numa.nodes[0], huge_pages=(HugePagePool(2 << 20, free, free),))
    planned = plan_of(with_nodes(inventory, node))
    assert case_of(planned, "read.node0.node0").parameters["pools"][0]["pages"] == kind
    assert ("read.4k.node0" in names_of(planned)) == (kind != "small")


def test_the_image_is_split_over_nodes_and_never_beyond_90_percent(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    standard = Profile("standard", 1200.0, image_bytes=400 * GB)
    case = case_of(plan_of(inventory, standard), "residency.image")
    assert case.rounds == 1
    assert case.labels["memory"] == "image"
    sizes = [spec["bytes"] for spec in case.parameters["pools"]]
    assert 400 * GB <= sum(sizes) < 400 * GB + (4 << 20)  # rounded up to whole huge pages, never down
    assert case.parameters["note"] is None
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-3)
    huge = case_of(plan_of(inventory, attrs.evolve(standard, image_bytes=1560 * GB)), "residency.image")
    usable = inventory.limits.usable_memory_bytes
    assert huge.bytes * 100 <= usable * 90
    assert huge.bytes > 0.89 * usable
    assert "1,560.0 GB" in huge.parameters["note"]
    assert huge.labels["wanted_bytes"] == 1560 * GB


def test_short_profiles_hold_a_small_pool_and_say_so(make_inventory) -> None:
    case = case_of(plan_of(make_inventory("bare_metal")), "residency.image")
    assert case.labels["memory"] == "pool"
    assert case.bytes < GB + (4 << 20)
    assert "not the image" in case.parameters["note"]


@pytest.mark.parametrize(("name", "seconds", "rounds"), [("smoke", 20, 3), ("quick", 180, 5)])
def test_timed_regions_take_most_of_a_plan_that_fits(
    make_inventory, name: str, seconds: int, rounds: int
) -> None:
    planned = plan_of(make_inventory("vm"), Profile(name, float(seconds)))
    reads = [case for case in planned.cases if case.name.startswith("read.")]
    assert all(case.rounds == rounds for case in reads)
    whole = sum(case.seconds * case.rounds for case in planned.cases)
    timed = sum((case.seconds - case.setup_seconds) * case.rounds for case in planned.cases)
    assert whole < 0.9 * seconds
    assert timed > 0.6 * whole


def test_no_numa_information_binds_nothing(make_inventory) -> None:
    planned = plan_of(make_inventory("vm", numa={"available": False}))
    assert all(spec["bind"] is None for case in planned.cases for spec in case.parameters["pools"])
    assert not any("remote" in case.labels.values() for case in planned.cases)


def test_a_forced_instruction_set_goes_into_the_plan_and_a_lacking_one_is_refused(
    make_inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K3GATE_ISA", "generic")
    assert case_of(plan_of(make_inventory()), "read.node0.node0").parameters["isa"] == "generic"
    monkeypatch.setenv("K3GATE_ISA", "sse9")
    with pytest.raises(UsageError, match=r"sse9.*it has .*generic"):
        plan_of(make_inventory())


def test_level_2_caches_below_the_last_level_count_too(make_inventory) -> None:
    from k3gate.probes import working_sets

    inventory = make_inventory("bare_metal")
    cpus = working_sets.one_per_core(inventory.cpu.online, inventory.cpu.siblings)
    assert working_sets.level_2_bytes(inventory.cpu, cpus) == 64 * 2 * 2**20
    assert working_sets.working_set(inventory.cpu, cpus) == 4 * (2 * 60 + 64 * 2) * 2**20


def test_a_short_run_on_eight_nodes_keeps_what_decides_the_machine(make_inventory) -> None:
    """Residency and the machine's rate are two cheap cases; eight local cells must not push them out."""
    from k3gate.probing import plan

    inventory = make_inventory("bare_metal")
    nodes = [
        NumaNode(n, tuple(range(8 * n, 8 * n + 8)), 96 * 2**30, 90 * 2**30, "dram", {n: 10}) for n in range(8)
    ]
    inventory = with_nodes(inventory, *nodes)
    planned = plan.plan([MemoryProbe()], inventory, Profile("smoke", 20.0))
    names = [case.name for case in planned.cases]
    assert {"read.machine", "residency.image"} <= set(names)
    assert planned.seconds <= 18.0
    assert all(case.rounds == 3 for case in planned.cases)


def _grid(make_inventory, count: int, memory_only: int = 0) -> Inventory:
    """So many nodes of two sockets; another node of the same socket is near."""
    ids = range(count + memory_only)

    def node(number: int) -> NumaNode:
        cpus = tuple(range(64 // count * number, 64 // count * (number + 1))) if number < count else ()
        distances = {other: 10 if other == number else 12 + 20 * (other % 2 != number % 2) for other in ids}
        return NumaNode(number, cpus, 96 * 2**30, 90 * 2**30, "dram" if cpus else "cxl", distances)

    return with_nodes(make_inventory("bare_metal"), *map(node, ids))


def test_a_short_profile_thins_the_cells_between_nodes_and_names_the_others(make_inventory) -> None:
    inventory = _grid(make_inventory, 8, memory_only=1)
    planned = plan_of(inventory)
    for kind in ("read", "latency"):
        cells = {name for name in names_of(planned) if name.startswith(f"{kind}.node3.")}
        assert cells == {f"{kind}.node3.node{node}" for node in (3, 1, 8)}, "own, nearest, farthest"
        assert f"{kind}.node3.node5" in {one.case for one in planned.left_out}
        # Memory without CPUs is never left unread: each such node keeps its nearest and its farthest reader.
        assert {f"{kind}.node0.node8", f"{kind}.node7.node8"} <= names_of(planned)
    every = plan_of(inventory, Profile("standard", 1200.0))
    assert sum(name.startswith(("read.node", "latency.node")) for name in names_of(every)) == 2 * 8 * 9


@pytest.mark.parametrize("nodes", [8, 16, 32])
def test_a_short_profile_keeps_all_figures_of_one_node_on_a_machine_of_many(
    make_inventory, nodes: int
) -> None:
    from k3gate.probing import plan

    inventory = _grid(make_inventory, nodes)
    kept = {case.name for case in plan.plan([MemoryProbe()], inventory, QUICK).cases}
    figures = ("read.core", "read.4k", "experts", "staircase", "latency.4k", "loaded", "copy", "copy_nt")
    wanted = {f"{figure}.node0" for figure in figures} | {"read.machine", "residency.image"}
    wanted |= {"experts.machine", "read.interleaved"}
    wanted |= {name for name in names_of(plan_of(inventory)) if name.startswith("sweep.")}
    assert wanted <= kept


def test_a_part_of_the_image_is_not_called_the_image(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    for wanted, words in (
        (10**12 * 2, "as much of the target's image as can be had"),
        (10**9, "the target's image"),
    ):
        planned = plan_of(inventory, Profile("standard", 1200.0, image_bytes=wanted))
        assert f"Residency: {words}, " in case_of(planned, "residency.image").title


@pytest.mark.case("BW-09")
def test_bw_09_threads_are_swept_with_one_per_core_first(make_inventory) -> None:
    """More threads are not always faster: the points below and beyond one per core are measured."""
    inventory = make_inventory("bare_metal")
    planned = plan_of(inventory, Profile("standard", 1200.0))
    swept = [case for case in planned.cases if case.name.startswith("sweep.node0.")]
    points = {case.labels["threads"]: case for case in swept}
    assert sorted(points) == [2, 4, 8, 16, 24, 48, 64]
    (half,) = points[16].parameters["readers"]
    assert half == list(range(16))
    (all_of_them,) = points[64].parameters["readers"]
    assert all_of_them[:32] == list(range(32)) and set(all_of_them[32:]) == set(range(64, 96))
    assert {case.name for case in planned.cases if case.name.startswith("sweep.node1")}
    short = plan_of(inventory)
    assert any(one.case == "sweep.node1.*" for one in short.left_out)


def test_interleaved_reads_take_a_part_of_every_node(make_inventory) -> None:
    case = case_of(plan_of(make_inventory("bare_metal")), "read.interleaved")
    assert case.parameters["layout"] == "interleaved"
    assert case.labels["placement"] == case.labels["scope"] == "interleaved"
    assert [spec["node"] for spec in case.parameters["pools"]] == [0, 1]
    assert "read.interleaved" not in names_of(plan_of(make_inventory("vm")))
