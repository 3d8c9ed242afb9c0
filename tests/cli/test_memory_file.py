"""`k3gate run --memory-file`: what is refused, what is planned, and what a resumed run insists on."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from k3gate.errors import UsageError
from k3gate.harness import run as harness
from k3gate.host import memory_files
from k3gate.records import RunStatus
from k3gate.store import open_store


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("missing", "No such file or directory: give a file that may be read"),
        ("empty", "is empty"),
        ("small", "give a larger file"),
        ("fifo", "is a FIFO: give a regular file"),
        ("device", "is a character device"),
    ],
)
def test_what_is_no_file_of_the_right_size_gets_one_line(cli, tmp_path: Path, what: str, told: str) -> None:
    path = tmp_path / what
    if what == "empty":
        path.touch()
    elif what == "small":
        path.write_bytes(b"x" * 100_000)
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        path = Path("/dev/zero")
    line = cli("run", "--memory-file", path).complaint()
    assert told in line and str(path) in line
    assert not (tmp_path / "runs.sqlite").exists()


@pytest.mark.parametrize("place", ["/proc", "/sys", "/proc/self/status", "/sys/kernel"])
def test_what_the_kernel_makes_up_is_refused_before_anything_is_planned(cli, place: str) -> None:
    line = cli("run", "--memory-file", place, "--dry-run").complaint()
    assert place in line and ("holds no data" in line or "may be written to" in line or "is empty" in line)


def test_one_file_is_named_once(cli, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * 4096)
    (tmp_path / "link").symlink_to("weights")
    paths = ("--memory-file", tmp_path / "weights", "--memory-file", tmp_path / "link", "--dry-run")
    line = cli("run", *paths).complaint()
    assert f"{tmp_path / 'link'}, which is {tmp_path / 'weights'}, is named twice" in line
    assert (
        "/dev/shm is named twice" in cli("run", *["--memory-file", "/dev/shm"] * 2, "--dry-run").complaint()
    )


def test_a_file_that_no_chosen_probe_reads_is_not_passed_over(cli) -> None:
    line = cli("run", "--probe", "selftest", "--memory-file", "/dev/shm").complaint()
    assert "add --probe memory" in line


def test_the_plan_names_the_file_it_is_made_with(cli) -> None:
    done = cli(
        "run",
        "--profile",
        "smoke",
        "--memory-file",
        "/dev/shm",
        "--only",
        "memory/file1.*",
        "--dry-run",
        "--json",
    )
    case = next(case for case in done.json()["cases"] if case["case"] == "file1.read")
    file = case["parameters"]["file"]
    found = Path("/dev/shm").stat()
    assert (file["path"], file["folder"], file["file_system"]) == ("/dev/shm", True, "tmpfs")
    assert (file["device"], file["inode"]) == (found.st_dev, found.st_ino)


def test_a_resumed_run_takes_no_other_file(cli, selftest: str) -> None:
    line = cli("run", "--resume", selftest, "--memory-file", "/dev/shm").complaint()
    assert "leave --memory-file away" in line


def test_a_run_goes_on_only_with_the_file_it_was_begun_with(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 100)
    request = harness.Request(profile="smoke", target="residency-lab", probes=("selftest",), rounds=1)
    prepared = harness.prepare(request)
    parameters = {"file": attrs.asdict(memory_files.look(str(file)))}
    first, *rest = prepared.plan.cases
    first = attrs.evolve(first, parameters={**first.parameters, **parameters})
    prepared = attrs.evolve(prepared, plan=attrs.evolve(prepared.plan, cases=(first, *rest)))
    with open_store(str(tmp_path / "runs.sqlite")) as store:
        run = attrs.evolve(harness.start(store, prepared), status=RunStatus.INTERRUPTED)
        store.update_run(run)
        file.write_bytes(b"x" * 101)
        with pytest.raises(
            UsageError, match=r"weights is not what the run was begun with: bytes was 100, is 101"
        ):
            harness.take_up(store, run.id)
        file.unlink()
        with pytest.raises(UsageError, match="No such file"):
            harness.take_up(store, run.id)
        assert store.load(run.id).run.status is RunStatus.INTERRUPTED
