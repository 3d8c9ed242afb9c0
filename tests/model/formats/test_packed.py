"""Comparing repacked codes as they are stored, and integers of four bits in words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3gate.model.formats import mxfp4, packed


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_a_repack_is_the_same_and_any_changed_bit_is_not(seed: int, rows: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, groups * 16), np.uint8)
    scales = rng.integers(0, 256, (rows, groups), np.uint8)
    blocks = mxfp4.to_ggml(codes, scales)
    assert mxfp4.same(codes, scales, blocks)
    other = blocks.copy()
    other.reshape(-1)[rng.integers(other.size)] ^= np.uint8(1 << rng.integers(8))
    assert not mxfp4.same(codes, scales, other)


def test_blocks_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        mxfp4.same(np.zeros((1, 16), np.uint8), np.zeros((1, 1), np.uint8), np.zeros((2, 17), np.uint8))


@given(st.integers(0, 2**32 - 1), st.sampled_from([32, 128]))
@settings(deadline=None, max_examples=40)
def test_words_are_eight_integers_from_the_lowest_bits_on(seed: int, group: int) -> None:
    rng = np.random.default_rng(seed)
    integers = rng.integers(-8, 8, (3, 2 * group))
    factors = rng.uniform(0.5, 2, (3, 2)).astype(np.float32)
    words = np.zeros((3, 2 * group // 8), np.uint32)
    for at in range(8):
        words |= (integers[:, at::8] + 8).astype(np.uint32) << np.uint32(4 * at)
    found = packed.decode(words.view(np.uint8), factors)
    assert np.array_equal(found, integers.astype(np.float32) * np.repeat(factors, group, axis=1))


def test_factors_that_do_not_divide_a_row_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        packed.decode(np.zeros((1, 16), np.uint8), np.zeros((1, 3), np.float32))
