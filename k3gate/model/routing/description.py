"""A trace with all that `k3gate routing` says of it: a JSON document, and the curve that `k3gate plan` takes. Pure."""

from __future__ import annotations

import math
from typing import Any

from attrs import frozen

from k3gate.documents import plain
from k3gate.errors import UsageError
from k3gate.model.routing import fitting
from k3gate.model.routing.fitting import Fitted
from k3gate.model.routing.ownership import QUANTILES, Imbalance
from k3gate.model.routing.statistics import Statistics
from k3gate.model.routing.synthesis import Modelled
from k3gate.model.routing.trace import Trace

CURVE_HEAD = "# Written by k3gate routing"


@frozen
class Description:
    """`modelled`: where it was drawn and not read; `fitted`: where it was fitted to another shape."""

    trace: Trace
    statistics: Statistics
    imbalance: Imbalance
    batch: int
    modelled: Modelled | None = None
    fitted: Fitted | None = None


def document(made: Description) -> dict[str, Any]:
    """The JSON of `k3gate routing --json`; shares are from 0 to 1, entropy is in bits, unknown is null."""
    found, uneven = made.statistics, made.imbalance
    told: dict[str, Any] = {
        "source": made.trace.source,
        "tokens": found.tokens,
        "sequences": found.sequences,
        "layers": found.layers,
        "experts": found.experts,
        "experts_stated": not made.trace.counted,
        "used": found.used,
        "uses": found.uses,
        "slots": {"total": found.slots, "used": found.distinct},
        "reuse": found.reuse,
        "skew": {"mean_of_layers": found.skew, "of_slots": found.skew_of_slots},
        "entropy": {"bits": found.entropy, "uniform_bits": found.uniform_entropy},
        "imbalance": {
            "nodes": uneven.nodes,
            "batch": made.batch,
            "distinct_experts": uneven.distinct,
            "mean": uneven.mean,
            "largest": uneven.largest,
            "quantiles": [
                {"quantile": at, "value": value}
                for at, value in zip(QUANTILES, uneven.quantiles, strict=True)
            ],
        },
        "coverage": [{"share": c.share, "slots": c.slots, "fraction": c.fraction} for c in found.coverage],
        "hot_set": [
            {"experts": c.experts, "caught": c.caught, "caught_held_out": c.held_out} for c in found.hot_set
        ],
        "hot_slots": [{"slots": slots, "caught": caught} for slots, caught in found.hot_slots],
        "by_layer": [
            {
                "reuse": layer.reuse,
                "skew": layer.skew,
                "busiest_share": layer.busiest,
                "entropy_bits": layer.entropy,
                "experts_used": layer.distinct,
                "imbalance": imbalance,
            }
            for layer, imbalance in zip(found.by_layer, uneven.by_layer, strict=True)
        ],
        "model": _model(made.modelled),
        "fit": _fit(made.fitted),
    }
    return dict(plain(told))


def _model(made: Modelled | None) -> dict[str, Any] | None:
    if made is None:
        return None
    return {
        "reuse_asked": made.reuse,
        "skew_asked": made.skew,
        "seed": made.seed,
        "spread": made.spread,
        "persistence": made.persistence,
    }


def _fit(made: Fitted | None) -> dict[str, Any] | None:
    if made is None:
        return None
    return {
        "kept": made.kept,
        "reason": made.reason,
        "tolerance": fitting.TOLERANCE,
        "unchanged": made.unchanged,
        "layers": list(made.layers),
        "persistence": made.persistence,
        "power": made.power,
        "of": {
            "tokens": made.of.tokens,
            "layers": made.of.layers,
            "experts": made.of.experts,
            "used": made.of.used,
            "reuse": made.of.reuse,
            "coverage": [
                {"share": c.share, "slots": c.slots, "fraction": c.fraction} for c in made.of.coverage
            ],
        },
    }


def curve(found: Statistics) -> tuple[tuple[int, float], ...]:
    """(experts of a layer, share of reads that they catch): the set chosen by one half of the tokens and counted with
    the other, rounded down. `UsageError` where there is but one token."""
    points = [(one.experts, one.held_out) for one in found.hot_set if one.held_out is not None]
    if not points:
        raise UsageError(
            "a trace of one token has no curve: a hot set is chosen by half of the tokens and counted with the rest; "
            "record more tokens"
        )
    return tuple((experts, math.floor(share * 1e6) / 1e6) for experts, share in points)


def curve_file(made: Description) -> str:
    """TOML to be put at the end of a system's file for `k3gate plan`."""
    found = made.statistics
    pairs = ", ".join(f"[{experts}, {share:g}]" for experts, share in curve(found))
    lost = "" if made.fitted is None or made.fitted.reason is None else f"# {made.fitted.reason}\n"
    return (
        f"{CURVE_HEAD}: {made.trace.source}\n{lost}"
        f"# Of {found.experts} experts in each of {found.layers} layers, {found.used} used a token; "
        f"{found.tokens} tokens: what so many experts of a layer catch,\n"
        "# chosen by one half of the tokens and counted with the other. For the end of a system's file.\n"
        f"[hot_experts]\ncurve = [{pairs}]\n"
    )
