"""Which weights of the source a converted weight stands for, and what the converter does to them on purpose. Pure.

A conversion to GGUF folds some of Kimi K3's weights (llama.cpp, conversion/kimi_k3.py): the two vectors of a residual
mix become their product, A_log its negative exponential of the heads that exist, and the compressed keys and values of
MLA are split, the keys transposed for each head.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.model.conversion.naming import Name
from k3gate.model.conversion.stored import Stored


class ShapeError(ValueError):
    """A folded weight does not have the shape that its source calls for."""


class Rule(StrEnum):
    """How a converted weight comes from its source."""

    SAME = "same"
    PRODUCT = "product"
    DECAY = "decay"
    KEYS = "keys"
    VALUES = "values"


@frozen
class Pair:
    """A converted weight and what it is made of. `heads`: of attention, for the rules that need them; `other`: the
    shape of the other half of a weight that was split; `keys`: how many rows of a head are keys, where that is known.
    """

    name: Name
    rule: Rule
    source: tuple[Stored, ...]
    converted: Stored
    heads: int | None = None
    other: tuple[int, ...] = ()
    keys: int | None = None

    @property
    def group(self) -> str:
        """The part of the model."""
        return self.source[0].group


@frozen
class Pairs:
    """Of a layer: what can be compared, what the converted files lack, and what they have besides."""

    pairs: tuple[Pair, ...]
    missing: tuple[tuple[Name, Stored], ...]
    unknown: tuple[tuple[Name, Stored], ...]


_PRODUCTS = {
    "attn_res_score": ("attn_res_norm", "attn_res_proj"),
    "ffn_res_score": ("ffn_res_norm", "ffn_res_proj"),
    "output_res_score": ("output_res_norm", "output_res_proj"),
}
_SPLIT = {"attn_k_b": Rule.KEYS, "attn_v_b": Rule.VALUES}
_WHOLE = "attn_kv_b"
_DECAY = "ssm_a"
_HEADS = ("ssm_beta",)


def pair(
    source: Mapping[Name, Stored], converted: Mapping[Name, Stored], *, folded: bool, keys: int | None = None
) -> Pairs:
    """Bring the weights of one layer together. `folded`: the converter folds, as one to GGUF does; `keys`: how many
    rows of a head of MLA's compressed keys and values are keys, as the source's config says."""
    used: set[Name] = set()
    pairs: list[Pair] = []
    unknown: list[tuple[Name, Stored]] = []
    for name, stored in converted.items():
        found = _found(name, stored, source, converted, folded=folded, keys=keys)
        if found is None:
            unknown.append((name, stored))
        else:
            made, names = found
            pairs.append(made)
            used.update(names)
    missing = tuple((name, stored) for name, stored in source.items() if name not in used)
    return Pairs(tuple(pairs), missing, tuple(unknown))


def _found(
    name: Name,
    stored: Stored,
    source: Mapping[Name, Stored],
    converted: Mapping[Name, Stored],
    *,
    folded: bool,
    keys: int | None,
) -> tuple[Pair, tuple[Name, ...]] | None:
    own = source.get(name)
    if own is not None:
        if folded and name.weight == _DECAY:
            heads = next(
                (source[n].rows for one in _HEADS if (n := name._replace(weight=one)) in source), None
            )
            return Pair(name, Rule.DECAY, (own,), stored, heads), (name,)
        return Pair(name, Rule.SAME, (own,), stored), (name,)
    parts = tuple(name._replace(weight=one) for one in _PRODUCTS.get(name.weight, ()))
    if parts and all(one in source for one in parts):
        return Pair(name, Rule.PRODUCT, tuple(source[one] for one in parts), stored), parts
    rule = _SPLIT.get(name.weight)
    whole = name._replace(weight=_WHOLE)
    if rule is not None and whole in source and len(stored.shape) == 3:
        half = next(one for one in _SPLIT if one != name.weight)
        other = converted.get(name._replace(weight=half))
        made = Pair(
            name,
            rule,
            (source[whole],),
            stored,
            stored.shape[0],
            other.shape if other is not None else (),
            keys,
        )
        return made, (whole,) if other is not None else ()
    return None


def expected(pair: Pair, source: tuple[NDArray[np.float32], ...]) -> NDArray[np.float32]:
    """The numbers that the rule makes of the whole source weights; `ShapeError` where their shapes do not fit it."""
    if pair.rule is Rule.PRODUCT:
        first, second = (one.reshape(-1) for one in source)
        return first * second
    whole = source[0]
    if pair.rule is Rule.DECAY:
        flat = whole.reshape(-1)
        return -np.exp(flat[: pair.heads] if pair.heads else flat)
    if pair.rule in (Rule.KEYS, Rule.VALUES):
        return _split(pair, whole)
    return whole


def _split(pair: Pair, whole: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of [heads x (keys + values), latent] the keys [heads, latent, keys] or the values [heads, values, latent]."""
    heads, shape = pair.heads or 0, pair.converted.shape
    rows, latent = whole.shape
    if not heads or rows % heads or latent not in shape[1:]:
        raise ShapeError(f"{list(shape)} of {heads} heads, from {rows} rows of {latent}")
    each = rows // heads
    own = _other_axis(shape, latent)
    if len(pair.other) == 3 and own + _other_axis(pair.other, latent) != each:
        raise ShapeError(
            f"{own} and {_other_axis(pair.other, latent)} rows of a head, where there are {each}"
        )
    keys = own if pair.rule is Rule.KEYS else each - own
    if own > each or pair.keys not in (None, keys):
        raise ShapeError(f"{keys} rows of a head taken for keys, which are {pair.keys or each}")
    both = whole.reshape(heads, each, latent)
    if pair.rule is Rule.VALUES:
        return np.ascontiguousarray(both[:, keys:])
    return np.ascontiguousarray(both[:, :keys].transpose(0, 2, 1))


def _other_axis(shape: tuple[int, ...], latent: int) -> int:
    """How many rows a half has for a head, whichever way it lies."""
    return shape[1] if shape[2] == latent else shape[2]
