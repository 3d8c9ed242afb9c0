"""What a trace shows, against the published figures of a recorded one and against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from k3gate.model.routing import statistics
from k3gate.model.routing.statistics import describe
from k3gate.model.routing.trace import Trace, of_array

SMALL = of_array(
    np.array([[[0, 1], [2, 3]], [[1, 0], [2, 0]], [[3, 1], [1, 0]], [[0, 1], [2, 3]]]), "small", 4
)


def test_the_recorded_trace_has_the_figures_that_its_source_states(recorded: Trace) -> None:
    found = describe(recorded)
    assert (found.tokens, found.layers, found.experts, found.used) == (300, 26, 256, 8)
    assert (found.uses, found.distinct, found.slots) == (62400, 5083, 6656)
    assert found.reuse == pytest.approx(0.3356, abs=5e-5)
    assert [one.slots for one in found.coverage] == [579, 1877, 3415]
    assert found.coverage[0].fraction == pytest.approx(0.087, abs=5e-4)


def test_a_small_trace_counted_by_hand() -> None:
    found = describe(SMALL)
    # Layer 0 keeps 2, 1, 1 of 2 experts, layer 1 keeps 1, 1, 0.
    assert found.by_layer[0].reuse == pytest.approx(4 / 6)
    assert found.by_layer[1].reuse == pytest.approx(2 / 6)
    assert found.reuse == pytest.approx(0.5)
    # Uses of layer 0: 3, 4, 0, 1; of layer 1: 2, 1, 3, 2.
    assert [layer.skew for layer in found.by_layer] == [2.0, 1.5]
    assert (found.skew, found.skew_of_slots) == (1.75, 2.0)
    assert found.by_layer[0].busiest == 0.5 and found.by_layer[0].distinct == 3
    assert found.by_layer[0].entropy == pytest.approx(3 / 8 * np.log2(8 / 3) + 0.5 + 3 / 8)
    assert found.uniform_entropy == 2
    # Slots in order: 4 3 3 2 2 1 1 0 of 16.
    assert [one.slots for one in found.coverage] == [3, 5, 7]
    assert found.hot_slots == ((1, 0.25), (2, 7 / 16), (3, 10 / 16), (4, 0.75), (6, 15 / 16), (8, 1.0))
    assert [one.caught for one in found.hot_set] == [7 / 16, 12 / 16, 15 / 16, 1.0]


def test_a_hot_set_is_counted_with_tokens_that_did_not_choose_it() -> None:
    halves = of_array(np.array([[[0]], [[0]], [[1]], [[1]]]), "halves", 4)
    one = describe(halves).hot_set[0]
    assert (one.experts, one.caught, one.held_out) == (1, 0.5, 0.0)
    even = of_array(np.array([[[0]], [[1]], [[0]], [[1]], [[0]], [[0]]]), "even", 4)
    assert describe(even).hot_set[0].held_out == pytest.approx(4 / 6)


def test_reuse_is_not_counted_from_one_sequence_to_the_next() -> None:
    ids = np.array([[[0]], [[0]], [[0]], [[1]]])
    assert describe(of_array(ids, "one", 2)).reuse == pytest.approx(2 / 3)
    assert describe(of_array(ids, "two", 2, (0, 2))).reuse == pytest.approx(1 / 2)
    assert describe(of_array(ids, "four", 2, (0, 1, 2, 3))).reuse is None


def test_one_token_leaves_unknown_what_needs_two() -> None:
    found = describe(of_array(np.array([[[0, 3]]]), "one", 4))
    assert found.reuse is None and found.hot_set[0].held_out is None
    assert found.skew == 2 and found.hot_set[-1].caught == 1


def test_parts_of_a_trace_give_what_the_whole_gives(drawn: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = describe(drawn)
    monkeypatch.setattr(statistics, "_CHUNK_BYTES", 700)
    assert describe(drawn) == whole
