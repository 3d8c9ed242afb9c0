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
_PAIRS = np.stack((VALUES[np.arange(256) & 15], VALUES[np.arange(256) >> 4]), axis=1).view(np.uint64)[:, 0]
"""Both numbers of each byte, in one word of 64 bits: looked up twice as fast as one by one."""
_GGML = np.dtype([("scale", "u1"), ("first", "<u8"), ("second", "<u8")])
_LOW, _HIGH, _FOUR = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(4)


def decode(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Codes [..., columns / 2] and scales [..., columns / 32] to [..., columns]; `ValueError` where they do not fit."""
    _check(codes, scales)
    numbers = np.take(_PAIRS, codes).view(np.float32)
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


def same(codes: NDArray[np.uint8], scales: NDArray[np.uint8], blocks: NDArray[np.uint8]) -> bool:
    """Whether blocks [..., count, 17] of GGML hold the same codes and scales, bit for bit; `ValueError` as in `decode`.

    All must lie in one piece. Works on eight bytes at once, without building the blocks: at memory's pace, nearly.
    """
    _check(codes, scales)
    if blocks.size != scales.size * GGML_BYTES:
        raise ValueError(f"blocks {blocks.shape} do not fit scales {scales.shape}")
    there = blocks.reshape(-1).view(_GGML)
    if not np.array_equal(there["scale"], scales.reshape(-1)):
        return False
    words = codes.reshape(-1).view("<u8").reshape(-1, 2)
    first, second = words[:, 0], words[:, 1]
    even = (first & _LOW) | ((second & _LOW) << _FOUR)
    odd = ((first >> _FOUR) & _LOW) | (second & _HIGH)
    # Byte 2k of a block is the k-th of `even`, byte 2k + 1 the k-th of `odd`.
    woven = odd.view(np.uint8).astype(np.uint16)
    woven <<= np.uint16(8)
    woven |= even.view(np.uint8)
    mine = woven.view("<u8").reshape(-1, 2)
    return np.array_equal(mine[:, 0], there["first"]) and np.array_equal(mine[:, 1], there["second"])


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
