"""A miniature as a GGUF of architecture kimi-k3, as llama.cpp's conversion/kimi_k3.py makes one of the checkpoint.

What its converter folds is folded here too, always in F32: the norm and the projection of each mix of the residual
become their product, A_log becomes -exp(A_log) of the heads that exist. kv_b_proj is split by heads into keys,
transposed, and values, which must not round again: its blocks are square. Without `letters` there is no tokenizer:
tokens are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from k3gate.model.checkpoint import names
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.model.conversion.naming import Scheme

from . import reference
from .shape import Kind, Shape
from .weights import Types, Weights

_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "mxfp4": gguf.GGMLQuantizationType.MXFP4,
}
_NO_WEIGHT = {"ssm_a": "ssm_a", "ssm_dt": "ssm_dt.bias", "exp_probs_b": "exp_probs_b.bias"}
_MIXES = {
    "attn_res_proj": "attn_res_norm",
    "ffn_res_proj": "ffn_res_norm",
    "output_res_proj": "output_res_norm",
}
_CONTEXT = 4096


class _Tensor(NamedTuple):
    name: str
    type: str
    shape: tuple[int, ...]
    """As numpy has it, in numbers."""
    bytes: Callable[[Weights], NDArray[np.uint8]]


def write(path: Path, shape: Shape, weights: Weights, types: Types, letters: bool = False) -> None:
    """Write the file, a tensor at a time: `weights`, of these types, may make each when it is asked for.

    `letters`: with a vocabulary of bytes, for a server; else tokens are numbers.
    """
    writer = gguf.GGUFWriter(path, KIMI_K3)
    _describe(writer, shape)
    if letters:
        _spell(writer, shape)
    else:
        writer.add_tokenizer_model("no_vocab")
    tensors = list(_tensors(shape, types))
    for one in tensors:
        kind = _TYPES[one.type]
        size, stored = gguf.GGML_QUANT_SIZES[kind]
        row = one.shape[-1] // size * stored
        stated = (*one.shape[:-1], row)
        writer.add_tensor_info(one.name, stated, np.dtype(np.uint8), int(np.prod(stated)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for one in tensors:
        writer.write_tensor_data(one.bytes(weights))
    writer.close()


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("miniature")
    numbers = {
        "vocab_size": shape.vocabulary,
        "context_length": _CONTEXT,
        "block_count": shape.layers,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.dense_inner,
        "attention.head_count": shape.heads,
        "attention.q_lora_rank": shape.query_rank,
        "attention.kv_lora_rank": shape.cache_rank,
        "attention.key_length": shape.cache_rank + shape.rest,
        "attention.value_length": shape.cache_rank,
        "attention.key_length_mla": shape.key,
        "attention.value_length_mla": shape.head_dim,
        "rope.dimension_count": shape.rest,
        "ssm.conv_kernel": shape.convolution,
        "kda.head_dim": shape.head_dim,
        "expert_count": shape.experts,
        "expert_used_count": shape.used,
        "expert_shared_count": shape.shared,
        "expert_feed_forward_length": shape.inner,
        "expert_latent_length": shape.width,
        "leading_dense_block_count": shape.dense_layers,
        "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID.value,
        "attn_res.block_size": shape.block_layers,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"{KIMI_K3}.{name}", number)
    for name, real in {
        "attention.layer_norm_rms_epsilon": reference.EPSILON,
        "kda.gate_lower_bound": reference.LOWER_BOUND,
        "activation.situ_beta": reference.SITU_GATE,
        "activation.situ_linear_beta": reference.SITU_UP,
        "expert_weights_scale": 1.0,
    }.items():
        writer.add_float32(f"{KIMI_K3}.{name}", real)
    writer.add_bool(f"{KIMI_K3}.expert_weights_norm", True)
    # A layer without keys and values of heads is a recurrent one.
    heads = [int(shape.is_mla(layer)) for layer in range(shape.layers)]
    writer.add_array(f"{KIMI_K3}.attention.head_count_kv", heads)


def _spell(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """A token for each byte, three marks before them, and what is left of the vocabulary unused."""
    marks = {
        b"<unk>": gguf.TokenType.UNKNOWN,
        b"<s>": gguf.TokenType.CONTROL,
        b"</s>": gguf.TokenType.CONTROL,
    }
    names = [*marks, *(b"<0x%02X>" % byte for byte in range(256))]
    kinds = [*marks.values(), *[gguf.TokenType.BYTE] * 256]
    if shape.vocabulary < len(names):
        raise ValueError(f"a vocabulary of {shape.vocabulary} has no room for {len(names)} tokens")
    rest = shape.vocabulary - len(names)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*names, *(b"<unused%d>" % number for number in range(rest))])
    writer.add_token_scores([0.0] * shape.vocabulary)
    writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * rest])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")


def _tensors(shape: Shape, types: Types) -> Iterator[_Tensor]:
    recurrent = [layer for layer in range(shape.layers) if not shape.is_mla(layer)]
    scheme = Scheme(KIMI_K3, shape.layers, recurrent)
    for source, kind in shape.kinds():
        _, place = names.read(source)
        found = scheme.name(source, place)
        at = "" if found.layer is None else f"blk.{found.layer}."
        if found.expert is not None:
            if found.expert == 0:
                yield _stacked(source, f"{at}{found.weight}.weight", kind, shape.experts, types.experts)
        elif found.weight in _MIXES.values():
            continue  # comes with its projection
        elif found.weight in _MIXES:
            name = f"{at}{found.weight.replace('_proj', '_score')}.weight"
            yield _single(name, kind.shape, _Product(source, source.replace("_proj.", "_norm.")))
        elif found.weight == "ssm_a":
            yield _single(f"{at}ssm_a", (shape.heads,), _Decay(source, shape.heads))
        elif found.weight == "attn_kv_b":
            yield from _split(source, at, shape, types.trunk)
        else:
            name = at + _NO_WEIGHT.get(found.weight, f"{found.weight}.weight")
            # Vectors are F32 in any GGUF.
            stored = types.of(kind) if kind.part in ("matrix", "router") else "f32"
            yield _Tensor(name, stored, kind.shape, _Same(source, stored))


def _single(name: str, shape: tuple[int, ...], make: Callable[[Weights], NDArray[np.float64]]) -> _Tensor:
    """Of a vector that is folded."""
    return _Tensor(
        name, "f32", shape, lambda weights: make(weights).astype(np.float32).reshape(shape).view(np.uint8)
    )


def _stacked(source: str, name: str, kind: Kind, count: int, stored: str) -> _Tensor:
    """One matrix of all experts of a layer, `source` being that of expert 0."""

    def make(weights: Weights) -> NDArray[np.uint8]:
        return np.stack(
            [weights[source.replace(".experts.0.", f".experts.{i}.")].ggml() for i in range(count)]
        )

    return _Tensor(name, stored, (count, *kind.shape), make)


def _split(source: str, at: str, shape: Shape, stored: str) -> Iterator[_Tensor]:
    """Keys [heads, cache_rank, head_dim] and values [heads, head_dim, cache_rank]."""
    size = shape.head_dim

    def keys(weights: Weights) -> NDArray[np.uint8]:
        both = weights[source]
        heads = [both.rows(2 * size * i, 2 * size * i + size).transposed() for i in range(shape.heads)]
        return np.stack([one.ggml() for one in heads])

    def values(weights: Weights) -> NDArray[np.uint8]:
        both = weights[source]
        heads = [both.rows(2 * size * i + size, 2 * size * (i + 1)) for i in range(shape.heads)]
        return np.stack([one.ggml() for one in heads])

    yield _Tensor(f"{at}attn_k_b.weight", stored, (shape.heads, shape.cache_rank, size), keys)
    yield _Tensor(f"{at}attn_v_b.weight", stored, (shape.heads, size, shape.cache_rank), values)


class _Same(NamedTuple):
    source: str
    stored: str

    def __call__(self, weights: Weights) -> NDArray[np.uint8]:
        found = weights[self.source]
        if found.type == self.stored:
            return found.ggml()
        if self.stored != "f32":
            raise ValueError(f"{self.source} is {found.type}, not {self.stored}")
        return found.numbers().astype(np.float32).view(np.uint8)


class _Product(NamedTuple):
    proj: str
    norm: str

    def __call__(self, weights: Weights) -> NDArray[Any]:
        # In F32, as the converter has it.
        return weights[self.norm].numbers().astype(np.float32) * weights[self.proj].numbers().astype(
            np.float32
        )


class _Decay(NamedTuple):
    source: str
    heads: int

    def __call__(self, weights: Weights) -> NDArray[Any]:
        return -np.exp(weights[self.source].numbers()[: self.heads])
