"""Two NVMe drives in an emulated machine: where they hang, what lies on them, what they answer, that it is watched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from machine import Answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(800), pytest.mark.xdist_group("emulated")]


@pytest.fixture(scope="module")
def inventory(two_drives: Answers) -> Any:
    return two_drives.json("host")


def test_each_drive_has_its_node_and_its_link(inventory: Any) -> None:
    drives = inventory["storage"]["drives"]
    assert [one["kind"] for one in drives] == ["nvme"] * 3
    by_node = {one["node"]: one for one in drives if one["node"] is not None}
    assert set(by_node) == {0, 1}
    assert [by_node[node]["bytes"] for node in (0, 1)] == [64 * 2**20, 32 * 2**20]
    assert by_node[1]["logical_block_bytes"] == 4096
    for one in by_node.values():
        assert one["model"] == "QEMU NVMe Ctrl" and one["link"]["gt_per_s"] and one["link"]["width"]
    assert "SECRET" not in str(inventory)


def test_the_port_that_is_held_down_by_its_drive_is_shown(inventory: Any) -> None:
    """Both ends of both links are read: one port could do 16 GT/s x4 and does 2.5 GT/s x1, the other all it can."""
    drives = {one["node"]: one for one in inventory["storage"]["drives"] if one["node"] is not None}
    links = {node: one["link"] for node, one in drives.items()}
    assert [(links[n]["port_gt_per_s"], links[n]["port_width"]) for n in (0, 1)] == [(16.0, 4), (2.5, 1)]
    assert [(links[n]["gt_per_s"], links[n]["width"]) for n in (0, 1)] == [(2.5, 1), (2.5, 1)]
    (found,) = [one for one in inventory["findings"] if one["code"] == "device_below_slot"]
    assert found["observed"] == f"drive {drives[0]['name']}: 2.5 GT/s x1 of 16 GT/s x4"


def test_the_tree_has_ports_nodes_and_ways(inventory: Any) -> None:
    devices = {one["address"]: one for one in inventory["pci"]}
    drives = {
        one["node"]: one["link"]["address"]
        for one in inventory["storage"]["drives"]
        if one["node"] is not None
    }
    for node, address in drives.items():
        one = devices[address]
        assert (one["kind"], one["node"], one["node_source"]) == ("nvme", node, "numa_node")
        (port,) = one["above"]
        assert (devices[port]["kind"], devices[port]["port"]) == ("bridge", "root")
        assert devices[port]["redirects"] == [], "as root all of the configuration space is read"


def test_the_smart_log_is_asked_of_the_kernel(inventory: Any) -> None:
    """NVME_IOCTL_ADMIN_CMD is answered: QEMU's drives are at 50 degC, as good as new, and never too hot."""
    health = next(one for one in inventory["storage"]["drives"] if one["node"] == 0)["health"]
    assert health["temperature"] == 50.0
    assert (health["warning_seconds"], health["media_errors"], health["critical_warning"]) == (0, 0, 0)


@pytest.mark.case("NVM-04")
def test_the_path_of_a_checkpoint_leads_to_its_drive(inventory: Any) -> None:
    models, memory = inventory["storage"]["paths"]
    (name,) = models["drives"]
    assert next(one for one in inventory["storage"]["drives"] if one["name"] == name)["node"] == 0
    assert (models["kind"], models["file_system"], models["summary"]) == (
        "block",
        "ext4",
        "ext4 on 1 NVMe drive",
    )
    assert models["free_bytes"] < models["total_bytes"] <= 64 * 2**20
    assert memory["kind"] == "memory"


@pytest.mark.case("NVM-10")
def test_a_drive_that_is_mounted_is_refused_with_its_mount_point(two_drives: Answers) -> None:
    assert two_drives.files["refused.code"].strip() == b"2"
    told = two_drives.files["refused.err"].decode()
    assert "is a block device and it is in use at /tmp/models" in told


def test_a_capture_as_root_keeps_all_of_it(two_drives: Answers, inventory: Any, tmp_path: Any) -> None:
    from k3gate import host

    path = tmp_path / "machine.tar.gz"
    path.write_bytes(two_drives.files["machine.tar.gz"])
    found = host.read(path).storage
    assert found is not None
    health = {one.name: one.health for one in found.drives}
    assert all(one is not None and one.temperature == 50.0 for one in health.values())
    assert [one.drives for one in found.paths] == [tuple(inventory["storage"]["paths"][0]["drives"])]


def test_a_run_watches_the_drives(two_drives: Answers) -> None:
    document = two_drives.json("run")
    by_case = {one["case"]: one for one in document["outcomes"] if one["probe"] == "machine"}
    errors = [one for one in by_case["errors"]["metrics"] if one["labels"] == {"source": "drives"}]
    assert errors and all(one["median"] == 0 for one in errors)
    throttling = [one for one in by_case["throttling"]["metrics"] if one["labels"] == {"source": "drives"}]
    assert [one["median"] for one in throttling] == [0]


def test_a_drive_that_is_removed_in_mid_run_fails_its_case_and_nothing_else(drive_removed: Answers) -> None:
    """What was read while it went is no figure; what needs no drive goes on, and the run is whole."""
    files = drive_removed.files
    assert files["storage.code"].strip() == b"4", files["storage.err"][-2000:]
    document = json.loads(files["storage.out"])
    assert document["run"]["status"] == "complete"
    found = {one["case"]: one for one in document["outcomes"] if one["probe"] == "storage"}
    course = found["path1.course"]
    assert (course["state"], course["metrics"]) == ("failed", []), course
    assert "model.safetensors at byte" in course["reason"] and "gone or damaged" in course["reason"]
    assert found["hash"]["metrics"][0]["median"] > 0
    failed = {(one["probe"], one["case"]) for one in document["outcomes"] if one["state"] == "failed"}
    assert failed == {("storage", "path1.course"), ("storage", "path1.direct.1m.t1.q32")}


@pytest.mark.case("NVM-01")
def test_a_drive_that_is_faster_than_its_link_is_withheld(drive_removed: Answers) -> None:
    """QEMU's drive says that its link carries 250 MB/s, and delivers more: what no link carries is no figure."""
    document = json.loads(drive_removed.files["storage.out"])
    (outcome,) = [one for one in document["outcomes"] if one["case"] == "path1.direct.1m.t1.q32"]
    (rate,) = [one for one in outcome["metrics"] if one["name"] == "storage.read.rate"]
    assert (rate["state"], rate["samples"], rate["labels"]["drives"]) == ("failed", [], "nvme1n1")
    proofs = {one["name"]: one for one in rate["proofs"]}
    assert proofs["ceiling"]["ok"] is False and "250 MB/s that the links" in proofs["ceiling"]["detail"]
    held = {name for name, one in proofs.items() if one["ok"]}
    assert held >= {"uncached", "from_drives", "written", "incompressible"}, proofs
