"""What a seller or an article states, held against the facts: premises first, then ceilings. Pure.

`false_assumption`: a premise contradicts the facts, or what is claimed is itself a fact about the model and another
one. `above_ceiling`: more than the machine can do or hold. `untestable`: something that decides is not stated.
`consistent`: nothing speaks against it, which is no proof of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from k3gate.analysis import claims_model, claims_rates, claims_room
from k3gate.analysis.claim_case import (
    ABOVE,
    CONSISTENT,
    FALSE,
    UNTESTABLE,
    Case,
    Judged,
    text,
    under_premises,
)
from k3gate.analysis.estimate import Estimate
from k3gate.analysis.premises import check_premises
from k3gate.analysis.system import Claim

_ORDER = (FALSE, ABOVE, UNTESTABLE, CONSISTENT)


def judge(claim: Claim, base: Estimate) -> Judged:
    """The verdict with all reasons; the worst decides, and a claim of which nothing could be said is untestable."""
    case = Case(claim, base, under_premises(claim, base))
    check_premises(case)
    _KINDS[claim.kind](case)
    found = {said.verdict for said in case.said if said.verdict is not None}
    verdict = next((word for word in _ORDER if word in found), UNTESTABLE)
    return Judged(claim, text(claim), verdict, tuple(said.reason for said in case.said))


def _cost(case: Case) -> None:
    price = case.base.system.prices.machine
    if price is None:
        case.say(
            "the file gives no price of the machine to hold it against ([prices] machine_usd)", UNTESTABLE
        )
        return
    inside = case.claim.low * 0.95 <= price <= case.claim.high * 1.05
    case.say(f"the file's price is {price:,.0f} USD", CONSISTENT if inside else FALSE)


_KINDS: dict[str, Callable[[Case], None]] = {
    "decode": claims_rates.decode,
    "prefill": claims_rates.prefill,
    "bandwidth": claims_rates.bandwidth,
    "bytes_per_token": claims_rates.bytes_per_token,
    "weights": claims_model.weights,
    "headroom": claims_room.headroom,
    "gpu_free": claims_room.gpu_free,
    "context": claims_room.context,
    "kv_per_request": claims_model.kv_per_request,
    "accelerators": claims_room.accelerators,
    "chassis": claims_room.chassis,
    "cost": _cost,
    "active_parameters": claims_model.active,
}


def judge_all(base: Estimate) -> Iterator[Judged]:
    """Every claim of the system, in the order of its file."""
    for claim in base.system.claims:
        yield judge(claim, base)
