"""A claim in its setting: what is said of it, and the plan under the circumstances that it names. Pure."""

from __future__ import annotations

from attrs import evolve, field, frozen

from k3gate import units
from k3gate.analysis.estimate import Estimate
from k3gate.analysis.system import CLAIM_KINDS, Claim

CONSISTENT, ABOVE, FALSE, UNTESTABLE = "consistent", "above_ceiling", "false_assumption", "untestable"
VERDICTS = (CONSISTENT, ABOVE, FALSE, UNTESTABLE)


@frozen
class Judged:
    """A claim with its verdict and every reason, the arithmetic in each."""

    claim: Claim
    text: str
    verdict: str
    reasons: tuple[str, ...]


@frozen
class _Said:
    """What one look at a claim says: a verdict or None, and a reason."""

    verdict: str | None
    reason: str


@frozen
class Case:
    """A claim in its setting: `base` the plan, `own` the plan under the claim's own premises."""

    claim: Claim
    base: Estimate
    own: Estimate
    said: list[_Said] = field(factory=list)

    def say(self, reason: str, verdict: str | None = None) -> None:
        """Note a reason, with the verdict that it leads to."""
        self.said.append(_Said(verdict, reason))

    def premise(self, key: str) -> float | None:
        """A premise that is a number; None where the claim has none."""
        value = self.claim.premises.get(key)
        return float(value) if isinstance(value, int | float) else None


def tokens(rate: float) -> str:
    """ "22.6 tokens/s are", "1 token/s is": a stated rate with its verb."""
    return f"{rate:,.10g} token/s is" if rate == 1 else f"{rate:,.10g} tokens/s are"


def above(stated: float, most: float) -> bool:
    """Whether a stated rate is above `most`, which people are told to three digits: what is printed is not above it."""
    return stated > most and units.significant(stated) != units.significant(most)


def part_above(case: Case, most: float) -> str:
    """Of a range whose lower end is possible, that its upper end is not; empty for one value, and where it is."""
    claim, factor = case.claim, CLAIM_KINDS[case.claim.kind].factor
    return (
        f"; {claim.high / factor:,.10g} is above it"
        if claim.low != claim.high and above(claim.high, most)
        else ""
    )


def text(claim: Claim) -> str:
    """ "decode rate of one sequence: 3 to 6 tokens/s (source)"."""
    kind = CLAIM_KINDS[claim.kind]
    low, high = (_plain(value / kind.factor) for value in (claim.low, claim.high))
    one = kind.unit == "tokens/s" and claim.low == claim.high == 1
    unit = " token/s" if one else f" {kind.unit}" if kind.unit else ""
    shown = low if low == high else f"{low} to {high}"
    batch = claim.premises.get("batch", 1)
    title = kind.title
    if claim.kind == "decode" and batch != 1:
        title = f"decode rate of {batch} sequences together"
    return f"{title}: {shown}{unit} ({claim.source})"


def _plain(value: float) -> str:
    return f"{value:,.10g}" if value != int(value) else f"{int(value):,}"


def under_premises(claim: Claim, base: Estimate) -> Estimate:
    """The plan with the context, batch and precision that the claim is about; never its false premises."""
    premises = claim.premises
    demand, system = base.demand, base.system
    if claim.kind in ("decode", "bytes_per_token", "gpu_free") and "batch" not in premises:
        demand = evolve(demand, batch=1, sequences=1)
    context = premises.get("context")
    if context is not None:
        most = base.sizes.max_context or int(context)
        demand = evolve(demand, context=min(int(context), most))
    batch = premises.get("batch")
    if batch is not None:
        demand = evolve(demand, batch=int(batch), sequences=max(demand.sequences, int(batch)))
    experts, trunk = (premises.get(f"{key}_bits") for key in ("experts", "trunk"))
    stated = system.precision
    precision = evolve(
        stated,
        experts=stated.experts if experts is None else float(experts),
        trunk=stated.trunk if trunk is None else float(trunk),
        kv=premises.get("kv", stated.kv),
    )
    system = evolve(system, precision=precision)
    if demand == base.demand and system == base.system:
        return base
    return base.altered(system, demand)
