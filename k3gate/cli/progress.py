"""The progress of a run on stderr: a bar on a terminal, a line a case elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from k3gate.harness.listening import Listener
from k3gate.probing.plan import Execution, Plan
from k3gate.records import Outcome, Round, State
from k3gate.units import duration, quantity


@contextlib.contextmanager
def listener(quiet: bool) -> Iterator[Listener]:
    """The listener for this stderr."""
    if quiet:
        yield Listener()
    elif sys.stderr.isatty():
        with _Bar() as bar:
            yield bar
    else:
        yield Lines()


class Lines(Listener):
    """One line when the run begins and one a measured round: for logs and pipes."""

    def planned(self, plan: Plan, done: int) -> None:
        """See `Listener`."""
        left = sum(execution.seconds for execution in plan.executions[done:])
        already = f", {done} of {len(plan.executions)} workers done before" if done else ""
        self._say(f"{len(plan.cases)} cases, about {duration(left)}{already}")

    def measured(self, outcome: Outcome, latest: Round) -> None:
        """See `Listener`."""
        self._say(_line(outcome, latest))

    def notice(self, text: str) -> None:
        """See `Listener`."""
        self._say(text)

    def _say(self, text: str) -> None:
        print(f"k3gate: {text}", file=sys.stderr, flush=True)


class _Bar(Listener):
    """A bar by estimated seconds, with the case under way and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            # Redrawn by the events of the run alone: a thread of its own would share the cores we measure.
            auto_refresh=False,
        )
        self._task = self._progress.add_task("starting", total=None)
        self._execution: Execution | None = None
        self._shown = 0.0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def planned(self, plan: Plan, done: int) -> None:
        """See `Listener`."""
        before = sum(execution.seconds for execution in plan.executions[:done])
        self._progress.update(self._task, total=plan.seconds, completed=before, refresh=True)

    def execution(self, execution: Execution) -> None:
        """See `Listener`."""
        self._execution = execution

    def beat(self, case: str | None, note: str) -> None:
        """See `Listener`."""
        if time.monotonic() - self._shown < 0.5:
            return
        self._shown = time.monotonic()
        text = f"{case or 'worker'}{': ' + note if note else ''}"
        self._progress.update(self._task, description=text[:50].ljust(34), refresh=True)

    def measured(self, outcome: Outcome, latest: Round) -> None:
        """See `Listener`."""
        seconds = 0.0
        if self._execution is not None:
            seconds = next((c.seconds for c in self._execution.cases if c.name == outcome.case), 0.0)
        self._progress.update(self._task, advance=seconds, refresh=True)
        if latest.state is not State.OK:
            self.notice(_line(outcome, latest))

    def notice(self, text: str) -> None:
        """See `Listener`."""
        self._progress.console.print(f"k3gate: {text}", markup=False, highlight=False)


def _line(outcome: Outcome, latest: Round) -> str:
    name = f"{outcome.probe}/{outcome.case} round {latest.round + 1} of {outcome.rounds_planned}"
    if latest.state is not State.OK:
        return f"{name}: {latest.state.value}: {latest.reason}"
    values = [
        quantity(_round_median(outcome, metric_index, latest.round), metric.unit)
        for metric_index, metric in enumerate(outcome.metrics)
    ]
    return f"{name}: {', '.join(values)}"


def _round_median(outcome: Outcome, metric_index: int, number: int) -> float | None:
    import statistics

    values = [s.value for s in outcome.metrics[metric_index].samples if s.round == number]
    return statistics.median(values) if values else None
