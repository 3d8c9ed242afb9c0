"""iperf3 and perftest beside our own streams: how they are started at either end, ended, and understood.

Their arguments are made here alone; of what a peer sends, a port and an address that it was reached by are used. Each
is a process of its own that serves one client, and is ended by whoever started it; it dies with that process.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from k3gate.documents import printable

PACKAGES = {"iperf3": "iperf3", "ib_write_bw": "perftest", "ib_send_lat": "perftest"}
"""What brings a program, with apt-get and dnf alike."""
OUTPUT_BYTES = 4 << 20
_START_SECONDS = 5.0
_LATENCY_MESSAGES = 5000


class ToolError(Exception):
    """A program gave no figure; the message says why."""


def absent(tool: str, where: str) -> str | None:
    """Why a program cannot run, with the line that installs it; None where it is found. `where`: at which end."""
    if shutil.which(tool) is not None:
        return None
    return f"{tool} is not installed {where}: apt-get install {PACKAGES[tool]}"


def verbs_absent(verbs: str | None, interface: str | None, where: str) -> str | None:
    """Why there are no verbs at an end, and what would bring them; None where there are."""
    if verbs is not None:
        return None
    return (
        f"no RDMA device (verbs) belongs to interface {interface or 'unknown'} {where}: use an InfiniBand or RoCE "
        "adapter and load its driver (rdma-core)"
    )


class Server:
    """The serving end of a program, listening on a port of its own. Raises `ToolError` where it does not start."""

    def __init__(self, tool: str, address: str, verbs: str | None) -> None:
        reason = absent(tool, "on the serving machine")
        if reason is None and tool != "iperf3":
            reason = verbs_absent(verbs, None, "of the serving machine")
        if reason is not None:
            raise ToolError(reason)
        self.port = free_port(address)
        if tool == "iperf3":
            line = ["iperf3", "--server", "--one-off", "--port", str(self.port), "--bind", address]
        else:
            line = [*_perftest(tool, str(verbs)), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*_dying_with_us(), *line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=True,
        )
        try:
            self._wait(address)
        except ToolError:
            self.end()
            raise

    def _wait(self, address: str) -> None:
        """Until it listens. To connect would use up its one client, so that the kernel's table is looked at."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise ToolError(
                    f"it ended at once with code {self._process.returncode} on the serving machine"
                )
            if self.port in listening():
                return
            time.sleep(0.02)
        raise ToolError(f"it did not listen within {_START_SECONDS:.0f} s on the serving machine")

    def end(self) -> None:
        """End it, whatever it does, and wait for it."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()


def listening(folder: str = "/proc/net") -> set[int]:
    """The TCP ports on which something listens, as the kernel's tables have them."""
    ports = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (Path(folder) / name).read_text().splitlines()[1:]:
                fields = line.split()
                if len(fields) > 3 and fields[3] == "0A":
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def free_port(address: str) -> int:
    """A port of this address that nothing uses now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _dying_with_us() -> list[str]:
    """What makes a program end with the process that started it, where util-linux is there."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _perftest(tool: str, verbs: str) -> list[str]:
    line = [tool, "--ib-dev", verbs, "-F"]
    if tool == "ib_write_bw":
        return [*line, "--report_gbits", "--size", str(1 << 20)]
    return [*line, "--size", "7168", "--iters", str(_LATENCY_MESSAGES)]


def run(line: Sequence[str], seconds: float, beat: Callable[[], None]) -> str:
    """What a client prints on stdout. Raises `ToolError` where it fails or takes longer; it is ended then."""
    with subprocess.Popen(
        [*_dying_with_us(), *line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=True,
    ) as process:
        until = time.monotonic() + seconds
        try:
            while True:
                try:
                    output = process.communicate(timeout=0.5)[0]
                    break
                except subprocess.TimeoutExpired:
                    beat()
                    if time.monotonic() > until:
                        raise ToolError(f"it took longer than {seconds:.0f} s") from None
        finally:
            process.kill()
    text = output[:OUTPUT_BYTES].decode(errors="replace")
    if process.returncode:
        raise ToolError(_last_words(text) or f"it ended with code {process.returncode}")
    return text


def _last_words(text: str) -> str:
    """The error of iperf3's JSON, else the last line that says something."""
    with contextlib.suppress(ValueError, AttributeError):
        return printable(str(json.loads(text).get("error") or ""))[:200]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1])[:200] if lines else ""


def iperf3(address: str, port: int, streams: int, seconds: int, warm_up: int, reverse: bool) -> list[str]:
    """iperf3's client, whose first seconds are left out; `reverse`: the server sends."""
    line = ["iperf3", "--client", address, "--port", str(port), "--json", "--parallel", str(streams)]
    line += ["--time", str(seconds), "--omit", str(warm_up), "--connect-timeout", "5000"]
    return [*line, "--reverse"] if reverse else line


def perftest(tool: str, verbs: str, address: str, port: int) -> list[str]:
    """perftest's client."""
    return [*_perftest(tool, verbs), "--port", str(port), address]


@frozen
class Iperf3:
    """What iperf3 measured: B/s that the receiver got, and the mean round trip of its streams in s."""

    bytes_per_s: float
    seconds: float
    version: str


def read_iperf3(text: str) -> Iperf3:
    """The figures of iperf3's JSON. Raises `ToolError` where they are not there."""
    try:
        document: Any = json.loads(text)
        if document.get("error"):
            raise ToolError(printable(str(document["error"]))[:200])
        got = document["end"]["sum_received"]
        rate, seconds = float(got["bits_per_second"]) / 8, float(got["seconds"])
        version = printable(str(document["start"]["version"]))[:40]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolError("its output holds no figure") from error
    if not rate > 0 or not seconds > 0:
        raise ToolError("it received nothing")
    return Iperf3(rate, seconds, version)


_ROW = re.compile(r"^\s*\d+(?:\s+[\d.]+)+\s*$", re.MULTILINE)


def read_write_bw(text: str) -> float:
    """B/s of ib_write_bw --report_gbits: the average, its fourth column. Raises `ToolError`."""
    fields = _row(text, "BW average[Gb/sec]", 5)
    return float(fields[3]) * 1e9 / 8


def read_send_lat(text: str) -> tuple[float, float]:
    """(typical, 99 % percentile) of ib_send_lat in s, one way as it counts. Raises `ToolError`."""
    fields = _row(text, "t_typical[usec]", 9)
    return float(fields[4]) * 1e-6, float(fields[7]) * 1e-6


def _row(text: str, head: str, columns: int) -> list[str]:
    # The head names the unit; without it a number could be of any.
    if head not in text:
        raise ToolError(_last_words(text) or "it printed nothing")
    rows = [match[0].split() for match in _ROW.finditer(text)]
    if not rows or len(rows[-1]) < columns:
        raise ToolError("its output holds no figure")
    return rows[-1]
