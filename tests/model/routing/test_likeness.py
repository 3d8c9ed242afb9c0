"""Traces of Kimi K3, of other models, and of nearly Kimi K3's shape, which are refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from k3gate.errors import UsageError
from k3gate.model.routing import likeness
from k3gate.model.routing.trace import Trace, of_array


def trace(layers: int, used: int, experts: int | None, largest: int) -> Trace:
    """One token; the last layer uses the expert `largest`."""
    ids = np.tile(np.arange(used), (1, layers, 1))
    ids[0, -1, -1] = largest
    return of_array(ids, "t.jsonl", experts)


@pytest.mark.parametrize(
    ("layers", "used", "experts", "largest"),
    [
        (92, 16, 896, 895),
        (92, 16, None, 895),
        (92, 16, None, 880),
        (40, 16, 896, 895),
        (26, 8, 256, 255),
        (92, 16, None, 300),
        (60, 8, 384, 383),
        (93, 8, 256, 255),
    ],
)
def test_traces_of_k3_of_some_of_its_layers_and_of_other_models_are_taken(
    layers: int, used: int, experts: int | None, largest: int
) -> None:
    likeness.check(trace(layers, used, experts, largest))


@pytest.mark.parametrize(
    ("layers", "used", "experts", "largest", "told"),
    [
        (93, 16, 896, 895, "93 layers with 16 of 896 experts"),
        (93, 16, None, 890, "93 layers with 16 of 891 experts"),
        (92, 8, 896, 895, "92 layers with 8 of 896 experts"),
        (92, 17, 896, 895, "92 layers with 17 of 896 experts"),
        (92, 16, 900, 895, "92 layers with 16 of 900 experts"),
        (10, 8, 896, 895, "10 layers with 8 of 896 experts"),
    ],
)
def test_nearly_k3s_shape_is_refused_with_both_shapes_and_the_way_to_fit_it_on_purpose(
    layers: int, used: int, experts: int | None, largest: int, told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        likeness.check(trace(layers, used, experts, largest))
    text = str(caught.value)
    assert text.startswith(f"t.jsonl has {told}, and Kimi K3 92 with 16 of 896: ")
    assert text.endswith("fit it on purpose: k3gate routing FILE --shape k3 --save FITTED.jsonl")
    assert "\n" not in text
    assert ("layer 0 is dense" in text) == (layers == 93)
