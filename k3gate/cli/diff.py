"""`k3gate diff`: two runs side by side."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, print_json, store_option, word
from k3gate.cli.output import check_output, write_output
from k3gate.errors import EXIT_FAIL, EXIT_OK, EXIT_UNPROVEN

EXIT_OF = {"worse": EXIT_FAIL, "cannot tell": EXIT_UNPROVEN}


@click.command("diff", short_help="Compare two runs.")
@click.argument("a", type=word)
@click.argument("b", type=word)
@click.option("-o", "--output", metavar="FILE.html", help="Write the comparison as an HTML page.")
@click.option("--enforce", is_flag=True, help="Exit 1 when B is worse, 3 when nothing can be told.")
@json_option
@store_option
def command(
    a: str, b: str, output: str | None, enforce: bool, as_json: bool, store_location: str | None
) -> int:
    """Compare run B with run A: what differs in the machines, then metric by metric B / A.

    A metric is "better" or "worse" where the 99 % interval of the ratio leaves 1 out and the ratio is
    at least 5 % off, "same" where the interval lies within 5 % of 1, else "cannot tell".
    """
    from k3gate.analysis.comparison import document
    from k3gate.cli.printing import say
    from k3gate.harness import stored
    from k3gate.store import open_store

    check_output(output)
    with open_store(store_location, create=False) as store:
        comparison = stored.compare(store, a, b)
    if output:
        from k3gate.reports import comparison as comparison_page

        write_output(output, comparison_page.render(comparison))
    if as_json:
        print_json(document(comparison))
    else:
        _print(comparison)
        if output:
            say(f"page: {output}")
    return EXIT_OF.get(comparison.verdict, EXIT_OK) if enforce else EXIT_OK


def _print(comparison: object) -> None:
    from k3gate.analysis.comparison import Comparison
    from k3gate.cli.printing import say, table, wrapped
    from k3gate.reports import words
    from k3gate.units import NBSP, quantity, significant

    assert isinstance(comparison, Comparison)
    for letter, side in zip("AB", comparison.sides, strict=True):
        name = side.machine_name or (side.fingerprint or "unknown machine")[:19]
        say(f"{letter}  run {side.run}  {side.started}  {side.profile}  {name}  {side.model or ''}".rstrip())
    say()
    if not comparison.comparable:
        for reason in comparison.reasons:
            say(wrapped(f"not comparable: {reason}", 0))
        say()
    shown = comparison.differences[:40]
    if shown:
        say("What differs in the machines (settings first):")
        say(
            table(
                ("field", "A", "B"),
                [(d.field, _short(d.a), _short(d.b)) for d in shown],
            )
        )
        if len(comparison.differences) > len(shown):
            say(f"... and {len(comparison.differences) - len(shown)} more; --json has all")
    else:
        say("The machines do not differ in anything that was read.")
    say()
    rows = []
    apart = [told.replace(NBSP, " ") for told in words.apart_in_both(comparison.metrics)]
    for m, told in zip(comparison.metrics, apart, strict=True):
        interval = (
            f"{significant(m.interval[0])} to {significant(m.interval[1])}" if m.interval else "unknown"
        )
        rows.append(
            (
                f"{m.probe}/{m.case}",
                m.name + told,
                quantity(m.a.median if m.a else None, m.unit),
                quantity(m.b.median if m.b else None, m.unit),
                significant(m.ratio) if m.ratio is not None else "unknown",
                interval,
                m.verdict,
            )
        )
    say(table(("case", "metric", "A", "B", "B / A", "99 % interval", "B is"), rows))
    for m, told in zip(comparison.metrics, apart, strict=True):
        if m.reason:
            say(wrapped(f"{m.case} {m.name.rsplit('.', 1)[-1]}{told}: {m.reason}", 2))
    say()
    say(wrapped(comparison.sentence, 0))


def _short(value: object) -> str:
    if value is None:
        return "unknown"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
