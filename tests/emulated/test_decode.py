"""The decode replay on two memory nodes: all placements give the same, and what crosses is what owners need."""

from __future__ import annotations

import math

import pytest
from machine import Answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(800), pytest.mark.xdist_group("emulated")]
PLACEMENTS = ("owner", "interleaved", "replicated", "single")


def test_placements_agree_in_their_output(two_nodes: Answers) -> None:
    found = two_nodes.json("placements")
    reference = found["owner"]["logits"]
    size = math.sqrt(math.fsum(one * one for one in reference))
    assert size > 0
    for placement in PLACEMENTS:
        own = found[placement]
        assert own["proof"] is True and own["recheck"] is True, placement
        apart = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(own["logits"], reference, strict=True)))
        assert apart <= 1e-3 * size, placement


def test_memory_lies_where_each_placement_has_it(two_nodes: Answers) -> None:
    found = two_nodes.json("placements")
    for placement in PLACEMENTS:
        ok, detail = found[placement]["placement"]
        assert ok is True, (placement, detail)
        assert set(found[placement]["bound"].values()) == {0}
    assert "on node 1" not in found["single"]["placement"][1]
    assert "interleaved: " in found["interleaved"]["placement"][1]
    assert [one[0] for one in found["owner"]["cpus"]] == [0, 1, 2]


def test_bytes_that_cross_are_what_execution_by_owners_implies(two_nodes: Answers) -> None:
    found = two_nodes.json("placements")
    batch, used, width = found["batch"], found["used"], found["width"]
    ids = found["ids"]
    # Rows are at home on the nodes in turn, and so are experts: a row travels once to the other node where it has any
    # expert there, in BF16, and its sum comes back in float32.
    rows = [ids[start : start + used] for start in range(0, len(ids), used)]
    sent = sum(any(expert % 2 != (number % batch) % 2 for expert in row) for number, row in enumerate(rows))
    assert 0 < sent <= len(rows)
    crossed = found["owner"]["crossed"]
    assert crossed["experts_in"] == 2 * width * sent
    assert crossed["experts_out"] == 4 * width * sent
    assert set(found["single"]["crossed"].values()) == {0}
    assert found["replicated"]["crossed"]["experts_in"] <= 2 * width * len(rows)
