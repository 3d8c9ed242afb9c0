"""Whether rates last under load, and which part of the machine throttles where they do not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from k3gate import units
from k3gate.analysis import sustained
from k3gate.analysis.sustained import Headroom, Lasting, Soak
from k3gate.analysis.throttling import Throttling
from k3gate.gate import hardware
from k3gate.gate.judgement import Judgement, unproven
from k3gate.records import Bound, Outcome, RunRecord, State, Verdict

LEAST_LOAD_S = 150.0
"""Warm-up, first minute and last minute, and a little between: a shorter load compares a minute with itself."""
STILL_RISES = 3.0
"""A sensor that would reach its limit after rising so many times more as in half of the last part is still warming."""
LEAST_RISE = 1.0
_ROW = (f"{sustained.PROBE}/{sustained.CASE}",)
_STANDARD = "Run `k3gate run --profile standard`, which loads the machine for three minutes, or soak."
_LONGER = "Run `k3gate run --profile soak --minutes 60 --probe thermal`."
_SHOWN = 2


def holds(record: RunRecord, bound: Bound) -> Judgement:
    """The worst part of the load against the bound; a fall fails unless others explain it."""
    found = sustained.soak(record)
    short = _too_little(record, found)
    if short is not None or found is None:
        return short or unproven("The run holds no rates of a lasting load.", remedy=_STANDARD)
    part = min(found.parts, key=lambda one: one.interval[0] if one.interval else one.ratio)
    fallen = [one for one in found.parts if _below(one, bound)]
    if fallen:
        return _fell(record, found, min(fallen, key=lambda one: one.ratio), bound)
    told = f"{_told(part)}{_more(found)}{_watched(found)}"
    if part.interval is None or part.interval[0] < (bound.min or 0.0):
        return _judged(
            Verdict.UNPROVEN, f"Too noisy to tell: {told}.", part, bound, _others_words(found) or _LONGER
        )
    doubt = hardware.doubt(record.inventory)
    if doubt is not None:
        return _judged(Verdict.UNPROVEN, f"No evidence about the hardware: {doubt}. {told}.", part, bound)
    warming = _warming(found)
    if warming is not None:
        return _judged(
            Verdict.UNPROVEN,
            f"{told}; but {warming.domain} was still warming: {warming.left:.1f} degrees below its limit, and "
            f"{warming.rising:.1f} degrees hotter in the second half of the last part than in the first.",
            part,
            bound,
            _LONGER,
        )
    return _judged(Verdict.PASS, f"{told}.", part, bound)


def _too_little(record: RunRecord, found: Soak | None) -> Judgement | None:
    """Why a load is no evidence at all: none, one that failed, or too short; None where it is."""
    outcome = sustained.outcome_of(record)
    if outcome is None:
        left = next((one for one in record.run.left_out if one.probe == sustained.PROBE), None)
        why = f" ({left.reason})" if left else ""
        return unproven(f"The machine was not loaded for long in this run{why}.", remedy=_STANDARD)
    if outcome.state is not State.OK:
        return unproven(
            f"The load did not end as planned: {outcome.state.value.replace('_', ' ')}, {_reason(outcome)}.",
            _ROW,
            remedy=_LONGER,
        )
    if found is None or not found.parts:
        return unproven("The load told no rates.", _ROW, remedy=_LONGER)
    if found.spans.seconds < LEAST_LOAD_S:
        seconds = units.duration(found.spans.seconds)
        return unproven(
            f"The machine was loaded for {seconds}, less than {units.duration(LEAST_LOAD_S)}: too short to tell.",
            _ROW,
            remedy=_LONGER,
        )
    return None


def _reason(outcome: Outcome) -> str:
    return (outcome.reason or "no reason was given").rstrip(".")


def _below(part: Lasting, bound: Bound) -> bool:
    return bound.min is not None and part.interval is not None and part.interval[1] < bound.min


def _fell(record: RunRecord, found: Soak, part: Lasting, bound: Bound) -> Judgement:
    """What a rate that fell means: throttling that was counted before all else, then others, then what was warm."""
    signs = sustained.evidence(record, found, part)
    counted = [one for one in signs if one.sign == "counter"]
    doubt = hardware.doubt(record.inventory)
    told = _told(part)
    if part.fell_s is not None:
        told += (
            f", and stayed below {sustained.HELD:g} from {units.duration(part.fell_s - found.spans.start)} on"
        )
    if not counted and sustained.explained_by_others(found, part):
        return _judged(
            Verdict.UNPROVEN,
            f"Others: {told}, while {_others_words(found)}.",
            part,
            bound,
            "End what else runs on the machine, or measure on the bare machine, and run "
            "`k3gate run --profile standard` again.",
        )
    if doubt is not None:
        cause = f" Seen: {_named(signs)}." if signs else ""
        return _judged(
            Verdict.UNPROVEN, f"No evidence about the hardware: {doubt}. {told}.{cause}", part, bound
        )
    if signs:
        surest = "Throttled" if signs[0].sign != "heat" else "No throttling was counted; hotter meanwhile"
        return _judged(Verdict.FAIL, f"{told}. {surest}: {_named(signs)}.", part, bound)
    return _judged(
        Verdict.FAIL,
        f"{told}. The cause is not known: {_nothing(found)}.",
        part,
        bound,
    )


def _nothing(found: Soak) -> str:
    """What was looked at and does not explain a fall."""
    others = "what others took of the processors was not read"
    if found.others is not None:
        others = f"others took no more of the processors ({_percent(found.others[1])} at the end)"
    if not found.watched:
        return f"no sensor was readable, and {others}, so that the rate alone decides"
    return f"neither heat nor a counter that was watched shows throttling, and {others}"


def _named(signs: Sequence[Throttling]) -> str:
    """The domains with the surest signs, each with all that shows it."""
    seen: dict[str, list[str]] = {}
    for one in signs:
        seen.setdefault(one.domain, []).append(one.detail)
    return units.listed([f"{domain} ({'; '.join(told)})" for domain, told in list(seen.items())[:_SHOWN]])


def _told(part: Lasting) -> str:
    interval = f" ({part.interval[0]:.3f} to {part.interval[1]:.3f})" if part.interval else ""
    return f"{units.capital(part.name)} ran at {part.ratio:.3f}{interval} of its first minute"


def _more(found: Soak) -> str:
    """The other parts, which did better."""
    number = len(found.parts) - 1
    load = f" after {units.duration(found.spans.seconds)} of load"
    return load if not number else f"{load}, the {units.count(number, 'other part')} no less"


def _watched(found: Soak) -> str:
    if not found.watched:
        return "; no sensor was readable, so that the rate alone decides"
    rooms = sustained.headroom(found)
    return f"; {rooms[0].domain} stayed {rooms[0].left:.0f} degrees below its limit" if rooms else ""


def _others_words(found: Soak) -> str | None:
    if found.others is None:
        return None
    before, after = found.others
    return (
        f"other processes and the hypervisor took {_percent(after)} of the processors in the last part, "
        f"after {_percent(before)} in the first minute"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _warming(found: Soak) -> Headroom | None:
    """The sensor that would reach its limit if it went on as it did."""
    rising = [
        room
        for room in sustained.headroom(found)
        if room.rising >= LEAST_RISE and room.left < STILL_RISES * room.rising
    ]
    return rising[0] if rising else None


def _judged(
    verdict: Verdict, reason: str, part: Lasting, bound: Bound, remedy: str | None = None
) -> Judgement:
    return Judgement(verdict, reason, part.ratio, part.interval, "1", bound, _ROW, remedy)
