"""Series and phases of a run as rows. Series are stored in pieces, as they come; reading puts them together."""

from __future__ import annotations

import json
from collections.abc import Iterable

from k3gate.documents import canonical, plain, printable
from k3gate.records import Phase, Series
from k3gate.series import check
from k3gate.store import rows
from k3gate.store.database import Statements, insert_many


def add(at: Statements, run_id: str, series: Iterable[Series], phases: Iterable[Phase]) -> None:
    """Add pieces of series, and phases; `ValueError` on what is no finite number, or on unequal lengths."""
    rows.require(at, run_id)
    listed = list(series)
    for one in listed:
        check(one)
    insert_many(
        at,
        "series",
        [
            {
                "run_id": run_id,
                "name": printable(one.name),
                "unit": printable(one.unit),
                "labels": canonical(plain(one.labels)),
                "points": canonical([list(one.times), list(one.values)]),
            }
            for one in listed
        ],
    )
    insert_many(
        at,
        "phase",
        [
            {
                "run_id": run_id,
                "probe": printable(one.probe),
                "case_name": printable(one.case),
                "round": one.round,
                "start_s": one.start_s,
                "end_s": one.end_s,
            }
            for one in phases
        ],
    )


def read_series(at: Statements, run_id: str) -> tuple[Series, ...]:
    """All series of a run, whole; `ValueError` for bad rows."""
    pieces: dict[tuple[str, str, str], tuple[list[float], list[float | None]]] = {}
    for name, unit, labels, points in at.rows(
        "SELECT name, unit, labels, points FROM series WHERE run_id = :run ORDER BY id", run=run_id
    ):
        times, values = json.loads(points)
        known = pieces.setdefault((name, unit, labels), ([], []))
        known[0].extend(times)
        known[1].extend(values)
    found = []
    for (name, unit, text), (times, values) in pieces.items():
        labels = json.loads(text)
        if not isinstance(labels, dict):
            raise ValueError("the labels of a series are no JSON object")
        found.append(Series(name, unit, labels, tuple(times), tuple(values)))
        check(found[-1])
    return tuple(found)


def read_phases(at: Statements, run_id: str) -> tuple[Phase, ...]:
    """All phases of a run, in the order in which they ended."""
    return tuple(
        Phase(*row)
        for row in at.rows(
            "SELECT probe, case_name, round, start_s, end_s FROM phase WHERE run_id = :run ORDER BY id",
            run=run_id,
        )
    )
