"""The profiles: time budgets that hold on any machine. The figures are ours: what people will wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from k3gate.errors import UsageError
from k3gate.records import LoadPath, MemoryFile, NetworkPeer, Profile, Routing, Serving

SECONDS: Mapping[str, float] = MappingProxyType(
    {"smoke": 20.0, "quick": 180.0, "standard": 1200.0, "soak": 1800.0}
)
LOAD_SECONDS: Mapping[str, float] = MappingProxyType({"standard": 180.0})
"""For how long a profile loads the whole machine at once; `soak` does so for what it has beyond `standard`."""
LEAST_MINUTES = 30
BUDGET_SHARE = 0.9
"""How much of a profile's seconds is planned; the rest is for reading, storing, judging and reporting."""
ALONE_SHARE = 0.8
"""Of a soak that does nothing else: with filling memory before and cooling after it, that is within budget."""
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
    minutes: int | None = None,
    load_alone: bool = False,
    load_paths: Sequence[LoadPath] = (),
    peer: NetworkPeer | None = None,
    serving: Serving | None = None,
) -> Profile:
    """The profile `name`; `UsageError` where it is unknown. What a runtime takes to load and answer comes on top.

    `image_bytes` is what the target wants resident; it is kept by the profiles in `RESIDENT` alone. `minutes`: how
    long the soak is in all; `load_alone`: nothing else is measured, so that the load takes the time of the rest too.
    """
    if name not in SECONDS:
        raise UsageError(f"profile {name!r} is unknown: {suggest(name, names())}")
    if minutes is not None and (name != "soak" or minutes < LEAST_MINUTES):
        raise UsageError(
            f"--minutes says how long the profile soak is, from {LEAST_MINUTES} on: give --profile soak with it"
            if name != "soak"
            else f"--minutes {minutes} is no soak: give {LEAST_MINUTES} or more, or --profile standard"
        )
    seconds = SECONDS[name] if minutes is None else 60.0 * minutes
    load = LOAD_SECONDS.get(name, 0.0)
    if name == "soak":
        load = ALONE_SHARE * seconds if load_alone else BUDGET_SHARE * (seconds - SECONDS["standard"])
    resident = name in RESIDENT
    if serving is not None:
        seconds += serving.seconds / BUDGET_SHARE
    return Profile(
        name,
        seconds,
        image_bytes=image_bytes if resident else None,
        image_detail=image_detail if resident else f"the {name} profile takes a small pool, not the image",
        working_set_bytes=working_set_bytes,
        memory_files=tuple(memory_files),
        trunk=trunk,
        routing=routing,
        load_s=load,
        load_paths=tuple(load_paths),
        peer=peer,
        serving=serving,
    )


def suggest(name: str, known: Sequence[str]) -> str:
    """What to type instead of an unknown name: the nearest known one, then all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(known) or "none"
    return f"did you mean {near[0]!r}? Known: {listed}" if near else f"use one of {listed}"
