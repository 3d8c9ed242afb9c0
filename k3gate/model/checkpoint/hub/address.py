"""Addresses of repositories on a Hub: hf://ORG/REPO, a folder or a file in it, and the revision that is meant."""

from __future__ import annotations

import re
from urllib.parse import unquote

from attrs import frozen

from k3gate.documents import printable
from k3gate.errors import UsageError

SCHEME = "hf://"
MAIN = "main"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
_REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9][^\s~^:?*\[\\@\x00-\x20\x7f]{0,254}")
_REFERENCE = re.compile(r"refs/(?:pr|convert)/[^/]+")
_KINDS = frozenset({"datasets", "spaces", "kernels", "buckets"})
_LONGEST_PATH = 1024


@frozen
class Address:
    """A place on a Hub. `path` leads to a folder or a file of the repository, "" is its root."""

    repository: str
    path: str = ""
    revision: str = MAIN


def is_address(place: str) -> bool:
    """Whether a place is meant to be on a Hub."""
    return place.startswith(SCHEME)


def parse(place: str) -> Address:
    """hf://ORG/REPO[/PATH][@REVISION], or hf://ORG/REPO@REVISION[/PATH] as the Hub's own tools write it.

    `UsageError` for anything else. A revision in the middle ends at the next "/", which it may hold as %2F.
    """
    where, at, rest = place.removeprefix(SCHEME).partition("@")
    parts = where.rstrip("/").split("/")
    if parts[0] == "models":
        del parts[0]
    if parts and parts[0] in _KINDS:
        raise UsageError(f"{printable(place)}: {parts[0]} hold no checkpoints; give hf://ORG/REPO of a model")
    revision = unquote(rest)
    if at and len(parts) == 2:
        reference = _REFERENCE.match(rest)
        revision = reference[0] if reference else rest.partition("/")[0]
        behind = rest[len(revision) :].strip("/")
        parts += behind.split("/") if behind else []
        revision = unquote(revision)
    path = "/".join(parts[2:])
    if (
        len(parts) < 2
        or not all(_NAME.fullmatch(one) for one in parts[:2])
        or (at and not _REVISION.fullmatch(revision))
        or not is_path(path)
    ):
        raise UsageError(
            f"{printable(place)}: no address of a repository on the Hub; write hf://ORG/REPO, with /FOLDER or /FILE "
            "for a part of it and @REVISION for another revision than main"
        )
    return Address("/".join(parts[:2]), path, revision if at else MAIN)


def is_path(text: str) -> bool:
    """Whether a text is the path of something inside a repository, "" being its root."""
    if not text:
        return True
    names = text.split("/")
    return len(text) <= _LONGEST_PATH and text.isprintable() and not ({"", ".", ".."} & set(names))
