"""The PCI tree, network adapters, and the findings about links, places and bridges, on drawn machines."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate import host, links
from k3gate.host import capture, pci_config, pci_ids, text
from k3gate.links import LinkState
from k3gate.records import Inventory, PcieLink
from tests.host.pci_drawings import BRIDGE, GPU, NIC, NVIDIA, NVME, config, put_device

MakeRoot = Any
FAST, IDLE = (32.0, 16), (2.5, 16)


def codes(inventory: Inventory) -> set[str]:
    return {finding.code for finding in inventory.findings}


def finding(inventory: Inventory, code: str) -> Any:
    (found,) = [one for one in inventory.findings if one.code == code]
    return found


def device(inventory: Inventory, address: str) -> Any:
    return next(one for one in inventory.pci or () if one.address == address)


def switch(root: Path, *, acs: int | None = None, width: int = 16) -> Path:
    """A root port at node 0 with a switch below, and two GPUs below that; a drive at a port of node 1."""
    up = "pci0000:00/0000:00:01.0"
    put_device(root, up, now=FAST, best=FAST, node=0, config=config(port=4))
    put_device(root, f"{up}/0000:01:00.0", now=(32.0, width), best=FAST, node=0, config=config(port=5))
    for place in (0, 1):
        down = f"{up}/0000:01:00.0/0000:02:0{place}.0"
        put_device(root, down, now=FAST, best=FAST, node=0, config=config(port=6, acs=acs))
        card = f"{down}/0000:0{3 + place}:00.0"
        put_device(
            root,
            card,
            code=GPU,
            vendor=NVIDIA,
            now=IDLE,
            best=FAST,
            node=0,
            more={"iommu_group/type": "DMA\n"},
        )
    put_device(root, "pci0000:80/0000:80:01.0", now=(16.0, 4), best=(32.0, 4), node=1)
    put_device(root, "pci0000:80/0000:80:01.0/0000:81:00.0", code=NVME, now=(16.0, 4), best=(16.0, 4), node=1)
    return root


def test_each_function_has_its_kind_its_way_and_both_ends_of_its_link(make_root: MakeRoot) -> None:
    inventory = host.read(switch(make_root()))
    assert [(one.address, one.kind, one.port) for one in inventory.pci or ()] == [
        ("0000:00:01.0", "bridge", "root"),
        ("0000:01:00.0", "bridge", "upstream"),
        ("0000:02:00.0", "bridge", "downstream"),
        ("0000:02:01.0", "bridge", "downstream"),
        ("0000:03:00.0", "gpu", None),
        ("0000:04:00.0", "gpu", None),
        ("0000:80:01.0", "bridge", None),
        ("0000:81:00.0", "nvme", None),
    ]
    one = device(inventory, "0000:03:00.0")
    assert one.above == ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0")
    assert one.link == PcieLink(
        "0000:03:00.0",
        2.5,
        16,
        32.0,
        16,
        4e9,
        pytest.approx(63.0e9, rel=1e-3),
        32.0,
        16,
        "0000:02:00.0",
        32.0,
        16,
    )
    assert (one.node, one.node_source, one.iommu) == (0, "numa_node", "DMA")
    page = text.page(inventory)
    assert "0000:03:00.0, 0000:04:00.0 meet behind 0000:00:01.0, which carries 63.0 GB/s" in " ".join(
        page.split()
    )


@pytest.mark.case("PCI-01")
def test_pci_01_an_idle_link_at_generation_1_is_no_finding_and_one_that_stays_there_is_below(
    make_root: MakeRoot,
) -> None:
    inventory = host.read(switch(make_root()))
    assert not codes(inventory) & {"link_narrow", "drive_link_below_best"}
    assert "2.5 GT/s x16 of 32 GT/s x16 (idle: it slows down while nothing is sent)" in " ".join(
        text.page(inventory).split()
    )
    link = device(inventory, "0000:03:00.0").link
    full, stuck = LinkState(link.address, 32.0, 16), LinkState(link.address, 2.5, 16)
    assert links.judge(link, [full, full]).word == links.BEST
    assert links.judge(link, [full, stuck]).word == links.BELOW
    idle = links.judge(link, [])
    assert idle.word == links.IDLE and "slow down while nothing is sent" in idle.reason
    assert links.judge(None, [full]).word == links.UNKNOWN


def test_fewer_lanes_than_both_ends_have_are_a_finding_also_when_idle(make_root: MakeRoot) -> None:
    inventory = host.read(switch(make_root(), width=8))
    told = finding(inventory, "link_narrow")
    assert (
        told.observed == "the switch 0000:01:00.0 above GPUs uses 8 of 16 lanes (below 0000:00:01.0, node 0)"
    )
    assert told.expected == "16 lanes, 63.0 GB/s in one direction"


def test_what_one_end_cannot_do_is_told_apart_from_a_fault(make_root: MakeRoot) -> None:
    root = switch(make_root())
    put_device(root, "pci0000:90/0000:90:01.0", now=(8.0, 8), best=(8.0, 8), node=1)
    put_device(
        root, "pci0000:90/0000:90:01.0/0000:91:00.0", code=GPU, vendor=NVIDIA, now=(2.5, 8), best=FAST, node=1
    )
    inventory = host.read(root)
    assert finding(inventory, "slot_below_device").observed == "GPU 0000:91:00.0: 8 GT/s x8 of 32 GT/s x16"
    assert "link_narrow" not in codes(inventory)
    assert "(idle: it slows down while nothing is sent; the device could 32 GT/s x16)" in " ".join(
        text.page(inventory).split()
    )


def test_gpus_that_share_a_link_are_told_with_what_it_carries(make_root: MakeRoot) -> None:
    told = finding(host.read(switch(make_root())), "gpus_share_link")
    assert told.observed == "0000:03:00.0 and 0000:04:00.0 behind 0000:00:01.0: 63.0 GB/s for 126 GB/s"


def test_all_gpus_at_one_socket_of_two(make_root: MakeRoot) -> None:
    told = finding(host.read(switch(make_root())), "gpus_on_one_socket")
    assert told.title == "All 2 GPUs hang on socket 0 of 2"


def test_a_gpu_at_a_node_without_memory(make_root: MakeRoot) -> None:
    root = make_root(
        {"sys/devices/system/node/node1/meminfo": "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\n"},
    )
    put_device(root, "pci0000:05/0000:05:00.0", code=GPU, vendor=NVIDIA, node=1)
    assert finding(host.read(root), "gpu_node_without_memory").observed == "0000:05:00.0 at node 1"


@pytest.mark.case("PCI-04")
def test_pci_04_a_node_that_is_not_told_is_derived_or_unknown(make_root: MakeRoot) -> None:
    root = make_root()
    for bus, cpus in (("05", "2-3,6-7"), ("06", "0-7"), ("07", None), ("08", "0-1")):
        put_device(root, f"pci0000:{bus}/0000:{bus}:00.0", code=GPU, vendor=NVIDIA, node=-1, cpus=cpus)
    inventory = host.read(root)
    assert [(one.node, one.node_source) for one in inventory.pci or ()] == [
        (1, "local_cpulist"),
        (None, None),
        (None, None),
        (0, "local_cpulist"),
    ]
    told = finding(inventory, "gpu_node_unknown")
    assert told.title == "The NUMA node of 2 GPUs is not told"
    assert "0000:06:00.0 and 0000:07:00.0" in told.observed and told.remedy.startswith(
        "Measure copies from every node"
    )


@pytest.mark.case("PCI-04")
def test_pci_04_on_a_machine_of_one_node_there_is_nothing_to_ask(make_root: MakeRoot) -> None:
    root = make_root(make_root.processors([[0], [1]]), make_root.nodes({0: ("0-1", 64)}), bare=True)
    put_device(root, "pci0000:05/0000:05:00.0", code=GPU, vendor=NVIDIA, node=-1)
    inventory = host.read(root)
    assert (inventory.gpus or ())[0].node == 0
    assert not codes(inventory) & {"gpu_node_unknown", "gpus_on_one_socket"}


@pytest.mark.case("PCI-15")
@pytest.mark.parametrize(("passing", "severity"), [(False, "medium"), (True, "low")])
def test_pci_15_bridges_that_redirect_copies_between_gpus(
    make_root: MakeRoot, passing: bool, severity: str
) -> None:
    """ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+, with and without iommu=pt."""
    root = switch(make_root({"proc/cmdline": "quiet iommu=pt\n" if passing else "quiet\n"}), acs=0b11101)
    if passing:
        for card in ("0000:03:00.0", "0000:04:00.0"):
            (root / f"sys/bus/pci/devices/{card}/iommu_group/type").write_text("identity\n")
    inventory = host.read(root)
    assert device(inventory, "0000:02:00.0").redirects == ("requests", "completions")
    told = finding(inventory, "peer_copies_redirected")
    assert told.severity.value == severity
    assert "0000:02:00.0, 0000:02:01.0" in told.observed
    assert "time limit" in told.remedy and "changes no register" in told.remedy
    assert "setpci" not in told.remedy


def test_bridges_without_redirection_are_no_finding(make_root: MakeRoot) -> None:
    inventory = host.read(switch(make_root(), acs=0b00001))
    assert device(inventory, "0000:02:00.0").redirects == ()
    assert "peer_copies_redirected" not in codes(inventory)


@pytest.mark.case("PCI-18")
def test_pci_18_errors_of_a_link_are_told_and_a_missing_file_is_unknown(make_root: MakeRoot) -> None:
    root = make_root()
    counted = {"aer_dev_correctable": "RxErr 100\nBadDLLP 40\nTOTAL_ERR_COR 140\n"}
    put_device(root, "pci0000:05/0000:05:00.0", code=GPU, vendor=NVIDIA, more=counted)
    put_device(root, "pci0000:06/0000:06:00.0", code=GPU, vendor=NVIDIA)
    inventory = host.read(root)
    assert device(inventory, "0000:05:00.0").corrected == 140
    assert device(inventory, "0000:06:00.0").corrected is None
    assert finding(inventory, "device_link_errors").observed == "0000:05:00.0: 140 corrected, 0 not"


def test_names_come_from_pci_ids_and_slots_from_the_firmware(make_root: MakeRoot, tmp_path: Path) -> None:
    root = switch(make_root())
    (root / "usr/share/misc").mkdir(parents=True)
    listed = "# a comment\n10de  NVIDIA Corporation\n\t1234  An Example [X]\n\t\t10de 0001  A board\n\t9999  Other\n"
    (root / "usr/share/misc/pci.ids").write_text(
        f"{listed}8086  Intel Corporation\nC 03  Display controller\n"
    )
    inventory = host.read(root)
    one = device(inventory, "0000:03:00.0")
    assert (one.vendor, one.device) == ("NVIDIA Corporation", "An Example [X]")
    assert capture.write(tmp_path / "a", root).differs == ()
    kept = gzip.decompress((tmp_path / "a").read_bytes())
    assert b"An Example" in kept and b"Other" not in kept and b"Display controller" not in kept
    assert host.read(tmp_path / "a").pci == inventory.pci
    assert pci_ids.parse(listed, {(0x10DE, 0x9999)})[(0x10DE, 0x9999)] == "Other"


def test_a_capture_holds_no_serial_number_of_a_card(make_root: MakeRoot, tmp_path: Path) -> None:
    root = make_root()
    put_device(root, "pci0000:00/0000:00:01.0", config=config(port=4, acs=0b11101, secret=b"S3CRETNO"))
    assert capture.write(tmp_path / "a", root).differs == ()
    assert b"S3CRETNO" not in gzip.decompress((tmp_path / "a").read_bytes())
    assert host.read(tmp_path / "a").pci == host.read(root).pci


@given(st.binary(max_size=5000))
def test_any_bytes_of_a_configuration_space_are_survived(raw: bytes) -> None:
    clean = pci_config.without_identity(raw)
    assert len(clean) == len(raw)
    assert pci_config.parse(clean) == pci_config.parse(raw)


def test_adapters_and_ports_with_their_rates_and_without_their_names(make_root: MakeRoot) -> None:
    root = make_root()
    for bus, node in (("21", 0), ("22", 1)):
        put_device(
            root,
            f"pci0000:{bus}/0000:{bus}:00.0",
            code=NIC,
            now=(16.0, 16),
            best=(16.0, 16),
            node=node,
            driver="mlx5_core",
        )
    for name, bus, kind, speed, state in (
        ("eth0", "21", "1", "100000", "up"),
        ("ib0", "22", "32", "-1", "up"),
        ("eth1", "21", "1", "4294967295", "down"),
    ):
        folder = root / f"sys/class/net/{name}"
        folder.mkdir(parents=True)
        for file, value in (("type", kind), ("speed", speed), ("operstate", state), ("mtu", "9000")):
            (folder / file).write_text(f"{value}\n")
        (folder / "address").write_text("52:54:00:12:34:56\n")
        (folder / "device").symlink_to(f"/sys/bus/pci/devices/0000:{bus}:00.0")
    (root / "sys/class/net/lo").mkdir()
    port = root / "sys/class/infiniband/mlx5_1/ports/1"
    port.mkdir(parents=True)
    for file, value in (
        ("rate", "400 Gb/sec (4X NDR)"),
        ("state", "4: ACTIVE"),
        ("link_layer", "InfiniBand"),
    ):
        (port / file).write_text(f"{value}\n")
    (root / "sys/class/infiniband/mlx5_1/device").symlink_to("/sys/bus/pci/devices/0000:22:00.0")
    inventory = host.read(root)
    assert [
        (one.name, one.kind, one.bytes_per_s, one.state, one.node) for one in inventory.network or ()
    ] == [
        ("eth0", "ethernet", 12.5e9, "up", 0),
        ("eth1", "ethernet", None, "down", 0),
        ("ib0", "infiniband", None, "up", 1),
        ("mlx5_1/1", "infiniband", 50e9, "active", 1),
    ]
    assert (inventory.network or ())[2].verbs == "mlx5_1"
    assert "52:54" not in str(host.document(inventory))
    assert "InfiniBand, active, 400 Gbit/s, mlx5_core, node 1, 16 GT/s x16" in " ".join(
        text.page(inventory).split()
    )


def test_a_machine_whose_files_tell_nothing_of_pci_says_so(make_root: MakeRoot) -> None:
    inventory = host.read(make_root())
    assert (inventory.pci, inventory.gpus, inventory.network) == (None, None, None)
    for field in ("pci", "gpus", "network"):
        assert inventory.provenance[field].reason
    assert "GPUs              unknown: absent: neither PCI" in text.page(inventory)


def test_virtual_functions_are_listed_and_not_drawn(make_root: MakeRoot) -> None:
    root = make_root()
    put_device(root, "pci0000:21/0000:21:00.0", code=NIC)
    put_device(root, "pci0000:21/0000:21:00.1", code=NIC)
    (root / "sys/devices/pci0000:21/0000:21:00.1/physfn").symlink_to("../0000:21:00.0")
    inventory = host.read(root)
    assert device(inventory, "0000:21:00.1").virtual_of == "0000:21:00.0"
    assert "PCI devices       2, of which 1 are" in text.page(inventory)


def test_a_bridge_is_a_bridge(make_root: MakeRoot) -> None:
    root = make_root()
    put_device(root, "pci0000:00/0000:00:01.0", code=BRIDGE, config=config(port=4)[:64])
    one = device(host.read(root), "0000:00:01.0")
    assert (one.kind, one.port, one.redirects) == ("bridge", None, None), (
        "64 bytes are all that everybody may read"
    )
