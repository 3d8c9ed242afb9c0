"""`k3gate prototype`: how fast a server answers, that runs or that is started."""

from __future__ import annotations

import sys
from typing import Any

import click

from k3gate.cli.options import json_option
from k3gate.cli.output import check_output, emit
from k3gate.cli.serving_options import asked, serving_options


@click.command("prototype", short_help="Measure how fast a server answers; start it, or ask one that runs.")
@serving_options
@click.option(
    "--streams", type=click.IntRange(1, 1024), default=1, show_default=True, help="Answers at once, besides."
)
@click.option("--rounds", type=click.IntRange(3, 1000), default=3, show_default=True, help="Of each reading.")
@click.option("-o", "--output", metavar="FILE", help="Write to a file.")
@json_option
def command(streams: int, rounds: int, output: str | None, as_json: bool, **told: Any) -> int:
    """Ask a server: prompts of growing length one at a time, then so many answers at once. Each prompt is new, so that
    no cache knows it. An API key is taken from K3GATE_API_KEY. What is found is printed and not stored: `k3gate run`
    with the same options stores it as evidence.

    Exit code: 0 answered, 4 where an answer did not come, 130 interrupted, with what was read until then.
    """
    from k3gate.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PROBE_FAILED, UsageError
    from k3gate.harness import prototype

    check_output(output)
    wanted = asked(told, (streams,))
    if wanted is None:
        raise UsageError("give --endpoint URL, a server that runs, or --command LINE, one to start")
    found = prototype.measure(wanted, rounds, _life)
    _life("")
    emit(output, as_json, found.document(), found.text())
    if found.interrupted:
        return EXIT_INTERRUPTED
    failed = found.lost is not None or any(one.failures for one in found.readings)
    return EXIT_PROBE_FAILED if failed else EXIT_OK


def _life(text: str) -> None:
    """A line that shows that something happens, on a terminal alone."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
