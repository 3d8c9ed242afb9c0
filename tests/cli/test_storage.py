"""`k3gate run --storage`: what it leaves behind however it ends, and what it says of places that are none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ONLY = ("run", "--profile", "quick", "--probe", "storage", "--only", "storage/path1.file")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_neither_a_kill_nor_ctrl_c_leaves_a_file(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ended while it writes a file of its own, which has no name."""
    folder = tmp_path / "models"
    folder.mkdir()
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < 4 << 30:
        pytest.skip("less than 4 GiB are free here")
    environment = {**os.environ, "K3GATE_STORE": str(tmp_path / "runs.sqlite"), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "k3gate", *ONLY, "--storage", str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        if "left out" in first or "refused" in first:
            process.kill()
            pytest.skip(f"no storage here: {first}")
        held = made_by(process.pid, folder)
        process.send_signal(number)
        process.stderr.read()  # until the last worker that holds it is gone
    assert process.returncode == code
    assert held, "the run held no file when it was ended"
    assert list(folder.iterdir()) == []


def made_by(pid: int, folder: Path) -> list[str]:
    """The files in a folder that a process holds open, waited for: they are there before the first worker is."""
    while True:
        links = []
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append(str(entry.readlink()))
            except OSError:
                continue
        found = [link for link in links if link.startswith(f"{folder}/")]
        if found or not Path(f"/proc/{pid}").exists():
            return found


@pytest.mark.case("NVM-02")
def test_a_place_in_memory_is_no_storage_and_nothing_else_fails(cli, tmp_path: Path) -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("there is no tmpfs at /dev/shm")
    only = ("--only", "storage/*.refused")
    done = cli("run", "--profile", "quick", "--probe", "storage", *only, "--storage", "/dev/shm")
    assert done.code == 0, done.err
    assert "storage/path1.refused" in done.out and "not present" in done.out.replace("_", " ")
    assert "tmpfs is memory and no storage" in " ".join(done.out.split())


def test_without_a_place_the_folder_of_the_store_stands_in(cli) -> None:
    done = cli("run", "--profile", "quick", "--probe", "storage", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert '"asked": false' in done.out
    assert '"asked": true' not in done.out


def test_a_probe_that_is_left_out_looks_at_no_place(cli) -> None:
    done = cli("run", "--profile", "quick", "--probe", "selftest", "--dry-run", "--json")
    assert done.code == 0 and "storage" not in done.out
