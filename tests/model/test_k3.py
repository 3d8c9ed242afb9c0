"""The facts of Kimi K3 agree with one another and with the released index, to the byte."""

from __future__ import annotations

from k3gate.model import k3


def test_groups_sum_to_the_total_size_of_the_released_index() -> None:
    assert sum(k3.BYTES_BY_GROUP.values()) == 1_560_860_324_864 == k3.CHECKPOINT_BYTES


def test_routed_experts_follow_from_the_shape() -> None:
    assert k3.EXPERT_PARAMETERS == 33_030_144
    assert k3.EXPERT_BYTES == 17_547_264
    assert k3.ROUTED_BYTES == 1_446_456_066_048
    groups = k3.BYTES_BY_GROUP
    assert groups["routed_experts_codes"] + groups["routed_experts_scales"] == k3.ROUTED_BYTES


def test_layers_and_parameters_add_up() -> None:
    assert k3.DENSE_LAYERS + k3.MOE_LAYERS == k3.LAYERS == k3.KDA_LAYERS + k3.MLA_LAYERS
    routed = k3.MOE_LAYERS * k3.EXPERTS * k3.EXPERT_PARAMETERS
    vision = k3.VISION_BYTES // 2  # BF16
    assert routed + k3.TRUNK_PARAMETERS + vision == k3.TOTAL_PARAMETERS == 2_779_931_837_184
    trunk_read = k3.TRUNK_PARAMETERS - k3.EMBEDDING_PARAMETERS
    assert k3.ROUTED_ACTIVE_PARAMETERS + trunk_read == k3.ACTIVE_PARAMETERS == 104_189_614_848


def test_cache_and_state_of_one_sequence() -> None:
    assert k3.KV_BYTES_PER_TOKEN == 27_648
    assert k3.STATE_BYTES == 434_110_464
    assert k3.CONVOLUTION_BYTES == 30_523_392
    assert k3.STATE_BYTES + k3.CONVOLUTION_BYTES == 464_633_856
