"""Files read as memory in a machine with persistent memory: by DAX, in huge pages, with one CPU offline."""

from __future__ import annotations

from typing import Any

import pytest
from machine import Answers
from test_memory import lay_on, outcomes

pytestmark = [pytest.mark.long, pytest.mark.timeout(800), pytest.mark.xdist_group("emulated")]
CASES = {
    *(
        f"file1.{case}"
        for case in ("read", "read.node0", "read.node1", "experts", "latency.node0", "latency.node1")
    ),
    *("file2.read", "file3.read", "file3.latency.node1"),
}
"""Of the file in persistent memory, of one made in its folder, and of one made of huge pages."""


def proofs(outcome: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (metric,) = outcome["metrics"]
    return {proof["name"]: proof for proof in metric["proofs"]}


def labels(outcome: dict[str, Any]) -> dict[str, Any]:
    (metric,) = outcome["metrics"]
    found: dict[str, Any] = metric["labels"]
    return found


def test_every_case_of_every_file_has_a_figure_that_is_proven(persistent_memory: Answers) -> None:
    measured = outcomes(persistent_memory)
    assert {name for name in measured if name.startswith("file")} == CASES
    for name in CASES:
        outcome = measured[name]
        assert outcome["state"] in ("ok", "unstable"), outcome
        found = proofs(outcome)
        assert set(found) == {"placement", "page_size", "pinned", "checksum", "working_set", "in_memory"}
        for proof in ("pinned", "checksum", "working_set", "in_memory"):
            assert found[proof]["ok"] is True, (name, found[proof])
        assert "0 major faults" in found["in_memory"]["detail"]


def test_persistent_memory_is_read_by_dax_on_its_node(persistent_memory: Answers) -> None:
    measured = outcomes(persistent_memory)
    for name in ("file1.read", "file2.read"):
        outcome = measured[name]
        told = labels(outcome)
        assert (told["dax"], told["read_from"], told["file_system"]) == (True, "DAX", "ext4")
        placement = proofs(outcome)["placement"]
        assert placement["ok"] is None, "the kernel names no node for its pages"
        assert "its device pmem0 belongs to node 1" in placement["detail"]
        assert told["page_size"] is None and "does not tell" in proofs(outcome)["page_size"]["detail"]
    assert "the one taken while" in proofs(measured["file1.read"])["checksum"]["detail"]
    assert "equals the pattern's" in proofs(measured["file2.read"])["checksum"]["detail"]


def test_huge_pages_are_seen_on_their_node(persistent_memory: Answers) -> None:
    outcome = outcomes(persistent_memory)["file3.read"]
    told = labels(outcome)
    assert (told["read_from"], told["page_size"], told["made"]) == ("huge pages", 2 << 20, True)
    placement = proofs(outcome)["placement"]
    assert placement["ok"] is True and "100.0% on node 1" in placement["detail"]


def test_nothing_was_written_and_nothing_is_left(persistent_memory: Answers) -> None:
    files = persistent_memory.files
    assert files["before"] == files["after"] != b""
    assert files["left"].split() == [b"/tmp/huge:", b"/tmp/pmem:", b"lost+found", b"weights"]


def test_a_folder_without_room_is_refused(persistent_memory: Answers) -> None:
    assert persistent_memory.files["full.code"].strip() == b"2"
    (line,) = persistent_memory.files["full.err"].decode().splitlines()
    assert "/tmp/small has room for" in line


def test_a_file_is_evidence_of_no_node(persistent_memory: Answers) -> None:
    steps = persistent_memory.json("measure")["gate"]["steps"]
    checks = {check["id"]: check for step in steps for check in step["checks"]}
    for name in ("roofline.local", "roofline.remote", "roofline.placement"):
        assert checks[name]["verdict"] == "unproven", checks[name]
        assert not any("file" in str(one) for one in checks[name]["evidence"]), checks[name]


def test_with_cpu_1_offline_each_node_reaches_each_and_cpu_1_walks_nowhere(
    persistent_memory: Answers,
) -> None:
    measured = outcomes(persistent_memory)
    cells = {name for name in measured if name.startswith("latency.")}
    assert cells == {f"latency.node{source}.node{target}" for source in (0, 1) for target in (0, 1)}
    for name in cells:
        assert lay_on(measured[name]) == [name[-1]]
        assert proofs(measured[name])["pinned"]["detail"].split(" on CPUs ")[1][0] == (
            "0" if "node0." in name else "2"
        )
    assert labels(measured["file1.read"])["threads"] == 3
    assert labels(measured["file1.read.node0"])["threads"] == 1
