"""The script for a lent machine, with stubs for k3gate and Python: each step is kept, and none stops the rest."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "run.sh"


def stub(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def done(tmp_path: Path) -> tuple[Path, list[str], str]:
    """(what it left, the calls of k3gate, what it printed), where a run fails and another one hangs."""
    calls = tmp_path / "calls"
    k3gate = stub(
        tmp_path,
        "k3gate",
        f"""echo "$@" >>{calls}
case "$*" in
  *"--probe gemm"*) echo broken >&2; exit 4 ;;
  *"--probe memory"*) exec sleep 30 ;;
  export*) echo bundle >"$4" ;;
esac
echo told""",
    )
    python = stub(tmp_path, "python", """[ "$2" = k3gate.host.nvml ] && echo '{"version": 1}'""")
    environment = {
        **os.environ,
        "OUT": str(tmp_path / "out"),
        "K3GATE": str(k3gate),
        "PYTHON": str(python),
        "LIMIT": "1",
    }
    ran = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, env=environment, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return tmp_path / "out", calls.read_text().splitlines(), ran.stdout


def test_the_script_is_sound_shell() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)


def test_it_goes_on_after_a_step_that_fails_and_one_that_hangs(done: tuple[Path, list[str], str]) -> None:
    out, calls, printed = done
    steps = dict(line.split(": ", 1) for line in (out / "steps.txt").read_text().splitlines())
    assert steps["run_gemm"].startswith("4 after") and steps["run_memory"].startswith("124 after")
    assert steps["run_pcie"].startswith("0 after") and steps["report"].startswith("0 after")
    assert next(iter(steps)) == "lscpu" and printed.splitlines()[0].startswith("lscpu: 0")
    assert any(line.startswith("run --probe pcie --profile quick") for line in calls)
    assert (out / "nvml.json").read_text() == '{"version": 1}\n'
    assert (out / "pcie.k3run").read_text() == "bundle\n"
    assert (out / "lscpu.txt").stat().st_size > 0


def test_one_archive_holds_what_every_step_said(done: tuple[Path, list[str], str]) -> None:
    out, _, _ = done
    with tarfile.open(out / "record.tar.gz") as archive:
        names = set(archive.getnames())
        broken = archive.extractfile("record/run_gemm.err")
        assert broken is not None and broken.read() == b"broken\n"
    assert {"record/pcie.k3run", "record/run_memory.err", "record/report.out"} <= names
    assert len(list(out.iterdir())) <= 8
