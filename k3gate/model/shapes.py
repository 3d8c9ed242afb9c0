"""Sizes of a model from its config.json alone, by the shapes that its architecture gives its matrices. Pure.

An estimate where no tensors are at hand: it agrees to the byte with Kimi K3's released index and with the published
parameter counts of DeepSeek-V3, Mixtral and Qwen3-MoE (a test holds it to them). Biases, and heads for
multi-token prediction, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from k3gate.errors import UsageError
from k3gate.model import k3
from k3gate.model.checkpoint import config
from k3gate.model.sizes import EMBEDDING, ROUTED, TRUNK, VISION, Group, ModelSizes

_FP8_BITS = 8 + 32 / (128 * 128)
"""A byte a weight and an F32 scale for each 128 x 128 of them (DeepSeek-V3)."""


def of_config(whole: Mapping[str, Any], name: str) -> ModelSizes:
    """Sizes from a config; `name`: of its file. `UsageError` names the field without which nothing can be said."""
    reader = _Reader(config.language(whole), name)
    stated = config.of_config(whole)
    kimi = stated.model_type == "kimi_k3"
    hidden, layers = reader.need("hidden_size", "dim"), reader.need("num_hidden_layers", "n_layers")
    moe = _expert_layers(reader, stated, layers)
    groups, values, state, convolution = _layers(reader, stated, hidden, layers, moe)
    vocabulary = reader.need("vocab_size")
    groups.append(Group("embed_tokens", TRUNK if stated.tied else EMBEDDING, *_plain(vocabulary * hidden)))
    if not stated.tied:
        groups.append(Group("lm_head", TRUNK, *_plain(vocabulary * hidden)))
    if stated.vision and kimi:
        for part in ("vision_tower", "mm_projector"):
            groups.append(Group(part, VISION, k3.BYTES_BY_GROUP[part], k3.PARAMETERS_BY_GROUP[part]))
    notes = ["sizes follow from config.json by the usual shapes of its architecture, not from tensors"]
    if stated.vision and not kimi:
        notes.append("the part for images is not counted: its sizes are not told by rules known here")
    if reader.get("num_nextn_predict_layers"):
        notes.append("layers for multi-token prediction are not counted")
    return ModelSizes(
        name="Kimi K3" if kimi else (stated.model_type or "a model without a name").replace("_", "-"),
        source=f"{name} alone",
        groups=tuple(group for group in groups if group.bytes),
        layers=layers,
        expert_layers=moe or None,
        experts=stated.experts if moe else None,
        experts_per_token=stated.experts_per_token if moe else None,
        expert_width=stated.expert_width or hidden,
        hidden=hidden,
        kv_bytes_per_token=2 * values,
        state_bytes=state,
        convolution_bytes=convolution,
        max_context=stated.context,
        notes=tuple(notes),
    )


class _Reader:
    """Whole numbers of a config by any of their names."""

    def __init__(self, source: Mapping[str, Any], name: str) -> None:
        self.source, self.name = source, name

    def get(self, *names: str) -> int | None:
        values = (self.source.get(one) for one in names)
        return next((value for value in values if type(value) is int and 0 <= value < 2**40), None)

    def need(self, *names: str) -> int:
        found = self.get(*names)
        if not found:
            raise UsageError(f"{self.name}: {names[0]} is missing: give the config.json of a language model")
        return found


def _plain(parameters: int) -> tuple[int, int]:
    """Bytes in BF16, and parameters."""
    return 2 * parameters, parameters


def _expert_layers(reader: _Reader, stated: config.Stated, layers: int) -> int:
    if not stated.experts:
        return 0
    if not stated.experts_per_token:
        raise UsageError(f"{reader.name}: num_experts_per_tok is missing: how many experts a token uses")
    step = max(1, reader.get("moe_layer_freq", "decoder_sparse_step") or 1)
    return len(range(stated.dense_layers or 0, layers, step))


def _layers(
    reader: _Reader, stated: config.Stated, hidden: int, layers: int, moe: int
) -> tuple[list[Group], int, int, int]:
    """Groups of all layers, numbers in the KV cache for a token, bytes of state and of convolution inputs."""
    told = _quantization(reader, stated)
    linear = len(stated.linear_attention_layers or ())
    full = layers - linear
    groups: list[Group] = []
    if moe:
        groups += _experts(reader, stated, hidden, moe)
    matrices, vectors, values = _attention(reader, hidden)
    kind = "mla_attention" if reader.get("kv_lora_rank") else "attention"
    groups.append(Group(kind, TRUNK, *_stored(full * matrices, full * vectors, _bits(told, "self_attn."))))
    state = convolution = 0
    if linear:
        kda, state, convolution = _kda(reader, hidden)
        groups.append(Group("kda_attention", TRUNK, linear * kda[0], linear * kda[1]))
    dense = layers - moe
    if dense:
        intermediate = reader.need("intermediate_size", "inter_dim")
        groups.append(
            Group(
                "dense_mlp", TRUNK, *_stored(dense * 3 * intermediate * hidden, 0, _bits(told, "mlp.up_proj"))
            )
        )
    residual = 4 if reader.get("attn_res_block_size") else 0
    norms = (2 + residual) * layers + (3 if residual else 1)
    groups.append(Group("norms", TRUNK, *_plain(norms * hidden)))
    return groups, full * values, linear * state, linear * convolution


def _experts(reader: _Reader, stated: config.Stated, hidden: int, moe: int) -> list[Group]:
    experts = stated.experts or 0
    intermediate = stated.expert_intermediate or reader.need("intermediate_size", "inter_dim")
    width = stated.expert_width or hidden
    routed = moe * experts * 3 * intermediate * width
    told = _quantization(reader, stated)
    # The router and the projections to the latent width are plain though no pattern says so: facts of Kimi K3.
    bias = moe * experts if reader.source.get("topk_method") == "noaux_tc" else 0
    groups = [
        Group("routed_experts", ROUTED, *_stored(routed, 0, _bits(told, ".experts.0."))),
        Group("router", TRUNK, 2 * moe * experts * hidden + 4 * bias, moe * experts * hidden + bias),
    ]
    shared = (stated.shared_experts or 0) * intermediate
    shared = shared or (reader.get("shared_expert_intermediate_size") or 0)
    if shared:
        size = moe * 3 * shared * hidden
        groups.append(Group("shared_experts", TRUNK, *_stored(size, 0, _bits(told, "shared_experts."))))
    if width != hidden:
        norm = width if reader.source.get("latent_moe_use_norm") else 0
        groups.append(Group("latent_projections", TRUNK, *_plain(moe * (2 * width * hidden + norm))))
    return groups


def _attention(reader: _Reader, hidden: int) -> tuple[int, int, int]:
    """Numbers in matrices and in norms of a layer of full attention, and what a token leaves in its cache."""
    heads = reader.need("num_attention_heads", "n_heads")
    latent = reader.get("kv_lora_rank")
    if latent:
        plain, turned = reader.need("qk_nope_head_dim"), reader.need("qk_rope_head_dim")
        value, query = reader.need("v_head_dim"), reader.get("q_lora_rank")
        matrices = hidden * (latent + turned) + latent * heads * (plain + value) + heads * value * hidden
        matrices += (
            heads * (plain + turned) * query + hidden * query if query else hidden * heads * (plain + turned)
        )
        if reader.source.get("mla_use_output_gate") is True:
            matrices += hidden * heads * value
        return matrices, latent + (query or 0), latent + turned
    size = reader.get("head_dim") or hidden // heads
    keys = reader.get("num_key_value_heads") or heads
    matrices = 2 * hidden * heads * size + 2 * hidden * keys * size
    norms = 2 * size if str(reader.source.get("model_type", "")).startswith("qwen3") else 0
    return matrices, norms, 2 * keys * size


def _kda(reader: _Reader, hidden: int) -> tuple[tuple[int, int], int, int]:
    """(bytes, parameters) of a layer of Kimi delta attention, bytes of its state and of its convolutions' inputs."""
    linear = _Reader(reader.source["linear_attn_config"], f"{reader.name}, linear_attn_config")
    heads, size = linear.need("num_heads"), linear.need("head_dim")
    kernel = linear.need("short_conv_kernel_size")
    inner = heads * size
    matrices = 5 * inner * hidden + heads * hidden + size * hidden + inner * size
    plain = 3 * inner * kernel + inner + 2 * size  # convolutions, dt_bias, A_log as stored, o_norm: F32
    state = 4 * heads * size * size
    return (2 * matrices + 4 * plain, matrices + plain), state, 4 * 3 * inner * (kernel - 1)


def _stored(matrices: int, vectors: int, bits: float | None) -> tuple[int, int]:
    """Bytes and parameters: matrices at `bits` (None: BF16), norms in BF16."""
    size = 2 * matrices if bits is None else math.ceil(matrices * bits / 8)
    return size + 2 * vectors, matrices + vectors


def _bits(told: Mapping[str, Any] | None, module: str) -> float | None:
    """Bits of a weight of `module` with its share of the scale; None where it is not quantized."""
    if told is None:
        return None
    if told.get("quant_method") == "fp8":
        return _FP8_BITS
    bits = config.code_bits(told)
    if bits is None or any(_names(pattern, module) for pattern in config.ignored(told)):
        return None
    group = config.code_group(told)
    scale = 8 if "mxfp4" in str(told.get("format")) else 16
    return bits + (scale / group if group else 0)


def _quantization(reader: _Reader, stated: config.Stated) -> Mapping[str, Any] | None:
    """The quantization of the weights; DeepSeek's own configs say it by the type alone."""
    if stated.quantization is None and reader.source.get("dtype") == "fp8":
        return {"quant_method": "fp8"}
    return stated.quantization


def _names(pattern: str, module: str) -> bool:
    """Whether an entry of an ignore list speaks of a module; a pattern is read as text and never run."""
    plain = pattern.removeprefix("re:").replace("\\", "").replace(".*", "")
    if "(" in plain:
        head, _, rest = plain.partition("(")
        choices = rest.partition(")")[0].split("|")
        return any(f"{head}{choice}".strip("^$") in module for choice in choices)
    return bool(plain) and plain.strip("^$.") in module.strip(".")
