"""Sizes of models: built-in facts, an inspected checkpoint and a bare config say the same; other models are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.errors import UsageError
from k3gate.model import k3, sizes
from k3gate.model.checkpoint.documents import document
from k3gate.model.shapes import of_config

K3_CONFIG = Path(__file__).resolve().parents[3] / "shared" / "k3" / "config.json"
DEEPSEEK = Path(__file__).resolve().parents[3] / "shared" / "machines" / "model-deepseek-v3-671b-config"
SAME = ("layers", "expert_layers", "experts", "experts_per_token", "expert_width", "hidden", "max_context")
STATE = ("kv_bytes_per_token", "state_bytes", "convolution_bytes")


def test_parameters_by_group_add_up() -> None:
    assert sum(k3.PARAMETERS_BY_GROUP.values()) == k3.TOTAL_PARAMETERS
    found = sizes.kimi_k3()
    assert found.bytes == 1_560_860_324_864
    assert found.parameters == 2_779_931_837_184
    assert found.active_parameters == 104_189_614_848
    assert found.bytes_of(sizes.TRUNK, sizes.Q8_0_BITS) == k3.TRUNK_Q8_0_READ_BYTES
    assert found.expert_bytes() == 17_547_264


def alike(found: sizes.ModelSizes, fields: tuple[str, ...]) -> None:
    built = sizes.kimi_k3()
    assert {group.name: group for group in found.groups} == {group.name: group for group in built.groups}
    for name in fields:
        assert getattr(found, name) == getattr(built, name), name


@pytest.mark.xdist_group("kimi-k3")
def test_an_inspected_checkpoint_and_what_inspect_wrote_have_the_built_in_sizes(inspected: Any) -> None:
    alike(sizes.of_inspection(inspected), SAME + STATE)
    told = json.loads(json.dumps(document(inspected)))
    alike(sizes.of_document(told, "k3.json"), SAME + STATE)


@pytest.mark.skipif(not K3_CONFIG.exists(), reason="the released config is not beside the checkout")
def test_the_released_config_alone_has_the_built_in_sizes() -> None:
    alike(of_config(json.loads(K3_CONFIG.read_text()), "config.json"), SAME + STATE)


INSPECTED = {
    "architecture": "mixtral",
    "digest": "sha256:0123",
    "groups": {"routed_experts": {"bytes": 80, "parameters": 40}, "lm_head": {"bytes": 20, "parameters": 10}},
    "layers": {"total": 4, "with_experts": 4},
    "experts": {"per_layer": 8, "per_token": 2},
    "kv_bytes_per_token": 7,
    "state_bytes_per_sequence": 0,
    "context": None,
}


def test_a_document_of_another_model_is_read() -> None:
    found = sizes.of_document(INSPECTED, "other.json")
    assert (found.name, found.bytes, found.active_parameters) == ("mixtral", 100, 20)
    assert found.max_context is None


@pytest.mark.parametrize(
    "spoil", [{"groups": 3}, {"groups": {"a": {}}}, {"experts": None}, {"layers": {}}, {"context": -1}]
)
def test_a_document_that_is_no_inspection_is_refused(spoil: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is no inspection"):
        sizes.of_document({**INSPECTED, **spoil}, "other.json")


MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
QWEN3 = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
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
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
KIMI_K2 = {
    **DEEPSEEK_V3,
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "num_nextn_predict_layers": 0,
}


@pytest.mark.parametrize(
    ("config", "total", "active", "cache"),
    [
        (MIXTRAL, 46.70e9, 12.75e9, 32 * 2 * 8 * 128 * 2),
        (QWEN3, 235.09e9, 21.6e9, 94 * 2 * 4 * 128 * 2),
        (DEEPSEEK_V3, 671.03e9, 36.6e9, 61 * 576 * 2),
        (KIMI_K2, 1026.4e9, 31.7e9, 61 * 576 * 2),
    ],
    ids=["mixtral-8x7b", "qwen3-235b", "deepseek-v3", "kimi-k2"],
)
def test_published_models_are_counted_from_their_configs(
    config: dict[str, Any], total: float, active: float, cache: int
) -> None:
    """Totals as their authors publish them: 46.7B, 235B, 671B and 1T; active ones without the embedding table."""
    found = of_config(config, "config.json")
    assert found.parameters == pytest.approx(total, rel=1e-3)
    assert found.active_parameters == pytest.approx(active, rel=1e-2)
    assert found.kv_bytes_per_token == cache


def test_fp8_is_a_byte_a_weight_and_plain_parts_are_two() -> None:
    groups = {group.name: group for group in of_config(DEEPSEEK_V3, "config.json").groups}
    assert groups["routed_experts"].bytes == pytest.approx(
        groups["routed_experts"].parameters * (1 + 4 / 128**2)
    )
    assert groups["lm_head"].bytes == 2 * groups["lm_head"].parameters


@pytest.mark.skipif(not DEEPSEEK.exists(), reason="the captured configs are not beside the checkout")
def test_deepseeks_own_names_are_read() -> None:
    found = of_config(json.loads((DEEPSEEK / "config_671B.json").read_text()), "config_671B.json")
    by_hugging_face = of_config(DEEPSEEK_V3, "config.json")
    assert found.parameters == pytest.approx(by_hugging_face.parameters, rel=1e-6)


@pytest.mark.parametrize("lost", ["hidden_size", "num_hidden_layers", "vocab_size", "num_experts_per_tok"])
def test_a_config_without_what_decides_is_refused(lost: str) -> None:
    with pytest.raises(UsageError, match=r"config\.json: \w+ is missing"):
        of_config({key: value for key, value in QWEN3.items() if key != lost}, "config.json")


def test_bits_are_unknown_where_parameters_are() -> None:
    group = sizes.Group("a", sizes.TRUNK, 100)
    assert group.at(None) == 100
    assert group.at(8.5) is None
    assert attrs.evolve(sizes.kimi_k3(), groups=(group,)).bytes_of(sizes.TRUNK, 8.5) is None
