"""Time to fetch and to load, power and heat, cost of a year and of a million tokens. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from k3gate.analysis.ceilings import paper_rate
from k3gate.analysis.estimate import Estimate
from k3gate.analysis.layout import HOT_ITEM
from k3gate.analysis.system import GB, System

SECONDS_PER_YEAR = 365.25 * 86_400
BTU_PER_WATT_HOUR = 3.412142


@frozen
class Span:
    """Seconds that something takes at least; None: something is not stated. `detail`: the arithmetic, or what lacks."""

    seconds: float | None
    detail: str


@frozen
class Power:
    """Watts of all machines: the sum of what is stated, and whose power is not. `total` None: something lacks."""

    stated: float
    total: float | None
    parts: tuple[tuple[str, float], ...]
    missing: tuple[str, ...]

    @property
    def btu_per_hour(self) -> float | None:
        """Heat that must be led away."""
        return None if self.total is None else self.total * BTU_PER_WATT_HOUR


@frozen
class Cost:
    """USD a year and a million decoded tokens, (low, high) as the expected rate has it; None: a price lacks."""

    per_year: float | None
    per_million: tuple[float, float] | None
    rent_per_million: tuple[float, float] | None
    details: tuple[str, ...]


def fetch(found: Estimate) -> Span:
    """Time to fetch all weights over the line."""
    line = found.system.line_bytes_per_s
    if line is None:
        return Span(None, "the line is not stated ([line] gbit_per_s)")
    size = found.sizes.bytes
    seconds = size / line
    return Span(seconds, f"{size / GB:,.1f} GB / ({line * 8 / 1e9:g} Gbit/s / 8)")


def load(found: Estimate) -> Span:
    """Time to read the weights, as laid out, from the drives of each machine."""
    rate, detail = paper_rate(found.system, "nvme")
    if rate is None:
        return Span(None, detail)
    placed = found.layout.placement
    if placed.experts == "nvme":
        return Span(None, "experts stay on the drives: they are read as they are used")
    # Copies lie in the memory of the CPUs alone; they and hot experts are made of what was read once.
    size = sum(
        tier.weights(HOT_ITEM) // (found.layout.copies if tier.name in ("dram", "hbm") else 1)
        for tier in found.layout.tiers
        if tier.name != "nvme"
    )
    return Span(size / rate, f"{size / GB:,.1f} GB / {rate / GB:g} GB/s ({detail})")


def power(system: System) -> Power:
    """Watts as stated, of all machines."""
    parts: list[tuple[str, float]] = []
    missing: list[str] = []
    for name, watts in _watts(system):
        if watts is None:
            missing.append(name)
        else:
            parts.append((name, watts * system.nodes))
    stated = sum(watts for _, watts in parts)
    return Power(stated, None if missing or not parts else stated, tuple(parts), tuple(missing))


def _watts(system: System) -> Iterator[tuple[str, float | None]]:
    if system.cpu_model or system.sockets:
        each = system.cpu_watts
        yield "processors", None if each is None else each * (system.sockets or 1)
    memory = system.memory
    if memory is not None:
        yield "memory modules", None if memory.watts is None else memory.watts * memory.modules
    for gpu in system.gpus:
        yield gpu.model, None if gpu.watts is None else gpu.watts * gpu.count
    storage = system.storage
    if storage is not None:
        yield "drives", None if storage.watts is None else storage.watts * storage.drives
    yield "board, fans, losses", system.other_watts


def cost(found: Estimate, watts: Power) -> Cost:
    """What a year and a million tokens cost at the expected rate, all sequences of the batch together."""
    prices, system = found.system.prices, found.system
    details: list[str] = []
    per_year = None
    if prices.machine is not None:
        per_year = prices.machine * system.nodes / prices.years
        details.append(f"{prices.machine * system.nodes:,.0f} USD over {prices.years:g} years")
        if prices.kwh is not None and watts.total is not None:
            energy = watts.total / 1000 * SECONDS_PER_YEAR / 3600 * prices.kwh
            per_year += energy
            details.append(f"{watts.total:,.0f} W all year at {prices.kwh:g} USD/kWh: {energy:,.0f} USD")
        else:
            lacking = "its price" if prices.kwh is None else f"the power of {', '.join(watts.missing)}"
            details.append(f"energy is not counted: {lacking} is not stated")
    rates = _rates(found)
    per_million = rent = None
    if per_year is not None and rates is not None:
        tokens = [rate * SECONDS_PER_YEAR * prices.utilisation for rate in rates]
        per_million = (per_year / tokens[1] * 1e6, per_year / tokens[0] * 1e6)
        details.append(f"{prices.utilisation:.0%} of the time at the expected rate")
    if prices.hour is not None and rates is not None:
        rent = tuple(prices.hour * system.nodes / (rate * 3600) * 1e6 for rate in reversed(rates))
        details.append(f"rented at {prices.hour * system.nodes:g} USD an hour, always busy")
    return Cost(per_year, per_million, (rent[0], rent[1]) if rent else None, tuple(details))


def _rates(found: Estimate) -> tuple[float, float] | None:
    expected, batch = found.expected, found.demand.batch
    if found.layout.fits is False or not expected.low or not expected.high:
        return None
    return expected.low * batch, expected.high * batch
