"""The checks that the products of a run settle: their proofs, and the expert kernel's share of the read rate."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.records import Outcome, Proof, State, Verdict

BOTH = (Proof("kernel_reference", True, "within"), Proof("timed_output", True, "within"))


def product(build: Any, rate: float, *, kind: str = "mxfp4", tokens: int = 1, **changes: Any) -> Outcome:
    labels = {"scope": "machine", "format": kind, "tokens": tokens, "path": "avx512_vnni"}
    metric = build.metric("kernel.expert.rate", rate, labels=labels, proofs=(*build.PROOFS, *BOTH))
    metric = attrs.evolve(metric, **changes)
    return Outcome("gemm", f"expert.{kind}.{tokens}", metric.state, metric.reason, 1.0, 3, (), (metric,))


def test_products_of_both_formats_pass_when_all_are_proven(check: Any, make_record: Any, build: Any) -> None:
    outcomes = (*build.sound(), product(build, 400e9), product(build, 500e9, kind="bf16"))
    found = check(make_record(outcomes), "quantization.kernel_reference")
    assert found.verdict is Verdict.PASS
    assert found.observed == "2 figures proven"
    assert "k3gate's own" in found.reason
    assert found.evidence == (
        "gemm/expert.mxfp4.1#kernel.expert.rate",
        "gemm/expert.bf16.1#kernel.expert.rate",
    )


def test_one_format_alone_leaves_it_unproven(check: Any, make_record: Any, build: Any) -> None:
    found = check(make_record((*build.sound(), product(build, 4e11))), "quantization.kernel_reference")
    assert found.verdict is Verdict.UNPROVEN
    assert found.reason == "No products of BF16 weights were proven in this run; those of MXFP4 were."
    none = check(make_record(), "quantization.kernel_reference")
    assert none.reason == "No products of MXFP4 and BF16 weights were proven in this run."


@pytest.mark.parametrize("name", ["kernel_reference", "timed_output"])
def test_one_wrong_product_fails_whatever_the_others_say(
    check: Any, make_record: Any, build: Any, name: str
) -> None:
    proofs = (*(one for one in BOTH if one.name != name), Proof(name, False, "3 of 80 outputs beyond"))
    bad = product(
        build, 1.0, kind="bf16", tokens=64, proofs=proofs, state=State.FAILED, median=None, interval=None
    )
    found = check(make_record((*build.sound(), product(build, 4e11), bad)), "quantization.kernel_reference")
    assert found.verdict is Verdict.FAIL
    assert "bf16 by avx512_vnni, 64 tokens: 3 of 80 outputs beyond" in found.reason


@pytest.mark.parametrize(
    "proofs",
    [
        BOTH[:1],
        BOTH[1:],
        (BOTH[0], BOTH[0]),
        (),
        (BOTH[0], Proof("timed_output", None, "not looked at")),
        (Proof("kernel_reference", None, "not looked at"), BOTH[1]),
    ],
)
def test_one_figure_without_both_proofs_leaves_it_unproven_and_is_named(
    check: Any, make_record: Any, build: Any, proofs: tuple[Proof, ...]
) -> None:
    sound = (product(build, 4e11), product(build, 5e11, kind="bf16"))
    bare = product(build, 4e11, tokens=64, proofs=(*build.PROOFS, *proofs))
    found = check(make_record((*build.sound(), *sound, bare)), "quantization.kernel_reference")
    assert found.verdict is Verdict.UNPROVEN
    assert "1 figure without both proofs" in found.reason
    assert "expert.mxfp4.64 with 64 tokens" in found.reason
    assert found.evidence == ("gemm/expert.mxfp4.64#kernel.expert.rate",)


def test_of_many_figures_without_proofs_four_are_named(check: Any, make_record: Any, build: Any) -> None:
    bare = [product(build, 4e11, tokens=tokens, proofs=build.PROOFS) for tokens in (1, 4, 16, 64, 256)]
    found = check(make_record((*build.sound(), *bare)), "quantization.kernel_reference")
    assert "5 figures" in found.reason
    assert "expert.mxfp4.1 with 1 token," in found.reason
    assert found.reason.endswith("expert.mxfp4.64 with 64 tokens and 1 more.")


def test_a_figure_of_an_odd_number_of_tokens_proves_nothing(check: Any, make_record: Any, build: Any) -> None:
    odd = product(build, 4e11, tokens=10**400)
    found = check(
        make_record((*build.sound(), attrs.evolve(odd, case="expert"))), "quantization.kernel_reference"
    )
    assert found.verdict is Verdict.UNPROVEN
    assert "expert with an unknown number of tokens" in found.reason


def test_a_pass_names_the_numbers_of_tokens_that_were_proven(
    check: Any, make_record: Any, build: Any
) -> None:
    counts = (64, 1, 256, 4, 16)
    alike = [product(build, 4e11, kind=kind, tokens=n) for kind in ("mxfp4", "bf16") for n in counts]
    told = check(make_record((*build.sound(), *alike)), "quantization.kernel_reference").reason
    assert "Products of MXFP4 and BF16 weights with 1, 4, 16, 64 and 256 tokens agreed" in told
    told = check(make_record((*build.sound(), *alike[:6])), "quantization.kernel_reference").reason
    assert "MXFP4 weights with 1, 4, 16, 64 and 256 tokens and of BF16 weights with 64 tokens agreed" in told


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.9, Verdict.PASS), (0.5, Verdict.FAIL), (0.7, Verdict.UNPROVEN)]
)
def test_the_expert_kernel_is_held_against_the_read_rate(
    check: Any, make_record: Any, build: Any, share: float, verdict: Verdict
) -> None:
    many = product(build, 1e9, tokens=256)
    found = check(make_record((*build.sound(), product(build, share * 530e9), many)), "roofline.gemm")
    assert found.verdict is verdict, found.reason
    assert found.evidence[0] == "gemm/expert.mxfp4.1#kernel.expert.rate"


@pytest.mark.parametrize("name", ["kernel_reference", "timed_output", "placement", "pinned"])
def test_a_rate_without_its_proofs_decides_nothing(
    check: Any, make_record: Any, build: Any, name: str
) -> None:
    proofs = tuple(one for one in (*build.PROOFS, *BOTH) if one.name != name)
    bare = product(build, 0.9 * 530e9, proofs=proofs)
    found = check(make_record((*build.sound(), bare)), "roofline.gemm")
    assert found.verdict is Verdict.UNPROVEN
    assert name.replace("_", " ") in found.reason or name in found.reason


def test_a_guest_proves_arithmetic_and_no_rate(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    guest = attrs.evolve(bare_metal, machine=attrs.evolve(bare_metal.machine, virtual=True, hypervisor="kvm"))
    outcomes = (*build.sound(), product(build, 0.9 * 530e9), product(build, 5e11, kind="bf16"))
    record = make_record(outcomes, inventory=guest)
    assert check(record, "quantization.kernel_reference").verdict is Verdict.PASS
    assert check(record, "roofline.gemm").verdict is Verdict.UNPROVEN
