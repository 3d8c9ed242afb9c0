"""Runs, verdicts and tables as a person reads them in a terminal. Plain text; colours only on a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from k3gate.analysis.limits import TITLES
from k3gate.metrics import LATENCY_LOADED, UNDER_LOAD
from k3gate.probing.plan import left_out_lines
from k3gate.records import CheckResult, GateResult, Metric, Outcome, RunRecord, State, StepResult, Verdict
from k3gate.reports import words
from k3gate.units import NBSP, count, duration, quantity, significant

if TYPE_CHECKING:
    from k3gate.analysis.expectation import Expectation

MARKS = {
    Verdict.PASS: ("+", "green"),
    Verdict.FAIL: ("x", "red"),
    Verdict.UNPROVEN: ("?", "yellow"),
    Verdict.WAIVED: ("~", "magenta"),
    Verdict.NOT_APPLICABLE: ("-", None),
}
WIDTH = 100


def say(text: str = "") -> None:
    """A line on stdout; colours are dropped where stdout is no terminal or NO_COLOR is set."""
    click.echo(text, color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def verdict_word(verdict: Verdict) -> str:
    """The verdict with its mark; the word says it without the colour."""
    mark, colour = MARKS[verdict]
    return click.style(f"{mark} {verdict.value.replace('_', ' ')}", fg=colour)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns, as wide as their widest cell."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def wrapped(text: str, indent: int) -> str:
    """`text` folded to the page's width with every line indented."""
    return textwrap.fill(
        text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def print_gate(result: GateResult, *, every_check: bool) -> None:
    """The gate: steps, then checks with their reasons; without `every_check` only those that decide."""
    shown = sum(_print_step(step, every_check) for step in result.steps)
    hidden = sum(len(step.checks) for step in result.steps) - shown
    if hidden:
        say(f"{count(hidden, 'more check')}: k3gate gate {result.run} --all")
    for notice in result.notices:
        say(wrapped(f"note: {notice}", 0))
    waived = f" with {result.waivers} waiver{'s' if result.waivers != 1 else ''}" if result.waivers else ""
    say()
    say(f"Gate: {verdict_word(result.verdict)}{waived}   target {result.target}, criteria {result.criteria}")


def _print_step(step: StepResult, every_check: bool) -> int:
    """Print a step; returns how many of its checks were shown."""
    say(f"{step.step}  {step.name:<14}{verdict_word(step.verdict)}")
    shown = [
        check
        for check in step.checks
        if every_check or (check.verdict is step.verdict and check.verdict is not Verdict.PASS)
    ]
    for check, following in zip(shown, [*shown[1:], None], strict=True):
        # One remedy often settles a whole step: it is told once, under the last check that it settles.
        repeated = following is not None and (check.remedy, check.verdict) == (
            following.remedy,
            following.verdict,
        )
        _print_check(check, every_check, remedy=every_check or not repeated)
    return len(shown)


def _print_check(check: CheckResult, full: bool, *, remedy: bool) -> None:
    name = check.id.split(".", 1)[-1]
    say(f"     {verdict_word(check.verdict)}  {name}")
    if check.verdict is Verdict.NOT_APPLICABLE and not full:
        return
    if full:
        say(wrapped(check.claim, 9))
    if check.reason:
        say(wrapped(check.reason, 9))
    if check.waiver:
        say(wrapped(f"waived by {check.waiver.who} on {check.waiver.when}: {check.waiver.why}", 9))
    open_ = (Verdict.FAIL, Verdict.UNPROVEN) if full else (Verdict.UNPROVEN,)
    if remedy and check.remedy and check.verdict in open_:
        say(wrapped(f"what to do: {check.remedy}", 9))


def metric_value(metric: Metric) -> str:
    """Median with its interval: "26.3 GB/s (25.9 to 26.8)"."""
    text = quantity(metric.median, metric.unit)
    if metric.interval and metric.interval[0] != metric.interval[1]:
        low, high = (quantity(value, metric.unit) for value in metric.interval)
        text += f" ({low} to {high})"
    return text


_BEST_FIRST = (
    State.OK,
    State.NOT_RUN,
    State.UNSTABLE,
    State.NOT_PRESENT,
    State.NOT_PERMITTED,
    State.FAILED,
)


def print_measurements(record: RunRecord) -> None:
    """One line a metric: case, value, interval, state; under it the reason, once for all that it holds for in a case.

    The worse of the states of a case and its metric is shown: a case that crashed has samples, and they are none
    of a case that went well. What others did meanwhile comes last.
    """
    for outcome in sorted(record.outcomes, key=lambda outcome: outcome.probe == "machine"):
        name = f"{outcome.probe}/{outcome.case}"
        if not outcome.metrics:
            _print_row(name, "", outcome.state, outcome.reason)
        told: set[str] = set()
        for metric in outcome.metrics:
            both: tuple[Metric | Outcome, ...] = (metric, outcome)
            worse = max(both, key=lambda one: _BEST_FIRST.index(one.state))
            value = f"{metric.name} {metric_value(metric)}{_told_apart(metric, outcome)}  "
            # Parts of one step often have one reason.
            _print_row(name, value, worse.state, None if worse.reason in told else worse.reason)
            told |= {worse.reason} if worse.reason else set()


def _told_apart(metric: Metric, outcome: Outcome) -> str:
    """What this figure is of, where its case and name do not say: its size, its load, what the bus carries."""
    labels = metric.labels
    alike = [one for one in outcome.metrics if one.name == metric.name]
    pair = {LATENCY_LOADED.name: UNDER_LOAD.name, UNDER_LOAD.name: LATENCY_LOADED.name}.get(metric.name)
    meanwhile = next(
        (
            one
            for one in outcome.metrics
            if one.name == pair and one.labels.get("delay") == labels.get("delay")
        ),
        None,
    )
    parts = []
    if meanwhile is not None:
        who = "read meanwhile" if pair == UNDER_LOAD.name else "for a load meanwhile"
        parts.append(f"{quantity(meanwhile.median, meanwhile.unit)} {who}")
    for key in words.telling(one.labels for one in alike):
        # A delay is a setting of the loaders: what they reached stands for it.
        if key != "delay":
            parts.append(words.apart(key, labels.get(key)).replace(NBSP, " "))
    counted, bus = (labels.get(f"{kind}_bytes_per_word") for kind in ("counted", "bus"))
    if isinstance(counted, int) and isinstance(bus, int) and metric.median and 0 < counted != bus:
        parts.append(f"counted; {quantity(metric.median * bus / counted, metric.unit)} on the bus, modelled")
    return "".join(f", {part}" for part in parts)


def _print_row(name: str, value: str, state: State, reason: str | None) -> None:
    say(f"{name:<28} {value}[{state.value}]")
    if reason:
        say(wrapped(reason, 5))


def print_expectation(found: Expectation | None, result: GateResult | None = None) -> None:
    """What the replay predicts for the target's layout, and what limits it; nothing where there was no replay.

    `result`: what was judged, for nothing limits more than a model that does not fit.
    """
    if found is None:
        return
    checks = [] if result is None else [one for step in result.steps for one in step.checks]
    unfit = any(one.id == "prototype.residency" and one.decided is Verdict.FAIL for one in checks)
    low, high = (significant(edge, 2) for edge in found.prediction.interval)
    who = "" if found.batch == 1 else f" for each of {found.batch} sequences"
    where = "on GPUs, which are not in it" if found.trunk == "gpu" else f"in {found.trunk}"
    doubt = f"; in doubt: {'; '.join(found.doubts)}" if found.doubts else ""
    told = f"{low} to {high} tokens/s{who}, trunk {where}, context {found.context:,}{doubt}"
    say(wrapped(f"predicted of the whole model, if it fits: {told}", 0))
    say(wrapped(f"{found.held} {found.published}", 5))
    if found.limit is None:
        return
    shares = ", ".join(f"{TITLES[one.key]} {one.share * 100:.0f} %" for one in found.limit.tiers)
    word = "not known, of the CPUs alone" if found.limit.unknown else found.limit.words
    capacity = "capacity, the model does not fit; if it did: " if unfit else ""
    say(wrapped(f"what limits it: {capacity}{word} ({shares})", 0))


def print_left_out(record: RunRecord) -> None:
    """What of the plan was left out, and why."""
    for line in left_out_lines(record.run.left_out):
        say(wrapped(line, 0))


def run_line(record: RunRecord) -> str:
    """One line that says which run this is."""
    run = record.run
    machine = run.machine_name or (
        f"machine {run.fingerprint[:19]}" if run.fingerprint else "an unknown machine"
    )
    return f"run {run.id} on {machine}, profile {run.profile}, {run.status.value}, {duration(run.seconds)}"
