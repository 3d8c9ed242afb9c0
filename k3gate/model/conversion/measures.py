"""How far numbers are from others: sums that are added up block by block, and what follows from them. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from attrs import define
from numpy.typing import NDArray

from k3gate.model.formats.exponents import BIAS
from k3gate.model.formats.exponents import NAN as E8M0_NAN

Numbers = NDArray[np.float32]


@define
class Sums:
    """Sums over pairs of numbers, all finite but those counted in `not_finite`; `largest`: of the differences."""

    numbers: int = 0
    errors: float = 0.0
    source: float = 0.0
    converted: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    not_finite: int = 0

    def add(self, source: Numbers, converted: Numbers) -> None:
        """Take two arrays of one shape."""
        source, converted = source.reshape(-1), converted.reshape(-1)
        self.numbers += source.size
        finite = np.isfinite(source)
        finite &= np.isfinite(converted)
        if not finite.all():
            self.not_finite += int(source.size - np.count_nonzero(finite))
            source, converted = source[finite], converted[finite]
        if not source.size:
            return
        # Squares of float32 may leave its range: large ones are summed in double precision.
        wide = max(_extent(source), _extent(converted))
        if wide and not 1e-12 < wide < 1e12:
            source, converted = source.astype(np.float64), converted.astype(np.float64)
        difference = source - converted
        self.largest = max(self.largest, _extent(difference))
        self.errors += _dot(difference, difference)
        self.source += _dot(source, source)
        self.converted += _dot(converted, converted)
        self.product += _dot(source, converted)

    def merge(self, other: Sums) -> None:
        """Add what another one took."""
        self.numbers += other.numbers
        self.errors += other.errors
        self.source += other.source
        self.converted += other.converted
        self.product += other.product
        self.largest = max(self.largest, other.largest)
        self.not_finite += other.not_finite

    @property
    def nmse(self) -> float:
        """Mean square of the differences by that of the source; infinite where the source is zero and they are not."""
        if not self.errors:
            return 0.0
        return self.errors / self.source if self.source else math.inf

    @property
    def cosine(self) -> float | None:
        """Of the angle between both as vectors; None where one of them is zero."""
        both = math.sqrt(self.source) * math.sqrt(self.converted)
        return max(-1.0, min(1.0, self.product / both)) if both else None

    @property
    def gain(self) -> float | None:
        """The factor by which the converted numbers are the source's, in least squares; None where that is zero."""
        return self.product / self.source if self.source else None

    def document(self) -> dict[str, Any]:
        """For JSON: an infinite NMSE is null."""
        nmse = self.nmse
        return {
            "nmse": nmse if math.isfinite(nmse) else None,
            "max_error": self.largest,
            "cosine": self.cosine,
            "gain": self.gain,
            "not_finite": self.not_finite,
        }


@define
class Factors:
    """The factors of blocks, without signs: how many, which are zero or no number, and between what they lie."""

    number: int = 0
    zeros: int = 0
    not_finite: int = 0
    least: float = math.inf
    largest: float = 0.0

    def add(self, factors: Numbers) -> None:
        """Take some factors, none below zero."""
        self.number += factors.size
        if not factors.size:
            return
        low, high = float(factors.min()), float(factors.max())
        if not (math.isfinite(high) and low > 0):
            good = factors[np.isfinite(factors)]
            self.not_finite += int(factors.size - good.size)
            self.zeros += int(np.count_nonzero(good == 0))
            good = good[good > 0]
            if not good.size:
                return
            low, high = float(good.min()), float(good.max())
        self.least, self.largest = min(self.least, low), max(self.largest, high)

    def add_exponents(self, exponents: NDArray[np.uint8]) -> None:
        """Take factors as E8M0 has them, without decoding them: smallest and largest byte tell all."""
        if exponents.size and int(exponents.max()) == E8M0_NAN:
            good = exponents[exponents != E8M0_NAN]
            self.not_finite += exponents.size - good.size
            self.number += exponents.size - good.size
            exponents = good
        if exponents.size:
            self.number += exponents.size
            self.least = min(self.least, 2.0 ** (int(exponents.min()) - BIAS))
            self.largest = max(self.largest, 2.0 ** (int(exponents.max()) - BIAS))

    def merge(self, other: Factors) -> None:
        """Add what another one took."""
        self.number += other.number
        self.zeros += other.zeros
        self.not_finite += other.not_finite
        self.least, self.largest = min(self.least, other.least), max(self.largest, other.largest)

    def document(self) -> dict[str, Any] | None:
        """For JSON; least and largest of those above zero, null where there is none. None without any factor."""
        if not self.number:
            return None
        some = self.largest > 0
        return {
            "number": self.number,
            "zeros": self.zeros,
            "not_finite": self.not_finite,
            "least": self.least if some else None,
            "largest": self.largest if some else None,
        }


def _dot(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Without BLAS, whose threads get in each other's way where every core has a process; numpy sums in pairs."""
    return float(np.add.reduce(first * second))


def _extent(numbers: Numbers) -> float:
    return float(np.max(np.abs(numbers))) if numbers.size else 0.0


def nmse(source: Numbers, converted: Numbers) -> float:
    """Of two small arrays; infinite where one of them holds what is no number."""
    sums = Sums()
    sums.add(source, converted)
    return math.inf if sums.not_finite else sums.nmse


def cosine(source: Numbers, converted: Numbers) -> float:
    """Of two small arrays; 0 where one of them is zero."""
    sums = Sums()
    sums.add(source, converted)
    return sums.cosine or 0.0
