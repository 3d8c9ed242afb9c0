"""What a measurement of an endpoint gave, as a page of plain text. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from k3gate.pages import page, row
from k3gate.serving.load import Reading
from k3gate.units import significant


def told(readings: Sequence[Reading]) -> str:
    """A line for each reading, for a terminal."""

    def middle(values: Sequence[float], unit: str) -> str | None:
        if not values:
            return None
        spread = f" ({significant(min(values))} to {significant(max(values))})" if len(values) > 1 else ""
        return f"{significant(statistics.median(values))}{spread} {unit}"

    sections = []
    for one in readings:
        lines = [
            row("answers", f"{len(one.answers)}" + (f", {len(one.failures)} failed" if one.failures else "")),
            row("first token", middle(one.first_s, "s")),
            row("reading", middle(one.prefill, "tokens/s, queueing and one step in it")),
            row("decode", middle(one.rates, "tokens/s") or middle(one.chunk_rates, "chunks/s, not tokens")),
        ]
        if one.streams > 1:
            together = one.together
            lines.append(row("together", None if together is None else f"{significant(together)} tokens/s"))
        lines += [row("note", note) for note in dict.fromkeys(one.notes)]
        many = f"{one.streams} streams, " if one.streams > 1 else ""
        sections.append((f"{many}prompts of {one.about}", lines))
    return page(sections)
