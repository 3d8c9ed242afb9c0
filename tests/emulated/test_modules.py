"""Memory modules in a machine whose firmware tells of them: k3gate in the guest, and the table on its own.

The guest is virtual and says so by its processor's flag, whatever its firmware claims; k3gate must then believe
nothing of the table. What the same table says of a machine that is none is asked outside, by the way in which
people send tables: a folder with the two files as the kernel showed them, and nothing that was taken out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machine import Answers

from k3gate.host import inventory

pytestmark = [pytest.mark.long, pytest.mark.timeout(800), pytest.mark.xdist_group("emulated")]
TABLE = ("DMI.bin", "smbios_entry_point.bin")


def judged(answers: Answers, folder: Path) -> dict[str, Any]:
    """The document of `k3gate host` on the table alone."""
    for name in TABLE:
        (folder / name).write_bytes(answers.files[name])
    command = [sys.executable, "-m", "k3gate", "host", "--root", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def findings(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["code"]: finding for finding in document["findings"]}


def test_an_empty_channel(cpus_without_memory: Answers, tmp_path: Path) -> None:
    document = judged(cpus_without_memory, tmp_path)
    memory = document["memory"]
    assert (memory["slots"], memory["populated"], memory["channels"]) == (8, 7, 7)
    assert memory["empty_channels"] == ["socket 0 channel H (DIMM 7)"]
    assert [one["name"][-1] for one in memory["channel_list"]] == list("ABCDEFGH")
    assert (memory["configured_mts"], memory["rated_mts"], memory["derating_percent"]) == (5600, 5600, 0)
    assert memory["theoretical_bytes_per_s"] == 7 * 5600e6 * 8
    assert memory["full_bytes_per_s"] == 8 * 5600e6 * 8
    assert memory["dram_bytes"] == 7 * 64 * 2**30
    found = findings(document)
    assert found["empty_channels"]["title"] == "1 memory channel of 8 is empty"
    assert "channel H" in found["empty_channels"]["observed"]
    assert "modules_slowed" not in found


def test_a_slow_module(memory_without_cpus: Answers, tmp_path: Path) -> None:
    document = judged(memory_without_cpus, tmp_path)
    memory = document["memory"]
    assert (memory["populated"], memory["channels"], memory["empty_channels"]) == (8, 8, [])
    assert (memory["configured_mts"], memory["rated_mts"], memory["mixed_speeds"]) == (4400, 5600, True)
    assert memory["derating_percent"] == pytest.approx(100 * (1 - 4400 / 5600))
    assert memory["theoretical_bytes_per_s"] == (7 * 5600e6 + 4400e6) * 8
    assert [one["configured_mts"] for one in memory["channel_list"]] == [5600, 5600, 4400, *[5600] * 5]
    found = findings(document)
    assert "configured 4,400 MT/s, rated 5,600 MT/s" in found["modules_slowed"]["observed"]
    assert "empty_channels" not in found


def test_of_a_guest_no_population_is_believed(cpus_without_memory: Answers) -> None:
    document = cpus_without_memory.json("host")
    machine = document["machine"]
    assert (machine["vendor"], machine["product"], machine["virtual"]) == ("Example", "Server", True)
    assert document["provenance"]["machine.virtual"]["source"] == "proc/cpuinfo (hypervisor flag)"
    for field in ("dimms", "channels", "empty_channels", "configured_mts", "theoretical_bytes_per_s"):
        assert document["memory"][field] is None
        told = document["provenance"][f"memory.{field}"]
        assert (told["state"], told["reason"]) == ("not_run", "virtual machine, population not evaluated")
    found = findings(document)
    assert "virtual_machine" in found
    assert not {"empty_channels", "modules_slowed"} & set(found)


def test_the_gate_takes_a_guest_for_no_evidence_of_its_modules(cpus_without_memory: Answers) -> None:
    steps = cpus_without_memory.json("measure")["gate"]["steps"]
    checks = {check["id"]: check for step in steps for check in step["checks"]}
    assert checks["roofline.bare_metal"]["verdict"] == "fail"
    for name in ("roofline.population", "roofline.speed", "roofline.local", "roofline.remote"):
        assert checks[name]["verdict"] == "unproven", checks[name]


def test_a_capture_of_a_guest_is_read_elsewhere_as_that_guest(
    cpus_without_memory: Answers, tmp_path: Path
) -> None:
    archive = tmp_path / "machine.tar.gz"
    archive.write_bytes(cpus_without_memory.files["machine.tar.gz"])
    there, here = cpus_without_memory.json("host"), inventory.read(archive)
    assert cpus_without_memory.files["capture.code"].strip() == b"0"
    assert here.machine.virtual is True
    assert here.memory.dimms is None
    assert here.machine.fingerprint == there["machine"]["fingerprint"]
    assert [(node.id, list(node.cpus), node.memory_bytes) for node in here.numa.nodes] == [
        (node["id"], node["cpus"], node["memory_bytes"]) for node in there["numa"]["nodes"]
    ]
