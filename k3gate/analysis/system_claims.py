"""The claims in a system's file, with their premises. Pure."""

from __future__ import annotations

from k3gate.analysis.system import CLAIM_KINDS, KV_BYTES, PREMISES, TIERS, Claim
from k3gate.tables import Table

_CLAIM = ("kind", "value", "low", "high", "source", "premises")


def claims(top: Table) -> tuple[Claim, ...]:
    """Every claim, in the order of the file, its values in base units."""
    table = top.table("claims")
    found = []
    for name in table.data:
        one = table.table(name, _CLAIM)
        kind = CLAIM_KINDS[one.choice("kind", tuple(CLAIM_KINDS))]
        value, low, high = (one.positive(key) for key in ("value", "low", "high"))
        if (value is None) == (low is None) or (low is None) != (high is None):
            raise one.refuse("value", "must be given, or low and high instead; correct it")
        low, high = (value, value) if value is not None else (low, high)
        assert low is not None and high is not None
        if low > high:
            raise one.refuse("low", f"{low:g} is above high, {high:g}; swap them")
        premises = one.table("premises", PREMISES)
        for key in premises.data:
            if key == "machine":
                premises.text(key)
            elif key == "tier":
                premises.choice(key, TIERS)
            elif key == "kv":
                premises.choice(key, tuple(KV_BYTES))
            elif key in ("batch", "context"):
                premises.integer(key, 1, 65_536 if key == "batch" else 1 << 40)
            else:
                premises.positive(key)
        found.append(
            Claim(
                name,
                one.data["kind"],
                low * kind.factor,
                high * kind.factor,
                one.text("source"),
                dict(premises.data),
                kind.unit,
            )
        )
    return tuple(found)
