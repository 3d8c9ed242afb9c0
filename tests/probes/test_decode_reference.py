"""The float64 reference of a decoded token, against itself by other formulas and against cases done by hand."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from miniature import reference, weights
from miniature.shape import SMALL, Shape

from k3gate.model import k3

TOKENS = [1, 2, 3, 77, 5, 6, 1, 1, 200]


@pytest.mark.parametrize(
    ("trunk", "experts"), [("f32", "f32"), ("bf16", "mxfp4"), ("q8_0", "mxfp4"), ("mxfp4", "mxfp4")]
)
def test_a_step_at_a_time_equals_a_prefill_by_other_formulas(trunk: str, experts: str) -> None:
    made = weights.random_weights(SMALL, 1, weights.Types(trunk, experts))
    steps = reference.decode(SMALL, made, TOKENS)
    whole = reference.prefill(SMALL, made, TOKENS)
    assert np.stack([one.logits for one in steps]) == pytest.approx(whole, rel=1e-10, abs=1e-10)
    assert 0.5 < whole.std() < 2, "numbers should keep their size through the layers"


def test_earlier_tokens_matter_and_later_ones_do_not() -> None:
    made = weights.random_weights(SMALL, 2)
    first = reference.decode(SMALL, made, [5, 9, 11])
    other = reference.decode(SMALL, made, [6, 9, 12])
    assert np.abs(first[1].logits - other[1].logits).max() > 0.01
    again = reference.decode(SMALL, made, [5, 9])
    assert np.array_equal(again[1].logits, first[1].logits)


def test_forced_routing_takes_the_experts_it_is_given() -> None:
    made = weights.random_weights(SMALL, 3)
    free = reference.decode(SMALL, made, TOKENS[:3])
    same = reference.decode(SMALL, made, TOKENS[:3], [one.ids.tolist() for one in free])
    assert np.array_equal(same[2].logits, free[2].logits)
    turned = [(one.ids + 1) % SMALL.experts for one in free]
    forced = reference.decode(SMALL, made, TOKENS[:3], [one.tolist() for one in turned])
    assert np.array_equal(forced[2].ids, turned[2])
    assert np.abs(forced[2].logits - free[2].logits).max() > 0.01
    # What the router would have chosen is told besides: in the first layer with experts nothing had changed yet.
    assert np.array_equal(forced[0].free[0], free[0].ids[0])
    assert (free[0].margins > 0).all()


def test_a_choice_tells_by_how_much_it_was_made() -> None:
    ids, margin = reference.choose(np.array([0.1, 0.9, 0.5, 0.7]), 2)
    assert ids.tolist() == [1, 3]
    assert margin == pytest.approx(0.2)
    assert reference.choose(np.array([0.1, 0.9]), 2)[1] == math.inf


def test_the_activation_by_hand() -> None:
    gate, up = 3.0, -40.0
    wanted = 4 * math.tanh(0.75) / (1 + math.exp(-3)) * 25 * math.tanh(-1.6)
    assert reference.situ(np.array([gate]), np.array([up]))[0] == pytest.approx(wanted, rel=1e-14)
    assert reference.sigmoid(np.array([-1e4, 1e4])).tolist() == [0, 1]


TINY = Shape(
    layers=1, experts=1, used=1, vocabulary=3, dense_layers=1, mla_every=9, hidden=32, heads=1, head_dim=32,
    query_rank=32, cache_rank=32, rest=32, decay_rank=32, dense_inner=32, width=32, inner=32,
)  # fmt: skip


def _plain(shape: Shape, **changes: np.ndarray) -> weights.Weights:
    """Unit norms, zero matrices, and what is given by the ends of names."""
    made = {}
    for name, kind in shape.kinds():
        numbers = np.full(kind.shape, kind.mean, np.float32)
        for ending, given in changes.items():
            if name.removesuffix(".weight").endswith(ending):
                numbers = np.broadcast_to(given, kind.shape)
        made[name] = weights.encode(numbers, "f32")
    return made


def test_the_delta_rule_by_hand() -> None:
    """Two tokens through one layer of KDA whose q, k and v are the hidden state itself."""
    one = np.eye(32, dtype=np.float32)
    embedding = np.zeros((3, 32), np.float32)
    embedding[0, 0] = embedding[1, 1] = 1
    taps = np.array([0, 0, 0, 1], np.float32)
    made = _plain(
        TINY, embed_tokens=embedding, q_proj=one, k_proj=one, v_proj=one, o_proj=one, lm_head=one[:3],
        conv1d=taps, A_log=np.float32(0), dt_bias=np.float32(0),
    )  # fmt: skip
    decoder = reference.Decoder(reference.Model(TINY, made))
    value = math.sqrt(32 / (1 + 32e-5))  # of RMSNorm of a unit vector
    silu = value / (1 + math.exp(-value))
    for token in (0, 1, 0):
        decoder.step(token)
    state = decoder._kda[0].state[0]
    # Decay sigmoid(0) = 1/2 of -5, beta 1/2; keys are unit vectors but for the norm's epsilon.
    decay = math.exp(-2.5)
    first = 0.5 * silu
    wanted = np.zeros((32, 32))
    wanted[0, 0] = first * decay * decay * (1 - 0.5) + 0.5 * silu
    wanted[1, 1] = first * decay
    assert state == pytest.approx(wanted, rel=1e-6, abs=1e-12)


def test_convolutions_see_the_last_inputs_alone() -> None:
    """With a tap on the oldest input only, a key is that of three tokens ago."""
    one = np.eye(32, dtype=np.float32)
    embedding = np.zeros((3, 32), np.float32)
    embedding[0, 5] = embedding[1, 6] = 1
    made = _plain(
        TINY, embed_tokens=embedding, q_proj=one, k_proj=one, v_proj=one, conv1d=np.float32([1, 0, 0, 0])
    )
    decoder = reference.Decoder(reference.Model(TINY, made))
    for token in (0, 1, 1):
        decoder.step(token)
        assert not decoder._kda[0].state.any()
    decoder.step(1)
    state = decoder._kda[0].state[0]
    assert np.flatnonzero(state).tolist() == [5 * 32 + 5]


def test_padding_of_the_decays_is_not_read() -> None:
    made = weights.random_weights(SMALL, 4)
    name = "model.layers.0.self_attn.A_log"
    assert made[name].shape == (SMALL.head_dim,)
    before = reference.decode(SMALL, made, [3, 4])[1].logits
    altered = made[name].codes.copy()
    altered[SMALL.heads :] = 7
    made[name] = weights.encode(altered, "f32")
    assert np.array_equal(reference.decode(SMALL, made, [3, 4])[1].logits, before)
    altered[0] += 1
    made[name] = weights.encode(altered, "f32")
    assert not np.array_equal(reference.decode(SMALL, made, [3, 4])[1].logits, before)


@pytest.mark.parametrize(("kind", "name"), [("q8_0", "Q8_0"), ("mxfp4", "MXFP4"), ("bf16", "BF16")])
def test_ggml_reads_the_same_numbers_from_the_bytes(kind: str, name: str) -> None:
    numbers = np.random.default_rng(5).normal(0, 0.3, (64, 96)).astype(np.float32)
    numbers[3, :32] = 0
    for square in (False, True):
        made = weights.encode(numbers, kind, square=square)
        read = gguf.dequantize(made.ggml(), gguf.GGMLQuantizationType[name])
        assert np.array_equal(read, made.numbers())
        loss = np.square(made.numbers() - numbers).mean() / np.square(numbers).mean()
        assert loss < {"q8_0": 1e-4, "mxfp4": 0.03, "bf16": 1e-5}[kind]


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0", "mxfp4"])
def test_square_blocks_can_be_transposed(kind: str) -> None:
    numbers = np.random.default_rng(6).normal(0, 0.3, (64, 96)).astype(np.float32)
    made = weights.encode(numbers, kind, square=True)
    assert np.array_equal(made.transposed().numbers(), made.numbers().T)
    assert np.array_equal(made.rows(32, 64).numbers(), made.numbers()[32:])
    if made.scales is not None:
        with pytest.raises(ValueError, match="cannot be transposed"):
            weights.encode(numbers, kind).transposed()


def test_widths_that_no_block_fits_are_refused() -> None:
    with pytest.raises(ValueError, match="inner is 100: give a multiple of 32"):
        Shape(layers=1, experts=16, vocabulary=2, inner=100)
    with pytest.raises(ValueError, match="used is 16, but there are 8 experts"):
        Shape(layers=1, experts=8, vocabulary=2)


def test_true_widths_give_the_parameters_of_each_part() -> None:
    shape = Shape(layers=4, experts=16, vocabulary=k3.VOCABULARY)
    counted: dict[str, int] = {}
    for name, kind in shape.kinds():
        layer = re.match(r"model\.layers\.(\d)\.(self_attn|mlp|block_sparse_moe)\.", name)
        part = f"{layer[2]}.{layer[1]}" if layer else name
        part = "expert" if re.search(r"\.1\.block_sparse_moe\.experts\.7\.", name) else part
        counted[part] = counted.get(part, 0) + math.prod(kind.shape)
    assert counted["self_attn.0"] * k3.KDA_LAYERS == k3.PARAMETERS_BY_GROUP["kda_attention"]
    assert counted["self_attn.3"] * k3.MLA_LAYERS == k3.PARAMETERS_BY_GROUP["mla_attention"]
    assert counted["mlp.0"] == k3.PARAMETERS_BY_GROUP["dense_mlp"]
    assert counted["expert"] == k3.EXPERT_PARAMETERS
    assert counted["lm_head.weight"] == k3.PARAMETERS_BY_GROUP["lm_head"]


def test_names_are_those_of_the_released_index(repository: Path) -> None:
    path = repository.parent / "shared" / "k3" / "model.safetensors.index.json.gz"
    if not path.exists():
        pytest.skip("needs ../shared/k3, which is not part of this checkout")
    with gzip.open(path) as file:
        released = {name.removeprefix("language_model.") for name in json.load(file)["weight_map"]}
    released = {name.replace("weight_packed", "weight") for name in released if "weight_scale" not in name}
    shape = Shape(layers=8, experts=896, vocabulary=1)
    ours = {name for name, _ in shape.kinds()}
    assert ours <= released
    inside = {name for name in released if re.match(r"model\.layers\.[0-7]\.", name)}
    outside = {name for name in released if name.startswith(("model.", "lm_head")) and ".layers." not in name}
    assert ours == inside | outside


def test_repeated_weights_are_the_same_each_time() -> None:
    types = weights.Types("q8_0", "mxfp4")
    made = weights.Repeated(SMALL, 7, types)
    assert set(made) == {name for name, _ in SMALL.kinds()}
    name = "model.layers.0.mlp.up_proj.weight"
    assert np.array_equal(made[name].numbers(), weights.Repeated(SMALL, 7, types)[name].numbers())
    assert made[name].numbers()[:128] == pytest.approx(made[name].numbers()[128:256])
    made["model.layers.3.self_attn.kv_b_proj.weight"].transposed()
    steps = reference.decode(SMALL, made, TOKENS)
    whole = reference.prefill(SMALL, made, TOKENS)
    assert np.stack([one.logits for one in steps]) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    assert 0.3 < whole.std() < 3
