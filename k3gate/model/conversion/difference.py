"""One converted weight against its source: read in stretches, compared as it is stored or as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from k3gate.model.conversion import measures, mistakes, pairing
from k3gate.model.conversion.measures import Factors, Sums
from k3gate.model.conversion.mistakes import Found, Mistake, Suspect
from k3gate.model.conversion.pairing import Pair, Rule
from k3gate.model.conversion.reading import Files, Rows, decode, exponents_of, scales_of
from k3gate.model.conversion.stored import MXFP4, Stored, squeezed
from k3gate.model.formats import ggml, mxfp4

Numbers = NDArray[np.float32]
_CODES_AT_ONCE = 2**18
"""Bytes of codes that are compared at once: as they are, they and their copies stay in a cache, and as numbers they are
some megabytes."""
_SAMPLE_ROWS = 32
_BAD_ROWS = 16
_STRETCH = 1024
_UNLIKE = 0.5
_TWICE = 1e-4
_NEGLIGIBLE = 1e-6
"""Of the mean energy of a row or group: less may become zero by any rounding."""
_REST_IS_ALIKE = 0.05
"""The error of the whole weight up to which a row that is unlike is no matter of few bits."""
_ROW_IS_UNLIKE = 0.5
"""The square error of a row, by its own energy, from which it has nothing of the source's."""
_EXACT = {
    MXFP4: frozenset({MXFP4, "BF16", "F32", "F64"}),
    "BF16": frozenset({"BF16", "F32", "F64"}),
    "F16": frozenset({"F16", "F32", "F64"}),
    "F32": frozenset({"F32", "F64"}),
    "F64": frozenset({"F64"}),
}
"""Types that hold every number of a type."""
_APART = frozenset({"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", MXFP4, "F16", "BF16", "F32", "F64"})
"""Types in which no more than 32 numbers share a factor."""


@define
class Difference:
    """What was found of one weight. `exact`: every number is the source's.

    `lost`: so many numbers are finite in the source alone; `zeroed`: so many rows, or groups of 32, became zero;
    `unlike`: so many rows have nothing of the source's.
    """

    exact: bool
    lost: int = 0
    zeroed: int = 0
    unlike: int = 0
    sums: Sums = field(factory=Sums)
    source_factors: Factors = field(factory=Factors)
    converted_factors: Factors = field(factory=Factors)
    found: Found | None = None
    suspect: Suspect | None = None


class Sides(NamedTuple):
    """The open files of both sides."""

    source: Files
    converted: Files


@frozen(eq=False)
class _Source:
    """The numbers that should be there: in files, or made of them."""

    files: Files
    stored: Stored
    made: Numbers | None = None

    @property
    def columns(self) -> int:
        return self.stored.columns if self.made is None else self.made.shape[-1]

    def numbers(self, first: int, end: int) -> Numbers:
        if self.made is None:
            return self.files.numbers(self.stored, first, end)
        return self.made[first:end]

    def element(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Numbers:
        found = np.empty(len(rows), np.float32)
        for at, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
            found[at] = self.numbers(row, row + 1)[0, column]
        return found


def compare(pair: Pair, sides: Sides, progress: Callable[[int], None]) -> Difference:
    """All numbers of a pair; `progress` is told bytes of the source as they are done. `ValueError`: they cannot be
    compared, and why; `OSError`: they cannot be read."""
    for stored in (*pair.source, pair.converted):
        if stored.trouble is not None:
            raise ValueError(f"{stored.tensor}: {stored.trouble}")
    try:
        source = _source(pair, sides)
    except pairing.ShapeError as error:
        return Difference(exact=False, found=Found(Mistake.SHAPE, str(error)))
    if pair.rule is Rule.DECAY:
        return _decay(pair, sides, source.numbers(0, source.stored.rows))
    wanted = pair.source[0].shape if source.made is None else source.made.shape
    wrong = _shape(wanted, pair.converted.shape)
    if wrong is not None:
        return Difference(exact=False, found=wrong)
    if source.made is not None:
        rows = source.made.reshape(pair.converted.rows, pair.converted.columns)
        source = _Source(source.files, source.stored, rows)
    return _numbers(pair, sides, source, progress)


def _source(pair: Pair, sides: Sides) -> _Source:
    first = pair.source[0]
    if pair.rule in (Rule.SAME, Rule.DECAY):
        return _Source(sides.source, first)
    whole = tuple(sides.source.numbers(one, 0, one.rows) for one in pair.source)
    return _Source(sides.source, first, pairing.expected(pair, whole))


def _shape(wanted: tuple[int, ...], there: tuple[int, ...]) -> Found | None:
    wanted, there = squeezed(wanted), squeezed(there)
    if wanted == there:
        return None
    turned = len(wanted) > 1 and there in ((*wanted[:-2], wanted[-1], wanted[-2]), wanted[::-1])
    return Found(Mistake.TRANSPOSED if turned else Mistake.SHAPE, f"{list(there)} for {list(wanted)}")


def _decay(pair: Pair, sides: Sides, stored: Numbers) -> Difference:
    converted = sides.converted.numbers(pair.converted, 0, pair.converted.rows).reshape(-1)
    right = pairing.expected(pair, (stored,))
    if right.shape == converted.shape and np.allclose(converted, right, rtol=1e-6, atol=0, equal_nan=True):
        # Exponentials of two libraries differ in the last bit.
        return Difference(exact=True)
    difference = Difference(exact=False, found=mistakes.decay(stored, converted, pair.heads))
    if right.shape == converted.shape:
        difference.sums.add(right, converted)
        difference.lost = int(np.count_nonzero(np.isfinite(right) & ~np.isfinite(converted)))
        if difference.found is None and difference.lost:
            difference.found = Found(Mistake.NOT_FINITE, f"{difference.lost:,} numbers")
        if difference.found is None and pair.converted.coding in ("F32", "F64"):
            difference.found = Found(Mistake.ALTERED)
    return difference


def _numbers(pair: Pair, sides: Sides, source: _Source, progress: Callable[[int], None]) -> Difference:
    difference = Difference(exact=True)
    bad: list[int] = []
    row = sum(one.bytes for one in pair.source) // max(1, pair.converted.rows)
    for first, end in _stretches(pair):
        progress((end - first) * row)
        converted = sides.converted.rows(pair.converted, first, end)
        if source.made is None:
            own = sides.source.rows(source.stored, first, end)
            if _same(own, converted, difference):
                continue
            here = decode(own)
        else:
            here = source.made[first:end]
        bad += [first + row for row in _compare_rows(pair, here, decode(converted), difference)]
    if difference.sums.numbers:
        _explain(pair, sides, source, bad, difference)
    if difference.source_factors.not_finite and difference.found is None:
        told = f"{difference.source_factors.not_finite:,} in the source"
        difference.exact, difference.found = False, Found(Mistake.NAN, told)
    return difference


def _stretches(pair: Pair) -> Iterator[tuple[int, int]]:
    step = max(1, _CODES_AT_ONCE // max(1, pair.source[0].row_bytes))
    for first in range(0, pair.converted.rows, step):
        yield first, min(pair.converted.rows, first + step)


def _same(source: Rows, converted: Rows, difference: Difference) -> bool:
    """Whether the rows are the same as they are stored, where both sides may be compared so."""
    here, there = source.stored, converted.stored
    for rows, factors in ((source, difference.source_factors), (converted, difference.converted_factors)):
        if (exponents := exponents_of(rows)) is not None:
            factors.add_exponents(exponents)
        elif (own := scales_of(rows)) is not None:
            factors.add(own)
    if here.is_mxfp4_of_a_checkpoint and there.coding == MXFP4:
        assert source.scales is not None
        if there.scales is None:
            return mxfp4.same(source.codes, source.scales, converted.codes)
        assert converted.scales is not None
        return np.array_equal(source.codes, converted.codes) and np.array_equal(
            source.scales, converted.scales
        )
    alike = here.coding == there.coding and here.scales is None and there.scales is None
    return alike and np.array_equal(source.codes, converted.codes)


def _compare_rows(pair: Pair, here: Numbers, there: Numbers, difference: Difference) -> list[int]:
    """Rows as numbers; which of them differ, some few."""
    difference.sums.add(here, there)
    unlike = here != there
    # NaN is unlike itself; where both have it, nothing was changed.
    if difference.sums.not_finite:
        unlike &= ~(np.isnan(here) & np.isnan(there))
        difference.lost += int(np.count_nonzero(np.isfinite(here) & ~np.isfinite(there)))
    rows = np.flatnonzero(unlike.any(axis=1))
    if not rows.size:
        return []
    difference.exact = False
    _count_losses(pair, here, there, difference)
    picked = rows[np.linspace(0, rows.size - 1, min(rows.size, _BAD_ROWS)).astype(np.int64)]
    return [int(row) for row in picked]


def _count_losses(pair: Pair, here: Numbers, there: Numbers, difference: Difference) -> None:
    """Rows and groups that a bound on the whole weight would not show. Very small ones may be rounded to zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        energy = np.square(here).sum(axis=1)
        counts = energy > _NEGLIGIBLE * (energy.mean() if energy.size else 0)
        left = np.square(here - there).sum(axis=1)
    difference.unlike += int(np.count_nonzero(counts & ~(left <= _ROW_IS_UNLIKE * energy)))
    if here.shape[1] % mxfp4.BLOCK == 0 and pair.converted.coding in _APART:
        here, there = (one.reshape(-1, mxfp4.BLOCK) for one in (here, there))
        with np.errstate(over="ignore", invalid="ignore"):
            energy = np.square(here).sum(axis=1)
            counts = energy > _NEGLIGIBLE * energy.mean()
    difference.zeroed += int(np.count_nonzero(counts & ~there.any(axis=1)))


def _held_exactly(pair: Pair) -> bool:
    """Whether the converted type holds every number that should be there."""
    codings = {one.coding for one in pair.source}
    if pair.rule is Rule.PRODUCT:
        # A product of two numbers of at most 11 bits has 22, which F32 holds.
        return codings <= {"BF16", "F16"} and pair.converted.coding in ("F32", "F64")
    plain = all(one.scales is None or one.coding == MXFP4 for one in pair.source)
    return plain and all(pair.converted.coding in _EXACT.get(one, ()) for one in codings)


def _explain(pair: Pair, sides: Sides, source: _Source, bad: list[int], difference: Difference) -> None:
    """Say what is wrong with a weight that differs, where that is known."""
    if difference.exact:
        return
    if difference.lost:
        kind = Mistake.NAN if difference.converted_factors.not_finite else Mistake.NOT_FINITE
        difference.found = Found(kind, f"{difference.lost:,} numbers")
        return
    sample = _sample(pair, sides, source, bad)
    difference.found = mistakes.recognise(sample)
    if difference.found is not None and difference.found.mistake is not Mistake.TWICE:
        return
    cosine = difference.sums.cosine
    own, there = pair.source[0].coding, pair.converted.coding
    if cosine is not None and cosine < _UNLIKE:
        difference.suspect = _suspect(pair, sides, source)
    if _held_exactly(pair):
        difference.found = Found(Mistake.ALTERED, f"{own} to {there}, NMSE {difference.sums.nmse:.2g}")
    elif difference.zeroed:
        difference.found = Found(Mistake.ZEROED, f"{difference.zeroed:,} in the first of them")
    elif difference.unlike and difference.sums.nmse < _REST_IS_ALIKE and difference.suspect is None:
        told = f"{difference.unlike:,} of {pair.converted.rows:,} rows in the first of them"
        difference.found = Found(Mistake.ROWS, told)
    elif own == MXFP4 and difference.sums.nmse > _TWICE and difference.suspect is None:
        difference.found = Found(Mistake.TWICE, f"{own} to {there}")


def _sample(pair: Pair, sides: Sides, source: _Source, bad: list[int]) -> mistakes.Sample:
    rows = np.array(bad, np.int64)
    rows = rows[np.linspace(0, rows.size - 1, min(rows.size, _SAMPLE_ROWS)).astype(np.int64)]
    here = np.concatenate([source.numbers(row, row + 1) for row in rows])
    there = np.concatenate([sides.converted.numbers(pair.converted, row, row + 1) for row in rows])
    scales = None
    if source.made is None and source.stored.coding == MXFP4:
        own = [scales_of(sides.source.rows(source.stored, row, row + 1)) for row in rows]
        scales = np.stack([one for one in own if one is not None])
    return mistakes.Sample(
        here,
        there,
        rows,
        pair.converted.rows,
        scales,
        pair.converted.coding in _APART,
        _rounding(here, pair),
        source.element if source.columns == pair.converted.columns else None,
    )


def _rounding(source: Numbers, pair: Pair) -> float | None:
    """The NMSE that the converted type causes by itself."""
    if _held_exactly(pair):
        return 0.0
    coding = pair.converted.coding
    rounded = ggml.rounded(source, coding) if pair.converted.scales is None else None
    return None if rounded is None else measures.nmse(source, rounded)


def _suspect(pair: Pair, sides: Sides, source: _Source) -> Suspect:
    row = pair.converted.rows // 2
    return Suspect(
        pair.name.weight,
        pair.name.expert,
        source.numbers(row, row + 1)[0, :_STRETCH].copy(),
        sides.converted.numbers(pair.converted, row, row + 1)[0, :_STRETCH].copy(),
    )
