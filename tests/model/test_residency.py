"""What must lie in CPU memory, for each layout of the trunk."""

from __future__ import annotations

import pytest

from k3gate.errors import UsageError
from k3gate.model import k3
from k3gate.model.residency import image, weight_bytes


def test_native_weights_with_vision_are_the_whole_checkpoint() -> None:
    held = image("bf16", True, 0, 1)
    weights = held.parts["experts"] + held.parts["trunk"] + held.parts["vision"]
    assert weights == 1_560_860_324_864
    assert held.bytes == weights + 464_633_856
    assert weight_bytes("bf16", True) == weights == weight_bytes("gpu", True)


def test_q8_0_trunk_without_vision_is_the_published_gguf_size() -> None:
    held = image("q8_0", False, 0, 1)
    assert held.parts["experts"] + held.parts["trunk"] == 1_506_746_192_048
    assert "vision" not in held.parts


def test_trunk_on_gpus_leaves_the_experts_alone_in_cpu_memory() -> None:
    held = image("gpu", True, k3.MAX_CONTEXT, 16)
    assert dict(held.parts) == {"experts": 1_446_456_066_048}
    assert held.bytes == 1_446_456_066_048


def test_cache_and_state_grow_with_sequences() -> None:
    held = image("bf16", False, 32_768, 4)
    assert held.parts["kv_cache"] == 4 * 32_768 * 27_648
    assert held.parts["state"] == 4 * 434_110_464
    assert held.parts["convolution"] == 4 * 30_523_392
    assert held.bytes == sum(held.parts.values())
    assert image("bf16", False, 1_048_576, 1).parts["kv_cache"] == 27 * 2**30


def test_arithmetic_shows_every_part() -> None:
    assert image("bf16", False, 8192, 1).arithmetic() == (
        "1,560.7 GB (routed experts 1,446.5 + trunk 113.5 + KV cache 0.2 + recurrent state 0.4 "
        "+ convolution state 0.03)"
    )


@pytest.mark.case("TOP-14")
def test_top_14_copies_per_node_multiply_the_weights_and_not_the_cache() -> None:
    one, four = image("bf16", False, 8192, 1), image("bf16", False, 8192, 1, copies=4)
    weights = one.parts["experts"] + one.parts["trunk"]
    assert four.bytes - one.bytes == 3 * weights
    assert "the weights 4 times" in four.arithmetic()


@pytest.mark.parametrize(
    ("trunk", "context", "sequences", "copies", "word"),
    [
        ("fp8", 0, 1, 1, "trunk layout"),
        ("bf16", -1, 1, 1, "context"),
        ("bf16", 1_048_577, 1, 1, "context"),
        ("bf16", 0, 0, 1, "sequences"),
        ("bf16", 0, 1, 0, "copies"),
    ],
)
def test_what_cannot_be_is_refused(trunk: str, context: int, sequences: int, copies: int, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        image(trunk, False, context, sequences, copies)
