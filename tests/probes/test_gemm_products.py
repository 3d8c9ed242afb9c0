"""Products of every path against numpy: values, bounds, segments, tiles and their model."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from k3gate.model.formats import mxfp4
from k3gate.probes import _native

HERE = {row["path"] for row in _native.gemm_paths() if row["presence"] == "ok"}
VARIANTS = [(row["format"], row["path"], row["activations"]) for row in _native.gemm_variants()]
TILED = [variant for variant in VARIANTS if variant[1].startswith("amx")]


class Operands:
    """Weights as a checkpoint stores them, and what they are in float64."""

    def __init__(self, kind: str, rows: int, depth: int, tokens: int, spread: int = 2, seed: int = 1) -> None:
        dice = np.random.default_rng(seed)
        self.shape = (tokens, rows, depth)
        self.inputs = dice.normal(size=(tokens, depth)).astype(ml_dtypes.bfloat16)
        if kind == "mxfp4":
            self.codes = dice.integers(0, 256, (rows, depth // 2), dtype=np.uint8)
            self.powers = (115 + dice.integers(0, spread + 1, (rows, depth // 32))).astype(np.uint8)
            self.values, self.scales = self.codes.tobytes(), self.powers.tobytes()
            self.weights = mxfp4.decode(self.codes, self.powers).astype(np.float64)
        elif kind == "int8":
            codes = dice.integers(-128, 128, (rows, depth), dtype=np.int8)
            scales = dice.uniform(0.001, 0.01, rows).astype(np.float32)
            self.values, self.scales = codes.tobytes(), scales.tobytes()
            self.weights = codes * scales.astype(np.float64)[:, None]
        elif kind == "q8_0":
            codes = dice.integers(-128, 128, (rows, depth // 32, 32), dtype=np.int8)
            halves = dice.uniform(0.001, 0.01, (rows, depth // 32, 1)).astype(np.float16)
            stored = np.concatenate([halves.view(np.uint8), codes.view(np.uint8)], axis=2)
            self.values, self.scales = stored.tobytes(), b""
            self.weights = (codes * halves.astype(np.float64)).reshape(rows, depth)
        else:
            numbers = dice.normal(size=(rows, depth)).astype(ml_dtypes.bfloat16)
            self.values, self.scales = numbers.tobytes(), b""
            self.weights = numbers.astype(np.float64)

    def arguments(self) -> tuple[bytes, bytes, bytes, int, int, int]:
        return self.values, self.scales, self.inputs.tobytes(), *self.shape

    def used(self, activations: str) -> NDArray[np.float64]:
        """The activations as a variant uses them, by the rule that gemm.hpp states."""
        if activations == "bf16":
            return self.inputs.astype(np.float64)
        values = self.inputs.astype(np.float32)
        if activations == "int8_groups":
            values = values.reshape(len(values), -1, 32)
        largest = np.abs(values).max(axis=-1, keepdims=True)
        codes = np.rint(values * (np.float32(127) / largest))
        used = codes.astype(np.float64) * (largest / np.float32(127)).astype(np.float64)
        return used.reshape(self.inputs.shape)

    def bound(self, activations: str) -> NDArray[np.float64]:
        """As reference.hpp derives it, for numbers far from the denormal ones."""
        terms = np.abs(self.used(activations)) @ np.abs(self.weights).T
        depth = self.shape[2]
        roundings = 4 + depth + depth / 32 if activations == "bf16" else 3 + depth / 32
        return np.asarray(roundings * 2.0**-24 * terms + 1e-30)


def product(operands: Operands, kind: str, path: str, modelled: bool = False) -> NDArray[np.float32]:
    found = _native.gemm_multiply(kind, path, *operands.arguments(), modelled)
    return np.frombuffer(found, np.float32).reshape(operands.shape[:2])


@pytest.mark.parametrize("kind, path, activations", [variant for variant in VARIANTS if variant[1] in HERE])
def test_every_path_agrees_with_numpy_at_any_number_of_tokens(kind: str, path: str, activations: str) -> None:
    for tokens in (1, 2, 3, 4, 5, 7, 13, 16, 17, 33, 64, 100):
        for rows, depth in ((16, 32), (33, 160), (50, 1184)):
            operands = Operands(kind, rows, depth, tokens, seed=tokens)
            found = product(operands, kind, path)
            wanted = operands.used(activations) @ operands.weights.T
            assert np.all(np.abs(found - wanted) <= operands.bound(activations)), (tokens, rows, depth)


@pytest.mark.parametrize(
    "path, activations", [(path, how) for kind, path, how in VARIANTS if kind == "mxfp4" and path in HERE]
)
@pytest.mark.parametrize("spread", [0, 3, 4, 9, 40])
def test_scales_of_any_spread_are_exact(path: str, activations: str, spread: int) -> None:
    for tokens in (1, 3, 21):
        operands = Operands("mxfp4", 37, 800, tokens, spread, seed=spread)
        wanted = operands.used(activations) @ operands.weights.T
        found = product(operands, "mxfp4", path)
        assert np.all(np.abs(found - wanted) <= operands.bound(activations)), tokens


@pytest.mark.parametrize("kind, path, activations", TILED)
def test_the_model_of_the_tiles_computes_what_numpy_does(kind: str, path: str, activations: str) -> None:
    # The last two are deeper than a chunk, with sums that stay in tiles and with sums that do not.
    for tokens, spread, depth in (
        (1, 2, 1184),
        (18, 2, 1184),
        (33, 9, 1184),
        (5, 40, 1184),
        (20, 2, 4224),
        (40, 2, 4224),
    ):
        operands = Operands(kind, 33, depth, tokens, spread, seed=tokens)
        wanted = operands.used(activations) @ operands.weights.T
        found = product(operands, kind, path, modelled=True)
        assert np.all(np.abs(found - wanted) <= operands.bound(activations)), tokens


@pytest.mark.parametrize("kind, path, activations", TILED)
def test_real_tiles_give_the_bits_of_their_model(kind: str, path: str, activations: str) -> None:
    if path not in HERE:
        pytest.skip(f"{path} cannot be had here")
    for tokens, spread in ((1, 2), (18, 2), (49, 9)):
        operands = Operands(kind, 40, 2240, tokens, spread, seed=tokens)
        assert np.array_equal(product(operands, kind, path), product(operands, kind, path, modelled=True))


@pytest.mark.parametrize("kind", ["mxfp4", "int8", "bf16", "q8_0"])
@pytest.mark.parametrize("activations", ["int8", "int8_groups", "bf16"])
def test_the_native_reference_agrees_with_numpy(kind: str, activations: str) -> None:
    operands = Operands(kind, 9, 288, 5)
    found = np.frombuffer(_native.gemm_expect(kind, activations, *operands.arguments())).reshape(9, 5, 6)[
        ..., :4
    ]
    wanted = operands.used(activations) @ operands.weights.T
    exact = operands.used("bf16") @ operands.weights.T
    assert np.allclose(found[..., 0].T, wanted, rtol=1e-13, atol=1e-15)
    assert np.allclose(found[..., 2].T, exact, rtol=1e-13, atol=1e-15)
    assert np.allclose(found[..., 1].T, operands.bound(activations), rtol=1e-6)
    assert np.all(np.abs(wanted - exact) <= found[..., 3].T)


@pytest.mark.parametrize("kind, activations", [("int8", "int8"), ("q8_0", "int8_groups")])
def test_rounding_and_bounds_see_values_at_their_limits(kind: str, activations: str) -> None:
    operands = Operands(kind, 16, 32, 4)
    operands.inputs[0] = 0
    operands.inputs[1] = ml_dtypes.bfloat16(1e-38)
    operands.inputs[2] = np.where(np.arange(32) % 2 == 0, 1, 0.5).astype(ml_dtypes.bfloat16)  # a tie at 63.5
    operands.inputs[3] = ml_dtypes.bfloat16(3e38)
    for one, path, how in VARIANTS:
        if (one, how) == (kind, activations) and path in HERE:
            found = product(operands, kind, path)
            expected = np.frombuffer(_native.gemm_expect(kind, how, *operands.arguments())).reshape(16, 4, 6)[
                ..., :4
            ]
            finite = np.abs(expected[..., 0]) < 3e38
            off = np.abs(found.T.astype(np.float64) - expected[..., 0])[finite] <= expected[..., 1][finite]
            assert off.all(), path
            assert np.all(found[0] == 0)


def test_a_scale_that_is_no_number_makes_its_row_none() -> None:
    operands = Operands("mxfp4", 20, 256, 2)
    powers = operands.powers.copy()
    powers[7, 3] = 255
    operands.scales = powers.tobytes()
    for kind, path, _ in VARIANTS:
        if kind == "mxfp4" and path in HERE:
            found = product(operands, kind, path)
            assert np.isnan(found[:, 7]).all(), path
            assert np.isfinite(np.delete(found, 7, axis=1)).all(), path


def test_groups_of_q8_0_may_have_any_scale_and_one_that_is_no_number_makes_its_row_none() -> None:
    operands = Operands("q8_0", 20, 224, 5)
    stored = np.frombuffer(operands.values, np.uint8).reshape(20, 7, 34).copy()
    halves = np.array([0, -0.0, 6e-8, 6.1e-5, -0.5, 1, 65504], np.float16)
    stored[..., :2] = halves.view(np.uint8).reshape(7, 2)
    stored[3, 5, :2] = np.array([np.nan], np.float16).view(np.uint8)
    operands.values = stored.tobytes()
    codes = stored[..., 2:].view(np.int8)
    operands.weights = (codes * halves.astype(np.float64)[:, None]).reshape(20, 224)
    wanted = operands.used("int8_groups") @ operands.weights.T
    for kind, path, _ in VARIANTS:
        if kind == "q8_0" and path in HERE:
            found = product(operands, kind, path)
            assert np.isnan(found[:, 3]).all(), path
            off = np.delete(np.abs(found - wanted) - operands.bound("int8_groups"), 3, axis=1)
            assert np.all(off <= 0), path


def test_packing_keeps_the_bytes_of_the_format_where_scales_lie_together() -> None:
    operands = Operands("mxfp4", 64, 3584, 1)
    packed = _native.gemm_packed_bytes("mxfp4", operands.values, operands.scales, 64, 3584)
    weights = 64 * 3584
    assert packed == weights * 17 / 32 + 64 / 16 * 192
    assert packed / (weights * 17 / 32) < 1.007
    ggml = Operands("q8_0", 64, 3584, 1)
    assert _native.gemm_packed_bytes("q8_0", ggml.values, b"", 64, 3584) == weights * 34 / 32
    wild = Operands("mxfp4", 64, 3584, 1, spread=40)
    assert _native.gemm_packed_bytes("mxfp4", wild.values, wild.scales, 64, 3584) > packed


def test_operands_of_wrong_sizes_are_refused() -> None:
    operands = Operands("mxfp4", 16, 64, 1)
    values, scales, inputs, *shape = operands.arguments()
    for arguments in (
        (values[1:], scales, inputs, *shape),
        (values, scales[1:], inputs, *shape),
        (values, scales, inputs[1:], *shape),
        (values, scales, inputs, 513, *shape[1:]),
        (values, scales, inputs, 1, 16, 40),
        (values, scales, inputs, 1, 0, 64),
    ):
        with pytest.raises(ValueError):
            _native.gemm_multiply("mxfp4", "generic", *arguments)
    with pytest.raises(ValueError, match="no variant"):
        _native.gemm_multiply("mxfp4", "amx_int4", values, scales, inputs, *shape)


def test_situ_agrees_with_float64() -> None:
    dice = np.random.default_rng(3)
    tokens, width = 3, 5000
    gate_up = (
        dice.normal(size=(tokens, 2, width)) * dice.choice([1e-3, 1, 10, 200], (tokens, 2, width))
    ).astype(np.float32)
    gate_up[0, :, :4] = [[0, -0.0, 88, -88], [1, 1, 1e5, -1e5]]
    found = np.frombuffer(_native.gemm_situ(gate_up.tobytes(), tokens, width), ml_dtypes.bfloat16)
    gate, up = gate_up.astype(np.float64).transpose(1, 0, 2)
    with np.errstate(over="ignore"):
        wanted = 4 * np.tanh(gate / 4) / (1 + np.exp(-gate)) * 25 * np.tanh(up / 25)
    error = np.abs(found.astype(np.float64).reshape(tokens, width) - wanted)
    assert np.all(error <= np.abs(wanted) * (2.0**-8 + 2.0**-19) + 2.0**-118)
    gate_up[1, 0, 7] = np.nan
    assert np.isnan(
        np.frombuffer(_native.gemm_situ(gate_up.tobytes(), tokens, width), ml_dtypes.bfloat16)[width + 7]
    )


@pytest.mark.skipif("amx_int8" not in {path for _, path, _ in VARIANTS}, reason="no tiles in this build")
def test_the_object_holds_the_tile_instructions_and_a_configuration_of_64_bytes(
    repository: Path, tmp_path: Path
) -> None:
    if shutil.which("objdump") is None or shutil.which("g++") is None:
        pytest.skip("needs g++ and objdump")
    source = repository / "probes" / "native" / "gemm" / "amx.cpp"
    made = tmp_path / "amx.o"
    subprocess.run(["g++", "-std=c++20", "-O2", "-c", str(source), "-o", str(made)], check=True)
    listing = subprocess.run(["objdump", "-d", str(made)], capture_output=True, text=True, check=True).stdout
    for instruction in ("ldtilecfg", "tdpbssd", "tdpbf16ps", "tileloadd", "tilestored", "tilerelease"):
        assert re.search(rf"\b{instruction}\b", listing), instruction
    everything = subprocess.run(
        ["objdump", "-s", str(made)], capture_output=True, text=True, check=True
    ).stdout
    data = re.findall(r"^ [0-9a-f]+ ((?:[0-9a-f]{2,8} ){1,4})", everything, re.MULTILINE)
    content = bytes.fromhex("".join("".join(line.split()) for line in data))
    configuration = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])
    assert len(configuration) == 64
    assert configuration in content
