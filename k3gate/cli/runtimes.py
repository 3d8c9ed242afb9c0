"""`k3gate runtimes`: which runtimes are installed, and whether they name the model's architecture."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, place, store_option, word
from k3gate.cli.output import check_output, emit


@click.command("runtimes", short_help="Find installed runtimes, and whether they name Kimi K3.")
@click.argument("places", type=place, nargs=-1, metavar="[PLACE]...")
@click.option("--checkpoint", type=place, metavar="PATH", help="Whose architecture; default: Kimi K3's.")
@click.option("--table", "own", type=place, metavar="FILE.toml", help="More runtimes to look for.")
@click.option("--run", "run", type=word, metavar="RUN", help="The stored run that is about this runtime.")
@click.option(
    "--runtime",
    "name",
    type=word,
    metavar="NAME",
    help="Which one the run is about, where several are found.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to a file.")
@json_option
@store_option
def command(
    places: tuple[str, ...],
    checkpoint: str | None,
    own: str | None,
    run: str | None,
    name: str | None,
    output: str | None,
    as_json: bool,
    store_location: str | None,
) -> None:
    """Look through PLACES: Python environments, folders of packages, wheels, programs; without any, through the
    environments and the path of this user. Nothing is imported; of programs `--version` is run.

    A registry that names the architecture is not yet a model that was loaded and answered. With --run it joins the
    gate of a stored run.
    """
    from k3gate.errors import UsageError
    from k3gate.harness import runtimes
    from k3gate.serving.text import text
    from k3gate.store import open_store

    check_output(output)
    if name is not None and run is None:
        raise UsageError("--runtime says which one a run is about: give the run with --run, or leave it out")
    found, wanted = runtimes.find(checkpoint, places, own)
    if run is not None:
        chosen = runtimes.choose(found, name)
        with open_store(store_location) as store:
            runtimes.keep(store, chosen, wanted, run)
    document = {
        "checkpoint": wanted.name,
        "places": list(places),
        "runtimes": [one.document() for one in found],
    }
    emit(output, as_json, document, text(found, wanted, places))
