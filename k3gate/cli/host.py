"""`k3gate host`: what this machine is."""

from __future__ import annotations

import click

from k3gate.cli.options import bmc_option, json_option, place, print_json, storage_option, word
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
@storage_option
@bmc_option
@click.option("-o", "--output", metavar="FILE", help="Write to a file instead of stdout.")
@json_option
def command(
    root: str, name: str | None, paths: tuple[str, ...], bmc: str | None, output: str | None, as_json: bool
) -> int:
    """Show what this machine is, and what about it spoils figures. Changes nothing, needs no rights."""
    from k3gate import documents, host
    from k3gate.host import storage, text

    check_output(output)
    access = None
    if bmc is not None:
        from k3gate.host import redfish

        access = redfish.access(bmc)
    inventory = host.read(root, name=name, paths=storage.asked(paths) if root == "/" else paths)
    if access is not None:
        with redfish.Service(access) as service:
            inventory = host.with_bmc(inventory, service.read())
    if output is not None:
        page = documents.pretty(host.document(inventory)) if as_json else text.page(inventory)
        write_output(output, page)
    elif as_json:
        print_json(host.document(inventory))
    else:
        click.echo(text.page(inventory), nl=False)
    return 0
