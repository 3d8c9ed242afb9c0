"""The kernels that store, as cases: what is planned, what a figure counts, and what proves it."""

from __future__ import annotations

import attrs
import pytest
from fakes import SIZE, FakeContext, FakeTeam
from planning import case_of, names_of, plan_of

from k3gate import metrics
from k3gate.probes import _native, bandwidth, stores_plan
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Inventory, Metric, NumaNode, Profile, State

STANDARD = Profile("standard", 1200.0)
WORDS = {"write": (8, 16), "copy": (16, 24), "triad": (24, 32)}


def test_every_kernel_runs_on_every_node_from_standard_up(make_inventory) -> None:
    planned = plan_of(make_inventory("bare_metal"), STANDARD)
    wanted = {f"{kernel}.node{node}" for kernel in stores_plan.KERNELS for node in (0, 1)}
    assert wanted <= names_of(planned)
    case = case_of(planned, "triad_nt.node1")
    assert case.labels["kernel"] == "triad_nt" and case.labels["placement"] == "local"
    assert case.parameters["readers"] == [list(range(32, 64))]
    assert "32 threads" in case.title and "a = b + 3 c" in case.title and "past the caches" in case.title
    assert "ordinary stores" in case_of(planned, "copy.node0").title


def test_stores_have_a_worker_of_their_own_since_they_destroy_what_reads_check(make_inventory) -> None:
    planned = plan_of(make_inventory("bare_metal"), STANDARD)
    storing = {case.group for case in planned.cases if case.parameters.get("arrays", 1) > 1}
    reading = {case.group for case in planned.cases if case.parameters.get("kernel") == "read"}
    assert storing and not storing & reading


def test_each_array_exceeds_the_caches_by_itself(make_inventory) -> None:
    case = case_of(plan_of(make_inventory("bare_metal"), STANDARD), "triad.node0")
    assert case.bytes // 3 >= 4 * (60 + 32 * 2) * 2**20


def test_without_room_for_its_arrays_a_kernel_is_left_out_with_the_sum(make_inventory) -> None:
    """The caches want 0.3 GB of one array: the reads fit, three arrays do not."""
    inventory = make_inventory("vm", limits={"usable_memory_bytes": 700 << 20})
    planned = plan_of(inventory, STANDARD)
    assert "read.node0.node0" in names_of(planned) and "triad.node0" not in names_of(planned)
    [reason] = [one.reason for one in planned.left_out if one.case == "triad.node0"]
    assert "it wants 0.8 GB" in reason and "for each of 3 arrays" in reason


@pytest.mark.parametrize(("name", "ok"), [("write", True), ("copy", True), ("triad", False)])
def test_the_working_set_of_a_figure_is_that_of_one_array(fake, name: str, ok: bool) -> None:
    """A pool of eight times the caches: two arrays of it exceed them as they must, three do not."""
    [metric], _ = fake(f"{name}.node0", FakeTeam([0, 1]), size=SIZE // 2)
    assert next(proof.ok for proof in metric.proofs if proof.name == "working_set") is ok


@pytest.mark.parametrize(
    ("profile", "kept"),
    [(Profile("smoke", 20.0), set()), (Profile("quick", 180.0), {"copy.node0", "copy_nt.node0"})],
)
def test_short_profiles_name_the_kernels_that_they_leave_out(
    make_inventory, profile: Profile, kept: set[str]
) -> None:
    planned = plan_of(make_inventory("bare_metal"), profile)
    storing = {name for name in names_of(planned) if name.partition(".")[0] in stores_plan.KERNELS}
    assert storing == kept
    left = {one.case for one in planned.left_out}
    assert {"write.*", "write_nt.*", "triad.*", "triad_nt.*"} <= left
    assert ("copy*.node1" in left) == bool(kept) != ("copy.*" in left)


@pytest.mark.case("BW-04")
@pytest.mark.parametrize("kernel", stores_plan.KERNELS)
def test_bw_04_a_store_says_what_it_counts_and_what_the_bus_carries(fake, kernel: str) -> None:
    team = FakeTeam([0, 1], (0.1,))
    [metric], context = fake(f"{kernel}.node0", team, seconds=1.0)
    name, streamed = kernel.removesuffix("_nt"), kernel.endswith("_nt")
    assert metric.name == f"memory.bandwidth.{name}"
    assert metrics.find(metric.name) is not None
    counted, bus = WORDS[name]
    labels = metric.labels
    assert labels["kernel"] == kernel
    assert labels["stores"] == ("non_temporal" if streamed else "cached")
    assert labels["counted_bytes_per_word"] == counted
    assert labels["bus_bytes_per_word"] == (counted if streamed else bus)
    assert ("RFO" in str(labels["counting"])) == (not streamed)
    passes = next(count for call, count in team.calls[2:] if call == "run")
    elements = SIZE / 8 / (counted / 8)  # the pool holds one, two or three arrays
    assert metric.samples[0].value == pytest.approx(passes * elements * counted / 0.1)
    assert [proof.name for proof in metric.proofs] == [
        *("placement", "page_size", "pinned", "checksum", "working_set", "counter_check")
    ]
    assert context.booked > 0, "filling and reading back are set-up"


def test_words_that_were_not_stored_fail_the_figure(fake) -> None:
    def lose_a_word(call: str, number: int, threads) -> None:
        if call == "count_unwritten":
            threads[1].value = 1

    [metric], _ = fake("copy.node0", FakeTeam([0, 1], (0.1,), lose_a_word))
    assert metric.state is State.FAILED
    assert "1 of" in (metric.reason or "") and "wrong" in (metric.reason or "")


def _with_paper(inventory: Inventory, rate: float) -> Inventory:
    return attrs.evolve(inventory, memory=attrs.evolve(inventory.memory, theoretical_bytes_per_s=rate))


@pytest.mark.parametrize(
    ("rate", "counted", "bus", "ok", "word"),
    [
        (90e9, 16, 16, True, "90.0 GB/s of the 100 GB/s"),
        (101e9, 16, 16, False, "a fault of the measurement or of the paper rate"),
        (60e9, 16, 24, True, "60.0 GB/s"),
        (80e9, 16, 24, None, "120 GB/s: this processor spares reads"),
        (101e9, 16, 24, False, "above the physical limit"),
    ],
)
def test_more_than_the_paper_rate_is_a_fault_of_ours(
    make_inventory, rate: float, counted: int, bus: int, ok: bool | None, word: str
) -> None:
    inventory = _with_paper(make_inventory("vm"), 100e9)
    labels = {"scope": "node", "cpu_node": 0, "memory_node": 0}
    labels |= {"counted_bytes_per_word": counted, "bus_bytes_per_word": bus}
    [proof] = bandwidth.ceiling(rate, inventory, labels)
    assert proof.name == "ceiling" and proof.ok is ok
    assert word in proof.detail
    assert bandwidth.ceiling(rate, make_inventory("vm"), labels) == [], "no paper rate, no ceiling"


@pytest.mark.case("BW-03")
def test_bw_03_a_read_above_the_ceiling_is_invalid(fake) -> None:
    """The memory could give half of what was counted, on paper."""
    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1], (0.1,)), paper=SIZE / 0.2)
    assert metric.state is State.FAILED
    assert "above the physical limit" in (metric.reason or "")


SMALL = 8 << 20


@pytest.mark.parametrize("kernel", stores_plan.KERNELS)
def test_a_store_is_measured_for_real(make_inventory, kernel: str) -> None:
    cpus = tuple(_native.allowed_cpus()[:2])
    inventory = make_inventory("vm", cpu={"online": cpus, "allowed": cpus, "siblings": ()})
    memory = inventory.memory.total_bytes
    numa = attrs.evolve(inventory.numa, nodes=(NumaNode(0, cpus, memory, memory // 2, "dram", {0: 10}),))
    inventory = attrs.evolve(inventory, numa=numa)
    case = case_of(plan_of(inventory, STANDARD), f"{kernel}.node0")
    specs = [{**spec, "bytes": SMALL} for spec in case.parameters["pools"]]
    case = attrs.evolve(case, parameters={**case.parameters, "pools": specs})
    context = FakeContext(inventory)
    try:
        found: list[Metric] = list(MemoryProbe().run(case, context))
    finally:
        context.close()
    [metric] = found
    proofs = {proof.name: proof for proof in metric.proofs}
    assert proofs["checksum"].ok is True and "stored words are right" in proofs["checksum"].detail
    assert proofs["pinned"].ok is True
    assert proofs["working_set"].ok is False, "8 MiB sit in a cache, and the figure says so"
    assert metric.state is State.FAILED
    assert len(metric.samples) >= 3 and min(context.timed) >= bandwidth.SAMPLE_SECONDS
