"""What a run lets one expect of the whole of Kimi K3: the predicted rate, whether it held, and what limits it. Pure."""

from __future__ import annotations

from attrs import frozen

from k3gate.analysis import limits, replay
from k3gate.analysis.kernels import roofs
from k3gate.analysis.limits import Limit
from k3gate.analysis.replay import Prediction, SelfTest
from k3gate.records import RunRecord, State
from k3gate.units import listed, significant

_WIDE = "predicted too widely to fail"


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
    def counted(self) -> tuple[SelfTest, ...]:
        """Cases of the run that hold it to account."""
        return tuple(one for one in self.tests if one.counts)

    @property
    def missed(self) -> tuple[SelfTest, ...]:
        """Those for which the prediction was wrong."""
        return tuple(one for one in self.tests if one.missed)

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
        lost = replay.not_kept(self.prediction.base)
        if lost is not None:
            found.append(f"the trace was replayed otherwise than it is, {lost}")
        return tuple(found)

    @property
    def held(self) -> str:
        """Whether it held against itself in this run, as a sentence or two."""
        if not self.tests:
            return "It was not held against itself in this run; profile standard does so."
        good = len(self.counted) - len(self.missed)
        names = listed(one.case.outcome.case for one in self.counted)
        which = "all" if good == len(self.counted) else "none" if not good else f"{good}"
        if not self.counted:
            told = "No case of this run holds it to account."
        elif len(self.counted) == 1:
            told = f"Held against itself in this run ({names}), it {'held' if good else 'failed'}."
        else:
            told = (
                f"Held against itself in {len(self.counted)} cases of this run ({names}), it held in {which}."
            )
        idle = [one for one in self.tests if not one.counts]
        shaky = [one.case.outcome.case for one in idle if one.case.rate.state is not State.OK]
        wide = [one.case.outcome.case for one in idle if one.case.rate.state is State.OK]
        idle_told = [
            f"{listed(names)} ({why})" for names, why in ((shaky, "unstable"), (wide, _WIDE)) if names
        ]
        if idle_told:
            told += f" Counted as nothing: {'; '.join(idle_told)}."
        return told

    @property
    def published(self) -> str:
        """How often predictions held against published results: those of plans, since nobody published a replay."""
        # Judging a run needs nothing else of plans.
        from k3gate.analysis.prediction import LEFT_OUT, TESTED

        rows = sum(of for _, of in TESTED.values())
        inside = sum(held for held, _ in TESTED.values())
        return (
            "Nobody has published a result beside such a replay. Predictions of k3gate plan, which rest on paper rates "
            f"and not on a replay, hold {inside} of {rows} published results, and {sum(LEFT_OUT.values())} of them "
            "where each machine is predicted by the others (k3gate backtest)."
        )


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
