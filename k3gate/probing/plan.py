"""Which cases run, in which order, and what does not fit: pure, decided before the first measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs
from attrs import frozen

from k3gate.documents import plain, printable
from k3gate.errors import UsageError
from k3gate.probing.contract import Planned, Probe, Reason
from k3gate.probing.profiles import BUDGET_SHARE, suggest
from k3gate.probing.registry import FIRST, one_line
from k3gate.records import Case, Inventory, LeftOut, Outcome, Profile, State
from k3gate.units import count, duration, exact_bytes, quantity

WORKER_START_SECONDS = 0.3
"""What starting and ending a worker process is taken to cost; about 0.1 s is usual."""
USABLE_PERCENT = 90
"""How much of the usable memory a group may take; the rest is left to the system."""
MOST_NAMES = 6
"""Of cases that share a reason, as a person reads it; the JSON of a plan and of a run names all of them."""
LEAST_ROUNDS = 3
"""Rounds are never thinned below this: fewer carry no interval worth the name."""


@frozen
class Execution:
    """One round of one group: what one worker does. Cases stand in the order of their probe."""

    round: int
    probe: str
    group: str
    cases: tuple[Case, ...]

    @property
    def key(self) -> str:
        """The group's name in a run: "probe/group"."""
        return f"{self.probe}/{self.group}"

    @property
    def seconds(self) -> float:
        """Estimated seconds, with the start of the worker."""
        return WORKER_START_SECONDS + sum(case.seconds for case in self.cases)

    @property
    def bytes(self) -> int:
        """The most memory that the worker holds at once."""
        return max((case.bytes for case in self.cases), default=0)


@frozen
class Plan:
    """What a run will do. `refused` are the finished outcomes of probes that cannot measure here."""

    profile: Profile
    cases: tuple[Case, ...]
    executions: tuple[Execution, ...]
    left_out: tuple[LeftOut, ...] = ()
    refused: tuple[Outcome, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups as "probe/group", in order."""
        return tuple(dict.fromkeys(f"{case.probe}/{case.group}" for case in self.cases))

    @property
    def seconds(self) -> float:
        """Estimated seconds in workers."""
        return sum(execution.seconds for execution in self.executions)

    @property
    def bytes(self) -> int:
        """The most memory held at once: one worker runs at a time."""
        return max((execution.bytes for execution in self.executions), default=0)


def plan(
    probes: Sequence[Probe],
    inventory: Inventory,
    profile: Profile,
    *,
    only: Sequence[str] | None = None,
    rounds: int | None = None,
) -> Plan:
    """The plan of a run. `only`: patterns of "probe/case" or probe names; `rounds`: replaces the probes' own.

    Groups beyond 90 % of the usable memory go first. Cases that do not fit the budget then lose rounds down
    to 3, then the last cases of the longest probe go, and those that still fit come back. All that is left out
    is named, with the sum. The first case of a group that stays is priced with the set-up of the group.
    Raises `UsageError` where `only` matches nothing.
    """
    cases: list[Case] = []
    left_out: list[LeftOut] = []
    refused: list[Outcome] = []
    for probe in sorted(probes, key=lambda one: one.name not in FIRST):
        planned = _ask(probe, inventory, profile)
        if isinstance(planned, Outcome):
            refused.append(planned)
            continue
        cases += planned.cases
        left_out += planned.left_out
    if only:
        cases = _select(cases, only)
        names = {case.probe for case in cases}
        left_out = [one for one in left_out if one.probe in names]
        refused = []
    if rounds is not None:
        cases = [attrs.evolve(case, rounds=rounds) for case in cases]
    cases = _within_memory(cases, inventory, left_out)
    cases = _within_budget(cases, profile, left_out)
    return Plan(profile, tuple(cases), executions(cases), tuple(left_out), tuple(refused))


def executions(cases: Iterable[Case]) -> tuple[Execution, ...]:
    """Rounds interleaved over groups: round 0 of each group, then round 1 of each, and so on.

    Drift of the machine then falls on all groups alike and does not look like a difference between them.
    """
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.probe, case.group), []).append(case)
    most = max((case.rounds for group in groups.values() for case in group), default=0)
    result = []
    for number in range(most):
        for (probe, group), members in groups.items():
            due = tuple(case for case in members if case.rounds > number)
            if due:
                result.append(Execution(number, probe, group, due))
    return tuple(result)


def document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON, for `--dry-run --json`: seconds and bytes are estimates, in base units."""
    return {
        "profile": {"name": plan.profile.name, "seconds": plan.profile.seconds},
        "seconds": plan.seconds,
        "bytes": plan.bytes,
        "cases": [
            {
                "probe": case.probe,
                "case": case.name,
                "title": case.title,
                "group": case.group,
                "rounds": case.rounds,
                "seconds": case.seconds,
                "setup_seconds": case.setup_seconds,
                "bytes": case.bytes,
                "time_limit_s": case.time_limit_s,
                "parameters": plain(case.parameters),
                "labels": plain(case.labels),
            }
            for case in plan.cases
        ],
        "executions": [
            {
                "round": execution.round,
                "probe": execution.probe,
                "group": execution.group,
                "cases": [case.name for case in execution.cases],
                "seconds": execution.seconds,
                "bytes": execution.bytes,
            }
            for execution in plan.executions
        ],
        "left_out": [plain(one) for one in plan.left_out],
        "refused": [
            {"probe": one.probe, "state": one.state.value, "reason": one.reason} for one in plan.refused
        ],
    }


def text(plan: Plan) -> str:
    """The plan for a person, for `--dry-run`: each case and what it does, the sum, what is left out."""
    lines = [f"{'case':<50} {'rounds':>6} {'each round':>12} {'memory':>12}"]
    for case in plan.cases:
        lines.append(
            f"{case.probe + '/' + case.name:<50} {case.rounds:>6} {duration(case.seconds):>12} "
            f"{quantity(case.bytes, 'B'):>12}"
        )
        lines.append(_folded(case.title, 4))
    whole = (
        f"{count(len(plan.cases), 'case')} in {count(len(plan.groups), 'group')} and "
        f"{count(len(plan.executions), 'worker')}, one at a time: about {duration(plan.seconds)} of the "
        f"{duration(plan.profile.seconds)} of profile {plan.profile.name}, at most "
        f"{quantity(plan.bytes, 'B')} of memory"
    )
    lines.append(_folded(whole))
    lines += [_folded(line) for line in left_out_lines(plan.left_out)]
    lines += [_folded(f"not run: {one.probe}: {one.state.value}: {one.reason}") for one in plan.refused]
    return printable("\n".join(lines)) + "\n"


def left_out_lines(left_out: Iterable[LeftOut]) -> list[str]:
    """A line for each reason, with the cases that share it: short profiles thin every case of a plan alike."""
    cases: dict[str, list[str]] = {}
    for one in left_out:
        cases.setdefault(one.reason, []).append(f"{one.probe}/{one.case}")
    lines = []
    for reason, names in cases.items():
        more = len(names) - MOST_NAMES
        shown = ", ".join(names[:MOST_NAMES]) + (f" and {count(more, 'more case')}" if more > 0 else "")
        lines.append(f"left out: {shown}: {reason}")
    return lines


def _folded(text: str, indent: int = 0) -> str:
    import textwrap

    more = " " * (indent or 2)
    return textwrap.fill(
        text, 100, initial_indent=" " * indent, subsequent_indent=more, break_on_hyphens=False
    )


def _ask(probe: Probe, inventory: Inventory, profile: Profile) -> Planned | Outcome:
    """The cases of a probe, or the outcome that says why there are none. Its code may be a stranger's.

    A `UsageError` is the probe's word on what the user asked for, and goes on to the user.
    """
    try:
        applies = probe.applies(inventory)
        if isinstance(applies, Reason):
            return _refusal(probe, applies.state, applies.text)
        # A longer load, or a runtime to measure, is no reason to measure the rest for longer.
        served_s = 0.0 if profile.serving is None else profile.serving.seconds
        rest = profile.seconds - (profile.load_s + served_s) / BUDGET_SHARE
        planned = probe.cases(inventory, attrs.evolve(profile, seconds=rest))
        checked = tuple(_checked(probe, case) for case in planned.cases)
        names = [case.name for case in checked]
        if len(set(names)) < len(names):
            raise ValueError("two of its cases have one name")
        return Planned(checked, tuple(planned.left_out))
    except UsageError:
        raise
    except Exception as error:
        return _refusal(probe, State.FAILED, f"its planning failed: {one_line(error)}")


def _refusal(probe: Probe, state: State, reason: str) -> Outcome:
    return Outcome(probe.name, "all", state, printable(reason), 0.0, 0, title=probe.title)


def _checked(probe: Probe, case: Case) -> Case:
    if case.probe != probe.name:
        raise ValueError(f"case {case.name!r} names probe {case.probe!r}")
    if case.rounds < 1 or not case.seconds >= 0 or case.bytes < 0:
        raise ValueError(f"case {case.name!r} has no sensible rounds, seconds or bytes")
    # A limit under the estimate would kill every round; an author who sets none gets the default of 60 s.
    return attrs.evolve(case, time_limit_s=max(case.time_limit_s, 3 * case.seconds))


def _select(cases: list[Case], only: Sequence[str]) -> list[Case]:
    names = [f"{case.probe}/{case.name}" for case in cases]
    chosen: set[str] = set()
    for pattern in only:
        hits = {
            name
            for name, case in zip(names, cases, strict=True)
            if pattern == case.probe or fnmatchcase(name, pattern)
        }
        if not hits:
            raise UsageError(f"no case matches {printable(pattern)!r}: {suggest(pattern, names)}")
        chosen |= hits
    found: list[Case] = []
    builders: dict[tuple[str, str], Case] = {}
    begun: set[tuple[str, str]] = set()
    for name, case in zip(names, cases, strict=True):
        group = (case.probe, case.group)
        builder = builders.setdefault(group, case)
        if name in chosen:
            # A group's set-up stands in its first case: without that one, the next does it.
            found.append(case if group in begun else _with_set_up_of(builder, case))
            begun.add(group)
    return found


def _within_memory(cases: list[Case], inventory: Inventory, left_out: list[LeftOut]) -> list[Case]:
    usable = inventory.limits.usable_memory_bytes
    if usable is None:
        usable = inventory.memory.available_bytes
    kept: list[Case] = []
    for execution in executions(attrs.evolve(case, rounds=1) for case in cases):
        wanted = execution.bytes
        if usable is None and wanted > 0:
            reason = f"it wants {exact_bytes(wanted)}, and how much memory may be used is unknown"
        elif usable is not None and wanted * 100 > usable * USABLE_PERCENT:
            reason = (
                f"group {execution.group} wants {exact_bytes(wanted)}, more than {USABLE_PERCENT} % of the "
                f"{exact_bytes(usable)} that may be used ({exact_bytes(usable * USABLE_PERCENT // 100)})"
            )
        else:
            kept += execution.cases
            continue
        left_out += [LeftOut(case.probe, case.name, reason) for case in execution.cases]
    names = {(case.probe, case.name) for case in kept}
    return [case for case in cases if (case.probe, case.name) in names]


def _within_budget(cases: list[Case], profile: Profile, left_out: list[LeftOut]) -> list[Case]:
    budget = profile.seconds * BUDGET_SHARE
    room = f"the {duration(budget)} that profile {profile.name} has for measuring"
    wanted = {(case.probe, case.name): case.rounds for case in cases}
    whole = _seconds(cases)
    most = max(wanted.values(), default=0)
    while most > LEAST_ROUNDS and _beyond(_seconds(cases), budget):
        most -= 1
        cases = [attrs.evolve(case, rounds=min(case.rounds, most)) for case in cases]
    kept, dropped = _cut(cases, budget)
    ledger = _Ledger(kept)
    # A cheap case must not go because it stood behind a dear one.
    returned: dict[tuple[str, str], Case] = {}
    refused: list[Case] = []
    builders: dict[tuple[str, str], Case] = {}
    for case in dropped:
        group = (case.probe, case.group)
        builder = builders.setdefault(group, case)
        candidate = case if group in ledger.rounds else _with_set_up_of(builder, case)
        if not _beyond(ledger.seconds + ledger.price(candidate), budget):
            ledger.add(candidate)
            returned[case.probe, case.name] = candidate
        else:
            refused.append(candidate)
    staying = {(case.probe, case.name): case for case in kept} | returned
    ordered = [staying[case.probe, case.name] for case in cases if (case.probe, case.name) in staying]
    for case in ordered:
        before = wanted[(case.probe, case.name)]
        if case.rounds < before:
            reason = (
                f"{before - case.rounds} of {before} rounds; the plan would take {duration(whole)}, "
                f"more than {room}"
            )
            left_out.append(LeftOut(case.probe, case.name, reason))
    for case in refused:
        more = ledger.price(case)
        left_out.append(
            LeftOut(
                case.probe,
                case.name,
                f"{case.rounds} rounds of it take {duration(more)}; with it the plan "
                f"takes {duration(ledger.seconds + more)}, more than {room}",
            )
        )
    return ordered


def _cut(cases: Sequence[Case], budget: float) -> tuple[list[Case], list[Case]]:
    """(what is kept, what goes), each in order: the last cases of the probe that takes longest go, one by one, until
    the rest fits; a probe's only case goes last of all."""
    own: dict[str, list[Case]] = {}
    for case in cases:
        own.setdefault(case.probe, []).append(case)
    # What the first n cases of a probe take: (timed and set-up, starts of workers as well).
    sums = {probe: _running_sums(some) for probe, some in own.items()}
    left = {probe: len(some) for probe, some in own.items()}

    def seconds() -> float:
        return sum(sums[probe][number][1] for probe, number in left.items())

    dropped: list[Case] = []
    while any(left.values()) and _beyond(seconds(), budget):
        several = [probe for probe, number in left.items() if number > 1]
        several = several or [probe for probe, number in left.items() if number]
        longest = max(several, key=lambda probe: sums[probe][left[probe]][0])
        left[longest] -= 1
        dropped.append(own[longest][left[longest]])
    return [case for probe, some in own.items() for case in some[: left[probe]]], dropped[::-1]


def _running_sums(cases: Sequence[Case]) -> list[tuple[float, float]]:
    """Of the first 0, 1, 2 ... of these cases: (their seconds in all rounds, with the starts of their workers)."""
    rounds: dict[str, int] = {}
    measured = starts = 0.0
    sums = [(0.0, 0.0)]
    for case in cases:
        measured += case.seconds * case.rounds
        before = rounds.get(case.group, 0)
        rounds[case.group] = max(before, case.rounds)
        starts += WORKER_START_SECONDS * (rounds[case.group] - before)
        sums.append((measured, measured + starts))
    return sums


class _Ledger:
    """What a growing plan takes, without counting it anew for each case that might join."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.seconds = _seconds(cases)
        self.rounds: dict[tuple[str, str], int] = {}
        """The workers of each group: its most rounds."""
        for case in cases:
            self._count(case)

    def price(self, case: Case) -> float:
        """What the plan takes longer with this case."""
        workers = max(0, case.rounds - self.rounds.get((case.probe, case.group), 0))
        return case.seconds * case.rounds + WORKER_START_SECONDS * workers

    def add(self, case: Case) -> None:
        self.seconds += self.price(case)
        self._count(case)

    def _count(self, case: Case) -> None:
        group = (case.probe, case.group)
        self.rounds[group] = max(case.rounds, self.rounds.get(group, 0))


def _beyond(seconds: float, budget: float) -> bool:
    """Whether this is more than the budget; a running sum that its rounding may have put below it is more."""
    return seconds > budget * (1 - 1e-9)


def _with_set_up_of(builder: Case, case: Case) -> Case:
    """`case` priced as the first of its group, whose set-up it then does in place of `builder`, which was."""
    more = builder.setup_seconds - case.setup_seconds
    if more <= 0:
        return case
    seconds = case.seconds + more
    limit = max(case.time_limit_s, 3 * seconds)
    return attrs.evolve(case, seconds=seconds, setup_seconds=builder.setup_seconds, time_limit_s=limit)


def _seconds(cases: Sequence[Case]) -> float:
    return sum(execution.seconds for execution in executions(cases))
