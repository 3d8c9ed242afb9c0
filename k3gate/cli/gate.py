"""`k3gate gate`: judge a stored run, again at any time, with other criteria or another target."""

from __future__ import annotations

import click

from k3gate.cli.options import (
    criteria_option,
    exit_code,
    json_option,
    print_json,
    store_option,
    target_option,
    word,
)


@click.command("gate", short_help="Judge a stored run, again, with any criteria and target.")
@click.argument("run", type=word, default="latest", metavar="[RUN]")
@criteria_option
@target_option("the one that the run was made for")
@click.option("--all", "every_check", is_flag=True, help="Every check, not only those that decide.")
@json_option
@store_option
def command(
    run: str,
    criteria: str | None,
    target: str | None,
    every_check: bool,
    as_json: bool,
    store_location: str | None,
) -> int:
    """Judge RUN (an id, its beginning, latest, latest@MACHINE; default: latest).

    The evaluation is stored beside earlier ones. Exit code: 0 pass, 1 fail, 3 unproven.
    """
    from k3gate.cli.printing import print_gate, run_line, say
    from k3gate.gate import document
    from k3gate.harness import stored
    from k3gate.store import open_store

    with open_store(store_location, create=False) as store:
        judged = stored.judge(store, run, criteria=criteria, target=target)
    if as_json:
        print_json(document(judged.result))
    else:
        say(run_line(judged.record))
        say()
        print_gate(judged.result, every_check=every_check)
    return exit_code(judged.result.verdict)
