"""Options and printing that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from k3gate.documents import pretty
from k3gate.errors import EXIT_FAIL, EXIT_OK, EXIT_UNPROVEN
from k3gate.records import Verdict

Function = TypeVar("Function", bound=Callable[..., Any])

store_option = click.option(
    "--store",
    "store_location",
    metavar="PATH|URL",
    help="The store of runs; default: $K3GATE_STORE, else runs.sqlite in the user's data directory.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
criteria_option = click.option(
    "--criteria", metavar="FILE", help="Judge by this criteria file instead of the shipped one."
)


def target_option(default: str | None) -> Callable[[Function], Function]:
    """`--target`; with default None the command takes the target that the run was made for."""
    told = f"default: {default}" if default else "default: the one that the run was made for"
    return click.option(
        "--target", default=default, metavar="NAME|FILE", help=f"What the machine is to do; {told}."
    )


def print_json(document: Any) -> None:
    """One document on stdout."""
    sys.stdout.write(pretty(document))


def exit_code(verdict: Verdict) -> int:
    """The exit code of a verdict: 1 fail, 3 unproven, else 0 (a gate that is waived is passed)."""
    return {Verdict.FAIL: EXIT_FAIL, Verdict.UNPROVEN: EXIT_UNPROVEN}.get(verdict, EXIT_OK)
