"""What the tensors of a checkpoint add up to: groups, layers, experts, parameters, cache and state. Pure.

Every number comes from shapes and types of tensors. Two things the tensors do not hold come from outside: how many
bits a packed code has, where no scale tells it, and how many experts a token uses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from attrs import evolve, field, frozen

from k3gate.model.checkpoint import names
from k3gate.model.checkpoint.tensors import Tensor

VISION = ("vision_tower", "mm_projector")
EMBEDDING = "embed_tokens"
_STORED_BITS = {"U8": 8, "I8": 8, "U16": 16, "I16": 16, "I32": 32, "U32": 32, "I64": 64}
FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_LATENT_KEYS = ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "attn.wkv_a", "attn.wkv_a_with_mqa")
_KEYS = ("self_attn.k_proj", "attn_k", "attention.wk", "attn.wk")
_VALUES = ("self_attn.v_proj", "attn_v", "attention.wv", "attn.wv")
_DECAY = ("self_attn.A_log", "ssm_a")
_STEP = ("self_attn.dt_bias", "ssm_dt")
_HEAD_NORM = ("self_attn.o_norm", "ssm_norm")
_KDA = ("self_attn.f_a_proj", "ssm_f_a")
CACHE_BYTES = 2
"""Bytes of a cached key or value: BF16."""
STATE_BYTES = 4
"""Bytes of a number of a recurrent state: F32."""


@frozen
class Group:
    """Tensors of one part of the model. `types`: bytes by type of the tensors. Scales are no parameters."""

    tensors: int = 0
    bytes: int = 0
    parameters: int = 0
    types: Mapping[str, int] = field(factory=dict)


@frozen
class Layer:
    """A layer, counted from 0. `attention`: "kda", "mla", "attention" or "" ; `experts` 0: a dense layer."""

    number: int
    attention: str = ""
    experts: int = 0


@frozen
class Pair:
    """So many packed or FP8 matrices of one kind with their scales; `group`: how many weights share a scale."""

    number: int
    part: str
    type: str
    scale: str | None
    scale_type: str | None
    group: int | None
    bits: int

    @property
    def meaning(self) -> str | None:
        """What the scales are, by their type and layout; None where there are none."""
        if self.scale_type is None:
            return None
        if self.scale_type == "F8_E8M0":
            return "exponents, 2^(byte - 127)"
        if self.scale_type == "U8":
            return "exponents, 2^(byte - 127): inferred, bytes are no other scale"
        return (
            "factors; codes are multiplied by them: assumed for both names, weight_scale and weight_scale_inv"
        )


@frozen
class Content:
    """The sums. `experts`: of a layer, None where the layers differ or there are none.

    `cache_values`: numbers that a token leaves in the KV cache; `state_bytes`: recurrent state and the inputs
    of short convolutions of one sequence, in F32; `recurrent_bytes`: the state alone.
    """

    tensors: int
    bytes: int
    parameters: int
    groups: Mapping[str, Group]
    layers: tuple[Layer, ...]
    experts: int | None
    expert_parameters: int | None
    expert_bytes: int | None
    cache_values: int
    state_bytes: int
    recurrent_bytes: int
    pairs: tuple[Pair, ...] = ()
    without_scale: tuple[str, ...] = ()
    unlike_scale: tuple[str, ...] = ()
    lonely_scales: int = 0
    fused: bool = False
    matrices: Mapping[str, tuple[int, ...]] = field(factory=dict, repr=False)
    """The shape of every matrix outside the experts that a layer has, by its name, of the first layer with it."""


class _Kind(NamedTuple):
    """What is counted together: tensors of a group, of attention also of a layer, that hold the same in one type."""

    group: str
    layer: int | None
    holds: str
    type: str


class _Scaled(NamedTuple):
    """A matrix of codes or FP8 with its scale, as far as they are there: type and elements of each."""

    kind: _Kind
    elements: int
    scale: str | None = None
    scale_type: str | None = None
    scale_elements: int = 0


class Tally:
    """Takes the tensors of a checkpoint, in any order, and adds them up."""

    def __init__(self) -> None:
        self._counts: dict[_Kind, list[int]] = {}
        self._experts: dict[int, set[int]] = {}
        self._fused: dict[int, int] = {}
        self._matrices: dict[int, dict[str, tuple[int, ...]]] = {}
        self._stored: dict[str, tuple[_Kind, Tensor]] = {}
        self._scales: dict[str, Tensor] = {}
        self._scaled: Counter[_Scaled] = Counter()
        self._layers: set[int] = set()

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors; each once in a checkpoint. Those of one file together are counted fastest."""
        kinds: dict[tuple[int | None, str, str, str], tuple[_Kind, list[int], set[int]]] = {}
        stored, scales = self._stored, self._scales
        for tensor in tensors:
            name, dtype, shape, begin, end, elements = tensor
            layer, place = names.read(name)
            part, expert, matrix, holds, _, ending = place
            known = kinds.get((layer, part, holds, dtype))
            if known is None:
                known = kinds[layer, part, holds, dtype] = self._first(layer, place, dtype)
            kind, counted, experts = known
            counted[0] += 1
            counted[1] += end - begin
            counted[2] += elements
            if expert is not None:
                experts.add(expert)
            if holds == names.CODES or dtype in FP8:
                stored[name[: len(name) - ending] if ending else name] = kind, tensor
            elif holds == names.SCALES:
                scales[name[: len(name) - ending]] = tensor
            elif expert is None and layer is not None and part != names.EXPERTS:
                self._matrices.setdefault(layer, {})[matrix] = shape
            if expert is None and layer is not None and part == names.EXPERTS and shape:
                self._fused[layer] = max(self._fused.get(layer, 0), shape[0])
        self._match()

    def _match(self) -> None:
        """Pair matrices and scales. They lie side by side, as a rule: what is left may have its half elsewhere."""
        stored, scales = self._stored, self._scales
        for owner in stored.keys() & scales.keys():
            kind, tensor = stored.pop(owner)
            scale = scales.pop(owner)
            suffix = scale.name[len(owner) :].lstrip("._")
            self._scaled[_Scaled(kind, tensor.elements, suffix, scale.dtype, scale.elements)] += 1

    def merge(self, other: Tally) -> None:
        """Add what another one counted, of other files of the checkpoint."""
        for kind, counted in other._counts.items():
            mine = self._counts.setdefault(kind, [0, 0, 0])
            for at, number in enumerate(counted):
                mine[at] += number
        for layer, experts in other._experts.items():
            self._experts.setdefault(layer, set()).update(experts)
        for layer, number in other._fused.items():
            self._fused[layer] = max(self._fused.get(layer, 0), number)
        for layer, matrices in other._matrices.items():
            self._matrices.setdefault(layer, {}).update(matrices)
        self._stored |= other._stored
        self._scales |= other._scales
        self._scaled += other._scaled
        self._layers |= other._layers
        self._match()

    def _first(self, layer: int | None, place: names.Place, dtype: str) -> tuple[_Kind, list[int], set[int]]:
        """Where tensors of this place and type are counted, and the experts of the layer."""
        experts: set[int] = set()
        if layer is not None:
            self._layers.add(layer)
            if place.expert is not None:
                experts = self._experts.setdefault(layer, experts)
        kind = _Kind(place.group, layer if place.part == names.ATTENTION else None, place.holds, dtype)
        return kind, self._counts.setdefault(kind, [0, 0, 0]), experts

    def content(self, bits: int | None = None) -> Content:
        """The sums so far. `bits` of a packed code, as the config tells; None: four, as all that is known uses."""
        bits = bits or 4
        pairs, unlike = self._pairs(bits)
        kinds = {layer: _attention(self._matrices.get(layer, {})) for layer in self._layers}
        groups = self._named(kinds, bits)
        experts = {**self._fused, **{layer: len(ids) for layer, ids in self._experts.items()}}
        layers = tuple(Layer(n, kinds[n], experts.get(n, 0)) for n in sorted(self._layers))
        counts = set(experts.values())
        routed = [group for name, group in groups.items() if name.startswith(names.EXPERTS)]
        parameters, size = sum(g.parameters for g in routed), sum(g.bytes for g in routed)
        whole = sum(experts.values())
        matrices: dict[str, tuple[int, ...]] = {}
        for layer in sorted(self._matrices, reverse=True):
            matrices.update(self._matrices[layer])
        return Content(
            tensors=sum(group.tensors for group in groups.values()),
            bytes=sum(group.bytes for group in groups.values()),
            parameters=sum(group.parameters for group in groups.values()),
            groups=groups,
            layers=layers,
            experts=counts.pop() if len(counts) == 1 else None,
            expert_parameters=parameters // whole if whole and parameters % whole == 0 else None,
            expert_bytes=size // whole if whole and size % whole == 0 else None,
            cache_values=sum(_cached(self._matrices.get(one.number, {}), one.attention) for one in layers),
            recurrent_bytes=sum(
                _state(self._matrices.get(one.number, {})) for one in layers if one.attention == "kda"
            ),
            state_bytes=sum(
                _state(self._matrices.get(one.number, {})) + _remembered(self._matrices.get(one.number, {}))
                for one in layers
                if one.attention == "kda"
            ),
            pairs=pairs,
            without_scale=tuple(tensor.name for _, tensor in self._stored.values()),
            unlike_scale=unlike,
            lonely_scales=sum(not name.endswith(_NO_SCALE) for name in self._scales),
            fused=bool(self._fused),
            matrices=matrices,
        )

    def _named(self, kinds: Mapping[int, str], bits: int) -> dict[str, Group]:
        groups: dict[str, Group] = {}
        for kind, (tensors, size, elements) in self._counts.items():
            name = kind.group
            if name == names.ATTENTION:
                attention = kinds.get(-1 if kind.layer is None else kind.layer, "")
                name = f"{attention}_attention" if attention in ("kda", "mla") else "attention"
            before = groups.get(name, Group())
            groups[name] = Group(
                before.tensors + tensors,
                before.bytes + size,
                before.parameters + _weights(kind, elements, bits),
                dict(Counter(before.types) + Counter({kind.type: size})),
            )
        return dict(sorted(groups.items(), key=lambda item: -item[1].bytes))

    def _pairs(self, bits: int) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
        """The kinds of pairs with how many there are of each, and those whose scale does not fit."""
        found: Counter[Pair] = Counter()
        unlike: list[str] = []
        alone = Counter(_Scaled(kind, tensor.elements) for kind, tensor in self._stored.values())
        for scaled, number in (*self._scaled.items(), *alone.items()):
            weights = _weights(scaled.kind, scaled.elements, bits)
            fits = scaled.scale_elements and weights % scaled.scale_elements == 0
            if scaled.scale and not fits and scaled.kind.holds == names.CODES:
                unlike.append(
                    f"{weights:,} weights with {scaled.scale_elements:,} scales in {scaled.kind.group}"
                )
            group = weights // scaled.scale_elements if fits else None
            own = bits if scaled.kind.holds == names.CODES else 8
            kind = Pair(1, scaled.kind.group, scaled.kind.type, scaled.scale, scaled.scale_type, group, own)
            found[kind] += number
        return tuple(evolve(kind, number=number) for kind, number in found.most_common()), tuple(unlike)


_NO_SCALE = ("input_scale", "g_idx", "qzeros", "output_scale", "zero_point")


def _weights(kind: _Kind, elements: int, bits: int) -> int:
    """How many weights so many elements hold: a byte of codes of 4 bits holds two, a scale none."""
    if kind.holds == names.CODES:
        return elements * _STORED_BITS.get(kind.type, bits) // bits
    return elements if kind.holds == names.WEIGHT else 0


def _attention(matrices: Mapping[str, tuple[int, ...]]) -> str:
    """The kind of a layer's attention, by what it has; "" where it has none."""
    if any(name in matrices for name in _KDA) and any(name in matrices for name in _DECAY):
        return "kda"
    if any(name in matrices for name in _LATENT_KEYS):
        return "mla"
    return "attention" if any(name in matrices for name in _KEYS) else ""


def _cached(matrices: Mapping[str, tuple[int, ...]], kind: str) -> int:
    """Numbers that a token leaves in the cache of a layer: of MLA the compressed ones, once for all heads."""
    if kind == "mla":
        return _rows(matrices, _LATENT_KEYS)
    return _rows(matrices, _KEYS) + _rows(matrices, _VALUES) if kind == "attention" else 0


def _rows(matrices: Mapping[str, tuple[int, ...]], wanted: Iterable[str]) -> int:
    return next((matrices[name][0] for name in wanted if matrices.get(name)), 0)


def _state(matrices: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of a KDA layer's state: heads x width x width numbers."""
    return STATE_BYTES * _rows(matrices, _STEP) * _rows(matrices, _HEAD_NORM)


def _remembered(matrices: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of the last inputs of a layer's short convolutions."""
    shapes = (shape for name, shape in matrices.items() if "conv1d" in name and len(shape) > 1)
    return STATE_BYTES * sum(math.prod(shape[:-1]) * (shape[-1] - 1) for shape in shapes)
