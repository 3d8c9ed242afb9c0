"""Calls for the placement of memory that the kernel refuses, in processes of their own: it stays unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import refusing

pytestmark = pytest.mark.skipif(
    os.uname().machine not in refusing.NUMBERS,
    reason="no system call numbers are known for this architecture",
)
PLACED = """
import json
from k3gate.probes import _native, pools
cpu = _native.allowed_cpus()[0]
filled = pools.build(4 << 20, "small", 0, [cpu], _native.Team([cpu]), lambda note: None)
proof = pools.placement([filled])
print(json.dumps([proof.ok, proof.detail]))
"""


def under(calls: tuple[str, ...], *command: str, store: Path | None = None) -> Any:
    """The document on stdout of a Python command to which the kernel refuses these calls."""
    environment = {**os.environ, **({"K3GATE_STORE": str(store)} if store else {})}
    line = [sys.executable, refusing.__file__, ",".join(calls), sys.executable, *command]
    ran = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.case("TOP-16")
@pytest.mark.parametrize("calls", [("mbind",), ("move_pages",), ("mbind", "move_pages")])
def test_top_16_refused_policy_calls_leave_placement_unknown(calls: tuple[str, ...]) -> None:
    ok, detail = under(calls, "-c", PLACED)
    assert ok is None
    assert f"{calls[0]} refused, EPERM" in detail
    assert "SYS_NICE" in detail


@pytest.mark.case("TOP-16")
@pytest.mark.long
def test_top_16_a_run_completes_and_nothing_passes_by_it(tmp_path: Path) -> None:
    cases = ("memory/read.node*", "memory/latency.node*", "memory/file1.read")
    chosen = [word for case in cases for word in ("--only", case)]
    command = [
        "-m",
        "k3gate",
        "run",
        "--profile",
        "quick",
        "--rounds",
        "1",
        "--memory-file",
        "/dev/shm",
        *chosen,
    ]
    document = under(("mbind", "move_pages"), *command, "--json", store=tmp_path / "runs.sqlite")
    assert document["run"]["status"] == "complete"
    measured = [one for one in document["outcomes"] if one["probe"] == "memory"]
    assert {one["case"].split(".")[0] for one in measured} == {"read", "latency", "file1"}
    for outcome in measured:
        (metric,) = outcome["metrics"]
        assert outcome["state"] in ("ok", "unstable"), outcome
        placement = next(proof for proof in metric["proofs"] if proof["name"] == "placement")
        assert placement["ok"] is None and "refused, EPERM" in placement["detail"]
        assert "placement unknown" in metric["reason"]
    checks = {check["id"]: check for step in document["gate"]["steps"] for check in step["checks"]}
    for name in ("roofline.placement", "roofline.local", "roofline.latency"):
        assert checks[name]["verdict"] == "unproven", checks[name]
    assert "SYS_NICE" in checks["roofline.placement"]["reason"]
