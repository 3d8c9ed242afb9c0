"""What a token of a checkpoint costs: parameters it uses, bytes it reads and leaves. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k3gate.model.checkpoint import names
from k3gate.model.checkpoint.content import CACHE_BYTES, EMBEDDING, VISION, Content, Group
from k3gate.model.traffic import distinct_experts

if TYPE_CHECKING:
    from k3gate.model.checkpoint.inspection import Inspection


def _read_whole(content: Content, *, tied: bool) -> list[Group]:
    """What a decoded text token reads whole: no vision, and of the embedding table one row, unless it is the head."""
    unread = VISION if tied else (*VISION, EMBEDDING)
    return [
        group
        for name, group in content.groups.items()
        if not name.startswith(names.EXPERTS) and name not in unread
    ]


def _routed(content: Content) -> list[Group]:
    return [group for name, group in content.groups.items() if name.startswith(names.EXPERTS)]


def active_parameters(content: Content, used: int | None, *, tied: bool = False) -> int | None:
    """Parameters that a text token uses: all but vision, the embedding table, and the experts not chosen."""
    rest = sum(group.parameters for group in _read_whole(content, tied=tied))
    return _with_share(rest, sum(group.parameters for group in _routed(content)), content.experts, used)


def per_token(content: Content, used: int | None, *, tied: bool = False) -> dict[str, int | None]:
    """Bytes of weights that a decoded token reads at batch 1: as stored, with all but the experts at Q8_0, and
    the chosen experts alone."""
    rest = _read_whole(content, tied=tied)
    routed = sum(group.bytes for group in _routed(content))
    chosen = _with_share(0, routed, content.experts, used)
    small = sum(group.parameters for group in rest) * 17 // 16
    return {
        "native": _with_share(sum(group.bytes for group in rest), routed, content.experts, used),
        "trunk_q8_0": None if chosen is None else small + chosen,
        "routed": chosen,
    }


def step_bytes(found: Inspection, context: int, batch: int) -> int | None:
    """Bytes of a decode step of `batch` sequences of `context` tokens, routed uniformly: weights once, the
    distinct experts once, and of each sequence its state, read and written, and its KV cache."""
    told, content = found.bytes_per_token, found.content
    native, routed = told.get("native"), told.get("routed")
    if native is None or routed is None:
        return None
    experts, used = content.experts, found.experts_per_token
    distinct = round(routed * distinct_experts(batch, experts, used) / used) if experts and used else routed
    # Of the state: the inputs of short convolutions are a thousandth of it.
    own = 2 * content.recurrent_bytes + cache_bytes(content) * context
    return native - routed + distinct + batch * own


def _with_share(rest: int, routed: int, experts: int | None, used: int | None) -> int | None:
    """`rest` and the share of the routed experts that a token uses."""
    if not routed:
        return rest
    if not experts or used is None or used > experts:
        return None
    return rest + routed * used // experts


def cache_bytes(content: Content) -> int:
    """Bytes of the KV cache of a token in BF16; of MLA in its compressed form."""
    return content.cache_values * CACHE_BYTES
