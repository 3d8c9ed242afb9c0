"""Where output goes: what k3gate did not make stays, and a page is never lost with stdout."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from k3gate.cli.output import check_output, write_output
from k3gate.errors import UsageError

PROGRAM = f'"{sys.executable}" -m k3gate'


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "K3GATE_STORE": str(folder / "runs.sqlite")},
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


@pytest.mark.parametrize("reader", ["| true", "> /dev/full"])
def test_the_page_of_a_run_is_written_where_stdout_is_not(tmp_path: Path, reader: str) -> None:
    done = shell(f"{PROGRAM} run --probe selftest -q --report r.html {reader}", tmp_path)
    assert "Traceback" not in done.stderr
    assert (tmp_path / "r.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize("command", ["runs", "show --json", "gate", "--help", "host"])
def test_a_full_disk_behind_stdout_is_one_line_and_exit_4(
    selftest: str, tmp_path: Path, command: str
) -> None:
    done = shell(f"{PROGRAM} {command} > /dev/full", tmp_path)
    assert done.returncode == 4, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("k3gate: cannot write the output: No space left on device")


@pytest.mark.parametrize("stderr", ["2> /dev/full", "2> >(head -n 1)"])
def test_progress_that_nobody_reads_costs_no_run(tmp_path: Path, stderr: str) -> None:
    done = shell(f"{PROGRAM} run --probe selftest {stderr}", tmp_path)
    assert done.returncode == 0
    assert "Gate: " in done.stdout


def test_a_report_that_fails_after_measuring_says_where_the_run_is(tmp_path: Path) -> None:
    gone = "(until [ -s ../runs.sqlite ]; do sleep 0.05; done; rm -r ../away)"
    line = f"(mkdir away; cd away; {gone} & {PROGRAM} run --probe selftest -q --report $PWD/r.html)"
    done = shell(line, tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "is stored: k3gate report " in done.stderr
    assert "Gate: " in done.stdout, "what was measured is printed all the same"


def test_what_k3gate_did_not_make_is_not_replaced(cli, selftest: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes.html"
    notes.write_text("<!doctype html>\n<html><head><title>Minutes</title></head></html>")
    line = cli("report", "-o", notes).complaint()
    assert "k3gate did not make that file" in line
    assert "Minutes" in notes.read_text()
    assert "database" in cli("report", "-o", "runs.sqlite").complaint()
    assert "k3gate did not make" in cli("host", "-o", notes).complaint()
    assert "k3gate did not make" in cli("diff", selftest, selftest, "-o", notes).complaint()
    assert cli("show", selftest).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("report", "-o"),
        ("host", "-o"),
        pytest.param(("host", "--json", "-o"), marks=pytest.mark.long),
        pytest.param(("run", "--probe", "selftest", "--report"), marks=pytest.mark.long),
    ],
)
def test_what_k3gate_made_and_what_is_empty_is_replaced(
    cli, selftest: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "page").touch()
    (tmp_path / "link").symlink_to("page")
    assert cli(*command, "link").code == 0
    first = (tmp_path / "page").stat()
    assert first.st_size > 0
    assert cli(*command, "link").code == 0
    assert (tmp_path / "page").stat().st_ino != first.st_ino
    assert (tmp_path / "link").is_symlink()
    assert {entry.name for entry in tmp_path.iterdir()} <= {
        "page",
        "link",
        "runs.sqlite",
        "runs.sqlite-wal",
        "runs.sqlite-shm",
    }


def test_pipes_sockets_and_devices_that_were_not_handed_over_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="named pipe"):
        check_output(str(tmp_path / "pipe"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(UsageError, match="socket"):
            check_output(str(tmp_path / "socket"))
    for path, word in (
        ("/dev/zero", "device"),
        (str(tmp_path), "directory"),
        (str(tmp_path / "none" / "r.html"), "no directory"),
        (str(tmp_path / ("x" * 300)), "name too long"),
        ("/proc/r.html", "choose another place"),
        ("", "without a name"),
        ("/dev/fd/77", "no such stream"),
    ):
        with pytest.raises(UsageError, match=word):
            check_output(path)
        with pytest.raises(UsageError, match=word):
            write_output(path, "text")
    check_output(os.devnull)
    write_output(os.devnull, "text")


def test_streams_of_the_shell_are_written_as_they_stand(selftest: str, tmp_path: Path) -> None:
    done = shell(f"{PROGRAM} report -o /dev/stdout | head -c 400000", tmp_path)
    assert "<title>k3gate report" in done.stdout
    assert "report of run" in done.stdout
    done = shell(
        f"echo earlier > kept; {PROGRAM} report -o /dev/stdout >> kept; {PROGRAM} host -o >(cat > other)",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    kept = (tmp_path / "kept").read_text()
    assert kept.startswith("earlier\n")
    assert "<title>k3gate report" in kept
    assert kept.endswith(".html\n") or "report of run" in kept


def test_the_name_alone_prints_the_help(cli) -> None:
    done = cli()
    assert done.code == 0
    assert done.err == ""
    assert done.out == cli("--help").out


INTERRUPT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["k3gate", "runs"]
from k3gate.cli import main
main()
"""


@pytest.mark.parametrize("module", ["click", "k3gate.cli.streams", "k3gate.cli.runs", "k3gate.store"])
def test_an_interrupt_while_modules_are_imported_prints_no_traceback(tmp_path: Path, module: str) -> None:
    code = INTERRUPT.replace("MODULE", repr(module))
    environment = {**os.environ, "K3GATE_STORE": str(tmp_path / "none.sqlite")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=20
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 130, done.stderr


def test_a_lock_is_never_replaced_and_is_called_one(tmp_path: Path) -> None:
    held = tmp_path / "order.lock"
    held.write_text('{\n  "k3gate_lock": 1,\n  "frozen": "2026"\n}\n')
    with pytest.raises(UsageError, match="it is a lock, which is never replaced"):
        check_output(str(held))
    assert held.read_text().startswith("{")
