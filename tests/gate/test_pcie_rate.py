"""The check `roofline.pcie_rate`: copies of each GPU with the memory that serves it best, of what its link carries."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.gate import targets
from k3gate.host import pcie
from k3gate.records import Gpu, LeftOut, Outcome, Proof, State, Verdict
from tests.gate.conftest import make_metric

CHECK = "roofline.pcie_rate"
FIRST, SECOND = "0000:41:00.0", "0000:81:00.0"
PROVEN = (Proof("checksum", True, "seen"), Proof("gated", True, "seen"), Proof("placement", True, "seen"))
IN, OUT = "host_to_device", "device_to_host"


def card(address: str, **changes: Any) -> Gpu:
    link = pcie.made(address, (2.5, 16), (32.0, 16), "0000:40:01.0", (32.0, 16))
    return attrs.evolve(Gpu("NVIDIA X", "nvidia", address, link=link, node=0), **changes)


def copied(address: str, node: int, into: float, out: float, **changes: Any) -> Outcome:
    """A cell of the matrix, both ways."""
    found = []
    for direction, share in ((IN, into), (OUT, out)):
        labels = {
            "scope": "cell",
            "device": address,
            "memory_node": node,
            "direction": direction,
            "together": False,
        }
        found.append(
            make_metric("pcie.copy.link_share", share, **{"labels": labels, "proofs": PROVEN, **changes})
        )
    name = f"copy.node{node}.{address[5:10]}"
    return Outcome("pcie", name, found[0].state, found[0].reason, 1.0, 3, (), tuple(found))


@pytest.fixture
def judged(make_record: Any, check: Any, build: Any, bare_metal: Any) -> Any:
    def verdict(
        *outcomes: Outcome, gpus: Any = None, target: str = "hybrid", left: Any = (), **changes: Any
    ) -> Any:
        cards = (card(FIRST),) if gpus is None else tuple(gpus)
        inventory = attrs.evolve(bare_metal, gpus=cards, **changes)
        record = make_record((*build.sound(), *outcomes), inventory=inventory)
        record = attrs.evolve(record, run=attrs.evolve(record.run, left_out=tuple(left)))
        return check(record, CHECK, target=targets.load(target))

    return verdict


def test_a_target_without_gpus_asks_for_no_copies(judged: Any) -> None:
    assert judged(copied(FIRST, 0, 0.9, 0.9), target="residency-lab").verdict is Verdict.NOT_APPLICABLE


@pytest.mark.case("PCI-13")
def test_pci_13_the_node_that_serves_a_gpu_best_counts_and_both_ways_do(judged: Any) -> None:
    """Near 12,150 and 12,890 MB/s, far 3,783 and 2,539, over 8 GT/s x16."""
    link = 15.75e9
    near = copied(FIRST, 0, 12.15e9 / link, 12.89e9 / link)
    far = copied(FIRST, 1, 3.783e9 / link, 2.539e9 / link)
    found = judged(near, far)
    assert found.verdict is Verdict.PASS and "memory of node 0" in found.reason
    found = judged(far)
    assert found.verdict is Verdict.FAIL and found.observed == pytest.approx(3.783e9 / link)
    assert "GPU 0000:41:00.0, host to device, memory of node 1" in found.reason
    assert "nearest node" in found.remedy


def test_each_way_is_asked_for(judged: Any) -> None:
    found = judged(copied(FIRST, 0, 0.9, 0.3))
    assert found.verdict is Verdict.FAIL and "device to host" in found.reason


def test_the_worst_gpu_decides(judged: Any) -> None:
    cards = (card(FIRST), card(SECOND))
    found = judged(copied(FIRST, 0, 0.9, 0.9), copied(SECOND, 0, 0.9, 0.5), gpus=cards)
    assert found.verdict is Verdict.FAIL and SECOND in found.reason


def test_a_gpu_that_was_not_copied_to_leaves_it_open_with_the_reason_and_the_command(judged: Any) -> None:
    cards = (card(FIRST), card(SECOND, partitioned=True))
    left = [LeftOut("pcie", "copy.*.81:00", "partitioned, not representative: its parts share one link")]
    found = judged(copied(FIRST, 0, 0.9, 0.9), gpus=cards, left=left)
    assert found.verdict is Verdict.UNPROVEN
    assert "GPU 0000:81:00.0" in found.reason and "partitioned, not representative" in found.reason
    assert "k3gate run --probe pcie" in found.remedy


def test_why_a_machine_cannot_copy_is_told(judged: Any) -> None:
    why = "cuda-bindings is not installed: `pip install 'k3gate[cuda]'`"
    refused = Outcome("pcie", "all", State.NOT_PRESENT, why, 0.0, 0)
    found = judged(refused)
    assert found.verdict is Verdict.UNPROVEN and "pip install 'k3gate[cuda]'" in found.reason


@pytest.mark.parametrize("name", ["checksum", "gated"])
def test_what_was_not_compared_or_did_not_wait_passes_nothing(judged: Any, name: str) -> None:
    proofs = tuple(one for one in PROVEN if one.name != name)
    found = judged(copied(FIRST, 0, 0.9, 0.9, proofs=proofs))
    assert found.verdict is Verdict.UNPROVEN and f"{name} is not proven" in found.reason


def test_a_share_that_straddles_the_bound_is_too_noisy(judged: Any) -> None:
    found = judged(copied(FIRST, 0, 0.75, 0.9, interval=(0.7, 0.95)))
    assert found.verdict is Verdict.UNPROVEN and "Too noisy" in found.reason


@pytest.mark.case("PCI-07")
def test_pci_07_a_gpu_that_shares_memory_has_no_copies_to_show(judged: Any) -> None:
    found = judged(copied(FIRST, 0, 0.9, 0.9), gpus=(card(FIRST), card(SECOND, shared_memory=True)))
    assert found.verdict is Verdict.PASS


def test_other_sizes_and_loads_decide_nothing(judged: Any) -> None:
    outcome = copied(FIRST, 0, 0.1, 0.1)
    loaded = attrs.evolve(
        outcome,
        case="loaded.node0.41:00",
        metrics=tuple(attrs.evolve(one, labels={**one.labels, "scope": "loaded"}) for one in outcome.metrics),
    )
    assert judged(copied(FIRST, 0, 0.9, 0.9), loaded).verdict is Verdict.PASS
