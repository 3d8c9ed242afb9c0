"""`k3gate runs`: what the store holds."""

from __future__ import annotations

import os

import click

from k3gate.cli.options import json_option, print_json, store_option
from k3gate.errors import UsageError


@click.command("runs", short_help="List the stored runs.")
@json_option
@store_option
def command(as_json: bool, store_location: str | None) -> int:
    """List the stored runs, newest first, with the verdict of the latest evaluation."""
    from k3gate.cli.printing import say, table
    from k3gate.documents import plain
    from k3gate.store import open_store
    from k3gate.units import duration

    try:
        with open_store(store_location, create=False) as store:
            store.abandon_dead()
            runs = store.runs()
    except UsageError as error:
        # Before the first run there is no store yet; one that was named must be there.
        named = store_location or os.environ.get("K3GATE_STORE")
        if named or not str(error).startswith("there is no store"):
            raise
        runs = []
    if as_json:
        print_json({"runs": [plain(run) for run in runs]})
        return 0
    if not runs:
        say("The store holds no runs yet: k3gate run makes one.")
        return 0
    rows = [
        (
            run.id,
            run.started,
            run.machine_name or (run.fingerprint or "unknown")[:19],
            run.profile,
            run.status.value,
            duration(run.seconds),
            run.verdict.value if run.verdict else "not judged",
            run.target or "",
        )
        for run in runs
    ]
    say(table(("run", "started", "machine", "profile", "status", "took", "verdict", "target"), rows))
    return 0
