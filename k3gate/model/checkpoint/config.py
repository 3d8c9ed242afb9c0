"""What a checkpoint says of itself: the fields of config.json or of a GGUF header, in one vocabulary. Pure.

What it says is held against the tensors; nothing is counted by it but what tensors cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

# Our name of a field, and those of Hugging Face configs, of DeepSeek's own, and of GGUF (below the architecture).
_FIELDS = {
    "layers": ("num_hidden_layers", "n_layers", "block_count"),
    "hidden": ("hidden_size", "dim", "embedding_length"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "expert_count"),
    "experts_per_token": (
        *("num_experts_per_token", "num_experts_per_tok", "n_activated_experts", "moe_k", "moe_topk"),
        "expert_used_count",
    ),
    "shared_experts": ("num_shared_experts", "n_shared_experts", "expert_shared_count"),
    "expert_intermediate": ("moe_intermediate_size", "moe_inter_dim", "expert_feed_forward_length"),
    "expert_width": ("routed_expert_hidden_size", "expert_latent_length"),
    "dense_layers": ("first_k_dense_replace", "n_dense_layers", "leading_dense_block_count"),
    "context": ("max_position_embeddings", "max_seq_len", "context_length"),
    "vocabulary": ("vocab_size",),
    "kv_lora_rank": ("kv_lora_rank", "attention.kv_lora_rank"),
    "head_keys": ("qk_nope_head_dim",),
}
_NESTED = ("text_config", "llm_config", "language_config")
_LONGEST = 200
_MOST_PATTERNS = 1000


@frozen
class Stated:
    """What config or header state; None where they do not. Layers of the lists count from 0, as tensors do.

    `extra` are names of all fields, by which relatives of an architecture are told apart.
    """

    source: str
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    layers: int | None = None
    hidden: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    shared_experts: int | None = None
    expert_intermediate: int | None = None
    expert_width: int | None = None
    dense_layers: int | None = None
    context: int | None = None
    vocabulary: int | None = None
    kv_lora_rank: int | None = None
    head_keys: int | None = None
    full_attention_layers: tuple[int, ...] | None = None
    linear_attention_layers: tuple[int, ...] | None = None
    tied: bool = False
    vision: bool = False
    label: str | None = None
    quantization: Mapping[str, Any] | None = field(default=None, repr=False)
    extra: frozenset[str] = field(factory=frozenset, repr=False)


def of_config(config: Mapping[str, Any]) -> Stated:
    """From a config.json; of a wrapper (text_config beside vision_config) the language part."""
    inner = language(config)
    linear = inner.get("linear_attn_config")
    linear = linear if isinstance(linear, Mapping) else {}
    quantization = inner.get("quantization_config", config.get("quantization_config"))
    names = inner.get("architectures", ()) if inner is config else (*_texts(config), *_texts(inner))
    return Stated(
        "config.json",
        model_type=_text(config.get("model_type")) or _text(inner.get("model_type")),
        architectures=tuple(names) if inner is not config else _texts(config),
        full_attention_layers=_layers(linear.get("full_attn_layers")),
        linear_attention_layers=_layers(linear.get("kda_layers")),
        tied=inner.get("tie_word_embeddings") is True or config.get("tie_word_embeddings") is True,
        vision=isinstance(config.get("vision_config"), Mapping),
        quantization=quantization if isinstance(quantization, Mapping) else None,
        extra=frozenset(map(str, (*config, *inner))),
        **_numbers(inner, ""),
    )


def language(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that tells of the language model: what a wrapper holds, else the whole."""
    return next((config[name] for name in _NESTED if isinstance(config.get(name), Mapping)), config)


def of_gguf(metadata: Mapping[str, object]) -> Stated:
    """From the pairs of a GGUF header. `model_type` None: general.architecture is missing or no text."""
    architecture = _text(metadata.get("general.architecture"))
    counts = metadata.get(f"{architecture}.attention.head_count_kv")
    full = linear = None
    if isinstance(counts, tuple):
        full = tuple(layer for layer, number in enumerate(counts) if number)
        linear = tuple(layer for layer, number in enumerate(counts) if not number)
    return Stated(
        "the GGUF header",
        model_type=architecture,
        architectures=(architecture,) if architecture else (),
        full_attention_layers=full,
        linear_attention_layers=linear,
        label=_text(metadata.get("general.size_label")),
        extra=frozenset(metadata),
        **_numbers(metadata, f"{architecture}."),
    )


def _numbers(source: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ours, theirs in _FIELDS.items():
        values = (source.get(prefix + name) for name in theirs)
        found[ours] = next((v for v in values if type(v) is int and 0 <= v < 2**40), None)
    return found


def _text(value: object) -> str | None:
    return value[:_LONGEST] if isinstance(value, str) and value else None


def _texts(config: Mapping[str, Any]) -> tuple[str, ...]:
    value = config.get("architectures")
    return (
        tuple(one[:_LONGEST] for one in value[:20] if isinstance(one, str)) if isinstance(value, list) else ()
    )


def _layers(value: object) -> tuple[int, ...] | None:
    """A list of layers that counts from 1, counted from 0."""
    if not isinstance(value, list) or not all(type(one) is int and 0 < one < 100_000 for one in value):
        return None
    return tuple(one - 1 for one in value)


def code_bits(quantization: Mapping[str, Any] | None) -> int | None:
    """Bits of a packed code, as a quantization config has them (compressed-tensors, GPTQ, AWQ)."""
    told = quantization or {}
    values = (_of_weights(told).get("num_bits"), told.get("bits"), told.get("w_bit"))
    return next((value for value in values if type(value) is int and value in (2, 3, 4, 8)), None)


def code_group(quantization: Mapping[str, Any] | None) -> int | None:
    """How many weights share a scale, as a quantization config has it."""
    told = quantization or {}
    values = (_of_weights(told).get("group_size"), told.get("group_size"))
    return next((value for value in values if type(value) is int and value > 0), None)


def _of_weights(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """What compressed-tensors has of the weights of its first group; empty where there is none."""
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}


def ignored(quantization: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The entries that name what is not quantized."""
    for name in ("ignore", "modules_to_not_convert", "ignored_layers"):
        value = (quantization or {}).get(name)
        if isinstance(value, list):
            return tuple(one for one in value[:_MOST_PATTERNS] if isinstance(one, str))
    return ()
