"""Kimi K3's checkpoint without its weights: 96 sparse files with true headers, 1.56 TB that take no room.

Names and shapes are those of the released index and modelling code; what is written depends on the shape alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k3gate.model import k3

Spec = tuple[str, str, tuple[int, ...]]
MLA_LAYERS = frozenset({*range(3, 92, 4), 92})
BITS = {"U8": 8, "BF16": 16, "F32": 32}
INNER = k3.HEADS * k3.HEAD_DIM
SHARED = 2 * k3.EXPERT_INTERMEDIATE


def _experts(at: str) -> Iterator[Spec]:
    codes, scales = "weight_packed", "weight_scale"
    for expert in range(k3.EXPERTS):
        for name, rows, columns in (
            ("w1", k3.EXPERT_INTERMEDIATE, k3.EXPERT_WIDTH),
            ("w3", k3.EXPERT_INTERMEDIATE, k3.EXPERT_WIDTH),
            ("w2", k3.EXPERT_WIDTH, k3.EXPERT_INTERMEDIATE),
        ):
            yield f"{at}.experts.{expert}.{name}.{codes}", "U8", (rows, columns // 2)
            yield f"{at}.experts.{expert}.{name}.{scales}", "U8", (rows, columns // k3.MXFP4_BLOCK)


def _attention(at: str, layer: int) -> Iterator[Spec]:
    hidden = k3.HIDDEN
    yield f"{at}.g_proj.weight", "BF16", (INNER, hidden)
    yield f"{at}.o_proj.weight", "BF16", (hidden, INNER)
    if layer in MLA_LAYERS:
        yield f"{at}.q_a_proj.weight", "BF16", (1536, hidden)
        yield f"{at}.q_a_layernorm.weight", "BF16", (1536,)
        yield f"{at}.q_b_proj.weight", "BF16", (18432, 1536)
        yield f"{at}.kv_a_proj_with_mqa.weight", "BF16", (k3.KV_LORA_RANK + k3.ROPE_DIM, hidden)
        yield f"{at}.kv_a_layernorm.weight", "BF16", (k3.KV_LORA_RANK,)
        yield f"{at}.kv_b_proj.weight", "BF16", (24576, k3.KV_LORA_RANK)
        return
    for one in "qkv":
        yield f"{at}.{one}_proj.weight", "BF16", (INNER, hidden)
        yield f"{at}.{one}_conv1d.weight", "F32", (INNER, 1, k3.CONVOLUTION_WIDTH)
    yield f"{at}.f_a_proj.weight", "BF16", (128, hidden)
    yield f"{at}.f_b_proj.weight", "BF16", (INNER, 128)
    yield f"{at}.b_proj.weight", "BF16", (k3.HEADS, hidden)
    yield f"{at}.A_log", "F32", (128,)
    yield f"{at}.dt_bias", "F32", (INNER,)
    yield f"{at}.o_norm.weight", "F32", (k3.HEAD_DIM,)


def layer(number: int) -> Iterator[Spec]:
    """The tensors of a layer, counted from 0."""
    at, hidden = f"language_model.model.layers.{number}", k3.HIDDEN
    if number:
        moe = f"{at}.block_sparse_moe"
        yield from _experts(moe)
        yield f"{moe}.gate.weight", "BF16", (k3.EXPERTS, hidden)
        yield f"{moe}.gate.e_score_correction_bias", "F32", (k3.EXPERTS,)
        yield f"{moe}.routed_expert_down_proj.weight", "BF16", (k3.EXPERT_WIDTH, hidden)
        yield f"{moe}.routed_expert_up_proj.weight", "BF16", (hidden, k3.EXPERT_WIDTH)
        yield f"{moe}.routed_expert_norm.weight", "BF16", (k3.EXPERT_WIDTH,)
        yield f"{moe}.shared_experts.gate_proj.weight", "BF16", (SHARED, hidden)
        yield f"{moe}.shared_experts.up_proj.weight", "BF16", (SHARED, hidden)
        yield f"{moe}.shared_experts.down_proj.weight", "BF16", (hidden, SHARED)
    else:
        yield f"{at}.mlp.gate_proj.weight", "BF16", (33792, hidden)
        yield f"{at}.mlp.up_proj.weight", "BF16", (33792, hidden)
        yield f"{at}.mlp.down_proj.weight", "BF16", (hidden, 33792)
    yield from _attention(f"{at}.self_attn", number)
    for one in ("input_layernorm", "post_attention_layernorm"):
        yield f"{at}.{one}.weight", "BF16", (hidden,)
    for one in ("self_attention_res", "mlp_res"):
        yield f"{at}.{one}_norm.weight", "BF16", (hidden,)
        yield f"{at}.{one}_proj.weight", "BF16", (1, hidden)


def _vision() -> Iterator[Spec]:
    at, width, inner = "vision_tower", 1024, 4096
    yield f"{at}.patch_embed.proj.weight", "BF16", (width, 3, 14, 14)
    yield f"{at}.patch_embed.pos_emb.weight", "BF16", (64, 64, width)
    for block in range(27):
        one = f"{at}.encoder.blocks.{block}"
        yield f"{one}.norm0.weight", "BF16", (width,)
        yield f"{one}.norm1.weight", "BF16", (width,)
        yield f"{one}.wqkv.weight", "BF16", (3 * 1536, width)
        yield f"{one}.wo.weight", "BF16", (width, 1536)
        yield f"{one}.mlp.fc0.weight", "BF16", (inner, width)
        yield f"{one}.mlp.fc1.weight", "BF16", (width, inner)
    yield f"{at}.encoder.final_layernorm.weight", "BF16", (width,)


def shard(number: int) -> list[Spec]:
    """The tensors of a shard, counted from 1 as its file's name does: a layer each, then what is in none."""
    if number <= k3.LAYERS:
        return list(layer(number - 1))
    if number == 94:
        table = (163_840, k3.HIDDEN)
        return [
            ("language_model.model.embed_tokens.weight", "BF16", table),
            ("language_model.lm_head.weight", "BF16", table),
            ("language_model.model.norm.weight", "BF16", (k3.HIDDEN,)),
            ("language_model.model.output_attn_res_norm.weight", "BF16", (k3.HIDDEN,)),
            ("language_model.model.output_attn_res_proj.weight", "BF16", (1, k3.HIDDEN)),
        ]
    if number == 95:
        wide = 4096
        return [
            ("mm_projector.post_norm.weight", "BF16", (k3.HIDDEN,)),
            ("mm_projector.proj.0.weight", "BF16", (wide, wide)),
            ("mm_projector.proj.2.weight", "BF16", (k3.HIDDEN, wide)),
        ]
    return list(_vision())


def config() -> dict[str, Any]:
    """The fields of the released config.json that an inspection reads."""
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "hidden_size": k3.HIDDEN,
            "num_hidden_layers": k3.LAYERS,
            "vocab_size": 163_840,
            "first_k_dense_replace": 1,
            "num_experts": k3.EXPERTS,
            "num_experts_per_token": k3.EXPERTS_PER_TOKEN,
            "num_shared_experts": 2,
            "moe_intermediate_size": k3.EXPERT_INTERMEDIATE,
            "routed_expert_hidden_size": k3.EXPERT_WIDTH,
            "intermediate_size": 33792,
            "kv_lora_rank": k3.KV_LORA_RANK,
            "qk_rope_head_dim": k3.ROPE_DIM,
            "max_position_embeddings": k3.MAX_CONTEXT,
            "linear_attn_config": {
                "full_attn_layers": [one + 1 for one in sorted(MLA_LAYERS)],
                "kda_layers": [one + 1 for one in range(k3.LAYERS) if one not in MLA_LAYERS],
                "head_dim": k3.HEAD_DIM,
                "num_heads": k3.HEADS,
                "short_conv_kernel_size": k3.CONVOLUTION_WIDTH,
            },
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"},
                    }
                },
                "ignore": [
                    "re:.*self_attn.*",
                    "re:.*shared_experts.*",
                    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                    "re:.*lm_head.*",
                    "re:.*vision_tower.*",
                    "re:.*mm_projector.*",
                ],
            },
        },
        "vision_config": {"num_hidden_layers": 27, "hidden_size": 1024},
    }


def write(folder: Path) -> None:
    """All shards, the index and the config; the shards are sparse."""
    weight_map: dict[str, str] = {}
    total = 0
    for number in range(1, 97):
        name = f"model-{number:05d}-of-000096.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for tensor, dtype, shape in shard(number):
            size = math.prod(shape) * BITS[dtype] // 8
            header[tensor] = {
                "dtype": dtype,
                "shape": list(shape),
                "data_offsets": [position, position + size],
            }
            weight_map[tensor] = name
            position += size
        raw = json.dumps(header, separators=(",", ":")).encode()
        with (folder / name).open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(8 + len(raw) + position)
        total += position
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(config(), indent=2))
