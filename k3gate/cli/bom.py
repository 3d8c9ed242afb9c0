"""`k3gate bom`: an order against a run, frozen after measuring, and held against what was delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from k3gate.cli.options import (
    criteria_option,
    exit_code,
    json_option,
    place,
    print_json,
    store_option,
    target_option,
    word,
)
from k3gate.cli.output import check_kept, write_output

if TYPE_CHECKING:
    from k3gate.harness.ordering import Checked


@click.group("bom", short_help="Check an order against a run, freeze it, verify what was delivered.")
def command() -> None:
    """An order is the bill of materials that `k3gate plan` reads. It is checked line by line against a run, frozen over
    a judged one, and the delivered machine is held against the lock.
    """


@command.command("check")
@click.argument("system", type=place, metavar="SYSTEM.toml")
@click.argument("run", type=word, default="latest", metavar="[RUN]")
@json_option
@store_option
def check(system: str, run: str, as_json: bool, store_location: str | None) -> int:
    """Hold the parts of SYSTEM.toml against those of RUN (default: latest), line by line.

    What it says is kept for the gate of RUN (bom.match, bom.links). Exit code: 0 same or better, 1 worse, 3 not
    measured.
    """
    from k3gate.harness import ordering
    from k3gate.store import open_store

    with open_store(store_location, create=False) as store:
        checked = ordering.check(store, system, run)
    return _told(checked, as_json)


@command.command("freeze")
@click.argument("system", type=place, metavar="SYSTEM.toml")
@click.argument("run", type=word, default="latest", metavar="[RUN]")
@click.option(
    "-o", "--output", type=place, metavar="FILE", help="The lock; default: SYSTEM.lock in this folder."
)
@criteria_option
@target_option("the one that the run was made for")
@json_option
@store_option
def freeze(
    system: str,
    run: str,
    output: str | None,
    criteria: str | None,
    target: str | None,
    as_json: bool,
    store_location: str | None,
) -> int:
    """Freeze the order SYSTEM.toml over RUN (default: latest), where steps 1 to 6 and bom.match pass or are waived.

    The lock holds the hashes of order, criteria, target, run and verdicts. Refused, it writes nothing and says why:
    exit code 1 where a check fails, 3 where one is unproven.
    """
    from pathlib import Path

    from k3gate.cli.printing import say, wrapped
    from k3gate.documents import pretty
    from k3gate.harness import ordering
    from k3gate.store import open_store

    target_path = output or f"{Path(system).stem}.lock"
    check_kept(target_path)
    with open_store(store_location, create=False) as store:
        made = ordering.freeze(store, system, run, criteria=criteria, target=target)
    if made.lock is None:
        if as_json:
            print_json(made.document())
        else:
            say("The order is not frozen:")
            for reason in made.refusals:
                say(wrapped(f"- {reason}", 2))
            say("Settle them, or waive them by name with `k3gate waive`.")
        return exit_code(made.verdict)
    write_output(target_path, pretty(made.lock))
    if as_json:
        print_json(made.document())
    else:
        say(f"frozen: {Path(target_path).resolve()}")
        for name in ("bom", "criteria", "target", "run", "verdicts"):
            say(f"  {name:<9} {made.lock[name]['digest']}")
        waivers = made.lock["verdicts"]["waivers"]
        if waivers:
            say(f"  with {len(waivers)} waiver{'s' if len(waivers) != 1 else ''}")
    return exit_code(made.verdict)


@command.command("verify")
@click.argument("lock", type=place, metavar="LOCK")
@click.argument("run", type=word, default="latest", metavar="[RUN]")
@json_option
@store_option
def verify(lock: str, run: str, as_json: bool, store_location: str | None) -> int:
    """Hold the delivered machine, as RUN (default: latest) tells of it, against LOCK: its order, and every part that
    was measured then.

    Exit code: 0 same or better, 1 another or worse part, 3 not measured.
    """
    from k3gate.harness import ordering
    from k3gate.store import open_store

    with open_store(store_location, create=False) as store:
        checked = ordering.verify(store, lock, run)
    return _told(checked, as_json)


def _told(checked: Checked, as_json: bool) -> int:
    """Print the lines, or the document; returns the exit code."""
    from k3gate.cli.printing import say, table, verdict_word, wrapped
    from k3gate.documents import printable
    from k3gate.gate import bom

    if as_json:
        print_json(checked.document())
        return exit_code(checked.verdict)
    lines = (*checked.lines, *checked.links)
    say(printable(f"{checked.system.name}, against run {checked.run}"))
    say()
    rows = [(line.title, line.ordered, line.found or "unknown", line.verdict) for line in lines]
    say(printable(table(("line", "ordered", "found", "it is"), rows)))
    titles: dict[str, list[str]] = {}
    for line in lines:
        if line.reason:
            titles.setdefault(line.reason, []).append(line.title)
    for reason, named in titles.items():
        say(wrapped(printable(f"{', '.join(named)}: {reason}"), 2))
    say()
    say(f"Order: {verdict_word(checked.verdict)}   {printable(bom.sentence(lines)).split('.')[0]}.")
    return exit_code(checked.verdict)
