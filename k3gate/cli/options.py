"""Options and printing that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from k3gate.documents import pretty
from k3gate.errors import EXIT_FAIL, EXIT_OK, EXIT_UNPROVEN, UsageError
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


def check_output(path: str | None) -> None:
    """Raise `UsageError` before any work where `-o` could not be written afterwards."""
    if path is None:
        return
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory; name a file")
    if target.is_block_device():
        raise UsageError(f"cannot write {path}: it is a block device; name a file")
    if target.is_file() and target.open("rb").read(16) in (b"SQLite format 3\0",):
        raise UsageError(f"cannot write {path}: it is a database, perhaps the store; name another file")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {folder}; make it first")
    import os

    if not os.access(target if target.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied; choose another place with -o")


def write_output(path: str, text: str) -> None:
    """Write a file whole or not at all; raises `UsageError` with the system's reason."""
    import os
    import tempfile

    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.")
        try:
            with open(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            umask = os.umask(0)
            os.umask(umask)
            Path(name).chmod(0o666 & ~umask)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another place with -o") from error
