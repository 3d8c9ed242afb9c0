"""Number formats give the numbers that their definitions say, bit for bit, and go into each other without loss."""

from __future__ import annotations

import gguf as package
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3gate.model.formats import exponents, floats, ggml, mxfp4, rowwise


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit, zeros with their signs."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@st.composite
def packed(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    rows, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes = chance.integers(0, 256, (rows, blocks * 16), np.uint8)
    return codes, chance.integers(0, 253, (rows, blocks), np.uint8)


@pytest.mark.case("QNT-07")
def test_qnt_07_exponents_are_reinterpreted_and_not_converted() -> None:
    told = exponents.decode(np.array([120, 125, 127, 130, 140, 255, 0], np.uint8))
    assert told[:5].tolist() == [2.0**-7, 0.25, 1.0, 8.0, 8192.0]
    assert np.isnan(told[5])
    assert told[6] == np.float32(2.0**-127) > 0
    every = np.arange(256, dtype=np.uint8)
    library = every.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(exponents.decode(every), library, equal_nan=True)


def test_codes_are_e2m1() -> None:
    every = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert same(mxfp4.VALUES, every)


def test_the_low_nibble_is_the_even_column_and_a_scale_holds_for_32() -> None:
    codes = np.zeros((1, 32), np.uint8)
    codes[0, 0], codes[0, 16] = 0x21, 0x0A  # columns 0, 1; column 32
    numbers = mxfp4.decode(codes, np.array([[127, 130]], np.uint8))
    assert numbers[0, :3].tolist() == [0.5, 1.0, 0.0]
    assert numbers[0, 32] == -8.0
    assert np.count_nonzero(numbers) == 3


@given(packed())
@settings(max_examples=100, deadline=None)
def test_a_repack_is_lossless_both_ways_and_is_what_gguf_decodes(one: tuple[np.ndarray, np.ndarray]) -> None:
    codes, scales = one
    blocks = mxfp4.to_ggml(codes, scales)
    back = mxfp4.from_ggml(blocks)
    assert same(back[0], codes) and same(back[1], scales)
    numbers = mxfp4.decode(codes, scales)
    assert same(mxfp4.decode_ggml(blocks), numbers)
    raw = blocks.reshape(blocks.shape[0], -1)
    assert same(ggml.decode(raw, "MXFP4"), numbers)
    # The package knows no not-a-number and goes by a doubled table; scales of 0 and 1 are below its reach.
    usual = np.all((scales > 1) & (scales < 254))
    if usual:
        theirs = package.dequantize(raw, package.GGMLQuantizationType.MXFP4)
        assert np.array_equal(theirs, numbers)


@given(packed())
@settings(max_examples=50, deadline=None)
def test_a_scale_that_is_no_number_spoils_its_block_alone(one: tuple[np.ndarray, np.ndarray]) -> None:
    codes, scales = one
    scales[0, 0] = exponents.NAN
    numbers = mxfp4.decode(codes, scales)
    assert np.isnan(numbers[0, :32]).all()
    assert np.isfinite(numbers[0, 32:]).all() and np.isfinite(numbers[1:]).all()


@pytest.mark.parametrize(
    ("codes", "scales"),
    [((2, 16), (2, 2)), ((2, 16), (1, 1)), ((2, 15), (2, 1))],
)
def test_shapes_that_do_not_fit_are_refused(codes: tuple[int, ...], scales: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        mxfp4.decode(np.zeros(codes, np.uint8), np.zeros(scales, np.uint8))
    with pytest.raises(ValueError, match="17 bytes"):
        mxfp4.from_ggml(np.zeros((2, 3, 18), np.uint8))
    with pytest.raises(ValueError, match="bytes, not"):
        mxfp4.decode(np.zeros((1, 16), np.int32), np.zeros((1, 1), np.uint8))


@pytest.mark.parametrize("name", sorted(floats.TYPES))
def test_floats_are_reinterpreted(name: str) -> None:
    kind = floats.TYPES[name]
    values = np.array([0.0, 1.0, 2.0, 0.5, 64.0] if name != "F8_E8M0" else [1.0, 2.0, 0.5, 64.0], np.float32)
    raw = values.astype(kind).view(np.uint8)
    assert floats.decode(raw, name).tolist() == values.tolist()
    if kind.itemsize > 1:
        with pytest.raises(ValueError, match="no whole numbers"):
            floats.decode(raw[:-1], name)
    with pytest.raises(ValueError, match="no floating-point type"):
        floats.decode(raw, "Q8_0")


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K", "Q4_0", "F16", "BF16"])
def test_blocks_of_ggml_come_near_what_was_quantized(name: str) -> None:
    chance = np.random.default_rng(1)
    numbers = chance.standard_normal((4, 512)).astype(np.float32)
    kind = package.GGMLQuantizationType[name]
    try:
        raw = package.quantize(numbers, kind)
    except NotImplementedError:
        blocks, size = package.GGML_QUANT_SIZES[kind]
        raw = np.zeros((4, 512 // blocks * size), np.uint8)
        zeros = ggml.decode(raw, name)
        assert zeros.shape == (4, 512) and not zeros.any()
        return
    told = ggml.decode(raw.view(np.uint8).reshape(4, -1), name)
    assert np.abs(told - numbers).max() < 0.5


def test_a_type_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no type of GGML"):
        ggml.decode(np.zeros((1, 34), np.uint8), "Q99")
    with pytest.raises(ValueError, match="no whole blocks"):
        ggml.decode(np.zeros((1, 18), np.uint8), "MXFP4")


@given(st.integers(0, 2**32), st.floats(1e-20, 1e20))
@settings(max_examples=50, deadline=None)
def test_row_wise_integers_are_off_by_half_a_step_at_most(seed: int, scale: float) -> None:
    numbers = (np.random.default_rng(seed).standard_normal((3, 64)) * scale).astype(np.float32)
    numbers[0] = 0
    integers, factors = rowwise.encode(numbers)
    assert np.abs(integers).max() <= rowwise.LARGEST
    off = np.abs(rowwise.decode(integers, factors) - numbers)
    assert np.all(off <= 0.5001 * factors[:, None])
