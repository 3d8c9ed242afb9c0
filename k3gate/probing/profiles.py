"""The profiles: time budgets that hold on any machine. The figures are ours: what people will wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from k3gate.errors import UsageError
from k3gate.records import MemoryFile, NetworkPeer, Profile, Routing

SECONDS: Mapping[str, float] = MappingProxyType(
    {"smoke": 20.0, "quick": 180.0, "standard": 1200.0, "soak": 1800.0}
)
RESIDENT = frozenset({"standard", "soak"})
"""The profiles that allocate the target's whole image; the others take a small pool and say so."""


def names() -> tuple[str, ...]:
    """The known profiles, shortest first."""
    return tuple(SECONDS)


def load(
    name: str,
    *,
    image_bytes: int | None = None,
    image_detail: str = "",
    working_set_bytes: int | None = None,
    memory_files: Sequence[MemoryFile] = (),
    trunk: str | None = None,
    routing: Routing | None = None,
    peer: NetworkPeer | None = None,
) -> Profile:
    """The profile `name`; `UsageError` where it is unknown.

    `image_bytes` is what the target wants resident; it is kept by the profiles in `RESIDENT` alone.
    """
    if name not in SECONDS:
        raise UsageError(f"profile {name!r} is unknown: {suggest(name, names())}")
    resident = name in RESIDENT
    return Profile(
        name,
        SECONDS[name],
        image_bytes=image_bytes if resident else None,
        image_detail=image_detail if resident else f"the {name} profile takes a small pool, not the image",
        working_set_bytes=working_set_bytes,
        memory_files=tuple(memory_files),
        trunk=trunk,
        routing=routing,
        peer=peer,
    )


def suggest(name: str, known: Sequence[str]) -> str:
    """What to type instead of an unknown name: the nearest known one, then all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(known) or "none"
    return f"did you mean {near[0]!r}? Known: {listed}" if near else f"use one of {listed}"
