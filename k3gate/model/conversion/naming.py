"""One name for a weight, however a file calls it: that of llama.cpp's main branch, where it has one. Pure.

Names of Kimi K3 follow llama.cpp's conversion/kimi_k3.py; those of other models come from the package gguf.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from k3gate.model.checkpoint import names
from k3gate.model.checkpoint.architecture import KIMI_K3

if TYPE_CHECKING:
    import gguf

_PREFIXES = ("language_model.", "model.language_model.")
_LAYER = re.compile(r"(?:model\.)?layers\.(\d{1,5})\.(.+)", re.ASCII)
_EXPERT = {
    **dict.fromkeys(("w1", "gate_proj", "gate"), "gate"),
    **dict.fromkeys(("w3", "up_proj", "up"), "up"),
    **dict.fromkeys(("w2", "down_proj", "down"), "down"),
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attention_res_norm": "attn_res_norm",
    "self_attention_res_proj": "attn_res_proj",
    "mlp_res_norm": "ffn_res_norm",
    "mlp_res_proj": "ffn_res_proj",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.q_conv1d": "ssm_conv1d_q",
    "self_attn.k_conv1d": "ssm_conv1d_k",
    "self_attn.v_conv1d": "ssm_conv1d_v",
    "self_attn.f_a_proj": "ssm_f_a",
    "self_attn.f_b_proj": "ssm_f_b",
    "self_attn.b_proj": "ssm_beta",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt",
    "self_attn.o_norm": "ssm_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b",
    "block_sparse_moe.routed_expert_down_proj": "ffn_routed_down",
    "block_sparse_moe.routed_expert_up_proj": "ffn_routed_up",
    "block_sparse_moe.routed_expert_norm": "ffn_routed_norm",
    "block_sparse_moe.shared_experts.gate_proj": "ffn_gate_shexp",
    "block_sparse_moe.shared_experts.up_proj": "ffn_up_shexp",
    "block_sparse_moe.shared_experts.down_proj": "ffn_down_shexp",
}
_GATE = "self_attn.g_proj"
"""Of KDA layers the gate of the state's output, of MLA layers that of attention: two weights of one name."""
_OUTSIDE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.output_attn_res_norm": "output_res_norm",
    "model.output_attn_res_proj": "output_res_proj",
    "lm_head": "output",
}
_ENDINGS = (".weight", ".bias")
_NO_WEIGHT = ("ssm_dt", "exp_probs_b")
"""What GGUF calls a bias though there is no weight beside it."""


class Name(NamedTuple):
    """A weight: its layer from 0 (None: in none), what it is called there, and which expert's (None: no one's)."""

    layer: int | None
    weight: str
    expert: int | None = None

    def __str__(self) -> str:
        at = "" if self.layer is None else f"layer {self.layer} "
        return f"{at}{self.weight}" + ("" if self.expert is None else f" of expert {self.expert}")


class Scheme:
    """Knows the names of one model. `architecture`: its name in GGUF; `recurrent`: layers of KDA."""

    def __init__(self, architecture: str | None, layers: int, recurrent: Iterable[int] = ()) -> None:
        self._k3 = architecture == KIMI_K3
        self._recurrent = frozenset(recurrent)
        self._library = None if self._k3 else _library(architecture, layers)

    def name(self, tensor: str, place: names.Place) -> Name:
        """What the tensor belongs to. One that no scheme knows keeps the name it has."""
        found = self._found(names.owner(tensor, place), place)
        apart = tensor.endswith(".bias") and found.weight not in _NO_WEIGHT
        return found._replace(weight=f"{found.weight}.bias") if apart else found

    def _found(self, owner: str, place: names.Place) -> Name:
        for prefix in _PREFIXES:
            owner = owner.removeprefix(prefix)
        if owner.startswith("blk."):
            number, _, rest = owner[4:].partition(".")
            return Name(int(number), _bare(rest), place.expert)
        match = _LAYER.fullmatch(owner)
        layer = int(match[1]) if match is not None else None
        if place.part == names.EXPERTS and layer is not None and place.matrix in _EXPERT:
            return Name(layer, f"ffn_{_EXPERT[place.matrix]}_exps", place.expert)
        if match is not None and layer is not None:
            return Name(layer, self._in_layer(layer, match[2], owner))
        return Name(None, _OUTSIDE.get(owner) or self._other(owner) or _bare(owner))

    def _in_layer(self, layer: int, rest: str, owner: str) -> str:
        if rest == _GATE and self._k3:
            return "ssm_g" if layer in self._recurrent else "attn_gate"
        known = _IN_LAYER.get(rest) if self._k3 or self._library is None else None
        return known or self._other(owner) or rest

    def _other(self, owner: str) -> str | None:
        """By the package gguf: without the layer, which it counts as the file does."""
        if self._library is None:
            return None
        found = self._library.get_name(owner, try_suffixes=_ENDINGS)
        if found is None:
            return None
        return _bare(found.split(".", 2)[2] if found.startswith("blk.") else found)


@lru_cache(maxsize=2**12)
def _bare(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def _library(architecture: str | None, layers: int) -> gguf.TensorNameMap | None:
    if architecture is None:
        return None
    import gguf

    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}.get(architecture)
    return None if number is None else gguf.get_tensor_name_map(number, layers)
