"""Invented runs to render: a bare-metal machine of two sockets and four nodes, and a small virtual machine.

All figures are invented. A `Sheet` is what a page is made of.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import attrs
import pytest
from attrs import frozen

from k3gate.analysis.ladder import ladder
from k3gate.metrics import MEMORY_READ, RESIDENCY_BYTES, RESIDENCY_RATE
from k3gate.records import (
    Better,
    Bound,
    Cache,
    CheckResult,
    Cpu,
    Dimm,
    Finding,
    GateResult,
    HugePagePool,
    Inventory,
    Kernel,
    LeftOut,
    Limits,
    Machine,
    Memory,
    Metric,
    Numa,
    NumaNode,
    Outcome,
    Proof,
    Provenance,
    Round,
    Run,
    RunRecord,
    RunStatus,
    Sample,
    Severity,
    State,
    StepResult,
    Verdict,
    Waiver,
)
from k3gate.reports import page

GIB = 2**30
BYTES_PER_TOKEN = 25.83e9
CRITERIA_TEXT = '# invented\n[[check]]\nid = "residency"\nclaim = "CPU memory holds the image"\n'
TARGET_TEXT = (
    'name = "hybrid"\ncontext = 32768\nsequences = 4\ntrunk = "gpu"\n'
    "decode_tokens_per_s = 5.0\nprefill_tokens_per_s = 50.0\n"
)

STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "checkpoint": ("What exactly is to be run?", ("identity", "complete", "checksums", "licence")),
    "runtime": ("Does a runtime really support it?", ("registry", "loaded")),
    "quantization": (
        "Does the conversion keep the meaning?",
        ("layout", "lossless_or_bounded", "kernel_reference"),
    ),
    "prototype": (
        "What does it do on this box?",
        ("residency", "peak_memory", "load_time", "prefill", "decode", "concurrency", "served_identity"),
    ),
    "correctness": (
        "Is the output right?",
        ("text", "reasoning", "tools", "long_context", "vision", "template"),
    ),
    "roofline": (
        "Which tier limits it?",
        (
            *("bare_metal", "idle", "population", "speed", "placement", "local"),
            *("remote", "latency", "gemm", "replay", "skew", "storage"),
            *("pcie_links", "pcie_rate", "network", "sustained", "errors", "power"),
        ),
    ),
    "bom": ("May the order be frozen?", ("match", "links", "steps")),
}
REMEDIES = {
    "checkpoint": "run `k3gate inspect FOLDER --checksums` on the checkpoint, then judge again",
    "runtime": "start the runtime with K3 and run `k3gate prototype --endpoint URL`",
    "prototype": "start the runtime with K3 and run `k3gate prototype --endpoint URL`",
    "correctness": "record the outputs with `k3gate correctness record`, then compare",
    "quantization": "run `k3gate quant SOURCE CONVERTED`",
    "roofline": "this version does not measure it; repeat the run with the version that does",
    "bom": "freeze the order with `k3gate bom freeze` once steps 1 to 6 pass or are waived",
}


@frozen
class Sheet:
    """A record and its judgement."""

    record: RunRecord
    gate: GateResult

    def page(self, **more: Any) -> str:
        """The rendered page."""
        rungs = ladder(self.record, BYTES_PER_TOKEN)
        return page.render(
            self.record,
            self.gate,
            rungs,
            criteria_text=CRITERIA_TEXT,
            target_text=TARGET_TEXT,
            **more,
        )


def metric(
    rng: random.Random,
    declaration: Any,
    value: float,
    labels: dict[str, Any],
    *,
    rounds: int = 5,
    per_round: int = 4,
    spread: float = 0.006,
    state: State = State.OK,
    reason: str | None = None,
    proofs: tuple[Proof, ...] = (),
) -> Metric:
    """A metric whose samples scatter by `spread`."""
    samples = []
    for number in range(rounds):
        centre = value * (1 + rng.gauss(0, spread))
        samples += [
            Sample(
                centre * (1 + rng.gauss(0, spread / 3)), number, 4000 + number, 3.0 + 11.7 * number + 0.21 * k
            )
            for k in range(per_round)
        ]
    values = [s.value for s in samples]
    half = 2.2 * spread / rounds**0.5
    median = statistics.median(values)
    return Metric(
        declaration.name,
        declaration.unit,
        declaration.better,
        labels,
        tuple(samples),
        median,
        (median * (1 - half), median * (1 + half)),
        state,
        reason,
        proofs,
    )


def outcome(case: str, title: str, *metrics: Metric, state: State = State.OK, **more: Any) -> Outcome:
    """The outcome of a case of the memory probe."""
    rounds = tuple(Round(n, State.OK, None, 2.0, 1.4, 0.5, 4000 + n) for n in range(5))
    return Outcome("memory", case, state, more.get("reason"), 10.0, 5, rounds, metrics, title)


def reads(
    rng: random.Random, nodes: list[int], local: float, remote: Callable[[int, int], float], core: float
) -> list[Outcome]:
    """All read cases of a machine."""

    def labels(cpu: int | None, memory: int | None, scope: str, threads: int, page: int) -> dict[str, Any]:
        placement = "spread" if cpu is None else "local" if cpu == memory else "remote"
        return {
            "cpu_node": cpu,
            "memory_node": memory,
            "scope": scope,
            "placement": placement,
            "threads": threads,
            "page_size": page,
            "pool_bytes": 8 * GIB,
            "cache_bytes": 128 * 2**20,
            "kernel": "read",
            "isa": "avx512",
            "stores": "none",
            "counting": "bus bytes = counted bytes: loads only",
        }

    def proofs(memory: int | None, page: str = "2 MiB") -> tuple[Proof, ...]:
        where = f"node {memory}" if memory is not None else "the node of each thread"
        return (
            Proof("placement", True, f"100 % of 2,048 pages on {where}"),
            Proof("page_size", True, page),
            Proof("pinned", True, "every thread on its CPU"),
            Proof("checksum", True, "sum equals the pattern's"),
            Proof("working_set", True, "64 times the caches"),
        )

    found = []
    for node in nodes:
        read = metric(
            rng,
            MEMORY_READ,
            core,
            labels(node, node, "core", 1, 2 * 2**20),
            proofs=proofs(node),
            spread=0.003,
        )
        found.append(outcome(f"read.core.node{node}", f"One core of node {node}, local memory", read))
    for cpu in nodes:
        for memory in nodes:
            rate = local if cpu == memory else remote(cpu, memory)
            read = metric(
                rng, MEMORY_READ, rate, labels(cpu, memory, "node", 32, 2 * 2**20), proofs=proofs(memory)
            )
            found.append(
                outcome(f"read.node{cpu}.node{memory}", f"Node {cpu} reads from node {memory}", read)
            )
    read = metric(
        rng,
        MEMORY_READ,
        local * len(nodes) * 0.995,
        labels(None, None, "machine", 32 * len(nodes), 2 * 2**20),
        proofs=proofs(None),
    )
    found.append(outcome("read.machine", "The whole machine, each node its own memory", read))
    small = metric(
        rng,
        MEMORY_READ,
        local * 0.91,
        labels(nodes[0], nodes[0], "node", 32, 4096),
        proofs=proofs(nodes[0], "4 KiB"),
        spread=0.012,
    )
    found.append(
        outcome(f"read.4k.node{nodes[0]}", f"Node {nodes[0]}, local memory in pages of 4 KiB", small)
    )
    return found


def residency(rng: random.Random, held: float, wanted: int | None, image: bool) -> Outcome:
    """The residency case."""
    labels = {"memory": "image" if image else "pool", "wanted_bytes": wanted, "nodes": "0"}
    size = metric(rng, RESIDENCY_BYTES, held, labels, rounds=1, per_round=1, spread=0.0)
    speed = metric(rng, RESIDENCY_RATE, 8.1e9, labels, rounds=1, per_round=1)
    return outcome("residency.image", "Hold the image of the model", size, speed)


def judged(decided: dict[str, CheckResult]) -> tuple[StepResult, ...]:
    """The seven steps: `decided` as they are, everything else unproven."""
    steps = []
    for number, (name, (question, checks)) in enumerate(STEPS.items(), 1):
        results = []
        for check in checks:
            full = f"{name}.{check}"
            results.append(
                decided.get(full)
                or CheckResult(
                    id=full,
                    claim=f"{check.replace('_', ' ').capitalize()} of the {name} is as the target wants it",
                    verdict=Verdict.UNPROVEN,
                    decided=Verdict.UNPROVEN,
                    reason="no evidence in this run",
                    source="ours, 2026-11",
                    remedy=REMEDIES[name],
                )
            )
        order = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.WAIVED, Verdict.PASS)
        worst = next(v for v in order if any(c.verdict is v for c in results))
        steps.append(StepResult(number, name, worst, tuple(results), question))
    return tuple(steps)


def gate(run: str, steps: tuple[StepResult, ...], **more: Any) -> GateResult:
    """A gate over steps."""
    order = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.WAIVED, Verdict.PASS)
    verdict = next(v for v in order if any(s.verdict is v for s in steps))
    values: dict[str, Any] = {
        "run": run,
        "target": "hybrid",
        "target_hash": "sha256:" + "2e90c4d8" * 8,
        "criteria": "k3gate 0.1.0",
        "criteria_hash": "sha256:" + "b7a109fe" * 8,
        "verdict": verdict,
        "waivers": sum(c.verdict is Verdict.WAIVED for s in steps for c in s.checks),
        "steps": steps,
        "version": "0.1.0",
        "evaluated": "2026-12-09T14:32:05+00:00",
    }
    return GateResult(**{**values, **more})


def check(name: str, claim: str, verdict: Verdict, **more: Any) -> CheckResult:
    """A decided check."""
    values: dict[str, Any] = {"decided": verdict, "source": "ours, 2026-11"}
    return CheckResult(id=name, claim=claim, verdict=verdict, **{**values, **more})


def a_run(run: str, **more: Any) -> Run:
    """A complete run."""
    values: dict[str, Any] = {
        "id": run,
        "machine": "m-" + run,
        "fingerprint": "sha256:" + "d05e7781" * 8,
        "machine_name": None,
        "profile": "standard",
        "version": "0.1.0",
        "started": "2026-12-09T10:04:12+00:00",
        "ended": "2026-12-09T10:24:40+00:00",
        "status": RunStatus.COMPLETE,
        "seconds": 1228.0,
        "target": "hybrid",
        "command": "k3gate run --profile standard --report report.html",
        "split": {"timed": 900.0, "setup": 260.0, "rest": 68.0},
    }
    return Run(**{**values, **more})


def build_bare_metal(nodes: int = 4, run: str = "7f3k2m9q") -> Sheet:
    """Two sockets, four nodes, enough memory for the image; one check waived although it fails."""
    rng = random.Random(7)
    per_socket = max(1, nodes // 2)
    ids = list(range(nodes))
    cores = {n: tuple(range(32 * n, 32 * n + 32)) for n in ids}
    inventory = Inventory(
        machine=Machine(
            "salted-01",
            "sha256:" + "d05e7781" * 8,
            "node r17",
            "Example Systems",
            "EX-2200",
            "EX-MB7",
            {"bios": "1.7.2", "date": "2026-09-14"},
            virtual=False,
            wsl=False,
        ),
        cpu=Cpu(
            "x86_64",
            "Example",
            "EXAMPLE 9X55 64-Core Processor",
            26,
            2,
            1,
            "0x0b10104e",
            2,
            32 * nodes,
            64 * nodes,
            True,
            "on",
            online=tuple(range(64 * nodes)),
            allowed=tuple(range(64 * nodes)),
            package_of={c: n // per_socket for n in ids for c in cores[n]},
            caches=(Cache(1, "data", 48 * 1024, 128, 2), Cache(3, "unified", 32 * 2**20, 16, 16)),
            isa=("avx2", "avx512f", "avx512_vnni", "avx512_bf16"),
            governor="performance",
            boost=True,
        ),
        numa=Numa(
            True,
            tuple(
                NumaNode(
                    n,
                    cores[n],
                    384 * GIB,
                    376 * GIB,
                    "dram",
                    {m: 10 if m == n else 12 if m // per_socket == n // per_socket else 32 for m in ids},
                    (HugePagePool(2 * 2**20, 4096, 4096),),
                )
                for n in ids
            ),
        ),
        memory=Memory(
            *(1510 * GIB, 1503 * GIB, 0, 0, 24, 24, 24, 6400, 6400, 24 * 6400e6 * 8),
            dimms=tuple(
                Dimm(
                    locator=f"CPU{socket}_DIMM_{channel}1",
                    socket=socket,
                    channel=channel,
                    bytes=64 * GIB,
                    populated=True,
                    kind="dram",
                    memory_type="DDR5",
                    rated_mts=6400,
                    configured_mts=6400,
                    part_number="EX64-6400",
                )
                for socket in (0, 1)
                for channel in "ABCDEFGHIJKL"
            ),
            dram_bytes=24 * 64 * GIB,
            empty_channels=(),
            mixed_sizes=False,
            mixed_speeds=False,
        ),
        kernel=Kernel(
            "6.12.48",
            "ro quiet",
            "madvise",
            "madvise",
            True,
            0,
            0,
            60,
            {"spectre_v2": "Mitigation: IBRS"},
            (0.3, 0.2, 0.1),
            4096,
            (HugePagePool(2 * 2**20, 4096 * nodes, 4096 * nodes),),
        ),
        limits=Limits(2, usable_memory_bytes=1490 * GIB, restricted=False),
        gpus=(),
        findings=(
            Finding(
                "numa-balancing",
                Severity.MEDIUM,
                "Automatic NUMA balancing was on during the run",
                "`kernel.numa_balancing = 1`",
                "0",
                "moved pages turn local reads into remote ones, at 39 % of the rate",
                "ask the provider to set it to 0, then repeat the run",
            ),
            Finding(
                "mixed-dimms",
                Severity.LOW,
                "One of 24 DIMMs has another part number",
                "socket 1, channel H",
                "24 alike",
                "mixed parts make later replacement harder",
                "have the order name one part number",
            ),
        ),
        provenance={
            "machine.container": Provenance(State.OK, "proc/1/cgroup", "no sign of one"),
            "cpu.model": Provenance(State.OK, "/proc/cpuinfo"),
            "memory.theoretical_bytes_per_s": Provenance(State.OK, "SMBIOS 17"),
            "sensors": Provenance(State.NOT_PERMITTED, None, "the IPMI device is readable by root only"),
            "memory.dimm_temperature": Provenance(State.NOT_PRESENT, None, "no driver shows it"),
        },
    )

    def remote(cpu: int, memory: int) -> float:
        return 184e9 if cpu // per_socket == memory // per_socket else 93e9

    outcomes = (
        *reads(rng, ids, 235e9, remote, 19.8e9),
        residency(rng, 1447e9, int(1447e9), True),
    )
    waiver = Waiver(
        1,
        run,
        "roofline.remote",
        "sha256:x",
        "0.393",
        Verdict.FAIL,
        "J. Brandt, head of infrastructure",
        "2026-12-09T14:20:00+00:00",
        "The runtime keeps experts on their own socket, so remote reads do not matter for this order.",
    )
    lapsed = attrs.evolve(waiver, id=2, check="roofline.idle", verdict=Verdict.UNPROVEN, who="A. Rossi")
    steps = judged(
        {
            "prototype.residency": check(
                "prototype.residency",
                "CPU memory holds the image of the model",
                Verdict.PASS,
                observed=1447e9,
                interval=(1447e9, 1447e9),
                bound=Bound(min=1447e9),
                unit="B",
                evidence=("memory/residency.image#memory.residency.bytes",),
            ),
            "roofline.bare_metal": check(
                "roofline.bare_metal",
                "The run had the bare machine",
                Verdict.PASS,
                observed="bare metal",
                evidence=("inventory:machine.virtual",),
            ),
            "roofline.local": check(
                "roofline.local",
                "Local read bandwidth of every node, of paper",
                Verdict.PASS,
                observed=0.762,
                interval=(0.758, 0.767),
                bound=Bound(min=0.7),
                unit="1",
                evidence=("memory/read.node0.node0#memory.bandwidth.read", "fig"),
            ),
            "roofline.placement": check(
                "roofline.placement",
                "Every page lay on the node that the case names",
                Verdict.PASS,
                observed="proven in all cases",
                evidence=("memory/read.node0.node0",),
            ),
            "roofline.remote": check(
                "roofline.remote",
                "Remote against local bandwidth",
                Verdict.WAIVED,
                decided=Verdict.FAIL,
                observed=0.393,
                interval=(0.388, 0.397),
                bound=Bound(min=0.45),
                unit="1",
                reason="0.393 lies wholly below 0.450",
                remedy="ask the seller for the mode with more links between the sockets",
                waiver=waiver,
                evidence=("memory/read.node0.node2#memory.bandwidth.read",),
            ),
        }
    )
    record = RunRecord(
        a_run(run, machine_name="node r17, lot 2"), inventory, outcomes, waivers=(waiver, lapsed)
    )
    return Sheet(record, gate(run, steps))


def build_small_vm(run: str = "c2v8d4xa") -> Sheet:
    """Two cores, one node, far too little memory: the gate fails on residency."""
    rng = random.Random(3)
    inventory = Inventory(
        machine=Machine("salted-02", "sha256:" + "41b7e0c2" * 8, virtual=True, hypervisor="kvm"),
        cpu=Cpu(
            "x86_64",
            "GenuineIntel",
            "Example Xeon at 2.1 GHz",
            sockets=1,
            cores=2,
            threads=2,
            online=(0, 1),
            allowed=(0, 1),
            package_of={0: 0, 1: 0},
            caches=(Cache(3, "unified", 33 * 2**20, 1, 2),),
            isa=("avx2", "avx512f"),
        ),
        numa=Numa(True, (NumaNode(0, (0, 1), 25 * GIB, 22 * GIB, "unknown", {0: 10}),)),
        memory=Memory(25 * GIB, 23 * GIB, 0, 0),
        kernel=Kernel("6.1.0", "ro", "always", "madvise", False, 0, 0, 60, {}, (0.6, 0.4, 0.2), 4096),
        limits=Limits(2, 24 * GIB, usable_memory_bytes=23 * GIB, restricted=True),
        provenance={
            "machine.container": Provenance(State.OK, "proc/1/cgroup", "no sign of one"),
            "cpu.model": Provenance(State.OK, "/proc/cpuinfo"),
            "memory.slots": Provenance(State.NOT_PERMITTED, None, "/sys/firmware/dmi/tables/DMI: root only"),
            "memory.theoretical_bytes_per_s": Provenance(
                State.NOT_PERMITTED, None, "/sys/firmware/dmi/tables/DMI: root only"
            ),
            "cpu.governor": Provenance(State.NOT_PRESENT, None, "no cpufreq in this virtual machine"),
        },
    )
    outcomes = list(reads(rng, [0], 23.4e9, lambda *_: 0.0, 12.6e9))
    outcomes[0] = attrs.evolve(
        outcomes[0],
        state=State.UNSTABLE,
        reason="rounds scatter by 14 %",
        metrics=(
            attrs.evolve(
                metric(
                    rng,
                    MEMORY_READ,
                    12.6e9,
                    dict(outcomes[0].metrics[0].labels),
                    spread=0.07,
                    proofs=outcomes[0].metrics[0].proofs,
                ),
                state=State.UNSTABLE,
                reason="rounds scatter by 14 %",
            ),
        ),
    )
    outcomes.append(residency(rng, 0.5 * GIB, 1560860324864, False))
    outcomes.append(
        outcome(
            "read.hugetlb.node0", "Node 0, pages of 1 GiB", state=State.NOT_PRESENT, reason="no pool of 1 GiB"
        )
    )
    steps = judged(
        {
            "prototype.residency": check(
                "prototype.residency",
                "CPU memory holds the image of the model",
                Verdict.FAIL,
                observed="24.7 GB of 1,447.4 GB",
                bound=Bound(min=1447.4e9),
                unit="B",
                reason="the image needs 1,447.4 GB; this machine may use 24.7 GB, 1,422.7 GB too little",
                remedy="take a machine with at least 1.6 TB of memory",
                evidence=("inventory:memory.total_bytes", "memory/residency.image"),
            ),
            "roofline.bare_metal": check(
                "roofline.bare_metal",
                "The run had the bare machine",
                Verdict.UNPROVEN,
                observed="virtual machine (kvm)",
                reason="a hypervisor stands between the run and the hardware",
                remedy="repeat the run on the bare machine",
                evidence=("inventory:machine.virtual",),
            ),
        }
    )
    run_ = a_run(
        run,
        profile="quick",
        seconds=171.0,
        ended="2026-12-09T10:07:03+00:00",
        split={"timed": 110.0, "setup": 49.0, "rest": 12.0},
        left_out=(LeftOut("memory", "read.node0.node1", "the machine has one node with memory"),),
        notices=("the clock was not synchronised",),
    )
    return Sheet(RunRecord(run_, inventory, tuple(outcomes)), gate(run, steps))


class Tree(HTMLParser):
    """A page as its elements, ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in ("a", "b", "strong", "em", "code", "i"):
            self.pieces.append(" ")

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).replace("\u00a0", " ").split())

    @property
    def ids(self) -> list[str]:
        return [a["id"] or "" for _, a in self.elements if "id" in a]

    @property
    def links(self) -> list[str]:
        return [a["href"] or "" for tag, a in self.elements if tag in ("a", "use") and "href" in a]


@pytest.fixture
def bare_metal() -> Callable[..., Sheet]:
    """Builds the invented bare-metal machine."""
    return build_bare_metal


@pytest.fixture
def small_vm() -> Callable[..., Sheet]:
    """Builds the invented small virtual machine."""
    return build_small_vm


@pytest.fixture
def tree() -> type[Tree]:
    """The parser of pages."""
    return Tree


@pytest.fixture
def better() -> type[Better]:
    """Directions, for metrics of other probes."""
    return Better
