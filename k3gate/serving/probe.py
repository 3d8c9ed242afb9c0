"""A runtime that serves the model: load time, memory, and how fast it answers. It runs where one is named.

Cases, in one group, so that each round has a server of its own, started by k3gate and ended by it:

    load                the start until the first answer; what was in the page cache before; which files are open
    prompt.N            one answer to a new prompt of N tokens: first token, prefill, decode, gaps
    streams.N           N answers at once
    memory              peak, placement by node, growth with tokens

A server that goes away fails the case under way, whose samples so far are kept, and the rest of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from k3gate import metrics
from k3gate.errors import NotPresentError, ProbeError
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile
from k3gate.serving import cases, figures


class PrototypeProbe:
    """See the module's text."""

    name = "prototype"
    title = "Prototype: a runtime that serves the model (--command, --endpoint)"
    metrics: Sequence[MetricDeclaration] = (
        *(metrics.SERVED_LOAD, metrics.SERVED_PEAK, metrics.SERVED_PLACED, metrics.SERVED_GROWTH),
        *(metrics.SERVED_CORES, metrics.SERVED_FIRST, metrics.SERVED_PREFILL, metrics.SERVED_DECODE),
        *(metrics.SERVED_CHUNKS, metrics.SERVED_GAP, metrics.SERVED_TOGETHER, metrics.SERVED_COMPLETED),
        metrics.SERVED_RETRIES,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Everywhere; whether a runtime was named stands in the profile."""
        return Applies()

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """None without a runtime."""
        return cases.plan(self.name, profile)

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case."""
        from k3gate.serving.session import Session

        session = context.share("server", lambda: Session(case.parameters, context), Session.close)
        try:
            if session.lost is not None:
                raise ProbeError(session.lost)
            yield from _MEASURES[case.parameters["kind"]](case, context, session)
        finally:
            session.flush()
            if session.lost is not None or case.parameters["kind"] != cases.READING:
                session.print_log()


def _load(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    return figures.load(context, session)


def _reading(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    parameters, observer = case.parameters, session.observer
    before = None if observer is None else observer.now()
    found = session.read(int(parameters["length"]), int(parameters["streams"]))
    after = None if observer is None else observer.now()
    session.look()
    if not found.answers and not found.partial:
        reason = session.lost or (found.failures[0] if found.failures else "no answer came")
        if session.lost is None and _beyond_context(reason):
            raise NotPresentError(f"the server takes no such prompt: {reason}")
        raise ProbeError(reason)
    yield from figures.reading(context, session, found, dict(case.labels), before, after)


def _memory(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    session.observer.count(last=True)
    return figures.memory(context, session)


def _beyond_context(reason: str) -> bool:
    """Whether a server refused a prompt as longer than its context."""
    text = reason.lower()
    return "400" in text and "context" in text


_MEASURES: dict[str, Callable[[Case, Context, Any], Iterator[Metric]]] = {
    cases.LOAD: _load,
    cases.READING: _reading,
    cases.MEMORY: _memory,
}
