"""What a comparison says of whole conversions: lossless ones, lossy ones by their numbers, damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from k3gate.errors import UsageError
from k3gate.model.checkpoint import files
from k3gate.model.conversion import comparison
from k3gate.model.conversion.comparison import Compared
from k3gate.model.conversion.mistakes import Mistake
from k3gate.model.formats import floats, mxfp4
from tests.model.conversion import miniature
from tests.model.conversion.miniature import Weights

ROUTED = "language_model.model.layers.1.block_sparse_moe.experts"


def run(source: Path, converted: Path, processes: int = 1) -> Compared:
    task = comparison.prepare(files.find(source), files.find(converted))
    return comparison.compare(task, processes, lambda _: None)


@pytest.fixture
def weights() -> Weights:
    return miniature.weights()


@pytest.fixture
def source(tmp_path: Path, weights: Weights) -> Path:
    return miniature.write_checkpoint(tmp_path / "source", weights)


@pytest.mark.parametrize("trunk", ["F32", "BF16"])
def test_a_repack_by_the_package_gguf_is_lossless(
    tmp_path: Path, weights: Weights, source: Path, trunk: str
) -> None:
    """Repacked experts, folded residual mixes, split keys and values, the decay of the heads that exist."""
    converted = miniature.write_gguf(tmp_path / "k3.gguf", miniature.convert(weights, trunk))
    found = run(source, converted, processes=2)
    assert found.lossless
    assert sum(part.weights for part in found.parts.values()) == 96
    assert dict(found.left_out) == {"vision_tower": 1, "mm_projector": 1}
    assert found.parts["routed_experts"].exact == 2 * 3 * miniature.EXPERTS
    told = comparison.document(found)
    assert told["lossless"] is True and told["mistakes"] == []
    assert {layer["layer"] for layer in told["groups"]["routed_experts"]["layers"]} == {1, 2}


def test_how_the_files_are_cut_makes_no_difference(tmp_path: Path, weights: Weights) -> None:
    """QNT-10: codes and scales of one expert in different shards."""
    names = sorted(weights, key=lambda name: (name.endswith("_scale"), name))
    source = miniature.write_checkpoint(
        tmp_path / "source", {name: weights[name] for name in names}, shards=7
    )
    converted = miniature.write_gguf(tmp_path / "k3.gguf", miniature.convert(weights, "BF16"))
    assert run(source, converted).lossless


def test_the_error_of_a_type_is_what_it_is_by_hand(tmp_path: Path, weights: Weights, source: Path) -> None:
    converted = miniature.write_gguf(tmp_path / "k3.gguf", miniature.convert(weights, "Q8_0"))
    found = run(source, converted)
    numbers = np.asarray(weights["language_model.lm_head.weight"], np.float32)
    eight = gguf.GGMLQuantizationType.Q8_0
    rounded = gguf.dequantize(gguf.quantize(numbers, eight), eight)
    part = found.parts["lm_head"]
    error = (rounded - numbers).astype(np.float64)
    assert part.sums.nmse == pytest.approx(
        (error**2).sum() / (numbers.astype(np.float64) ** 2).sum(), rel=1e-4
    )
    assert part.sums.largest == pytest.approx(np.abs(error).max(), rel=1e-6)
    assert part.sums.cosine == pytest.approx(1 - part.sums.nmse / 2, abs=1e-6)
    assert not found.mistakes and not found.lossless


def q4_k(numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows in blocks of Q4_K, plainly rounded: eight groups of 32 with a 6-bit scale and a 6-bit minimum each."""
    groups = numbers.reshape(*numbers.shape[:-1], -1, 8, 32)
    low = np.minimum(groups.min(-1), 0)
    scale, least = (groups.max(-1) - low) / 15, -low
    d = (scale.max(-1, keepdims=True) / 63).astype(np.float16)
    dmin = (least.max(-1, keepdims=True) / 63).astype(np.float16)
    six = np.rint(scale / np.maximum(d.astype(np.float32), 1e-12)).astype(np.uint8)
    six_min = np.rint(least / np.maximum(dmin.astype(np.float32), 1e-12)).astype(np.uint8)
    step = (d.astype(np.float32) * six)[..., None]
    floor = (dmin.astype(np.float32) * six_min)[..., None]
    codes = np.clip(np.rint((groups + floor) / np.where(step > 0, step, 1)), 0, 15).astype(np.uint8)
    packed = np.empty((*six.shape[:-1], 12), np.uint8)
    packed[..., 0:4] = (six[..., 0:4] & 63) | ((six[..., 4:8] >> 4) << 6)
    packed[..., 4:8] = (six_min[..., 0:4] & 63) | ((six_min[..., 4:8] >> 4) << 6)
    packed[..., 8:12] = (six[..., 4:8] & 15) | ((six_min[..., 4:8] & 15) << 4)
    nibbles = (codes[..., 0::2, :] | (codes[..., 1::2, :] << 4)).reshape(*codes.shape[:-2], 128)
    raw = np.concatenate((d.view(np.uint8), dmin.view(np.uint8), packed, nibbles), axis=-1)
    return raw.reshape(*numbers.shape[:-1], -1)


def test_a_q4_k_conversion_gets_its_numbers(tmp_path: Path, weights: Weights, source: Path) -> None:
    converted = miniature.convert(weights, "Q8_0")
    numbers, _ = converted["blk.1.attn_q.weight"]
    raw = q4_k(numbers)
    converted["blk.1.attn_q.weight"] = raw, "Q4_K"
    found = run(source, miniature.write_gguf(tmp_path / "k3.gguf", converted))
    back = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K)
    error = float(((back - numbers) ** 2).sum() / (numbers**2).sum())
    assert 1e-3 < error < 1e-2
    worst, weight = found.parts["kda_attention"].worst
    assert (worst, weight) == (pytest.approx(error, rel=1e-4), "layer 1 attn_q")
    assert not found.mistakes


def dequantized(weights: Weights) -> Weights:
    """The experts as plain numbers, under the names that they then have."""
    found: Weights = {}
    for name, array in weights.items():
        if name.endswith(".weight_packed"):
            owner = name.removesuffix(".weight_packed")
            numbers = mxfp4.decode(array, weights[f"{owner}.weight_scale"])
            found[f"{owner}.weight"] = numbers.astype(ml_dtypes.bfloat16)
        elif not name.endswith(".weight_scale"):
            found[name] = array
    return found


def test_experts_as_plain_numbers_are_lossless(tmp_path: Path, weights: Weights, source: Path) -> None:
    converted = miniature.write_checkpoint(tmp_path / "plain", dequantized(weights))
    found = run(source, converted)
    assert found.lossless and not found.left_out
    assert set(found.parts["routed_experts"].codings) == {"MXFP4 to BF16"}


def test_fp8_with_factors_of_blocks_is_decoded(tmp_path: Path, weights: Weights, source: Path) -> None:
    """QNT-11: weight_scale_inv multiplies, whatever its name says."""
    plain = dict(weights)
    owner = "language_model.model.layers.1.self_attn.q_proj"
    numbers = np.asarray(plain.pop(f"{owner}.weight"), np.float32)
    factor = np.abs(numbers).max() / 448
    plain[f"{owner}.weight"] = (numbers / factor).astype(ml_dtypes.float8_e4m3fn)
    plain[f"{owner}.weight_scale_inv"] = np.full((1, 2), factor, np.float32)
    found = run(source, miniature.write_checkpoint(tmp_path / "fp8", plain))
    error, weight = found.parts["kda_attention"].worst
    assert weight == "layer 1 attn_q"
    assert 3e-4 < error < 1e-3
    assert not found.not_read and not found.mistakes


def test_int4_in_words_is_decoded(tmp_path: Path, weights: Weights, source: Path) -> None:
    plain = dict(weights)
    name = f"{ROUTED}.0.w1"
    numbers = mxfp4.decode(plain[f"{name}.weight_packed"], plain[f"{name}.weight_scale"])
    groups = numbers.reshape(miniature.INNER, -1, 32)
    factors = np.abs(groups).max(-1, keepdims=True) / 7
    codes = (np.rint(groups / factors) + 8).astype(np.uint32).reshape(miniature.INNER, -1, 8)
    words = (codes << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32).view(np.int32)
    plain[f"{name}.weight_packed"] = words
    plain[f"{name}.weight_scale"] = factors[..., 0].astype(np.float32)
    found = run(source, miniature.write_checkpoint(tmp_path / "int4", plain))
    back = (np.rint(groups / factors) * factors).reshape(numbers.shape)
    error = float(((back - numbers) ** 2).sum() / (numbers**2).sum())
    assert found.parts["routed_experts"].worst == (
        pytest.approx(error, rel=1e-3),
        "layer 1 ffn_gate_exps of expert 0",
    )
    assert {one.mistake for one in found.mistakes.values()} == {Mistake.TWICE}


def test_what_is_missing_added_or_unreadable_is_told(tmp_path: Path, weights: Weights, source: Path) -> None:
    converted = miniature.convert(weights)
    del converted["blk.2.attn_v_b.weight"]
    converted["blk.0.attn_sinks.weight"] = np.ones(4, np.float32), "F32"
    converted["rope_freqs.weight"] = np.ones(16, np.float32), "F32"
    found = run(source, miniature.write_gguf(tmp_path / "k3.gguf", converted))
    assert (found.lacking, found.missing) == (1, ["layer 2 attn_kv_b"])
    assert (found.added, found.unknown) == (1, ["layer 0 attn_sinks"])
    assert not found.lossless
    path = miniature.write_gguf(tmp_path / "cut.gguf", miniature.convert(weights))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)
    cut = run(source, path)
    assert cut.not_read > 0 and "ends at byte" in cut.unread[0]


def test_what_is_missing_in_several_layers_is_counted(tmp_path: Path, weights: Weights, source: Path) -> None:
    converted = miniature.convert(weights)
    for name in (
        "blk.0.attn_norm.weight",
        "blk.2.attn_norm.weight",
        "blk.1.attn_k.weight",
        "output_norm.weight",
    ):
        del converted[name]
    found = run(source, miniature.write_gguf(tmp_path / "k3.gguf", converted))
    assert found.lacking == 4
    assert set(found.missing) == {"output_norm", "layer 0 attn_norm", "layer 1 attn_k", "layer 2 attn_norm"}
    assert set(found.left_out) == {"vision_tower", "mm_projector"}


def test_scales_that_were_never_written_are_noted(tmp_path: Path, weights: Weights) -> None:
    """QNT-07."""
    weights[f"{ROUTED}.1.w1.weight_scale"][:] = 0
    source = miniature.write_checkpoint(tmp_path / "source", weights)
    found = run(source, miniature.write_gguf(tmp_path / "k3.gguf", miniature.convert(weights, "BF16")))
    assert found.lossless and "1 weight of the source with scales that are all the byte 0" in found.notes[0]


def test_a_decay_in_half_precision_is_a_loss_and_no_alteration(
    tmp_path: Path, weights: Weights, source: Path
) -> None:
    converted = miniature.convert(weights, "BF16")
    array, _ = converted["blk.1.ssm_a"]
    converted["blk.1.ssm_a"] = array, "F16"
    found = run(source, miniature.write_gguf(tmp_path / "k3.gguf", converted))
    assert not found.mistakes and 0 < found.parts["kda_attention"].worst[0] < 1e-6


def test_a_scale_that_is_nowhere_is_no_number(tmp_path: Path, weights: Weights) -> None:
    """QNT-11."""
    converted = miniature.write_gguf(tmp_path / "k3.gguf", miniature.convert(weights))
    del weights[f"{ROUTED}.3.w2.weight_scale"]
    found = run(miniature.write_checkpoint(tmp_path / "source", weights), converted)
    assert found.not_read == 1
    assert "codes without a scale" in found.unread[0]


def test_scales_of_f8_e8m0_are_those_of_bytes(tmp_path: Path, weights: Weights, source: Path) -> None:
    """QNT-06: a byte of scale is an exponent, whether the file calls it U8 or F8_E8M0."""
    told = (source / "model-00001-of-000002.safetensors").read_bytes()
    assert weights[f"{ROUTED}.0.w1.weight_scale"].dtype == np.uint8
    other = tmp_path / "e8m0"
    miniature.write_checkpoint(other, weights)
    length = int.from_bytes(told[:8], "little")
    header = told[8 : 8 + length].decode()
    named = header.replace('.weight_scale": {"dtype": "U8"', '.weight_scale": {"dtype": "F8_E8M0"')
    assert named != header
    raw = named.encode()
    (other / "model-00001-of-000002.safetensors").write_bytes(
        len(raw).to_bytes(8, "little") + raw + told[8 + length :]
    )
    assert run(source, other).lossless
    assert "F8_E8M0" in floats.TYPES


def test_sides_that_cannot_belong_together_are_refused(
    tmp_path: Path, weights: Weights, source: Path
) -> None:
    converted = miniature.write_gguf(tmp_path / "k3.gguf", miniature.convert(weights))
    with pytest.raises(UsageError, match="give the checkpoint that it was made of as SOURCE"):
        run(converted, source)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(UsageError, match="nothing can be compared"):
        run(source, broken)


def test_other_models_are_named_by_the_package_gguf(tmp_path: Path) -> None:
    """A DeepSeek of one layer, whose experts are plain: names of its architecture, not of Kimi K3."""
    rng = np.random.default_rng(3)

    def plain(*shape: int) -> NDArray[Any]:
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)

    at = "model.layers.0"
    weights: Weights = {
        "model.embed_tokens.weight": plain(64, 64),
        f"{at}.self_attn.q_a_proj.weight": plain(32, 64),
        f"{at}.self_attn.o_proj.weight": plain(64, 64),
        f"{at}.mlp.gate.weight": plain(2, 64),
        **{
            f"{at}.mlp.experts.{expert}.{name}_proj.weight": plain(*shape)
            for expert in range(2)
            for name, shape in (("gate", (32, 64)), ("up", (32, 64)), ("down", (64, 32)))
        },
    }
    source = miniature.write_checkpoint(tmp_path / "deepseek", weights, shards=1)
    writer = gguf.GGUFWriter(tmp_path / "deepseek.gguf", "deepseek2")
    numbers = {name: np.asarray(array, np.float32) for name, array in weights.items()}
    for ours, theirs in (
        ("token_embd", "model.embed_tokens"),
        ("blk.0.attn_q_a", f"{at}.self_attn.q_a_proj"),
        ("blk.0.attn_output", f"{at}.self_attn.o_proj"),
        ("blk.0.ffn_gate_inp", f"{at}.mlp.gate"),
    ):
        writer.add_tensor(f"{ours}.weight", numbers[f"{theirs}.weight"])
    for name in ("gate", "up", "down"):
        stacked = np.stack([numbers[f"{at}.mlp.experts.{expert}.{name}_proj.weight"] for expert in range(2)])
        writer.add_tensor(f"blk.0.ffn_{name}_exps.weight", stacked)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = run(source, tmp_path / "deepseek.gguf")
    assert (found.lacking, found.added, found.not_read) == (0, 0, 0)
    assert found.lossless
