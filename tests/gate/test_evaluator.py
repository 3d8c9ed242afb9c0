"""Verdicts of synthetic runs: what passes, fails and stays unproven, and with which words."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.gate import document, words
from k3gate.gate.steps import CHECKS, STEPS
from k3gate.gate.targets import load as load_target
from k3gate.records import CpuSocket, LeftOut, Memory, Outcome, Provenance, RunStatus, State, Verdict

DECIDED = {
    "prototype.residency",
    *("roofline.bare_metal", "roofline.idle", "roofline.placement", "roofline.local", "roofline.remote"),
}


SOCKET = CpuSocket("CPU1", populated=True, cores=32, threads=64, status="enabled", cores_enabled=32)
CUT = attrs.evolve(SOCKET, cores_enabled=8)
OFF = attrs.evolve(SOCKET, designation="CPU2", status="disabled by the firmware")


def replaced(outcomes: tuple[Any, ...], new: Any) -> tuple[Any, ...]:
    return tuple(new if each.case == new.case else each for each in outcomes)


def test_a_sound_bare_metal_run_passes_what_it_measured_and_nothing_else(
    judge: Any, make_record: Any
) -> None:
    result = judge(make_record())
    passed = [c.id for step in result.steps for c in step.checks if c.verdict is Verdict.PASS]
    assert set(passed) == DECIDED
    assert all(c.evidence for step in result.steps for c in step.checks if c.verdict is Verdict.PASS)
    assert result.verdict is Verdict.UNPROVEN
    assert [step.name for step in result.steps] == [step.name for step in STEPS]
    assert [c.id for step in result.steps for c in step.checks] == list(CHECKS)


def test_local_read_says_value_share_and_bound(check: Any, make_record: Any) -> None:
    found = check(make_record(), "roofline.local")
    assert found.verdict is Verdict.PASS
    assert found.reason == (
        "Node 1: 268 GB/s, 0.748 of a node's even share of the paper rate (358 GB/s); "
        "at least 0.650 is asked."
    )
    assert found.observed == pytest.approx(268 / 358.4)
    assert found.bound.min == 0.65
    assert found.unit == "1"
    assert found.evidence == (
        "memory/read.node1.node1#memory.bandwidth.read",
        "inventory:memory.theoretical_bytes_per_s",
    )
    assert "ktransformers pull 2175" in (found.source or "")


def test_interval_wholly_outside_fails_and_gives_the_remedy(check: Any, make_record: Any, build: Any) -> None:
    found = check(make_record(replaced(build.sound(), build.read(1, 1, 150e9))), "roofline.local")
    assert found.verdict is Verdict.FAIL
    assert "0.419" in found.reason
    assert "channel population" in found.remedy


def test_straddling_interval_is_unproven_as_too_noisy(check: Any, make_record: Any, build: Any) -> None:
    noisy = build.read(1, 1, 0.66 * 358.4e9, spread=0.05)
    found = check(make_record(replaced(build.sound(), noisy)), "roofline.local")
    assert found.verdict is Verdict.UNPROVEN
    assert found.reason.startswith("Too noisy: the 95 % interval 0.627 to 0.693 straddles the bound")


def test_unstable_metric_decides_nothing_even_far_above_the_bound(
    check: Any, make_record: Any, build: Any
) -> None:
    unstable = build.read(1, 1, 300e9, state=State.UNSTABLE, reason="rounds differ by 31 %")
    found = check(make_record(replaced(build.sound(), unstable)), "roofline.local")
    assert found.verdict is Verdict.UNPROVEN
    assert "rounds differ by 31 %" in found.reason


@pytest.mark.parametrize("state", [State.FAILED, State.NOT_RUN, State.NOT_PERMITTED, State.NOT_PRESENT])
def test_missing_metric_is_unproven_with_its_reason(
    check: Any, make_record: Any, build: Any, state: State
) -> None:
    gone = build.read(1, 1, None, state=state, reason="the worker was killed")
    found = check(make_record(replaced(build.sound(), gone)), "roofline.local")
    assert found.verdict is Verdict.UNPROVEN
    assert "the worker was killed" in found.reason
    assert found.observed is None


def test_a_cell_that_is_not_there_is_named_with_the_command(check: Any, make_record: Any, build: Any) -> None:
    outcomes = [each for each in build.sound() if each.case != "read.node0.node1"]
    found = check(make_record(outcomes), "roofline.remote")
    assert found.verdict is Verdict.UNPROVEN
    assert "node 0 reading memory of node 1" in found.reason
    assert found.remedy == "Run `k3gate run --profile standard`."


def test_a_measured_failure_outweighs_a_missing_cell(check: Any, make_record: Any, build: Any) -> None:
    outcomes = [each for each in build.sound() if each.case != "read.node0.node1"]
    outcomes = list(replaced(tuple(outcomes), build.read(1, 0, 20e9)))
    assert check(make_record(outcomes), "roofline.remote").verdict is Verdict.FAIL


def test_what_the_plan_left_out_is_told(check: Any, make_record: Any, build: Any) -> None:
    record = make_record([build.idle()])
    left = LeftOut("memory", "read.node0.node0", "needs 4 GiB, 1 GiB is free")
    record = attrs.evolve(record, run=attrs.evolve(record.run, left_out=(left,)))
    assert "needs 4 GiB, 1 GiB is free" in check(record, "roofline.local").reason


def test_small_pages_beside_huge_ones_do_not_lower_a_node(check: Any, make_record: Any, build: Any) -> None:
    small = build.read(1, 1, 150e9)
    labels = {**small.metrics[0].labels, "page_size": 4096}
    small = attrs.evolve(
        small, case="read.4k.node1", metrics=(attrs.evolve(small.metrics[0], labels=labels),)
    )
    assert check(make_record((*build.sound(), small)), "roofline.local").verdict is Verdict.PASS


@pytest.mark.case("MEM-01")
def test_mem_01_a_rate_above_paper_is_impossible_and_not_good(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    """10 populated channels give 512.0 GB/s; 522 is shown as impossible."""
    memory = attrs.evolve(bare_metal.memory, theoretical_bytes_per_s=10 * 6400e6 * 8)
    one = attrs.evolve(bare_metal.numa, nodes=bare_metal.numa.nodes[:1])
    inventory = attrs.evolve(bare_metal, memory=memory, numa=one)
    right = check(make_record([build.read(0, 0, 435.2e9)], inventory), "roofline.local")
    assert right.verdict is Verdict.PASS
    assert right.observed == pytest.approx(0.85)
    wrong = check(make_record([build.read(0, 0, 522e9)], inventory), "roofline.local")
    assert wrong.verdict is Verdict.UNPROVEN
    assert "522 GB/s is above the physical limit of 512 GB/s" in wrong.reason


def test_unknown_paper_rate_is_unproven_with_the_readers_reason(
    check: Any, make_record: Any, bare_metal: Any
) -> None:
    why = {"memory.theoretical_bytes_per_s": Provenance(State.NOT_PERMITTED, None, "dmidecode needs root")}
    memory = attrs.evolve(bare_metal.memory, theoretical_bytes_per_s=None)
    found = check(
        make_record(None, attrs.evolve(bare_metal, memory=memory, provenance=why)), "roofline.local"
    )
    assert found.verdict is Verdict.UNPROVEN
    assert "dmidecode needs root" in found.reason
    assert "GB/s was measured" in found.reason


def test_target_rate_is_a_ceiling_for_the_whole_machine(check: Any, make_record: Any, build: Any) -> None:
    """Hybrid asks 5 tokens/s x 25.83 GB: 129 GB/s. The second entry of the check decides."""
    hybrid = load_target("hybrid")
    assert check(make_record(), "roofline.local", target=hybrid).verdict is Verdict.PASS
    slow = make_record(replaced(build.sound(), build.read(None, None, 100e9)))
    found = check(slow, "roofline.local", target=hybrid)
    assert found.verdict is Verdict.FAIL
    assert "129 GB/s" in found.reason
    assert check(slow, "roofline.local").verdict is Verdict.PASS  # residency-lab promises no rate


def test_only_the_target_makes_a_check_not_applicable(judge: Any, make_record: Any, build: Any) -> None:
    def skipped(target: str) -> set[str]:
        result = judge(make_record(), target=load_target(target))
        return {c.id for s in result.steps for c in s.checks if c.verdict is Verdict.NOT_APPLICABLE}

    lab = skipped("residency-lab")
    assert {"prototype.decode", "prototype.load_time", "correctness.vision", "roofline.network"} <= lab
    assert skipped("hybrid") == {"correctness.vision", "roofline.network"}
    assert skipped("production") == {"prototype.prefill", "roofline.network"}


@pytest.mark.case("TOP-07")
def test_top_07_a_restricted_cpu_list_is_no_evidence_and_is_named(
    check: Any, make_record: Any, bare_metal: Any
) -> None:
    inventory = attrs.evolve(bare_metal, cpu=attrs.evolve(bare_metal.cpu, allowed=(3, 4)))
    for name in ("roofline.local", "roofline.remote", "roofline.bare_metal"):
        found = check(make_record(None, inventory), name)
        assert found.verdict is Verdict.UNPROVEN
        assert "restricted to 2 of 128 CPUs (3-4)" in found.reason


@pytest.mark.case("TOP-11")
def test_top_11_contradictory_topology_never_passes(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    numa = attrs.evolve(bare_metal.numa, contradictions=("node 0 spans packages 0 and 1",))
    machine = attrs.evolve(bare_metal.machine, virtual=True, hypervisor="kvm")
    inventory = attrs.evolve(bare_metal, numa=numa)
    found = check(make_record(None, inventory), "roofline.local")
    assert found.verdict is Verdict.UNPROVEN
    assert "node 0 spans packages 0 and 1" in found.reason
    guest = check(make_record(None, attrs.evolve(inventory, machine=machine)), "roofline.bare_metal")
    assert guest.verdict is Verdict.FAIL


@pytest.mark.parametrize("rate", [270e9, 100e9])
def test_bandwidth_of_a_guest_neither_passes_nor_fails(
    check: Any, make_record: Any, build: Any, bare_metal: Any, rate: float
) -> None:
    machine = attrs.evolve(bare_metal.machine, virtual=True, hypervisor="kvm")
    record = make_record(
        replaced(build.sound(), build.read(1, 1, rate)), attrs.evolve(bare_metal, machine=machine)
    )
    found = check(record, "roofline.local")
    assert found.verdict is Verdict.UNPROVEN
    assert "the machine is virtual (kvm)" in found.reason
    assert "GB/s" in found.reason


@pytest.mark.parametrize(
    ("section", "changes", "verdict", "word"),
    [
        ("machine", {"virtual": True, "hypervisor": "vmware"}, Verdict.FAIL, "vmware"),
        ("machine", {"wsl": True}, Verdict.FAIL, "Windows Subsystem"),
        ("machine", {"container": "docker"}, Verdict.UNPROVEN, "docker"),
        ("machine", {"virtual": None}, Verdict.UNPROVEN, "not known"),
        ("limits", {"cgroup_cpus": 4.0}, Verdict.UNPROVEN, "4.00 of 128 CPUs"),
        ("limits", {"cpuset_mems": (0,)}, Verdict.UNPROVEN, "memory of nodes 0"),
        ("limits", {"restricted": True}, Verdict.UNPROVEN, "restricted"),
        ("limits", {"cpuset_mems": (0, 1)}, Verdict.PASS, "No hypervisor, no container"),
        (
            "limits",
            {"cpuset_cpus": tuple(range(64))},
            Verdict.UNPROVEN,
            "A cpuset restricted the run to 64 of 128",
        ),
        ("limits", {"cgroup_memory_bytes": 2**52, "cgroup_cpus": 512.0}, Verdict.PASS, "No hypervisor"),
        ("limits", {"restricted": None}, Verdict.UNPROVEN, "Whether the run was restricted is not known"),
        ("cpu", {"allowed": None}, Verdict.UNPROVEN, "not known"),
        ("cpu", {"socket_list": (SOCKET,) * 2}, Verdict.PASS, "all CPUs of the firmware's processors"),
        ("cpu", {"socket_list": ()}, Verdict.PASS, "all CPUs that the kernel knows"),
        ("cpu", {"socket_list": (SOCKET,) * 4}, Verdict.UNPROVEN, "The kernel runs on 128 of the 256 CPUs"),
        ("cpu", {"socket_list": (CUT,) * 2}, Verdict.UNPROVEN, "enabled 16 of 64 cores"),
        (
            "cpu",
            {"socket_list": (SOCKET, OFF)},
            Verdict.UNPROVEN,
            "CPU2 (disabled by the firmware) did not start",
        ),
        ("kernel", {"command_line": "nr_cpus=128"}, Verdict.UNPROVEN, "the 128 CPUs that nr_cpus=128 allows"),
        ("kernel", {"command_line": "mem=64G"}, Verdict.UNPROVEN, "started with mem=64G"),
    ],
)
def test_bare_metal(
    check: Any, make_record: Any, bare_metal: Any, section: str, changes: Any, verdict: Verdict, word: str
) -> None:
    inventory = attrs.evolve(bare_metal, **{section: attrs.evolve(getattr(bare_metal, section), **changes)})
    found = check(make_record(None, inventory), "roofline.bare_metal")
    assert found.verdict is verdict
    assert word in found.reason
    assert (found.remedy is None) is (verdict is Verdict.PASS)


@pytest.mark.parametrize(
    ("field", "changes", "word"),
    [
        ("machine.container", {}, "whether this is a container is not known (absent)"),
        ("machine.virtual", {"virtual": None}, "whether the machine is virtual is not known (absent)"),
        ("cpu.allowed", {}, "which CPUs the process may use is not known"),
    ],
)
@pytest.mark.parametrize("state", [State.NOT_PRESENT, State.NOT_PERMITTED, State.FAILED, State.NOT_RUN])
def test_what_was_not_seen_is_no_bare_machine(
    check: Any, make_record: Any, bare_metal: Any, field: str, changes: Any, word: str, state: State
) -> None:
    notes = {**bare_metal.provenance, field: Provenance(state, None, "absent")}
    inventory = attrs.evolve(
        bare_metal, provenance=notes, machine=attrs.evolve(bare_metal.machine, **changes)
    )
    found = check(make_record(None, inventory), "roofline.bare_metal")
    assert found.verdict is Verdict.UNPROVEN
    assert word[1:] in found.reason
    assert found.remedy
    assert check(make_record(None, inventory), "roofline.local").verdict is Verdict.UNPROVEN


@pytest.mark.case("TOP-05")
def test_top_05_cpus_that_are_off_excuse_a_low_rate_and_spoil_no_good_one(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    online = tuple(cpu for cpu in range(128) if cpu != 110)
    cpu = attrs.evolve(bare_metal.cpu, online=online, allowed=online, offline=(110,))
    inventory = attrs.evolve(bare_metal, cpu=cpu)
    bare = check(make_record(None, inventory), "roofline.bare_metal")
    assert bare.verdict is Verdict.UNPROVEN
    assert bare.reason == "1 of 128 CPUs is offline (110)."
    assert "Bring them online" in (bare.remedy or "")
    assert check(make_record(None, inventory), "roofline.local").verdict is Verdict.PASS
    slow = replaced(build.sound(), build.read(1, 1, 100e9))
    found = check(make_record(slow, inventory), "roofline.local")
    assert found.verdict is Verdict.UNPROVEN
    assert found.reason.startswith("Not the whole machine: 1 of 128 CPUs is offline (110). Measured: ")
    assert check(make_record(slow), "roofline.local").verdict is Verdict.FAIL


@pytest.mark.case("TOP-16")
def test_top_16_refused_policy_calls_leave_placement_unknown(
    judge: Any, make_record: Any, build: Any
) -> None:
    proofs = tuple(p for p in build.PROOFS if p.name != "placement")
    proofs += (attrs.evolve(build.PROOFS[0], ok=None, detail="move_pages: EPERM, needs CAP_SYS_NICE"),)
    outcomes = [
        attrs.evolve(o, metrics=tuple(attrs.evolve(m, proofs=proofs) for m in o.metrics))
        if o.case.startswith(("read.", "latency."))
        else o
        for o in (*build.sound(), latency(build, 0, 100e-9), latency(build, 1, 100e-9))
    ]
    result = judge(make_record(outcomes))
    for name in ("roofline.placement", "roofline.local", "roofline.remote", "roofline.latency"):
        found = build.check_of(result, name)
        assert found.verdict is Verdict.UNPROVEN
        assert "CAP_SYS_NICE" in found.reason


def test_pages_on_another_node_fail_placement_and_leave_the_rate_unproven(
    judge: Any, make_record: Any, build: Any
) -> None:
    wrong = build.read(
        1, 1, 300e9, proofs=(attrs.evolve(build.PROOFS[0], ok=False, detail="12 % on node 0"),)
    )
    result = judge(make_record(replaced(build.sound(), wrong)))
    assert build.check_of(result, "roofline.placement").verdict is Verdict.FAIL
    assert "12 % on node 0" in build.check_of(result, "roofline.placement").reason
    assert build.check_of(result, "roofline.local").verdict is Verdict.UNPROVEN


@pytest.mark.case("TOP-18")
def test_top_18_without_node_directory_local_and_remote_are_not_evaluated(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    numa = attrs.evolve(bare_metal.numa, available=False, nodes=bare_metal.numa.nodes[:1])
    record = make_record([build.read(0, 0, 500e9)], attrs.evolve(bare_metal, numa=numa))
    for name in ("roofline.local", "roofline.remote", "roofline.placement"):
        found = check(record, name)
        assert found.verdict is Verdict.UNPROVEN
        assert "NUMA information is unavailable" in found.reason


def test_one_memory_node_has_nothing_remote(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    numa = attrs.evolve(bare_metal.numa, nodes=bare_metal.numa.nodes[:1])
    found = check(
        make_record([build.read(0, 0, 500e9)], attrs.evolve(bare_metal, numa=numa)), "roofline.remote"
    )
    assert found.verdict is Verdict.PASS
    assert found.reason == "One node with CPUs and memory: nothing is remote."
    assert found.evidence == ("inventory:numa.nodes",)


def with_memory_only_node(inventory: Any, **changes: Any) -> Any:
    """The machine with a third node that has memory and no CPUs: CXL, persistent or GPU memory."""
    node = attrs.evolve(inventory.numa.nodes[0], id=2, cpus=(), kind="unknown", **changes)
    numa = attrs.evolve(inventory.numa, nodes=(*inventory.numa.nodes, node))
    return attrs.evolve(inventory, numa=numa)


def test_a_node_without_cpus_neither_fails_remote_nor_dilutes_the_paper_rate(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    """A CXL node reads at a fifth of DRAM by nature: the machine's own nodes are judged, and only they."""
    outcomes = (*build.sound(), build.read(0, 2, 40e9), build.read(1, 2, 30e9))
    record = make_record(outcomes, with_memory_only_node(bare_metal))
    remote = check(record, "roofline.remote")
    assert remote.verdict is Verdict.PASS
    assert remote.observed == pytest.approx(120 / 270)
    local = check(record, "roofline.local")
    assert local.verdict is Verdict.PASS
    assert local.observed == pytest.approx(268 / 358.4)  # half of the paper rate each, not a third


def test_one_socket_with_a_memory_only_node_has_nothing_remote(
    check: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    numa = attrs.evolve(bare_metal.numa, nodes=bare_metal.numa.nodes[:1])
    inventory = with_memory_only_node(attrs.evolve(bare_metal, numa=numa))
    found = check(
        make_record([build.read(0, 0, 500e9), build.read(0, 2, 40e9)], inventory), "roofline.remote"
    )
    assert found.verdict is Verdict.PASS
    assert "not judged here: nodes 2" in found.reason


@pytest.mark.case("TOP-05")
def test_top_05_a_node_that_names_an_offline_cpu_is_still_judged(
    check: Any, make_record: Any, bare_metal: Any
) -> None:
    """Second input of the case: the node's list still names the CPU that is off."""
    numa = attrs.evolve(bare_metal.numa, contradictions=("node 1 names CPUs that are not online: 110",))
    inventory = attrs.evolve(bare_metal, numa=numa)
    assert check(make_record(None, inventory), "roofline.local").verdict is Verdict.PASS
    assert check(make_record(None, inventory), "roofline.placement").verdict is Verdict.PASS


def test_placement_counts_each_case_once_and_leaves_out_what_failed_otherwise(
    check: Any, make_record: Any, build: Any
) -> None:
    """Rounds whose pages were of mixed size stand in rows of their own; a wrong sum is no figure at all."""
    mixed = build.read(0, 0, 270e9)
    rows = (
        mixed.metrics[0],
        attrs.evolve(mixed.metrics[0], labels={**mixed.metrics[0].labels, "page_size": None}),
    )
    failed = build.read(1, 1, 268e9, state=State.FAILED, reason="checksum: 3 regions read a wrong sum")
    outcomes = replaced(replaced(build.sound(), attrs.evolve(mixed, metrics=rows)), failed)
    found = check(make_record(outcomes), "roofline.placement")
    assert found.verdict is Verdict.PASS
    assert found.observed == "4 of 4 proven"


def test_placement_in_a_guest_is_told_and_proves_nothing(
    check: Any, make_record: Any, bare_metal: Any
) -> None:
    machine = attrs.evolve(bare_metal.machine, virtual=True, hypervisor="kvm")
    found = check(make_record(None, attrs.evolve(bare_metal, machine=machine)), "roofline.placement")
    assert found.verdict is Verdict.UNPROVEN
    assert found.observed == "5 of 5 proven"
    assert "where the host put that memory is hidden" in found.reason


@pytest.mark.parametrize(
    ("share", "verdict", "words"),
    [
        (1.2, Verdict.PASS, "with uniform routing"),
        (0.5, Verdict.UNPROVEN, "how alike the sequences of a batch are routed"),
        (0.9, Verdict.FAIL, "where all sequences agree"),
    ],
)
def test_a_batch_fails_only_below_the_least_that_its_routing_can_read(
    check: Any, make_record: Any, build: Any, share: float, verdict: Verdict, words: str
) -> None:
    """Uniform routing reads more than was ever seen: missing that is no proof that the rate cannot be met."""
    target = attrs.evolve(load_target("production"), decode_tokens_per_s=1.0)
    uniform = target.value("decode_bytes_per_s")
    least = target.least("decode_bytes_per_s")
    assert uniform == pytest.approx(least * 14, rel=0.05)  # 16 sequences, 14 times the experts of one
    rate = {Verdict.PASS: share * uniform, Verdict.UNPROVEN: share * uniform, Verdict.FAIL: share * least}[
        verdict
    ]
    outcomes = replaced(build.sound(), build.read(None, None, rate))
    found = check(make_record(outcomes), "roofline.local", target=target)
    assert found.verdict is verdict
    if verdict is not Verdict.PASS:  # a pass may name the other entry of the check
        assert words in found.reason


def test_what_is_missing_is_laid_to_its_own_case(check: Any, make_record: Any, build: Any) -> None:
    """Neither another case's crash nor thinned rounds explain why a cell is not there."""
    crashed = Outcome("memory", "residency.image", State.FAILED, "killed by SIGBUS", 1.0, 1)
    lost = Outcome("memory", "read.node1.node1", State.FAILED, "it gave no sign for 30 s", 1.0, 3)
    outcomes = [o for o in build.sound() if o.case not in ("read.node1.node1", "residency.image")]
    record = make_record([crashed, *outcomes, lost])
    thinned = LeftOut("memory", "read.node0.node0", "2 of 5 rounds; the plan would take 200 s")
    record = attrs.evolve(record, run=attrs.evolve(record.run, left_out=(thinned,)))
    found = check(record, "roofline.local")
    assert found.verdict is Verdict.UNPROVEN
    assert "it gave no sign for 30 s" in found.reason
    assert "SIGBUS" not in found.reason


def test_remote_is_held_against_the_local_rate_of_the_same_cpu_node(
    check: Any, make_record: Any, build: Any
) -> None:
    found = check(make_record(replaced(build.sound(), build.read(0, 1, 60e9))), "roofline.remote")
    assert found.verdict is Verdict.FAIL
    assert found.observed == pytest.approx(60 / 270)
    assert "memory/read.node0.node0#memory.bandwidth.read" in found.evidence


@pytest.mark.parametrize(("other", "steal", "word"), [(0.08, 0.0, "0.0800"), (0.01, 0.03, "0.0300")])
def test_a_busy_machine_fails_idle(
    check: Any, make_record: Any, build: Any, other: float, steal: float, word: str
) -> None:
    found = check(make_record(replaced(build.sound(), build.idle(other, steal))), "roofline.idle")
    assert found.verdict is Verdict.FAIL
    assert found.reason.startswith("Share of CPU time that ")
    assert word in found.reason


@pytest.mark.case("STO-05")
@pytest.mark.parametrize("status", [s for s in RunStatus if s is not RunStatus.COMPLETE])
def test_sto_05_an_interrupted_run_is_no_evidence(judge: Any, make_record: Any, status: RunStatus) -> None:
    result = judge(make_record(status=status))
    applicable = [c for s in result.steps for c in s.checks if c.verdict is not Verdict.NOT_APPLICABLE]
    assert {c.verdict for c in applicable} == {Verdict.UNPROVEN}
    rested = next(c for c in applicable if c.id == "roofline.local")
    assert "not complete" in rested.reason
    assert rested.remedy == "Resume it with `k3gate run --resume abcd2345`."


def test_document_has_the_promised_shape(judge: Any, make_record: Any) -> None:
    found = document(judge(make_record()))
    assert {"run", "target", "criteria", "verdict", "waivers", "steps"} <= set(found)
    assert [step["step"] for step in found["steps"]] == [1, 2, 3, 4, 5, 6, 7]
    one = next(c for c in found["steps"][5]["checks"] if c["id"] == "roofline.local")
    assert one["bound"] == {"min": 0.65, "max": None}
    assert one["verdict"] == "pass"
    assert one["waiver"] is None
    assert len(one["interval"]) == 2


def test_words_say_the_decision_and_the_reasons(
    judge: Any, make_record: Any, build: Any, bare_metal: Any
) -> None:
    open_ = judge(make_record())
    assert (
        words.headline(open_)
        == "Not proven. For target residency-lab, 27 of 33 checks lack evidence; none fails."
    )
    small = attrs.evolve(bare_metal, memory=Memory(total_bytes=25_200_000_000))
    failed = judge(make_record(None, small))
    assert words.headline(failed).startswith("Fail. For target residency-lab, 2 checks of 33 fail and")
    assert words.reasons(failed)[0].startswith("prototype.residency: The target needs 1,560.7 GB")
    assert words.step_reason(failed.steps[3]).startswith("residency: The target needs")


def test_the_scatter_of_what_is_divided_by_counts_as_well(check: Any, make_record: Any, build: Any) -> None:
    """0.31 of a local rate that scatters by 10 % may be 0.28: a ratio is no surer than its divisor."""
    steady = replaced(build.sound(), build.read(0, 1, 84e9, interval=(84e9, 84e9)))
    assert check(make_record(steady), "roofline.remote").verdict is Verdict.PASS
    shaky = replaced(steady, build.read(0, 0, 270e9, interval=(245e9, 297e9)))
    found = check(make_record(shaky), "roofline.remote")
    assert found.verdict is Verdict.UNPROVEN
    assert "straddles the bound" in found.reason


@pytest.mark.case("BW-09")
def test_bw_09_the_best_number_of_threads_counts(check: Any, make_record: Any, build: Any) -> None:
    """All cores of node 1 read at 0.6 of paper, half of them at 0.75: the machine can do it."""
    slow = build.read(1, 1, 0.6 * 358.4e9)
    fast = build.read(1, 1, 0.75 * 358.4e9).metrics[0]
    swept = attrs.evolve(fast, labels={**fast.labels, "scope": "sweep", "threads": 32})
    sweep = Outcome("memory", "sweep.node1.t32", State.OK, None, 1.0, 3, (), (swept,))
    without = check(make_record(replaced(build.sound(), slow)), "roofline.local")
    assert without.verdict is Verdict.FAIL
    best = check(make_record((*replaced(build.sound(), slow), sweep)), "roofline.local")
    assert best.verdict is Verdict.PASS


def latency(build: Any, node: int, seconds: float, scope: str = "node") -> Outcome:
    labels = {"cpu_node": node, "memory_node": node, "scope": scope, "placement": "local"}
    metric = build.metric("memory.latency.idle", seconds, labels=labels)
    return Outcome("memory", f"latency.node{node}.node{node}", State.OK, None, 1.0, 3, (), (metric,))


@pytest.mark.parametrize(
    ("worst", "verdict"), [(110e-9, Verdict.PASS), (190e-9, Verdict.FAIL), (150e-9, Verdict.UNPROVEN)]
)
def test_latency_is_judged_by_the_worst_node(
    check: Any, make_record: Any, build: Any, worst: float, verdict: Verdict
) -> None:
    outcomes = (
        *build.sound(),
        latency(build, 0, 100e-9),
        latency(build, 1, worst),
        latency(build, 0, 2e-9, "staircase"),
    )
    found = check(make_record(outcomes), "roofline.latency")
    assert found.verdict is verdict
    assert found.observed == pytest.approx(worst)


def test_a_latency_that_is_not_there_is_laid_to_its_own_case(
    check: Any, make_record: Any, build: Any
) -> None:
    lost = Outcome("memory", "latency.node1.node1", State.FAILED, "no memory for the chain", 1.0, 3)
    found = check(make_record((*build.sound(), latency(build, 0, 100e-9), lost)), "roofline.latency")
    assert found.verdict is Verdict.UNPROVEN
    assert "no memory for the chain" in found.reason


@pytest.mark.parametrize("state", [State.FAILED, State.NOT_PERMITTED, State.NOT_PRESENT])
def test_a_case_whose_later_round_failed_decides_nothing_by_its_earlier_ones(
    check: Any, make_record: Any, build: Any, state: State
) -> None:
    """The worker died of SIGBUS in round 4 of 9: three good rounds before are no sound memory."""
    why = "round 4 of 9: the worker died of SIGBUS"
    lost = attrs.evolve(build.read(0, 0, 270e9), state=state, reason=why)
    record = make_record(replaced(build.sound(), lost))
    local = check(record, "roofline.local")
    assert local.verdict is Verdict.UNPROVEN
    assert "SIGBUS" in local.reason
    held = attrs.evolve(build.residency(build.LAB_IMAGE), state=state, reason="round 2 of 3: SIGKILL")
    found = check(make_record(replaced(build.sound(), held)), "prototype.residency")
    assert found.verdict is Verdict.UNPROVEN
    assert "SIGKILL" in found.reason
    quiet = attrs.evolve(build.idle(), state=state, reason="no counters")
    assert check(make_record(replaced(build.sound(), quiet)), "roofline.idle").verdict is Verdict.UNPROVEN


def test_a_local_rate_without_proofs_holds_up_no_remote_one(check: Any, make_record: Any, build: Any) -> None:
    """A local pool that really lay remote makes the ratio look good."""
    unseen = tuple(p for p in build.PROOFS if p.name != "placement")
    for proofs in ((), unseen):
        record = make_record(replaced(build.sound(), build.read(0, 0, 100e9, proofs=proofs)))
        found = check(record, "roofline.remote")
        assert found.verdict is Verdict.UNPROVEN
        assert "placement is not proven" in found.reason


def test_a_guest_passes_neither_residency_nor_idle(check: Any, make_record: Any, bare_metal: Any) -> None:
    """A host may promise the same memory twice, and its other guests do not show in the guest's counters."""
    machine = attrs.evolve(bare_metal.machine, virtual=True, hypervisor="kvm")
    record = make_record(None, attrs.evolve(bare_metal, machine=machine))
    for name in ("prototype.residency", "roofline.idle"):
        found = check(record, name)
        assert found.verdict is Verdict.UNPROVEN, name
        assert "virtual (kvm)" in found.reason
