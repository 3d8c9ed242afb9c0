"""The speed-line rule, since what it prints is published."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def pairs() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "pairs.py"
    spec = importlib.util.spec_from_file_location("pairs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pairs"] = module
    spec.loader.exec_module(module)
    return module


def taken(ratio: float, scatter: float, count: int) -> list[tuple[float, float]]:
    chance = random.Random(3)
    return [(ratio * chance.lognormvariate(0, scatter), 1.0) for _ in range(count)]


def test_the_ratio_lies_in_its_interval_and_near_the_truth(pairs: ModuleType) -> None:
    found = pairs.ratio(taken(1.25, 0.02, 21))
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(1.25, rel=0.02)


@pytest.mark.parametrize(
    ("ratio", "scatter", "count", "verdict"),
    [
        (1.20, 0.01, 15, "held"),
        (0.97, 0.05, 15, "held, by the upper part of the interval alone"),
        (0.80, 0.01, 15, "not held"),
        (1.20, 0.01, 14, "not resolvable here (14 pairs, 15 are needed)"),
        (1.20, 0.50, 15, "not resolvable here"),
    ],
)
def test_the_words_of_a_speed_line(
    pairs: ModuleType, ratio: float, scatter: float, count: int, verdict: str
) -> None:
    assert pairs.verdict(pairs.ratio(taken(ratio, scatter, count)), 0.97) == verdict


def test_sides_alternate_so_that_drift_falls_on_both(pairs: ModuleType) -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return 1.0

    pairs.measure(lambda: side("a"), lambda: side("b"), 4)
    assert "".join(order) == "ab" + "abba" * 2
