"""Residency: what each tier of memory must hold under a placement, and what is left of it. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from k3gate import units
from k3gate.analysis.system import GB, KV_BYTES, TIER_TITLES, Placement, System
from k3gate.errors import UsageError
from k3gate.model.sizes import EMBEDDING, ROUTED, TRUNK, VISION, Group, ModelSizes
from k3gate.tables import near


@frozen
class Demand:
    """What is wanted of the machine: `context` tokens of each of `sequences`, `batch` of them decoded together.

    Rates in tokens/s, None: nothing is asked. `trunk` is the target's wish, which a system's placement overrides.
    """

    name: str
    context: int
    sequences: int
    batch: int = 1
    vision: bool = False
    trunk: str = "bf16"
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    load_seconds: float | None = None


@frozen
class Item:
    """Something that a tier holds, in bytes, with the arithmetic behind it. `bytes` None: not to be known."""

    what: str
    bytes: int | None
    detail: str = ""
    weights: bool = False


@frozen
class Tier:
    """A tier of all machines together: its capacity (None: not stated), what it holds, and how that was summed."""

    name: str
    capacity: int | None
    capacity_detail: str
    items: tuple[Item, ...] = ()

    @property
    def title(self) -> str:
        """The tier in words."""
        return TIER_TITLES[self.name]

    @property
    def need(self) -> int | None:
        """Bytes of all items; None where one is unknown."""
        sizes = [item.bytes for item in self.items]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def left(self) -> int | None:
        """Capacity less what is needed; below 0 where it is short."""
        need = self.need
        return None if need is None or self.capacity is None else self.capacity - need

    def weights(self, *but: str) -> int:
        """Bytes of weights alone, without the items named."""
        return sum(item.bytes or 0 for item in self.items if item.weights and item.what not in but)


EXPERTS_ITEM, TRUNK_ITEM, EMBEDDING_ITEM = "routed experts", "trunk", "embedding table"
VISION_ITEM, HOT_ITEM = "vision", "hot experts"


@frozen
class Layout:
    """Where all lies. `fits` None: something is unknown; `shortages` say in words what does not fit."""

    placement: Placement
    tiers: tuple[Tier, ...]
    copies: int = 1
    shortages: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether every tier holds what it must."""
        if self.shortages:
            return False
        return None if self.unknown else True

    def tier(self, name: str) -> Tier | None:
        """A tier by its name."""
        return next((tier for tier in self.tiers if tier.name == name), None)


def place(system: System, demand: Demand) -> Placement:
    """The placement: as the system states it, else by the target's trunk and what the machine has."""
    stated = system.placement
    experts = stated.experts or ("dram" if system.memory is not None else _first(system))
    trunk = stated.trunk
    if trunk is None:
        trunk = "gpu" if demand.trunk == "gpu" and system.gpus else ("dram" if system.memory else experts)
    cache = stated.cache or trunk
    near = "dram" if system.memory is not None and experts not in ("gpu", "hbm") else experts
    placed = Placement(experts, trunk, stated.embedding or near, stated.vision or trunk, cache, stated.groups)
    wanted = {key: getattr(placed, key) for key in ("experts", "trunk", "embedding", "vision", "cache")}
    for key, tier in (*wanted.items(), *stated.groups.items()):
        if not _has(system, tier):
            raise UsageError(
                f"system {system.name!r}: {key} is to lie in {TIER_TITLES[tier]}, and the file names none: "
                f"describe it, or place {key} elsewhere under [placement]"
            )
    return placed


_KINDS = ((ROUTED, "experts"), (TRUNK, "trunk"), (EMBEDDING, "embedding"), (VISION, "vision"))


def resolved(system: System, sizes: ModelSizes) -> System:
    """The system with groups that are all of their kind placed as that kind, so that no figure looks at one of both.

    Raises `UsageError` where only some routed experts are placed elsewhere, since a token reads them from one tier.
    """
    stated = system.placement
    kinds: dict[str, Any] = {}
    left = dict(stated.groups)
    for role, key in _KINDS:
        names = [group.name for group in sizes.role(role)]
        tiers = {stated.groups.get(name) for name in names}
        if names and len(tiers) == 1 and None not in tiers:
            kinds[key] = stated.groups[names[0]]
            left = {name: tier for name, tier in left.items() if name not in names}
        elif role == ROUTED and tiers - {None}:
            raise UsageError(
                f"system {system.name!r}: [placement.groups] splits the routed experts over tiers, and a token is "
                "planned to read them from one: place all of them with experts under [placement]"
            )
    return evolve(system, placement=evolve(stated, groups=left, **kinds)) if kinds else system


def _first(system: System) -> str:
    if system.gpus:
        return "gpu"
    if system.extras:
        return system.extras[0].kind
    if system.storage is not None:
        return "nvme"
    raise UsageError(f"system {system.name!r} names no memory at all: add [memory], [[gpu]] or [[tier]]")


def _has(system: System, tier: str) -> bool:
    return {
        "gpu": bool(system.gpus),
        "dram": system.memory is not None,
        "nvme": system.storage is not None,
    }.get(tier, any(extra.kind == tier for extra in system.extras))


def lay_out(system: System, sizes: ModelSizes, demand: Demand) -> Layout:
    """Residency of `sizes` on `system` for `demand`. Raises `UsageError` for a placement on what is not there."""
    if sizes.max_context is not None and demand.context > sizes.max_context:
        raise UsageError(
            f"target {demand.name!r}: context {demand.context} is above {sizes.max_context}, the most that "
            f"{sizes.name} takes"
        )
    placed = place(system, demand)
    _possible(system, sizes, placed)
    copies = max(1, (system.sockets or 1) * system.numa_nodes) if system.replicate else 1
    held: dict[str, list[Item]] = {}
    for tier, item in _held(system, sizes, demand, placed, copies):
        held.setdefault(tier, []).append(item)
    _reserve(system, held)
    tiers = tuple(
        Tier(name, capacity, detail, tuple(held.get(name, ())))
        for name, capacity, detail in _capacities(system)
        if held.get(name) or name in ("dram", "gpu")
    )
    short = tuple(_shortage(tier) for tier in tiers if tier.left is not None and tier.left < 0)
    unknown = tuple(
        f"whether {tier.title} can hold all is not known: "
        + ("its size is not stated" if tier.capacity is None else "a size of the model is unknown")
        for tier in tiers
        if tier.left is None and tier.items
    )
    return Layout(placed, tiers, copies, short, unknown)


def _held(
    system: System, sizes: ModelSizes, demand: Demand, placed: Placement, copies: int
) -> list[tuple[str, Item]]:
    """(tier, item) of the model itself."""
    precision = system.precision
    found: list[tuple[str, Item]] = []
    for tier, role, what, bits in (
        (placed.experts, ROUTED, EXPERTS_ITEM, precision.experts),
        (placed.trunk, TRUNK, TRUNK_ITEM, precision.trunk),
        (placed.embedding, EMBEDDING, EMBEDDING_ITEM, precision.trunk),
        *(((placed.vision, VISION, VISION_ITEM, None),) if demand.vision else ()),
    ):
        for where, name, groups in split(sizes.role(role), tier, placed.groups, what):
            times = copies if where in ("dram", "hbm") else 1
            one = bytes_at(groups, bits)
            size = None if one is None else one * times
            found.append((where, Item(name, size, _detail(bits, times), weights=True)))
    cache = placed.cache or "dram"
    kv = sizes.kv_bytes_per_token
    values = round(kv * KV_BYTES[precision.kv]) if kv is not None else None
    found.append(
        (
            cache,
            Item(
                "KV cache",
                None if values is None else values * demand.context * demand.sequences,
                f"{units.count(demand.sequences, 'sequence')} x {demand.context:,} tokens x "
                f"{'unknown' if values is None else f'{values:,}'} B",
            ),
        )
    )
    state = sizes.state_bytes
    if state is None or state + (sizes.convolution_bytes or 0):
        size = None if state is None else (state + (sizes.convolution_bytes or 0)) * demand.sequences
        found.append((cache, Item("recurrent state", size, units.count(demand.sequences, "sequence"))))
    if system.hot is not None:
        one = sizes.expert_bytes(precision.experts)
        layers = sizes.expert_layers
        size = None if one is None or layers is None else one * layers * system.hot.experts
        found.append(
            (
                "gpu",
                Item(
                    HOT_ITEM,
                    size,
                    f"{system.hot.experts} of each of {layers or 'unknown'} layers",
                    weights=True,
                ),
            )
        )
    return found


def split(
    groups: tuple[Group, ...], tier: str | None, elsewhere: Mapping[str, str], what: str
) -> list[tuple[str, str, tuple[Group, ...]]]:
    """(tier, name, groups): those that lie with the rest of their kind together, every other one by itself."""
    found: list[tuple[str, str, tuple[Group, ...]]] = []
    rest = tuple(group for group in groups if elsewhere.get(group.name, tier) == tier)
    if rest and tier is not None:
        found.append((tier, what, rest))
    for group in groups:
        if group not in rest:
            found.append((elsewhere[group.name], group.name.replace("_", " "), (group,)))
    return found


def bytes_at(groups: tuple[Group, ...], bits: float | None) -> int | None:
    """Bytes of these groups at `bits` a parameter or as stored; None where one is not to be known."""
    sizes = [group.at(bits) for group in groups]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _possible(system: System, sizes: ModelSizes, placed: Placement) -> None:
    """Raise `UsageError` for groups that the model does not have, and for a hot set that cannot be."""
    known = {group.name for group in sizes.groups}
    for name in placed.groups:
        if name not in known:
            raise UsageError(
                f"system {system.name!r}: [placement.groups] {name!r} is no group of {sizes.name}: "
                f"{near(name, known)}"
            )
    hot = system.hot
    for number, share in system.curve:
        most = most_hits(number, sizes.experts_per_token)
        if share > most + 1e-9:
            raise UsageError(
                f"system {system.name!r}: [hot_experts] curve [{number}, {share:g}] cannot be: a token reads "
                f"{sizes.experts_per_token} different experts of a layer, of which {number} are {most:.1%} at most"
            )
    if hot is None:
        return
    if not system.gpus or placed.experts == "gpu":
        why = "the file names no GPU" if not system.gpus else "all experts lie on the GPUs already"
        raise UsageError(f"system {system.name!r}: [hot_experts] has no meaning, since {why}: remove it")
    if sizes.experts is not None and hot.experts > sizes.experts:
        raise UsageError(
            f"system {system.name!r}: [hot_experts] per_layer {hot.experts} is above {sizes.experts}, all of a layer"
        )


def most_hits(number: int, read: float | None) -> float:
    """The share of reads that `number` experts of a layer can catch at most where `read` different ones are read."""
    return min(1.0, number / read) if read else 1.0


def _detail(bits: float | None, times: int) -> str:
    precision = "as released" if bits is None else f"{bits:g} bits a parameter"
    return precision if times == 1 else f"{precision}, {times} copies"


def _reserve(system: System, held: dict[str, list[Item]]) -> None:
    """What is not the model's: on every machine an operating system, on every GPU a workspace (assumptions)."""
    reserve, nodes = system.reserve, system.nodes
    if system.memory is not None:
        held.setdefault("dram", []).extend(
            (
                Item("runtime's workspace", reserve.workspace * nodes, "assumed"),
                Item("page cache", reserve.page_cache * nodes, "assumed"),
                Item("operating system", reserve.os * nodes, "assumed"),
            )
        )
    if "gpu" in held:
        count = system.gpu_count * nodes
        held["gpu"].append(
            Item("GPU workspace", reserve.gpu_workspace * count, f"assumed, {units.count(count, 'GPU')}")
        )


def _capacities(system: System) -> list[tuple[str, int | None, str]]:
    """(tier, bytes of all machines, arithmetic)."""
    nodes = system.nodes
    times = f"{nodes} machines x " if nodes > 1 else ""
    found: list[tuple[str, int | None, str]] = []
    if system.gpus:
        told = " + ".join(f"{gpu.count} x {gpu.bytes / GB:,.1f} GB" for gpu in system.gpus)
        found.append(("gpu", nodes * sum(gpu.count * gpu.bytes for gpu in system.gpus), times + told))
    memory = system.memory
    if memory is not None:
        told = f"{memory.modules} x {memory.module_bytes / 2**30:g} GiB"
        found.append(("dram", nodes * memory.bytes, times + told))
    for kind in ("hbm", "pmem", "cxl"):
        extras = [extra for extra in system.extras if extra.kind == kind]
        if extras:
            told = " + ".join(extra.detail for extra in extras)
            found.append((kind, nodes * sum(extra.bytes for extra in extras), times + told))
    storage = system.storage
    if storage is not None:
        size = storage.bytes
        told = f"{storage.drives} x {units.quantity(size, 'B')}"
        found.append(("nvme", None if size is None else nodes * storage.drives * size, times + told))
    return found


def _shortage(tier: Tier) -> str:
    assert tier.left is not None and tier.need is not None and tier.capacity is not None
    biggest = max(tier.items, key=lambda item: item.bytes or 0)
    return (
        f"{tier.title} is {units.exact_bytes(-tier.left)} short: needed are {units.exact_bytes(tier.need)} "
        f"({biggest.what} alone {units.exact_bytes(biggest.bytes or 0)}), there are "
        f"{units.exact_bytes(tier.capacity)} ({tier.capacity_detail})"
    )


CACHES: Mapping[str, tuple[str, ...]] = {
    "nvme": ("gpu", "hbm", "dram", "cxl", "pmem"),
    "pmem": ("gpu", "hbm", "dram"),
    "cxl": ("gpu", "hbm", "dram"),
}
"""Where experts that lie in a slow tier can be kept once they were read. What is kept of DRAM is a hot set."""
_ASSUMED = ("runtime's workspace", "page cache", "operating system", "GPU workspace")


def room(system: System, layout: Layout, tier: str) -> dict[str, int]:
    """Bytes by tier that could keep experts read from `tier`: all that the model does not need there, since what is
    reserved is assumed and a bound rests on nothing assumed."""
    held = {one.name: one.items for one in layout.tiers}
    found = {}
    for name, capacity, _ in _capacities(system):
        if name in CACHES.get(tier, ()) and capacity is not None:
            items = held.get(name, ())
            found[name] = capacity - sum(item.bytes or 0 for item in items if item.what not in _ASSUMED)
    return {name: size for name, size in found.items() if size > 0}
