"""The model of routing gives the reuse and the skew that were asked for, and says what came out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3gate.errors import UsageError
from k3gate.model.routing.statistics import describe
from k3gate.model.routing.synthesis import BUSIEST, REUSE, SKEW, TOLERANCE, synthesize


@pytest.mark.parametrize(
    ("layers", "experts", "used", "sequences"),
    [(4, 32, 16, 1), (8, 64, 16, 1), (4, 128, 8, 4), (8, 896, 16, 1), (92, 896, 16, 1), (4, 896, 16, 32)],
)
def test_the_default_reuse_comes_out_within_a_point(
    layers: int, experts: int, used: int, sequences: int
) -> None:
    made = synthesize(48, layers, experts, used, sequences=sequences)
    assert made.realised.reuse == pytest.approx(REUSE, abs=TOLERANCE)
    assert made.realised == describe(made.trace)
    assert made.trace.experts.shape == (48 * sequences, layers, used)


def test_the_skew_that_was_asked_for_comes_out() -> None:
    made = synthesize(512, 8, 896, 16)
    assert made.skew == pytest.approx(SKEW) == BUSIEST * 56
    assert made.realised.skew == pytest.approx(SKEW, rel=0.06)
    less = synthesize(512, 8, 896, 16, skew=8)
    assert less.realised.skew == pytest.approx(8, rel=0.15)
    assert less.realised.coverage[0].fraction > made.realised.coverage[0].fraction + 0.1


def test_its_coverage_is_like_that_of_the_recorded_trace(recorded) -> None:
    of = describe(recorded)
    assert of.reuse is not None
    made = synthesize(300, 26, 256, 8, of.reuse, of.skew).realised
    for ours, theirs in zip(made.coverage[:2], of.coverage, strict=False):
        assert ours.fraction == pytest.approx(theirs.fraction, abs=0.05)


@pytest.mark.parametrize(("experts", "used"), [(896, 16), (32, 16), (8, 8)])
def test_uniform_routing(experts: int, used: int) -> None:
    made = synthesize(400, 4, experts, used, reuse=None, skew=1)
    assert made.realised.reuse == pytest.approx(used / experts, abs=0.01)
    counts = np.bincount(made.trace.experts.ravel(), minlength=experts)
    assert counts.std() < 1.5 * np.sqrt(counts.mean()), "no more uneven than chance"


def test_a_seed_gives_the_same_and_another_one_another() -> None:
    one, same, other = (synthesize(20, 3, 64, 4, skew=4, seed=seed).trace for seed in (5, 5, 6))
    assert np.array_equal(one.experts, same.experts)
    assert not np.array_equal(one.experts, other.experts)


@settings(max_examples=25, deadline=None)
@given(
    experts=st.sampled_from([16, 40, 100]),
    used=st.integers(1, 12),
    reuse=st.floats(0, 1),
    skew=st.floats(1, 20),
    seed=st.integers(0, 9),
)
def test_it_gives_what_was_asked_for_or_says_that_it_cannot_be_had(
    experts: int, used: int, reuse: float, skew: float, seed: int
) -> None:
    try:
        made = synthesize(120, 12, experts, used, reuse, skew, seed)
    except UsageError as error:
        assert "cannot be" in str(error)
        return
    ids = np.sort(made.trace.experts, axis=2)
    assert (ids[..., 1:] > ids[..., :-1]).all() and ids.min() >= 0 and ids.max() < experts
    assert made.realised.reuse == pytest.approx(reuse, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"reuse": 0.2, "used": 30, "skew": 1}, "share at least 93.3%"),
        ({"reuse": 1.5}, "give a share from 0 to 1"),
        ({"skew": 9}, "give 1 to 7.6"),
        ({"skew": 0.5}, "give 1 to 7.6"),
        ({"used": 33}, "33 of 32 experts"),
        ({"layers": 0}, "record at least one"),
        ({"sequences": 0}, "record at least one"),
        ({"tokens": 10**8}, "more than"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], told: str) -> None:
    asked = {"tokens": 8, "layers": 2, "experts": 32, "used": 4, **options}
    with pytest.raises(UsageError) as error:
        synthesize(**asked)  # type: ignore[arg-type]
    assert told in str(error.value)
