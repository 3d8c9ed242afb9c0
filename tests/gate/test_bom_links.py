"""Whether ordered cards, drives and adapters have the lanes that they need."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.analysis import system_file
from k3gate.gate import bom, bom_links
from k3gate.host import pcie
from k3gate.records import Drive, Gpu, Inventory, NetworkAdapter, PcieLink, Storage, Verdict

ORDER = """
name = "two cards"
[[gpu]]
model = "H200"
count = 2
memory_gb = 141
pcie_gb_per_s = 63
[storage]
drives = 2
gb_per_s = 7
[network]
gb_per_s = 12.5
"""


def link(rate: float, width: int, device: int | None = None) -> PcieLink:
    return pcie.made("0000:01:00.0", (2.5, width), (rate, device or width), "0000:00:01.0", (rate, width))


def with_devices(
    inventory: Inventory, cards: list[PcieLink | None], drives: list[PcieLink], adapter: PcieLink | None
) -> Inventory:
    gpus = tuple(Gpu("NVIDIA H200", "nvidia", f"0000:0{n}:00.0", link=one) for n, one in enumerate(cards))
    found = tuple(Drive(str(n), f"nvme{n}n1", kind="nvme", link=one) for n, one in enumerate(drives))
    network = (NetworkAdapter("eth0", "ethernet", bytes_per_s=12.5e9, link=adapter),)
    return attrs.evolve(inventory, gpus=gpus, storage=Storage(found), network=network)


@pytest.fixture
def lines(bare_metal: Inventory) -> Any:
    def check(*devices: Any, order: str = ORDER) -> dict[str, Any]:
        system = system_file.read(order, "order.toml")
        return {line.key: line for line in bom_links.check(system, with_devices(bare_metal, *devices))}

    return check


GOOD = ([link(32.0, 16)] * 2, [link(16.0, 4)] * 3, link(16.0, 16))


def test_links_that_carry_what_was_ordered(lines: Any) -> None:
    found = lines(*GOOD)
    assert {key: line.verdict for key, line in found.items()} == {
        "links.gpu.1": bom.SAME,
        "links.storage": bom.BETTER,
        "links.network": bom.BETTER,
    }
    assert found["links.gpu.1"].found == "32 GT/s x16: 63.0 GB/s each way", "what it does idle does not count"
    assert bom_links.verdict(list(found.values())) is Verdict.PASS


def test_a_card_in_a_slot_of_fewer_lanes_is_worse_and_named(lines: Any) -> None:
    found = lines([link(32.0, 16), link(32.0, 8, 16)], GOOD[1], GOOD[2])["links.gpu.1"]
    assert found.verdict == bom.WORSE
    assert found.reason == "the link of 0000:01:00.0 carries 31.5 GB/s, ordered are 63.0 GB/s"


def test_without_a_stated_rate_a_device_must_have_its_own_lanes(lines: Any) -> None:
    order = ORDER.replace("pcie_gb_per_s = 63\n", "")
    assert lines(*GOOD, order=order)["links.gpu.1"].verdict == bom.SAME
    narrow = lines([link(32.0, 16), link(32.0, 8, 16)], GOOD[1], GOOD[2], order=order)["links.gpu.1"]
    assert narrow.verdict == bom.WORSE and narrow.reason == "0000:01:00.0 has 8 of its 16 lanes"


def test_what_is_missing_or_not_told_is_not_measured(lines: Any) -> None:
    assert lines(GOOD[0][:1], GOOD[1], GOOD[2])["links.gpu.1"].reason == "of 2 ordered the run shows 1"
    assert lines([link(32.0, 16), None], GOOD[1], GOOD[2])["links.gpu.1"].verdict == bom.NOT_MEASURED
    assert lines(GOOD[0], GOOD[1], None)["links.network"].verdict == bom.NOT_MEASURED


def test_an_order_without_cards_and_drives_needs_no_lanes(lines: Any) -> None:
    assert lines(*GOOD, order='name = "none"\n') == {}
    assert bom_links.verdict(()) is Verdict.PASS and "no card" in bom_links.sentence(())


def test_in_a_guest_nothing_is_measured(make_inventory: Any) -> None:
    system = system_file.read(ORDER, "order.toml")
    found = bom_links.check(system, make_inventory("vm"))
    assert {line.verdict for line in found} == {bom.NOT_MEASURED}
    assert bom_links.verdict(found) is Verdict.UNPROVEN


def test_the_rate_of_the_adapter_is_a_line_of_the_order(bare_metal: Inventory) -> None:
    system = system_file.read(ORDER, "order.toml")
    found = {line.key: line for line in bom.check(system, with_devices(bare_metal, *GOOD))}
    assert (found["network"].verdict, found["network"].found) == (bom.SAME, "100 Gbit/s")
    assert found["gpu.1"].verdict == bom.SAME
