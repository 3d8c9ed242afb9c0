"""How unevenly steps fall on the nodes that own the experts."""

from __future__ import annotations

import numpy as np
import pytest

from k3gate.errors import UsageError
from k3gate.model.routing.ownership import blocks, imbalance, turns
from k3gate.model.routing.trace import Trace


def test_what_the_busiest_node_reads_by_the_mean() -> None:
    # Two steps of two layers, a batch of two: expert 1 of layer 0 is read once though two tokens use it.
    steps = np.array([[[[0, 1], [1, 2]], [[0, 2], [2, 4]]], [[[0, 1], [0, 1]], [[5, 3], [1, 0]]]], np.int16)
    found = imbalance(steps, 6, 2, turns)
    # Distinct on nodes 0 and 1: 2+1, 3+0; 1+1, 1+3.
    assert found.mean == pytest.approx((2 * (2 + 3) / 6 + 2 * (1 + 3) / 6) / 2)
    assert found.distinct == (3 + 3 + 2 + 4) / 4
    assert found.largest == pytest.approx(10 / 6)
    assert found.by_layer == pytest.approx(((4 / 3 + 1) / 2, (2 + 6 / 4) / 2))
    even = imbalance(
        steps[:1], 6, 2, lambda experts, nodes: np.array([[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]])
    )
    assert even.mean == pytest.approx(2 * (2 + 2) / 6), "an owner of each layer's experts is taken too"


def test_one_node_is_even_and_all_on_one_is_not(drawn: Trace) -> None:
    steps = drawn.steps(20, 2)
    assert imbalance(steps, 32, 1).mean == 1
    alone = imbalance(steps, 32, 4, lambda experts, nodes: np.zeros(experts, int))
    assert (alone.mean, alone.largest) == (4, 4)


def test_rules() -> None:
    assert turns(5, 2).tolist() == [0, 1, 0, 1, 0]
    assert blocks(5, 2).tolist() == [0, 0, 0, 1, 1]


def test_more_nodes_than_experts(drawn: Trace) -> None:
    with pytest.raises(UsageError, match="33 nodes cannot share 32 experts"):
        imbalance(drawn.steps(1, 1), 32, 33)


def test_larger_batches_are_more_even(drawn: Trace) -> None:
    assert imbalance(drawn.steps(5, 16), 32, 4).mean < imbalance(drawn.steps(80, 1), 32, 4).mean
