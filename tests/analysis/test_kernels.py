"""Products against their roofs, on figures made up."""

from __future__ import annotations

import pytest

from k3gate import metrics
from k3gate.analysis.kernels import Point, Roofs, roofs, turning
from k3gate.records import Inventory, Metric, MetricDeclaration, Outcome, Run, RunRecord, RunStatus, State


def metric(declaration: MetricDeclaration, value: float, **labels: str | int) -> Metric:
    return Metric(declaration.name, declaration.unit, declaration.better, labels, (), value, None, State.OK)


def point(tokens: int, memory: float, arithmetic: float) -> Point:
    """A point of these shares of 100 GB/s and of 1 TFLOP/s."""
    labels = {"tokens": tokens, "activations": "int8"}
    return Point(
        tokens,
        metric(metrics.KERNEL_EXPERT, memory * 1e11, **labels),
        metric(metrics.KERNEL_FLOPS, arithmetic * 1e12, **labels),
    )


LIMITS = Roofs(1e11, {"int8": (1e12, "avx512_vnni")})


@pytest.mark.parametrize("rates", [(1e11, 3e11, 2e11), (3e11, 2e11, 1e11), (1e11, 2e11, 3e11)])
def test_the_roofs_are_the_best_of_several_figures(make_inventory: object, rates: tuple[float, ...]) -> None:
    assert callable(make_inventory)
    inventory = make_inventory()
    assert isinstance(inventory, Inventory)
    head = Run("a", "m", "f", None, "quick", "0", "2026", None, RunStatus.COMPLETE)
    rows = tuple(
        one
        for rate in rates
        for one in (
            metric(metrics.MEMORY_READ, rate, scope="machine"),
            metric(metrics.KERNEL_PEAK, rate, scope="machine", type="int8", path=f"at {rate:g}"),
        )
    )
    record = RunRecord(head, inventory, (Outcome("memory", "c", State.OK, None, 1.0, 1, (), rows),))
    assert roofs(record) == Roofs(3e11, {"int8": (3e11, "at 3e+11")})


def test_the_crossing_lies_on_straight_lines_over_the_logarithm_of_tokens() -> None:
    """Half-way from 1 to 256 tokens is 16 of a logarithm, 128.5 of the tokens; of shares it is their difference."""
    tokens, told = turning((point(1, 0.9, 0.1), point(256, 0.1, 0.9)), LIMITS)
    assert tokens == pytest.approx(16.0)
    assert told == "at about 16"
    tokens, _ = turning((point(1, 0.9, 0.1), point(16, 0.1, 0.3)), LIMITS)
    assert tokens == pytest.approx(16**0.8)


def test_where_no_lines_cross_the_limit_is_told() -> None:
    few, many = point(4, 0.9, 0.1), point(16, 0.9, 0.3)
    assert turning((few, many), LIMITS) == (None, "bound by memory up to 16")
    assert turning((point(4, 0.1, 0.9), many), LIMITS) == (None, "bound by arithmetic from 4 on")
    assert turning((few,), Roofs(None, LIMITS.peaks))[0] is None
