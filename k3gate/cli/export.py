"""`k3gate export`: a run with everything in it, as one file."""

from __future__ import annotations

import click

from k3gate.cli.options import place, store_option, word


@click.command("export", short_help="Write a run with everything in it to one file.")
@click.argument("run", type=word, default="latest", metavar="[RUN]")
@click.option("-o", "--output", type=place, metavar="FILE.k3run", help="Default: RUN.k3run in this folder.")
@store_option
def command(run: str, output: str | None, store_location: str | None) -> int:
    """Write RUN (default: latest) to a checksummed bundle that `k3gate import` takes in elsewhere."""
    from pathlib import Path

    from k3gate.cli.printing import say
    from k3gate.store import open_store
    from k3gate.store.bundle import export_run

    with open_store(store_location, create=False) as store:
        store.abandon_dead()
        run_id = store.resolve(run)
        path = Path(output or f"{run_id}.k3run")
        export_run(store, run_id, path)
    say(f"run {run_id}: {path.resolve()}")
    return 0
