"""What the storage probe plans: which places are storage, what fits there, which cases a budget holds."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.probes import storage_plan
from k3gate.probing.contract import Planned
from k3gate.records import (
    BlockLayer,
    Drive,
    Inventory,
    LoadFile,
    LoadPath,
    PcieLink,
    Profile,
    Storage,
    StoragePath,
)

QUICK, STANDARD, SMOKE = Profile("quick", 180.0), Profile("standard", 1200.0), Profile("smoke", 20.0)
GIB = 1 << 30
LINK = PcieLink("0000:01:00.0", 8.0, 4, 8.0, 4, 3.94e9, 3.94e9)


def lying(path: str, *drives: str, **changes: Any) -> StoragePath:
    return attrs.evolve(
        StoragePath(path, "block", f"ext4 on {len(drives)} NVMe drive", "/", "ext4", "259:0", (), drives),
        **changes,
    )


def drive(name: str, node: int | None = None) -> Drive:
    return Drive(name, name, kind="nvme", node=node, link=LINK)


def place(path: str = "/models", **changes: Any) -> LoadPath:
    return attrs.evolve(LoadPath(path, path, (), 100 * GIB), **changes)


def plan(
    inventory: Inventory,
    *places: LoadPath,
    lies: tuple[StoragePath, ...] = (),
    drives: tuple[Drive, ...] = (),
    profile: Profile = QUICK,
    peer: bool = True,
) -> Planned:
    storage = Storage(drives or (drive("nvme0n1"),), lies or (lying("/models", "nvme0n1"),))
    machine = attrs.evolve(inventory, storage=storage)
    return storage_plan.plan("storage", machine, attrs.evolve(profile, load_paths=places), peer)


def names(planned: Planned) -> list[str]:
    return [case.name for case in planned.cases]


def of(planned: Planned, name: str) -> Any:
    return next(case for case in planned.cases if case.name == name)


def test_a_folder_without_shards_gets_a_file_of_its_own_before_anything_is_read(make_inventory) -> None:
    planned = plan(make_inventory(), place())
    assert names(planned)[:2] == ["path1.file", "path1.direct.1m.t1.q32"]
    made = of(planned, "path1.file")
    assert (made.rounds, made.parameters["scratch"]) == (1, ["/models"])
    assert of(planned, "path1.direct.1m.t1.q32").labels["scope"] == "all"
    assert {"path1.cold.read", "path1.cold.mmap", "path1.cold.safetensors", "warm", "hash"} <= set(
        names(planned)
    )
    assert sum(case.seconds * case.rounds for case in planned.cases) < 30


def test_shards_that_lie_there_are_read_and_nothing_is_made(make_inventory) -> None:
    shards = tuple(LoadFile(f"/models/{n}.safetensors", GIB, 1, n) for n in range(20))
    planned = plan(make_inventory(), place(files=shards, free_bytes=0, read_only=True, writable=False))
    assert "path1.file" not in names(planned)
    case = of(planned, "path1.direct.1m.t1.q32")
    assert case.parameters["scratch"] == [] and case.labels["made"] is False
    (source,) = case.parameters["sources"]
    assert source["bytes"] == 4 * GIB and len(source["files"]) == 4


def test_tiny_shards_are_no_measure_and_a_file_of_its_own_is_read_instead(make_inventory) -> None:
    shards = tuple(LoadFile(f"/models/{n}.safetensors", 5 << 20, 1, n) for n in range(3))
    planned = plan(make_inventory(), place(files=shards))
    assert names(planned)[:2] == ["path1.file", "path1.direct.1m.t1.q32"]
    assert of(planned, "path1.direct.1m.t1.q32").labels["made"] is True
    (left,) = [one for one in planned.left_out if one.case == "path1.shards"]
    assert "3 shards of 15.7 MB at /models are less than the 134.2 MB that can be measured" in left.reason
    stuck = plan(make_inventory(), place(files=shards, writable=False))
    assert "path1.file" not in names(stuck), "what cannot be replaced is read as far as it goes"
    assert of(stuck, "path1.direct.1m.t1.q1").labels["made"] is False


@pytest.mark.case("NVM-02")
def test_memory_and_loop_devices_are_refused_as_storage_with_what_to_do(make_inventory) -> None:
    ram = lying("/dev/shm", kind="memory", summary="tmpfs (memory)", reason="tmpfs is memory and no storage")
    loop = lying("/mnt", "sda", layers=(BlockLayer("loop0", "7:0", "loop"),))
    planned = plan(make_inventory(), place("/dev/shm"), place("/mnt"), lies=(ram, loop))
    assert names(planned) == ["path1.refused", "path2.refused"]
    first, second = (case.parameters["why"] for case in planned.cases)
    assert "tmpfs is memory and no storage" in first and "--storage" in first
    assert "loop device" in second and "--storage" in second


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"read_only": True}, "is read-only and no shards lie there"),
        ({"writable": False}, "no file may be made in /models"),
        ({"free_bytes": 100 << 20}, "half of the 0.1 GB that are free at /models are less than the 0.1 GB"),
    ],
)
def test_where_no_file_can_be_made_the_cases_are_left_out_with_the_sum(
    make_inventory, changes: dict[str, Any], said: str
) -> None:
    planned = plan(make_inventory(), place(**changes))
    assert names(planned) == []
    (left,) = [one for one in planned.left_out if one.case == "path1.*"]
    assert said in left.reason and "--storage" in left.reason


def test_places_on_different_drives_are_read_together_too(make_inventory) -> None:
    lies = (lying("/a", "nvme0n1"), lying("/b", "nvme1n1"))
    both = (drive("nvme0n1"), drive("nvme1n1"))
    planned = plan(make_inventory(), place("/a"), place("/b"), lies=lies, drives=both)
    case = of(planned, "together.direct.1m.t1.q32")
    assert (case.labels["scope"], case.labels["path"], case.labels["threads"]) == ("all", "/a, /b", 2)
    assert case.labels["drives"] == "nvme0n1, nvme1n1" and case.parameters["scratch"] == ["/a", "/b"]
    assert of(planned, "path2.direct.1m.t1.q32").labels["scope"] == "path"
    same = plan(make_inventory(), place("/a"), place("/b"), lies=(lies[0], lying("/b", "nvme0n1")))
    assert not [name for name in names(same) if name.startswith("together")]
    assert of(same, "path2.direct.1m.t1.q32").labels["scope"] == "all"


def test_threads_stay_on_the_node_of_the_drive_and_the_far_node_is_read_from_besides(make_inventory) -> None:
    machine = make_inventory("bare_metal")
    planned = plan(machine, place(), drives=(drive("nvme0n1", node=1),), profile=STANDARD)
    near = of(planned, "path1.direct.1m.t1.q32")
    far = of(planned, "path1.direct.1m.t1.q32.node0")
    assert near.labels["cpu_node"] == 1 and far.labels["cpu_node"] == 0
    cpus = {node.id: set(node.cpus) for node in machine.numa.nodes}
    assert set(near.parameters["cpus"]) <= cpus[1] and set(far.parameters["cpus"]) <= cpus[0]
    assert far.labels["scope"] == "node"


@pytest.mark.case("NVM-09")
def test_blocks_are_whole_sectors_of_any_drive(make_inventory) -> None:
    planned = plan(make_inventory(), place(), profile=STANDARD)
    blocks = {case.parameters["block"] for case in planned.cases if "block" in case.parameters}
    assert blocks == {128 << 10, 1 << 20, 16 << 20}
    assert all(block % 4096 == 0 for block in blocks)


@pytest.mark.case("NVM-07")
def test_a_long_profile_reads_on_end_and_a_short_one_says_why_not(make_inventory) -> None:
    course = of(plan(make_inventory(), place(), profile=STANDARD), "path1.course")
    assert course.parameters["seconds"] >= 60 and course.rounds == 1
    short = plan(make_inventory(), place())
    assert "path1.course" not in names(short)
    assert any(one.case == "path1.course" and "standard" in one.reason for one in short.left_out)


def test_what_would_be_under_way_at_once_must_fit_many_times(make_inventory) -> None:
    small = LoadFile("/models/x.gguf", 100 << 20, 1, 1)
    planned = plan(make_inventory(), place(files=(small,), writable=False))
    assert "path1.direct.128k.t1.q32" in names(planned)
    assert "path1.direct.1m.t1.q32" not in names(planned)
    left = next(one for one in planned.left_out if one.case == "path1.direct.1m.t1.q32")
    assert "less than 4 x the 33.6 MB that are under way at once" in left.reason


def test_without_fio_its_case_says_how_to_install_it(make_inventory) -> None:
    planned = plan(make_inventory(), place(), peer=False)
    assert "apt-get install fio" in of(planned, "path1.fio").parameters["why"]
    assert "path1.fio.1m.t1.q32" in names(plan(make_inventory(), place()))


def test_the_shortest_profile_and_a_run_without_a_place_read_nothing(make_inventory) -> None:
    for planned in (plan(make_inventory(), place(), profile=SMOKE), plan(make_inventory())):
        assert names(planned) == [] and [one.case for one in planned.left_out] == ["*"]
