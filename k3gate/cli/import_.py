"""`k3gate import`: take in a run that was exported, also one from a stranger."""

from __future__ import annotations

import click

from k3gate.cli.options import place, store_option


@click.command("import", short_help="Take in a run from such a file.")
@click.argument("bundle", type=place, metavar="FILE.k3run")
@store_option
def command(bundle: str, store_location: str | None) -> int:
    """Check the bundle and store its run; taking in the same run twice changes nothing."""
    from pathlib import Path

    from k3gate.cli.printing import say
    from k3gate.store import open_store
    from k3gate.store.bundle import check_bundle, import_bundle

    check_bundle(Path(bundle))  # before a store is made for nothing
    with open_store(store_location) as store:
        run_id = import_bundle(store, Path(bundle))
    say(f"run {run_id} is in the store; k3gate show {run_id}")
    return 0
