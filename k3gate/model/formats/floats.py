"""Floating-point formats that numpy does not have, through ml_dtypes, which gives each its exact numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

TYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(kind)
    for name, kind in {
        "F64": np.float64,
        "F32": np.float32,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }.items()
}
"""By the names that safetensors has for them."""


def decode(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Bytes [..., elements * size] in little-endian order to float32; `ValueError` for a type that is none of these.

    Reinterprets the bits; numbers of F64 that float32 does not hold are rounded.
    """
    kind = TYPES.get(dtype)
    if kind is None:
        raise ValueError(f"{dtype} is no floating-point type that is known here")
    if raw.shape[-1] % kind.itemsize:
        raise ValueError(f"{raw.shape[-1]} bytes are no whole numbers of {dtype}")
    return np.ascontiguousarray(raw).view(kind).astype(np.float32)
