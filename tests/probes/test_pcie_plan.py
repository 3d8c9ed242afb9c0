"""What the PCIe probe plans, on machines with and without GPUs, and why it measures nothing elsewhere."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from gpus import FIRST, SECOND, card, with_gpus

from k3gate.probes import pcie_cuda, pcie_peer, pcie_plan
from k3gate.probes.pcie import PcieProbe
from k3gate.probing import plan, profiles
from k3gate.probing.contract import Applies, Reason
from k3gate.records import Gpu, NumaNode, Provenance, State

STANDARD, QUICK = profiles.load("standard"), profiles.load("quick")


@pytest.fixture(autouse=True)
def bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where cuda-bindings and nvbandwidth are installed."""
    monkeypatch.setattr(pcie_cuda, "missing", lambda: None)
    monkeypatch.setattr(pcie_peer, "find", lambda: "/usr/bin/nvbandwidth")


def names(inventory: Any, profile: Any = STANDARD) -> list[str]:
    return [case.name for case in PcieProbe().cases(inventory, profile).cases]


def left_out(inventory: Any, profile: Any = STANDARD) -> dict[str, str]:
    return {one.case: one.reason for one in PcieProbe().cases(inventory, profile).left_out}


@pytest.mark.case("PCI-13")
def test_pci_13_every_node_by_every_gpu_the_nearest_first(make_inventory: Any) -> None:
    machine = with_gpus(make_inventory("bare_metal"), card(FIRST, 0), card(SECOND, 1))
    found = PcieProbe().cases(machine, STANDARD)
    cells = [case for case in found.cases if case.name.startswith("copy.")]
    assert [(case.name, case.labels["placement"]) for case in cells] == [
        ("copy.node0.41:00", "near"),
        ("copy.node1.81:00", "near"),
        ("copy.node1.41:00", "far"),
        ("copy.node0.81:00", "far"),
    ]
    # Each node's memory lies on it, filled by its own cores, and is shared by the cases of one worker.
    for case in cells:
        (memory,) = case.parameters["memory"]
        node = case.labels["memory_node"]
        assert memory["source"]["bind"] == memory["sink"]["bind"] == node
        assert set(memory["cpus"]) <= set(machine.numa.nodes[int(str(node))].cpus)
        assert memory["source"]["bytes"] == 256 << 20 and case.group == f"node{node}"
    assert {case.rounds for case in found.cases} == {3}
    kinds = {name.partition(".")[0] for name in names(machine)}
    assert kinds == {
        *("copy", "both", "trip", "together", "loaded", "sizes", "pageable", "device", "peer", "nvbandwidth")
    }
    assert {"peer.41:00.81:00", "peer.81:00.41:00"} <= set(names(machine))


def test_a_short_profile_takes_the_nearest_memory_and_one_of_each_detail(make_inventory: Any) -> None:
    machine = with_gpus(make_inventory("bare_metal"), card(FIRST, 0), card(SECOND, 1))
    assert names(machine, QUICK) == [
        *("copy.node0.41:00", "copy.node1.81:00", "trip.node0.41:00", "trip.node1.81:00"),
        *("both.node0.41:00", "both.node1.81:00", "together"),
        *("loaded.node0.41:00", "sizes.node0.41:00", "pageable.node0.41:00", "device.41:00"),
        *("peer.41:00.81:00", "nvbandwidth"),
    ]
    assert "--profile standard from every node" in left_out(machine, QUICK)["copy.node1.41:00"]
    whole = plan.plan([PcieProbe()], machine, QUICK)
    assert whole.seconds < 0.6 * QUICK.seconds
    smoke = PcieProbe().cases(machine, profiles.load("smoke"))
    assert smoke.cases == () and "--profile quick" in smoke.left_out[0].reason


def test_eight_gpus_on_two_nodes_fit_into_a_standard_run(make_inventory: Any) -> None:
    cards = [card(f"0000:{bus:02x}:00.0", bus % 2) for bus in range(0x10, 0x18)]
    whole = plan.plan([PcieProbe()], with_gpus(make_inventory("bare_metal"), *cards), STANDARD)
    assert whole.seconds < 1080
    cells = [case.name for case in whole.cases if case.name.startswith("copy.")]
    assert len(cells) == 16


def test_a_gpu_whose_node_is_not_told_is_copied_to_from_every_node(make_inventory: Any) -> None:
    machine = with_gpus(make_inventory("bare_metal"), card(FIRST, None))
    cells = [case for case in PcieProbe().cases(machine, QUICK).cases if case.name.startswith("copy.")]
    assert [(case.labels["memory_node"], case.labels["placement"]) for case in cells] == [
        (0, "unknown"),
        (1, "unknown"),
    ]
    alone = with_gpus(make_inventory("vm"), card(FIRST, None))
    (only,) = [case for case in PcieProbe().cases(alone, QUICK).cases if case.name.startswith("copy.")]
    assert only.labels["placement"] == "near"


def test_memory_without_cpus_is_filled_from_near_and_memory_of_gpus_is_none(make_inventory: Any) -> None:
    machine = make_inventory("bare_metal")
    far = NumaNode(2, (), 64 << 30, 60 << 30, "cxl", nearest=1)
    own = NumaNode(3, (), 96 << 30, 90 << 30, "gpu", nearest=0)
    nodes = (*machine.numa.nodes, far, own)
    machine = with_gpus(attrs.evolve(machine, numa=attrs.evolve(machine.numa, nodes=nodes)), card())
    cells = {
        case.labels["memory_node"]: case
        for case in PcieProbe().cases(machine, STANDARD).cases
        if case.name.startswith("copy.")
    }
    assert sorted(cells) == [0, 1, 2]
    assert set(cells[2].parameters["memory"][0]["cpus"]) <= set(machine.numa.nodes[1].cpus)


@pytest.mark.case("PCI-08")
def test_pci_08_a_partitioned_gpu_is_not_representative(make_inventory: Any) -> None:
    machine = with_gpus(make_inventory("bare_metal"), card(FIRST), card(SECOND, 1, partitioned=True))
    assert not any("81:00" in name for name in names(machine))
    assert "partitioned, not representative" in left_out(machine)["copy.*.81:00"]
    alone = PcieProbe().applies(with_gpus(make_inventory("vm"), card(partitioned=True)))
    assert isinstance(alone, Reason) and alone.state is State.NOT_RUN and "share one link" in alone.text


@pytest.mark.parametrize(
    ("gpus", "state", "words"),
    [
        ((), State.NOT_PRESENT, "this machine shows no GPU"),
        ((Gpu("MI300X", "amd", FIRST),), State.NOT_RUN, "measured through CUDA"),
        ((card(shared_memory=True),), State.NOT_RUN, "integrated interconnect, not evaluated"),
        (
            (card(state=State.FAILED, reason="driver/library version mismatch: start the machine again"),),
            State.FAILED,
            "0000:41:00.0: driver/library version mismatch: start the machine again",
        ),
        (
            (card(state=State.NOT_PRESENT, reason="driver not loaded: load it with `sudo modprobe nvidia`"),),
            State.NOT_PRESENT,
            "sudo modprobe nvidia",
        ),
    ],
)
def test_where_nothing_can_be_copied_the_reason_says_what_would_help(
    gpus: Any, state: State, words: str, make_inventory: Any
) -> None:
    found = PcieProbe().applies(with_gpus(make_inventory("vm"), *gpus))
    assert isinstance(found, Reason) and found.state is state and words in found.text


def test_gpus_that_were_not_seen_are_told_with_the_reason(make_inventory: Any) -> None:
    why = {"gpus": Provenance(State.NOT_PRESENT, None, "absent: neither PCI nor a library tells")}
    found = PcieProbe().applies(attrs.evolve(make_inventory("vm"), gpus=None, provenance=why))
    assert isinstance(found, Reason) and "absent: neither PCI nor a library tells" in found.text


def test_without_the_bindings_a_line_gets_them(make_inventory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = with_gpus(make_inventory("vm"), card())
    assert isinstance(PcieProbe().applies(machine), Applies)
    monkeypatch.setattr(pcie_cuda, "missing", lambda: pcie_cuda.INSTALL)
    found = PcieProbe().applies(machine)
    assert isinstance(found, Reason) and found.state is State.NOT_PRESENT
    assert "pip install 'k3gate[cuda]'" in found.text


def test_a_lost_gpu_beside_others_is_named_and_the_others_are_measured(make_inventory: Any) -> None:
    lost = card(SECOND, 1, state=State.FAILED, reason="lost: on PCI and not in the driver's list")
    machine = with_gpus(make_inventory("bare_metal"), card(), lost)
    assert "copy.node0.41:00" in names(machine) and not any("81:00" in name for name in names(machine))
    assert left_out(machine)["copy.*.81:00"].startswith("lost")


def test_a_node_without_room_is_left_out_with_the_sum(make_inventory: Any) -> None:
    machine = make_inventory("vm", limits={"usable_memory_bytes": 256 << 20})
    found = PcieProbe().cases(with_gpus(machine, card()), QUICK)
    assert [case.name for case in found.cases] == ["nvbandwidth"]
    assert any(one.case == "*.node0.*" and "it wants" in one.reason for one in found.left_out)


def test_without_nvbandwidth_the_plan_says_how_to_get_it(
    make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pcie_peer, "find", lambda: None)
    machine = with_gpus(make_inventory("vm"), card())
    assert "nvbandwidth" not in names(machine)
    assert "github.com/NVIDIA/nvbandwidth" in left_out(machine)["nvbandwidth"]


def test_names_are_short_and_keep_what_tells_gpus_apart() -> None:
    told = ["0000:41:00.0", "0001:41:00.0", "0000:41:00.1"]
    assert [pcie_plan.short(one) for one in told] == ["41:00", "0001:41:00", "41:00.1"]
