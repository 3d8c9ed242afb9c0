"""Rules for what is no bound: residency in bytes, evidence by subject, the licence, the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.gate import criteria
from k3gate.gate.targets import Target
from k3gate.gate.targets import load as load_target
from k3gate.records import Evidence, LeftOut, Proof, State, Verdict

LICENCE = "ab" * 32


def with_memory(inventory: Any, **changes: Any) -> Any:
    return attrs.evolve(inventory, memory=attrs.evolve(inventory.memory, **changes))


def evidence(check: str, subject: str, kind: str, verdict: Verdict = Verdict.PASS, **data: Any) -> Evidence:
    return Evidence(check, subject, kind, verdict, "96 of 96 shards agree", "2026-11-30T00:00:00Z", data)


@pytest.fixture
def own_target(tmp_path: Path) -> Any:
    """A target made of residency-lab and more lines."""

    def make(more: str) -> Target:
        path = tmp_path / "own.toml"
        path.write_text(load_target("residency-lab").text + more)
        return load_target(str(path))

    return make


def test_image_held_and_verified_passes_with_the_arithmetic(check: Any, make_record: Any, build: Any) -> None:
    found = check(make_record(), "prototype.residency")
    assert found.verdict is Verdict.PASS
    assert found.observed == build.LAB_IMAGE == load_target("residency-lab").image().bytes
    assert found.evidence == ("memory/residency.image#memory.residency.bytes",)


@pytest.mark.case("STO-08")
def test_sto_08_capacity_is_decided_in_bytes(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    """A machine sold as 1536 GiB has usable memory of its own, and one byte decides."""
    need = build.LAB_IMAGE
    below = check(make_record(None, with_memory(bare_metal, total_bytes=need - 1)), "prototype.residency")
    assert below.verdict is Verdict.FAIL
    assert check(
        make_record(None, with_memory(bare_metal, total_bytes=need)), "prototype.residency"
    ).verdict is (Verdict.PASS)
    short = check(make_record((build.residency(need - 1),)), "prototype.residency")
    assert short.verdict is Verdict.UNPROVEN
    assert "GiB" not in below.reason
    assert "usable memory" in below.reason


def test_a_machine_that_lacks_the_memory_fails_with_the_whole_sum(
    check: Any, make_record: Any, bare_metal: Any
) -> None:
    small = with_memory(bare_metal, total_bytes=25_200_000_000, swap_used_bytes=2_000_000_000)
    found = check(make_record((), small), "prototype.residency")
    assert found.verdict is Verdict.FAIL
    assert found.reason == (
        "The target needs 1,560.7 GB (routed experts 1,446.5 + trunk 113.5 + KV cache 0.2 "
        "+ recurrent state 0.4 + convolution state 0.03); the machine has 25.2 GB of usable memory: "
        "1,535.5 GB short. Swap is in use: 2.0 GB."
    )
    assert found.remedy.startswith("Add memory")


def test_a_control_group_below_the_need_says_nothing_of_the_machine(
    check: Any, make_record: Any, bare_metal: Any
) -> None:
    limits = attrs.evolve(bare_metal.limits, cgroup_memory_bytes=10**12)
    record = make_record((), attrs.evolve(bare_metal, limits=limits))
    found = check(record, "prototype.residency")
    assert found.verdict is Verdict.UNPROVEN
    assert "control group allows 1,000.0 GB" in found.reason
    assert "outside the container" in found.remedy
    limited = check(record, "roofline.bare_metal")
    assert limited.verdict is Verdict.UNPROVEN
    assert "1,000.0 GB of 2,199.0 GB of memory" in limited.reason


def test_a_small_pool_is_unproven_and_names_the_profile(check: Any, make_record: Any, build: Any) -> None:
    pool = build.residency(2e9, labels={"memory": "pool", "wanted_bytes": None, "nodes": "0,1"})
    found = check(make_record([pool]), "prototype.residency")
    assert found.verdict is Verdict.UNPROVEN
    assert "2.0 GB held and verified, 1,558.7 GB less than needed" in found.reason
    assert found.remedy == "Run `k3gate run --profile standard`."


def test_an_image_that_the_plan_left_out_says_why(check: Any, make_record: Any, build: Any) -> None:
    record = make_record([build.idle()])
    left = LeftOut("memory", "residency.image", "it wants 1,560.7 GB, more than 90 % of what may be used")
    record = attrs.evolve(record, run=attrs.evolve(record.run, left_out=(left,)))
    found = check(record, "prototype.residency")
    assert found.verdict is Verdict.UNPROVEN
    assert "more than 90 % of what may be used" in found.reason


def test_an_allocation_that_failed_fails(check: Any, make_record: Any, build: Any) -> None:
    proofs = (Proof("allocation", False, "ENOMEM"),)
    failed = build.residency(9e11, state=State.FAILED, reason="900.0 GB held, then ENOMEM", proofs=proofs)
    found = check(make_record([failed]), "prototype.residency")
    assert found.verdict is Verdict.FAIL
    assert "900.0 GB held, then ENOMEM" in found.reason
    assert "1,560.7 GB (routed experts" in found.reason


def test_failing_to_hold_more_than_this_target_needs_is_no_failure_of_it(
    check: Any, make_record: Any, build: Any
) -> None:
    labels = {"memory": "image", "wanted_bytes": build.LAB_IMAGE + 1, "nodes": "0,1"}
    proofs = (Proof("allocation", False, "ENOMEM"),)
    failed = build.residency(None, state=State.FAILED, reason="ENOMEM", labels=labels, proofs=proofs)
    assert check(make_record([failed]), "prototype.residency").verdict is Verdict.UNPROVEN


def test_memory_that_gave_back_other_words_fails(check: Any, make_record: Any, build: Any) -> None:
    """The image was held and its words are not what was written: nobody should buy such memory."""
    proofs = (Proof("checksum", False, "3 words do not hold"),)
    failed = build.residency(build.LAB_IMAGE, state=State.FAILED, reason="checksum", proofs=proofs)
    found = check(make_record([failed]), "prototype.residency")
    assert found.verdict is Verdict.FAIL
    assert "3 words do not hold" in found.reason


@pytest.mark.parametrize("name", ["placement", "pinned", "resident"])
def test_a_proof_that_failed_spoils_the_evidence_and_not_the_machine(
    check: Any, make_record: Any, build: Any, name: str
) -> None:
    """A stray thread or a neighbour that takes memory must not turn a good machine down."""
    sound = ("checksum", "resident", "placement")
    proofs = (*(Proof(one, True, "seen") for one in sound if one != name), Proof(name, False, "moved"))
    for state in (State.OK, State.FAILED):
        held = build.residency(build.LAB_IMAGE, state=state, reason="a proof failed: moved", proofs=proofs)
        found = check(make_record([held]), "prototype.residency")
        assert found.verdict is Verdict.UNPROVEN, state
        assert "moved" in found.reason


@pytest.mark.parametrize("name", ["checksum", "resident", "placement"])
def test_an_image_passes_only_with_its_proofs(check: Any, make_record: Any, build: Any, name: str) -> None:
    """A refused mbind leaves the placement unknown, and what is unknown never passes."""
    every = tuple(Proof(one, True, "seen") for one in ("checksum", "resident", "placement"))
    kept = tuple(proof for proof in every if proof.name != name)
    for proofs in (kept, (*kept, Proof(name, None, "the call was refused"))):
        found = check(make_record([build.residency(build.LAB_IMAGE, proofs=proofs)]), "prototype.residency")
        assert found.verdict is Verdict.UNPROVEN
        assert "not proven" in found.reason
        assert (found.remedy is not None and "mbind" in found.remedy) is (name == "placement")
    assert check(
        make_record([build.residency(build.LAB_IMAGE, proofs=every)]), "prototype.residency"
    ).verdict is (Verdict.PASS)


@pytest.mark.case("TOP-14")
def test_top_14_copies_per_node_multiply_the_need_and_one_copy_is_offered(
    check: Any, make_record: Any, own_target: Any
) -> None:
    text = load_target("residency-lab").text
    target = own_target("")
    assert target.text == text
    copied = attrs.evolve(target, replicate_per_node=True)
    found = check(make_record(), "prototype.residency", target=copied)
    assert found.verdict is Verdict.FAIL
    assert "the weights 2 times" in found.reason
    assert "One copy of the weights over all nodes needs 1,560.7 GB" in found.reason


def test_evidence_about_the_checkpoint_decides_also_for_an_interrupted_run(
    check: Any, make_record: Any
) -> None:
    rows = (evidence("checkpoint.complete", "sha256:k3", "checkpoint"),)
    found = check(make_record(evidence=rows), "checkpoint.complete")
    assert found.verdict is Verdict.PASS
    assert found.reason == "96 of 96 shards agree"
    bad = (attrs.evolve(rows[0], verdict=Verdict.FAIL, gathered="2026-12-01T00:00:00Z"), *rows)
    assert check(make_record(evidence=bad), "checkpoint.complete").verdict is Verdict.FAIL


def test_evidence_about_another_subject_proves_nothing(check: Any, make_record: Any, own_target: Any) -> None:
    rows = (evidence("correctness.text", "sha256:llama-7b", "runtime"),)
    pinned = own_target('[subjects]\nruntime = "sha256:k3"\n')
    found = check(make_record(evidence=rows), "correctness.text", target=pinned)
    assert found.verdict is Verdict.UNPROVEN
    assert "another runtime" in found.reason
    two = (*rows, evidence("correctness.text", "sha256:k3", "runtime"))
    assert check(make_record(evidence=two), "correctness.text").verdict is Verdict.UNPROVEN
    assert check(make_record(evidence=two), "correctness.text", target=pinned).verdict is Verdict.PASS


@pytest.mark.case("CLM-09")
def test_clm_09_evidence_from_another_machine_does_not_count(
    judge: Any, make_record: Any, build: Any, tmp_path: Path
) -> None:
    """Of the shipped checks none rests on evidence about a machine; those of a buyer may."""
    path = tmp_path / "ours.toml"
    path.write_text(
        criteria.SHIPPED.read_text().replace('rule = "power"', 'rule = "evidence"\nsubject = "machine"')
    )
    ours = criteria.load(str(path))
    foreign = (evidence("roofline.power", "sha256:machine-x", "machine"),)
    result = judge(make_record(evidence=foreign), criteria=ours)
    assert build.check_of(result, "roofline.power").verdict is Verdict.UNPROVEN
    own = (evidence("roofline.power", "sha256:bare", "machine"),)
    result = judge(make_record(evidence=own), criteria=ours)
    assert build.check_of(result, "roofline.power").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("accepted", "found", "verdict"),
    [
        (None, LICENCE, Verdict.UNPROVEN),
        (LICENCE, None, Verdict.UNPROVEN),
        (LICENCE, LICENCE, Verdict.PASS),
        (LICENCE, "cd" * 32, Verdict.FAIL),
    ],
)
def test_licence_found_must_be_the_one_accepted(
    check: Any, make_record: Any, own_target: Any, accepted: Any, found: Any, verdict: Verdict
) -> None:
    lines = f'[licence_accepted]\nby = "A. Buyer"\non = "2026-11-30"\nsha256 = "{accepted}"\n'
    target = own_target(lines if accepted else "")
    rows = (evidence("checkpoint.licence", "sha256:k3", "checkpoint", sha256=found),) if found else ()
    assert check(make_record(evidence=rows), "checkpoint.licence", target=target).verdict is verdict


def test_the_order_waits_for_the_steps(judge: Any, make_record: Any, build: Any) -> None:
    found = build.check_of(judge(make_record()), "bom.steps")
    assert found.verdict is Verdict.UNPROVEN
    assert found.reason == "Steps unproven: 1, 2, 3, 4, 5, 6."


def test_an_image_must_be_held_in_every_round(check: Any, make_record: Any, build: Any) -> None:
    """The least of the rounds counts, not their median: the model is loaded once and must fit then."""
    held = build.residency(build.LAB_IMAGE, interval=(build.LAB_IMAGE - 4096, build.LAB_IMAGE))
    found = check(make_record([held]), "prototype.residency")
    assert found.verdict is Verdict.UNPROVEN
    assert found.observed == build.LAB_IMAGE - 4096


@pytest.mark.case("TOP-14")
def test_top_14_a_copy_must_fit_on_every_node(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    """2.9 TB and 0.5 TB hold two copies in sum, and node 1 holds none."""
    copied = attrs.evolve(load_target("residency-lab"), replicate_per_node=True)
    first, second = bare_metal.numa.nodes
    nodes = (attrs.evolve(first, memory_bytes=29 * 10**11), attrs.evolve(second, memory_bytes=5 * 10**11))
    inventory = with_memory(bare_metal, total_bytes=34 * 10**11)
    inventory = attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=nodes))
    held = build.residency(4e12)
    found = check(make_record([held], inventory), "prototype.residency", target=copied)
    assert found.verdict is Verdict.FAIL
    assert "node 1 has 500.0 GB" in found.reason


def test_an_image_over_two_machines_is_divided(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    two = attrs.evolve(load_target("residency-lab"), nodes=2)
    inventory = with_memory(bare_metal, total_bytes=10**12)
    assert check(make_record((), inventory), "prototype.residency").verdict is Verdict.FAIL
    found = check(make_record([build.residency(8e11)], inventory), "prototype.residency", target=two)
    assert found.verdict is Verdict.PASS
    assert "divided over 2 machines" in found.reason


def compared(verdict: Verdict = Verdict.PASS, source: str = "sha256:k3", **worst: float | None) -> Evidence:
    data = {part: {"nmse": error, "weight": "layer 1 attn_q"} for part, error in worst.items()}
    return evidence(
        "quantization.lossless_or_bounded",
        "sha256:gguf",
        "converted",
        verdict,
        source=source,
        architecture="kimi-k3",
        worst=data,
    )


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (compared(routed_experts=0.0, trunk=3e-5), Verdict.PASS, ""),
        (compared(routed_experts=6e-3, trunk=3e-5), Verdict.FAIL, "the routed experts (layer 1 attn_q)"),
        (compared(routed_experts=0.0, trunk=7e-3), Verdict.FAIL, "0.007, and 0.001 is allowed"),
        (compared(routed_experts=None, trunk=0.0), Verdict.FAIL, "without bound"),
        (compared(trunk=0.0), Verdict.UNPROVEN, "says nothing of the routed experts"),
        (compared(Verdict.FAIL, routed_experts=0.0, trunk=0.0), Verdict.FAIL, "96 of 96 shards"),
        (
            compared(source="sha256:other", routed_experts=0.0, trunk=0.0),
            Verdict.UNPROVEN,
            "another checkpoint",
        ),
    ],
)
def test_a_conversion_is_judged_by_its_worst_weight(
    check: Any, make_record: Any, found: Evidence, verdict: Verdict, words: str
) -> None:
    release = evidence("checkpoint.identity", "sha256:k3", "checkpoint")
    judged = check(make_record(evidence=(release, found)), "quantization.lossless_or_bounded")
    assert judged.verdict is verdict, judged
    assert words in judged.reason


def test_files_of_one_header_that_differ_prove_nothing(check: Any, make_record: Any) -> None:
    """A digest is of headers: two files of one digest can hold other bytes, and the newer is not the better."""
    release = evidence("checkpoint.identity", "sha256:k3", "checkpoint")
    good = compared(routed_experts=0.0, trunk=0.0)
    rows = [
        attrs.evolve(one, gathered=f"2026-11-30T0{hour}:00:00Z", data={**one.data, "place": place})
        for hour, (one, place) in enumerate(
            ((attrs.evolve(good, verdict=Verdict.FAIL), "here"), (good, "there"), (good, "here"))
        )
    ]
    name = "quantization.lossless_or_bounded"
    found = check(make_record(evidence=(release, *rows[:2])), name)
    assert found.verdict is Verdict.UNPROVEN and "differ in 2 places" in found.reason
    assert check(make_record(evidence=(release, *rows)), name).verdict is Verdict.PASS
