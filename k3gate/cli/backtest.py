"""`k3gate backtest`: the predictor of `k3gate plan` against published measurements."""

from __future__ import annotations

import sys

import click

from k3gate.cli.options import json_option, place, print_json


@click.command("backtest", short_help="Hold the predictions of plan against published measurements.")
@click.argument("file", type=place, required=False, metavar="[FILE.csv]")
@click.option(
    "--enforce", is_flag=True, help="Exit 1 where too few results lie inside, 3 where no row tests it."
)
@json_option
def command(file: str | None, enforce: bool, as_json: bool) -> int:
    """Predict every row of FILE.csv (default: the results that are shipped) that a memory-bound predictor can be tested
    on, and say how many results lie inside. Rows that cannot test it are listed with the reason.
    """
    from k3gate.analysis.backtest import document, text
    from k3gate.errors import EXIT_FAIL, EXIT_OK, EXIT_UNPROVEN
    from k3gate.harness import planning

    made = planning.against_published(file)
    if as_json:
        print_json(document(made))
    else:
        sys.stdout.write(text(made))
    if not enforce:
        return EXIT_OK
    return {True: EXIT_OK, False: EXIT_FAIL, None: EXIT_UNPROVEN}[made.good]
