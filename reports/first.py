"""The first page: decision and reasons, machine, ceiling, what limits it, what must happen next."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from k3gate.records import (
    CheckResult,
    GateResult,
    RunRecord,
    RunStatus,
    StepResult,
    Verdict,
)
from k3gate.reports import rates, words
from k3gate.reports.evidence import CheckRow, Index, Link
from k3gate.reports.machine import STATUS_WORDS, machine_kind, machine_line
from k3gate.reports.unseen import Gap, numbers

if TYPE_CHECKING:
    from k3gate.analysis.expectation import Expectation
    from k3gate.analysis.ladder import Rung

_ORDER = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.WAIVED, Verdict.PASS)


@frozen
class StepLine:
    """A step in the table of seven."""

    step: StepResult
    title: str
    why: str


@frozen
class Next:
    """One thing that must happen. `how` may hold `code` in backquotes."""

    title: str
    how: str
    settles: str
    link: Link


@frozen
class FirstPage:
    word: str
    mark: Verdict
    lead: str
    waived_fails: tuple[tuple[Link, str], ...]
    without_waivers: str | None
    facts: tuple[tuple[str, str], ...]
    kind: str
    bare: bool
    expected: rates.Expected
    limit: tuple[str, str]
    steps: tuple[StepLine, ...]
    next: tuple[Next, ...]
    next_more: int


def first_page(
    record: RunRecord,
    gate: GateResult,
    rungs: Sequence[Rung],
    index: Index,
    gaps: Sequence[Gap],
    target: str,
    found: Expectation | None = None,
    parts: Link | None = None,
) -> FirstPage:
    """All that the first page says. `found`: what the replay lets one expect; `parts`: where its parts are drawn."""
    waived_fails = tuple(
        (Link(w.number, f"#{w.anchor}"), words.bare(w.check.claim))
        for w in index.waivers
        if w.check is not None and w.check.decided is Verdict.FAIL
    )
    actions = list(_next(record, gate, index, gaps))
    kind, bare = machine_kind(record.inventory)
    return FirstPage(
        word=decision(gate),
        mark=gate.verdict,
        lead=_lead(record, gate, index, gaps),
        waived_fails=waived_fails,
        without_waivers=_bare_verdict(gate) if gate.waivers else None,
        facts=tuple(_facts(record, gate, target)),
        kind=kind,
        bare=bare,
        expected=rates.expected(rungs, decode_target(target), _fails(gate, "residency"), found, parts),
        limit=rates.limiting(_fails(gate, "residency"), found),
        steps=tuple(
            StepLine(step, f"{STEP_TITLES.get(step.name, words.capital(step.name))}", _why(step))
            for step in gate.steps
        ),
        next=tuple(actions[:3]),
        next_more=max(0, len(actions) - 3),
    )


STEP_TITLES = {
    "checkpoint": "Checkpoint",
    "runtime": "Runtime",
    "quantization": "Quantization",
    "prototype": "Prototype",
    "correctness": "Correctness",
    "roofline": "Roofline",
    "bom": "BOM",
}


def decision(gate: GateResult) -> str:
    """The decision in the words of the heading."""
    if gate.verdict is Verdict.WAIVED:
        return f"Pass, with {words.count(gate.waivers, 'waiver')}"
    return {Verdict.PASS: "Pass", Verdict.FAIL: "Fail"}.get(gate.verdict, "Not proven")


def _bare_verdict(gate: GateResult) -> str:
    found = {check.decided for step in gate.steps for check in step.checks}
    worst = next((verdict for verdict in _ORDER if verdict in found), Verdict.UNPROVEN)
    return words.VERDICTS[worst]


def _applicable(gate: GateResult) -> list[CheckResult]:
    return [c for s in gate.steps for c in s.checks if c.verdict is not Verdict.NOT_APPLICABLE]


def _fails(gate: GateResult, name: str) -> CheckResult | None:
    return next(
        (c for c in _applicable(gate) if c.id.endswith("." + name) and c.decided is Verdict.FAIL), None
    )


def _lead(record: RunRecord, gate: GateResult, index: Index, gaps: Sequence[Gap]) -> str:
    checks = _applicable(gate)
    total = words.count(len(checks), "check")
    unproven = sum(c.verdict is Verdict.UNPROVEN for c in checks)
    if record.run.status is not RunStatus.COMPLETE:
        return (
            f"Do not order. This run is {STATUS_WORDS[record.run.status]}, so none of its figures "
            "counts as evidence. Complete it, then judge it again."
        )
    if gate.verdict is Verdict.FAIL:
        rows = _failed(index)
        names = words.listed(f"{row.number} ({_short(row.check)})" for row in rows[:4])
        more = f" and {words.small(len(rows) - 4)} more" if len(rows) > 4 else ""
        fails = f"check {names} fails" if len(rows) == 1 else f"checks {names}{more} fail"
        first = next((row.check.reason for row in rows if row.check.reason), None)
        reason = f" {words.ended(first)}" if first and len(first) < 220 else ""
        verb = "lacks" if unproven == 1 else "lack"
        rest = f" {words.capital(words.small(unproven))} of {total} {verb} evidence." if unproven else ""
        return f"Do not order this machine for this target: {fails}.{reason}{rest}"
    if gate.verdict is Verdict.UNPROVEN:
        failed = any(c.decided is Verdict.FAIL for c in checks)
        ruled = "" if failed else "Nothing that was measured rules Kimi K3 out, but "
        steps = sum(s.verdict is Verdict.UNPROVEN for s in gate.steps)
        which = "all seven steps" if steps == 7 else words.count(steps, "step")
        verb = "waits" if steps == 1 else "wait"
        groups = [gap for gap in gaps if any(r.check.verdict is Verdict.UNPROVEN for r in gap.checks)]
        waits = (
            "one thing is missing" if len(groups) == 1 else f"{words.count(len(groups), 'thing')} are missing"
        )
        return (
            f"Do not order yet. {ruled}{unproven} of {total} lack evidence: {waits}, and {which} {verb} for "
            f"{'it' if len(groups) == 1 else 'them'}."
        )
    if gate.verdict is Verdict.WAIVED:
        return (
            f"The evidence meets the bounds of {len(checks) - gate.waivers} of {total}; for the others a "
            "named person has accepted what is missing or missed."
        )
    return f"All {total} that apply to this target are met by evidence from this machine."


def _short(check: CheckResult) -> str:
    return check.id.rpartition(".")[2].replace("_", " ")


def _failed(index: Index) -> list[CheckRow]:
    """The failed checks; the one that only sums up the other steps is left out where others fail."""
    rows = [row for row in index.checks if row.check.verdict is Verdict.FAIL]
    return [row for row in rows if row.check.id != "bom.steps"] or rows


def _facts(record: RunRecord, gate: GateResult, target: str) -> Iterable[tuple[str, str]]:
    run, machine = record.run, record.inventory.machine
    name = run.machine_name or machine.name or machine.product
    yield "Machine", f"{name}: {machine_line(record.inventory)}" if name else machine_line(record.inventory)
    yield "Target", "; ".join([gate.target, *_asked(target)])
    yield "Measured", f"{words.span(run.started, run.ended)}, profile {run.profile}"


_TRUNKS = {
    "bf16": "trunk in CPU memory as released",
    "q8_0": "trunk in CPU memory at Q8_0",
    "gpu": "trunk on GPUs",
}


def _asked(text: str) -> Iterable[str]:
    """What a target asks for, in words; nothing where its text says nothing of it."""
    document = _target(text)
    sequences, context, trunk = (document.get(key) for key in ("sequences", "context", "trunk"))
    if isinstance(sequences, int) and isinstance(context, int):
        yield f"{sequences:,} {'sequence' if sequences == 1 else 'sequences'} of {context:,} tokens"
    if isinstance(trunk, str) and trunk in _TRUNKS:
        yield _TRUNKS[trunk]
    rate = decode_target(text)
    yield f"decode at least {rate:g} tokens/s" if rate else "no decode rate promised"


def decode_target(text: str) -> float | None:
    """The decode rate per sequence that a target's text asks for, or None where it names none."""
    number = _target(text).get("decode_tokens_per_s")
    usable = isinstance(number, int | float) and not isinstance(number, bool) and number > 0
    return float(number) if usable else None  # type: ignore[arg-type]


def _target(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _why(step: StepResult) -> str:
    checks = [c for c in step.checks if c.verdict is not Verdict.NOT_APPLICABLE]
    if not checks:
        return "no check applies to this target"
    if step.verdict is Verdict.PASS:
        return f"{len(checks)} of {len(checks)} checks pass" if len(checks) > 1 else "its check passes"
    worst = [c for c in checks if c.verdict is step.verdict]
    verb = {
        Verdict.FAIL: ("fails", "fail"),
        Verdict.UNPROVEN: ("lacks evidence", "lack evidence"),
        Verdict.WAIVED: ("is waived", "are waived"),
    }[step.verdict]
    if step.verdict is Verdict.FAIL and len(worst) == 1:
        return f"{_short(worst[0])} fails"
    if len(worst) == len(checks) and len(checks) > 1:
        return f"all {len(checks)} checks {verb[1]}"
    return f"{len(worst)} of {len(checks)} checks {verb[len(worst) > 1]}"


def _next(record: RunRecord, gate: GateResult, index: Index, gaps: Sequence[Gap]) -> Iterable[Next]:
    run = record.run
    if run.status is not RunStatus.COMPLETE:
        yield Next(
            "Complete the run",
            f"`k3gate run --resume {run.id}` measures what is missing and nothing twice.",
            "All checks wait for it.",
            Link("Provenance", "#provenance"),
        )
    failed: dict[str, list[CheckRow]] = defaultdict(list)
    for row in _failed(index):
        failed[row.check.remedy or row.check.id].append(row)
    for rows in failed.values():
        yield Next(
            f"Settle the failed {_checks(rows)}",
            words.ended(rows[0].check.remedy or "no remedy is known: this machine does not meet the target"),
            words.ended(rows[0].check.claim),
            Link(f"Step {rows[0].step}", f"#step{rows[0].step}"),
        )
    later: list[CheckRow] = []
    for gap in gaps:
        rows = [row for row in gap.checks if row.check.verdict is Verdict.UNPROVEN]
        if not rows or rows[0].check.id == "bom.steps":
            continue
        if "this version" in gap.cure.lower():
            later += rows
            continue
        others = f", and {words.small(len(rows) - 1)} more" if len(rows) > 1 else ""
        yield Next(
            f"Prove {_checks(rows)}",
            words.ended(gap.cure),
            f"{words.bare(rows[0].check.claim)}{others}.",
            gap.link,
        )
    if later:
        yield Next(
            f"Prove {words.count(len(later), 'check')} by other means",
            "This version of k3gate does not measure what they ask. They stay unproven until a version that "
            "does has run here, or a named person waives them.",
            words.ended("What each of them needs"),
            Link("What could not be seen", "#unseen"),
        )
    if gate.verdict in (Verdict.PASS, Verdict.WAIVED):
        yield Next(
            "Freeze the order",
            "Order what was measured, nothing else: `k3gate bom freeze`.",
            "After delivery, measure again.",
            Link("Step 7", "#step7"),
        )


def _checks(rows: Sequence[CheckRow]) -> str:
    return f"{'check' if len(rows) == 1 else 'checks'} {numbers(rows)}"
