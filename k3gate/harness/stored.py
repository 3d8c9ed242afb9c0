"""What can be done with runs that are stored: judge, waive, report, compare. Each stage again, alone."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from attrs import frozen

from k3gate import __version__
from k3gate.documents import plain
from k3gate.errors import UsageError
from k3gate.gate import criteria as criteria_module
from k3gate.gate import document as gate_document
from k3gate.gate import evaluator, targets, waivers
from k3gate.host import document as host_document
from k3gate.records import GateResult, Run, RunRecord, Waiver

if TYPE_CHECKING:
    from k3gate.analysis.comparison import Comparison
    from k3gate.analysis.expectation import Expectation
    from k3gate.store import Store


def now() -> str:
    """The wall clock as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@frozen
class Judged:
    """A run with its judgement and what it was judged by, read once: the report shows these very texts."""

    record: RunRecord
    result: GateResult
    criteria: criteria_module.Criteria
    target: targets.Target


def judge(
    store: Store, reference: str, *, criteria: str | None = None, target: str | None = None, keep: bool = True
) -> Judged:
    """Judge a stored run; the evaluation is added to the store beside earlier ones unless `keep` is False.

    `criteria` None is the shipped file; `target` None the one that the run was made for.
    Raises `UsageError` for a reference, criteria or target that cannot be used, before anything is stored.
    """
    store.abandon_dead()
    record = store.load(store.resolve(reference))
    rules = criteria_module.load(criteria)
    aim = targets.load(target) if target else _own_target(record.run)
    result = evaluator.evaluate(record, rules, aim, evaluated=now(), version=__version__)
    if keep:
        store.add_evaluation(result, rules.text, aim.text)
    return Judged(record, result, rules, aim)


def _own_target(run: Run) -> targets.Target:
    """The target that a run was made for. A path that came with a run is never opened: it may be a stranger's."""
    name = run.target or DEFAULT_TARGET
    if name in targets.TIERS:
        return targets.load(name)
    if run.target_text is None:
        raise UsageError(f"run {run.id} does not hold the text of its own target: name one with --target")
    return targets.stored(name, run.target_text)


DEFAULT_TARGET = "residency-lab"
"""The least demanding of the shipped targets: it promises no speed."""


def waive(
    store: Store,
    reference: str,
    check: str,
    *,
    who: str,
    why: str,
    criteria: str | None = None,
    target: str | None = None,
    accept_failure: bool = False,
) -> tuple[Waiver, GateResult]:
    """Store a waiver for one check of a run, and judge the run again with it."""
    result = judge(store, reference, criteria=criteria, target=target, keep=False).result
    waiver = waivers.make(result, check, who=who, why=why, when=now(), accept_failure=accept_failure)
    stored = store.add_waiver(waiver)
    return stored, judge(store, result.run, criteria=criteria, target=target).result


def report(store: Store, reference: str, *, criteria: str | None = None, target: str | None = None) -> str:
    """The HTML report of a run, judged now; the evaluation is stored, since the report will be signed."""
    return page(store, judge(store, reference, criteria=criteria, target=target))


def page(store: Store, judged: Judged) -> str:
    """The HTML report of a run that was just judged."""
    from k3gate.analysis.ladder import ladder
    from k3gate.analysis.loading import loading
    from k3gate.gate.storage import weight_bytes
    from k3gate.reports import page as report_page

    record = judged.record
    return report_page.render(
        record,
        judged.result,
        ladder(record, judged.target.cpu_bytes_per_token(alike=True), judged.target.decode_batch),
        criteria_text=judged.criteria.text,
        target_text=judged.target.text,
        expected=expectation(record, judged.target),
        loading=loading(record, weight_bytes(judged.target)),
        earlier=tuple(store.evaluations(record.run.id)),
    )


def expectation(record: RunRecord, target: targets.Target) -> Expectation | None:
    """What the decode replay of a run lets one expect where the model is laid out as the target wants it."""
    from k3gate.analysis.expectation import expected

    return expected(record, target.trunk, target.context, target.decode_batch)


def own_expectation(record: RunRecord) -> Expectation | None:
    """The same for the target that the run was made for; None where that cannot be read any more."""
    try:
        return expectation(record, _own_target(record.run))
    except UsageError:
        return None


def compare(store: Store, a: str, b: str) -> Comparison:
    """Compare run B with run A, both from the store."""
    from k3gate.analysis import comparison

    store.abandon_dead()
    first, second = store.resolve(a), store.resolve(b)
    if first == second:
        raise UsageError(f"{a!r} and {b!r} are the same run {first}: name two runs (k3gate runs lists them)")
    return comparison.compare(store.load(first), store.load(second))


def run_document(record: RunRecord, result: GateResult | None) -> dict[str, Any]:
    """The JSON document of a run: `k3gate run --json` and `k3gate show --json`."""
    return {
        "run": plain(record.run),
        "inventory": host_document(record.inventory),
        "outcomes": [plain(outcome) for outcome in record.outcomes],
        "evidence": [plain(evidence) for evidence in record.evidence],
        "waivers": [plain(waiver) for waiver in record.waivers],
        "gate": gate_document(result) if result is not None else None,
    }
