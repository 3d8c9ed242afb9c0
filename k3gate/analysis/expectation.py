"""What a run lets one expect of the whole of Kimi K3: the predicted rate, whether it held, and what limits it. Pure."""

from __future__ import annotations

from attrs import frozen

from k3gate.analysis import limits, replay
from k3gate.analysis.kernels import roofs
from k3gate.analysis.limits import Limit
from k3gate.analysis.replay import Prediction, SelfTest
from k3gate.records import RunRecord, State
from k3gate.units import listed, significant


@frozen
class Expectation:
    """The prediction for a layout of the trunk, a context and a batch, and all that says how far to trust it.

    `read_rate`: of the whole machine in the same run, in B/s; `limit`: None where it is not known.
    """

    trunk: str
    context: int
    batch: int
    prediction: Prediction
    tests: tuple[SelfTest, ...]
    read_rate: float | None
    limit: Limit | None

    @property
    def missed(self) -> tuple[SelfTest, ...]:
        """Cases of the run for which the prediction was wrong."""
        return tuple(one for one in self.tests if not one.inside)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What speaks against it, as clauses; none where it may be stated."""
        found = []
        if self.prediction.base.rate.state is State.UNSTABLE:
            found.append("the replay was unstable")
        if not self.prediction.narrow:
            wide = significant(self.prediction.high / self.prediction.low, 2)
            found.append(f"it is too wide: its upper end is {wide} times its lower")
        if self.missed:
            found.append(f"it failed its own test in {listed(one.case.outcome.case for one in self.missed)}")
        return tuple(found)

    @property
    def held(self) -> str:
        """Whether it held against itself in this run, as a sentence."""
        if not self.tests:
            return "It was not held against itself in this run; profile standard does so."
        good = len(self.tests) - len(self.missed)
        names = listed(one.case.outcome.case for one in self.tests)
        which = "all" if good == len(self.tests) else "none" if not good else f"{good}"
        if len(self.tests) == 1:
            return f"Held against itself in this run ({names}), it {'held' if good else 'failed'}."
        return f"Held against itself in {len(self.tests)} cases of this run ({names}), it held in {which}."


def expected(record: RunRecord, trunk: str, context: int, batch: int) -> Expectation | None:
    """None where no replayed case of the run says anything of it."""
    prediction = replay.for_target(record, trunk, context, batch)
    if prediction is None:
        return None
    read = roofs(record).read
    return Expectation(
        trunk,
        context,
        batch,
        prediction,
        replay.self_tests(record),
        read,
        limits.limit(prediction, read),
    )
