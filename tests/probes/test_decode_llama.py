"""llama.cpp's logits of a miniature, the float64 reference's and the engine's: three implementations of one arithmetic.

What was found (llama-cpp-python 0.3.36), at one thread, a step at a time and as a prefill:

- With weights of F32 both agree to NMSE 1e-11 and choose the same experts: AttnRes, KDA, absorbed MLA, latent MoE,
  SiTU and every name, order and folding of the file are the same.
- Beside quantized weights ggml rounds activations: to 32 int8 and an F16 scale beside Q8_0 and MXFP4, to BF16 beside
  BF16. That is the whole difference: the reference that rounds so agrees to NMSE 1e-12 again, until one activation
  that lies between two codes falls to the other side, as the order of a sum decides. From there on the roundings of
  both are independent, and the outputs as far apart as one's are from what is exact.
- Routers choose alike but for near ties.
- Constants differ where it cannot be seen: under the root of the L2 norm of queries and keys llama.cpp adds 1e-5,
  kernels of flash-linear-attention 1e-6 (the reference follows these); the sum of the experts' weights is at least
  6.1e-5 there, and has 1e-20 added here. `test_the_constants_that_differ_cannot_be_seen` shows how little that is.
- Not arithmetic, but to be known: with repacking for AMX llama.cpp ends the process on a kimi-k3 whose attn_k_b is
  Q8_0, as it gives the product an input that is not contiguous. So repacking is off here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from attrs import frozen
from miniature import engine as engines
from miniature import kimi_gguf, llama_peer, reference, rounding, weights
from miniature.shape import SMALL
from numpy.typing import NDArray

from k3gate.probes import _native, gemm_kernels

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(llama_peer.missing() is not None, reason=str(llama_peer.missing())),
]
TOKENS = (1, 2, 3, 77, 5, 6, 1, 1, 200, 9, 8, 7)
SEEDS = (1, 2, 3)
EXPERT_LAYERS = [layer for layer in range(SMALL.layers) if not SMALL.is_dense(layer)]
PLAIN = weights.Types("f32", "f32", "f32")
ROUNDED = (
    weights.Types("f32", "mxfp4", "f32"),
    weights.Types("bf16", "mxfp4", "bf16"),
    weights.Types("q8_0", "mxfp4", "f32"),
)
ALIKE = 1e-9
"""NMSE of float32 against float64, by far; what rounds otherwise is above 1e-6."""


@frozen(eq=False)
class Given:
    """What llama.cpp gave for `TOKENS`, and the weights."""

    made: weights.Weights
    logits: NDArray[np.float32]
    ids: NDArray[np.int32]
    hidden: NDArray[np.float32]


def nmse(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> float:
    return float(np.square(found - wanted).mean() / np.square(wanted).mean())


def given(folder: Path, types: weights.Types, seed: int, at_once: bool) -> Given:
    made = weights.random_weights(SMALL, seed, types)
    path = folder / "miniature.gguf"
    kimi_gguf.write(path, SMALL, made, types)
    with llama_peer.opened(path, observe=True, repack=False) as peer:
        parts = [TOKENS] if at_once else [(token,) for token in TOKENS]
        logits = np.concatenate([peer.logits(part) for part in parts])
        observed = peer.observed
    return Given(
        made,
        logits,
        observed.whole("ffn_moe_topk", EXPERT_LAYERS),
        observed.whole("l_out", range(SMALL.layers)),
    )


@pytest.fixture(autouse=True)
def one_line_of_a_crash() -> Iterator[None]:
    """No debugger is started where the library ends the process."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    yield
    del os.environ["GGML_NO_BACKTRACE"]


@pytest.mark.parametrize("at_once", [False, True], ids=["steps", "prefill"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_arithmetic_is_the_same(tmp_path: Path, seed: int, at_once: bool) -> None:
    found = given(tmp_path, PLAIN, seed, at_once)
    steps = reference.decode(SMALL, found.made, TOKENS)
    assert np.array_equal(np.sort(found.ids), np.sort(np.stack([one.ids for one in steps])))
    for at, step in enumerate(steps):
        assert nmse(found.logits[at], step.logits) < ALIKE
        for layer in range(SMALL.layers):
            assert nmse(found.hidden[at, layer], step.hidden[layer]) < ALIKE
    assert np.abs(found.logits - np.stack([one.logits for one in steps])).max() < 1e-4


@pytest.mark.parametrize("types", ROUNDED, ids=lambda one: one.trunk)
def test_the_difference_is_the_rounding_of_activations(tmp_path: Path, types: weights.Types) -> None:
    """Of the first tokens of ten models: in most no rounding falls to the other side, and three will do."""
    apart, unrounded = [], []
    for seed in range(1, 11):
        found = given(tmp_path, types, seed, at_once=False)
        ids = found.ids[:2].tolist()
        step = reference.decode(SMALL, found.made, TOKENS[:2], ids, rounding.ggml)[1]
        exact = reference.decode(SMALL, found.made, TOKENS[:2], ids)[1]
        apart.append(nmse(found.logits[1], step.logits))
        unrounded.append(nmse(found.logits[1], exact.logits))
    assert sorted(apart)[2] < ALIKE
    assert min(unrounded) > 1000 * ALIKE


@pytest.mark.parametrize("at_once", [False, True], ids=["steps", "prefill"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("types", ROUNDED, ids=lambda one: one.trunk)
def test_logits_agree_within_the_bound_of_the_format(
    tmp_path: Path, types: weights.Types, seed: int, at_once: bool
) -> None:
    """The bound is what the reference itself loses by rounding its activations so; routing is forced to llama.cpp's."""
    found = given(tmp_path, types, seed, at_once)
    ids = found.ids.tolist()
    exact = np.stack([one.logits for one in reference.decode(SMALL, found.made, TOKENS, ids)])
    rounded = np.stack(
        [one.logits for one in reference.decode(SMALL, found.made, TOKENS, ids, rounding.ggml)]
    )
    lost = nmse(rounded, exact)
    assert nmse(found.logits, exact) < 3 * lost
    assert lost < {"f32": 2e-3, "bf16": 5e-3, "q8_0": 1e-2}[types.trunk]
    # Some tokens lose several times what the others do.
    assert np.abs(found.logits - exact).max() < 12 * (lost * np.square(exact).mean()) ** 0.5


@pytest.mark.parametrize("types", ROUNDED, ids=lambda one: one.trunk)
def test_routers_choose_alike_but_for_near_ties(tmp_path: Path, types: weights.Types) -> None:
    """With the experts before forced alike, each choice that differs was one that the loss of its input explains."""
    differing = total = 0
    for seed in SEEDS:
        found = given(tmp_path, types, seed, at_once=False)
        steps = reference.decode(SMALL, found.made, TOKENS, found.ids.tolist())
        for at, step in enumerate(steps):
            for number, layer in enumerate(EXPERT_LAYERS):
                total += 1
                if set(step.free[number]) == set(found.ids[at, number]):
                    continue
                differing += 1
                # A sigmoid is nowhere steeper than 1/4, scores before it spread by about 1; two of them may be off.
                loss = nmse(found.hidden[at, layer], step.hidden[layer]) ** 0.5
                assert step.margins[number] < 4 * 2**0.5 * 0.25 * loss
    assert differing < 0.15 * total


def test_the_constants_that_differ_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = weights.random_weights(SMALL, 1, PLAIN)
    ours = reference.decode(SMALL, made, TOKENS)
    monkeypatch.setattr(reference, "L2_EPSILON", 1e-5)
    theirs = reference.decode(SMALL, made, TOKENS)
    lost = nmse(np.stack([one.logits for one in theirs]), np.stack([one.logits for one in ours]))
    assert 0 < lost < 1e-9


def engine_of(types: weights.Types, made: weights.Weights) -> engines.OneSequence:
    path = gemm_kernels.choose_path(None)[0]
    wanted = engines.setup(SMALL, types, path, _native.allowed_cpus()[:1], room=len(TOKENS))
    return engines.OneSequence(SMALL, engines.loaded(wanted, made))


QUANTIZED = ROUNDED[1:]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("types", QUANTIZED, ids=lambda one: one.trunk)
def test_the_engine_agrees_with_both(tmp_path: Path, types: weights.Types, seed: int) -> None:
    """With the experts forced to llama.cpp's. Each rounds activations in its own way, so their losses add."""
    found = given(tmp_path, types, seed, at_once=False)
    ids = found.ids.tolist()
    exact = np.stack([one.logits for one in reference.decode(SMALL, found.made, TOKENS, ids)])
    rounded = np.stack(
        [one.logits for one in reference.decode(SMALL, found.made, TOKENS, ids, rounding.ggml)]
    )
    lost = nmse(rounded, exact)
    sequence = engine_of(types, found.made)
    try:
        steps = [sequence.step(token, found.ids[at]) for at, token in enumerate(TOKENS)]
    finally:
        sequence.engine.close()
    logits = np.stack([one for one, _ in steps])
    assert np.array_equal(np.stack([used for _, used in steps]), found.ids)
    # One scale of a row's activations beside MXFP4, where ggml has one of 32, loses more.
    assert nmse(logits, exact) < 5 * lost
    assert nmse(logits, found.logits) < 8 * lost


@pytest.mark.parametrize("types", QUANTIZED, ids=lambda one: one.trunk)
def test_the_engine_routes_as_both_but_for_near_ties(tmp_path: Path, types: weights.Types) -> None:
    """Routing free: each choice of the engine that the reference would not have made was a near tie to it."""
    differing = total = 0
    for seed in SEEDS:
        found = given(tmp_path, types, seed, at_once=False)
        sequence = engine_of(types, found.made)
        try:
            steps = [sequence.step(token) for token in TOKENS]
        finally:
            sequence.engine.close()
        ids = [used.tolist() for _, used in steps]
        exact = reference.decode(SMALL, found.made, TOKENS, ids)
        # The first layer with experts has the same input in all three, but for what attention before it rounds.
        same = [set(ids[at][0]) == set(found.ids[at, 0]) for at in range(len(TOKENS))]
        assert sum(same) >= 0.8 * len(TOKENS)
        for at, step in enumerate(exact):
            loss = nmse(steps[at][0], step.logits) ** 0.5
            for number in range(len(EXPERT_LAYERS)):
                total += 1
                if set(step.free[number]) != set(ids[at][number]):
                    differing += 1
                    assert step.margins[number] < 4 * 2**0.5 * 0.25 * loss
    assert differing < 0.15 * total
