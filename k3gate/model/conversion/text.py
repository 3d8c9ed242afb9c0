"""The page of `k3gate quant`: what is wrong, how far each part is off, and what was not compared."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from k3gate import pages
from k3gate.model.conversion import mistakes
from k3gate.model.conversion.comparison import Compared, Part
from k3gate.pages import WIDTH, row
from k3gate.units import count


def sections(found: Compared) -> Iterator[tuple[str, Iterator[str]]]:
    """Titled sections of plain text of at most 100 columns."""
    yield "Mistakes", _mistakes(found)
    yield "Parts", _parts(found)
    if found.lacking or found.added or found.not_read or found.left_out or found.notes:
        yield "Besides", _open(found)


def _mistakes(found: Compared) -> Iterator[str]:
    if not found.mistakes:
        yield "None of those that are known."
    for named in sorted(found.mistakes.values(), key=lambda one: -one.number):
        detail = f" ({named.detail})" if named.detail else ""
        yield textwrap.fill(
            f"{named.mistake}: {mistakes.WORDS[named.mistake]}{detail}", WIDTH, subsequent_indent="    "
        )
        more = ", ..." if named.number > len(named.weights) else ""
        yield textwrap.fill(
            f"{count(named.number, 'weight')} of {named.part}: {', '.join(named.weights)}{more}",
            WIDTH,
            initial_indent="    ",
            subsequent_indent="    ",
        )


def _parts(found: Compared) -> Iterator[str]:
    yield f"{'':<20}{'weights':>9}{'exact':>9}{'NMSE':>10}{'worst':>10}{'cosine':>10}{'max error':>11}  types"
    for name, part in sorted(found.parts.items(), key=lambda item: -item[1].weights):
        yield _part(name, part)[:WIDTH]
    yield ""
    yield textwrap.fill(
        "NMSE: mean square of the differences by that of the source, over the weights that are not exact. "
        "worst: of a single weight. types: the most common change, and how many others there are.",
        WIDTH,
    )


def _part(name: str, part: Part) -> str:
    if part.exact == part.weights:
        figures = f"{'0':>10}{'0':>10}{'1':>10}{'0':>11}"
    elif not part.sums.numbers:
        figures = f"{'-':>10}{'-':>10}{'-':>10}{'-':>11}"
    else:
        cosine = "-" if part.sums.cosine is None else f"{part.sums.cosine:.6f}"
        figures = f"{part.sums.nmse:>10.2e}{part.worst[0]:>10.2e}{cosine:>10}{part.sums.largest:>11.3g}"
    (first, _), *rest = part.codings.most_common()
    more = f" +{len(rest)}" if rest else ""
    return f"{name:<20}{part.weights:>9,}{part.exact:>9,}{figures}  {first}{more}"


def _open(found: Compared) -> Iterator[str]:
    for note in found.notes:
        yield row("note", note)
    for part, number in sorted(found.left_out.items()):
        yield row("left out", f"{part}, {count(number, 'weight')}")
    if found.lacking:
        yield row(
            "missing", f"{count(found.lacking, 'weight')} of the source: {_few(found.missing, found.lacking)}"
        )
    if found.added:
        yield row("without source", f"{count(found.added, 'weight')}: {_few(found.unknown, found.added)}")
    for reason in found.unread:
        yield row("not compared", reason)
    if found.not_read > len(found.unread):
        yield row("not compared", f"and {found.not_read - len(found.unread):,} more")


def _few(names: list[str], number: int) -> str:
    return ", ".join(names) + (", ..." if number > len(names) else "")


def page(head: list[tuple[str, str]], found: Compared) -> str:
    """The whole page, with labels and values before it."""
    first = ("Conversion", [row(label, value) for label, value in head])
    return pages.page((first, *sections(found)))
