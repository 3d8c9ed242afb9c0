"""What is to run, in the sizes that a plan needs: groups of tensors, what a token reads of each, cache and state. Pure.

One vocabulary for Kimi K3's built-in facts, an inspected checkpoint, a bare config and a model stated by hand, so
that a plan does not know where its sizes come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from k3gate.errors import UsageError
from k3gate.model import k3

if TYPE_CHECKING:
    from k3gate.model.checkpoint.inspection import Inspection

ROUTED, TRUNK, EMBEDDING, VISION = "routed", "trunk", "embedding", "vision"
ROLES = (ROUTED, TRUNK, EMBEDDING, VISION)
"""Of the routed experts a token reads its share, of the trunk all, of the embedding table a row, of vision nothing."""

Q8_0_BITS = 8.5
"""32 codes of 8 bits and an FP16 scale in 34 bytes (ggml-common.h)."""


@frozen
class Group:
    """Tensors of one part of the model. `parameters` None: not known; scales are none."""

    name: str
    role: str
    bytes: int
    parameters: int | None = None

    def at(self, bits: float | None) -> int | None:
        """Bytes at `bits` a parameter, scales included; None: as they are stored, or not to be known."""
        if bits is None:
            return self.bytes
        return None if self.parameters is None else round(self.parameters * bits / 8)


@frozen
class ModelSizes:
    """Sizes of a model; bytes and counts, None where unknown.

    `expert_width`: numbers that an expert takes in and gives out for a token. `kv_bytes_per_token` in BF16;
    `state_bytes` is read and written for every token, `convolution_bytes` only held.
    """

    name: str
    source: str
    groups: tuple[Group, ...]
    layers: int | None = None
    expert_layers: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    expert_width: int | None = None
    hidden: int | None = None
    kv_bytes_per_token: int | None = None
    state_bytes: int | None = None
    convolution_bytes: int | None = None
    max_context: int | None = None
    notes: tuple[str, ...] = ()

    def role(self, role: str) -> tuple[Group, ...]:
        """The groups of a role."""
        return tuple(group for group in self.groups if group.role == role)

    def bytes_of(self, role: str, bits: float | None = None) -> int | None:
        """Bytes of all groups of a role, at `bits` a parameter or as stored."""
        sizes = [group.at(bits) for group in self.role(role)]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def bytes(self) -> int:
        """Bytes of all weights as they are stored."""
        return sum(group.bytes for group in self.groups)

    @property
    def parameters(self) -> int | None:
        """Parameters of all groups."""
        return _sum(group.parameters for group in self.groups)

    @property
    def active_parameters(self) -> int | None:
        """Parameters that a text token uses, without the embedding table: the trunk, and its share of the routed."""
        trunk = _sum(group.parameters for group in self.role(TRUNK))
        routed = _sum(group.parameters for group in self.role(ROUTED))
        if trunk is None or routed is None:
            return None
        share = self.share_of(routed)
        return None if share is None else trunk + share

    def share_of(self, routed: int) -> int | None:
        """Of so much of all routed experts, what one token reads; None where the number chosen is unknown."""
        if not routed:
            return 0
        if not self.experts or not self.experts_per_token or self.experts_per_token > self.experts:
            return None
        return routed * self.experts_per_token // self.experts

    def expert_bytes(self, bits: float | None = None) -> int | None:
        """Bytes of one routed expert of one layer."""
        routed = self.bytes_of(ROUTED, bits)
        if not routed or not self.experts or not self.expert_layers:
            return None
        return routed // (self.experts * self.expert_layers)


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


_ROLE_OF = {"embed_tokens": EMBEDDING, "vision_tower": VISION, "mm_projector": VISION}


def _role(name: str) -> str:
    return ROUTED if name.startswith("routed_experts") else _ROLE_OF.get(name, TRUNK)


def kimi_k3() -> ModelSizes:
    """Kimi K3 as released, from the built-in facts (`k3gate.model.k3`)."""
    sizes = {name: size for name, size in k3.BYTES_BY_GROUP.items() if _role(name) != ROUTED}
    sizes = {"routed_experts": k3.ROUTED_BYTES, **sizes}
    return ModelSizes(
        name="Kimi K3",
        source="built-in facts of moonshotai/Kimi-K3 as released",
        groups=tuple(
            Group(name, _role(name), size, k3.PARAMETERS_BY_GROUP[name]) for name, size in sizes.items()
        ),
        layers=k3.LAYERS,
        expert_layers=k3.MOE_LAYERS,
        experts=k3.EXPERTS,
        experts_per_token=k3.EXPERTS_PER_TOKEN,
        expert_width=k3.EXPERT_WIDTH,
        hidden=k3.HIDDEN,
        kv_bytes_per_token=k3.KV_BYTES_PER_TOKEN,
        state_bytes=k3.STATE_BYTES,
        convolution_bytes=k3.CONVOLUTION_BYTES,
        max_context=k3.MAX_CONTEXT,
    )


def of_inspection(found: Inspection) -> ModelSizes:
    """A checkpoint whose headers were read: every size from its tensors."""
    from k3gate.model.checkpoint.costs import cache_bytes

    content, stated = found.content, found.stated
    named = {name: (group.bytes, group.parameters) for name, group in content.groups.items()}
    width = (stated.expert_width or stated.hidden) if stated else None
    # Attention of a kind that is not known leaves a cache all the same: unknown is not nothing.
    known = bool(content.layers) and all(layer.attention for layer in content.layers)
    return ModelSizes(
        name=_title(found.architecture.name),
        source=f"the tensors of {found.place}, {found.digest[:19]}",
        groups=_grouped(named, tied=bool(stated and stated.tied)),
        layers=len(content.layers) or None,
        expert_layers=sum(layer.experts > 0 for layer in content.layers) or None,
        experts=content.experts,
        experts_per_token=found.experts_per_token,
        expert_width=width,
        hidden=stated.hidden if stated else None,
        kv_bytes_per_token=cache_bytes(content) if known else None,
        state_bytes=content.recurrent_bytes if known else None,
        convolution_bytes=content.state_bytes - content.recurrent_bytes if known else None,
        max_context=stated.context if stated else None,
        notes=tuple(f"the checkpoint is damaged: {one.title}" for one in found.findings if found.damaged)[:3],
    )


def of_document(document: Mapping[str, Any], name: str) -> ModelSizes:
    """The sizes in what `k3gate inspect --json` wrote; `name`: of its file. `UsageError` where they are not there."""
    try:
        named = {
            str(key): (_whole(group["bytes"]), _whole(group["parameters"]))
            for key, group in document["groups"].items()
        }
        experts, layers = document["experts"], document["layers"]
        state = _optional(document["state_bytes_per_sequence"])
        kimi = document["architecture"] == "kimi-k3"
        # The document has one sum; of Kimi K3 the part that is only held is known.
        held = k3.CONVOLUTION_BYTES if kimi and state == k3.STATE_BYTES + k3.CONVOLUTION_BYTES else 0
        return ModelSizes(
            name=_title(str(document["architecture"])[:80]),
            source=f"the inspection {name}, {str(document['digest'])[:19]}",
            groups=_grouped(named, tied=False),
            layers=_optional(layers["total"]),
            expert_layers=_optional(layers["with_experts"]),
            experts=_optional(experts["per_layer"]),
            experts_per_token=_optional(experts["per_token"]),
            expert_width=k3.EXPERT_WIDTH if kimi else None,
            hidden=k3.HIDDEN if kimi else None,
            kv_bytes_per_token=_optional(document["kv_bytes_per_token"]),
            state_bytes=None if state is None else state - held,
            convolution_bytes=held,
            max_context=_optional(document["context"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{name} is no inspection: {type(error).__name__} {error}; write one with `k3gate inspect --json`"
        ) from error


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**60:
        raise ValueError(f"{value!r:.40} is no size")
    return value


def _optional(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _grouped(named: Mapping[str, tuple[int, int]], *, tied: bool) -> tuple[Group, ...]:
    """Codes and scales of the experts as one group; a tied embedding table is the head too, and read whole."""
    merged: dict[str, list[int]] = {}
    for name, (size, parameters) in named.items():
        key = "routed_experts" if _role(name) == ROUTED else name
        sums = merged.setdefault(key, [0, 0])
        sums[0] += size
        sums[1] += parameters
    return tuple(
        Group(name, TRUNK if tied and _role(name) == EMBEDDING else _role(name), size, parameters)
        for name, (size, parameters) in merged.items()
    )


def _title(name: str) -> str:
    return {"kimi-k3": "Kimi K3", "not identified": "a model that was not identified"}.get(name, name)
