"""A miniature's GGUF read back: names, types, and numbers that are folded, split and stacked."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from miniature import kimi_gguf, weights
from miniature.shape import SMALL
from numpy.typing import NDArray


def _numbers(tensor: gguf.ReaderTensor) -> NDArray[np.float32]:
    shape = tuple(int(one) for one in tensor.shape[::-1])
    return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type)).reshape(shape)


@pytest.mark.parametrize("trunk", ["bf16", "q8_0", "mxfp4"])
def test_a_gguf_says_what_the_weights_say(tmp_path: Path, trunk: str) -> None:
    types = weights.Types(trunk, "mxfp4", "f32")
    made = weights.random_weights(SMALL, 8, types)
    path = tmp_path / "miniature.gguf"
    kimi_gguf.write(path, SMALL, made, types)
    found = {one.name: one for one in gguf.GGUFReader(path).tensors}
    kind = gguf.GGMLQuantizationType[trunk.upper()]

    assert found["blk.0.attn_q.weight"].tensor_type == kind
    assert np.array_equal(
        _numbers(found["blk.0.attn_q.weight"]), made["model.layers.0.self_attn.q_proj.weight"].numbers()
    )
    experts = _numbers(found["blk.1.ffn_down_exps.weight"])
    assert found["blk.1.ffn_down_exps.weight"].tensor_type == gguf.GGMLQuantizationType.MXFP4
    for expert in range(SMALL.experts):
        name = f"model.layers.1.block_sparse_moe.experts.{expert}.w2.weight"
        assert np.array_equal(experts[expert], made[name].numbers())
    both = made["model.layers.3.self_attn.kv_b_proj.weight"].numbers()
    both = both.reshape(SMALL.heads, 2 * SMALL.head_dim, SMALL.cache_rank)
    assert found["blk.3.attn_k_b.weight"].tensor_type == kind
    keys, values = _numbers(found["blk.3.attn_k_b.weight"]), _numbers(found["blk.3.attn_v_b.weight"])
    assert np.array_equal(keys, both[:, : SMALL.head_dim].transpose(0, 2, 1))
    assert np.array_equal(values, both[:, SMALL.head_dim :])
    # What is folded: the exponential of the heads that exist, and both vectors of a mix.
    decay = -np.exp(made["model.layers.0.self_attn.A_log"].numbers()[: SMALL.heads])
    assert _numbers(found["blk.0.ssm_a"]) == pytest.approx(decay, rel=1e-6)
    mix = [made[f"model.layers.5.mlp_res_{one}.weight"].numbers() for one in ("norm", "proj")]
    assert _numbers(found["blk.5.ffn_res_score.weight"]) == pytest.approx(mix[0] * mix[1], rel=1e-6)
    # Gates of KDA and of MLA have one name in the checkpoint and two here.
    assert ("blk.0.ssm_g.weight" in found, "blk.0.attn_gate.weight" in found) == (True, False)
    assert ("blk.3.ssm_g.weight" in found, "blk.3.attn_gate.weight" in found) == (False, True)
    assert len(found) == len(set(found)) == _count()


def _count() -> int:
    """Of the checkpoint less one of each mix, with experts stacked, and kv_b_proj in two."""
    single = [name for name, _ in SMALL.kinds() if ".experts." not in name and "_res_norm" not in name]
    stacked = 3 * sum(not SMALL.is_dense(layer) for layer in range(SMALL.layers))
    return len(single) + stacked + sum(SMALL.is_mla(layer) for layer in range(SMALL.layers))
