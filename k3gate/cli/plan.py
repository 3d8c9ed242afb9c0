"""`k3gate plan`: what a machine that is not there yet would hold and reach, and whether claims about it can be true."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, place, print_json, store_option, target_option, word
from k3gate.cli.output import check_output, write_output


@click.command("plan", short_help="Plan a machine from its description, and judge claims about it.")
@click.argument("system", type=place, metavar="SYSTEM.toml")
@target_option("hybrid where the system places the trunk on GPUs, else residency-lab")
@click.option(
    "--model",
    type=place,
    metavar="PATH",
    help="A checkpoint, a config.json, or what inspect wrote as JSON; default: Kimi K3 as released.",
)
@click.option(
    "--run", "run", type=word, metavar="RUN", help="A stored run whose measured rates are to be used."
)
@click.option("-o", "--output", metavar="FILE.html", help="Write the plan as an HTML page.")
@click.option("--enforce", is_flag=True, help="Exit 1 where it falls short, 3 where that is not known.")
@json_option
@store_option
def command(
    system: str,
    target: str | None,
    model: str | None,
    run: str | None,
    output: str | None,
    enforce: bool,
    as_json: bool,
    store_location: str | None,
) -> int:
    """Plan the machine that SYSTEM.toml describes: what lies where, what a token reads, the rates that nothing can
    exceed, what may be expected, and which stated claims can be true. Nothing is measured.
    """
    from k3gate.errors import EXIT_FAIL, EXIT_OK, EXIT_UNPROVEN
    from k3gate.harness import planning

    check_output(output)
    if run is None:
        made = planning.plan(system, target=target, model=model)
    else:
        from k3gate.store import open_store

        with open_store(store_location, create=False) as store:
            made = planning.plan(system, target=target, model=model, store=store, run=run)
    if output:
        from k3gate.reports import plan as plan_page

        write_output(output, plan_page.render(made))
    if as_json:
        from k3gate.analysis.planning import document

        print_json(document(made))
    else:
        import sys

        from k3gate.analysis.plan_text import text

        sys.stdout.write(text(made))
        if output:
            sys.stdout.write(f"page: {output}\n")
    if not enforce:
        return EXIT_OK
    return EXIT_FAIL if made.falls_short else EXIT_UNPROVEN if made.undecided else EXIT_OK
