"""Symmetric integers of 4 bits with one float32 factor for a row, as KTransformers' AMXINT4 means them.

What its kernels do with the order of bytes is their own; compared are numbers. Source: kt-kernel, BufferBInt4Impl.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGEST = 7


def encode(numbers: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers [rows, columns] of -7 to 7 and factors [rows]: the largest of a row becomes 7, ties go to even."""
    largest = np.max(np.abs(numbers), axis=-1)
    factors = (largest / LARGEST).astype(np.float32)
    safe = np.where(factors > 0, factors, np.float32(1))
    return np.rint(numbers / safe[..., None]).astype(np.int8), factors


def decode(integers: NDArray[np.int8], factors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Integers [rows, columns] and factors [rows] to [rows, columns]."""
    return integers.astype(np.float32) * factors[..., None]
