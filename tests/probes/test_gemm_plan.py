"""What the GEMM probe plans on synthetic machines: matrices, paths, pools, budget."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.model import k3
from k3gate.probes import gemm_plan, gemm_shapes
from k3gate.probes.gemm_kernels import Path, Variant
from k3gate.probes.gemm_shapes import SHAPES
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, Profile, State

QUICK, STANDARD = Profile("quick", 180.0), Profile("standard", 1200.0)
PATHS = ("amx_int8", "amx_bf16", "avx512_vnni", "avx512_bf16", "avx512", "avx_vnni", "avx2", "generic")
OF_PATH = {
    "amx_int8": {"mxfp4": "int8", "int8": "int8"},
    "amx_bf16": {"mxfp4": "bf16", "bf16": "bf16"},
    "avx512_vnni": {"mxfp4": "int8", "int8": "int8"},
    "avx512_bf16": {"mxfp4": "bf16", "bf16": "bf16"},
}
ALL = {"mxfp4": "int8", "int8": "int8", "bf16": "bf16", "q8_0": "int8"}


def plan_of(
    inventory: Inventory,
    profile: Profile = QUICK,
    lacking: dict[str, State] | None = None,
    peer: bool = False,
) -> Planned:
    absent = lacking or {}
    paths = [Path(name, absent.get(name, State.OK), 0, "avx2") for name in PATHS]
    here = [path.name for path in paths if path.state is State.OK]
    variants = [Variant(kind, name, acts) for name in here for kind, acts in OF_PATH.get(name, ALL).items()]
    peaks = [
        {"path": name, "type": "bf16" if name.endswith("bf16") else "int8"}
        for name in here
        if name != "generic"
    ]
    return gemm_plan.plan("gemm", inventory, profile, paths, variants, peaks, peer)


def named(planned: Planned) -> dict[str, Case]:
    return {case.name: case for case in planned.cases}


def test_every_core_multiplies_weights_of_its_own_node(make_inventory: Any) -> None:
    cases = named(plan_of(make_inventory("bare_metal")))
    expert = cases["expert.machine"]
    assert [spec["node"] for spec in expert.parameters["pools"]] == [0, 1]
    assert expert.parameters["readers"] == [list(range(32)), list(range(32, 64))]
    assert (expert.labels["threads"], expert.labels["placement"]) == (64, "spread")
    assert expert.bytes >= 4 * expert.labels["cache_bytes"]
    assert "64 threads, CPUs 0-63 multiply whole routed experts, MXFP4" in expert.title


def test_a_short_profile_is_thinned_and_says_so(make_inventory: Any) -> None:
    planned = plan_of(make_inventory("bare_metal"))
    products = {name for name in named(planned) if not name.startswith("peak.")}
    assert products == {
        *("expert.machine", "expert.machine.amx_int8"),
        *("product.expert_up.mxfp4.machine", "product.expert_up.mxfp4.machine.amx_int8"),
        *("product.attention_in.bf16.machine", "product.attention_in.bf16.machine.amx_bf16"),
    }
    assert {one.case for one in planned.left_out} == {"product.*", "isa.*"}
    # All cores at once only where the products of the run are.
    whole = {name for name in named(planned) if name.startswith("peak.machine.")}
    assert whole == {
        f"peak.machine.{path}.{kind}"
        for path, kind in (
            ("amx_int8", "int8"),
            ("amx_bf16", "bf16"),
            ("avx512_vnni", "int8"),
            ("avx512_bf16", "bf16"),
        )
    }
    seconds = sum(case.seconds * case.rounds for case in planned.cases)
    assert seconds < 0.5 * QUICK.seconds
    assert all(case.rounds == 3 for case in planned.cases)
    shortest = plan_of(make_inventory("bare_metal"), Profile("smoke", 20.0))
    assert not shortest.cases and "--profile quick" in shortest.left_out[0].reason


def test_a_long_profile_takes_every_matrix_and_every_instruction_set(make_inventory: Any) -> None:
    planned = plan_of(make_inventory("bare_metal"), STANDARD)
    cases = named(planned)
    assert {one.case.split(" with")[0] for one in planned.left_out} == {"isa.mxfp4.generic"}
    for shape in SHAPES:
        for kind in shape.formats:
            assert f"product.{shape.key}.{kind}.machine" in cases
    assert {"isa.mxfp4.generic", "isa.mxfp4.avx2", "isa.int8.amx_int8", "isa.bf16.avx512_bf16"} <= set(cases)
    one = cases["isa.mxfp4.avx2"]
    assert (one.labels["threads"], one.parameters["path"]) == (1, "avx2")
    assert one.parameters["tokens"] == [1, 256]
    tokens = [
        *cases["expert.machine"].parameters["tokens"],
        *cases["expert.machine.amx_int8"].parameters["tokens"],
    ]
    assert tokens == [1, 2, 4, 8, 16, 64, 256]


@pytest.mark.case("ISA-01")
def test_isa_01_each_path_has_a_process_of_its_own(make_inventory: Any) -> None:
    """So that an instruction which a CPU lacks after all costs that path alone."""
    for case in plan_of(make_inventory("bare_metal"), STANDARD).cases:
        if case.name.startswith(("peak.", "isa.")):
            assert case.group.split(".")[0] == (case.labels.get("path") or case.parameters["path"])
    groups = [case.group for case in plan_of(make_inventory("bare_metal"), STANDARD).cases if case.bytes]
    assert len(set(groups)) == len(groups), "no two pools in one process"


def test_tiles_are_taken_from_sixteen_tokens_on(make_inventory: Any) -> None:
    cases = named(plan_of(make_inventory("bare_metal")))
    assert cases["expert.machine"].parameters["tokens"] == [1, 4]
    assert cases["expert.machine"].parameters["path"] == "avx512_vnni"
    assert cases["expert.machine.amx_int8"].parameters["tokens"] == [16, 64, 256]
    assert cases["product.attention_in.bf16.machine"].parameters["path"] == "avx512_bf16"
    tiles = cases["product.attention_in.bf16.machine.amx_bf16"]
    assert (tiles.parameters["path"], len(tiles.parameters["tokens"])) == ("amx_bf16", 3)
    assert tiles.group != cases["product.attention_in.bf16.machine"].group


def test_plain_code_takes_few_tokens_and_says_so(make_inventory: Any) -> None:
    """On a CPU without vectors of ours all fits the profile, the experts of one token before all else."""
    lacking = dict.fromkeys(PATHS[:-1], State.NOT_PRESENT)
    planned = plan_of(make_inventory("bare_metal"), lacking=lacking)
    assert planned.cases[0].name == "expert.machine" and planned.cases[0].parameters["tokens"] == [1, 4]
    told = {one.case: one.reason for one in planned.left_out}
    assert "more than 0.3 s" in told["expert.machine with 16, 64, 256 tokens"]
    assert sum(case.seconds * case.rounds for case in planned.cases) < 0.35 * QUICK.seconds


@pytest.mark.case("ISA-03")
@pytest.mark.parametrize("state", [State.NOT_PRESENT, State.NOT_PERMITTED])
def test_isa_03_what_is_not_there_has_a_case_that_says_so_and_the_rest_is_measured(
    make_inventory: Any, state: State
) -> None:
    lacking = {"amx_int8": state, "amx_bf16": state}
    cases = named(plan_of(make_inventory("bare_metal"), lacking=lacking))
    assert cases["peak.amx_int8"].parameters["kind"] == "absent"
    assert cases["peak.amx_int8"].rounds == 1
    assert cases["expert.machine"].parameters["path"] == "avx512_vnni"
    assert "peak.core.avx512_vnni.int8" in cases


def test_where_ggml_is_installed_its_product_stands_beside_ours(make_inventory: Any) -> None:
    assert not any("peer" in name for name in named(plan_of(make_inventory("bare_metal"), STANDARD)))
    cases = named(plan_of(make_inventory("bare_metal"), peer=True))
    theirs, ours = cases["peer.ggml.mxfp4"], cases["product.expert_up.mxfp4.core"]
    tiles = cases["product.expert_up.mxfp4.core.amx_int8"]
    assert theirs.parameters["tokens"] == [1, 16, 256]
    assert [*ours.parameters["tokens"], *tiles.parameters["tokens"]] == [1, 16, 256]
    assert theirs.labels == ours.labels and theirs.group != ours.group
    assert theirs.labels["threads"] == 1 and theirs.parameters["pools"] == ours.parameters["pools"]
    assert "peer.ggml.bf16" in named(plan_of(make_inventory("bare_metal"), STANDARD, peer=True))


def test_shapes_are_those_of_the_model_and_are_cut_evenly() -> None:
    by_key = {shape.key: shape for shape in SHAPES}
    up, down = by_key["expert_up"], by_key["expert_down"]
    size = gemm_shapes.BYTES_OF_WEIGHT["mxfp4"]
    assert (2 * up.rows * up.depth + down.rows * down.depth) * size == k3.EXPERT_BYTES
    assert (by_key["head"].rows, by_key["attention_in"].rows) == (163_840, 12_288)
    for shape in SHAPES:
        for kind in shape.formats:
            rows = shape.item_rows(kind)
            assert shape.rows % rows == 0 and rows % 32 == 0 and shape.depth % 32 == 0
            assert rows * shape.depth * gemm_shapes.BYTES_OF_WEIGHT[kind] <= gemm_shapes.MOST_BYTES
    assert by_key["expert_up"].item_rows("mxfp4") == 3072


def test_each_thread_has_an_item_of_its_own(make_inventory: Any) -> None:
    """Threads that read the same weights at once share them in a cache: that is no rate of memory."""
    for name, case in named(plan_of(make_inventory("bare_metal"), STANDARD)).items():
        if case.bytes:
            matrices = 3 if name.startswith("expert") else 1
            weight = gemm_shapes.BYTES_OF_WEIGHT[str(case.labels["format"])]
            item = matrices * case.parameters["rows"] * case.labels["depth"] * weight
            for spec, cpus in zip(case.parameters["pools"], case.parameters["readers"], strict=True):
                assert spec["bytes"] >= len(cpus) * item, name


def test_what_does_not_fit_is_left_out_with_the_sum(make_inventory: Any) -> None:
    inventory = make_inventory("vm", limits={"usable_memory_bytes": 64 << 20})
    planned = plan_of(inventory)
    assert all(case.bytes == 0 for case in planned.cases)
    told = {one.case: one.reason for one in planned.left_out}
    assert "it wants 0.3 GB" in told["expert.machine"] and "last-level caches" in told["expert.machine"]


def test_no_memory_that_may_be_used_leaves_all_out(make_inventory: Any) -> None:
    inventory = make_inventory("vm")
    bare = attrs.evolve(inventory.numa.nodes[0], memory_bytes=0)
    planned = plan_of(attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=(bare,))))
    assert not planned.cases and planned.left_out[0].case == "*"
