"""Files that a command writes: `-o` and `--report`. Nothing that k3gate did not make is ever replaced."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import click

from k3gate.atomic import replacing
from k3gate.cli.options import print_json
from k3gate.documents import pretty, printable
from k3gate.errors import UsageError

HEAD_BYTES = 4096
_PAGE = re.compile(rb"\s*<!doctype html>.*?<title>k3gate ", re.S)
_INVENTORY = re.compile(rb'Findings\n--------\n|\{\s*"machine": \{\s*"id": ')
_ROUTING = re.compile(rb'\{"k3gate_routing":|# Written by k3gate routing: ')
_LOCK = re.compile(rb'\{\s*"k3gate_lock": ')
_STREAM = re.compile(
    r"/dev/(?:stdin|(?P<name>stdout|stderr)|fd/(?P<own>\d{1,6}))|/proc/self/fd/(?P<process>\d{1,6})"
)
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISFIFO, "a named pipe"),
)


def is_page(path: str) -> bool:
    """Whether an output is to be an HTML page, by its name."""
    return path.lower().endswith((".html", ".htm"))


def check_output(path: str | None) -> None:
    """Raise `UsageError` before any work where `-o` could not be written afterwards, or must not be."""
    if path is None or path == os.devnull or stream_number(path) is not None:
        return
    import tempfile

    try:
        handle, name = tempfile.mkstemp(dir=_target(path).parent, prefix=".k3gate.")
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise refused(path, error) from error


def check_kept(path: str) -> None:
    """Raise `UsageError` where `path` is to be kept and is a stream or a device: what is written there is gone."""
    kind = "a device" if path == os.devnull else None if stream_number(path) is None else "a stream"
    if kind is not None:
        raise UsageError(f"cannot write {shown_path(path)}: it is {kind}, which keeps nothing; name a file")
    check_output(path)


def emit(
    output: str | None, as_json: bool, document: object, text: str, render: Callable[[], str] | None = None
) -> None:
    """What a command has to say: `text` or, with --json, `document`; to a file where `output` names one. A file that
    ends in .html gets the page that `render` draws, and the rest is printed all the same; without `render` there is no
    page."""
    if output is not None and render is not None and is_page(output):
        write_output(output, render())
    elif output is not None:
        write_output(output, pretty(document) if as_json else text)
        return
    if as_json:
        print_json(document)
    else:
        click.echo(text, nl=False)


def write_output(path: str, text: str) -> None:
    """Write a file whole or not at all; raises `UsageError` with the reason.

    A stream of this process (/dev/stdout, a pipe of the shell) is written as it stands.
    """
    if path == os.devnull:
        return
    try:
        number = stream_number(path)
        if number is not None:
            # Through the open stream: opened by name, a file behind it would be cut and written over.
            with open(os.dup(number), "w", encoding="utf-8") as stream:
                stream.write(text)
            return
        with replacing(_target(path)) as file:
            file.write(text.encode("utf-8"))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise refused(path, error) from error


def _target(path: str) -> Path:
    """The regular file that `path` stands for, through links; raises `UsageError` where it may not be written."""
    if not path:
        raise UsageError("cannot write a file without a name: name one")
    shown = shown_path(path)
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if path.endswith("/"):
            raise UsageError(f"cannot write {shown}: it is a directory; name a file") from None
        if not target.parent.is_dir():
            folder = shown_path(str(target.parent if Path(path).is_symlink() else Path(path).parent))
            link = ", to which the link leads" if Path(path).is_symlink() else ""
            raise UsageError(
                f"cannot write {shown}: there is no directory {folder}{link}; make it first"
            ) from None
        return target
    for is_kind, word in _KINDS:
        if is_kind(mode):
            raise UsageError(f"cannot write {shown}: it is {word}; name a file")
    with target.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(b"SQLite format 3\0"):
        raise UsageError(f"cannot write {shown}: it is a database, perhaps the store; name another file")
    if _LOCK.match(head):
        raise UsageError(f"cannot write {shown}: it is a lock, which is never replaced; name another file")
    if head and not any(made.match(head) for made in (_PAGE, _INVENTORY, _ROUTING)):
        raise UsageError(
            f"cannot write {shown}: k3gate did not make that file; name another one, or remove it"
        )
    return target


def stream_number(path: str) -> int | None:
    """The number of the stream of this process that `path` names; None where it is a file."""
    match = _STREAM.fullmatch(path)
    if match is None:
        return None
    number = {"stdout": 1, "stderr": 2}.get(match["name"] or "") or int(match["own"] or match["process"] or 0)
    try:
        access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        raise UsageError(f"cannot write {path}: no such stream is open; name a file") from None
    if access == os.O_RDONLY:
        raise UsageError(f"cannot write {path}: that stream is open for reading only; name a file")
    return number


def refused(path: str, error: OSError) -> UsageError:
    """The one line for a place that cannot be written, from what the system said of it."""
    reason = (error.strerror or str(error)).lower()
    return UsageError(f"cannot write {shown_path(path)}: {reason}; choose another place")


def shown_path(path: str) -> str:
    """`path` fit for one line of a terminal: nothing unprintable, and a very long one cut."""
    text = printable(path).replace("\n", "\\n")
    return text if len(text) <= 300 else f"{text[:80]}..."
