"""`k3gate quant`: what a conversion did to a checkpoint."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, place, store_option, word
from k3gate.cli.output import check_output, emit


@click.command("quant", short_help="Hold a converted checkpoint against its source.")
@click.argument("source", type=place, metavar="SOURCE")
@click.argument("converted", type=place, metavar="CONVERTED")
@click.option(
    "--criteria", "criteria_path", type=place, metavar="FILE", help="Other bounds than the shipped ones."
)
@click.option(
    "--run", "run", type=word, metavar="RUN", help="The stored run that is about the converted file."
)
@click.option("--no-store", is_flag=True, help="Keep nothing of it in the store.")
@click.option(
    "-o", "--output", metavar="FILE", help="Write to a file; one that ends in .html becomes a page."
)
@json_option
@store_option
def command(
    source: str,
    converted: str,
    criteria_path: str | None,
    run: str | None,
    no_store: bool,
    output: str | None,
    as_json: bool,
    store_location: str | None,
) -> int:
    """Compare every weight of CONVERTED with SOURCE, the checkpoint that it was made of: bit for bit where the type
    can hold it, else by the error, part by part and layer by layer. Known mistakes of converters are named.

    Both are read as `k3gate inspect` reads them, in pieces, on all cores. What is proven is kept in the store by the
    converted file's digest, for the gate. Exit code: 0 within the bounds, 1 not, 2 unreadable, 3 not decided.
    """
    from contextlib import nullcontext

    from k3gate.cli.options import exit_code
    from k3gate.cli.pace import shown
    from k3gate.errors import UsageError
    from k3gate.harness import checkpoints, conversions
    from k3gate.model.checkpoint.hub.address import is_address
    from k3gate.model.conversion import text
    from k3gate.store import open_store

    check_output(output)
    if run is not None and no_store:
        raise UsageError("--run joins a stored run and --no-store keeps nothing: give one of them")
    for address in filter(is_address, (source, converted)):
        raise UsageError(
            f"{address}: weights are compared on this machine; fetch the files and give their folder"
        )
    with nullcontext() if no_store else open_store(store_location) as store:
        if store is not None and run is not None:
            store.resolve(run)
        with shown() as progress:
            result = conversions.compare(source, converted, criteria_path, progress)
        if store is not None:
            checkpoints.keep_evidence(store, result.evidence, run)
    verdict = result.judged.verdict
    document = conversions.document(result)
    page = text.page(
        [
            ("verdict", f"{verdict}: {result.judged.reason}"),
            ("source", f"{result.source.place}, {result.source.architecture.name}, {result.source.digest}"),
            (
                "converted",
                f"{result.converted.place}, {result.converted.architecture.name}, {result.subject}",
            ),
        ],
        result.compared,
    )

    def render() -> str:
        from k3gate.harness.stored import now
        from k3gate.reports import conversion

        return conversion.render(document, result.bounds, now())

    emit(output, as_json, document, page, render)
    return exit_code(verdict)
