"""Other models than Kimi K3, and K3 as GGUF: read and counted by the same code, and never taken for one another."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from k3gate.model import k3
from k3gate.model.checkpoint import config, files, gguf
from k3gate.model.checkpoint.documents import document
from k3gate.model.checkpoint.inspection import inspect
from tests.model.checkpoint.kimi_k3 import INNER, MLA_LAYERS, SHARED
from tests.model.checkpoint.test_gguf import pair, tensor, text

MACHINES = Path(__file__).resolve().parents[4] / "shared" / "machines"
WIZARD = MACHINES / "model-wizardlm2-8x22b"
NUMBER = {name: number for number, (name, _, _) in gguf.TYPES.items()}


@pytest.mark.skipif(not MACHINES.exists(), reason="the captured models are not beside the checkout")
@pytest.mark.parametrize(
    ("file", "layers", "dense", "experts", "used", "width"),
    [
        ("model-deepseek-v3-671b-config/config_671B.json", 61, 3, 256, 8, 2048),
        ("model-deepseek-v3-671b-config/config_v3.1.json", 61, 3, 256, 8, 2048),
        ("model-deepseek-236b-16b-config/config_236B.json", 60, 1, 160, 6, 1536),
        ("model-deepseek-236b-16b-config/config_16B.json", 27, 1, 64, 6, 1408),
    ],
)
def test_configs_of_deepseek_are_read(
    file: str, layers: int, dense: int, experts: int, used: int, width: int
) -> None:
    stated = config.of_config(json.loads((MACHINES / file).read_text()))
    assert (stated.layers, stated.dense_layers, stated.experts) == (layers, dense, experts)
    assert (stated.experts_per_token, stated.expert_intermediate, stated.kv_lora_rank) == (used, width, 512)


def mixtral_shape(name: str, told: dict[str, Any]) -> tuple[int, ...]:
    hidden, inner = told["hidden_size"], told["intermediate_size"]
    heads = hidden // told["num_attention_heads"]
    narrow = told["num_key_value_heads"] * heads
    for ending, shape in (
        ("embed_tokens.weight", (told["vocab_size"], hidden)),
        ("lm_head.weight", (told["vocab_size"], hidden)),
        ("w2.weight", (hidden, inner)),
        ("w1.weight", (inner, hidden)),
        ("w3.weight", (inner, hidden)),
        ("gate.weight", (told["num_local_experts"], hidden)),
        ("k_proj.weight", (narrow, hidden)),
        ("v_proj.weight", (narrow, hidden)),
        ("q_proj.weight", (hidden, hidden)),
        ("o_proj.weight", (hidden, hidden)),
    ):
        if name.endswith(ending):
            return shape
    return (hidden,)


@pytest.mark.skipif(not WIZARD.exists(), reason="the captured model is not beside the checkout")
def test_a_mixtral_of_eight_experts_is_counted(tmp_path: Path) -> None:
    told = json.loads((WIZARD / "config.json").read_text())
    index = json.loads((WIZARD / "model.safetensors.index.json").read_text())
    shards: dict[str, list[str]] = {}
    for name, file in index["weight_map"].items():
        shards.setdefault(file, []).append(name)
    for file, names in shards.items():
        header, position = {}, 0
        for name in names:
            shape = mixtral_shape(name, told)
            size = 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
            position += size
        raw = json.dumps(header).encode()
        with (tmp_path / file).open("wb") as stream:
            stream.write(len(raw).to_bytes(8, "little") + raw)
            stream.truncate(8 + len(raw) + position)
    for name in ("config.json", "model.safetensors.index.json"):
        (tmp_path / name).write_bytes((WIZARD / name).read_bytes())
    found = inspect(files.find(tmp_path))
    assert found.findings == ()
    assert found.architecture.name == "mixtral"
    assert (found.content.tensors, found.content.bytes, found.shards.expected) == (1739, 281_241_268_224, 59)
    assert (len(found.content.layers), found.content.experts, found.experts_per_token) == (56, 8, 2)
    assert {layer.attention for layer in found.content.layers} == {"attention"}
    # 56 layers, 8 heads of 128 for keys and for values, in BF16.
    assert document(found)["kv_bytes_per_token"] == 56 * 2 * 8 * 128 * 2
    routed = 56 * 8 * 3 * 6144 * 16384
    assert found.active_parameters == found.content.parameters - 32_000 * 6144 - routed * 6 // 8


def gguf_tensors() -> list[tuple[str, str, tuple[int, ...]]]:
    """Kimi K3's language part as llama.cpp's converter names it: experts in MXFP4, the trunk in Q8_0."""
    hidden = k3.HIDDEN
    found: list[tuple[str, str, tuple[int, ...]]] = [
        ("token_embd.weight", "Q8_0", (163_840, hidden)),
        ("output.weight", "Q8_0", (163_840, hidden)),
        ("output_norm.weight", "F32", (hidden,)),
        ("output_res_score.weight", "F32", (hidden,)),
    ]
    for layer in range(k3.LAYERS):
        at = f"blk.{layer}"
        rows: list[tuple[str, str, tuple[int, ...]]] = [
            ("attn_norm.weight", "F32", (hidden,)),
            ("ffn_norm.weight", "F32", (hidden,)),
            ("attn_res_score.weight", "F32", (hidden,)),
            ("ffn_res_score.weight", "F32", (hidden,)),
            ("attn_output.weight", "Q8_0", (hidden, INNER)),
            ("attn_gate.weight" if layer in MLA_LAYERS else "ssm_g.weight", "Q8_0", (INNER, hidden)),
        ]
        if layer in MLA_LAYERS:
            rows += [
                ("attn_q_a.weight", "Q8_0", (1536, hidden)),
                ("attn_q_a_norm.weight", "F32", (1536,)),
                ("attn_q_b.weight", "Q8_0", (18_432, 1536)),
                ("attn_kv_a_mqa.weight", "Q8_0", (k3.KV_LORA_RANK + k3.ROPE_DIM, hidden)),
                ("attn_kv_a_norm.weight", "F32", (k3.KV_LORA_RANK,)),
                ("attn_k_b.weight", "Q8_0", (k3.HEADS, k3.KV_LORA_RANK, 128)),
                ("attn_v_b.weight", "Q8_0", (k3.HEADS, 128, k3.KV_LORA_RANK)),
            ]
        else:
            rows += [(f"attn_{one}.weight", "Q8_0", (INNER, hidden)) for one in "qkv"]
            rows += [(f"ssm_conv1d_{one}.weight", "F32", (1, INNER, 1, 4)) for one in "qkv"]
            rows += [
                ("ssm_f_a.weight", "Q8_0", (128, hidden)),
                ("ssm_f_b.weight", "Q8_0", (INNER, 128)),
                ("ssm_beta.weight", "Q8_0", (k3.HEADS, hidden)),
                ("ssm_a", "F32", (k3.HEADS,)),
                ("ssm_dt.bias", "F32", (INNER,)),
                ("ssm_norm.weight", "F32", (k3.HEAD_DIM,)),
            ]
        if layer:
            wide = (k3.EXPERTS, k3.EXPERT_INTERMEDIATE, k3.EXPERT_WIDTH)
            rows += [
                ("ffn_gate_exps.weight", "MXFP4", wide),
                ("ffn_up_exps.weight", "MXFP4", wide),
                ("ffn_down_exps.weight", "MXFP4", (k3.EXPERTS, k3.EXPERT_WIDTH, k3.EXPERT_INTERMEDIATE)),
                ("ffn_gate_inp.weight", "F32", (k3.EXPERTS, hidden)),
                ("exp_probs_b.bias", "F32", (k3.EXPERTS,)),
                ("ffn_routed_down.weight", "Q8_0", (k3.EXPERT_WIDTH, hidden)),
                ("ffn_routed_up.weight", "Q8_0", (hidden, k3.EXPERT_WIDTH)),
                ("ffn_routed_norm.weight", "F32", (k3.EXPERT_WIDTH,)),
                ("ffn_gate_shexp.weight", "Q8_0", (SHARED, hidden)),
                ("ffn_up_shexp.weight", "Q8_0", (SHARED, hidden)),
                ("ffn_down_shexp.weight", "Q8_0", (hidden, SHARED)),
            ]
        else:
            rows += [
                ("ffn_gate.weight", "Q8_0", (33_792, hidden)),
                ("ffn_up.weight", "Q8_0", (33_792, hidden)),
                ("ffn_down.weight", "Q8_0", (hidden, 33_792)),
            ]
        found += [(f"{at}.{name}", kind, shape) for name, kind, shape in rows]
    return found


def write_gguf(path: Path, *, keys: tuple[str, ...], label: str = "2.8T.A104B") -> None:
    """A sparse file of K3 with these keys beside those that every converter writes."""
    numbers = {
        "block_count": k3.LAYERS,
        "embedding_length": k3.HIDDEN,
        "vocab_size": 163_840,
        "expert_count": k3.EXPERTS,
        "expert_used_count": k3.EXPERTS_PER_TOKEN,
        "expert_feed_forward_length": k3.EXPERT_INTERMEDIATE,
        "context_length": k3.MAX_CONTEXT,
        "leading_dense_block_count": 1,
        **dict.fromkeys(keys, k3.EXPERT_WIDTH),
    }
    full = [int(layer in MLA_LAYERS) for layer in range(k3.LAYERS)]
    pairs = [
        pair("general.architecture", 8, text("kimi-k3")),
        pair("general.size_label", 8, text(label)),
        pair("kimi-k3.attention.head_count_kv", 9, struct.pack(f"<IQ{k3.LAYERS}I", 4, k3.LAYERS, *full)),
        *(pair(f"kimi-k3.{key}", 4, struct.pack("<I", value)) for key, value in numbers.items()),
    ]
    rows, offset = [], 0
    for name, kind, shape in gguf_tensors():
        rows.append(tensor(name, shape, NUMBER[kind], offset))
        _, block, size = gguf.TYPES[NUMBER[kind]]
        offset += -(-(math.prod(shape) // block * size) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(pairs)) + b"".join((*pairs, *rows))
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(-(-len(head) // 32) * 32 + offset)


MAIN = ("attn_res.block_size", "activation.situ_beta", "expert_latent_length")


def test_kimi_k3_as_gguf_is_counted_and_known(tmp_path: Path) -> None:
    path = tmp_path / "kimi-k3.gguf"
    write_gguf(path, keys=MAIN)
    found = inspect(files.find(path))
    assert found.findings == ()
    told = document(found)
    assert told["architecture"] == "kimi-k3"
    assert told["bytes"]["groups"]["routed_experts"] == k3.ROUTED_BYTES
    assert told["layers"] == {"total": 93, "attention": {"kda": 69, "mla": 24}, "with_experts": 92}
    assert (told["experts"]["per_layer"], told["experts"]["bytes"]) == (896, k3.EXPERT_BYTES)
    assert (told["kv_bytes_per_token"], told["state_bytes_per_sequence"]) == (27_648, 464_633_856)
    assert told["bytes_per_token"]["routed"] == 25_829_572_608
    # What the converter leaves out: padding of A_log, and one of two vectors of each mix.
    lost = 69 * 32 + (2 * k3.LAYERS + 1) * k3.HIDDEN
    assert told["parameters"]["total"] == k3.TRUNK_PARAMETERS + 82_432 * k3.EXPERT_PARAMETERS - lost


def test_the_label_of_a_converter_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "kimi-k3.gguf"
    write_gguf(path, keys=MAIN, label="2.8T.A50B")
    wrong = next(one for one in inspect(files.find(path)).findings if one.code == "label_wrong")
    assert "A50B" in wrong.observed and wrong.expected == "104.2B"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            ("attnres.block_size", "situ.beta", "latent_moe.dim"),
            "the dialect of another converter (attnres.block_size",
        ),
        (MAIN[:2], "without the keys expert_latent_length"),
    ],
)
def test_a_dialect_that_llama_cpp_cannot_load_is_named(
    tmp_path: Path, keys: tuple[str, ...], words: str
) -> None:
    path = tmp_path / "kimi-k3.gguf"
    write_gguf(path, keys=keys)
    found = inspect(files.find(path))
    assert words in next(one for one in found.findings if one.code == "gguf_dialect").observed
