"""Pages of plain text, as `k3gate host` and `k3gate inspect` print them: titled sections, rows, findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from k3gate.records import Finding

WIDTH = 100
_INDENT = 18


def page(sections: Iterable[tuple[str, Iterable[str]]]) -> str:
    """The sections, each with its title underlined, of at most `WIDTH` columns where their lines are."""
    return "\n\n".join("\n".join((title, "-" * len(title), *lines)) for title, lines in sections) + "\n"


def row(label: str, value: str | None) -> str:
    """A label and its value, wrapped; no value is "unknown"."""
    return textwrap.fill(
        f"{label:<{_INDENT - 2}}  {value or 'unknown'}",
        WIDTH,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )


def findings(found: Iterable[Finding], none: str) -> Iterator[str]:
    """Each finding with what was seen, what was expected, why it matters and what to do; `none` where there is none."""
    empty = True
    for finding in found:
        empty = False
        yield textwrap.fill(f"[{finding.severity}] {finding.title}", WIDTH, subsequent_indent="    ")
        for label, value in (
            ("found", finding.observed),
            ("expected", finding.expected),
            ("why", finding.why),
            ("do", finding.remedy),
        ):
            yield textwrap.fill(
                f"    {label:<9} {value}", WIDTH, subsequent_indent=" " * 14, break_on_hyphens=False
            )
    if empty:
        yield none
