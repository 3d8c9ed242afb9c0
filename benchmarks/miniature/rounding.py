"""How ggml rounds the activations of a product by the type of its weights, as float64 numbers. Pure."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from k3gate.model.formats.mxfp4 import BLOCK

Numbers = NDArray[np.float64]


def ggml(kind: str, x: Numbers) -> Numbers:
    """The last axis [..., depth]: 32 int8 and one F16 scale (Q8_0) beside q8_0 and mxfp4, BF16 beside bf16."""
    if kind == "f32":
        return x
    if kind == "bf16":
        return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return (codes.astype(np.float64) * scale.astype(np.float16).astype(np.float64)).reshape(x.shape)
