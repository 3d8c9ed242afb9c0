"""What the decode replay proves of a target's rate, and of uneven routing. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from attrs import evolve

from k3gate.analysis import replay
from k3gate.analysis.replay import Prediction, SelfTest
from k3gate.analysis.replayed import Step, base_of, steps
from k3gate.gate import hardware
from k3gate.gate.judgement import Judgement, unproven
from k3gate.gate.targets import Target
from k3gate.records import Bound, Interval, RunRecord, State, Verdict
from k3gate.units import count, listed, significant

LEAST_UNDER_SKEW = 0.7
"""Of the rate under uniform routing: ours."""
PROBE = "replay"
_ON_THE_MACHINE = "Measure on the bare machine, without limits on CPUs and memory."


def reaches(record: RunRecord, target: Target) -> Judgement:
    """The predicted rate of the whole model against the target's. A pass needs a prediction that was itself tested."""
    wanted = target.decode_tokens_per_s or 0.0
    bound = Bound(wanted, None)
    prediction = predicted(record, target)
    if prediction is None:
        return _nothing(record, target, bound)
    tests = replay.self_tests(record)
    told = f"The replay predicts {told_interval(prediction.interval)} a sequence, {significant(wanted)} are asked"
    judged = Judgement(
        Verdict.UNPROVEN,
        told,
        prediction.middle,
        prediction.interval,
        "tokens/s",
        bound,
        _evidence(prediction, tests),
    )
    beyond = _beyond(record, target)
    if beyond is not None:
        verdict, why, remedy = Verdict.UNPROVEN, beyond, None
    else:
        verdict, why, remedy = _decide(record, prediction, tests, wanted, target)
    doubt = hardware.doubt(record.inventory)
    if doubt is not None:
        return _with(
            judged,
            Verdict.UNPROVEN,
            f"No evidence about the hardware: {doubt}. {told}; {why}.",
            _ON_THE_MACHINE,
        )
    part = hardware.incomplete(record.inventory) if verdict is Verdict.FAIL else None
    if part is not None:
        return _with(judged, Verdict.UNPROVEN, f"Not the whole machine: {part.reason}. {told}.", part.remedy)
    return _with(judged, verdict, f"{told}; {why}.", remedy)


def _beyond(record: RunRecord, target: Target) -> str | None:
    """What of the target lies beyond all that was replayed, where nothing holds the prediction to account; or None."""
    if target.nodes > 1:
        return (
            f"it is of one machine, and the target is {target.nodes}: the network between them is not in it"
        )
    found = [one for one in steps(record) if one.usable]
    batch = max((one.number("batch") for one in found), default=0)
    if target.decode_batch > batch:
        return (
            f"at most {count(batch, 'sequence')} were replayed together, and {target.decode_batch} are asked"
        )
    context = max((one.number("context") for one in found), default=0)
    if target.trunk != "gpu" and target.context > context:
        return f"contexts up to {context:,} were replayed, and {target.context:,} are asked"
    return None


def _decide(
    record: RunRecord, prediction: Prediction, tests: tuple[SelfTest, ...], wanted: float, target: Target
) -> tuple[Verdict, str, str | None]:
    """(verdict, why, remedy where it is not the criterion's own)."""
    standard = "Run `k3gate run --profile standard`, which holds the prediction against itself."
    # A prediction that was too low for cases of its own run, however these scatter, may be too low for the whole.
    if prediction.high < wanted and not any(one.case.tokens_per_s > one.predicted.high for one in tests):
        return Verdict.FAIL, "even the upper end is below that", None
    if prediction.base.rate.state is State.UNSTABLE:
        return Verdict.UNPROVEN, f"its figures are unstable ({prediction.base.rate.reason})", None
    if not prediction.narrow:
        return Verdict.UNPROVEN, "the interval is wider than a factor of 2", None
    missed = [one for one in tests if one.missed]
    if missed:
        names = listed(_miss(one) for one in missed)
        return Verdict.UNPROVEN, f"the prediction failed its own test ({names})", None
    if prediction.low < wanted:
        return Verdict.UNPROVEN, "the interval holds both", None
    if target.trunk == "gpu":
        why = "of what CPU memory does alone: GPUs and their links, which hold the trunk, take time besides"
        return Verdict.UNPROVEN, why, "Measure a running runtime."
    lost = replay.not_kept(prediction.base)
    if lost is not None:
        return Verdict.UNPROVEN, f"the trace was replayed otherwise than it is: {lost}", None
    base = base_of(steps(record))
    if base is None:
        why = f"there is no base case to hold it against itself by{_told(record)}"
        return Verdict.UNPROVEN, why, standard
    if not tests:
        return Verdict.UNPROVEN, "the prediction was not held against itself in this run", standard
    if base.label("trunk") != target.trunk:
        why = f"it was held against itself with a trunk in {base.label('trunk')} alone"
        return Verdict.UNPROVEN, why, f"Run `k3gate run --profile standard --trunk {target.trunk}`."
    good = [one for one in tests if one.counts]
    kinds = {one.case.label("factor") for one in good}
    if not kinds >= {"deep", "batch"}:
        why = "it needs a deeper miniature and another batch, both stable, to be held against itself"
        return Verdict.UNPROVEN, why, standard
    if target.context != base.number("context") and "context" not in kinds:
        why = f"contexts beside {base.counted('context')} need another one, stable, that it was held against itself for"
        return Verdict.UNPROVEN, why, standard
    return (
        Verdict.PASS,
        f"it fell true for {listed(one.case.outcome.case for one in good)} of the same run",
        None,
    )


def _miss(test: SelfTest) -> str:
    return (
        f"{test.case.outcome.case}: {significant(test.case.tokens_per_s)} measured, "
        f"{told_interval(test.predicted.interval)} predicted"
    )


def uneven(record: RunRecord) -> Judgement:
    """Uneven routing against uniform routing, of the same miniature."""
    found = replay.skew(record)
    bound = Bound(LEAST_UNDER_SKEW, None)
    if found is None:
        return _no_skew(record, bound)
    told = (
        f"With skew {found.uneven.figure('skew')} and reuse {found.uneven.figure('reuse')} the replay keeps "
        f"{significant(found.ratio)} of its rate under uniform routing ({significant(found.interval[0])} to "
        f"{significant(found.interval[1])})"
    )
    judged = Judgement(
        Verdict.UNPROVEN,
        f"{told}.",
        found.ratio,
        found.interval,
        "1",
        bound,
        (found.uneven.key, found.uniform.key),
    )
    doubt = hardware.doubt(record.inventory)
    if doubt is not None:
        reason = f"No evidence about the hardware: {doubt}. Measured: {told}."
        return _with(judged, Verdict.UNPROVEN, reason, _ON_THE_MACHINE)
    if found.uneven.number("batch") == 1 and str(found.uneven.label("placement")) in ("single", "None"):
        # One sequence touches as many experts of a layer either way, and one node owns them all.
        return _with(
            judged, Verdict.UNPROVEN, f"{told}: on one node one sequence cannot show what skew costs."
        )
    if State.UNSTABLE in (found.uneven.rate.state, found.uniform.rate.state):
        return _with(judged, Verdict.UNPROVEN, f"{told}: the figures are unstable.")
    part = hardware.incomplete(record.inventory)
    if found.interval[1] < LEAST_UNDER_SKEW and part is not None:
        return _with(judged, Verdict.UNPROVEN, f"Not the whole machine: {part.reason}. {told}.", part.remedy)
    if found.interval[1] < LEAST_UNDER_SKEW:
        return _with(judged, Verdict.FAIL, f"{told}.")
    if found.interval[0] < LEAST_UNDER_SKEW:
        return _with(judged, Verdict.UNPROVEN, f"{told}: too noisy.")
    return _with(judged, Verdict.PASS, f"{told}.")


def instead(record: RunRecord, target: Target) -> str | None:
    """A sentence for step 4, marked as replay, where no runtime was driven; None where the run has no replay."""
    prediction = predicted(record, target)
    if prediction is None:
        return None
    if target.nodes > 1:
        return None
    doubts = []
    if prediction.base.rate.state is State.UNSTABLE or not prediction.narrow:
        doubts.append("its figures scatter too much to be relied on")
    missed = [one.case.outcome.case for one in replay.self_tests(record) if one.missed]
    if missed:
        doubts.append(f"it failed its own test in {listed(missed)}")
    beyond = _beyond(record, target)
    if beyond is not None:
        doubts.append(beyond)
    doubt = "".join(f"; {one}" for one in doubts)
    if target.trunk == "gpu":
        return (
            f"Of a replay, not of a runtime: CPU memory alone allows {told_interval(prediction.interval)} a sequence, "
            f"what GPUs and their links take not counted{doubt}."
        )
    return (
        f"Of a replay, not of a runtime: {told_interval(prediction.interval)} a sequence are to be expected of kernels "
        f"as good as k3gate's own{doubt}."
    )


def predicted(record: RunRecord, target: Target) -> Prediction | None:
    """The prediction for a target; None where no replayed case says anything of it."""
    return replay.for_target(record, target.trunk, target.context, target.decode_batch)


def told_interval(interval: Interval) -> str:
    """ "3.1 to 4.4 tokens/s"."""
    return f"{significant(interval[0])} to {significant(interval[1])} tokens/s"


def _evidence(prediction: Prediction, tests: tuple[SelfTest, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([prediction.base.key, *(one.case.key for one in tests)]))


def _with(judged: Judgement, verdict: Verdict, reason: str, remedy: str | None = None) -> Judgement:
    return evolve(judged, verdict=verdict, reason=reason, remedy=remedy)


def _nothing(record: RunRecord, target: Target, bound: Bound) -> Judgement:
    """Why nothing follows from the run for this target."""
    found = [one for one in steps(record) if one.measured]
    if not found:
        return _none(record, bound)
    base = next((one for one in found if one.label("factor") == "base"), found[0])
    if any(one.usable for one in found) and base.label("trunk") != target.trunk:
        return unproven(
            f"The run replayed the trunk as {base.text('trunk')}, and the target lays it out as {target.trunk}: "
            "nothing follows from one for the other.",
            (base.key,),
            remedy=f"Run `k3gate run --trunk {target.trunk}`.",
        )
    return Judgement(
        Verdict.UNPROVEN,
        f"Nothing follows from what was replayed{_told(record) or _UNUSABLE}.",
        bound=bound,
        evidence=tuple(one.key for one in found[:_MOST_KEYS]),
    )


_UNUSABLE = ": the parts of a case do not add up to its step, or it does not say what it replayed"
_MOST_KEYS = 5


def _no_skew(record: RunRecord, bound: Bound) -> Judgement:
    """Why the run holds no two cases that differ by their routing."""
    found = [one for one in steps(record) if one.measured]
    if not found:
        return _none(record, bound)
    lacking = [
        name
        for name, one in (("base", base_of(steps(record))), ("routing.uniform", _uniform(found)))
        if not one
    ]
    because = _told(record, *lacking)
    why = (
        f"no usable case {' and '.join(lacking)}"
        if lacking
        else "its cases differ by more than their routing"
    )
    return Judgement(
        Verdict.UNPROVEN,
        f"Uneven routing was not replayed against uniform routing in this run: {why}{because}.",
        bound=bound,
        evidence=tuple(one.key for one in found[:_MOST_KEYS]),
    )


def _uniform(found: list[Step]) -> Step | None:
    return next(
        (
            one
            for one in found
            if one.usable and (one.label("factor"), one.label("routing")) == ("routing", "uniform")
        ),
        None,
    )


def _none(record: RunRecord, bound: Bound) -> Judgement:
    """Why the run holds no replay at all."""
    return Judgement(Verdict.UNPROVEN, f"Not replayed in this run{_told(record)}.", bound=bound)


def _told(record: RunRecord, *cases: str) -> str:
    """The first reason, in brackets, for which a case has no figures, of `cases` where they are named."""
    told = [
        (o.case, f"{o.case}: {o.reason}")
        for o in record.outcomes
        if o.probe == PROBE and o.reason and not _good(o.state)
    ]
    told += [
        (one.case, f"{one.case}: left out, {one.reason}") for one in record.run.left_out if one.probe == PROBE
    ]
    first = next((text for name, text in told if not cases or name in (*cases, "*")), None)
    if first is None and cases:
        first = next((text for name, text in told if any(fnmatchcase(one, name) for one in cases)), None)
    return f" ({first})" if first else ""


def _good(state: State) -> bool:
    return state in (State.OK, State.UNSTABLE)
