"""The miniature that decodes, against float64, in every placement and on every path that this CPU has."""

from __future__ import annotations

import array
import random
from typing import Any

import pytest

from k3gate.probes import _native, decode_kernels, gemm_kernels
from k3gate.probes.decode_kernels import Engine, Setup, Shape

SMALL = Shape(
    layers=4,
    experts=8,
    hidden=96,
    width=64,
    inner=32,
    router_rows=20,
    used=3,
    heads=2,
    head_dim=32,
    query_rank=64,
    cache_rank=32,
    rest=32,
    decay_rank=32,
    dense_inner=96,
    block_layers=3,
    vocabulary=33,
)
"""A layer of MLA, three of KDA, one of them dense, and a second block."""
PATHS = gemm_kernels.choose_path(None)
TRUNKS = ("bf16", "q8_0", "mxfp4")


def _nodes(count: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """So many nodes, of a CPU each; where there are fewer CPUs, a test of several is skipped."""
    cpus = _native.allowed_cpus()
    if len(cpus) < count:
        pytest.skip(f"needs {count} CPUs")
    return tuple((node, (cpus[node],)) for node in range(count))


def _setup(nodes: int = 1, **options: Any) -> Setup:
    options = {"shape": SMALL, "trunk": "bf16", "path": PATHS[0], "pages": "small", **options}
    return Setup(node_cpus=_nodes(nodes), **options)


def _ids(setup: Setup, steps: int, seed: int = 1) -> bytes:
    dice = random.Random(seed)
    shape = setup.shape
    ids = array.array("h")
    for _ in range(steps * shape.layers * setup.batch):
        ids.extend(dice.sample(range(shape.experts), shape.used))
    return ids.tobytes()


def _floats(data: bytes) -> array.array[float]:
    return array.array("f", data)


def _apart(one: bytes, other: bytes) -> float:
    """Root mean square of the difference, relative."""
    a, b = _floats(one), _floats(other)
    return float((sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / sum(x * x for x in a)) ** 0.5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("trunk", TRUNKS)
def test_each_path_decodes_as_float64_does(path: str, trunk: str) -> None:
    for batch, context in ((1, 0), (2, 70)):
        proof = decode_kernels.prove(
            _setup(path=path, trunk=trunk, batch=batch, context=context, positions=3), seed=batch
        )
        assert proof.ok, proof.detail
        assert "a prefill of the same tokens differs by" in proof.detail


@pytest.mark.parametrize("placement", decode_kernels.PLACEMENTS)
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_each_placement_decodes_as_float64_does(placement: str, batch: int) -> None:
    for trunk in (*TRUNKS, "gpu"):
        proof = decode_kernels.prove(
            _setup(2, placement=placement, trunk=trunk, batch=batch, positions=3), seed=7 + batch
        )
        assert proof.ok, (trunk, proof.detail)


@pytest.mark.parametrize("threads", [((0, 0, 0), (0,), (0, 0)), ((0,) * 8,)])
def test_threads_may_be_more_than_heads_and_differ_from_node_to_node(
    threads: tuple[tuple[int, ...], ...],
) -> None:
    """Threads that share a CPU compute the same; a cache of 700 rows is cut among them."""
    cpu = _native.allowed_cpus()[0]
    nodes = tuple((node, tuple(cpu for _ in each)) for node, each in enumerate(threads))
    for placement in ("owner", "interleaved"):
        setup = Setup(SMALL, "q8_0", PATHS[0], nodes, placement=placement, context=700, pages="small")
        proof = decode_kernels.prove(setup)
        assert proof.ok, proof.detail


@pytest.mark.parametrize("fault", decode_kernels.FAULTS)
def test_a_planted_mistake_is_found(fault: str) -> None:
    setup = _setup(2, batch=2, context=5)
    assert decode_kernels.prove(setup, seed=3).ok
    assert decode_kernels.prove(setup, seed=3, fault=fault).ok is False


def test_mistakes_that_a_setup_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="on one node no row is sent"):
        decode_kernels.prove(_setup(), fault="lost_row")
    with pytest.raises(ValueError, match="no such fault: typo"):
        decode_kernels.prove(_setup(), fault="typo")


def _run(setup: Setup, steps: int = 3) -> decode_kernels.Report:
    engine = Engine(setup)
    try:
        report = engine.run(_ids(setup, steps), steps)
        proof = engine.recheck(seed=5, sampled=64)
        assert proof.ok, proof.detail
        return report
    finally:
        engine.close()


def test_placements_agree_and_bytes_between_nodes_are_those_of_the_rows() -> None:
    reports = {
        placement: _run(_setup(2, placement=placement, batch=3)) for placement in decode_kernels.PLACEMENTS
    }
    for placement, report in reports.items():
        assert _apart(report.logits, reports["single"].logits) < 1e-4, placement
    assert set(reports["single"].crossed_bytes.values()) == {0}
    # A row goes to each node that owns one of its experts, BF16, and its sum comes back from there, float32.
    setup = _setup(2, batch=3)
    ids = array.array("h", _ids(setup, 3))
    sent = 0
    for at in range(0, len(ids), SMALL.used):
        row, layer = at // SMALL.used % 3, at // SMALL.used // 3 % SMALL.layers
        if layer >= SMALL.dense_layers:
            home = row % 2
            sent += (1 - home) in {expert % 2 for expert in ids[at : at + SMALL.used]}
    crossed = reports["owner"].crossed_bytes
    assert crossed["experts_in"] == sent * 2 * SMALL.width
    assert crossed["experts_out"] == sent * 4 * SMALL.width
    assert crossed["activations"] > 0


def test_what_is_read_is_what_the_formats_have() -> None:
    setup = _setup(trunk="q8_0", batch=2)
    report = _run(setup, 1)
    shape = setup.shape
    # By the rule of a step: MXFP4 takes 17 bytes for 32 weights, and an expert that two rows chose is read once.
    ids = array.array("h", _ids(setup, 1))
    expert = 3 * shape.inner * shape.width * 17 / 32
    each = 2 * shape.used
    touched = sum(len(set(ids[at : at + each])) for at in range(each, len(ids), each))
    assert report.read_bytes["routed"] == touched * expert
    assert report.read_bytes["shared"] == 3 * 3 * shape.shared * shape.inner * shape.hidden * 34 / 32
    assert report.flops["routed"] == 3 * each * 6 * shape.inner * shape.width
    # Rows of the head fill up tiles of 16.
    assert report.read_bytes["head"] == 48 * shape.hidden * 34 / 32
    state = 3 * 2 * shape.heads * (shape.head_dim**2 + 9 * shape.head_dim) * 4
    row = 2 * (shape.cache_rank + shape.rest)
    assert report.written_bytes["attention_core"] == state + 2 * row


def test_a_report_adds_up() -> None:
    setup = _setup(2)
    report = _run(setup, 4)
    assert len(report.step_seconds) == 4
    assert 0 < sum(report.step_seconds) <= report.seconds * 1.001
    assert sum(report.seconds_by_part.values()) == pytest.approx(report.seconds)
    assert [thread.cpu_before for thread in report.threads] == [cpus[0] for _, cpus in setup.node_cpus]
    assert len(report.ids) == 4 * SMALL.layers * SMALL.used * 2
    assert 0 <= (report.agreement or 0) <= 1


def test_the_router_chooses_where_it_is_free_and_then_agrees_with_itself() -> None:
    setup = _setup(batch=2)
    engine = Engine(setup)
    tokens = array.array("i", [1, 2, 3, 4]).tobytes()
    free = engine.run(None, 2, tokens=tokens)
    assert free.agreement is None
    engine.reset()
    forced = engine.run(free.ids.replace(b"\xff\xff", b"\x00\x00"), 2, tokens=tokens)
    assert forced.agreement == 1
    assert forced.logits == free.logits
    ids = array.array("h", free.ids)
    used = {expert for expert in ids if expert >= 0}
    assert used <= set(range(SMALL.experts))
    assert len(used) > SMALL.used
    engine.close()


def test_what_is_needed_is_what_is_allocated() -> None:
    for placement in decode_kernels.PLACEMENTS:
        setup = _setup(2, placement=placement, trunk="q8_0", batch=2, context=100)
        needed = decode_kernels.bytes_needed(setup)
        engine = Engine(setup)
        assert engine.allocated() == needed
        held = sum(pool.bytes for _, pool in engine.pools)
        wanted = sum(sum(parts.values()) for parts in needed.values())
        assert wanted - 64 <= held < wanted + 4096 * (len(engine.pools) + 1)
        for _, pool in engine.pools:
            assert pool.query_nodes(16)[0] == 0
        assert set(engine.bind_errors) == {node for node, _ in engine.pools}
        engine.close()
    # Each replica is whole; owners share.
    owner, replicated = (
        decode_kernels.bytes_needed(_setup(2, placement=one))[0]["routed"] for one in ("owner", "replicated")
    )
    assert replicated == 2 * owner


def test_weights_are_those_that_were_loaded_and_nothing_runs_before() -> None:
    setup = _setup()
    engine = Engine(setup, fill=False)
    with pytest.raises(ValueError, match=r"not all tensors are loaded: model\.embed_tokens\.weight"):
        engine.run(_ids(setup, 1), 1)
    name = "model.layers.3.self_attn.kv_b_proj.weight"
    kind, (rows, depth) = engine.tensors()[name]
    assert (kind, rows, depth) == ("bf16", 2 * SMALL.heads * SMALL.head_dim, SMALL.cache_rank)
    values = array.array("f", [i % 251 - 125 for i in range(rows * depth)])
    engine.load(name, "f32", values.tobytes())
    assert engine.weights(name) == values.tobytes()
    with pytest.raises(ValueError, match="numbers that are no bf16"):
        engine.load(name, "f32", array.array("f", [1 / 3] * rows * depth).tobytes())
    with pytest.raises(ValueError, match="bytes and 0 of scales"):
        engine.load(name, "bf16", b"1234")
    with pytest.raises(ValueError, match="no tensor"):
        engine.load("model.layers.9.mlp.gate_proj.weight", "bf16", b"")
    engine.close()
    with pytest.raises(ValueError, match="closed"):
        engine.reset()


def test_bad_calls_are_refused_in_a_line() -> None:
    setup = _setup(room=2)
    engine = Engine(setup)
    good = _ids(setup, 1)
    wrong = array.array("h", good)
    wrong[-1] = SMALL.experts
    for ids, steps, match in (
        (good, 2, "ids are 24 numbers"),
        (wrong.tobytes(), 1, f"expert {SMALL.experts} is none of the {SMALL.experts} that are held"),
        (_ids(setup, 3), 3, "caches have room for 2 rows"),
        (good, 0, "steps are"),
    ):
        with pytest.raises(ValueError, match=match):
            engine.run(ids, steps)
    with pytest.raises(ValueError, match="token 33 is none"):
        engine.run(good, 1, tokens=array.array("i", [33]).tobytes())
    engine.close()
    for options, match in (
        ({"trunk": "int8"}, "no such trunk"),
        ({"path": "sse9"}, "no such path"),
        ({"batch": 33}, "batches are 1 to 32"),
        ({"placement": "anywhere"}, "no such placement"),
    ):
        with pytest.raises(ValueError, match=match):
            Engine(_setup(**options))


def test_a_spoilt_weight_is_found_after_a_run() -> None:
    """What was timed is computed again from the very memory that was read."""
    import ctypes

    setup = _setup()
    engine = Engine(setup)
    engine.run(_ids(setup, 1), 1)
    assert engine.recheck(seed=1, sampled=1 << 20).ok
    (_, pool), *_ = engine.pools
    # The first tile of the first matrix of the first layer of KDA, after its run.
    memory = (ctypes.c_uint16 * (pool.bytes // 2)).from_address(int(pool.address))
    before = list(memory[: pool.bytes // 2])
    for i in range(0, len(before), 512):
        memory[i] = before[i] ^ 0x0100
    assert engine.recheck(seed=1, sampled=1 << 20).ok is False
    del memory
    engine.close()


@pytest.mark.parametrize("fill", [True, False])
def test_every_page_is_in_memory_before_the_first_step(fill: bool) -> None:
    """Rows of the cache that steps will write to, and gaps, lie on a node too."""
    engine = Engine(_setup(context=3, room=400, bind=False), fill=fill)
    try:
        for _, pool in engine.pools:
            refused, nodes = pool.query_nodes(4096)
            assert refused or all(node >= 0 for node in nodes)
    finally:
        engine.close()
