"""Shapes of models that published measurements are about, so that what they read can be counted. Pure.

From their released config.json (deepseek-ai/DeepSeek-V3, moonshotai/Kimi-K2-Instruct): the fields that give matrices
their shapes, nothing else. R1 has the shapes of V3; K2-Thinking and K2.5 have those of K2, with routed experts at
4 bits, which a plan takes from the quantization that was run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from k3gate.model.shapes import of_config
from k3gate.model.sizes import ModelSizes, kimi_k3

_DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "topk_method": "noaux_tc",
}
KIMI_K2: dict[str, Any] = {
    **_DEEPSEEK_V3,
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
}


@lru_cache(maxsize=8)
def sizes_of(name: str) -> ModelSizes | None:
    """The sizes of a model by the beginning of its published name; None where it is not known here."""
    plain = name.lower().replace("_", "-")
    if plain.startswith(("kimi-k3.", "kimi-k3-1")):
        return None
    if plain.startswith("kimi-k3"):
        return kimi_k3()
    if plain.startswith("kimi-k2"):
        return of_config(KIMI_K2, "config.json of Kimi K2")
    if plain.startswith(("deepseek-v3", "deepseek-r1")):
        return of_config(_DEEPSEEK_V3, "config.json of DeepSeek-V3")
    return None
