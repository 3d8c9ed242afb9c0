"""Work in forked processes: in order, and ended with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from k3gate.errors import MemoryShortageError
from k3gate.model import processes


def test_results_come_in_the_order_of_the_items() -> None:
    assert list(processes.in_order(abs, [-3, 2, -1], 2)) == [3, 2, 1]
    assert list(processes.in_order(abs, [], 2)) == []


def _fail(item: int) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_process_that_is_killed_is_one_line() -> None:
    with pytest.raises(MemoryShortageError, match="free memory"):
        list(processes.in_order(_fail, [1, 2, 3], 1))


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_began_them(tmp_path: Path, way: signal.Signals) -> None:
    script = (
        "import time; from pathlib import Path; from k3gate.model import processes\n"
        f"def wait(item): Path({str(tmp_path)!r}, str(item)).touch(); time.sleep(60)\n"
        "list(processes.in_order(wait, [1, 2], 2))\n"
    )
    parent = psutil.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while not all((tmp_path / name).exists() for name in "12"):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.02)
    children = parent.children(recursive=True)
    assert len(children) == 2
    parent.send_signal(way)
    _, alive = psutil.wait_procs([parent, *children], timeout=10)
    assert not alive
    assert parent.stderr is not None
    assert parent.stderr.read().count(b"Traceback") <= 1
