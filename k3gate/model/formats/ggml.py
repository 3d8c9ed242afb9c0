"""Block formats of GGML to float32, through the package gguf but for MXFP4, which is ours."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from k3gate.model.formats import mxfp4

_OURS = "MXFP4"


def decode(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Rows of whole blocks [..., bytes of a row] to [..., elements]; `ValueError` for a type that cannot be decoded."""
    if dtype == _OURS:
        if raw.shape[-1] % mxfp4.GGML_BYTES:
            raise ValueError(f"{raw.shape[-1]} bytes are no whole blocks of {dtype}")
        return mxfp4.decode_ggml(raw.reshape(*raw.shape[:-1], -1, mxfp4.GGML_BYTES))
    try:
        kind = gguf.GGMLQuantizationType[dtype]
    except KeyError as error:
        raise ValueError(f"{dtype} is no type of GGML") from error
    try:
        return np.asarray(gguf.dequantize(np.ascontiguousarray(raw), kind), dtype=np.float32)
    except NotImplementedError as error:
        raise ValueError(f"{dtype} cannot be decoded here") from error


def block_bytes(dtype: str) -> int:
    """Bytes of a block; `ValueError` for a type that is not GGML's."""
    try:
        return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]][1]
    except KeyError as error:
        raise ValueError(f"{dtype} is no type of GGML") from error


def rounded(numbers: NDArray[np.float32], dtype: str) -> NDArray[np.float32] | None:
    """Numbers [rows, columns] written in a type and read back; None where the package cannot write it, or rows are no
    whole blocks."""
    try:
        kind = gguf.GGMLQuantizationType[dtype]
        return np.asarray(gguf.dequantize(gguf.quantize(numbers, kind), kind), dtype=np.float32)
    except (KeyError, NotImplementedError, ValueError, gguf.QuantError):
        return None
