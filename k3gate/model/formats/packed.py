"""Signed integers of 4 bits, eight in an int32, with a factor for a group of a row.

This is pack-quantized of compressed-tensors (pack_to_int32): stored is the integer plus 8, the first of eight in the
lowest bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IN_WORD = 8
OFFSET = 8


def decode(words: NDArray[np.uint8], factors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bytes of words [rows, columns / 2] and factors [rows, groups] to [rows, columns]; `ValueError` where the groups
    do not divide the columns."""
    rows, half = words.shape
    columns = half * 2
    if half % 4 or not factors.shape[-1] or columns % factors.shape[-1]:
        raise ValueError(f"{columns} columns do not fit {factors.shape[-1]} factors")
    numbers = np.empty((rows, columns), np.float32)
    # Little-endian words: the low nibble of each byte comes first.
    numbers[:, 0::2] = words & 15
    numbers[:, 1::2] = words >> 4
    numbers -= OFFSET
    grouped = numbers.reshape(rows, factors.shape[-1], -1)
    grouped *= factors[..., None]
    return numbers
