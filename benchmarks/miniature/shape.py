"""The widths of a miniature Kimi K3, and the weights that it has by their released names. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attrs import field, frozen, validators

from k3gate.model.formats.mxfp4 import BLOCK

_LEAST = validators.ge(1)
_BLOCKS = validators.and_(
    _LEAST, lambda _, attribute, value: _whole(attribute.name, value)
)  # matrices of these widths are stored in blocks


def _whole(name: str, value: int) -> None:
    if value % BLOCK:
        raise ValueError(f"{name} is {value}: give a multiple of {BLOCK}")


class Kind(NamedTuple):
    """A weight of a model: its shape [out, in] or [length], what stores it, and the deviation of random numbers.

    `part`: "matrix" (the trunk's type), "expert", "router", "vector" (BF16 as released), "single" (F32 as released).
    """

    shape: tuple[int, ...]
    part: str
    mean: float = 0.0
    deviation: float = 0.0


@frozen
class Shape:
    """Widths, by the names of the arithmetic's symbols; those of Kimi K3 are the defaults where there is one."""

    layers: int = field(validator=_LEAST)
    experts: int = field(validator=_LEAST)
    vocabulary: int = field(validator=_LEAST)
    dense_layers: int = field(default=1, validator=validators.ge(0))
    """So many layers at the start have a dense MLP."""
    mla_every: int = field(default=4, validator=_LEAST)
    """Layers mla_every - 1, 2 mla_every - 1 ... are MLA, all others KDA. (Kimi K3's layer 92 is MLA besides.)"""
    hidden: int = field(default=7168, validator=_BLOCKS)
    width: int = field(default=3584, validator=_BLOCKS)
    """At which routed experts work."""
    inner: int = field(default=3072, validator=_BLOCKS)
    used: int = field(default=16, validator=_LEAST)
    shared: int = field(default=2, validator=validators.ge(0))
    heads: int = field(default=96, validator=_LEAST)
    head_dim: int = field(default=128, validator=_BLOCKS)
    query_rank: int = field(default=1536, validator=_BLOCKS)
    cache_rank: int = field(default=512, validator=_BLOCKS)
    rest: int = field(default=64, validator=_BLOCKS)
    """Of a query and key of MLA, what every head shares: no rotary embedding."""
    decay_rank: int = field(default=128, validator=_BLOCKS)
    convolution: int = field(default=4, validator=validators.ge(2))
    dense_inner: int = field(default=33792, validator=_BLOCKS)
    block_layers: int = field(default=12, validator=_LEAST)

    def __attrs_post_init__(self) -> None:
        if self.used > self.experts:
            raise ValueError(f"used is {self.used}, but there are {self.experts} experts")

    def is_mla(self, layer: int) -> bool:
        """Whether a layer, from 0, has full attention."""
        return layer % self.mla_every == self.mla_every - 1

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has a dense MLP in place of experts."""
        return layer < self.dense_layers

    @property
    def across(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of a key of MLA, by which scores are scaled."""
        return self.head_dim + self.rest

    def kinds(self) -> Iterator[tuple[str, Kind]]:
        """All weights by their released names, less the language model's prefix and the endings of packed tensors."""
        yield "model.embed_tokens.weight", Kind((self.vocabulary, self.hidden), "matrix", 0, 1)
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            for name in ("input_layernorm", "post_attention_layernorm"):
                yield f"{at}.{name}.weight", _norm(self.hidden)
            for name in ("self_attention_res", "mlp_res"):
                yield f"{at}.{name}_norm.weight", _norm(self.hidden)
                yield f"{at}.{name}_proj.weight", _mix(self.hidden)
            attention = self._mla() if self.is_mla(layer) else self._kda()
            yield from ((f"{at}.self_attn.{name}", kind) for name, kind in attention)
            if self.is_dense(layer):
                yield from ((f"{at}.mlp.{name}", kind) for name, kind in self._mlp(self.dense_inner))
            else:
                yield from ((f"{at}.block_sparse_moe.{name}", kind) for name, kind in self._moe())
        yield "model.norm.weight", _norm(self.hidden)
        yield "model.output_attn_res_norm.weight", _norm(self.hidden)
        yield "model.output_attn_res_proj.weight", _mix(self.hidden)
        yield "lm_head.weight", _matrix(self.vocabulary, self.hidden)

    def _kda(self) -> Iterator[tuple[str, Kind]]:
        for name in "qkvg":
            yield f"{name}_proj.weight", _matrix(self.across, self.hidden)
        yield "o_proj.weight", _matrix(self.hidden, self.across)
        for name in "qkv":
            yield (
                f"{name}_conv1d.weight",
                Kind((self.across, 1, self.convolution), "single", 0, self.convolution**-0.5),
            )
        yield "f_a_proj.weight", _matrix(self.decay_rank, self.hidden)
        yield "f_b_proj.weight", _matrix(self.across, self.decay_rank)
        yield "b_proj.weight", _matrix(self.heads, self.hidden)
        # Stored longer than there are heads, as released: what is behind them is zero.
        yield "A_log", Kind((max(self.heads, self.head_dim),), "single", 0.5, 0.5)
        yield "dt_bias", Kind((self.across,), "single", -2, 1.5)
        yield "o_norm.weight", Kind((self.head_dim,), "single", 1, 0.1)

    def _mla(self) -> Iterator[tuple[str, Kind]]:
        yield "q_a_proj.weight", _matrix(self.query_rank, self.hidden)
        yield "q_a_layernorm.weight", _norm(self.query_rank)
        yield "q_b_proj.weight", _matrix(self.heads * self.key, self.query_rank)
        yield "kv_a_proj_with_mqa.weight", _matrix(self.cache_rank + self.rest, self.hidden)
        yield "kv_a_layernorm.weight", _norm(self.cache_rank)
        yield "kv_b_proj.weight", _matrix(2 * self.across, self.cache_rank)
        yield "g_proj.weight", _matrix(self.across, self.hidden)
        yield "o_proj.weight", _matrix(self.hidden, self.across)

    def _moe(self) -> Iterator[tuple[str, Kind]]:
        yield "gate.weight", _matrix(self.experts, self.hidden, "router")
        yield "gate.e_score_correction_bias", Kind((self.experts,), "single", 0, 0.05)
        yield "routed_expert_down_proj.weight", _matrix(self.width, self.hidden)
        yield "routed_expert_up_proj.weight", _matrix(self.hidden, self.width)
        yield "routed_expert_norm.weight", _norm(self.width)
        for expert in range(self.experts):
            yield f"experts.{expert}.w1.weight", _matrix(self.inner, self.width, "expert")
            yield f"experts.{expert}.w3.weight", _matrix(self.inner, self.width, "expert")
            yield f"experts.{expert}.w2.weight", _matrix(self.width, self.inner, "expert")
        if self.shared:
            yield from (
                (f"shared_experts.{name}", kind) for name, kind in self._mlp(self.shared * self.inner)
            )

    def _mlp(self, inner: int) -> Iterator[tuple[str, Kind]]:
        yield "gate_proj.weight", _matrix(inner, self.hidden)
        yield "up_proj.weight", _matrix(inner, self.hidden)
        yield "down_proj.weight", _matrix(self.hidden, inner)


def _matrix(rows: int, columns: int, part: str = "matrix") -> Kind:
    return Kind((rows, columns), part, 0, columns**-0.5)


def _norm(length: int) -> Kind:
    return Kind((length,), "vector", 1, 0.1)


def _mix(length: int) -> Kind:
    return Kind((length,), "vector", 0, length**-0.5)


SMALL = Shape(
    layers=8,
    experts=32,
    vocabulary=256,
    hidden=256,
    width=128,
    inner=96,
    used=4,
    heads=3,
    head_dim=64,
    query_rank=96,
    cache_rank=64,
    rest=32,
    decay_rank=64,
    dense_inner=512,
    block_layers=3,
)
"""Every kind of layer twice, and three starts of a block of the residual."""
