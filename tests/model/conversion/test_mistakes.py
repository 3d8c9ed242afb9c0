"""Every known mistake of a conversion, planted into a whole one, is named as what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from k3gate.model.checkpoint import files
from k3gate.model.conversion import comparison
from k3gate.model.conversion.mistakes import Mistake
from k3gate.model.formats import mxfp4
from tests.model.conversion import miniature
from tests.model.conversion.miniature import Converted, Weights

Plant = Callable[[Weights, Converted], None]
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def compared(folder: Path, weights: Weights, converted: Converted) -> comparison.Compared:
    source = miniature.write_checkpoint(folder / "source", weights)
    file = miniature.write_gguf(folder / "converted.gguf", converted)
    return comparison.compare(comparison.prepare(files.find(source), files.find(file)), 1, lambda _: None)


def experts(converted: Converted, change: Callable[[NDArray[Any]], NDArray[Any]], layer: int = 1) -> None:
    """Change the blocks [experts, rows, count, 17] of a layer."""
    for name in EXPERTS:
        array, kind = converted[f"blk.{layer}.{name}.weight"]
        blocks = change(array.reshape(*array.shape[:2], -1, mxfp4.GGML_BYTES).copy())
        converted[f"blk.{layer}.{name}.weight"] = np.ascontiguousarray(blocks.reshape(array.shape)), kind


def nibbles(_: Weights, converted: Converted) -> None:
    def change(blocks: NDArray[Any]) -> NDArray[Any]:
        blocks[..., 1:] = (blocks[..., 1:] >> 4) | (blocks[..., 1:] << 4)
        return blocks

    experts(converted, change)


def halves(_: Weights, converted: Converted) -> None:
    def change(blocks: NDArray[Any]) -> NDArray[Any]:
        codes, _ = mxfp4.from_ggml(blocks)
        blocks[..., 1:] = codes.reshape(*blocks.shape[:-1], mxfp4.HALF)
        return blocks

    experts(converted, change)


def shifted(_: Weights, converted: Converted) -> None:
    def change(blocks: NDArray[Any]) -> NDArray[Any]:
        blocks[..., 0] -= 1
        return blocks

    experts(converted, change)


def neighbour(_: Weights, converted: Converted) -> None:
    def change(blocks: NDArray[Any]) -> NDArray[Any]:
        blocks[..., 0] = np.roll(blocks[..., 0], 1, axis=-1)
        return blocks

    experts(converted, change)


def permuted(_: Weights, converted: Converted) -> None:
    experts(converted, lambda blocks: blocks[[0, 2, 3, 1]])


def exchange(weight: str) -> Plant:
    def plant(_: Weights, converted: Converted) -> None:
        gate, up = (f"{weight.format(one)}.weight" for one in ("gate", "up"))
        converted[gate], converted[up] = converted[up], converted[gate]

    return plant


def turned(_: Weights, converted: Converted) -> None:
    array, kind = converted["blk.1.ffn_routed_down.weight"]
    converted["blk.1.ffn_routed_down.weight"] = np.ascontiguousarray(array.T), kind


def turned_in_its_shape(_: Weights, converted: Converted) -> None:
    array, kind = converted["blk.1.ffn_routed_down.weight"]
    converted["blk.1.ffn_routed_down.weight"] = array.T.reshape(array.shape), kind


def keys_not_turned(_: Weights, converted: Converted) -> None:
    array, kind = converted["blk.2.attn_k_b.weight"]
    converted["blk.2.attn_k_b.weight"] = np.ascontiguousarray(array.transpose(0, 2, 1)), kind


def twice(_: Weights, converted: Converted) -> None:
    array, kind = converted["blk.1.attn_q.weight"]
    four = gguf.GGMLQuantizationType.Q4_0
    converted["blk.1.attn_q.weight"] = gguf.dequantize(gguf.quantize(array, four), four), kind


def experts_in_another_type(_: Weights, converted: Converted) -> None:
    for name in EXPERTS:
        array, _ = converted[f"blk.1.{name}.weight"]
        numbers = mxfp4.decode_ggml(array.reshape(*array.shape[:2], -1, mxfp4.GGML_BYTES))
        converted[f"blk.1.{name}.weight"] = numbers, "Q4_0"


def flushed(weights: Weights, converted: Converted) -> None:
    """Experts as F16, whose subnormal numbers some converter made zero; one group in eight has a small scale."""
    name = "language_model.model.layers.1.block_sparse_moe.experts.2.w1"
    scales = weights[f"{name}.weight_scale"]
    scales.reshape(-1)[::8] = 127 - 18
    numbers = mxfp4.decode(weights[f"{name}.weight_packed"], scales)
    numbers[np.repeat(scales < 127 - 14, 32, axis=-1)] = 0
    array, _ = converted["blk.1.ffn_gate_exps.weight"]
    whole = mxfp4.decode_ggml(array.reshape(*array.shape[:2], -1, mxfp4.GGML_BYTES))
    whole[2] = numbers
    converted["blk.1.ffn_gate_exps.weight"] = whole, "F16"


def not_a_number(_: Weights, converted: Converted) -> None:
    def change(blocks: NDArray[Any]) -> NDArray[Any]:
        blocks[1, 3, 0, 0] = 255
        return blocks

    experts(converted, change)


def beyond_f16(weights: Weights, converted: Converted) -> None:
    name = "language_model.model.layers.1.self_attn.q_proj.weight"
    weights[name][3, 5] = 70_000
    numbers = np.asarray(weights[name], np.float32)
    with np.errstate(over="ignore"):
        converted["blk.1.attn_q.weight"] = numbers, "F16"


def times(weight: str, factor: float, kind: str) -> Plant:
    def plant(_: Weights, converted: Converted) -> None:
        array, _ = converted[weight]
        converted[weight] = np.asarray(array, np.float32) * np.float32(factor), kind

    return plant


def through_eight_bits(_: Weights, converted: Converted) -> None:
    array, _ = converted["blk.1.attn_q.weight"]
    eight = gguf.GGMLQuantizationType.Q8_0
    converted["blk.1.attn_q.weight"] = gguf.dequantize(gguf.quantize(array, eight), eight), "BF16"


def one_value_of_a_split(_: Weights, converted: Converted) -> None:
    array, _ = converted["blk.2.attn_v_b.weight"]
    changed = np.array(array)
    changed[1, 7, 9] *= 1.5
    converted["blk.2.attn_v_b.weight"] = changed, "BF16"


def infinite(_: Weights, converted: Converted) -> None:
    array, kind = converted["blk.1.attn_res_score.weight"]
    converted["blk.1.attn_res_score.weight"] = np.full_like(array, np.inf), kind


def split(keys: int, values: int) -> Plant:
    def plant(weights: Weights, converted: Converted) -> None:
        whole = np.asarray(weights["language_model.model.layers.2.self_attn.kv_b_proj.weight"], np.float32)
        both = whole.reshape(miniature.HEADS, miniature.KEYS + miniature.VALUES, miniature.LATENT)
        turned = np.ascontiguousarray(both[:, :keys].transpose(0, 2, 1))
        converted["blk.2.attn_k_b.weight"] = turned, "BF16" if keys % 32 == 0 else "F32"
        converted["blk.2.attn_v_b.weight"] = both[:, both.shape[1] - values :], "BF16"

    return plant


def eight_bits(weight: str, change: Callable[[NDArray[Any]], None]) -> Plant:
    """Blocks of Q8_0 [rows, count, 34] of a weight, changed as they are stored."""

    def plant(_: Weights, converted: Converted) -> None:
        array, _ = converted[weight]
        raw = gguf.quantize(np.ascontiguousarray(array, np.float32), gguf.GGMLQuantizationType.Q8_0)
        blocks = raw.reshape(len(raw), -1, 34)
        change(blocks)
        converted[weight] = raw, "Q8_0"

    return plant


def no_scale(blocks: NDArray[Any]) -> None:
    blocks[3, 1, :2] = 0


def impossible_scale(blocks: NDArray[Any]) -> None:
    blocks[1, 0, :2] = np.array([np.nan], np.float16).view(np.uint8)


def another_row(blocks: NDArray[Any]) -> None:
    blocks[5] = blocks[90]


def not_a_number_in_both(weights: Weights, converted: Converted) -> None:
    not_a_number(weights, converted)
    for name in ("w1", "w2", "w3"):
        weights[f"language_model.model.layers.1.block_sparse_moe.experts.1.{name}.weight_scale"][3, 0] = 255


def padded(weights: Weights, converted: Converted) -> None:
    decay = weights["language_model.model.layers.1.self_attn.A_log"]
    converted["blk.1.ssm_a"] = -np.exp(decay), "F32"


def left_out(weights: Weights, converted: Converted) -> None:
    decay = weights["language_model.model.layers.1.self_attn.A_log"]
    converted["blk.1.ssm_a"] = decay[: miniature.HEADS], "F32"


def taken_twice(_: Weights, converted: Converted) -> None:
    array, kind = converted["blk.1.ssm_a"]
    converted["blk.1.ssm_a"] = -np.exp(array), kind


def one_code(_: Weights, converted: Converted) -> None:
    def change(blocks: NDArray[Any]) -> NDArray[Any]:
        blocks[3, 90, 1, 7] ^= 1
        return blocks

    experts(converted, change)


def one_row_of_the_trunk(_: Weights, converted: Converted) -> None:
    array, _ = converted["blk.1.ffn_gate_inp.weight"]
    array[2] = array[1]


@pytest.mark.parametrize(
    ("plant", "mistake", "part", "number"),
    [
        pytest.param(nibbles, Mistake.NIBBLES, "routed_experts", 12, id="nibbles"),
        pytest.param(halves, Mistake.HALVES, "routed_experts", 12, id="halves"),
        pytest.param(shifted, Mistake.SCALE_SHIFTED, "routed_experts", 12, id="QNT-07-shifted"),
        pytest.param(neighbour, Mistake.SCALE_NEIGHBOUR, "routed_experts", 12, id="neighbour"),
        pytest.param(permuted, Mistake.EXPERTS, "routed_experts", 9, id="permuted"),
        pytest.param(
            exchange("blk.1.ffn_{}_exps"), Mistake.GATE_UP, "routed_experts", 8, id="experts-gate-up"
        ),
        pytest.param(
            exchange("blk.2.ffn_{}_shexp"), Mistake.GATE_UP, "shared_experts", 2, id="shared-gate-up"
        ),
        pytest.param(exchange("blk.0.ffn_{}"), Mistake.GATE_UP, "dense_mlp", 2, id="dense-gate-up"),
        pytest.param(turned, Mistake.TRANSPOSED, "latent_projections", 1, id="transposed"),
        pytest.param(
            turned_in_its_shape, Mistake.TRANSPOSED, "latent_projections", 1, id="transposed-same-shape"
        ),
        pytest.param(keys_not_turned, Mistake.TRANSPOSED, "mla_attention", 1, id="keys-not-transposed"),
        pytest.param(twice, Mistake.TWICE, "kda_attention", 1, id="twice"),
        pytest.param(experts_in_another_type, Mistake.TWICE, "routed_experts", 12, id="mxfp4-to-q4_0"),
        pytest.param(flushed, Mistake.FLUSHED, "routed_experts", 1, id="flushed"),
        pytest.param(not_a_number, Mistake.NAN, "routed_experts", 3, id="QNT-07-nan"),
        pytest.param(times("output.weight", 1e8, "F16"), Mistake.NOT_FINITE, "lm_head", 1, id="infinite-f16"),
        pytest.param(infinite, Mistake.NOT_FINITE, "norms", 1, id="infinite-mix"),
        pytest.param(
            times("output.weight", 1.03, "BF16"), Mistake.ALTERED, "lm_head", 1, id="three-per-cent"
        ),
        pytest.param(times("blk.1.ffn_norm.weight", 1.001, "F32"), Mistake.ALTERED, "norms", 1, id="norm"),
        pytest.param(
            times("blk.1.ffn_res_score.weight", 1.001, "F32"), Mistake.ALTERED, "norms", 1, id="mix"
        ),
        pytest.param(through_eight_bits, Mistake.ALTERED, "kda_attention", 1, id="bf16-through-q8_0"),
        pytest.param(one_value_of_a_split, Mistake.ALTERED, "mla_attention", 1, id="one-value-of-a-split"),
        pytest.param(split(16, 48), Mistake.SHAPE, "mla_attention", 2, id="half-the-keys"),
        pytest.param(split(48, 32), Mistake.SHAPE, "mla_attention", 2, id="values-taken-for-keys"),
        pytest.param(eight_bits("output.weight", no_scale), Mistake.ZEROED, "lm_head", 1, id="no-scale"),
        pytest.param(
            eight_bits("output.weight", impossible_scale), Mistake.NAN, "lm_head", 1, id="scale-of-q8_0"
        ),
        pytest.param(eight_bits("output.weight", another_row), Mistake.ROWS, "lm_head", 1, id="another-row"),
        pytest.param(beyond_f16, Mistake.NOT_FINITE, "kda_attention", 1, id="beyond-f16"),
        pytest.param(not_a_number_in_both, Mistake.NAN, "routed_experts", 3, id="QNT-07-nan-in-source"),
        pytest.param(padded, Mistake.DECAY_PADDING, "kda_attention", 1, id="decay-padding"),
        pytest.param(left_out, Mistake.DECAY_EXPONENTIAL, "kda_attention", 1, id="decay-left-out"),
        pytest.param(taken_twice, Mistake.DECAY_EXPONENTIAL, "kda_attention", 1, id="decay-twice"),
        pytest.param(one_code, Mistake.ALTERED, "routed_experts", 3, id="one-code"),
        pytest.param(one_row_of_the_trunk, Mistake.ALTERED, "router", 1, id="one-row"),
    ],
)
def test_a_planted_mistake_is_named(
    tmp_path: Path, plant: Plant, mistake: Mistake, part: str, number: int
) -> None:
    weights = miniature.weights()
    converted = miniature.convert(weights)
    plant(weights, converted)
    found = compared(tmp_path, weights, converted)
    told = {(one.mistake, one.part): one.number for one in found.mistakes.values()}
    assert told == {(mistake, part): number}
    assert not found.lossless
    assert (found.lacking, found.added, found.not_read) == (0, 0, 0)
