"""`k3gate net`: the end of the network that answers another machine's run."""

from __future__ import annotations

import signal
import sys

import click

from k3gate.cli.options import word
from k3gate.errors import EXIT_OK


@click.group("net", short_help="Answer the network measurements of another machine's run.")
def command() -> None:
    """One machine runs `k3gate net serve`; `k3gate run --peer HOST` on another measures the network to it."""


@command.command("serve")
@click.option(
    "--bind",
    type=word,
    metavar="ADDRESS",
    help="Listen on this address alone; needed where the machine has a public one. Default: all addresses.",
)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Default: 20263; 0: any free one.")
@click.option("--once", is_flag=True, help="End when one run has ended.")
def serve(bind: str | None, port: int | None, once: bool) -> int:
    """Answer `k3gate run --peer HOST` of another machine, one client at a time, until Ctrl-C.

    For a network that is trusted: whoever reaches the port can use up its line. Nothing that a client sends is kept or
    run; iperf3 and perftest are started on ports of their own where they are installed, and ended afterwards.
    """
    from k3gate.harness import network
    from k3gate.probes.network_protocol import PORT

    def tell(text: str) -> None:
        print(f"k3gate: {text}", file=sys.stderr, flush=True)

    def ready(address: str, number: int) -> None:
        tell(f"serving on {address}, port {number}, for a network that is trusted; Ctrl-C ends it")

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    network.serve(bind, PORT if port is None else port, once=once, tell=tell, ready=ready)
    return EXIT_OK
