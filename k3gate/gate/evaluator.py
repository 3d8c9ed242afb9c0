"""Judges a run: a pure function of record, criteria and target. Missing evidence is never a pass.

A check is the worst of its entries that apply, a step the worst of its checks, the gate the worst of its
steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from k3gate.gate import (
    bounds,
    kernels,
    links,
    modules,
    replay,
    rules,
    served,
    storage,
    sustained,
    waivers,
    watched,
)
from k3gate.gate.criteria import Criteria, Criterion
from k3gate.gate.judgement import Judgement, badness, unproven, worst
from k3gate.gate.steps import STEPS, Step
from k3gate.gate.targets import Target
from k3gate.records import CheckResult, GateResult, RunRecord, RunStatus, StepResult, Verdict

_NOT_FROM_THE_RUN = ("evidence", "licence", "conversion", "steps")
"""Rules that rest on evidence by subject, or on other verdicts, and not on what this run measured."""

_NOT_ASKED = {
    "decode_tokens_per_s": "promises no decode rate",
    "prefill_tokens_per_s": "promises no prefill rate",
    "load_seconds": "asks for no load time",
    "vision": "takes no images",
    "gpu_trunk": "puts nothing on GPUs",
    "several_nodes": "is one node",
    "several_sequences": "runs one sequence",
}


def evaluate(
    record: RunRecord, criteria: Criteria, target: Target, *, evaluated: str, version: str
) -> GateResult:
    """The verdicts of the seven steps. `evaluated`: ISO 8601 stamp of the judging; `version`: of k3gate.

    The gate is the worst of its steps: `waived` is a pass that rests on waivers, and `waivers` counts them.
    """
    results: list[StepResult] = []
    notices: list[str] = []
    for step in STEPS:
        decided = {each.step: each.verdict for each in results}
        checks: list[CheckResult] = []
        for check in step.ids():
            judged = _check(criteria.of(check), record, target, decided)
            held, lapsed = waivers.apply(
                judged, record.waivers, run=record.run.id, criteria=criteria.hash, target=target.hash
            )
            checks.append(held)
            notices += lapsed
        results.append(_step(step, tuple(checks)))
    known = {check for step in STEPS for check in step.ids()}
    notices += [f"Waiver of {w.check}: no such check." for w in record.waivers if w.check not in known]
    return GateResult(
        run=record.run.id,
        target=target.name,
        target_hash=target.hash,
        criteria=criteria.name,
        criteria_hash=criteria.hash,
        verdict=worst(step.verdict for step in results),
        waivers=sum(1 for step in results for check in step.checks if check.verdict is Verdict.WAIVED),
        steps=tuple(results),
        version=version,
        evaluated=evaluated,
        notices=tuple(notices),
    )


def _step(step: Step, checks: tuple[CheckResult, ...]) -> StepResult:
    return StepResult(step.number, step.name, worst(check.verdict for check in checks), checks, step.question)


def _check(
    entries: tuple[Criterion, ...], record: RunRecord, target: Target, decided: Mapping[int, Verdict]
) -> CheckResult:
    judged = [(entry, _judge(entry, record, target, decided)) for entry in entries]
    entry, judgement = min(judged, key=lambda pair: badness(pair[1].verdict))
    return CheckResult(
        id=entry.id,
        claim=entry.claim,
        verdict=judgement.verdict,
        decided=judgement.verdict,
        observed=judgement.observed,
        interval=judgement.interval,
        bound=judgement.bound,
        unit=judgement.unit or entry.unit,
        reason=judgement.reason,
        source=_source(entry),
        remedy=_remedy(entry, judgement),
        evidence=judgement.evidence,
    )


def _judge(entry: Criterion, record: RunRecord, target: Target, decided: Mapping[int, Verdict]) -> Judgement:
    if entry.applies_if is not None and not target.value(entry.applies_if):
        return Judgement(
            Verdict.NOT_APPLICABLE,
            f"Target {target.name!r} {_NOT_ASKED.get(entry.applies_if, 'does not ask for it')}.",
            bound=entry.bound,
        )
    if record.run.status is not RunStatus.COMPLETE and entry.rule not in _NOT_FROM_THE_RUN:
        return unproven(
            f"The run is {str(record.run.status).replace('_', ' ')}, not complete, so it is no evidence.",
            remedy=f"Resume it with `k3gate run --resume {record.run.id}`.",
        )
    match entry.rule:
        case None:
            return _or_instead(bounds.judge(entry, record, target), entry, record, target)
        case "bare_metal":
            return rules.bare_metal(record)
        case "population":
            return modules.population(record)
        case "speed":
            return modules.speed(record)
        case "placement":
            return rules.placement(record)
        case "residency":
            return rules.residency(record, target)
        case "kernel_reference":
            return kernels.kernel_reference(record)
        case "replay":
            return replay.reaches(record, target)
        case "skew":
            return replay.uneven(record)
        case "sustained":
            return sustained.holds(record, entry.bound)
        case "errors":
            return watched.errors(record)
        case "power":
            return watched.power(record)
        case "pcie_links":
            return links.pcie_links(record, target)
        case "evidence":
            return rules.evidence(entry, record, target)
        case "served":
            return served.identity(entry, record, target)
        case "licence":
            return rules.licence(entry, record, target)
        case "conversion":
            return rules.conversion(entry, record, target)
        case "steps":
            return rules.steps(decided)
    return unproven(f"This version of k3gate has no rule {entry.rule!r}.")


def _or_instead(judged: Judgement, entry: Criterion, record: RunRecord, target: Target) -> Judgement:
    """Where a metric was not measured, what else the run says of it; the verdict stays."""
    says = {"replay": replay.instead, "load_time": storage.instead, "unnamed_storage": storage.unnamed}
    say = says.get(entry.instead or "")
    if say is None or judged.verdict is not Verdict.UNPROVEN or judged.observed is not None:
        return judged
    told = say(record, target)
    return judged if told is None else evolve(judged, reason=f"{judged.reason} {told}")


def _source(entry: Criterion) -> str:
    if entry.machines is None:
        return entry.source
    machines = {0: "no machine measured", 1: "1 machine"}.get(entry.machines, f"{entry.machines} machines")
    return f"{entry.source} ({entry.date}, {machines})"


def _remedy(entry: Criterion, judgement: Judgement) -> str | None:
    if judgement.remedy is not None:
        return judgement.remedy
    if judgement.verdict is Verdict.FAIL:
        return entry.remedy
    return entry.to_settle() if judgement.verdict is Verdict.UNPROVEN else None
