"""Strict reading of the TOML files that people write: every key known, every type right, errors that name the place."""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from k3gate.documents import printable
from k3gate.errors import UsageError

MAX_BYTES = 1 << 20
MAX_TEXT = 2000
_HUGE = 1e30
"""Above any figure in base units; also stops infinities and not-a-number."""
_TINY = 1e-30
"""Below any figure that is not 0; products of smaller ones would be 0, and a quotient of them nothing."""


def read_bytes(path: Path, most: int) -> bytes | None:
    """Up to `most` bytes of a regular file; None where it is a pipe, a device or another file that has no size."""
    # Without waiting: a pipe that nobody writes would hold the command up for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def read(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """Text and content of a TOML file of at most 1 MiB. `what` says in errors which kind of file it is."""
    try:
        raw = read_bytes(path, MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read the {what} file {_shown(path)}: {error.strerror}; give a TOML file"
        ) from error
    path = Path(_shown(path))
    if raw is None:
        raise UsageError(f"cannot read the {what} file {path}: it is no regular file; give a TOML file")
    if len(raw) > MAX_BYTES:
        raise UsageError(f"the {what} file {path} is larger than 1 MiB: give a {what} file")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the {what} file {path} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error
    return text, parse(text, str(path), what)


def parse(text: str, name: str, what: str) -> dict[str, Any]:
    """The content of a TOML text that was read before, from the file `name`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also integers of thousands of digits
        detail = " ".join(str(error).split())[:200]
        raise UsageError(f"the {what} file {name} is not valid TOML: {detail}; correct it there") from error


def _shown(path: Path) -> str:
    text = printable(str(path))
    return text if len(text) <= 300 else f"{text[:80]}..."


def near(word: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown word."""
    options = sorted(known)
    found = difflib.get_close_matches(word, options, n=1)
    if found:
        return f"did you mean {found[0]!r}?"
    return (
        f"use one of {', '.join(options)}" if len(options) <= 20 else "see the shipped file for what is known"
    )


class Table:
    """One table of a file. `place` is its address in errors: file, entry. Unknown keys are refused."""

    def __init__(self, place: str, data: Any, known: Iterable[str] | None = None) -> None:
        if not isinstance(data, dict):
            raise UsageError(f"{place} is not a table: write it as [name] with keys below")
        self.place = place
        self.data: Mapping[str, Any] = data
        if known is not None:
            names = tuple(known)
            for key in data:
                if key not in names:
                    raise UsageError(f"{place}: key {key!r} is unknown; {near(key, names)}")

    def refuse(self, key: str, problem: str) -> UsageError:
        """The error for a key of this table."""
        return UsageError(f"{self.place}: {key} {problem}")

    def _get(self, key: str, required: bool) -> Any:
        value = self.data.get(key)
        if value is None and required:
            raise self.refuse(key, "is missing; add it")
        return value

    def text(self, key: str) -> str:
        """A text that must be there and say something."""
        value = self.optional_text(key)
        if value is None:
            raise self.refuse(key, "is missing; add it")
        return value

    def optional_text(self, key: str) -> str | None:
        """A text, or None where the key is not there."""
        value = self._get(key, False)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(key, f"must be a text in quotes, not {value!r:.60}")
        if len(value) > MAX_TEXT:
            raise self.refuse(key, f"is longer than {MAX_TEXT} characters; shorten it")
        return value.strip()

    def choice(self, key: str, options: Sequence[str]) -> str:
        """A text that is one of `options`."""
        value = self.text(key)
        if value not in options:
            raise self.refuse(key, f"{value!r} is unknown; {near(value, options)}")
        return value

    def number(self, key: str) -> float | None:
        """A finite number, or None where the key is not there."""
        value = self._get(key, False)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _HUGE:
            raise self.refuse(key, f"must be a number, not {value!r:.60}")
        return float(value)

    def positive(self, key: str) -> float | None:
        """A number above 0, or None where the key is not there."""
        value = self.number(key)
        if value is not None and value <= 0:
            raise self.refuse(key, f"must be above 0, not {value}; leave it out if nothing is asked")
        if value is not None and value < _TINY:
            raise self.refuse(key, f"{value:g} is too small for any figure; correct it")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from `low` to `high`; `default` None: the key must be there."""
        value = self._get(key, default is None)
        if value is None:
            assert default is not None
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"must be a whole number from {low} to {high}, not {value!r:.60}")
        return value

    def flag(self, key: str) -> bool:
        """true or false; false where the key is not there."""
        value = self.data.get(key, False)
        if not isinstance(value, bool):
            raise self.refuse(key, f"must be true or false, not {value!r:.60}")
        return value

    def texts(self, key: str, options: Sequence[str], required: bool = False) -> tuple[str, ...]:
        """A list of texts, each one of `options`, none twice."""
        value = self._get(key, required)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(key, f"must be a list of texts, not {value!r:.60}")
        for item in value:
            if item not in options:
                raise self.refuse(key, f"holds {item!r}, which is unknown; {near(item, options)}")
        if len(set(value)) != len(value):
            raise self.refuse(key, "names one thing twice; leave one out")
        return tuple(value)

    def table(self, key: str, known: Iterable[str] | None = None) -> Table:
        """A table below this one, empty where the key is not there."""
        return Table(f"{self.place}, {key}", self.data.get(key, {}), known)

    def labels(self, key: str) -> dict[str, str | int | float | bool]:
        """A flat table of labels and their values."""
        table = self.table(key)
        for label, value in table.data.items():
            if not isinstance(value, str | int | float) or (
                isinstance(value, float) and not abs(value) < _HUGE
            ):
                raise table.refuse(label, f"must be a text, a number or a truth value, not {value!r:.60}")
        return dict(table.data)
