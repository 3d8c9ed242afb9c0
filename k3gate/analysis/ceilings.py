"""What a decoded token costs each tier, and the rate that nothing can exceed. Pure arithmetic.

Tiers follow one another within a token (experts wait for the router, the next layer for the experts), so that times
are added: a token takes the sum of bytes / rate over all tiers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import evolve, frozen

from k3gate import units
from k3gate.analysis.layout import (
    EXPERTS_ITEM,
    Demand,
    Layout,
    bytes_at,
    most_hits,
    room,
    split,
)
from k3gate.analysis.system import GB, KV_BYTES, TIER_TITLES, HotSet, System
from k3gate.model.sizes import ROUTED, TRUNK, ModelSizes
from k3gate.model.traffic import distinct_experts

PAPER, MEASURED, STATED = "paper", "measured", "stated"


@frozen
class Rate:
    """Bytes/s of a tier of all machines. `basis`: paper, measured by this run, or stated by somebody; None: unknown."""

    tier: str
    bytes_per_s: float | None
    basis: str
    detail: str


@frozen
class Part:
    """What one decode step moves of one thing, in bytes; None: not to be known.

    `bytes`: where tokens choose experts uniformly and a hot set whose coverage is unknown catches nothing; `best`:
    where it catches all that so many experts can; `least`: where all tokens choose the same experts and the hot set
    catches what makes a step the fastest, which no step can go below.
    """

    what: str
    tier: str
    bytes: float | None
    best: float | None
    least: float | None
    detail: str


@frozen
class Decode:
    """A decode step: one token for each of `batch` sequences. Rates are of each sequence.

    `without_hits`: the most where free memory keeps no experts of a slow tier; None where none could be kept.
    """

    parts: tuple[Part, ...]
    rates: tuple[Rate, ...]
    batch: int
    round_trips: Mapping[str, int]
    latency_seconds: float
    seconds: Mapping[str, float | None]
    ceiling: float | None
    arithmetic: str
    unknown: tuple[str, ...] = ()
    without_hits: float | None = None

    def bytes_of(self, tier: str) -> float | None:
        """Bytes of a step from and to a tier; None where a part is unknown, 0 where there is none."""
        sizes = [part.bytes for part in self.parts if part.tier == tier]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def rate(self, tier: str) -> Rate | None:
        """The rate of a tier."""
        return next((rate for rate in self.rates if rate.tier == tier), None)

    def memory_bytes(self) -> float | None:
        """Bytes of a step from all memory tiers together."""
        sizes = [part.bytes for part in self.parts if part.tier not in ("network", "pcie")]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def decode(
    system: System,
    sizes: ModelSizes,
    demand: Demand,
    layout: Layout,
    read: Mapping[str, tuple[float, str]] | None = None,
) -> Decode:
    """The step and its ceiling. `read`: by tier, B/s of one machine that a run measured and where that
    stands."""
    bare = _parts(system, sizes, demand, layout, read or {})
    parts = _kept(bare, system, layout, read or {})
    tiers = list(dict.fromkeys(part.tier for part in parts))
    rates = tuple(tier_rate(system, tier, read or {}) for tier in tiers)
    known = {rate.tier: rate.bytes_per_s for rate in rates}
    trips = _round_trips(system, sizes, layout)
    latency = (system.network_seconds or 0.0) * trips.get("network", 0)
    seconds: dict[str, float | None] = {}
    unknown = []
    for tier in tiers:
        rate = known[tier]
        own = [part for part in parts if part.tier == tier]
        size, low = (total([getattr(part, key) for part in own]) for key in ("bytes", "least"))
        seconds[tier] = None if size is None or rate is None else size / rate
        # A link whose rate nobody stated slows a token further; leaving it out keeps the ceiling a ceiling.
        if tier in ("pcie", "network") and rate is None:
            unknown.append(f"the rate of {TIER_TITLES[tier]} is not stated and not counted")
            continue
        if rate is None and (size or low):
            unknown.append(f"the rate of {TIER_TITLES[tier]} is not stated")
    if any(part.bytes is None for part in parts):
        unknown.append("what a token reads of the model is not known")
    ceiling, arithmetic = _bound(parts, known, latency)
    without_hits = None
    if len(parts) != len(bare):
        without_hits, told = _bound(bare, known, latency)
        arithmetic = f"{arithmetic} with every hit that free memory can give; without a hit {told}"
    return Decode(
        parts,
        rates,
        demand.batch,
        trips,
        latency,
        seconds,
        ceiling,
        arithmetic,
        tuple(unknown),
        without_hits,
    )


def _bound(
    parts: tuple[Part, ...], rates: Mapping[str, float | None], latency: float
) -> tuple[float | None, str]:
    """The most steps a second that the least bytes of each tier allow, and the arithmetic."""
    least: list[float | None] = [latency]
    for tier in dict.fromkeys(part.tier for part in parts):
        rate, low = rates[tier], total([part.least for part in parts if part.tier == tier])
        if low is None or (low and not (rate is None and tier in ("pcie", "network"))):
            least.append(None if rate is None or low is None else low / rate)
    time = total(least)
    ceiling = 1 / time if time else None
    return ceiling, _arithmetic(parts, rates, latency, ceiling)


def _kept(
    parts: tuple[Part, ...], system: System, layout: Layout, read: Mapping[str, tuple[float, str]]
) -> tuple[Part, ...]:
    """The parts, of experts in a slow tier those apart which free memory could have kept of tokens before.

    They count for the ceiling alone: how many reads hit is not known, and nobody promises one.
    """
    found: list[Part] = []
    for part in parts:
        kept = {}
        if part.what == EXPERTS_ITEM and part.least:
            kept = keep(system, layout, read, part.tier, part.least)
        found.append(evolve(part, least=(part.least or 0) - sum(kept.values())) if kept else part)
        for tier, size in kept.items():
            known = tier_rate(system, tier, read).bytes_per_s is not None
            told = f"{size / GB:,.2f} GB at most, where hits are counted" + (
                "" if known else "; its rate is not stated"
            )
            # Without a rate their time is left out, which keeps the ceiling a ceiling.
            found.append(Part("experts kept", tier, 0.0, 0.0, size if known else 0.0, told))
    return tuple(found)


def keep(
    system: System, layout: Layout, read: Mapping[str, tuple[float, str]], tier: str, size: float
) -> dict[str, float]:
    """How `size` bytes of experts that lie in `tier` are divided over free memory that reads faster, the fastest first,
    memory without a stated rate before all; what finds no room is left out. Empty where the tier's own is unknown."""
    free = room(system, layout, tier)
    slow = tier_rate(system, tier, read).bytes_per_s
    rates = {name: tier_rate(system, name, read).bytes_per_s or math.inf for name in free}
    found: dict[str, float] = {}
    for name in sorted(free, key=lambda one: -rates[one]):
        if slow is not None and rates[name] > slow and size > 0:
            found[name] = min(float(free[name]), size)
            size -= found[name]
    return found


def total(values: list[float | None]) -> float | None:
    """The sum; None where one is unknown."""
    return None if None in values else sum(value for value in values if value is not None)


def _arithmetic(
    parts: tuple[Part, ...], rates: Mapping[str, float | None], latency: float, ceiling: float | None
) -> str:
    """ "1 / (25.83 GB / 340 GB/s + 59.04 GB / 1,800 GB/s) = 9.19 tokens/s"."""
    terms = []
    for tier in dict.fromkeys(part.tier for part in parts):
        rate, low = rates[tier], total([part.least for part in parts if part.tier == tier])
        if not low or (tier in ("pcie", "network") and (rate is None or low / rate < 1e-4)):
            continue
        shown = "an unknown rate" if rate is None else f"{rate / GB:,.1f} GB/s"
        size = f"{low / GB:,.2f} GB" if low >= 0.005 * GB else units.quantity(low, "B")
        terms.append(f"{size} of {TIER_TITLES[tier]} / {shown}")
    if latency:
        terms.append(f"{latency * 1e3:.1f} ms of network round trips")
    result = "unknown" if ceiling is None else f"{units.significant(ceiling)} tokens/s"
    return f"1 / ({' + '.join(terms)}) = {result}" if terms else result


def _parts(
    system: System,
    sizes: ModelSizes,
    demand: Demand,
    layout: Layout,
    read: Mapping[str, tuple[float, str]],
) -> tuple[Part, ...]:
    placed, precision, batch = layout.placement, system.precision, demand.batch
    found: list[Part] = []
    routed = sizes.bytes_of(ROUTED, precision.experts)
    if sizes.role(ROUTED) and placed.experts is not None:
        share = None if routed is None else sizes.share_of(routed)
        uniform: float | None = share
        told = f"{sizes.experts_per_token} of {sizes.experts} experts of {sizes.expert_layers} layers"
        used = sizes.experts_per_token
        number: float | None = used
        if share is not None and batch > 1 and sizes.experts and sizes.experts_per_token:
            distinct = distinct_experts(batch, sizes.experts, sizes.experts_per_token)
            number, uniform = float(distinct), float(share * distinct / sizes.experts_per_token)
            told = (
                f"{float(distinct):.0f} of {sizes.experts} experts of {sizes.expert_layers} layers, chosen uniformly "
                f"by {batch} tokens; {share / GB:,.2f} GB if all chose alike"
            )
        if system.hot is None:
            found.append(Part(EXPERTS_ITEM, placed.experts, uniform, uniform, share, told))
        else:
            held, gpu = (tier_rate(system, tier, read).bytes_per_s for tier in (placed.experts, "gpu"))
            hits = (most_hits(system.hot.experts, number), most_hits(system.hot.experts, used))
            # GPUs that read slower than what else holds the experts make a step slower by every hit.
            slower = held is not None and gpu is not None and gpu < held
            found += _hot(system.hot, placed.experts, (uniform, share), hits, told, slower=slower)
    told = "as released" if precision.trunk is None else f"at {precision.trunk:g} bits a parameter"
    for tier, name, groups in split(sizes.role(TRUNK), placed.trunk, placed.groups, "trunk"):
        trunk = bytes_at(groups, precision.trunk)
        found.append(Part(name, tier, trunk, trunk, trunk, f"all of it, {told}"))
    cache = placed.cache or "dram"
    if sizes.state_bytes is None or sizes.state_bytes:
        state = None if sizes.state_bytes is None else 2.0 * sizes.state_bytes * batch
        found.append(Part("recurrent state", cache, state, state, state, "read and written"))
    kv = sizes.kv_bytes_per_token
    size = None if kv is None else kv * KV_BYTES[precision.kv] * demand.context * batch
    if size is None or size:
        found.append(Part("KV cache", cache, size, size, size, f"{demand.context:,} tokens, read"))
    found += _links(system, sizes, demand, layout)
    return tuple(found)


def _hot(
    hot: HotSet,
    tier: str,
    sizes: tuple[float | None, float | None],
    most: tuple[float, float],
    told: str,
    *,
    slower: bool,
) -> list[Part]:
    """Routed bytes divided over a hot set where its coverage was measured; else from nothing to all it can catch.

    `sizes` in bytes and `most`, the share that the set can catch: where experts are chosen uniformly, and where all
    tokens choose alike. `slower`: a hit is read slower than a miss.
    """
    uniform, share = sizes
    coverage = hot.coverage(hot.experts)
    if coverage is None:
        # Not known is not uniform: what is promised counts no hit, what cannot be exceeded those that help.
        least = 0.0 if slower else most[1]
        return [
            Part(
                EXPERTS_ITEM,
                tier,
                uniform,
                _part(uniform, 1 - most[0]),
                _part(share, 1 - least),
                f"{told}; how many the hot set catches is not known",
            ),
            Part(
                "hot experts",
                "gpu",
                0.0,
                _part(uniform, most[0]),
                _part(share, least),
                f"if the hot set caught {'every read' if most[0] == 1 else f'{most[0]:.1%} of the reads, all it can'}",
            ),
        ]
    hit = f"the hot set catches {coverage:.1%} of the reads (measured curve)"
    # Several tokens read a hot expert once, so that of different experts the set is never more than all of it.
    caught = min(coverage, most[0])
    cold, warm = _part(uniform, 1 - caught), _part(uniform, caught)
    return [
        Part(EXPERTS_ITEM, tier, cold, cold, _part(share, 1 - coverage), f"{told}; {hit}"),
        Part("hot experts", "gpu", warm, warm, _part(share, coverage), hit),
    ]


def _part(size: float | None, share: float) -> float | None:
    return None if size is None else size * share


def _links(system: System, sizes: ModelSizes, demand: Demand, layout: Layout) -> list[Part]:
    """What crosses PCIe between trunk and experts, and the network between machines."""
    found = []
    if crosses_pcie(layout) and sizes.expert_width and sizes.expert_layers:
        one = sizes.expert_width * 2
        size = float(2 * one * sizes.expert_layers * demand.batch)
        told = f"{sizes.expert_layers} layers x {one:,} B each way ({sizes.expert_width:,} numbers in BF16)"
        found.append(Part("activations", "pcie", size, size, size, told))
    if system.nodes > 1 and sizes.hidden and sizes.layers:
        size = 2.0 * sizes.layers * sizes.hidden * 2 * demand.batch
        told = f"2 sums over all machines a layer x {sizes.layers} layers x {sizes.hidden * 2:,} B"
        found.append(Part("sums over machines", "network", size, size, size, told))
    return found


def crosses_pcie(layout: Layout) -> bool:
    """Whether trunk and routed experts lie on different sides of PCIe."""
    placed = layout.placement
    return (placed.trunk == "gpu") != (placed.experts == "gpu")


def _round_trips(system: System, sizes: ModelSizes, layout: Layout) -> dict[str, int]:
    """Times that a token waits for an answer from the other side of a link."""
    found = {}
    if crosses_pcie(layout) and sizes.expert_layers:
        found["pcie"] = sizes.expert_layers
    if system.nodes > 1 and sizes.layers:
        found["network"] = 2 * sizes.layers
    return found


def tier_rate(system: System, tier: str, read: Mapping[str, tuple[float, str]]) -> Rate:
    """The rate of a tier: measured by the run (of one machine), else as somebody measured it, else as paper has it."""
    if tier in read:
        value, where = read[tier]
        times = f"{system.nodes} machines x " if system.nodes > 1 else ""
        return Rate(tier, value * system.nodes, MEASURED, times + where)
    stated = {"dram": system.measured.dram, "gpu": system.measured.gpu, "pmem": system.measured.pmem}.get(
        tier
    )
    if stated is not None:
        return Rate(tier, stated * system.nodes, STATED, f"measured: {system.measured.source}")
    paper, detail = paper_rate(system, tier)
    return Rate(tier, paper, PAPER, detail)


def paper_rate(system: System, tier: str) -> tuple[float | None, str]:
    """B/s on paper of a tier of all machines, and the arithmetic."""
    nodes = system.nodes
    times = f"{nodes} machines x " if nodes > 1 else ""
    if tier == "dram":
        channels, memory = system.populated_channels, system.memory
        if channels is None or memory is None or memory.mts is None:
            return None, "channels or speed are not stated"
        rate = nodes * channels * memory.mts * 8e6
        return rate, f"{times}{channels} channels x {memory.mts:,} MT/s x 8 B"
    if tier == "gpu":
        return _gpu_rate(system, times)
    if tier == "nvme":
        storage = system.storage
        if storage is None or storage.bytes_per_s is None:
            return None, "the rate of the drives is not stated"
        drives = nodes * storage.drives * storage.bytes_per_s
        return drives, f"{times}{units.count(storage.drives, 'drive')} x {storage.bytes_per_s / GB:g} GB/s"
    if tier == "network":
        return system.network_bytes_per_s, "of one machine" + (
            f", {system.network_fabric}" if system.network_fabric else ""
        )
    if tier == "pcie":
        links = [(gpu.pcie_bytes_per_s, gpu.count) for gpu in system.gpus]
        if not links or any(each is None for each, _ in links):
            return None, "PCIe is not stated"
        return nodes * sum((each or 0) * count for each, count in links), f"{times}all GPUs, each way"
    return _extra_rate(system, tier, times)


def _extra_rate(system: System, tier: str, times: str) -> tuple[float | None, str]:
    extras = [extra for extra in system.extras if extra.kind == tier]
    if not extras or any(extra.bytes_per_s is None for extra in extras):
        return None, f"the rate of {TIER_TITLES[tier]} is not stated"
    return system.nodes * sum(extra.bytes_per_s or 0 for extra in extras), f"{times}as the file states"


def _gpu_rate(system: System, times: str) -> tuple[float | None, str]:
    gpus = system.gpus
    if not gpus:
        return None, "there is no GPU"
    if any(gpu.bytes_per_s is None for gpu in gpus):
        return None, "the memory rate of the GPUs is not stated"
    told = " + ".join(f"{gpu.count} x {(gpu.bytes_per_s or 0) / GB:,.0f} GB/s" for gpu in gpus)
    several = system.gpu_count * system.nodes > 1
    if system.gpu_split == "tensor":
        rate = system.nodes * sum(gpu.count * (gpu.bytes_per_s or 0) for gpu in gpus)
        return rate, f"{times}{told}{', all reading at once' if several else ''}"
    # Layers one after the other: a byte is read at the rate of the GPU that holds it.
    held = sum(gpu.count * gpu.bytes for gpu in gpus)
    time = sum(gpu.count * gpu.bytes / (gpu.bytes_per_s or 1) for gpu in gpus)
    return held / time, f"{told}{', one after the other' if several else ''}"
