"""The grid, the accounts and the series of the monitor, on a clock that the test moves."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.probing import monitor
from k3gate.probing.monitor import Monitor, Quantity, Sampler, Source, Steps, Told
from k3gate.records import Case, Phase

HEAT = Quantity("temperature", "degC", (("sensor", "cpu"),))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def case(name: str) -> Case:
    return Case("memory", name, name, "g", {}, 1.0, 0)


def test_readings_keep_to_a_grid_and_lateness_is_told() -> None:
    clock = Clock()
    sampler = Sampler(Source("heat", 0.5, lambda now: {HEAT: now}), 100.0, clock)
    assert sampler.due == 100.0
    sampler.step()
    assert sampler.due == 100.5
    clock.now = 100.6  # woken late: the next point stays where it was
    sampler.step()
    assert sampler.due == 101.0
    clock.now = 103.2  # four points passed while nobody came
    sampler.step()
    assert sampler.due == 103.5
    told = sampler.account()
    assert (told.readings, told.missed, told.failed) == (3, 4, 0)
    assert told.worst_late_s == pytest.approx(2.2)
    assert told.mean_late_s == pytest.approx((0 + 0.1 + 2.2) / 3)
    (series,) = sampler.drain()
    assert series.times == (0.0, 0.6, 3.2) and series.labels == {"sensor": "cpu"}


def test_a_reading_that_takes_long_misses_points_and_shifts_none() -> None:
    clock = Clock()

    def slow(now: float) -> Told:
        clock.now += 12.3
        return {HEAT: 40.0}

    sampler = Sampler(Source("bmc", 5.0, slow), 100.0, clock)
    sampler.step()
    assert sampler.due == 115.0
    assert sampler.account().missed == 2


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("odd"), RuntimeError("closed"), KeyError("x")])
def test_a_source_that_fails_leaves_a_gap_and_goes_on(error: Exception) -> None:
    clock = Clock()
    told: list[Told | Exception] = [{HEAT: 40.0}, error, {HEAT: 41.0}]

    def read(now: float) -> Told:
        found = told.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    sampler = Sampler(Source("heat", 1.0, read), 100.0, clock)
    for _ in range(3):
        sampler.step()
        clock.now += 1
    (series,) = sampler.drain()
    assert (series.times, series.values) == ((0.0, 1.0, 2.0), (40.0, None, 41.0))
    assert sampler.account().failed == 1


def test_series_keep_changes_alone_and_how_long_the_last_one_held() -> None:
    steps = Steps("degC")
    for at, value in enumerate((40.0, 40.0, 40.0, 41.0, 41.0)):
        steps.add(float(at), value)
    assert steps.drain() == ((0.0, 3.0, 4.0), (40.0, 41.0, 41.0))
    assert steps.drain() == ((), ())
    steps.add(5.0, 41.0)
    # The next piece says only until when the value was seen.
    assert steps.drain() == ((5.0,), (41.0,))
    steps.add(6.0, float("nan"))
    assert steps.drain() == ((6.0,), (None,))


def test_a_long_run_keeps_the_extremes_and_little_else() -> None:
    steps = Steps("degC")
    for tick in range(2 * 3600 * 24):
        at = tick / 2
        steps.add(at, 97.0 if tick == 100_001 else 40.0 + tick % 7)
    times, values = steps.drain()
    assert 97.0 in values
    # An hour fine, then four doublings of the time and half of a fifth, each with 360 stretches.
    assert len(times) < 7_201 + 2 * 360 * 5 + 10
    assert list(times) == sorted(times)


@given(
    st.lists(st.tuples(st.floats(0.01, 900), st.none() | st.floats(-50, 150)), max_size=60),
    st.integers(1, 60),
)
def test_times_rise_whatever_comes_and_wherever_it_is_cut(
    readings: list[tuple[float, float | None]], cut: int
) -> None:
    steps = Steps("W")
    at, times, values = 0.0, [], []
    for number, (span, value) in enumerate(readings, 1):
        at += span
        steps.add(at, value)
        if number % cut == 0:
            piece = steps.drain()
            times += piece[0]
            values += piece[1]
    piece = steps.drain()
    times, values = [*times, *piece[0]], [*values, *piece[1]]
    assert times == sorted(times) and len(times) == len(values)
    if readings:
        assert times[-1] == pytest.approx(at, abs=1e-2)


def test_phases_are_marked_and_what_counts_is_read_first_and_last() -> None:
    counts = iter(range(10))
    read = threading.Event()

    def heat(now: float) -> Told:
        read.set()
        return {HEAT: 50.0}

    events = Quantity("events", "1", (("counter", "edac"),))
    clock = Clock()
    closed: list[str] = []
    watching = Monitor(
        [
            Source("heat", 1000.0, heat, close=lambda: closed.append("heat")),
            Source("errors", 1000.0, lambda now: {events: float(next(counts))}, ends=True),
        ],
        90.0,
        clock,
    )
    with watching:
        assert read.wait(20)
        watching.begin(case("read"), 0)
        clock.now = 103.0
        watching.end()
        watching.begin(case("write"), 1)
        clock.now = 104.5
    series, phases = watching.drain()
    assert phases == (
        Phase("memory", "read", 0, 10.0, 13.0),
        Phase("memory", "write", 1, 13.0, 14.5),
    )
    by_name = {one.name: one for one in series}
    assert by_name["events"].values == (0.0, 1.0) and by_name["events"].times == (10.0, 14.5)
    assert by_name["temperature"].values == (50.0,)
    assert closed == ["heat"]
    assert watching.drain() == ((), ())


def test_a_source_that_hangs_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "JOIN_S", 0.01)
    hanging, interrupted = threading.Event(), threading.Event()

    def hang(now: float) -> Told:
        hanging.set()
        interrupted.wait(20)
        return {}

    closed: list[str] = []
    source = Source("bmc", 1.0, hang, ends=True, close=lambda: closed.append("bmc"))
    watching = Monitor([], 0.0)
    watching._samplers = [Sampler(source, 0.0)]
    thread = threading.Thread(target=watching._samplers[0].run, args=(watching._ended,), daemon=True)
    watching._threads = [thread]
    thread.start()
    assert hanging.wait(20)
    watching.stop()
    # Nobody may close what is being read, and nobody waits for it.
    assert closed == [] and thread.is_alive()
    interrupted.set()
    thread.join(20)
    assert not thread.is_alive()


def test_what_hangs_is_interrupted_at_the_end() -> None:
    hanging, interrupted = threading.Event(), threading.Event()

    def hang(now: float) -> Told:
        hanging.set()
        assert interrupted.wait(20)
        raise OSError("closed")

    with Monitor([Source("bmc", 1.0, hang, interrupt=interrupted.set)], 0.0) as watching:
        assert hanging.wait(20)
    (account,) = watching.accounts()
    assert account.failed == 1


def test_pieces_are_joined_by_name_and_labels() -> None:
    clock = Clock()
    sampler = Sampler(Source("heat", 1.0, lambda now: {HEAT: 40.0 + now % 2}), 100.0, clock)
    parts = []
    for _ in range(4):
        sampler.step()
        clock.now += 1
        parts += sampler.drain()
    (series,) = monitor.joined(parts)
    assert series.times == (0.0, 1.0, 2.0, 3.0) and series.values == (40.0, 41.0, 40.0, 41.0)


def test_the_threads_count_their_cpu_time() -> None:
    done = threading.Event()

    def work(now: float) -> Told:
        sum(range(200_000))
        done.set()
        return {HEAT: 1.0}

    with Monitor([Source("work", 0.001, work)], 0.0) as watching:
        assert done.wait(20)
    (account,) = watching.accounts()
    assert account.cpu_s > 0
