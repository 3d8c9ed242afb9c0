"""`k3gate inspect`: what a checkpoint is, to the byte, and what is wrong with it."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, place, print_json, store_option, word
from k3gate.cli.output import check_output, write_output


@click.command("inspect", short_help="Show what a checkpoint is, and what is wrong with it.")
@click.argument("path", type=place, metavar="PATH")
@click.option(
    "--context", type=click.IntRange(0, 2**30), default=8192, show_default=True, help="Tokens of context."
)
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Sequences at once."
)
@click.option("--run", "run", type=word, metavar="RUN", help="The stored run that is about this checkpoint.")
@click.option("--no-store", is_flag=True, help="Keep nothing of it in the store.")
@click.option("-o", "--output", metavar="FILE", help="Write to a file instead of stdout.")
@json_option
@store_option
def command(
    path: str,
    context: int,
    batch: int,
    run: str | None,
    no_store: bool,
    output: str | None,
    as_json: bool,
    store_location: str | None,
) -> int:
    """Read the headers of the checkpoint at PATH: a folder, a .safetensors or .gguf file, or a repository in the
    Hub's cache. No weight is loaded.

    What it proves is kept in the store by the checkpoint's digest, for the gate. Exit code: 0 whole, 1 damaged,
    2 no checkpoint.
    """
    from k3gate.documents import pretty
    from k3gate.errors import EXIT_FAIL, EXIT_OK, UsageError
    from k3gate.harness import checkpoints
    from k3gate.model.checkpoint import inspection, text
    from k3gate.store import open_store

    check_output(output)
    if path.startswith("hf://"):
        raise UsageError(
            f"{path}: this version reads no Hub; fetch the files (hf download) and give their folder"
        )
    if run is not None and no_store:
        raise UsageError("--run joins a stored run and --no-store keeps nothing: give one of them")
    found = checkpoints.read(path)
    if not no_store:
        with open_store(store_location) as store:
            checkpoints.keep(store, found, run)
    document = inspection.document(found)
    if output is not None:
        write_output(output, pretty(document) if as_json else text.page(found, context, batch))
    elif as_json:
        print_json(document)
    else:
        click.echo(text.page(found, context, batch), nl=False)
    return EXIT_FAIL if found.damaged else EXIT_OK
