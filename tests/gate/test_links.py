"""Links of GPUs and drives at the gate: below their best under load, seen idle only, lost, with errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from k3gate import links
from k3gate.gate import links as gate_links
from k3gate.gate import targets
from k3gate.harness import watch
from k3gate.host import pcie
from k3gate.probing.bystanders import Others
from k3gate.records import (
    Drive,
    Gpu,
    Inventory,
    Metric,
    Outcome,
    PciDevice,
    PcieLink,
    Phase,
    Sample,
    Series,
    State,
    Storage,
    Verdict,
)
from tests.gate.conftest import make_metric

CARD, DRIVE, PORT = "0000:41:00.0", "0000:81:00.0", "0000:40:01.0"
LOAD = (Phase("memory", "read.machine", 0, 0.0, 10.0),)
HYBRID = "hybrid"


def link(address: str, now: tuple[float, int], best: tuple[float, int]) -> PcieLink:
    return pcie.made(address, now, best, PORT, best)


IDLE = link(CARD, (2.5, 16), (32.0, 16))
SOLID = link(DRIVE, (16.0, 4), (16.0, 4))


@pytest.fixture
def machine(bare_metal: Inventory) -> Callable[..., Inventory]:
    """`machine(gpus=..., drives=...)`: the bare machine with a card and a drive, each below a port."""

    def make(gpus: Sequence[Gpu] | None = None, drive: PcieLink | None = SOLID, **changes: Any) -> Inventory:
        cards = (Gpu("NVIDIA X", "nvidia", CARD, link=IDLE, node=0),) if gpus is None else tuple(gpus)
        drives = (Drive("d", "nvme0n1", kind="nvme", transport="pcie", link=drive),) if drive else ()
        devices = (
            PciDevice(PORT, "bridge", port="root"),
            PciDevice(CARD, "gpu", above=(PORT,), slot="CPU1 SLOT3", node=0, link=IDLE),
            PciDevice(DRIVE, "nvme", link=drive),
        )
        told = {"gpus": cards, "pci": devices, "storage": Storage(drives)} | changes
        return attrs.evolve(bare_metal, **told)

    return make


def seen(address: str, gt_per_s: float, width: int, state: State = State.OK) -> Outcome:
    """What a probe hands over of a link under load."""
    labels = {"device": address, "gt_per_s": gt_per_s, "width": width}
    value = links.bytes_per_s(gt_per_s, width)
    metric: Metric = make_metric("pcie.link.rate", value, 0.0, state, labels=labels)
    return Outcome("pcie", f"link.{address}", state, None, 1.0, 3, (), (metric,))


FULL = seen(CARD, 32.0, 16)
DRIVEN = seen(DRIVE, 16.0, 4)


@pytest.fixture
def verdict(make_record: Any, check: Any, build: Any) -> Callable[..., Any]:
    def judged(inventory: Inventory, *outcomes: Outcome, target: str = "residency-lab", **fields: Any) -> Any:
        record = make_record((*build.sound(), *outcomes), inventory=inventory, **fields)
        return check(record, "roofline.pcie_links", target=targets.load(target))

    return judged


@pytest.mark.case("PCI-01")
def test_pci_01_under_load_decides_and_idle_alone_never_fails(machine: Any, verdict: Any) -> None:
    """P8 at generation 1 while idle: (a) generation 5 under load passes, (b) generation 1 under load fails."""
    good = verdict(machine(), FULL, DRIVEN)
    assert good.verdict is Verdict.PASS and good.observed == "2 of 2"
    bad = verdict(machine(), seen(CARD, 2.5, 16), DRIVEN)
    assert bad.verdict is Verdict.FAIL and "2.5 GT/s x16 under load, of 32 GT/s x16" in bad.reason
    idle = verdict(machine(), DRIVEN)
    assert idle.verdict is Verdict.UNPROVEN
    assert "seen idle only" in idle.reason and "k3gate run --probe pcie" in idle.remedy


def test_the_lowest_of_several_readings_decides(machine: Any, verdict: Any) -> None:
    assert verdict(machine(), FULL, seen(CARD, 16.0, 16), DRIVEN).verdict is Verdict.FAIL


def test_readings_of_a_failed_case_are_none(machine: Any, verdict: Any) -> None:
    found = verdict(machine(), seen(CARD, 2.5, 16, State.FAILED), DRIVEN)
    assert found.verdict is Verdict.UNPROVEN


@pytest.mark.case("PCI-02")
def test_pci_02_a_link_trained_narrower_and_slower_fails_with_what_is_lost_and_where(
    machine: Any, verdict: Any
) -> None:
    slow = attrs.evolve(IDLE, gt_per_s=8.0, width=8)
    inventory = machine([Gpu("NVIDIA X", "nvidia", CARD, link=slow, node=0)])
    found = verdict(inventory, seen(CARD, 8.0, 8), DRIVEN)
    assert found.verdict is Verdict.FAIL and found.observed == "1 of 2 below"
    assert "GPU 0000:41:00.0: its link did 8 GT/s x8 under load, of 32 GT/s x16" in found.reason
    assert "at most 7.88 GB/s of 63.0 GB/s pass each way" in found.reason
    assert "(slot CPU1 SLOT3, below 0000:40:01.0, node 0)" in found.reason
    assert "riser" in found.remedy


def test_fewer_lanes_while_idle_are_named_and_decide_nothing(machine: Any, verdict: Any) -> None:
    inventory = machine([Gpu("NVIDIA X", "nvidia", CARD, link=attrs.evolve(IDLE, width=8))])
    found = verdict(inventory, DRIVEN)
    assert (
        found.verdict is Verdict.UNPROVEN and "1 of them with fewer lanes than both ends have" in found.reason
    )


def test_drives_are_judged_too(machine: Any, verdict: Any) -> None:
    found = verdict(machine([]), seen(DRIVE, 8.0, 4))
    assert found.verdict is Verdict.FAIL and "drive nvme0n1: its link did 8 GT/s x4" in found.reason


@pytest.mark.case("PCI-10")
def test_pci_10_a_lost_gpu_fails_and_both_counts_are_told(machine: Any, verdict: Any) -> None:
    cards = [Gpu("X", "nvidia", f"0000:{bus:02x}:00.0", link=IDLE) for bus in range(7)]
    lost = Gpu(None, "nvidia", "0000:ba:00.0", State.FAILED, "lost: on PCI and not in the driver's list")
    found = verdict(machine([*cards, lost]))
    assert found.verdict is Verdict.FAIL and found.observed == "7 of 8 answer"
    assert "8 GPUs are on PCI and 7 answer; lost: 0000:ba:00.0" in found.reason


@pytest.mark.case("PCI-09")
def test_pci_09_a_driver_that_cannot_be_asked_leaves_it_unproven(machine: Any, verdict: Any) -> None:
    told = "driver/library version mismatch: start the machine again"
    found = verdict(machine([Gpu(None, "nvidia", CARD, State.FAILED, told, link=IDLE)]), DRIVEN)
    assert found.verdict is Verdict.UNPROVEN and told in found.reason


@pytest.mark.case("PCI-07")
def test_pci_07_an_integrated_gpu_has_no_link_to_judge(machine: Any, verdict: Any) -> None:
    found = verdict(machine([Gpu("NVIDIA GB10", "nvidia", CARD, shared_memory=True)]), DRIVEN)
    assert found.verdict is Verdict.PASS and found.observed == "1 of 1"


@pytest.mark.case("PCI-22")
def test_pci_22_links_in_wsl_are_not_evaluated(machine: Any, verdict: Any) -> None:
    inventory = machine(pci=None)
    inventory = attrs.evolve(inventory, machine=attrs.evolve(inventory.machine, wsl=True, virtual=True))
    found = verdict(inventory, FULL, DRIVEN)
    assert found.verdict is Verdict.UNPROVEN and "Links are not evaluated" in found.reason
    assert "Windows Subsystem for Linux" in found.reason


@pytest.mark.case("PCI-18")
@pytest.mark.parametrize(("rose", "outcome"), [(2100, Verdict.FAIL), (0, Verdict.PASS)])
def test_pci_18_errors_that_a_link_counts_under_load_fail_with_their_rate(
    machine: Any, verdict: Any, rose: int, outcome: Verdict
) -> None:
    """From 140 to 2,240 in 10 s of load."""
    labels = {
        "counter": f"aer {CARD} correctable",
        "kind": "corrected",
        "domain": f"PCIe link {CARD}, correctable",
    }
    series = [Series("events", "1", labels, (0.0, 10.0), (140.0, 140.0 + rose))]
    inventory = machine()
    told = watch.told(series, LOAD, inventory, [], Others((), None), 10.0)
    counted = watch._outcome(None, "errors", *told["errors"], 10.0)
    found = verdict(inventory, FULL, DRIVEN, counted, phases=LOAD, series=tuple(series))
    assert found.verdict is outcome, found.reason
    if rose:
        assert f"{CARD}: 2,100 correctable, 210 a second" in found.reason


def test_errors_of_other_devices_are_not_its_matter(machine: Any, verdict: Any) -> None:
    labels = {"counter": "aer 0000:00:1c.0 correctable", "kind": "corrected", "domain": "x"}
    sample = (Sample(9.0, 0, 1, 0.0),)
    metric = make_metric("machine.errors.corrected", 9.0, 0.0, labels=labels, samples=sample)
    counted = Outcome("machine", "errors", State.OK, None, 1.0, 1, (), (metric,))
    assert verdict(machine(), FULL, DRIVEN, counted, phases=LOAD).verdict is Verdict.PASS


def test_a_machine_without_cards_and_drives_has_no_slow_link(machine: Any, verdict: Any) -> None:
    found = verdict(machine([], None))
    assert found.verdict is Verdict.PASS and found.observed == "no such link"
    unread = verdict(machine([], None, pci=None))
    assert unread.verdict is Verdict.UNPROVEN and "were not seen" in unread.reason


def test_a_target_that_needs_gpus_fails_without_one(machine: Any, verdict: Any) -> None:
    found = verdict(machine([]), DRIVEN, target=HYBRID)
    assert found.verdict is Verdict.FAIL and "the machine shows none" in found.reason


def test_what_was_seen_is_kept_by_device(machine: Any, make_record: Any) -> None:
    record = make_record([FULL, DRIVEN, seen(CARD, 16.0, 16)], inventory=machine())
    assert [len(states) for states in gate_links.under_load(record).values()] == [2, 1]
    assert [one.verdict.word for one in gate_links.judged(record)] == [links.BELOW, links.BEST]
