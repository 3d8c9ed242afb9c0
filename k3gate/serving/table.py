"""The table of runtimes: which are looked for, and where each names what it loads. Strict TOML."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from attrs import field, frozen
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from k3gate import tables
from k3gate.tables import Table

NAMES = ("transformers", "gguf")
WAYS = {"dictionary": 2, "entry_class": 2, "constants": 1, "strings": 0}
"""And how many texts `given` has; of strings in a package, its libraries."""
_KEYS = (
    *("id", "title", "package", "programs", "marks", "names", "way", "given", "plugins", "register", "with"),
    *("confirmed", "gaps"),
)
_MOST = 200


@frozen
class Gap:
    """Something that is known not to work, with who said so and when; `versions`: a range, None: all so far. Of
    programs `before_build`: the first build that may be without it."""

    text: str
    source: str
    date: str
    versions: str | None = None
    before_build: int | None = None

    @property
    def told(self) -> str | None:
        """Which versions or builds have it; None: all so far."""
        return self.versions if self.before_build is None else f"builds before b{self.before_build}"


@frozen
class Entry:
    """One runtime of the table."""

    id: str
    title: str
    names: str
    way: str
    given: tuple[str, ...] = ()
    package: str | None = None
    programs: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    plugins: str | None = None
    register: str | None = None
    beside: dict[str, tuple[str, ...]] = field(factory=dict)
    confirmed: str | None = None
    gaps: tuple[Gap, ...] = ()


def shipped() -> tuple[Entry, ...]:
    """The table that comes with k3gate."""
    text = resources.files("k3gate.serving").joinpath("data/runtimes.toml").read_text(encoding="utf-8")
    return _entries(tables.parse(text, "runtimes.toml", "runtimes"), "runtimes.toml")


def with_own(place: str | None) -> tuple[Entry, ...]:
    """The shipped table, and a user's own, whose entries replace those of the same id; `UsageError` for a bad one."""
    found = {entry.id: entry for entry in shipped()}
    if place is not None:
        _, data = tables.read(Path(place), "runtimes")
        found |= {entry.id: entry for entry in _entries(data, place)}
    return tuple(found.values())


def _entries(data: dict[str, Any], place: str) -> tuple[Entry, ...]:
    top = Table(place, data, ("runtime",))
    rows = data.get("runtime")
    if not isinstance(rows, list) or not rows:
        raise top.refuse("runtime", "is missing: write each runtime as [[runtime]]")
    if len(rows) > _MOST:
        raise top.refuse("runtime", f"has more than {_MOST} entries")
    found: dict[str, Entry] = {}
    for number, row in enumerate(rows, 1):
        entry = _entry(Table(f"{place}: runtime {number}", row, _KEYS))
        if entry.id in found:
            raise top.refuse("runtime", f"{number} has the id {entry.id!r} of another one: rename it")
        found[entry.id] = entry
    return tuple(found.values())


def _entry(table: Table) -> Entry:
    way = table.choice("way", tuple(WAYS))
    package, programs = table.optional_text("package"), _texts(table, "programs")
    given = _texts(table, "given")
    if (package is None) == (not programs):
        raise table.refuse("package", "or programs must be there, one of them: how is it found?")
    if package is None and way != "strings":
        raise table.refuse("way", "of programs is strings")
    wanted = WAYS[way]
    if way == "strings":
        if package is not None and not given:
            raise table.refuse("given", "is missing: name the libraries of the package")
    elif len(given) != wanted:
        raise table.refuse("given", f"must have {wanted} texts for {way}")
    for one in given:
        if one.startswith("/") or ".." in one.split("/"):
            raise table.refuse("given", f"{one!r} leaves the package: write a name within it")
    confirmed = table.optional_text("confirmed")
    _range(table, "confirmed", confirmed)
    plugins, register = table.optional_text("plugins"), table.optional_text("register")
    if (plugins is None) != (register is None):
        raise table.refuse("plugins", "and register belong together: give both or none")
    beside = table.data.get("with", {})
    within = Table(f"{table.place}: with", beside)
    return Entry(
        table.text("id"),
        table.text("title"),
        table.choice("names", NAMES),
        way,
        given,
        None if package is None else canonicalize_name(package),
        programs,
        _texts(table, "marks"),
        plugins,
        register,
        {name: _texts(within, name) for name in beside},
        confirmed,
        _gaps(table),
    )


def _gaps(table: Table) -> tuple[Gap, ...]:
    rows = table.data.get("gaps", [])
    if not isinstance(rows, list):
        raise table.refuse("gaps", "must be tables: write each as [[runtime.gaps]]")
    found = []
    for number, row in enumerate(rows[:_MOST], 1):
        one = Table(
            f"{table.place}: gap {number}", row, ("text", "source", "date", "versions", "before_build")
        )
        versions = one.optional_text("versions")
        _range(one, "versions", versions)
        build = one.integer("before_build", 1, 1_000_000_000) if "before_build" in one.data else None
        found.append(Gap(one.text("text"), one.text("source"), one.text("date"), versions, build))
    return tuple(found)


def _range(table: Table, key: str, text: str | None) -> None:
    if text is not None:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise table.refuse(key, f"{text!r:.60} is no range: write one like '>=0.27,<0.30'") from None


def _texts(table: Table, key: str) -> tuple[str, ...]:
    value = table.data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        raise table.refuse(key, 'must be a list of texts, like ["one", "two"]')
    if len(value) > _MOST:
        raise table.refuse(key, f"has more than {_MOST} texts")
    return tuple(value)
