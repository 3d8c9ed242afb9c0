"""The GEMM probe run for real on small pools of this machine, in a fake context that only keeps books."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import attrs
import pytest
from fakes import FakeContext

from k3gate.errors import NotPermittedError, NotPresentError, ProbeError
from k3gate.gate.kernels import kernel_reference
from k3gate.probes import _native, gemm, gemm_kernels, gemm_peaks, gemm_products, pools, sharing
from k3gate.probes.gemm import GemmProbe
from k3gate.records import (
    Cache,
    Case,
    Finding,
    Inventory,
    Metric,
    NumaNode,
    Outcome,
    Profile,
    Run,
    RunRecord,
    RunStatus,
    Severity,
    State,
    Verdict,
)

SMALL = 40 << 20
TOKENS = (1, 16)


@pytest.fixture
def inventory(make_inventory: Any) -> Inventory:
    """The synthetic guest with the CPUs of this machine, all in node 0, as where the kernel shows no nodes."""
    cpus = tuple(_native.allowed_cpus()[:2])
    cache = Cache(3, "Unified", 8 << 20, 1, len(cpus), (cpus,))
    cpu = {"online": cpus, "allowed": cpus, "siblings": (), "caches": (cache,)}
    found = make_inventory("vm", cpu=cpu)
    memory = found.memory.total_bytes
    node = NumaNode(0, cpus, memory, memory // 2, "dram", {0: 10})
    return attrs.evolve(found, numa=attrs.evolve(found.numa, nodes=(node,), available=False))


def case_of(inventory: Inventory, name: str, profile: str = "standard") -> Case:
    """The case, its pools small and its tokens few."""
    seconds = {"standard": 1200.0, "quick": 180.0}[profile]
    case = next(
        one for one in GemmProbe().cases(inventory, Profile(profile, seconds)).cases if one.name == name
    )
    parameters = dict(case.parameters)
    parameters["pools"] = [{**spec, "bytes": SMALL} for spec in parameters["pools"]]
    if "tokens" in parameters:
        parameters["tokens"] = [one for one in parameters["tokens"] if one in TOKENS]
    return attrs.evolve(case, parameters=parameters)


def run(inventory: Inventory, case: Case) -> tuple[list[Metric], FakeContext]:
    context = FakeContext(inventory, 0.2)
    try:
        return list(GemmProbe().run(case, context)), context
    finally:
        context.close()


def run_paths(inventory: Inventory, name: str) -> tuple[list[Metric], list[FakeContext]]:
    """The case and those of its other paths: each has its own."""
    planned = GemmProbe().cases(inventory, Profile("standard", 1200.0)).cases
    runs = [
        run(inventory, case_of(inventory, case.name))
        for case in planned
        if case.name == name or case.name.startswith(f"{name}.")
    ]
    return [metric for metrics, _ in runs for metric in metrics], [context for _, context in runs]


def product_of(metrics: list[Metric], name: str, tokens: int) -> Metric:
    return next(one for one in metrics if one.name == name and one.labels["tokens"] == tokens)


NAMES = ("expert.machine", "product.expert_up.mxfp4.machine", "product.latent_in.bf16.machine")


@pytest.mark.parametrize("name", NAMES)
def test_figures_carry_both_proofs_and_count_weights_and_operations(inventory: Inventory, name: str) -> None:
    metrics, contexts = run_paths(inventory, name)
    weights = "kernel.expert.rate" if name.startswith("expert") else "kernel.product.weight_rate"
    each = {"mxfp4": 17 / 32, "bf16": 2.0}
    for tokens in TOKENS:
        rate, flops = (
            product_of(metrics, weights, tokens),
            product_of(metrics, "kernel.product.flops", tokens),
        )
        assert rate.state in (State.OK, State.UNSTABLE), rate.reason
        proofs = {proof.name: proof.ok for proof in rate.proofs}
        assert proofs["kernel_reference"] is True and proofs["timed_output"] is True
        assert {"placement", "page_size", "pinned", "working_set"} <= set(proofs)
        assert proofs["pinned"] is True
        ratio = 2 * tokens / each[str(rate.labels["format"])]
        for one, other in zip(rate.samples, flops.samples, strict=True):
            assert other.value == pytest.approx(one.value * ratio)
        assert rate.labels["path"] in {path.name for path in gemm_kernels.paths() if path.state is State.OK}
        assert {"scope", "threads", "pool_bytes", "cache_bytes", "shape", "rows", "depth"} <= set(rate.labels)
    assert min(seconds for context in contexts for seconds in context.timed) >= 0.05
    assert len(product_of(metrics, weights, 1).samples) >= 3
    assert all(context.booked > 0 for context in contexts)


def wrong(name: str) -> Any:
    """A variant whose every product has this mistake."""

    def prove(variant: Any, tokens: int, depth: int = 512, seed: int = 1) -> Any:
        found = _native.gemm_prove(variant.format, variant.path, tokens, 80, 512, 2, seed, name)
        return gemm_kernels._proof("kernel_reference", found)

    return prove


def spoilt_run(team: Any, trials: list[Any], tokens: int, calls: int) -> Any:
    """A row that is wrong in the timed buffer alone: the kernel itself was proven before."""
    region = _RUN(team, trials, tokens, calls)
    if calls == 1:
        return region
    [trial] = set(trials)
    for row in range(trial.columns):
        ctypes.c_float.from_address(trial.output_address(0) + 4 * row).value += 100
    return region


def spoilt_whole(team: Any, trials: list[Any], tokens: int, calls: int) -> Any:
    """Wrong at the size that is timed, though right at the size of the proof on fresh operands."""
    region = _RUN(team, trials, tokens, calls)
    for trial in set(trials):
        for row in range(trial.columns):
            ctypes.c_float.from_address(trial.output_address(0) + 4 * row).value += 100
    return region


_RUN = _native.gemm_run_together


@pytest.mark.parametrize("fault", ["scale", "nibbles", "row", "gain", "whole", "timed"])
def test_a_planted_error_withholds_the_speed_and_fails_the_check(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "timed":
        monkeypatch.setattr(_native, "gemm_run_together", spoilt_run)
    elif fault == "whole":
        monkeypatch.setattr(_native, "gemm_run_together", spoilt_whole)
    else:
        monkeypatch.setattr(gemm_kernels, "prove", wrong(fault))
    case = case_of(inventory, "product.expert_up.mxfp4.machine")
    metrics, _ = run(inventory, case)
    assert metrics and all(one.state is State.FAILED and not one.samples for one in metrics)
    name = "timed_output" if fault == "timed" else "kernel_reference"
    for one in metrics:
        assert {proof.name: proof.ok for proof in one.proofs}[name] is False
        assert (one.reason or "").startswith("withheld: ") and (
            "beyond their bounds" in (one.reason or "") or "what rounding explains" in (one.reason or "")
        )
    outcome = Outcome("gemm", case.name, State.FAILED, metrics[0].reason, 1.0, 3, metrics=tuple(metrics))
    whole = Run("abcd2345", None, None, None, "quick", "0", "2026", "2026", RunStatus.COMPLETE)
    judged = kernel_reference(RunRecord(whole, inventory, (outcome,)))
    assert judged.verdict is Verdict.FAIL
    assert "differ from float64" in judged.reason


def test_peaks_say_rate_clock_and_instructions_a_cycle(inventory: Inventory) -> None:
    path = gemm_kernels.choose_path(None)[0]
    kind = gemm_kernels.peaks([path])[0]["type"]
    metrics, _ = run(inventory, case_of(inventory, f"peak.core.{path}.{kind}"))
    assert [one.name for one in metrics] == [
        "kernel.peak.flops",
        "cpu.clock.achieved",
        "kernel.peak.per_cycle",
    ]
    peak, clock, cycle = metrics
    assert peak.labels["path"] == path and peak.labels["scope"] == "core"
    middle = sorted(one.value for one in peak.samples)[len(peak.samples) // 2]
    told = middle / clock.samples[0].value / float(peak.labels["flops_per_instruction"])
    assert cycle.samples[0].value == pytest.approx(told)


def test_more_instructions_a_cycle_than_a_core_has_fail(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_peaks, "ISSUED_PER_CYCLE", 1e-6)
    [peak, *_] = run(inventory, case_of(inventory, "peak.core.generic.float32"))[0]
    assert peak.state is State.FAILED
    assert "instructions a cycle" in (peak.reason or "")


def absent(inventory: Inventory, path: str, state: State, error: int, monkeypatch: Any) -> ProbeError:
    made = gemm_kernels.Path(path, state, error, "avx512")
    monkeypatch.setattr(gemm_kernels, "paths", lambda: [made])
    return gemm.absence(path, inventory)


@pytest.mark.case("ISA-02")
@pytest.mark.parametrize("error", [errno.EINVAL, errno.EPERM])
def test_isa_02_tiles_that_are_refused_are_not_permitted_with_the_errno(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    found = absent(inventory, "amx_int8", State.NOT_PERMITTED, error, monkeypatch)
    assert isinstance(found, NotPermittedError)
    assert errno.errorcode[error] in str(found)


@pytest.mark.case("ISA-03")
def test_isa_03_tiles_that_the_cpu_lacks_are_not_present(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = absent(inventory, "amx_int8", State.NOT_PRESENT, 0, monkeypatch)
    assert isinstance(found, NotPresentError) and "this CPU has no amx_int8" in str(found)


@pytest.mark.case("ISA-05")
def test_isa_05_tiles_that_are_hidden_say_by_whom(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding("amx_hidden", Severity.MEDIUM, "", "hidden: hypervisor (kvm)", "", "", "")
    found = absent(
        attrs.evolve(inventory, findings=(finding,)), "amx_bf16", State.NOT_PRESENT, 0, monkeypatch
    )
    assert "hidden here" in str(found) and "hypervisor" in str(found)


def test_no_memory_for_weights_is_one_line(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "check_available", lambda size: None)
    case = case_of(inventory, "expert.machine")
    specs = [{**spec, "bytes": 1 << 56} for spec in case.parameters["pools"]]
    case = attrs.evolve(case, parameters={**case.parameters, "pools": specs})
    with pytest.raises(ProbeError, match="no memory for"):
        run(inventory, case)


@pytest.mark.skipif(len(_native.allowed_cpus()) < 2, reason="needs two CPUs")
def test_threads_of_two_nodes_multiply_from_their_own_pools(inventory: Inventory) -> None:
    case = case_of(inventory, "product.expert_up.int8.machine")
    [spec], [cpus] = case.parameters["pools"], case.parameters["readers"]
    halves = {"pools": [spec, {**spec, "node": 1}], "readers": [cpus[:1], cpus[1:]]}
    case = attrs.evolve(case, parameters={**case.parameters, **halves})
    metrics, context = run(inventory, case)
    [bench] = [one for one in context.shared.values() if isinstance(one, gemm_products._Bench)]
    assert len(bench.trials) == 2 and bench.of_thread == bench.trials
    assert all(one.state in (State.OK, State.UNSTABLE) for one in metrics)
    assert sharing.state_of(metrics[0].proofs)[0] is State.OK
