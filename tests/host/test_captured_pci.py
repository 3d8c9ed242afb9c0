"""PCI, GPUs and links of the captured machines, against their expected.json and against other tools' reading."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from k3gate import host, links
from k3gate.host import gpus, nvidia_smi, nvml, pci_config
from k3gate.links import LinkState
from k3gate.records import Gpu
from tests.host.recorded_nvml import RecordedNvml

MACHINES = Path(__file__).resolve().parents[3] / "shared" / "machines"

pytestmark = pytest.mark.skipif(
    not MACHINES.is_dir(), reason="the captured machines are not beside the checkout"
)

RECORDINGS = (
    *("sc-gcp-8xh100", "sc-2xb200", "sc-aws-16xk80", "sc-2s-cascadelake-8xt4-metal"),
    *("nvidia-smi-single-gpus-a/a100-sxm4-v12", "nvidia-smi-single-gpus-a/a10g"),
    *("nvidia-smi-single-gpus-a/rtx-3080-v12", "nvidia-smi-single-gpus-a/gtx-1070-ti"),
)
_RATES = {"1": 2.5, "2": 5.0, "3": 8.0, "4": 16.0, "5": 32.0}


def recording(name: str) -> bytes:
    path = MACHINES / name
    return (path / "nvidia-smi-q.xml" if path.is_dir() else path.with_suffix(".xml")).read_bytes()


def expected(name: str) -> list[dict[str, Any]]:
    folder, _, file = name.partition("/")
    told = json.loads((MACHINES / folder / "expected.json").read_text())
    found = (
        told[f"{file}.xml"]
        if file and f"{file}.xml" in told
        else told.get("gpus") or told["files"][f"{file}.xml"]
    )
    return list(found)


def answered(name: str) -> list[Gpu]:
    return list(gpus._nvidia([], nvml.ask(RecordedNvml(recording(name)))))


@pytest.mark.parametrize("name", RECORDINGS)
def test_each_expected_value_through_the_recorded_library(name: str) -> None:
    found, wanted = answered(name), expected(name)
    assert len(found) == len(wanted)
    for gpu, told in zip(found, wanted, strict=True):
        assert gpu.address == told["id"][4:].lower() and gpu.name == told["name"]
        # Of the partitioned card the source took the memory of its first part.
        whole = gpu.parts[0] if gpu.parts else gpu
        assert whole.memory_bytes == int(told["memory_total"].split()[0]) * 2**20
        assert gpu.temperature == float(told["temp"].split()[0])
        link = gpu.link
        assert link is not None and link.gt_per_s == _RATES[told["gen_current"]]
        assert link.width == int(told["width_current"].removesuffix("x"))
        if told.get("gen_max"):
            assert link.best_gt_per_s == _RATES[told["gen_max"]]
            assert link.best_width == int(told["width_max"].removesuffix("x"))
        else:
            assert link.best_gt_per_s is None and "link" in gpu.unknown
        if told.get("power_limit"):
            assert gpu.power_limit_w == pytest.approx(float(told["power_limit"].split()[0]))
        if told.get("power_draw"):
            number = re.fullmatch(r"([\d.]+) W", told["power_draw"])
            assert gpu.power_w == (pytest.approx(float(number[1])) if number else None)
        if told.get("ecc"):
            assert gpu.ecc is (told["ecc"] == "Enabled")
        if told.get("mig"):
            assert gpu.partitioned is ({"Enabled": True, "Disabled": False}.get(told["mig"]))


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_nvidia_smi_printed_tells_the_same_as_the_library(name: str) -> None:
    fields = [
        one for one in Gpu.__attrs_attrs__ if one.name not in ("source", "power_source", "unknown", "driver")
    ]
    printed = list(gpus._nvidia([], nvidia_smi.parse(recording(name))))
    for one, other in zip(printed, answered(name), strict=True):
        for field in fields:
            assert getattr(one, field.name) == getattr(other, field.name), field.name


def codes(name: str) -> set[str]:
    return {finding.code for finding in host.read(MACHINES / name).findings}


def test_the_findings_of_each_machine() -> None:
    """T4 with 8 of 16 lanes; 8 x H100 and 2 x B200 at their best, idle or not; 16 old cards idle at generation 1."""
    assert {"link_narrow", "gpu_bar_small"} <= codes("sc-2s-cascadelake-8xt4-metal")
    for name in ("sc-gcp-8xh100", "sc-2xb200", "sc-aws-16xk80"):
        assert not codes(name) & {
            "link_narrow",
            "gpu_bar_small",
            "gpu_partitioned",
            "gpu_memory_errors",
            "gpu_lost",
        }
    k80 = answered("sc-aws-16xk80")
    assert len(k80) == 16 and all(links.slow(gpu.link) and not links.narrow(gpu.link) for gpu in k80)
    assert all(links.judge(gpu.link, []).word == links.IDLE for gpu in k80)
    # The card could do generation 5; the machine gives it 4.
    assert "slot_below_device" in codes("sc-gcp-8xh100") and "slot_below_device" not in codes("sc-2xb200")


@pytest.mark.case("PCI-01")
def test_pci_01_idle_at_generation_1_is_no_finding_and_below_the_best_under_load_is() -> None:
    """T4 with 8 of 16 lanes: two of them idle. What a run saw of them while they copied decides."""
    cards = answered("sc-2s-cascadelake-8xt4-metal")
    assert sorted(gpu.link.gt_per_s for gpu in cards if gpu.link) == [2.5, 2.5, *[8.0] * 6]
    for gpu in cards:
        assert gpu.link is not None and links.narrow(gpu.link)
        assert links.judge(gpu.link, []).word == links.IDLE
        seen = links.judge(gpu.link, [LinkState(gpu.link.address, 8.0, 8)])
        assert seen.word == links.BELOW and "8 GT/s x8 under load, of 8 GT/s x16" in seen.reason
    for name in ("sc-gcp-8xh100", "sc-2xb200"):
        for gpu in answered(name):
            assert gpu.link is not None and gpu.link.best_gt_per_s and gpu.link.best_width
            full = LinkState(gpu.link.address, gpu.link.best_gt_per_s, gpu.link.best_width)
            assert links.judge(gpu.link, [full]).word == links.BEST


@pytest.mark.parametrize(("name", "number"), [("sc-gcp-8xh100", 8), ("sc-2xb200", 2)])
def test_hwloc_sees_the_same_gpus_and_links(name: str, number: int) -> None:
    """lstopo tells what a link carries by its lanes, after its line code, as `links.bytes_per_s` does."""
    tree = ElementTree.parse(MACHINES / name / "lstopo.xml")
    told = {
        str(one.get("pci_busid")): float(one.get("pci_link_speed", 0))
        for one in tree.iter("object")
        if one.get("type") == "PCIDev" and str(one.get("pci_type")).startswith("0302")
    }
    found = {gpu.address: gpu.link for gpu in answered(name)}
    assert set(found) == set(told) and len(told) == number
    for address, link in found.items():
        assert link is not None and link.bytes_per_s is not None
        assert link.bytes_per_s / 1e9 == pytest.approx(told[str(address)], rel=1e-6)


def test_parts_of_a_partitioned_card() -> None:
    (one,) = answered("nvidia-smi-single-gpus-a/a100-sxm4-v12")
    assert one.partitioned and len(one.parts) >= 4
    assert all(part.memory_bytes and part.memory_bytes < 2**35 for part in one.parts)


@pytest.mark.parametrize("name", ["hwloc-2s-xeon-8-vector-engines-pci", "hwloc-2s-xeon-e5-nvme-dimms-dax"])
def test_each_endpoint_of_a_server(name: str) -> None:
    told = json.loads((MACHINES / name / "expected.json").read_text())["facts_read_from_the_files"]
    inventory = host.read(MACHINES / name / "sysroot.tar.bz2")
    devices = {one.address: one for one in inventory.pci or ()}
    assert len(devices) == told["pci_device_count"]
    for wanted in told["pci_endpoints"]:
        one = devices[wanted["bdf"]]
        numbers = (one.class_code, one.vendor_id, one.device_id)
        assert numbers == tuple(int(wanted[key], 16) for key in ("cls", "vendor", "device"))
        if wanted["numa_node"] != "-1":
            assert (str(one.node), one.node_source) == (wanted["numa_node"], "numa_node")
        else:
            # CPUs 0-3 of node 0, which has 0-7.
            assert (one.node, one.node_source) == (0, "local_cpulist")
        if "current_link_speed" in wanted:
            assert one.link is not None
            assert one.link.gt_per_s == float(wanted["current_link_speed"].split()[0])
            assert one.link.width == int(wanted["current_link_width"])
            assert one.link.device_gt_per_s == float(wanted["max_link_speed"].split()[0])
            assert one.link.device_width == int(wanted["max_link_width"])
    below = {
        address
        for address, one in devices.items()
        if one.kind != "bridge"
        and one.link is not None
        and (one.link.gt_per_s or 0, one.link.width or 0)
        < (one.link.device_gt_per_s or 0, one.link.device_width or 0)
    }
    assert below == set(told["pci_links_below_max"])


def test_adapters_of_a_server() -> None:
    inventory = host.read(MACHINES / "hwloc-2s-xeon-e5-nvme-dimms-dax" / "sysroot.tar.bz2")
    assert {one.name: (one.kind, one.node) for one in inventory.network or ()} == {
        "eth0": ("ethernet", 0),
        "eth1": ("ethernet", 0),
        "ib0": ("infiniband", 1),
        "mlx4_0/1": ("infiniband", 1),
    }


def dumped(path: Path) -> dict[str, bytes]:
    """Configuration spaces of a dump by lspci -xxxx."""
    found: dict[str, bytearray] = {}
    address = ""
    for line in path.read_text(errors="replace").splitlines():
        if re.match(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ", line):
            address = line.split()[0]
            found[address] = bytearray()
        elif re.match(r"[0-9a-f]{2,3}: ", line):
            found[address] += bytes.fromhex(line.partition(": ")[2].replace(" ", ""))
    return {key: bytes(value) for key, value in found.items()}


def test_configuration_spaces_tell_what_lspci_decodes_of_them() -> None:
    folder = MACHINES / "pci-x58-desktop-tree-and-cxl"
    told = json.loads((folder / "expected.json").read_text())["devices"]
    dumps = {path.name.partition(".")[0]: dumped(path) for path in folder.glob("*.lspci-dump.txt")}
    compared = 0
    for wanted in told:
        found = pci_config.parse(dumps[wanted["file"]][wanted["bdf"]])
        for key, end in (("lnkcap", found.best), ("lnksta", found.link)):
            text = wanted.get(key)
            match = re.fullmatch(r"([\d.]+)GT/s x(\d+)", text or "")
            if match:
                assert end == (float(match[1]), int(match[2]) or None), (wanted["bdf"], key)
                compared += 1
            elif text is None:
                assert end == (None, None), (wanted["bdf"], key)
    assert compared > 30
