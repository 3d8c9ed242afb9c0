"""What could not be seen: every check, case, field and proof without an answer, with its reason and its cure.

Where several checks wait for one thing, they share one row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from attrs import frozen

from k3gate.records import CheckResult, GateResult, RunRecord, State, Verdict
from k3gate.reports import words
from k3gate.reports.evidence import CheckRow, Index, Link

SEEN = (State.OK, State.UNSTABLE)


@frozen
class Gap:
    """One row: what is missing, why, what hangs on it, how to see it. `checks` wait for it."""

    anchor: str
    number: str
    what: tuple[str, ...]
    state: str
    reason: str
    matters: str
    cure: str
    checks: tuple[CheckRow, ...] = ()

    @property
    def link(self) -> Link:
        return Link(self.number, f"#{self.anchor}")


@frozen
class _Row:
    keys: tuple[str, ...]
    what: tuple[str, ...]
    state: str
    reason: str
    matters: str
    cure: str
    checks: tuple[CheckRow, ...] = ()


def gaps(record: RunRecord, gate: GateResult, index: Index) -> tuple[Gap, ...]:
    """All rows, numbered N1 and on; enters them into the index."""
    found = []
    rows = [*_checks(index), *_cases(record), *_left_out(record), *_fields(index), *_proofs(index)]
    for number, row in enumerate(rows, 1):
        gap = Gap(
            f"n{number}", f"N{number}", row.what, row.state, row.reason, row.matters, row.cure, row.checks
        )
        for key in row.keys:
            index.gaps.setdefault(key, gap.link)
        found.append(gap)
    return tuple(found)


def undecided(check: CheckResult) -> bool:
    """Whether the evidence decides nothing, waived or not."""
    return check.decided is Verdict.UNPROVEN


def numbers(rows: Iterable[CheckRow]) -> str:
    """ "2.1, 2.2 and 4.4 to 4.7"."""
    runs: list[list[CheckRow]] = []
    for row in rows:
        last = runs[-1][-1] if runs else None
        if last and last.step == row.step and _place(row) == _place(last) + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    parts = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{run[0].number} to {run[-1].number}")
        else:
            parts.extend(row.number for row in run)
    return words.listed(parts)


def _place(row: CheckRow) -> int:
    return int(row.number.partition(".")[2])


def _checks(index: Index) -> Iterable[_Row]:
    groups: dict[str, list[CheckRow]] = defaultdict(list)
    for row in index.checks:
        if undecided(row.check):
            groups[row.check.remedy or row.check.reason or row.check.id].append(row)
    for rows in sorted(groups.values(), key=len, reverse=True):
        reasons = list(dict.fromkeys(row.check.reason or "no evidence" for row in rows))
        plural = "check" if len(rows) == 1 else "checks"
        steps = sorted({row.step for row in rows})
        yield _Row(
            keys=tuple(row.check.id for row in rows),
            what=tuple(words.bare(row.check.claim) for row in rows),
            state="unproven",
            reason=" ".join(words.ended(reason) for reason in reasons),
            matters=f"decides {plural} {numbers(rows)} and, through {'it' if len(rows) == 1 else 'them'}, "
            f"{'step' if len(steps) == 1 else 'steps'} {words.listed(str(s) for s in steps)}",
            cure=rows[0].check.remedy or "no way is known to this version",
            checks=tuple(rows),
        )


def _cases(record: RunRecord) -> Iterable[_Row]:
    for outcome in record.outcomes:
        lost = [m for m in outcome.metrics if m.state not in SEEN]
        if outcome.state in SEEN and not lost:
            continue
        state = outcome.state if outcome.state not in SEEN else lost[0].state
        reason = outcome.reason or next((m.reason for m in lost if m.reason), None)
        yield _Row(
            keys=(f"{outcome.probe}/{outcome.case}",),
            what=(outcome.title or f"{outcome.probe}/{outcome.case}",),
            state=words.STATES[state],
            reason=reason or "no reason was stored",
            matters=f"case {outcome.case} of probe {outcome.probe} has no figure",
            cure=_CURES[state],
        )


_CURES = {
    State.FAILED: "remove the reason given, then `k3gate run --resume`",
    State.NOT_PERMITTED: "ask for the right that the reason names, then repeat the run",
    State.NOT_PRESENT: "this machine lacks it; nothing to do unless it should be there",
    State.NOT_RUN: "repeat the run with a longer profile",
    State.OK: "",
    State.UNSTABLE: "",
}


def _left_out(record: RunRecord) -> Iterable[_Row]:
    for left in record.run.left_out:
        yield _Row(
            keys=(f"{left.probe}/{left.case}",),
            what=(f"{left.probe}/{left.case}",),
            state="not run",
            reason=left.reason,
            matters="left out of the plan",
            cure="repeat the run with a longer profile, or on a machine that has what it needs",
        )


def _fields(index: Index) -> Iterable[_Row]:
    groups: dict[tuple[State, str], list[str]] = defaultdict(list)
    for row in index.fields:
        if row.provenance is not None and row.provenance.state is not State.OK:
            groups[row.provenance.state, row.provenance.reason or "no reason was stored"].append(row.name)
    for (state, reason), names in groups.items():
        yield _Row(
            keys=tuple(f"inventory:{name}" for name in names),
            what=tuple(names),
            state=words.STATES[state],
            reason=reason,
            matters="a fact of the machine that its description lacks",
            cure=_FIELD_CURES.get(state, "see the reason"),
        )


_FIELD_CURES = {
    State.NOT_PERMITTED: "read as root, or ask the provider: `sudo k3gate host`",
    State.NOT_PRESENT: "this machine or its kernel does not show it",
    State.NOT_RUN: "not read by this version",
    State.FAILED: "see the reason; then `k3gate host` again",
}


def _proofs(index: Index) -> Iterable[_Row]:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in index.samples:
        for proof in row.metric.proofs:
            if proof.ok is None:
                groups[proof.name, proof.detail].append(row.number)
    for (name, detail), numbers_ in groups.items():
        many = f"{numbers_[0]} to {numbers_[-1]}, {len(numbers_)} in all" if len(numbers_) > 3 else None
        yield _Row(
            keys=(),
            what=(f"Proof of {name.replace('_', ' ')}",),
            state="not seen",
            reason=detail,
            matters=f"without it a figure counts on trust: {many or words.listed(numbers_)}",
            cure="see the reason",
        )
