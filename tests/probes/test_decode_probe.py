"""The decode replay run for real at reduced width, in a fake context that only keeps books."""

from __future__ import annotations

import base64
import re
import secrets
import zlib
from array import array
from typing import Any

import attrs
import pytest
from fakes import FakeContext

from k3gate.probes import _native, decode_kernels, decode_replay, gemm_kernels
from k3gate.probes.decode_kernels import PARTS, Setup
from k3gate.records import Case, Inventory, Metric, Proof, State

STEPS = 8
SHAPE = attrs.evolve(decode_replay.REDUCED, vocabulary=256)


def setup(**changed: Any) -> Setup:
    cpus = tuple(_native.allowed_cpus()[:2])
    given = {
        "trunk": "q8_0",
        "path": gemm_kernels.choose_path(None)[0],
        "node_cpus": ((0, cpus),),
        "placement": "single",
        "context": 8,
        "room": 5,
        "bind": False,
        **changed,
    }
    return Setup(SHAPE, **given)


def case_of(one: Setup, cache_bytes: int = 1024) -> Case:
    shape = one.shape
    dice = secrets.SystemRandom()
    ids = array("h")
    for _ in range(STEPS * shape.layers * one.batch):
        ids.extend(dice.sample(range(shape.experts), shape.used))
    needed = decode_kernels.bytes_needed(one)
    parameters = {
        "setup": attrs.asdict(one, recurse=True),
        "ids": base64.b64encode(zlib.compress(ids.tobytes())).decode(),
        "steps": STEPS,
        "routed_bytes": sum(parts["routed"] for parts in needed.values()),
        "level_2_bytes": 0,
    }
    labels = {"scope": "machine", "factor": "base", "cache_bytes": cache_bytes}
    return Case("replay", "base", "a test's case", "base", parameters, 1.0, 0, labels=labels)


def run(case: Case, inventory: Inventory) -> list[Metric]:
    context = FakeContext(inventory, 0.1)
    try:
        return list(decode_replay.measure(case, context))
    finally:
        context.close()


def of(metrics: list[Metric], name: str, **labels: object) -> Metric:
    return next(
        one for one in metrics if one.name == name and all(one.labels.get(k) == v for k, v in labels.items())
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_figures_carry_proofs_and_parts_make_up_the_step(make_inventory: Any, batch: int) -> None:
    metrics = run(case_of(setup(batch=batch)), make_inventory("vm"))
    rate = of(metrics, "replay.miniature.rate")
    proofs = {proof.name: proof.ok for proof in rate.proofs}
    assert proofs["model_reference"] is True and proofs["timed_output"] is True
    assert proofs["working_set"] is True and proofs["pinned"] is True
    assert rate.state is State.OK
    parts = {one.labels["part"]: one for one in metrics if one.name == "replay.part.seconds"}
    assert set(parts) == set(PARTS)
    # Of each sample the parts' seconds are those of a step.
    for number, sample in enumerate(rate.samples):
        whole = sum(one.samples[number].value for one in parts.values())
        assert whole == pytest.approx(1 / sample.value, rel=0.02)
    size = sum(one.samples[0].value for one in metrics if one.name == "replay.part.bytes")
    moved = of(metrics, "replay.bandwidth").samples[0].value
    assert moved == pytest.approx(size * rate.samples[0].value, rel=0.02)
    # One node: nothing crosses.
    assert of(metrics, "replay.crossed.bytes").samples[0].value == 0


def test_what_the_routed_experts_read_is_what_the_routing_says(make_inventory: Any) -> None:
    case = case_of(setup())
    metrics = run(case, make_inventory("vm"))
    weights = SHAPE.width * SHAPE.inner * 3
    wanted = SHAPE.layers * SHAPE.used * weights * 17 / 32
    assert of(metrics, "replay.part.bytes", part="routed").samples[0].value == pytest.approx(wanted, rel=0.05)


def test_experts_that_fit_the_cache_are_refused_as_evidence(make_inventory: Any) -> None:
    metrics = run(case_of(setup(), cache_bytes=1 << 30), make_inventory("vm"))
    for metric in metrics:
        assert metric.state is State.FAILED
        assert "working_set" in (metric.reason or "")


@pytest.mark.parametrize("fault", decode_kernels.FAULTS)
def test_a_planted_mistake_withholds_the_speed(fault: str) -> None:
    changed: dict[str, Any] = {}
    if fault == "lost_row":  # needs an owner on another node
        cpus = _native.allowed_cpus()
        changed = {"node_cpus": ((0, tuple(cpus[:1])), (0, tuple(cpus[1:2] or cpus[:1])))}
        changed |= {"placement": "owner"}
    proof = decode_replay.prove_reduced(setup(**changed), fault=fault)
    assert proof.ok is False, proof.detail


@pytest.mark.parametrize("trunk", ["bf16", "q8_0", "mxfp4"])
def test_the_routers_own_choices_are_held_against_float64(trunk: str) -> None:
    proof = decode_replay.prove_reduced(setup(trunk=trunk, batch=2))
    assert proof.ok is True, proof.detail
    found = re.search(
        r"chooses (\d+) of the (\d+) experts .* near ties in (\d+) of (\d+) choices", proof.detail
    )
    assert found
    agreed, of, tied, choices = map(int, found.groups())
    # 3 steps of 2 sequences in 4 layers, 4 experts each.
    assert (of, choices) == (96, 24)
    assert of - agreed <= 2 * tied + 6


@pytest.mark.parametrize(("trunk", "seed"), [("q8_0", 59), ("bf16", 172)])
def test_numbers_that_cancel_and_roundings_that_turn_are_no_mistakes(trunk: str, seed: int) -> None:
    """Taps of a convolution that cancel to a hundredth; a rounding that decorrelates all that follows."""
    proof = decode_replay.prove_reduced(setup(trunk=trunk, context=8192, seed=seed))
    assert proof.ok is True, proof.detail


def test_wrong_arithmetic_is_never_timed(make_inventory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: Setup, fault: str = "") -> Proof:
        return Proof("model_reference", False, "a test's mistake")

    monkeypatch.setattr(decode_replay, "prove_reduced", wrong)
    metrics = run(case_of(setup()), make_inventory("vm"))
    assert {one.name for one in metrics} == {"replay.miniature.rate", "replay.bandwidth"}
    for metric in metrics:
        assert metric.state is State.FAILED and not metric.samples
        assert (metric.reason or "").startswith("withheld: model_reference: a test's mistake")


def test_a_wrong_timed_buffer_withholds_the_speed(
    make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = decode_kernels.Engine.recheck
    seen = []

    def bent(self: Any, seed: int, sampled: int = 8) -> Proof:
        seen.append(real(self, seed, sampled))
        return Proof("timed_output", False, "row 3 of an expert")

    monkeypatch.setattr(decode_kernels.Engine, "recheck", bent)
    metrics = run(case_of(setup()), make_inventory("vm"))
    assert seen and seen[0].ok is True
    assert all(one.state is State.FAILED and not one.samples for one in metrics)
