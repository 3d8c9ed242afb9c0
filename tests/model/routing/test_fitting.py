"""A trace fitted to other shapes keeps its reuse and coverage, or says which of them it could not keep."""

from __future__ import annotations

import numpy as np
import pytest

from k3gate.errors import UsageError
from k3gate.model.routing import fitting
from k3gate.model.routing.fitting import fit
from k3gate.model.routing.statistics import describe
from k3gate.model.routing.trace import Trace


@pytest.mark.parametrize("layers", [4, 8, 92])
@pytest.mark.parametrize(("experts", "used"), [(32, 1), (64, 2), (896, 16)])
def test_reuse_and_coverage_are_kept_within_five_points(
    layers: int, experts: int, used: int, recorded: Trace
) -> None:
    made = fit(recorded, layers, experts, used)
    assert made.trace.experts.shape == (300, layers, used)
    assert made.realised == describe(made.trace)
    assert made.realised.reuse == pytest.approx(0.3356, abs=0.05)
    fractions = [one.fraction for one in made.realised.coverage]
    assert fractions == pytest.approx([0.087, 0.282, 0.513], abs=0.05)
    assert made.kept and made.reason is None


@pytest.mark.parametrize("experts", [32, 64])
def test_sixteen_of_few_experts_keep_the_reuse_and_the_rest_is_told(experts: int, recorded: Trace) -> None:
    made = fit(recorded, 4, experts, 16)
    assert made.realised.reuse == pytest.approx(0.3356, abs=0.05)
    half = made.realised.coverage[0].fraction
    assert half >= 8 / experts, "no expert is used more than once a token"
    assert not made.kept and made.reason is not None
    assert f"slots that have 50% of all uses {half:.1%} instead of 8.7%" in made.reason
    assert "reuse" not in made.reason


def test_the_same_shape_is_the_same_trace(drawn: Trace) -> None:
    made = fit(drawn, 3, 32, 4)
    assert made.unchanged and made.kept and np.array_equal(made.trace.experts, drawn.experts)


def test_sequences_stay_and_experts_are_used_once(drawn: Trace) -> None:
    made = fit(drawn, 7, 96, 6, seed=2)
    assert made.trace.starts == drawn.starts and made.layers == (0, 1, 2, 0, 1, 2, 0)
    ids = np.sort(made.trace.experts, axis=2)
    assert (ids[..., 1:] > ids[..., :-1]).all() and ids.min() >= 0 and ids.max() < 96
    assert np.array_equal(made.trace.experts, fit(drawn, 7, 96, 6, seed=2).trace.experts)
    assert not np.array_equal(made.trace.experts, fit(drawn, 7, 96, 6, seed=3).trace.experts)


def test_hot_experts_lie_anywhere(recorded: Trace) -> None:
    made = fit(recorded, 4, 64, 2)
    counts = np.bincount(made.trace.experts[:, 0].ravel(), minlength=64)
    assert abs(np.corrcoef(counts, np.arange(64))[0, 1]) < 0.5


def test_a_trace_of_one_token_and_a_long_one(drawn: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    single = fitting._first(drawn, 1)
    assert fit(single, 2, 16, 2).realised.reuse is None
    monkeypatch.setattr(fitting, "MAX_TOKENS", 50)
    made = fit(drawn, 2, 16, 2)
    assert made.trace.tokens == made.of.tokens == 50 and made.trace.starts == (0, 40)


@pytest.mark.parametrize("shape", [(0, 8, 2), (2, 8, 9), (2, 8, 0), (2, 40000, 2), (2000, 8, 2)])
def test_shapes_that_cannot_be(shape: tuple[int, int, int], drawn: Trace) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        fit(drawn, *shape)


def test_an_expert_stands_for_neighbours_in_rank_at_tokens_that_used_one_of_them(drawn: Trace) -> None:
    made = fit(drawn, 3, 16, 2)
    for layer in range(3):
        before, after = (_used(trace, layer) for trace in (drawn, made.trace))
        ranked = before[:, np.argsort(-before.sum(0), kind="stable")]
        pairs = ranked[:, ::2] | ranked[:, 1::2]
        for expert in range(16):
            assert any(not (after[:, expert] & ~pair).any() for pair in pairs.T), (layer, expert)
    twice = _used(fit(drawn, 3, 64, 8).trace, 0)
    assert sorted(map(bytes, twice.T)) == sorted([*map(bytes, _used(drawn, 0).T)] * 2)


def _used(trace: Trace, layer: int) -> np.ndarray:
    """bool [tokens, experts]."""
    found = np.zeros((trace.tokens, trace.expert_count), bool)
    np.put_along_axis(found, trace.experts[:, layer].astype(int), True, axis=1)
    return found
