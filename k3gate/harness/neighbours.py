"""What the rest of the machine did while the workers ran: the outcome `machine/idle` of every run.

Each worker's span is one round. The shares come from the kernel's counters, so a metric's interval is the
range over the spans: the machine was idle when it was idle in each of them.
"""

from __future__ import annotations

import os

import attrs

from k3gate.metrics import OTHER_SHARE, STEAL_SHARE
from k3gate.probing import idle, outcomes
from k3gate.records import Case, Metric, Outcome, Round, Sample, State

KEY = ("machine", "idle")
_CASE = Case(*KEY, "CPU time that went to others while the workers ran", "machine", {}, 0.0, 0)


def merge(earlier: Outcome | None, before: idle.Reading, after: idle.Reading, elapsed_s: float) -> Outcome:
    """The outcome with one more round, from two readings around a worker; `elapsed_s` since the run began."""
    shares = idle.shares(before, after)
    number = earlier.rounds[-1].round + 1 if earlier and earlier.rounds else 0
    known = shares.other is not None
    round_ = Round(
        number, State.OK if known else State.NOT_PRESENT, shares.reason, 0.0, 0.0, 0.0, os.getpid()
    )
    found = [
        Metric(
            declaration.name,
            declaration.unit,
            declaration.better,
            {"scope": "machine"},
            (Sample(value, number, os.getpid(), elapsed_s),),
            None,
            None,
            State.OK,
        )
        for declaration, value in ((OTHER_SHARE, shares.other), (STEAL_SHARE, shares.steal))
        if value is not None
    ]
    return outcomes.merge(earlier, attrs.evolve(_CASE, rounds=number + 1), round_, found)
