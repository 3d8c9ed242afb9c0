"""What the decode replay plans on synthetic machines: the base case, one factor at a time, what finds no room."""

from __future__ import annotations

import base64
import zlib
from array import array
from typing import Any

import attrs
import pytest

from k3gate.model import k3
from k3gate.probes import decode_kernels, decode_plan, decode_replay
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, Profile, Routing

QUICK, STANDARD = Profile("quick", 180.0), Profile("standard", 1200.0)


def plan_of(inventory: Inventory, profile: Profile = STANDARD, path: str = "generic") -> Planned:
    return decode_plan.plan("replay", inventory, profile, path)


def named(planned: Planned) -> dict[str, Case]:
    return {case.name: case for case in planned.cases}


def left(planned: Planned) -> dict[str, str]:
    return {one.case: one.reason for one in planned.left_out}


def with_memory(inventory: Inventory, size: int) -> Inventory:
    """The same machine with so many bytes that may be used, which its nodes have and are free."""
    nodes = tuple(
        attrs.evolve(
            node, memory_bytes=size // len(inventory.numa.nodes), free_bytes=size // len(inventory.numa.nodes)
        )
        for node in inventory.numa.nodes
    )
    return attrs.evolve(
        inventory,
        numa=attrs.evolve(inventory.numa, nodes=nodes),
        memory=attrs.evolve(inventory.memory, total_bytes=size, available_bytes=size),
        limits=attrs.evolve(inventory.limits, usable_memory_bytes=size),
    )


def test_a_short_profile_holds_the_base_case_and_says_what_it_leaves_out(make_inventory: Any) -> None:
    planned = plan_of(make_inventory("bare_metal"), QUICK)
    assert set(named(planned)) == {"base"}
    assert {"trunk.*", "placement.*", "batch.*", "context.*", "routing.*", "deep"} <= set(left(planned))
    [case] = planned.cases
    assert case.seconds * case.rounds < 60
    smoke = plan_of(make_inventory("bare_metal"), Profile("smoke", 20.0))
    assert not smoke.cases and "--profile quick" in left(smoke)["*"]


def test_each_case_changes_one_factor_of_the_base_case(make_inventory: Any) -> None:
    cases = named(plan_of(make_inventory("bare_metal")))
    base = cases["base"].labels
    factors = ("trunk", "placement", "batch", "context", "routing", "pages", "layers")
    for name, case in cases.items():
        if name == "base":
            continue
        differing = {key for key in factors if case.labels[key] != base[key]}
        assert differing == ({"layers"} if name == "deep" else {name.split(".")[0]}), name
    assert {
        "deep",
        "routing.uniform",
        "batch.4",
        "context.0",
        "context.32768",
        "trunk.gpu",
        "pages.small",
    } <= set(cases)
    assert {"placement.interleaved", "placement.replicated", "placement.single"} <= set(cases)
    assert cases["deep"].labels["layers"] == 2 * base["layers"]


def test_the_miniature_has_true_widths_and_the_true_mix_of_layers(make_inventory: Any) -> None:
    setup = decode_replay.setup_of(named(plan_of(make_inventory("bare_metal")))["base"].parameters)
    shape = setup.shape
    assert (shape.hidden, shape.width, shape.inner, shape.used) == (
        k3.HIDDEN,
        k3.EXPERT_WIDTH,
        k3.EXPERT_INTERMEDIATE,
        k3.EXPERTS_PER_TOKEN,
    )
    assert (shape.heads, shape.head_dim, shape.router_rows, shape.layers % 4) == (
        k3.HEADS,
        k3.HEAD_DIM,
        k3.EXPERTS,
        0,
    )
    assert [node for node, _ in setup.node_cpus] == [0, 1] and setup.placement == "owner"


@pytest.mark.parametrize(("batch", "experts"), [(1, 32), (2, 64), (4, 125), (16, 449)])
def test_a_layer_holds_twice_the_experts_that_the_whole_model_would_touch(batch: int, experts: int) -> None:
    assert decode_plan.least_experts(batch) == pytest.approx(experts, abs=1)


def test_a_batch_that_memory_has_no_room_for_is_not_run_with_the_sum(make_inventory: Any) -> None:
    planned = plan_of(with_memory(make_inventory("bare_metal"), 20 * 10**9))
    assert "batch.4" in named(planned)
    reason = left(planned)["batch.32"]
    assert "4 layers of 786 experts are 55.5 GB" in reason and "more than the 18.0 GB" in reason


def test_in_eight_gigabytes_the_trunk_is_quantized_and_bf16_is_not_run(make_inventory: Any) -> None:
    # Of 8 GB the system itself takes a part.
    machine = with_memory(make_inventory("vm"), 7_400_000_000)
    planned = plan_of(machine, attrs.evolve(STANDARD, trunk="bf16"))
    assert named(planned)["base"].labels["trunk"] == "q8_0"
    assert "the trunk in bf16" in left(planned)["trunk.bf16"]


def test_the_trunk_that_is_asked_for_is_taken_where_there_is_room(make_inventory: Any) -> None:
    for trunk in ("bf16", "gpu", "mxfp4"):
        assert (
            named(plan_of(make_inventory("bare_metal"), attrs.evolve(STANDARD, trunk=trunk)))["base"].labels[
                "trunk"
            ]
            == trunk
        )


def test_experts_and_a_step_are_far_beyond_large_caches(make_inventory: Any) -> None:
    inventory = make_inventory("bare_metal")
    caches = tuple(
        attrs.evolve(cache, bytes=1100 << 20) if cache.level == 3 else cache for cache in inventory.cpu.caches
    )
    inventory = attrs.evolve(inventory, cpu=attrs.evolve(inventory.cpu, caches=caches))
    case = named(plan_of(inventory))["base"]
    held = int(case.labels["cache_bytes"] or 0)
    assert held > 2 << 30
    assert case.parameters["routed_bytes"] >= 4 * held
    step = decode_plan.step_bytes(str(case.labels["trunk"]), int(case.labels["layers"] or 0), 1, 0)
    assert step >= 2 * held


def test_a_machine_that_fills_memory_fast_holds_more_experts_and_the_same_in_each_case(
    make_inventory: Any,
) -> None:
    large = named(plan_of(make_inventory("bare_metal")))
    assert large["base"].labels["experts"] == 256
    for name, case in large.items():
        if not name.startswith("batch."):
            assert case.labels["experts"] == 256, name
    assert named(plan_of(make_inventory("vm")))["base"].labels["experts"] == 32


def test_one_node_has_no_placements_to_compare(make_inventory: Any) -> None:
    planned = plan_of(make_inventory("vm"))
    assert named(planned)["base"].labels["placement"] == "single"
    assert "one node" in left(planned)["placement.*"]


def ids_of(case: Case) -> array[int]:
    found = array("h")
    found.frombytes(zlib.decompress(base64.b64decode(case.parameters["ids"])))
    return found


def test_routing_is_stated_and_within_what_a_layer_holds(make_inventory: Any) -> None:
    case = named(plan_of(make_inventory("bare_metal")))["base"]
    ids = ids_of(case)
    assert len(ids) == decode_plan.STEPS * case.labels["layers"] * 16  # type: ignore[operator]
    assert min(ids) >= 0 and max(ids) < case.labels["experts"]  # type: ignore[operator]
    assert case.labels["reuse"] == pytest.approx(0.295, abs=0.01)
    assert case.labels["skew"] > 2  # type: ignore[operator]
    # Two nodes own the experts in turn: the busier one executes more than half, and never all.
    assert 1 < case.labels["imbalance"] < 2  # type: ignore[operator]
    uniform = named(plan_of(make_inventory("bare_metal")))["routing.uniform"]
    assert uniform.labels["skew"] < case.labels["skew"]  # type: ignore[operator]


def test_a_trace_is_replayed_with_its_own_reuse(make_inventory: Any) -> None:
    import numpy as np

    from k3gate.model.routing import synthesis

    trace = synthesis.synthesize(200, 3, 48, 6, reuse=0.5, skew=4.0, seed=3).trace
    ids = trace.experts.astype("<i2").tobytes()
    routing = Routing("a test's trace", "sha256:0", trace.tokens, 3, 6, 48, trace.starts, ids)
    cases = named(plan_of(make_inventory("bare_metal"), attrs.evolve(QUICK, routing=routing)))
    assert cases["base"].labels["routing"] == "trace"
    assert cases["base"].labels["reuse"] == pytest.approx(0.5, abs=0.05)
    assert "by the trace" in cases["base"].title
    assert cases["base"].labels["trace"] == "sha256:0"
    assert len(np.unique(ids_of(cases["base"]))) > 16


def test_what_a_trace_was_fitted_from_and_what_it_lost_is_told_in_title_and_labels(
    make_inventory: Any,
) -> None:
    """With 16 of 32 experts half of all uses need a quarter of the slots; with 256 the trace's own are kept."""
    from k3gate.model.routing import synthesis

    trace = synthesis.synthesize(200, 6, 256, 8, reuse=0.4, skew=12.0, seed=3).trace
    ids = trace.experts.astype("<i2").tobytes()
    routing = Routing("a test's trace", "sha256:0", trace.tokens, 6, 8, 256, trace.starts, ids)
    small = named(plan_of(make_inventory("vm"), attrs.evolve(QUICK, routing=routing)))["base"]
    assert small.labels["experts"] == 32
    assert str(small.labels["fitted_from"]).startswith("6 layers with 8 of 256 experts (layers ")
    assert "not kept within 5 points with 16 of 32 experts: slots that have 50%" in str(
        small.labels["not_kept"]
    )
    assert f"(fitted from {small.labels['fitted_from']}; {small.labels['not_kept']})" in small.title
    large = named(plan_of(make_inventory("bare_metal"), attrs.evolve(QUICK, routing=routing)))["base"]
    assert large.labels["not_kept"] is None
    assert large.labels["experts"] in (256, 128)
    assert "fitted from 6 layers with 8 of 256 experts" in large.title and "not kept" not in large.title


def test_experts_are_held_by_the_number_with_which_a_trace_is_kept(
    make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from k3gate.model.routing import synthesis

    trace = synthesis.synthesize(8, 2, 32, 4, reuse=None, skew=1.0).trace
    routing = Routing(
        "a short trace", "sha256:2", 8, 2, 4, 32, trace.starts, trace.experts.astype("<i2").tobytes()
    )
    real, seen = decode_plan.routing_of, []

    def only_128(kind: str, given: Any, layers: int, experts: int, *more: Any) -> Any:
        seen.append(experts)
        ids, told = real(kind, given, layers, experts, *more)
        return ids, {**told, "not_kept": None if experts == 128 else "not kept"}

    monkeypatch.setattr(decode_plan, "routing_of", only_128)
    case = named(plan_of(make_inventory("bare_metal"), attrs.evolve(QUICK, routing=routing)))["base"]
    assert seen[0] == 256
    assert case.labels["experts"] == 128 and case.labels["not_kept"] is None


def test_more_memory_nodes_than_an_engine_knows_are_left_out_with_a_reason(
    make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = make_inventory("bare_metal")
    setup = decode_replay.setup_of(named(plan_of(inventory, QUICK))["base"].parameters)

    def spread(nodes: int) -> Any:
        return attrs.evolve(setup, node_cpus=tuple((node, (node,)) for node in range(nodes)))

    assert decode_kernels.bytes_needed(spread(decode_kernels.MOST_NODES))
    with pytest.raises(ValueError, match="1 to 32 nodes"):
        decode_kernels.bytes_needed(spread(decode_kernels.MOST_NODES + 1))
    monkeypatch.setattr(decode_kernels, "MOST_NODES", 1)
    planned = plan_of(inventory)
    assert planned.cases == ()
    assert left(planned)["*"].startswith(
        "2 memory nodes have CPUs that may be used, and a miniature lies on at most 1: allow the CPUs of fewer"
    )


def test_a_short_trace_costs_the_batches_that_it_is_too_short_for(make_inventory: Any) -> None:
    from k3gate.model.routing import synthesis

    trace = synthesis.synthesize(2, 2, 32, 4, reuse=None, skew=1.0).trace
    routing = Routing(
        "a short trace", "sha256:1", 2, 2, 4, 32, trace.starts, trace.experts.astype("<i2").tobytes()
    )
    planned = plan_of(with_memory(make_inventory("vm"), 40 * 10**9), attrs.evolve(STANDARD, routing=routing))
    assert {"base", "batch.2"} <= set(named(planned))
    assert "too few for a batch of 4" in left(planned)["batch.4"]
