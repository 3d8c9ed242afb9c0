"""Options and printing that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from k3gate.documents import pretty, printable
from k3gate.errors import EXIT_FAIL, EXIT_OK, EXIT_UNPROVEN
from k3gate.records import Verdict

Function = TypeVar("Function", bound=Callable[..., Any])


def word(text: str) -> str:
    """The type of an option that is a name, an id or a pattern: printable, one line, of sensible length."""
    if not text.strip():
        raise click.BadParameter("it is empty: give a value, or leave it away")
    if len(text) > LONGEST_WORD or not text.isprintable():
        raise click.BadParameter(
            f"{short(text)} is no name: write 1 to {LONGEST_WORD} printable characters on one line"
        )
    return text


def place(text: str) -> str:
    """The type of an option that is a path or an URL: anything that the system takes, but not nothing."""
    if not text.strip():
        raise click.BadParameter("it is empty: give a path, or leave it away")
    if len(text) > LONGEST_PATH:
        raise click.BadParameter(f"{short(text)} is longer than any path: give a shorter one")
    return text


LONGEST_WORD = 200
LONGEST_PATH = 4096


def short(text: str) -> str:
    """What a user typed, quoted: its visible form, at most 80 characters."""
    shown = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return f"'{shown}'" if len(shown) <= 80 else f"'{shown[:80]}...'"


store_option = click.option(
    "--store",
    "store_location",
    type=place,
    metavar="PATH|URL",
    help="The store of runs; default: $K3GATE_STORE, else runs.sqlite in the user's data directory.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
criteria_option = click.option(
    "--criteria", type=place, metavar="FILE", help="Judge by this criteria file instead of the shipped one."
)


storage_option = click.option(
    "--storage",
    "paths",
    type=place,
    multiple=True,
    metavar="PATH",
    help="Where the checkpoint lies or is to lie: what that is made of, down to the drives. May be repeated.",
)
bmc_option = click.option(
    "--bmc",
    type=place,
    metavar="https://HOST",
    help="Ask the BMC there by Redfish for heat and power, GET alone; K3GATE_BMC_USER, K3GATE_BMC_PASSWORD and "
    "K3GATE_BMC_CERTIFICATE say as whom, and which certificate to believe.",
)


def target_option(default: str) -> Callable[[Function], Function]:
    """`--target`; not given, it is None, and `default` says in the help what that means."""
    told = f"default: {default}"
    return click.option(
        "--target", type=place, metavar="NAME|FILE", help=f"What the machine is to do; {told}."
    )


def print_json(document: Any) -> None:
    """One document on stdout."""
    sys.stdout.write(pretty(document))


def exit_code(verdict: Verdict) -> int:
    """The exit code of a verdict: 1 fail, 3 unproven, else 0 (a gate that is waived is passed)."""
    return {Verdict.FAIL: EXIT_FAIL, Verdict.UNPROVEN: EXIT_UNPROVEN}.get(verdict, EXIT_OK)
