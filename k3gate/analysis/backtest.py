"""The predictor against published measurements: how often the result lies in the interval, and how wide that is. Pure.

Bands are not fitted to single rows: `fit` gives what all rows of a class say, and each machine is also predicted by a
fit of the others alone. Only the bands are fitted: what sustains of paper and what a second socket gives stay as they
are, though the latter is of one machine among the rows, and the output says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve, frozen

from k3gate import units
from k3gate.analysis import prediction, published
from k3gate.analysis.ceilings import decode
from k3gate.analysis.layout import lay_out
from k3gate.analysis.prediction import Times
from k3gate.analysis.published import Described, Row
from k3gate.documents import plain, printable

WANTED_HITS = 0.8
WANTED_WIDTH = 3.0
OUTSIDE = 10
"""A fit leaves one row in so many, rounded down, outside of a band at each end: so at least 80 % lie inside however few
there are, which percentiles between the ranks of few rows do not give."""
STEP = 0.05
"""To which a fit is rounded, outwards."""

Band = tuple[float, float]


@frozen
class Tested:
    """A row with what was predicted. `times`: of a step at sustained rates; `share`: the one that the result shows.

    `without`: the interval that the other machines alone give, None where they say nothing.
    """

    row: Row
    reason: str | None
    engine: str | None = None
    times: Times | None = None
    predicted: Band | None = None
    share: float | None = None
    inside: bool | None = None
    without: Band | None = None
    inside_without: bool | None = None
    bytes_per_token: float | None = None
    assumptions: tuple[str, ...] = ()


@frozen
class Backtest:
    """All rows and the sums. Rates are of testable rows; None where there is none."""

    rows: tuple[Tested, ...]
    fitted: Mapping[str, Band]

    @property
    def testable(self) -> tuple[Tested, ...]:
        """The rows that test the predictor."""
        return tuple(tested for tested in self.rows if tested.reason is None)

    @property
    def inside(self) -> int:
        """Testable rows whose result lies in the interval."""
        return sum(bool(tested.inside) for tested in self.testable)

    @property
    def inside_without(self) -> int:
        """The same, each predicted by the other machines alone."""
        return sum(bool(tested.inside_without) for tested in self.testable)

    @property
    def classes(self) -> Mapping[str, tuple[int, int, int]]:
        """By class of engine: rows inside, all rows, rows inside where their machine is left out of the fit."""
        found = {}
        for engine in self.fitted:
            rows = [tested for tested in self.testable if tested.engine == engine]
            inside = sum(bool(tested.inside) for tested in rows)
            found[engine] = (inside, len(rows), sum(bool(tested.inside_without) for tested in rows))
        return found

    @property
    def hit_rate(self) -> float | None:
        """Share of testable rows inside."""
        return self.inside / len(self.testable) if self.testable else None

    @property
    def hit_rate_without(self) -> float | None:
        """The same, leaving one machine out."""
        return self.inside_without / len(self.testable) if self.testable else None

    @property
    def median_width(self) -> float | None:
        """Median of high over low."""
        widths = [tested.predicted[1] / tested.predicted[0] for tested in self.testable if tested.predicted]
        return statistics.median(widths) if widths else None

    @property
    def good(self) -> bool | None:
        """Whether the predictor keeps what it promises on these rows; None where no row tests it."""
        hits, width = self.hit_rate, self.median_width
        return None if hits is None or width is None else hits >= WANTED_HITS and width <= WANTED_WIDTH


def run(rows: Iterable[Row]) -> Backtest:
    """Predict every testable row, and list every other one with its reason."""
    first = [_tested(row) for row in rows]
    known = [tested for tested in first if tested.share is not None]
    return Backtest(
        tuple(_left_out(tested, known) for tested in first),
        {engine: band for engine in prediction.BANDS if (band := fit(known, engine)) is not None},
    )


def _tested(row: Row) -> Tested:
    reason = published.exception(row)
    if reason is not None:
        return Tested(row, reason)
    described = published.describe(row)
    found, size = _times(described)
    engine = described.system.engine
    assert row.decode is not None
    predicted = _interval(found, prediction.BANDS[engine])
    return Tested(
        row,
        None,
        engine,
        found,
        predicted,
        found.share(row.decode),
        predicted[0] <= row.decode <= predicted[1],
        bytes_per_token=size,
        assumptions=described.assumptions,
    )


def _times(described: Described) -> tuple[Times, float]:
    """Seconds of a step, by the arithmetic of every plan, and its bytes of DRAM."""
    system, sizes, demand = described.system, described.sizes, described.demand
    step = decode(system, sizes, demand, lay_out(system, sizes, demand))
    step = evolve(step, parts=tuple(part for part in step.parts if part.tier not in described.uncounted))
    found = prediction.times(step, system)
    assert found is not None
    return found, step.bytes_of("dram") or 0.0


def _interval(found: Times, band: Band) -> Band:
    low, high = (found.rate(share) or 0.0 for share in band)
    return low, high


def fit(tested: Iterable[Tested], engine: str) -> Band | None:
    """The band that these rows give a class: their shares but for a tenth at each end, rounded outwards. None without
    rows, and where they are faster than any share allows."""
    shares = sorted(one.share for one in tested if one.engine == engine and one.share is not None)
    if not shares:
        return None
    cut = len(shares) // OUTSIDE
    low, high = shares[cut], shares[-1 - cut]
    if not math.isfinite(high):
        return None
    return math.floor(low / STEP + 1e-9) * STEP, math.ceil(high / STEP - 1e-9) * STEP


def _left_out(tested: Tested, known: list[Tested]) -> Tested:
    """The row as the other machines alone predict it."""
    if tested.reason is not None or tested.times is None or tested.engine is None:
        return tested
    others = [one for one in known if one.row.machine != tested.row.machine]
    band = fit(others, tested.engine)
    if band is None:
        return evolve(tested, inside_without=False)
    without = _interval(tested.times, band)
    return evolve(
        tested, without=without, inside_without=without[0] <= (tested.row.decode or 0) <= without[1]
    )


def document(made: Backtest) -> dict[str, Any]:
    """The JSON of `k3gate backtest --json`; rates in tokens/s, unknown is null."""
    told: dict[str, Any] = {
        "rows": [_row(tested) for tested in made.rows],
        "testable": len(made.testable),
        "inside": made.inside,
        "hit_rate": made.hit_rate,
        "median_width": made.median_width,
        "leave_one_machine_out": {"inside": made.inside_without, "hit_rate": made.hit_rate_without},
        "classes": {
            engine: {"inside": inside, "of": rows, "inside_without_machine": without}
            for engine, (inside, rows, without) in made.classes.items()
        },
        "wanted": {"hit_rate": WANTED_HITS, "median_width": WANTED_WIDTH},
        "bands": {engine: list(band) for engine, band in prediction.BANDS.items()},
        "fitted": {engine: list(band) for engine, band in made.fitted.items()},
        "free_numbers": list(prediction.FREE_NUMBERS),
    }
    return dict(plain(told))


def _row(tested: Tested) -> dict[str, Any]:
    row = tested.row
    return {
        "line": row.number,
        "model": row.model,
        "quant": row.quant,
        "runtime": row.runtime,
        "machine": row.machine or None,
        "testable": tested.reason is None,
        "reason": tested.reason,
        "engine": tested.engine,
        "bytes_per_token": tested.bytes_per_token,
        "predicted": list(tested.predicted) if tested.predicted else None,
        "published": row.decode,
        "inside": tested.inside,
        "share": tested.share,
        "predicted_without_machine": list(tested.without) if tested.without else None,
        "inside_without_machine": tested.inside_without,
        "assumptions": list(tested.assumptions),
    }


def text(made: Backtest) -> str:
    """The page that a person reads: each testable row, each exception, then the sums."""
    lines = ["line  published  predicted       other machines   share  row"]
    for tested in made.testable:
        assert tested.predicted is not None
        mark = " " if tested.inside else "!"
        other = "!" if tested.inside_without is False else " "
        row = tested.row
        lines.append(
            f"{row.number:>4}  {units.significant(row.decode or 0):>9} {mark}{_range(tested.predicted):<15} "
            f"{other}{_range(tested.without):<15} {tested.share:>5.2f}  "
            f"{row.machine[:24]}, {row.model[:16]}, {row.runtime[:28]}"
        )
    lines += [
        "",
        "Marked ! is a result outside of its interval. Share: of what sustained reads would allow.",
        "",
    ]
    lines.append("Not testable:")
    reasons: dict[str, list[int]] = {}
    for tested in made.rows:
        if tested.reason is not None:
            reasons.setdefault(tested.reason, []).append(tested.row.number)
    for reason, numbers in reasons.items():
        lines.append(f"  {reason}: {'line' if len(numbers) == 1 else 'lines'} {units.cpu_list(numbers)}")
    lines.append("")
    lines += _sums(made)
    return printable("\n".join(lines)) + "\n"


def _sums(made: Backtest) -> list[str]:
    if made.hit_rate is None or made.hit_rate_without is None or made.median_width is None:
        return ["No row tests the predictor."]
    total = len(made.testable)
    fitted = ", ".join(f"{engine} {low:.2f} to {high:.2f}" for engine, (low, high) in made.fitted.items())
    bands = ", ".join(f"{engine} {low:.2f} to {high:.2f}" for engine, (low, high) in prediction.BANDS.items())
    classes = "; ".join(
        f"{engine} {inside} of {rows}, {without} where their machine is left out"
        for engine, (inside, rows, without) in made.classes.items()
    )
    return [
        f"inside: {made.inside} of {total} ({made.hit_rate:.0%}; wanted {WANTED_HITS:.0%})",
        f"leaving each machine out: {made.inside_without} of {total} ({made.hit_rate_without:.0%})",
        f"  the bands are then fitted again; {prediction.SECOND_SOCKET:g} of two sockets, which is of one machine of "
        "these rows (Xeon Gold 6454S), is not",
        f"by class: {classes}",
        "  the class of each runtime was chosen knowing these rows, and a runtime of its own may lie elsewhere",
        f"median high / low: {made.median_width:.2f} (wanted at most {WANTED_WIDTH:g})",
        f"bands: {bands}; these rows alone would give {fitted}",
        f"free numbers: {len(prediction.FREE_NUMBERS)} ({prediction.SUSTAINED:g} of paper, "
        f"{prediction.SECOND_SOCKET:g} of two sockets, two of each band)",
    ]


def _range(band: Band | None) -> str:
    return (
        "unknown" if band is None else f"{units.significant(band[0], 2)} to {units.significant(band[1], 2)}"
    )
