"""The runtimes that were found, as a page of plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate.pages import page, row
from k3gate.serving.runtimes import NOT_LISTED, SUPPORTED, UNKNOWN, Runtime, Wanted

_WORDS = {SUPPORTED: "named", NOT_LISTED: "not named", UNKNOWN: "not known"}


def text(found: Sequence[Runtime], wanted: Wanted, places: Sequence[str]) -> str:
    """A section for each runtime; what was looked through where there is none."""
    if not found:
        where = ", ".join(places) if places else "the Python environments and the path of this user"
        none = (
            row("found", f"none of the table's runtimes in {where}"),
            row(
                "do", "name an environment, a folder of packages, a wheel or a program: k3gate runtimes PLACE"
            ),
        )
        return page([(f"Runtimes for {wanted.name}", none)])
    return page((f"{one.title} {one.version or ''}".strip(), tuple(_rows(one, wanted))) for one in found)


def _rows(one: Runtime, wanted: Wanted) -> Iterator[str]:
    yield row(wanted.name, f"{_WORDS[one.architecture]}. {one.reason}")
    yield row("where", one.path)
    if one.confirmed is not None:
        known = "is one" if one.confirmed else "is not one"
        yield row("version", f"{one.version} {known} of the releases that are known to have Kimi K3")
    for note in one.notes:
        yield row("note", note)
    for conflict in one.conflicts:
        yield row("conflict", conflict)
    for plugin in one.plugins:
        yield row("plugin", plugin)
    for gap in one.gaps:
        yield row("gap", f"{gap.text} ({gap.source}, {gap.date})")
    yield row("build", one.build)
