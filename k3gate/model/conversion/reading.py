"""Rows of a weight from its file: as they are stored, and as numbers in float32."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.model.conversion.stored import INT4, MXFP4, Place, Stored, blocks
from k3gate.model.formats import exponents, floats, ggml, mxfp4, packed

_MOST_OPEN = 64
_SCALE_AT = {
    "Q4_0": 0,
    "Q4_1": 0,
    "Q5_0": 0,
    "Q5_1": 0,
    "Q8_0": 0,
    "Q2_K": 80,
    "Q3_K": 108,
    "Q4_K": 0,
    "Q5_K": 0,
    "Q6_K": 208,
    "IQ4_NL": 0,
    "IQ4_XS": 0,
}
"""Where a block of GGML has its factor, a number of F16. Source: ggml-common.h."""


@frozen(eq=False)
class Rows:
    """Some rows of a weight: bytes [rows, row_bytes], and of codes with scales apart, the scales of these rows."""

    stored: Stored
    first: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8] | None = None


class Files:
    """The files of a checkpoint, opened as they are needed, for reading alone. Close it, or use it as a context."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def rows(self, stored: Stored, first: int, end: int) -> Rows:
        """Rows `first` to `end` as they are stored; `OSError` where the file does not have them."""
        raw = self._bytes(
            Place(stored.place.file, stored.place.begin + first * stored.row_bytes),
            (end - first) * stored.row_bytes,
        )
        codes = raw.reshape(end - first, stored.row_bytes)
        scales = stored.scales
        if scales is None:
            return Rows(stored, first, codes)
        if stored.coding in (MXFP4, INT4):
            # One row of factors for a row of codes.
            width = scales.row_bytes
            at = Place(scales.place.file, scales.place.begin + first * width)
            return Rows(
                stored,
                first,
                codes,
                self._bytes(at, (end - first) * width).reshape(end - first, width),
            )
        return Rows(stored, first, codes, self._bytes(scales.place, scales.rows * scales.row_bytes))

    def numbers(self, stored: Stored, first: int, end: int) -> NDArray[np.float32]:
        """Rows `first` to `end` as float32 [rows, columns]."""
        return decode(self.rows(stored, first, end))

    def _bytes(self, place: Place, length: int) -> NDArray[np.uint8]:
        raw = np.empty(length, np.uint8)
        view = raw.data
        done = 0
        while done < length:
            got = os.preadv(self._descriptor(place.file), [view[done:]], place.begin + done)
            if not got:
                name = self._paths[place.file].name
                raise OSError(f"{name} ends at byte {place.begin + done:,}, within a tensor")
            done += got
        return raw

    def _descriptor(self, file: int) -> int:
        found = self._open.get(file)
        if found is None:
            if len(self._open) >= _MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            found = self._open[file] = os.open(self._paths[file], os.O_RDONLY | os.O_CLOEXEC)
        return found


def decode(rows: Rows) -> NDArray[np.float32]:
    """The numbers [rows, columns] in float32. `ValueError` for a coding that cannot be decoded."""
    stored = rows.stored
    if rows.scales is None:
        if stored.coding in floats.TYPES:
            return floats.decode(rows.codes, stored.coding)
        return ggml.decode(rows.codes, stored.coding)
    if stored.coding == MXFP4:
        return mxfp4.decode(rows.codes, rows.scales)
    assert stored.scales is not None
    if stored.coding == INT4:
        return packed.decode(rows.codes, _factors(rows.scales, stored.scales.dtype))
    shared = blocks(stored.rows, stored.columns, stored.scales)
    assert shared is not None
    high, wide = shared
    factors = _factors(rows.scales, stored.scales.dtype).reshape(stored.scales.rows, stored.scales.columns)
    numbers = floats.decode(rows.codes, stored.coding)
    own = factors[(rows.first + np.arange(len(numbers))) // high]
    numbers *= np.repeat(own, wide, axis=1)[:, : stored.columns]
    return numbers


def _factors(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    return exponents.decode(raw) if dtype == "U8" else floats.decode(raw, dtype)


def exponents_of(rows: Rows) -> NDArray[np.uint8] | None:
    """The scales of MXFP4 as bytes of E8M0; None for another coding."""
    if rows.stored.coding != MXFP4:
        return None
    return rows.codes.reshape(-1, mxfp4.GGML_BYTES)[:, 0] if rows.scales is None else rows.scales


def scales_of(rows: Rows) -> NDArray[np.float32] | None:
    """The factors of these rows' blocks, without signs, in no shape; None where the coding has none to show."""
    stored = rows.stored
    if rows.scales is not None and stored.scales is not None:
        if stored.coding not in (MXFP4, INT4) and rows.first:
            # Factors of blocks are read whole with every stretch of rows, and are shown once.
            return None
        return np.abs(_factors(rows.scales, stored.scales.dtype).reshape(-1))
    if stored.coding == MXFP4:
        return exponents.decode(rows.codes.reshape(-1, mxfp4.GGML_BYTES)[:, 0])
    at = _SCALE_AT.get(stored.coding)
    if at is None:
        return None
    size = ggml.block_bytes(stored.coding)
    half = np.ascontiguousarray(rows.codes.reshape(-1, size)[:, at : at + 2]).view(np.float16)
    return np.abs(half.reshape(-1).astype(np.float32))
