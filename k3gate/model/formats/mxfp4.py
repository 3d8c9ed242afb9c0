"""MXFP4 as Kimi K3's checkpoint stores it, and as GGML does: the same numbers in another order of bytes.

A code of 4 bits is E2M1: bit 3 the sign, the rest one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 (OCP MX 1.0, table 5). Blocks are
of 32 along the last axis, with one E8M0 scale.

    checkpoint  codes [rows, columns / 2], low nibble column 2j, high 2j + 1; scales [rows, columns / 32] apart
    GGML        blocks [rows, columns / 32, 17]: the scale, then 16 bytes, low nibble of byte j element j, high j + 16

Sources: compressed-tensors (mxfp4-pack-quantized), ggml-common.h (block_mxfp4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3gate.model.formats import exponents

BLOCK = 32
HALF = BLOCK // 2
GGML_BYTES = 1 + HALF
VALUES = np.array(
    [*(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), *(-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)],
    dtype=np.float32,
)
"""The number of each code."""


def decode(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Codes [..., columns / 2] and scales [..., columns / 32] to [..., columns]; `ValueError` where they do not fit."""
    _check(codes, scales)
    numbers = np.empty((*codes.shape[:-1], codes.shape[-1] * 2), np.float32)
    numbers[..., 0::2] = VALUES[codes & 15]
    numbers[..., 1::2] = VALUES[codes >> 4]
    blocks = numbers.reshape(*scales.shape, BLOCK)
    # In place: a whole expert is a hundred megabytes. Scales from 2^126 on go beyond float32.
    with np.errstate(over="ignore"):
        blocks *= exponents.decode(scales)[..., None]
    return numbers


def decode_ggml(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Blocks [..., count, 17] to [..., count * 32]."""
    codes, scales = from_ggml(blocks)
    return decode(codes, scales)


def to_ggml(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The blocks [..., columns / 32, 17] of the same numbers, bit for bit."""
    _check(codes, scales)
    grouped = codes.reshape(*scales.shape, HALF)
    blocks = np.empty((*scales.shape, GGML_BYTES), np.uint8)
    blocks[..., 0] = scales
    # Bytes of the first half of a block hold elements 0..15 in pairs, those of the second 16..31.
    first, second = _nibbles(grouped[..., : HALF // 2]), _nibbles(grouped[..., HALF // 2 :])
    blocks[..., 1:] = first | (second << 4)
    return blocks


def from_ggml(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [..., count * 16] and scales [..., count] of the same numbers, as the checkpoint stores them."""
    if blocks.ndim < 2 or blocks.shape[-1] != GGML_BYTES:
        raise ValueError(f"blocks are of {GGML_BYTES} bytes, not {blocks.shape}")
    halves = blocks[..., 1:]
    elements = np.concatenate((halves & 15, halves >> 4), axis=-1)
    codes = elements[..., 0::2] | (elements[..., 1::2] << 4)
    return codes.reshape(*blocks.shape[:-2], -1), np.ascontiguousarray(blocks[..., 0])


def _nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The codes of packed bytes one by one, in their order."""
    apart = np.empty((*codes.shape[:-1], codes.shape[-1] * 2), np.uint8)
    apart[..., 0::2] = codes & 15
    apart[..., 1::2] = codes >> 4
    return apart


def _check(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> None:
    if codes.dtype != np.uint8 or scales.dtype != np.uint8:
        raise ValueError(f"codes and scales are bytes, not {codes.dtype} and {scales.dtype}")
    if codes.shape[:-1] != scales.shape[:-1] or codes.shape[-1] != scales.shape[-1] * HALF:
        raise ValueError(f"codes {codes.shape} do not fit scales {scales.shape} of blocks of {BLOCK}")
