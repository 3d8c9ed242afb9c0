"""`k3gate host`: what this machine is."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, place, print_json, word
from k3gate.cli.output import check_output, write_output


@click.command("host", short_help="Show what this machine is.")
@click.option(
    "--root",
    type=place,
    default="/",
    metavar="PATH",
    help="Read another machine: a capture, an archive or a folder of its files, or one with its firmware table.",
)
@click.option(
    "--machine", "name", type=word, metavar="NAME", help="The name that people use for this machine."
)
@click.option("-o", "--output", metavar="FILE", help="Write to a file instead of stdout.")
@json_option
def command(root: str, name: str | None, output: str | None, as_json: bool) -> int:
    """Show what this machine is, and what about it spoils figures. Changes nothing, needs no rights."""
    from k3gate import documents, host
    from k3gate.host import text

    check_output(output)
    inventory = host.read(root, name=name)
    if output is not None:
        page = documents.pretty(host.document(inventory)) if as_json else text.page(inventory)
        write_output(output, page)
    elif as_json:
        print_json(host.document(inventory))
    else:
        click.echo(text.page(inventory), nl=False)
    return 0
