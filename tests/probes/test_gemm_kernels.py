"""The catalogue of products, as a probe uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from k3gate.errors import UsageError
from k3gate.probes import gemm_kernels
from k3gate.records import State


def test_the_best_path_leads_and_a_forced_one_leaves_what_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("K3GATE_ISA", raising=False)
    here = [path.name for path in gemm_kernels.paths() if path.state is State.OK]
    assert gemm_kernels.choose_path(None) == here
    for index, name in enumerate(here):
        monkeypatch.setenv("K3GATE_ISA", name)
        allowed = gemm_kernels.choose_path(None)
        assert allowed == here[index:]
        assert {variant.path for variant in gemm_kernels.variants(allowed)} <= set(allowed)
    monkeypatch.setenv("K3GATE_ISA", "sve9")
    with pytest.raises(UsageError, match="sve9"):
        gemm_kernels.choose_path(None)


def test_every_format_can_be_multiplied_on_any_cpu() -> None:
    assert {variant.format for variant in gemm_kernels.variants(["generic"])} == {
        "mxfp4",
        "int8",
        "bf16",
        "q8_0",
    }


@pytest.mark.parametrize("fault", ["", "scale", "nibbles", "row"])
def test_a_proof_says_what_it_saw(fault: str) -> None:
    for variant in gemm_kernels.variants(gemm_kernels.choose_path(None)[:1]):
        for proof in (
            gemm_kernels.prove(variant, 2, 416, fault=fault),
            gemm_kernels.prove_expert(variant, 2, 256, 128, fault=fault),
        ):
            assert proof.name == "kernel_reference"
            assert proof.ok is (fault == "")
            assert ("beyond their bounds" in proof.detail) is bool(fault)


def test_a_worker_needs_no_numpy_for_proofs_and_timing() -> None:
    script = (
        "import sys; from k3gate.probes import _native, gemm_kernels as g; v = g.variants(g.choose_path(None))[0]; "
        "assert g.prove(v, 1, 64).ok; t = v.trial(False, 64, 64, 1 << 20, 'small', 1); "
        "t.run(_native.Team(_native.allowed_cpus()[:1]), 1, 3); assert g.recomputed(t, 1).ok; "
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PATH": "/usr/bin:/bin"})
