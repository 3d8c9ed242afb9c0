"""`k3gate report`: the HTML report of a stored run."""

from __future__ import annotations

import click

from k3gate.cli.options import criteria_option, store_option, target_option, word
from k3gate.cli.output import check_output, write_output


@click.command("report", short_help="Write the HTML report of a stored run.")
@click.argument("run", type=word, default="latest", metavar="[RUN]")
@click.option("-o", "--output", metavar="FILE", help="Default: k3gate-RUN.html in this folder.")
@criteria_option
@target_option("the one that the run was made for")
@store_option
def command(
    run: str, output: str | None, criteria: str | None, target: str | None, store_location: str | None
) -> int:
    """Judge RUN (default: latest) and write its report: one HTML file that needs nothing else."""
    from pathlib import Path

    from k3gate.cli.printing import say
    from k3gate.harness import stored
    from k3gate.store import open_store

    check_output(output)
    with open_store(store_location, create=False) as store:
        run_id = store.resolve(run)
        path = output or f"k3gate-{run_id}.html"
        check_output(path)
        write_output(path, stored.report(store, run_id, criteria=criteria, target=target))
    say(f"report of run {run_id}: {Path(path).resolve()}")
    return 0
