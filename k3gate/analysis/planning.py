"""The plan of a system: one record with everything that `k3gate plan` says, and its JSON document. Pure."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from k3gate import units
from k3gate.analysis import economics, prediction
from k3gate.analysis.ceilings import PAPER, paper_rate, tier_rate
from k3gate.analysis.changes import Change, changes
from k3gate.analysis.claim_case import Judged
from k3gate.analysis.claims import judge_all
from k3gate.analysis.economics import Cost, Power, Span
from k3gate.analysis.estimate import Alternative, Estimate, Read, estimate, trunk_ways
from k3gate.analysis.layout import Demand
from k3gate.analysis.system import GB, TIER_TITLES, System
from k3gate.documents import digest, plain
from k3gate.errors import UsageError
from k3gate.model.sizes import ModelSizes

CAPACITY = "capacity"
_BOUND = {"network": "transfer-bound", "pcie": "transfer-bound", "nvme": "transfer-bound"}


@frozen
class Contradiction:
    """A statement about the model that its own sizes contradict: which, and by what factor."""

    key: str
    stated: float
    fact: float
    factor: float
    sentence: str


@frozen
class Plan:
    """Everything. `missing`: what a purchase still needs; a plan alone is no evidence. `uncompared`: with the run."""

    estimate: Estimate
    limiting: tuple[str, ...]
    limit_words: str
    load: Span
    fetch: Span
    power: Power
    cost: Cost
    placements: tuple[Alternative, ...]
    changes: tuple[Change, ...]
    claims: tuple[Judged, ...]
    contradictions: tuple[Contradiction, ...]
    missing: tuple[str, ...]
    run: str | None = None
    uncompared: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know beside the figures: of the file, of the model, of how the memory is populated."""
        system, sizes = self.estimate.system, self.estimate.sizes
        return (*self.uncompared, *system.notes, *_population(system), *sizes.notes)

    @property
    def falls_short(self) -> tuple[str, ...]:
        """Why `--enforce` would say no: it does not fit, or cannot reach what the target asks."""
        found = list(self.estimate.layout.shortages)
        asked, ceiling = self.estimate.demand.decode_tokens_per_s, self.estimate.decode.ceiling
        if asked is not None and ceiling is not None and ceiling < asked:
            found.append(
                f"decode cannot exceed {units.significant(ceiling)} tokens/s; the target asks for {asked:g}"
            )
        wanted, best = self.estimate.demand.prefill_tokens_per_s, self.estimate.prefill.ceiling
        if wanted is not None and best is not None and best < wanted:
            found.append(
                f"prefill cannot exceed {units.significant(best)} tokens/s; the target asks for {wanted:g}"
            )
        allowed = self.estimate.demand.load_seconds
        if allowed is not None and self.load.seconds is not None and self.load.seconds > allowed:
            found.append(
                f"loading takes {units.duration(self.load.seconds)} at least; the target allows "
                f"{units.duration(allowed)}"
            )
        return tuple(found)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Why `--enforce` could say neither yes nor no."""
        found = list(self.estimate.layout.unknown)
        asked, expected = self.estimate.demand.decode_tokens_per_s, self.estimate.expected
        if asked is not None and self.estimate.decode.ceiling is None:
            found.append("the decode ceiling is not known")
        elif asked is not None and (expected.low is None or expected.low < asked):
            found.append(f"decode of {asked:g} tokens/s {_not_assured(asked, expected)}")
        wanted, best = self.estimate.demand.prefill_tokens_per_s, self.estimate.prefill.ceiling
        if wanted is not None and best is None:
            found.append("the prefill ceiling is not known")
        elif wanted is not None:
            most = units.significant(best or 0.0)
            found.append(
                f"prefill of {wanted:g} tokens/s is not assured: {most} are the most, and nothing is expected"
            )
        allowed = self.estimate.demand.load_seconds
        if allowed is not None and self.load.seconds is None:
            found.append(f"how long loading takes is not known: {self.load.detail}")
        elif allowed is not None:
            least = units.duration(self.load.seconds)
            found.append(f"loading within {units.duration(allowed)} is not assured: {least} are the least")
        return tuple(found)


def plan(
    system: System,
    sizes: ModelSizes,
    demand: Demand,
    read: Read | None = None,
    run: str | None = None,
    uncompared: tuple[str, ...] = (),
) -> Plan:
    """The plan of `system` for `sizes` and `demand`.

    `read`: rates by tier that `run` measured. `uncompared`: what of this machine was not compared with the run's.
    """
    found = estimate(system, sizes, demand, read)
    _possible(found)
    system = found.system
    tiers, words = _limit(found)
    watts = economics.power(system)
    return Plan(
        found,
        tiers,
        words,
        economics.load(found),
        economics.fetch(found),
        watts,
        economics.cost(found, watts),
        trunk_ways(found),
        changes(found),
        tuple(judge_all(found)),
        _contradictions(system, sizes),
        _missing(run),
        run,
        uncompared,
    )


def _possible(found: Estimate) -> None:
    """`UsageError` where a rate was measured above the paper rate: nothing reads so fast, so one of both is wrong."""
    one = evolve(found.system, nodes=1)
    for tier in ("dram", "gpu", "pmem"):
        rate, (paper, detail) = tier_rate(one, tier, found.read), paper_rate(one, tier)
        if rate.basis == PAPER or rate.bytes_per_s is None or paper is None or rate.bytes_per_s <= paper:
            continue
        raise UsageError(
            f"system {found.system.name!r}: {rate.bytes_per_s / GB:,.1f} GB/s of {TIER_TITLES[tier]} ({rate.detail}) "
            f"are above the paper rate, {paper / GB:,.1f} GB/s ({detail}): correct the one or the other"
        )


def _not_assured(asked: float, expected: prediction.Expected) -> str:
    if expected.low is None or expected.high is None:
        return "is not assured: what to expect is not known"
    low, high = (units.significant(value, 2) for value in (expected.low, expected.high))
    word = "is not expected" if expected.high < asked else "is not assured"
    return f"{word}: {low} to {high} are"


def _population(system: System) -> tuple[str, ...]:
    """Empty channels, channels with unlike numbers of modules, and several modules on one."""
    memory, used, all_ = system.memory, system.populated_channels, system.all_channels
    if memory is None or used is None:
        return ()
    found = []
    if all_ is not None and used < all_:
        found.append(
            f"{all_ - used} of {all_} memory channels are empty; some boards then interleave unevenly"
        )
    each, more = divmod(memory.modules, used)
    if more:
        found.append(
            f"{more} of {used} channels hold {each + 1} modules and the others {each}: the last part of memory lies on "
            "fewer channels, and is read slower than planned here"
        )
    if each + bool(more) > 1:
        found.append(
            f"with {each + bool(more)} modules on a channel many boards run them slower than rated; planned are "
            f"{'unknown' if memory.mts is None else f'{memory.mts:,}'} MT/s"
        )
    return tuple(found)


def _limit(found: Estimate) -> tuple[tuple[str, ...], str]:
    """The limiting tiers and a sentence that a buyer reads."""
    if found.layout.fits is False:
        return (CAPACITY,), f"Capacity-bound: {'; '.join(found.layout.shortages)}."
    tiers = prediction.limiting(found.expected)
    if not tiers:
        why = "; ".join(found.decode.unknown) or found.expected.basis
        return (), f"Not known: {why}."
    shares = found.expected.shares
    told = ", ".join(
        f"{TIER_TITLES[tier]} {share:.0%}"
        for tier, share in sorted(shares.items(), key=lambda one: -one[1])
        if share >= 0.005
    )
    kinds = dict.fromkeys(_BOUND.get(tier, "bandwidth-bound") for tier in tiers)
    named = " and ".join(TIER_TITLES[tier] for tier in tiers)
    verb = "take" if len(tiers) > 1 or tiers == ("nvme",) else "takes"
    return tiers, (
        f"{' and '.join(kinds).capitalize()}: {named} {verb} most of a token's predicted time ({told})."
    )


def _missing(run: str | None) -> tuple[str, ...]:
    measured = (
        "measured bandwidth: rent the machine and call `k3gate run --profile standard`, then plan with `--run`"
        if run is None
        else None
    )
    return tuple(
        line
        for line in (
            measured,
            "prototype: nothing here shows that a runtime loads and answers with this model on this machine (step 4)",
            "the gate: steps 1 to 6 passed or waived, then `k3gate bom freeze`",
        )
        if line is not None
    )


_FACTS = {
    "layers": ("layers", 1.0),
    "active_parameters": ("active parameters", 1.0),
    "total_parameters": ("parameters in all", 1.0),
    "experts": ("experts in a layer", 1.0),
    "experts_per_token": ("experts for a token", 1.0),
    "weights_gb": ("GB of weights", 1 / GB),
}


def _contradictions(system: System, sizes: ModelSizes) -> tuple[Contradiction, ...]:
    """What the file states of the model and the model's sizes contradict. The sizes win."""
    facts = {
        "layers": sizes.layers,
        "active_parameters": sizes.active_parameters,
        "total_parameters": sizes.parameters,
        "experts": sizes.experts,
        "experts_per_token": sizes.experts_per_token,
        "weights_gb": sizes.bytes,
    }
    found = []
    for override in system.overrides:
        raw = facts[override.key]
        if raw is None:
            continue
        title, scale = _FACTS[override.key]
        fact = raw * scale
        factor = fact / override.stated
        if abs(factor - 1) <= 0.01:
            continue
        effect = (
            f"planned by it, tokens/s would be expected {factor:.1f} times too high; "
            if override.key == "active_parameters" and factor > 1
            else ""
        )
        found.append(
            Contradiction(
                override.key,
                override.stated,
                fact,
                factor,
                f"[model] {override.key} states {_short(override.stated)} {title}; {sizes.source} give "
                f"{_short(fact)}, and they win: {effect}do step 1 of the gate (`k3gate inspect`) before step 6",
            )
        )
    return tuple(found)


def _short(value: float) -> str:
    return f"{value / 1e9:,.1f} billion" if value >= 1e9 else f"{value:,g}"


# --- the document ----------------------------------------------------------------------------------------


def document(made: Plan) -> dict[str, Any]:
    """The JSON of `k3gate plan --json`: bytes, B/s, seconds, W, USD; unknown is null."""
    found = made.estimate
    step, expected = found.decode, found.expected
    per_tier = {tier: step.bytes_of(tier) for tier in dict.fromkeys(part.tier for part in step.parts)}
    told: dict[str, Any] = {
        "system": {"name": found.system.name, "digest": found.system.hash, "nodes": found.system.nodes},
        "model": _model(found.sizes),
        "target": plain(found.demand),
        "run": made.run,
        "residency": {
            "fits": found.layout.fits,
            "tiers": {tier.name: _tier(tier) for tier in found.layout.tiers},
            "shortages": list(found.layout.shortages),
            "unknown": list(found.layout.unknown),
            "placement": plain(found.layout.placement),
            "copies": found.layout.copies,
        },
        "decode": {
            "bytes_per_token": {**per_tier, "total": step.memory_bytes()},
            "parts": [plain(part) for part in step.parts],
            "rates": {rate.tier: plain(rate) for rate in step.rates},
            "batch": step.batch,
            "round_trips": dict(step.round_trips),
            "seconds": dict(step.seconds),
            "ceiling_tokens_per_s": step.ceiling,
            "without_hits_tokens_per_s": step.without_hits,
            "arithmetic": step.arithmetic,
            "expected_tokens_per_s": _pair(expected.low, expected.high),
            "basis": expected.basis,
            "shares": dict(expected.shares),
            "tested": _tested(found.system.engine),
            "unknown": list(step.unknown),
        },
        "prefill": {
            "batch_tokens": found.prefill.batch,
            "ceiling_tokens_per_s": found.prefill.ceiling,
            "arithmetic": found.prefill.arithmetic,
            "uniform_tokens_per_s": found.prefill.uniform,
            "uniform_arithmetic": found.prefill.uniform_arithmetic,
            "paths": [plain(path) for path in found.prefill.paths],
        },
        "limiting_tier": " and ".join(made.limiting) or None,
        "limit": made.limit_words,
        "load": plain(made.load),
        "fetch": plain(made.fetch),
        "power": {**plain(made.power), "btu_per_hour": made.power.btu_per_hour},
        "cost": {
            "usd_per_year": made.cost.per_year,
            "usd_per_million_tokens": _pair(*(made.cost.per_million or (None, None))),
            "rent_usd_per_million_tokens": _pair(*(made.cost.rent_per_million or (None, None))),
            "details": list(made.cost.details),
        },
        "placements": [
            {"key": way.key, "title": way.title, **_brief(way.estimate)} for way in made.placements
        ],
        "changes": [
            {
                "key": change.key,
                "title": change.title,
                "note": change.note or None,
                **(_brief(change.after) if change.after is not None else _NOTHING),
            }
            for change in made.changes
        ],
        "claims": [
            {
                "claim": judged.text,
                "name": judged.claim.name,
                "kind": judged.claim.kind,
                "verdict": judged.verdict,
                "reasons": list(judged.reasons),
            }
            for judged in made.claims
        ],
        "contradictions": [plain(one) for one in made.contradictions],
        "falls_short": list(made.falls_short),
        "undecided": list(made.undecided),
        "missing": list(made.missing),
        "notes": [*made.notes],
        "sources": dict(found.system.sources),
    }
    return dict(plain(told))


def _tested(engine: str) -> dict[str, int]:
    inside, rows = prediction.TESTED[engine]
    return {"inside": inside, "of": rows, "inside_without_machine": prediction.LEFT_OUT[engine]}


def _pair(low: float | None, high: float | None) -> list[float] | None:
    return None if low is None or high is None else [low, high]


_NOTHING: dict[str, Any] = {
    "fits": None,
    "ceiling_tokens_per_s": None,
    "expected_tokens_per_s": None,
    "bytes_per_token": None,
    "shortages": [],
}


def _brief(found: Estimate) -> dict[str, Any]:
    tiers = dict.fromkeys(part.tier for part in found.decode.parts)
    return {
        "fits": found.layout.fits,
        "ceiling_tokens_per_s": found.decode.ceiling,
        "expected_tokens_per_s": _pair(found.expected.low, found.expected.high),
        "bytes_per_token": {tier: found.decode.bytes_of(tier) for tier in tiers},
        "shortages": list(found.layout.shortages),
    }


def _tier(tier: Any) -> dict[str, Any]:
    return {
        "capacity_bytes": tier.capacity,
        "capacity": tier.capacity_detail,
        "need_bytes": tier.need,
        "left_bytes": tier.left,
        "items": [plain(item) for item in tier.items],
    }


def _model(sizes: ModelSizes) -> dict[str, Any]:
    return {
        "name": sizes.name,
        "source": sizes.source,
        "bytes": sizes.bytes,
        "parameters": {"total": sizes.parameters, "active": sizes.active_parameters},
        "groups": [plain(group) for group in sizes.groups],
        "kv_bytes_per_token": sizes.kv_bytes_per_token,
        "state_bytes_per_sequence": sizes.state_bytes,
        "digest": digest(plain(sizes)),
    }
