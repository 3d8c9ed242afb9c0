"""A Kimi K3 of a few megabytes: the names, layouts and kinds of layers of the real one, random weights of small sizes.

It is written as the checkpoint stores it and, by the package gguf, as llama.cpp's converter does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from k3gate.model.formats import mxfp4

HIDDEN, WIDTH, INNER, EXPERTS, HEADS, HEAD, LATENT, PADDED = 256, 128, 96, 4, 4, 32, 64, 6
KEYS, VALUES = 32, 48
LAYERS = 3
FULL = 2
"""The layer of MLA; the others are KDA, the first of them dense."""

Weights = dict[str, NDArray[Any]]
_TYPES = {
    "uint8": "U8",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int32": "I32",
    "float8_e4m3fn": "F8_E4M3",
}


def weights(seed: int = 7) -> Weights:
    """All tensors by their names in the checkpoint."""
    rng = np.random.default_rng(seed)

    def plain(*shape: int) -> NDArray[Any]:
        return (rng.standard_normal(shape) * 0.05).astype(ml_dtypes.bfloat16)

    found: Weights = {}
    for layer in range(LAYERS):
        at = f"language_model.model.layers.{layer}"
        if layer:
            moe = f"{at}.block_sparse_moe"
            for expert in range(EXPERTS):
                for name, rows, columns in (("w1", INNER, WIDTH), ("w3", INNER, WIDTH), ("w2", WIDTH, INNER)):
                    one = f"{moe}.experts.{expert}.{name}"
                    found[f"{one}.weight_packed"] = rng.integers(0, 256, (rows, columns // 2), np.uint8)
                    found[f"{one}.weight_scale"] = rng.integers(112, 124, (rows, columns // 32), np.uint8)
            found[f"{moe}.gate.weight"] = plain(EXPERTS, HIDDEN)
            found[f"{moe}.gate.e_score_correction_bias"] = rng.standard_normal(EXPERTS).astype(np.float32)
            found[f"{moe}.routed_expert_down_proj.weight"] = plain(WIDTH, HIDDEN)
            found[f"{moe}.routed_expert_up_proj.weight"] = plain(HIDDEN, WIDTH)
            found[f"{moe}.routed_expert_norm.weight"] = plain(WIDTH)
            for name, rows, columns in (
                ("gate", INNER, HIDDEN),
                ("up", INNER, HIDDEN),
                ("down", HIDDEN, INNER),
            ):
                found[f"{moe}.shared_experts.{name}_proj.weight"] = plain(rows, columns)
        else:
            for name, rows, columns in (
                ("gate", INNER, HIDDEN),
                ("up", INNER, HIDDEN),
                ("down", HIDDEN, INNER),
            ):
                found[f"{at}.mlp.{name}_proj.weight"] = plain(rows, columns)
        attention = f"{at}.self_attn"
        found[f"{attention}.g_proj.weight"] = plain(HEADS * HEAD, HIDDEN)
        found[f"{attention}.o_proj.weight"] = plain(HIDDEN, HEADS * HEAD)
        if layer == FULL:
            found[f"{attention}.q_a_proj.weight"] = plain(LATENT, HIDDEN)
            found[f"{attention}.q_a_layernorm.weight"] = plain(LATENT)
            found[f"{attention}.q_b_proj.weight"] = plain(HEADS * KEYS, LATENT)
            found[f"{attention}.kv_a_proj_with_mqa.weight"] = plain(LATENT + 32, HIDDEN)
            found[f"{attention}.kv_a_layernorm.weight"] = plain(LATENT)
            found[f"{attention}.kv_b_proj.weight"] = plain(HEADS * (KEYS + VALUES), LATENT)
        else:
            for one in "qkv":
                found[f"{attention}.{one}_proj.weight"] = plain(HEADS * HEAD, HIDDEN)
                conv = rng.standard_normal((HEADS * HEAD, 1, 4)).astype(np.float32)
                found[f"{attention}.{one}_conv1d.weight"] = conv
            found[f"{attention}.f_a_proj.weight"] = plain(HEAD, HIDDEN)
            found[f"{attention}.f_b_proj.weight"] = plain(HEADS * HEAD, HEAD)
            found[f"{attention}.b_proj.weight"] = plain(HEADS, HIDDEN)
            decay = np.zeros(PADDED, np.float32)
            decay[:HEADS] = rng.uniform(-1, 2, HEADS)
            found[f"{attention}.A_log"] = decay
            found[f"{attention}.dt_bias"] = rng.standard_normal(HEADS * HEAD).astype(np.float32)
            found[f"{attention}.o_norm.weight"] = rng.standard_normal(HEAD).astype(np.float32)
        for one in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{one}.weight"] = plain(HIDDEN)
        for one in ("self_attention_res", "mlp_res"):
            found[f"{at}.{one}_norm.weight"] = plain(HIDDEN)
            found[f"{at}.{one}_proj.weight"] = plain(1, HIDDEN)
    found["language_model.model.embed_tokens.weight"] = plain(128, HIDDEN)
    found["language_model.lm_head.weight"] = plain(128, HIDDEN)
    found["language_model.model.norm.weight"] = plain(HIDDEN)
    found["language_model.model.output_attn_res_norm.weight"] = plain(HIDDEN)
    found["language_model.model.output_attn_res_proj.weight"] = plain(1, HIDDEN)
    found["vision_tower.patch_embed.proj.weight"] = plain(32, 3, 4, 4)
    found["mm_projector.linear_1.weight"] = plain(HIDDEN, 32)
    return found


def config() -> dict[str, Any]:
    """The config.json that belongs to it."""
    return {
        "model_type": "kimi_k3",
        "architectures": ["KimiK3ForConditionalGeneration"],
        "text_config": {
            "num_hidden_layers": LAYERS,
            "hidden_size": HIDDEN,
            "num_experts": EXPERTS,
            "num_experts_per_token": 2,
            "qk_nope_head_dim": KEYS,
            "v_head_dim": VALUES,
            "linear_attn_config": {"full_attn_layers": [FULL + 1], "kda_layers": [1, 2]},
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
                "ignore": [],
            },
        },
    }


def write_checkpoint(folder: Path, tensors: Mapping[str, NDArray[Any]], *, shards: int = 2) -> Path:
    """The tensors as safetensors in shards with an index, and the config."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    weight_map: dict[str, str] = {}
    total = 0
    for number in range(shards):
        own = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        file = f"model-{number + 1:05d}-of-{shards:06d}.safetensors"
        header: dict[str, Any] = {}
        position = 0
        for name in own:
            array = tensors[name]
            size = array.nbytes
            header[name] = {
                "dtype": _TYPES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [position, position + size],
            }
            position += size
            weight_map[name] = file
        raw = json.dumps(header).encode()
        data = b"".join(np.ascontiguousarray(tensors[name]).tobytes() for name in own)
        (folder / file).write_bytes(len(raw).to_bytes(8, "little") + raw + data)
        total += position
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config()))
    return folder


_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.f_a_proj.weight": "ssm_f_a.weight",
    "self_attn.f_b_proj.weight": "ssm_f_b.weight",
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.routed_expert_down_proj.weight": "ffn_routed_down.weight",
    "block_sparse_moe.routed_expert_up_proj.weight": "ffn_routed_up.weight",
    "block_sparse_moe.routed_expert_norm.weight": "ffn_routed_norm.weight",
    "block_sparse_moe.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "block_sparse_moe.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "block_sparse_moe.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}
_TABLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight",
}

Converted = dict[str, tuple[NDArray[Any], str]]
"""By GGUF name the numbers in float32 with the type to write, or the bytes of MXFP4 blocks."""


def convert(tensors: Mapping[str, NDArray[Any]], trunk: str = "Q8_0") -> Converted:
    """What llama.cpp's converter makes of the checkpoint: experts repacked, matrices of the trunk in `trunk`."""
    found: Converted = {}

    def add(name: str, array: NDArray[Any]) -> None:
        numbers = np.asarray(array, np.float32)
        small = numbers.ndim == 1 or "conv1d" in name or "ffn_gate_inp" in name or numbers.shape[-1] % 32
        found[name] = numbers, "F32" if small else trunk

    text = {name.removeprefix("language_model."): array for name, array in tensors.items()}
    for layer in range(LAYERS):
        at, to = f"model.layers.{layer}.", f"blk.{layer}."
        own = {name.removeprefix(at): array for name, array in text.items() if name.startswith(at)}
        for name, array in own.items():
            if name in _NAMES:
                add(to + _NAMES[name], array)
            elif name == "self_attn.g_proj.weight":
                add(to + ("attn_gate.weight" if layer == FULL else "ssm_g.weight"), array)
            elif "conv1d" in name:
                add(f"{to}ssm_conv1d_{name[10]}.weight", np.reshape(array, (1, -1, 1, 4)))
            elif name == "self_attn.A_log":
                add(f"{to}ssm_a", -np.exp(array[:HEADS]))
            elif name == "self_attn.kv_b_proj.weight":
                both = np.asarray(array, np.float32).reshape(HEADS, KEYS + VALUES, LATENT)
                add(f"{to}attn_k_b.weight", np.ascontiguousarray(both[:, :KEYS].transpose(0, 2, 1)))
                add(f"{to}attn_v_b.weight", both[:, KEYS:])
        for part, ours in (("self_attention_res", "attn_res_score"), ("mlp_res", "ffn_res_score")):
            norm, proj = (
                np.asarray(own[f"{part}_{one}.weight"], np.float32).reshape(-1) for one in ("norm", "proj")
            )
            add(f"{to}{ours}.weight", norm * proj)
        if layer:
            for name, ours in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
                blocks = [
                    mxfp4.to_ggml(
                        own[f"block_sparse_moe.experts.{expert}.{name}.weight_packed"],
                        own[f"block_sparse_moe.experts.{expert}.{name}.weight_scale"],
                    )
                    for expert in range(EXPERTS)
                ]
                stacked = np.stack(blocks)
                found[f"{to}ffn_{ours}_exps.weight"] = stacked.reshape(*stacked.shape[:2], -1), "MXFP4"
    for name, ours in _TABLE.items():
        add(ours, text[name])
    norm, proj = (
        np.asarray(text[f"model.output_attn_res_{one}.weight"], np.float32).reshape(-1)
        for one in ("norm", "proj")
    )
    add("output_res_score.weight", norm * proj)
    return found


def write_gguf(path: Path, converted: Converted) -> Path:
    """A GGUF file of Kimi K3, by the package gguf."""
    writer = gguf.GGUFWriter(path, "kimi-k3")
    writer.add_block_count(LAYERS)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    for key in ("attn_res.block_size", "activation.situ_beta", "expert_latent_length"):
        writer.add_uint32(f"kimi-k3.{key}", 12)
    for name, (array, kind) in converted.items():
        number = gguf.GGMLQuantizationType[kind]
        if array.dtype == np.uint8:
            writer.add_tensor(name, array, raw_dtype=number)
        elif kind == "F32":
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
        else:
            with np.errstate(over="ignore"):
                raw = gguf.quantize(np.ascontiguousarray(array, np.float32), number)
            writer.add_tensor(name, raw, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
