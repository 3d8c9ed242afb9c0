"""A plan as a page of plain text: what falls short first, then each figure with its arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from k3gate import units
from k3gate.analysis.claim_case import Judged
from k3gate.analysis.estimate import Estimate
from k3gate.analysis.layout import Tier
from k3gate.analysis.planning import Plan
from k3gate.analysis.system import GB, GIB, TIER_TITLES
from k3gate.documents import printable
from k3gate.pages import WIDTH, page, row

WORDS = {
    "consistent": "consistent",
    "above_ceiling": "above the ceiling",
    "false_assumption": "false assumption",
    "untestable": "untestable",
}


def text(made: Plan) -> str:
    """The whole page."""
    sections = [
        ("Answer", _answer(made)),
        ("Residency", _residency(made)),
        ("A decoded token", _decode(made)),
        ("Prefill", _prefill(made)),
        ("Where the trunk could lie", _placements(made)),
        ("What one change would bring", _changes(made)),
    ]
    if made.claims:
        sections.append(("Claims", _claims(made.claims)))
    sections += [("Time, power, cost", _economics(made)), ("What this plan does not show", _missing(made))]
    return printable(page(sections))


def fold(line: str, indent: int = 4) -> str:
    """A long line folded, what follows indented."""
    import textwrap

    return textwrap.fill(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def interval(low: float | None, high: float | None) -> str:
    """ "1.4 to 3.5 tokens/s"; never a single number."""
    if low is None or high is None:
        return "not known"
    return f"{units.significant(low, 2)} to {units.significant(high, 2)} tokens/s"


def tokens(value: float | None) -> str:
    """A ceiling: "at most 4.02 tokens/s"."""
    return "not known" if value is None else f"at most {units.significant(value)} tokens/s"


def _answer(made: Plan) -> Iterator[str]:
    found = made.estimate
    for line in made.falls_short:
        yield fold(f"[short] {line}")
    for line in made.undecided:
        yield fold(f"[undecided] {line}")
    for one in made.contradictions:
        yield fold(f"[contradicted] {one.sentence}")
    yield row("system", found.system.name)
    demand = found.demand
    yield row(
        "target",
        f"{demand.name}: {units.count(demand.sequences, 'sequence')} of {demand.context:,} tokens"
        + (f", {demand.batch} decoded together" if demand.batch > 1 else ""),
    )
    yield row("model", f"{found.sizes.name}, {found.sizes.bytes:,} bytes, from {found.sizes.source}")
    fits = {True: "it fits", False: "it does not fit", None: "not known"}[found.layout.fits]
    yield row("residency", fits)
    held = "" if found.layout.fits is not False else ", if it fitted"
    yield row("decode", f"{_most(found)}; expected {interval(*_expected(found))}{held}")
    even, most = found.prefill.uniform, found.prefill.ceiling
    told = (
        ""
        if even is None or even == most
        else f", {units.significant(even)} where they choose experts uniformly"
    )
    yield row("prefill", f"{tokens(most)}, {found.prefill.batch:,} tokens a pass{told}")
    yield row("limit", made.limit_words)


def _most(found: Estimate) -> str:
    """ "at most 1.28 tokens/s with every hit, 0.591 without one": the ceiling of decoding."""
    bare = found.decode.without_hits
    hits = "" if bare is None else f" with every hit, {units.significant(bare)} without one"
    return f"{tokens(found.decode.ceiling)}{hits}"


def _expected(found: Estimate) -> tuple[float | None, float | None]:
    return found.expected.low, found.expected.high


def _residency(made: Plan) -> Iterator[str]:
    for tier in made.estimate.layout.tiers:
        yield row(tier.title, _capacity(tier))
        for item in tier.items:
            size = "unknown" if item.bytes is None else f"{item.bytes / GB:>10,.2f} GB"
            yield f"    {item.what:<22}{size:>14}   {item.detail}".rstrip()
        if tier.items:
            left = "unknown" if tier.left is None else f"{tier.left / GB:>10,.2f} GB"
            told = "" if tier.left is None else f"   {tier.left / GIB:,.1f} GiB"
            yield f"    {'left':<22}{left:>14}{told}"
    yield ""
    yield fold(
        "Weights by group: name, GB, parameters, bytes a parameter; what a token reads of it.",
    )
    yield from groups(made.estimate)


def groups(found: Estimate) -> Iterator[str]:
    """A line for each group of tensors."""
    told = {
        "routed": f"{found.sizes.experts_per_token} of {found.sizes.experts} experts",
        "trunk": "all",
        "embedding": "one row",
        "vision": "nothing, for text",
    }
    for group in found.sizes.groups:
        each = "unknown" if not group.parameters else f"{group.bytes / group.parameters:.3f}"
        count = "unknown" if group.parameters is None else f"{group.parameters / 1e9:,.2f} B"
        yield f"    {group.name:<22}{group.bytes / GB:>10,.2f} GB {count:>12} {each:>8}   {told[group.role]}"


def _capacity(tier: Tier) -> str:
    if tier.capacity is None:
        return f"size not stated ({tier.capacity_detail})"
    return f"{tier.capacity / GB:,.1f} GB = {tier.capacity / GIB:,.1f} GiB ({tier.capacity_detail})"


def _decode(made: Plan) -> Iterator[str]:
    found = made.estimate
    step = found.decode
    for part in step.parts:
        size = "unknown" if part.bytes is None else f"{part.bytes / GB:>10,.3f} GB"
        yield f"    {part.what:<22}{size:>14}   {TIER_TITLES[part.tier]}: {part.detail}"
    total = step.memory_bytes()
    if total is not None:
        yield f"    {'memory in all':<22}{total / GB:>10,.3f} GB"
    for rate in step.rates:
        shown = "unknown" if rate.bytes_per_s is None else f"{rate.bytes_per_s / GB:,.1f} GB/s"
        yield row(TIER_TITLES[rate.tier], f"{shown}, {rate.basis} ({rate.detail})")
    for link, number in step.round_trips.items():
        yield row(f"{TIER_TITLES[link]}", f"{number} round trips a token")
    yield row("ceiling", step.arithmetic)
    yield row("expected", f"{interval(*_expected(found))}: {found.expected.basis}")
    for line in step.unknown:
        yield fold(f"    {line}")


def _prefill(made: Plan) -> Iterator[str]:
    found = made.estimate.prefill
    rates = [(path.name, path.ceiling, path.arithmetic) for path in found.paths]
    even = [(path.name, path.uniform, path.uniform_arithmetic) for path in found.paths]
    if len(rates) > 1:
        rates.append(("together", found.ceiling, found.arithmetic))
        even.append(("together", found.uniform, found.uniform_arithmetic))
    for name, rate, arithmetic in rates:
        yield fold(f"{name}: {tokens(rate)}: {arithmetic}")
    if found.uniform != found.ceiling:
        yield fold(
            f"So much where all {found.batch:,} tokens of a pass choose the same experts; where they choose uniformly:"
        )
        for name, rate, arithmetic in even:
            yield fold(f"    {name}: {tokens(rate)}: {arithmetic}", 8)
    yield fold("Attention over long contexts is not counted, so true rates fall with context.")


def brief(found: Estimate) -> str:
    """Residency, bytes of DRAM a token, ceiling and expectation of an alternative in a line."""
    fits = {True: "fits", False: "does not fit", None: "fit unknown"}[found.layout.fits]
    parts = [fits]
    for tier in dict.fromkeys(part.tier for part in found.decode.parts):
        size = found.decode.bytes_of(tier)
        if tier not in ("pcie", "network") and size is not None:
            parts.append(f"{TIER_TITLES[tier]} {size / GB:,.2f} GB a token")
    parts.append(_most(found))
    parts.append(f"expected {interval(*_expected(found))}")
    return ", ".join(parts)


def _placements(made: Plan) -> Iterator[str]:
    for way in made.placements:
        yield fold(f"{way.title}: {brief(way.estimate)}")
        for line in way.estimate.layout.shortages:
            yield fold(f"    {line}", 8)


def _changes(made: Plan) -> Iterator[str]:
    if not made.changes:
        yield "None of the changes known here makes a difference."
    for change in made.changes:
        told = "" if change.after is None else brief(change.after)
        note = f"{'; ' if told else ''}{change.note}" if change.note else ""
        yield fold(f"{change.title}: {told}{note}")


def _claims(claims: tuple[Judged, ...]) -> Iterator[str]:
    for judged in claims:
        yield fold(f"[{WORDS[judged.verdict]}] {judged.text}")
        for reason in judged.reasons:
            yield fold(f"    {reason}", 6)


def _economics(made: Plan) -> Iterator[str]:
    yield row("fetch", f"{units.duration(made.fetch.seconds)} ({made.fetch.detail})")
    yield row("load", f"{units.duration(made.load.seconds)} ({made.load.detail})")
    power = made.power
    lacking = f"; not stated: {', '.join(power.missing)}" if power.missing else ""
    if power.total is not None:
        yield row("power", f"{power.total:,.0f} W, {power.btu_per_hour:,.0f} BTU/h of heat")
    else:
        yield row("power", f"unknown; stated are {power.stated:,.0f} W{lacking}")
    cost = made.cost
    year = "unknown: no price is given" if cost.per_year is None else f"{cost.per_year:,.0f} USD"
    yield row("cost of a year", year)
    for title, pair in (("a million tokens", cost.per_million), ("rented", cost.rent_per_million)):
        if pair is not None:
            yield row(title, f"{units.significant(pair[0], 2)} to {units.significant(pair[1], 2)} USD")
    for line in cost.details:
        yield fold(f"    {line}")


def _missing(made: Plan) -> Iterator[str]:
    yield fold("A plan is arithmetic and no evidence. An order still lacks:")
    for line in made.missing:
        yield fold(f"  - {line}")
    for note in made.notes:
        yield fold(f"note: {note}")
