"""Which cases a file gives that the user names, and which files are refused."""

from __future__ import annotations

import attrs
import pytest
from planning import case_of, names_of, plan_of

from k3gate.errors import UsageError
from k3gate.probes import working_sets as sets
from k3gate.records import HugePagePool, Inventory, MemoryFile, Profile

GIB = 2**30
FILE = MemoryFile("/models/k3.gguf", False, 48 * GIB, 48 * GIB, 66305, 12, "ext4", False, 4096)
FOLDER = attrs.evolve(FILE, path="/mnt/pmem", folder=True, dax=True)


def profile(*files: MemoryFile, seconds: float = 1200.0) -> Profile:
    return Profile("standard", seconds, memory_files=files)


def window(inventory: Inventory) -> int:
    cores = sets.one_per_core(sets.usable_cpus(inventory), inventory.cpu.siblings)
    return sets.working_set(inventory.cpu, cores)


def test_a_file_is_read_by_all_cores_by_each_node_in_experts_and_by_a_walk(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    planned = plan_of(inventory, profile(FILE))
    found = [case for case in planned.cases if case.name.startswith("file")]
    assert [case.name for case in found] == [
        "file1.read",
        "file1.read.node0",
        "file1.read.node1",
        "file1.experts",
        "file1.latency.node0",
        "file1.latency.node1",
    ]
    assert {case.group for case in found} == {"file1"}
    whole = found[0]
    assert whole.parameters["window"] == whole.bytes == window(inventory) < 48 * GIB
    assert "the first" in whole.title and "/models/k3.gguf" in whole.title
    assert whole.labels["scope"] == "file" and whole.labels["threads"] == 64
    for case in found:
        identity = case.parameters["file"]
        assert (identity["path"], identity["bytes"]) == ("/models/k3.gguf", 48 * GIB)
        assert (identity["device"], identity["inode"]) == (66305, 12)
        assert case.setup_seconds > 0 and case.time_limit_s > 120
    names = [case.name for case in planned.cases]
    assert names.index("file1.read") == names.index("residency.image") + 1, (
        "asked for by name: it stays in a cut plan"
    )


def test_without_a_file_there_is_no_case_of_one(make_inventory) -> None:
    assert not any(name.startswith("file") for name in names_of(plan_of(make_inventory("vm"))))


def test_the_shortest_profile_reads_it_too(make_inventory) -> None:
    planned = plan_of(make_inventory("vm"), Profile("smoke", 20.0, memory_files=(FILE, FOLDER)))
    assert {"file1.read", "file1.latency.node0", "file2.read", "file2.experts"} <= names_of(planned)


@pytest.mark.parametrize(
    ("file", "held"),
    [
        (FILE, True),
        (FOLDER, False),
        (attrs.evolve(FILE, file_system="tmpfs"), False),
        (attrs.evolve(FOLDER, file_system="tmpfs", dax=False), True),
        (attrs.evolve(FILE, file_system="hugetlbfs", page_bytes=2 << 20), False),
    ],
)
def test_only_a_page_cache_and_a_file_made_in_a_tmpfs_take_memory(
    make_inventory, file: MemoryFile, held: bool
) -> None:
    case = case_of(plan_of(make_inventory("vm"), profile(file)), "file1.read")
    assert bool(case.bytes) is held


def test_a_file_that_is_smaller_than_the_caches_call_for_is_refused(make_inventory) -> None:
    inventory = make_inventory("vm")
    caches = sets.cache_bytes(inventory.cpu, (0, 1)) + sets.level_2_bytes(inventory.cpu, (0, 1))
    small = attrs.evolve(FILE, bytes=4 * caches - 4096, data_bytes=4 * caches - 4096)
    with pytest.raises(UsageError, match=r"/models/k3.gguf has .* at least .*4 x the .*give a larger file"):
        plan_of(inventory, profile(small))
    enough = attrs.evolve(FILE, bytes=4 * caches + 4096, data_bytes=4 * caches + 4096)
    case = case_of(plan_of(inventory, profile(enough)), "file1.read")
    assert 4 * caches <= case.parameters["window"] <= 4 * caches + 4096
    sparse = attrs.evolve(FILE, data_bytes=4096)
    with pytest.raises(UsageError, match=r"the first .* are no hole"):
        plan_of(inventory, profile(sparse))


def test_a_folder_without_room_is_refused_with_the_sum(make_inventory) -> None:
    full = attrs.evolve(FOLDER, bytes=4096, data_bytes=4096)
    with pytest.raises(UsageError, match=r"/mnt/pmem has room for .*make room, or give another folder"):
        plan_of(make_inventory("vm"), profile(full))


def test_a_hugetlbfs_has_what_is_free_in_the_pools_of_its_pages(make_inventory) -> None:
    inventory = make_inventory("vm")
    folder = attrs.evolve(
        FOLDER, file_system="hugetlbfs", dax=False, bytes=None, data_bytes=None, page_bytes=2 << 20
    )
    with pytest.raises(UsageError, match="has room for 0"):
        plan_of(inventory, profile(folder))
    [node] = inventory.numa.nodes
    node = attrs.evolve(node, huge_pages=(HugePagePool(2 << 20, 4096, 4096),))
    inventory = attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=(node,)))
    case = case_of(plan_of(inventory, profile(folder)), "file1.read")
    assert case.parameters["window"] % (2 << 20) == 0
