"""k3gate's streams against iperf3 over loopback, where no line but the two hosts' own work is the limit.

    python benchmarks/network.py [--pairs 15] [--seconds 1]

Both ends are processes of their own, as between two machines; the peer of k3gate is `k3gate net serve`, that of iperf3
is started by it. A bandwidth that k3gate's loops could not carry would be taken for the network's: so the goal is what
iperf3 carries, in each direction, by one stream and by eight. iperf3 before 3.16 drives all streams by one thread, so
that eight of ours may carry twice as much.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pairs

from k3gate.probes import network_tools as tools
from k3gate.probes.network_client import Session

GOAL = 0.95
HOST = "127.0.0.1"
STREAMS = (1, 8)
WARM_UP = 0.2


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """The port of a `k3gate net serve`, which ends with this."""
    line = [sys.executable, "-m", "k3gate", "net", "serve", "--bind", HOST, "--port", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"port (\d+)", server.stderr.readline())
            if found is None:
                raise SystemExit("k3gate net serve did not start")
            yield int(found[1])
        finally:
            server.terminate()


def ours(session: Session, streams: int, seconds: float, *, reverse: bool) -> Callable[[], float]:
    """B/s that arrive, in a window of the receiver's clock."""

    def once() -> float:
        there, back = (0, streams) if reverse else (streams, 0)
        own, peers = session.flow(there, back, WARM_UP, seconds, lambda: None)
        seen = own if reverse else peers
        if seen.wrong or not seen.complete:
            raise SystemExit("what arrived is not what was sent")
        return seen.window_bytes / seconds

    return once


def iperf3(session: Session, streams: int, seconds: float, *, reverse: bool) -> Callable[[], float]:
    """B/s that iperf3's receiver tells. It counts whole seconds, and leaves the first out."""

    def once() -> float:
        with session.tool("iperf3") as port:
            if isinstance(port, str):
                raise SystemExit(port)
            whole = max(1, round(seconds))
            line = tools.iperf3(HOST, port, streams, whole, 1, reverse)
            return tools.read_iperf3(tools.run(line, whole + 20.0, lambda: None)).bytes_per_s

    return once


def main() -> int:
    """A line for each direction and number of streams; exit code 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one reading")
    arguments = parser.parse_args()
    if shutil.which("iperf3") is None:
        print("Streams / iperf3: not resolvable here: there is no iperf3 (apt-get install iperf3)")
        return 0
    held = []
    with serving() as port:
        session = Session(HOST, port)
        for streams in STREAMS:
            for reverse, words in ((False, "to the peer"), (True, "from the peer")):
                many = "1 stream" if streams == 1 else f"{streams} streams"
                sides = [
                    side(session, streams, arguments.seconds, reverse=reverse) for side in (ours, iperf3)
                ]
                taken = pairs.measure(sides[0], sides[1], arguments.pairs, f"{many} {words}")
                told = pairs.line(f"Network, {many} {words} / iperf3", pairs.ratio(taken), GOAL)
                print(told)
                held.append(not told.endswith("not held"))
        session.close(last=True)
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
