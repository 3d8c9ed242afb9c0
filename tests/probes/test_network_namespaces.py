"""Two hosts, as network namespaces: bandwidth over a link of a set rate and latency over one of a set delay, as iperf3
by hand has them, and a peer that vanishes. Needs root, iproute2 and iperf3."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import queue
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MBIT = 400
HERE, THERE = "10.203.77.1", "10.203.77.2"
PORT = 20265
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def command(*line: str) -> None:
    subprocess.run(line, check=True, capture_output=True, timeout=30)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Names of two namespaces with a link of `MBIT` each way between them; removed afterwards."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")
    for tool in ("ip", "tc", "iperf3"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: apt-get install iproute2 iperf3")
    tag = f"k3g{os.getpid() % 100000}"
    names = (f"{tag}a", f"{tag}b")
    made = []
    try:
        for name in names:
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
            made.append(name)
        command(
            "ip",
            "link",
            "add",
            f"{tag}x",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            f"{tag}y",
            "netns",
            names[1],
        )
        for name, end, address in ((names[0], f"{tag}x", HERE), (names[1], f"{tag}y", THERE)):
            command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            command("ip", "-n", name, "link", "set", "lo", "up")
            command("ip", "-n", name, "link", "set", end, "up")
            # BBR would pace the bursts of a message as if the line were slow.
            setting = "/proc/sys/net/ipv4/tcp_congestion_control"
            command("ip", "netns", "exec", name, "sh", "-c", f"echo reno >{setting}")
            # A short queue: else a round trip under load would be that of the queue.
            shaped = ("root", "tbf", "rate", f"{MBIT}mbit", "burst", "64kb", "latency", "5ms")
            command("tc", "-n", name, "qdisc", "add", "dev", end, *shaped)
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


def within(name: str, *line: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(["ip", "netns", "exec", name, *line], text=True, **options)


DELAY_SECONDS = 0.05
"""One way, of the slow link; a message is few packets there, since each costs our own threads a little."""


class SlowLine:
    """A link that delays every packet by `DELAY_SECONDS`: a TUN device in each namespace, and threads between."""

    SIZE = 65536

    def __init__(self, names: tuple[str, str]) -> None:
        self._ends = [self._opened(name, f"slow{number}") for number, name in enumerate(names)]
        for one, other in (self._ends, self._ends[::-1]):
            held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=self._take, args=(one, held), daemon=True).start()
            threading.Thread(target=self._give, args=(other, held), daemon=True).start()

    @staticmethod
    def _opened(name: str, device: str) -> int:
        """The device's descriptor. A thread that has entered a namespace takes only itself along."""
        found: list[int] = []

        def enter() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{name}") as namespace:
                assert libc.setns(namespace.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())
            descriptor = os.open("/dev/net/tun", os.O_RDWR)
            # TUNSETIFF, with IFF_TUN and IFF_NO_PI
            fcntl.ioctl(descriptor, 0x400454CA, struct.pack("16sH22x", device.encode(), 0x1001))
            found.append(descriptor)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return found[0]

    def _take(self, descriptor: int, held: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while packet := os.read(descriptor, self.SIZE):
                held.put((time.monotonic() + DELAY_SECONDS, packet))

    def _give(self, descriptor: int, held: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, packet = held.get()
                # Packets of one burst go on together: each sleep, however short, would cost a wake-up more.
                if (early := due - time.monotonic()) > 0.001:
                    time.sleep(early)
                os.write(descriptor, packet)


@pytest.fixture
def slow_line(hosts: tuple[str, str]) -> None:
    """The two hosts have a second link, with the addresses of the first, which is gone."""
    if not Path("/dev/net/tun").exists():
        pytest.skip("this kernel has no TUN devices")
    for name, end in zip(hosts, ("x", "y"), strict=True):
        command("ip", "-n", name, "addr", "flush", "dev", f"{hosts[0][:-1]}{end}")
    SlowLine(hosts)
    for number, (name, address) in enumerate(zip(hosts, (HERE, THERE), strict=True)):
        command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", f"slow{number}")
        command("ip", "-n", name, "link", "set", f"slow{number}", "mtu", "4000", "up")


RUN = (sys.executable, "-m", "k3gate", "run", "--peer", f"{THERE}:{PORT}", "--profile", "quick", "--json")


@pytest.fixture
def server(hosts: tuple[str, str]) -> Iterator[subprocess.Popen[str]]:
    """`k3gate net serve` on the far host."""
    line = [sys.executable, "-m", "k3gate", "net", "serve", "--bind", THERE, "--port", str(PORT)]
    process = within(hosts[1], *line, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert "serving on" in process.stderr.readline()
    yield process
    process.kill()
    process.communicate()


def measured(
    hosts: tuple[str, str], folder: Path, *only: str, codes: tuple[int, ...] = (0,)
) -> dict[str, dict[str, Any]]:
    """The outcomes of a run on the near host, by case."""
    line = [*RUN]
    for pattern in only:
        line += ["--only", pattern]
    line += ["--store", str(folder / "runs.sqlite"), "--quiet"]
    process = within(hosts[0], *line, stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=200)
    assert process.returncode in codes, output
    return {one["case"]: one for one in json.loads(output)["outcomes"]}


def iperf3(hosts: tuple[str, str], *options: str) -> dict[str, Any]:
    """What iperf3 by hand says between the two, as its JSON's end."""
    far = within(hosts[1], "iperf3", "-s", "-1", "-B", THERE, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            near = within(hosts[0], "iperf3", "-c", THERE, "-J", *options, stdout=subprocess.PIPE)
            document = json.loads(near.communicate(timeout=60)[0])
            if "error" not in document:
                end: dict[str, Any] = document["end"]
                return end
            time.sleep(0.05)  # it does not listen yet
        raise AssertionError(document["error"])
    finally:
        far.kill()
        far.wait()


def median(outcome: dict[str, Any], name: str) -> float:
    return next(float(one["median"]) for one in outcome["metrics"] if one["name"] == name)


def test_bandwidth_and_latency_are_those_of_iperf3_by_hand(
    hosts: tuple[str, str], server: subprocess.Popen[str], tmp_path: Path
) -> None:
    cases = ("to_peer.s8", "from_peer.s8", "to_peer.s1", "from_peer.s1", "latency.7k")
    found = measured(hosts, tmp_path, *(f"network/{one}" for one in (*cases, "iperf3.to_peer")))
    assert {one["state"] for one in found.values() if one["case"] in cases} <= {"ok", "unstable"}
    for case in cases[:4]:
        streams = case.rpartition("s")[2]
        reverse = ["-R"] if case.startswith("from") else []
        hand = [
            iperf3(hosts, "-t", "2", "-O", "1", "-P", streams, *reverse)["sum_received"]["bits_per_second"]
            / 8
            for _ in range(3)
        ]
        assert median(found[case], "network.bandwidth") == pytest.approx(statistics.median(hand), rel=0.1), (
            case
        )
        assert median(found[case], "network.bandwidth") <= MBIT * 1e6 / 8
    ours = median(found["iperf3.to_peer"], "network.iperf3.bandwidth")
    assert ours == pytest.approx(median(found["to_peer.s8"], "network.bandwidth"), rel=0.1)


def test_latency_is_that_of_iperf3_by_hand(
    hosts: tuple[str, str], slow_line: None, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    found = measured(hosts, tmp_path, "network/latency.*")
    # Eight whole segments a time: an odd or short one is acknowledged late, and would count into the mean.
    line = ("-t", "2", "-b", "2M", "-l", "31584")
    hand = [iperf3(hosts, *line)["streams"][0]["sender"]["mean_rtt"] * 1e-6 for _ in range(3)]
    for case in ("latency.7k", "latency.14k"):
        ours = median(found[case], "network.latency")
        assert ours >= 2 * DELAY_SECONDS
        assert ours == pytest.approx(statistics.median(hand), rel=0.1), case


def test_a_peer_that_vanishes_fails_its_cases_and_nothing_else(
    hosts: tuple[str, str], server: subprocess.Popen[str], tmp_path: Path
) -> None:
    line = [*RUN, "--probe", "network", "--probe", "selftest", "--store", str(tmp_path / "runs.sqlite")]
    run = within(hosts[0], *line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stderr is not None
    for said in run.stderr:
        if "network/to_peer.s8 round 1" in said:  # the peer's host loses its cable, without a word
            command("ip", "-n", hosts[1], "link", "set", "lo", "down")
            name = next(
                word.rstrip(":").partition("@")[0]
                for word in subprocess.run(
                    ["ip", "-n", hosts[1], "-o", "link"], capture_output=True, text=True
                ).stdout.split()
                if word.startswith("k3g")
            )
            command("ip", "-n", hosts[1], "link", "set", name, "down")
            break
    output, _ = run.communicate(timeout=200)
    assert run.returncode == 4, output
    found = json.loads(output)["outcomes"]
    states = {(one["probe"], one["case"]): one["state"] for one in found}
    assert states["network", "from_peer.s8"] == "failed"
    reason = next(one["reason"] for one in found if one["case"] == "from_peer.s8")
    assert f"the peer {THERE}:{PORT} is gone" in reason
    assert {state for (probe, _), state in states.items() if probe == "selftest"} <= {"ok", "unstable"}
