"""What a run looks like in a terminal: each figure says what it is of, and each reason stands once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from k3gate import metrics
from k3gate.analysis.expectation import expected
from k3gate.cli.printing import print_expectation, print_measurements
from k3gate.probing.plan import left_out_lines
from k3gate.records import Better, LeftOut, Metric, Outcome, Run, RunRecord, RunStatus, State


class Told:
    """A record with these metrics in one case."""

    def __init__(self, case: str, *found: Metric) -> None:
        self.outcomes = (Outcome("memory", case, State.OK, None, 1.0, 3, (), found),)


def metric(name: str, value: float, **labels: Any) -> Metric:
    declared = metrics.find(name)
    assert declared is not None
    return Metric(name, declared.unit, Better.LOWER, labels, (), value, None, State.OK)


def lines(capsys: pytest.CaptureFixture[str], told: Any) -> list[str]:
    print_measurements(told)
    return capsys.readouterr().out.splitlines()


def test_each_step_of_a_staircase_names_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        metric("memory.latency.idle", 1e-9, pool_bytes=size, scope="staircase") for size in (2**14, 2**30)
    ]
    small, large = lines(capsys, Told("staircase.node0", *steps))
    assert "1.00 ns, pool 16 KiB" in small and "1.00 ns, pool 1 GiB" in large
    assert "scope" not in small, "what all of them share tells none apart"
    (alone,) = lines(capsys, Told("latency.node0.node0", steps[1]))
    assert "pool" not in alone


def test_latency_under_load_stands_with_the_load_that_was_reached(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for delay, latency, rate in ((0, 480e-9, 210e9), (64, 120e-9, 20e9)):
        found.append(metric("memory.latency.loaded", latency, delay=delay))
        found.append(metric("memory.bandwidth.under_load", rate, delay=delay))
    told = lines(capsys, Told("loaded.node0", *found))
    assert "480 ns, 210 GB/s read meanwhile" in told[0]
    assert "210 GB/s, 480 ns for a load meanwhile" in told[1]
    assert "120 ns, 20.0 GB/s read meanwhile" in told[2]
    assert not any("delay" in line for line in told)


def test_a_copy_tells_what_it_counts_from_what_the_bus_carries(capsys: pytest.CaptureFixture[str]) -> None:
    model = {"counted_bytes_per_word": 16, "bus_bytes_per_word": 24}
    (cached,) = lines(capsys, Told("copy.node0", metric("memory.bandwidth.copy", 40e9, **model)))
    assert "40.0 GB/s, counted; 60.0 GB/s on the bus, modelled" in cached
    streamed = metric("memory.bandwidth.copy", 40e9, **{**model, "bus_bytes_per_word": 16})
    assert "bus" not in lines(capsys, Told("copy_nt.node0", streamed))[0]


def test_cases_with_one_reason_share_a_line() -> None:
    thinned = [LeftOut("memory", f"c{number}", "2 of 5 rounds") for number in range(8)]
    told = left_out_lines([thinned[0], LeftOut("memory", "x", "no room"), *thinned[1:]])
    names = ", ".join(f"memory/c{number}" for number in range(6))
    assert told == [f"left out: {names} and 2 more cases: 2 of 5 rounds", "left out: memory/x: no room"]


def test_a_replay_is_told_by_its_prediction_and_what_limits_it(
    capsys: pytest.CaptureFixture[str], make_replay: Any, make_inventory: Any
) -> None:
    run = Run("a", None, None, None, "quick", "0", "t", None, RunStatus.COMPLETE)
    read = metric("memory.bandwidth.read", 520e9, scope="machine")
    rows = (
        make_replay(stream=500e9),
        Outcome("memory", "read.machine", State.OK, None, 1.0, 3, (), (read,)),
    )
    found = expected(RunRecord(run, make_inventory("bare_metal"), rows), "bf16", 8192, 1)
    print_expectation(found)
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "predicted of the whole model, if it fits: 3.1 to 4.2 tokens/s, trunk in bf16, context 8,192" in told
    )
    assert "It was not held against itself in this run" in told
    assert re.search(
        r"Predictions of k3gate plan, .* hold \d+ of \d+ published results, and \d+ of them", told
    )
    assert "what limits it: bandwidth-bound (memory bandwidth 96 %, arithmetic and latency 4 %" in told
    print_expectation(None)
    assert capsys.readouterr().out == ""


def test_what_all_parts_of_a_step_suffer_from_is_told_once(
    capsys: pytest.CaptureFixture[str], make_replay: Any
) -> None:
    shaky = make_replay(state=State.UNSTABLE, reason="the rounds scatter by 40 %")
    told = lines(capsys, Told("base", *shaky.metrics))
    assert sum("[unstable]" in line for line in told) == len(shaky.metrics)
    assert sum("the rounds scatter by 40 %" in line for line in told) == 1
