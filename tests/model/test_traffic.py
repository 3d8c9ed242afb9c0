"""Bytes per decoded token: the figures that every speed claim is held against."""

from __future__ import annotations

import pytest

from k3gate.errors import UsageError
from k3gate.model import traffic


def test_weights_at_batch_one_for_each_layout() -> None:
    assert traffic.weights_per_token("bf16") == 136_990_303_232
    assert traffic.weights_per_token("q8_0") == 84_871_893_168
    assert traffic.weights_per_token("gpu") == 25_829_572_608


def test_state_and_cache_count_only_where_the_trunk_is_in_cpu_memory() -> None:
    whole = traffic.bytes_per_token("bf16", 8192, 1)
    assert whole == 136_990_303_232 + 2 * 434_110_464 + 27_648 * 8192
    assert traffic.bytes_per_token("gpu", 1_048_576, 1) == 25_829_572_608


def test_distinct_experts_are_exact_at_one_token_and_saturate() -> None:
    assert traffic.distinct_experts(1) == 16
    assert float(traffic.distinct_experts(2)) == pytest.approx(16 + 16 * 55 / 56)
    assert float(traffic.distinct_experts(16)) == pytest.approx(896 * (1 - (880 / 896) ** 16))
    assert 895 < float(traffic.distinct_experts(512)) < 896


def test_batch_shares_the_trunk_and_multiplies_state() -> None:
    one, four = traffic.step("bf16", 4096, 1), traffic.step("bf16", 4096, 4)
    assert four.parts["trunk"] == one.parts["trunk"]
    assert four.parts["state"] == 4 * one.parts["state"]
    assert four.parts["kv_cache"] == 4 * one.parts["kv_cache"]
    assert one.parts["experts"] < four.parts["experts"] < 4 * one.parts["experts"]
    assert four.bytes == sum(four.parts.values())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="batch"):
        traffic.distinct_experts(0)
    with pytest.raises(UsageError, match="trunk layout"):
        traffic.bytes_per_token("int4", 0, 1)
