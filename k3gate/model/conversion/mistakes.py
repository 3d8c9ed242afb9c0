"""What went wrong in a conversion, by trying what is known to go wrong on a sample of rows. Pure.

A known mistake is named where undoing it explains the numbers: the difference must all but vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.model.conversion import measures
from k3gate.model.formats import mxfp4

Numbers = NDArray[np.float32]
BLOCK = mxfp4.BLOCK
_ALIKE = 0.9
"""A cosine from which on two samples are of one weight: those of others are near 0."""
_EXPLAINED = 0.1
"""What undoing a mistake must bring the difference down to, as a share of it."""
_OWN_LOSS = 4.0
"""How many times the rounding of its own type a difference may be before it is another's."""
_LEAST_LOSS = 1e-8
"""Less is no type of weights, but the last bits of float32."""
_SMALLEST_HALF = 2.0**-14
"""The smallest normal number of F16; what is below is a subnormal, or zero where these are flushed."""
_SHIFTS = range(-60, 61)


class Mistake(StrEnum):
    """The known mistakes."""

    NIBBLES = "nibbles_swapped"
    HALVES = "halves_interleaved"
    SCALE_SHIFTED = "scale_shifted"
    SCALE_NEIGHBOUR = "scale_of_neighbour"
    TRANSPOSED = "transposed"
    EXPERTS = "experts_permuted"
    GATE_UP = "gate_up_swapped"
    TWICE = "quantized_twice"
    FLUSHED = "scales_flushed"
    NAN = "scales_nan"
    NOT_FINITE = "not_finite"
    ZEROED = "zeroed"
    ROWS = "rows_damaged"
    DECAY_PADDING = "decay_padding"
    DECAY_EXPONENTIAL = "decay_exponential"
    ALTERED = "altered"
    SHAPE = "shape"


WORDS: Mapping[Mistake, str] = {
    Mistake.NIBBLES: "the two codes of each byte stand in the wrong order",
    Mistake.HALVES: "codes lie in pairs where the halves of a block are due, or in halves where pairs are",
    Mistake.SCALE_SHIFTED: "all numbers are too large or too small by a factor",
    Mistake.SCALE_NEIGHBOUR: "groups have the scale of a neighbouring group",
    Mistake.TRANSPOSED: "rows and columns are exchanged",
    Mistake.EXPERTS: "experts stand in another order",
    Mistake.GATE_UP: "gate and up are exchanged",
    Mistake.TWICE: "what was quantized before is quantized again, or was in a coarser type in between",
    Mistake.FLUSHED: "small scales became zero, as F16 without subnormal numbers makes them",
    Mistake.NAN: "scales are no numbers",
    Mistake.NOT_FINITE: "numbers became infinite, or no numbers",
    Mistake.ZEROED: "rows, or groups that have a scale of their own, became zero",
    Mistake.ROWS: "some rows are unlike the source, while the others are like it",
    Mistake.DECAY_PADDING: "the padding of A_log was converted as if it were heads",
    Mistake.DECAY_EXPONENTIAL: "the exponential of A_log was left out, or taken twice",
    Mistake.ALTERED: "the type holds the source's numbers exactly, and they are others",
    Mistake.SHAPE: "the shape is another",
}


@frozen(eq=False)
class Sample:
    """Some rows of both sides [rows, columns], which rows these are, and what one needs to try mistakes.

    `scales` [rows, columns / 32]: the source's, where it is MXFP4. `grouped`: the converted type keeps 32 numbers apart
    from their neighbours. `rounding`: the NMSE that the converted type alone
    causes; None where that is not known. `element`: a number of the source by row and column, of all its rows.
    """

    source: Numbers
    converted: Numbers
    rows: NDArray[np.int64]
    height: int
    scales: Numbers | None = None
    grouped: bool = True
    rounding: float | None = None
    element: Callable[[NDArray[np.int64], NDArray[np.int64]], Numbers] | None = None


@frozen
class Found:
    """A mistake in one weight, with what there is to say of it."""

    mistake: Mistake
    detail: str = ""


def recognise(sample: Sample) -> Found | None:
    """What the sample shows of one weight alone; None where no known mistake explains it."""
    before = measures.nmse(sample.source, sample.converted)
    if before == 0:
        return None
    flushed = _flushed(sample)
    if flushed is not None:
        return flushed
    best: tuple[float, Found] | None = None
    for tried in _hypotheses(sample):
        # Both by what is there in the file: a source that is large by itself explains nothing.
        left = measures.nmse(tried.converted, tried.undone)
        wrong = min(1.0, measures.nmse(tried.converted, tried.source))
        if left <= _EXPLAINED * wrong and (best is None or left < best[0]):
            best = left, tried.found
    if best is not None:
        return best[1]
    return _transposed(sample, before) or _twice(sample, before)


class _Tried(NamedTuple):
    """A mistake that is tried: the source as it would have it, and what that is held against."""

    found: Found
    undone: Numbers
    source: Numbers
    converted: Numbers


def _hypotheses(sample: Sample) -> Iterator[_Tried]:
    yield from (
        _Tried(found, undone, sample.source, sample.converted)
        for found, undone in (*_reordered(sample.source), *_scaled(sample))
    )
    yield from _neighbours(sample)


def _reordered(source: Numbers) -> Iterator[tuple[Found, Numbers]]:
    """Codes of a byte, or of a block, in another order."""
    rows, columns = source.shape
    if columns % 2 == 0:
        yield Found(Mistake.NIBBLES), source.reshape(rows, -1, 2)[..., ::-1].reshape(source.shape)
    if columns % BLOCK:
        return
    blocks = source.reshape(rows, -1, BLOCK)
    half = BLOCK // 2
    even, odd, first, second = blocks[..., 0::2], blocks[..., 1::2], blocks[..., :half], blocks[..., half:]
    for found, made in (
        (Found(Mistake.NIBBLES, "of blocks of GGML"), np.concatenate((second, first), axis=-1)),
        (Found(Mistake.HALVES, "pairs where halves are due"), np.concatenate((even, odd), axis=-1)),
        (
            Found(Mistake.HALVES, "pairs where halves are due, and nibbles swapped"),
            np.concatenate((odd, even), axis=-1),
        ),
        (Found(Mistake.HALVES, "halves where pairs are due"), np.stack((first, second), axis=-1)),
    ):
        yield found, made.reshape(source.shape)


def _scaled(sample: Sample) -> Iterator[tuple[Found, Numbers]]:
    """By one factor, of which powers of two are the shifted exponents."""
    sums = measures.Sums()
    sums.add(sample.source, sample.converted)
    gain = sums.gain
    if gain is None or gain <= 0 or not math.isfinite(gain):
        return
    power = round(math.log2(gain))
    if power and power in _SHIFTS and abs(gain / 2.0**power - 1) < 0.02:
        yield Found(Mistake.SCALE_SHIFTED, f"by 2^{power:+d}"), sample.source * np.float32(2.0**power)
    elif not 0.95 < gain < 1.05:
        yield Found(Mistake.SCALE_SHIFTED, f"by {gain:.4g}"), sample.source * np.float32(gain)


def _neighbours(sample: Sample) -> Iterator[_Tried]:
    scales = sample.scales
    if scales is None or scales.shape[-1] < 3:
        return
    source, converted = (one.reshape(*scales.shape, BLOCK) for one in (sample.source, sample.converted))
    codes = source / scales[..., None]
    for step, words in ((1, "the one before"), (-1, "the one behind")):
        # The edges of a row are left out: the neighbour there is the row before, the other end, or none.
        inner = slice(1, -1)
        undone = (codes * np.roll(scales, step, axis=-1)[..., None])[:, inner]
        yield _Tried(Found(Mistake.SCALE_NEIGHBOUR, words), undone, source[:, inner], converted[:, inner])


def _flushed(sample: Sample) -> Found | None:
    """Groups that became zero, all of them of scales that F16 holds only as subnormal numbers, or not at all."""
    if sample.scales is None or not sample.grouped:
        return None
    here, there = (one.reshape(*sample.scales.shape, BLOCK) for one in (sample.source, sample.converted))
    lost = here.any(axis=-1) & ~there.any(axis=-1)
    if not lost.any() or (sample.scales[lost] >= _SMALLEST_HALF).any():
        return None
    return Found(Mistake.FLUSHED, f"{np.count_nonzero(lost):,} of {lost.size:,} groups in the sample")


def _transposed(sample: Sample, before: float) -> Found | None:
    """The same shape, and the numbers in the order of columns: told by single numbers, as any row of one side is
    strewn over all of the other."""
    if sample.element is None or sample.height < 2:
        return None
    columns = sample.source.shape[1]
    take = np.linspace(0, columns - 1, min(columns, 32)).astype(np.int64)
    at = (sample.rows[:8, None] * columns + take[None, :]).reshape(-1)
    undone = sample.element(at % sample.height, at // sample.height)
    converted = sample.converted[:8][:, take].reshape(-1)
    left = measures.nmse(converted, undone)
    return Found(Mistake.TRANSPOSED) if left <= _EXPLAINED * min(1.0, before) else None


def _twice(sample: Sample, before: float) -> Found | None:
    """A loss that the converted type does not cause, spread over the weight, of numbers that are still alike."""
    # Where the type holds the source's numbers, others are no loss but an alteration.
    if not sample.rounding or before <= max(_OWN_LOSS * sample.rounding, _LEAST_LOSS):
        return None
    if measures.cosine(sample.source, sample.converted) < _ALIKE:
        return None
    blocks = np.any((sample.source != sample.converted).reshape(len(sample.source), -1), axis=1)
    other = np.count_nonzero(sample.source != sample.converted)
    if not blocks.all() or other < sample.source.size // 10:
        return None
    return Found(Mistake.TWICE, f"NMSE {before:.2g}, where the type itself causes {sample.rounding:.2g}")


def decay(source: Numbers, converted: Numbers, heads: int | None) -> Found | None:
    """What went wrong with A_log, [stored] or [heads], in what should be its negative exponential of the heads."""
    flat = source.reshape(-1)
    real = flat[:heads] if heads else flat
    with np.errstate(over="ignore"):
        right = -np.exp(real)
        if heads and converted.size > heads:
            alike = np.allclose(converted[:heads], right, rtol=1e-3)
            told = f"{converted.size} numbers for {heads} heads"
            return Found(Mistake.DECAY_PADDING, told) if alike else Found(Mistake.SHAPE, told)
        if converted.shape != real.shape:
            return Found(Mistake.SHAPE, f"{converted.size} numbers for {real.size} heads")
        for undone, words in (
            (real, "left out: A_log itself"),
            (-real, "left out: A_log with its sign changed"),
            (np.exp(real), "without its sign"),
            (-np.exp(right), "taken twice"),
            (-np.exp(-right), "taken twice"),
        ):
            if np.allclose(converted, undone, rtol=1e-3, atol=1e-6):
                return Found(Mistake.DECAY_EXPONENTIAL, words)
    return None


@frozen(eq=False)
class Suspect:
    """A weight that is unlike its source: a stretch of both [numbers], to be held against others of the layer."""

    weight: str
    expert: int | None
    source: Numbers
    converted: Numbers


def exchanged(suspects: Sequence[Suspect]) -> Iterator[tuple[Found, list[Suspect]]]:
    """Of the weights of a layer that are unlike their source: those that are another's, with the mistake it is."""
    by_name = {(one.weight, one.expert): one for one in suspects}
    swapped: list[Suspect] = []
    for one in suspects:
        if "gate" not in one.weight:
            continue
        other = by_name.get((one.weight.replace("gate", "up"), one.expert))
        if other is not None and _alike(one.source, other.converted) and _alike(other.source, one.converted):
            swapped += (one, other)
    if swapped:
        yield Found(Mistake.GATE_UP), swapped
    left = [one for one in suspects if one.expert is not None and not any(one is two for two in swapped)]
    moved: list[Suspect] = []
    told: dict[int, int] = {}
    for weight in sorted({one.weight for one in left}):
        these = [one for one in left if one.weight == weight]
        alike = _cosines(these)
        for at, one in enumerate(these):
            other_at = int(np.argmax(alike[at]))
            if other_at != at and alike[at, other_at] > _ALIKE:
                moved.append(one)
                told.setdefault(one.expert or 0, these[other_at].expert or 0)
    if moved:
        few = ", ".join(f"{here} holds {there}" for here, there in sorted(told.items())[:4])
        more = f" and {len(told) - 4} more" if len(told) > 4 else ""
        yield Found(Mistake.EXPERTS, f"{few}{more}"), moved


def _alike(source: Numbers, converted: Numbers) -> bool:
    return source.shape == converted.shape and measures.cosine(source, converted) > _ALIKE


def _cosines(suspects: Sequence[Suspect]) -> NDArray[np.floating]:
    """[converted, source] of every pair."""

    def unit(rows: list[Numbers]) -> NDArray[np.floating]:
        made = np.nan_to_num(np.stack(rows))
        lengths = np.linalg.norm(made, axis=1, keepdims=True)
        return made / np.where(lengths > 0, lengths, 1)

    return unit([one.converted for one in suspects]) @ unit([one.source for one in suspects]).T
