"""Of what kind the memory of nodes without CPUs is: what settles it, and that nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate import host
from k3gate.records import Inventory, NumaNode, State

MakeRoot = Any
NODE = "sys/devices/system/node"
GIB = 2**30
ROWS = {0: [10, 21, 17, 28], 1: [21, 10, 28, 17], 2: [17, 28, 10, 28], 3: [28, 17, 28, 10]}


@pytest.fixture
def make_bare(make_root: MakeRoot) -> MakeRoot:
    """A machine of two nodes with CPUs and 32 GiB, and nodes 2 and 3 without CPUs, of 64 GiB."""

    def make(*changes: Any, model: str | None = None) -> Path:
        layout = {0: ("0-1,4-5", 32), 1: ("2-3,6-7", 32), 2: ("", 64), 3: ("", 64)}
        root: Path = make_root(make_root.nodes(layout, ROWS), make_root.meminfo(192), *changes)
        if model:
            text = make_root.cpuinfo(range(8)).replace("Intel(R) Xeon(R)   Platinum 8480+", model)
            make_root.put(root, {"proc/cpuinfo": text})
        return root

    return make


def kind(inventory: Inventory, node: int) -> tuple[str, str]:
    """Kind and the reason for it."""
    entry = inventory.provenance[f"numa.nodes.{node}.kind"]
    found = next(one.kind for one in inventory.numa.nodes if one.id == node)
    assert (entry.state is State.OK) is (found != "unknown")
    return found, entry.reason or ""


def node(inventory: Inventory, number: int) -> NumaNode:
    return next(one for one in inventory.numa.nodes if one.id == number)


def dax(root: Path, name: str, target: int, parents: dict[str, str], driver: str = "kmem") -> None:
    """A dax device below the parents, each with its uevent text, and the links by which it is found."""
    path = root / "sys/devices"
    for folder, uevent in parents.items():
        path /= folder
        path.mkdir(parents=True, exist_ok=True)
        if uevent:
            (path / "uevent").write_text(uevent)
    path /= name
    path.mkdir(parents=True)
    (path / "target_node").write_text(f"{target}\n")
    (path / "uevent").write_text("MAJOR=251\nMODALIAS=dax:t0\n")
    up = "../" * 4
    for folder in ("devices", f"drivers/{driver}"):
        (root / "sys/bus/dax" / folder).mkdir(parents=True, exist_ok=True)
    inside = path.relative_to(root / "sys")
    (root / "sys/bus/dax/devices" / name).symlink_to(f"{up[:9]}{inside}")
    (root / "sys/bus/dax/drivers" / driver / name).symlink_to(f"{up}{inside}")


PMEM = {
    "LNXSYSTM:00/ACPI0012:00/ndbus0": "",
    "region0": "",
    "dax0.1": "DEVTYPE=nd_dax\nDRIVER=dax_pmem\nMODALIAS=nd:t7\n",
}
CXL = {
    "platform/ACPI0017:00/root0": "DEVTYPE=cxl_port\n",
    "decoder0.0": "DEVTYPE=cxl_decoder_root\n",
    "region0": "DEVTYPE=cxl_region\nMODALIAS=cxl:t6\n",
    "dax_region0": "DEVTYPE=cxl_dax_region\nMODALIAS=cxl:t9\n",
}
ASIDE = {"platform/hmem.0": "DRIVER=dax_hmem\nMODALIAS=platform:hmem\n"}


def test_persistent_memory_by_its_dax_device(make_bare: MakeRoot) -> None:
    root = make_bare()
    dax(root, "dax0.0", 2, PMEM)
    inventory = host.read(root)
    assert kind(inventory, 2) == (
        "pmem",
        "the driver kmem made dax0.0, which is persistent memory, its memory",
    )
    assert kind(inventory, 3)[0] == "unknown"
    assert kind(inventory, 0)[0] == "dram"


def test_cxl_memory_by_its_dax_device(make_bare: MakeRoot) -> None:
    root = make_bare()
    dax(root, "dax0.0", 2, CXL)
    assert kind(host.read(root), 2)[0] == "cxl"


def test_persistent_memory_on_a_cxl_device_is_persistent(make_bare: MakeRoot) -> None:
    root = make_bare()
    dax(root, "dax0.0", 2, {"platform/ACPI0017:00/root0": "DEVTYPE=cxl_port\n", **PMEM})
    assert kind(host.read(root), 2)[0] == "pmem"


def test_a_dax_device_that_is_no_memory_settles_nothing(make_bare: MakeRoot) -> None:
    root = make_bare()
    dax(root, "dax0.0", 2, PMEM, driver="device_dax")
    assert kind(host.read(root), 2)[0] == "unknown"


def test_memory_that_the_firmware_set_aside_may_be_anything(make_bare: MakeRoot) -> None:
    root = make_bare()
    dax(root, "dax0.0", 2, ASIDE)
    found, reason = kind(host.read(root), 2)
    assert found == "unknown"
    assert "dax0.0 is memory that the firmware set aside for special use, target node 2" in reason


def test_persistent_memory_mixed_into_a_node_with_cpus_is_no_plain_dram(make_bare: MakeRoot) -> None:
    root = make_bare()
    dax(root, "dax0.0", 0, PMEM)
    found, reason = kind(host.read(root), 0)
    assert found == "unknown"
    assert "DRAM may be mixed with other memory" in reason


def test_a_persistent_region_names_its_node(make_bare: MakeRoot) -> None:
    region = "sys/bus/nd/devices/region0"
    inventory = host.read(
        make_bare({f"{region}/target_node": "3\n", f"{region}/numa_node": "1\n"}),
    )
    assert kind(inventory, 3)[0] == "pmem"
    assert kind(inventory, 1)[0] == "dram"


def blocks(target: int, numbers: list[int]) -> dict[str, str | bytes | None]:
    files: dict[str, str | bytes | None] = {"sys/devices/system/memory/block_size_bytes": "80000000\n"}
    return files | {f"{NODE}/node{target}/memory{number}/online": "1\n" for number in numbers}


def test_a_cxl_region_that_the_firmware_mapped_is_found_by_address(make_bare: MakeRoot) -> None:
    region = "sys/bus/cxl/devices/region0"
    files = {
        f"{region}/resource": "0x2080000000\n",
        f"{region}/size": "0x1000000000\n",
        f"{region}/mode": "ram\n",
        "sys/bus/cxl/devices/mem0/numa_node": "0\n",
    }
    inventory = host.read(make_bare(files, blocks(2, [65, 66]), blocks(3, [400])))
    assert kind(inventory, 2)[0] == "cxl"
    found, reason = kind(inventory, 3)
    assert found == "unknown"
    assert "there is a CXL memory device, mem0 near node 0" in reason


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["2080000000-307fffffff : System RAM (NVIDIA)"], "gpu"),
        (["2080000000-307fffffff : CXL Window 0", "  2080000000-307fffffff : System RAM"], "cxl"),
        (["2000000000-40ffffffff : CXL Window 0", "  2080000000-307fffffff : Persistent Memory"], "pmem"),
        (["2080000000-307fffffff : Soft Reserved"], "unknown"),
        (["2080000000-20ffffffff : Persistent Memory", "2100000000-30ffffffff : CXL Window 0"], "unknown"),
    ],
)
def test_the_map_of_physical_memory(make_bare: MakeRoot, lines: list[str], expected: str) -> None:
    text = "00001000-0009ffff : System RAM\n" + "\n".join(lines)
    inventory = host.read(make_bare({"proc/iomem": text}, blocks(2, [65, 66])))
    assert kind(inventory, 2)[0] == expected


def test_a_map_without_addresses_settles_nothing(make_bare: MakeRoot) -> None:
    text = "00000000-00000000 : System RAM (NVIDIA)\n"
    found, reason = kind(host.read(make_bare({"proc/iomem": text}, blocks(2, [65]))), 2)
    assert found == "unknown"
    assert "hides where (readable by root)" in reason


@pytest.mark.case("TOP-03")
def test_top_03_memory_of_gpus(make_bare: MakeRoot) -> None:
    """TOP-03: named by the NVIDIA driver, or by the device tree of POWER9 with the node's number."""
    tree = "proc/device-tree/memory@40000000000"
    inventory = host.read(
        make_bare(
            {
                "proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node:      2\nStatus:    online\n",
                f"{tree}/compatible": b"ibm,coherent-device-memory\0",
                f"{tree}/ibm,chip-id": b"\0\0\0\3",
            }
        )
    )
    assert [one.kind for one in inventory.numa.nodes] == ["dram", "dram", "gpu", "gpu"]


def test_signs_that_contradict_each_other_leave_the_kind_unknown(make_bare: MakeRoot) -> None:
    root = make_bare({"proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node: 2\n"})
    dax(root, "dax0.0", 2, PMEM)
    found, reason = kind(host.read(root), 2)
    assert found == "unknown"
    assert "contradict" in reason
    assert "pmem:" in reason
    assert "gpu:" in reason


def figures(
    target: int, initiators: list[int], bandwidth: int, latency: int, access: int = 1
) -> dict[str, str | bytes | None]:
    """An HMAT access class of a node, in the kernel's MB/s and ns."""
    base = f"{NODE}/node{target}/access{access}/initiators"
    files: dict[str, str | bytes | None] = {
        f"{base}/read_bandwidth": f"{bandwidth}\n",
        f"{base}/read_latency": f"{latency}\n",
        f"{base}/write_bandwidth": "0\n",
    }
    return files | {f"{base}/node{number}/x": "" for number in initiators}


def test_figures_of_the_firmware_are_in_base_units(make_bare: MakeRoot) -> None:
    inventory = host.read(make_bare(figures(0, [0], 131_072, 85)))
    assert node(inventory, 0).performance == {
        "read_bandwidth": pytest.approx(131.072e9),
        "read_latency": pytest.approx(85e-9),
    }
    assert node(inventory, 1).performance == {}
    assert inventory.provenance["numa.nodes.0.performance"].source == f"{NODE}/node0/access1/initiators"


@pytest.mark.case("TOP-03")
@pytest.mark.parametrize(
    ("bandwidth", "latency", "expected", "because"),
    [
        (400_000, 110, "hbm", "400 GB/s for it, 131 GB/s for the memory of node 0: far more"),
        (64_000, 250, "unknown", "64.0 GB/s for it, 131 GB/s for the memory of node 0 at a longer latency"),
        (400_000, 250, "unknown", "at a longer latency, which is not how HBM differs"),
        (131_072, 90, "unknown", "131 GB/s for it, 131 GB/s for the memory of node 0"),
    ],
)
def test_top_03_the_firmwares_figures_tell_hbm(
    make_bare: MakeRoot, bandwidth: int, latency: int, expected: str, because: str
) -> None:
    """TOP-03: far more bandwidth than the CPU node's memory at about its latency is HBM; else unknown."""
    inventory = host.read(make_bare(figures(0, [0], 131_072, 85), figures(2, [0], bandwidth, latency)))
    found, reason = kind(inventory, 2)
    assert found == expected
    assert because in reason


def test_figures_with_nothing_to_compare_them_with(make_bare: MakeRoot) -> None:
    found, reason = kind(host.read(make_bare(figures(2, [0], 400_000, 110))), 2)
    assert found == "unknown"
    assert "nothing for the memory of the nearest CPUs" in reason


def test_what_is_nearest_to_an_accelerator_is_not_called_hbm(make_bare: MakeRoot) -> None:
    own, there = figures(0, [0], 131_072, 85), figures(2, [0], 400_000, 110)
    found, reason = kind(host.read(make_bare(own, there, figures(2, [9], 900_000, 50, access=0))), 2)
    assert found == "unknown"
    assert "node 9, has no CPUs: it may be an accelerator's own" in reason


def test_class_0_of_an_accelerator_is_not_what_cpus_see(make_bare: MakeRoot) -> None:
    inventory = host.read(make_bare(figures(2, [9], 900_000, 50, access=0)))
    assert node(inventory, 2).performance == {}


MAX = "Intel(R) Xeon(R) CPU Max 9480"


@pytest.mark.case("TOP-03")
def test_top_03_hbm_by_the_processors_name(make_bare: MakeRoot) -> None:
    """TOP-03: beside each CPU node of a Xeon Max a node of 64 GiB, nearer to it than to any other."""
    inventory = host.read(make_bare(model=MAX))
    assert [one.kind for one in inventory.numa.nodes] == ["dram", "dram", "hbm", "hbm"]
    assert [one.nearest for one in inventory.numa.nodes] == [None, None, 0, 1]


def test_hbm_is_not_told_by_name_where_another_memory_device_is(make_bare: MakeRoot) -> None:
    root = make_bare({"sys/bus/cxl/devices/mem0/numa_node": "0\n"}, model=MAX)
    assert kind(host.read(root), 2)[0] == "unknown"


def test_a_node_too_large_for_hbm_is_not_called_so(make_bare: MakeRoot, make_root: MakeRoot) -> None:
    root = make_bare(model=MAX)
    make_root.put(root, {f"{NODE}/node3/meminfo": f"Node 3 MemTotal: {256 * 2**20} kB\n"})
    assert {one.kind for one in host.read(root).numa.nodes[2:]} == {"unknown"}


@pytest.mark.parametrize(("model", "size"), [(MAX, 32), ("Fujitsu A64FX", 32)])
def test_memory_that_may_be_hbm_alone_is_not_called_dram(make_root: MakeRoot, model: str, size: int) -> None:
    text = make_root.cpuinfo(range(8)).replace("Intel(R) Xeon(R)   Platinum 8480+", model)
    inventory = host.read(make_root({"proc/cpuinfo": text}))
    assert {one.kind for one in inventory.numa.nodes} == {"unknown"}
    assert "by its name the processor has HBM" in kind(inventory, 0)[1]


def test_memory_behind_a_large_cache_is_not_called_dram(make_root: MakeRoot) -> None:
    cache = f"{NODE}/node0/memory_side_cache/index1"
    inventory = host.read(make_root({f"{cache}/size": "103079215104\n"}))
    assert node(inventory, 0).memory_side_cache_bytes == 96 * GIB
    found, reason = kind(inventory, 0)
    assert found == "unknown"
    assert "a memory-side cache of 96.0 GiB stands before it" in reason
    assert kind(inventory, 1)[0] == "dram"


def test_a_small_memory_side_cache_says_nothing(make_root: MakeRoot) -> None:
    inventory = host.read(make_root({f"{NODE}/node0/memory_side_cache/index1/size": "8388608\n"}))
    assert node(inventory, 0).memory_side_cache_bytes == 8 * 2**20
    assert kind(inventory, 0)[0] == "dram"


def test_a_node_whose_cpus_are_all_offline_is_dram(make_bare: MakeRoot) -> None:
    found, reason = kind(host.read(make_bare({f"{NODE}/node2/cpu8/online": "0\n"})), 2)
    assert found == "dram"
    assert "offline" in reason


def test_a_node_without_cpus_and_memory(make_bare: MakeRoot) -> None:
    found, reason = kind(host.read(make_bare({f"{NODE}/node2/meminfo": "Node 2 MemTotal: 0 kB\n"})), 2)
    assert found == "unknown"
    assert "neither CPUs nor memory" in reason


def test_the_nearest_of_nodes_that_are_equally_near_is_told_as_such(make_bare: MakeRoot) -> None:
    inventory = host.read(make_bare({f"{NODE}/node2/distance": "80 80 10 80\n"}))
    assert node(inventory, 2).nearest == 0
    assert inventory.provenance["numa.nodes.2.nearest"].reason == (
        "nodes 0-1 are equally near; the first is named"
    )


def test_without_distances_no_node_is_nearest(make_bare: MakeRoot) -> None:
    rows: dict[str, str | bytes | None] = {f"{NODE}/node{n}/distance": "far\n" for n in range(4)}
    inventory = host.read(make_bare(rows))
    assert node(inventory, 2).nearest is None
    assert inventory.provenance["numa.nodes.2.nearest"].state is State.NOT_PRESENT


FILES = (
    "sys/bus/dax/devices/dax0.0/target_node",
    "sys/bus/dax/devices/dax0.0/uevent",
    "sys/bus/dax/devices/uevent",
    "sys/bus/dax/drivers/kmem/dax0.0",
    "sys/bus/nd/devices/region0/target_node",
    "sys/bus/cxl/devices/mem0/numa_node",
    "sys/bus/cxl/devices/region0/resource",
    "sys/bus/cxl/devices/region0/size",
    "sys/bus/cxl/devices/region0/mode",
    "sys/devices/system/memory/block_size_bytes",
    f"{NODE}/node2/memory65/online",
    f"{NODE}/node2/memory_side_cache/index1/size",
    f"{NODE}/node2/access0/initiators/read_bandwidth",
    f"{NODE}/node2/access0/initiators/read_latency",
    f"{NODE}/node2/access1/initiators/read_bandwidth",
    f"{NODE}/node2/access1/initiators/node0",
    f"{NODE}/node0/access1/initiators/read_bandwidth",
    f"{NODE}/node2/distance",
    "proc/driver/nvidia/gpus/0004:05:00.0/numa_status",
    "proc/device-tree/memory@0/compatible",
    "proc/device-tree/memory@0/ibm,chip-id",
    "proc/iomem",
)
LIKELY = st.sampled_from(
    [
        *("", "0", "2", "-1", "0x2080000000", "80000000", "ram", "400000", "1e9", "Node: 2", "99999999999"),
        *("DRIVER=kmem", "MODALIAS=nd:t7", "10 10 10 10", "ibm,coherent-device-memory"),
        *("0-ffffffffff : Persistent Memory", "0-0 : CXL Window 0"),
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries({name: LIKELY | st.text(max_size=60) | st.binary(max_size=60) for name in FILES})
)
def test_no_text_in_these_files_is_an_error(make_bare: MakeRoot, files: dict[str, str | bytes]) -> None:
    encoded = {
        name: text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        for name, text in files.items()
    }
    inventory = host.read(make_bare(encoded))
    assert {one.kind for one in inventory.numa.nodes} <= {"dram", "hbm", "pmem", "cxl", "gpu", "unknown"}
    host.document(inventory)
