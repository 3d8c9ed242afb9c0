"""The PCIe tree on the page: what is below its best is seen and said in words, and idle links are not accused."""

from __future__ import annotations

from typing import Any

import attrs

from k3gate import links
from k3gate.host import pcie
from k3gate.metrics import LINK_RATE
from k3gate.records import (
    Drive,
    Gpu,
    Metric,
    NetworkAdapter,
    Outcome,
    PciDevice,
    PcieLink,
    Sample,
    State,
    Storage,
)
from k3gate.reports.link_table import link_table

NBSP = "\N{NO-BREAK SPACE}"
CARDS = ("0000:41:00.0", "0000:c1:00.0")
DRIVE, ADAPTER = "0000:81:00.0", "0000:21:00.0"
PORTS = ("0000:40:01.1", "0000:c0:01.1", "0000:80:03.1", "0000:20:01.1")


def link(address: str, port: str, now: tuple[float, int], device: tuple[float, int] = (32.0, 16)) -> PcieLink:
    return pcie.made(address, now, device, port, device)


def under_load(address: str, gt_per_s: float, width: int) -> Outcome:
    rate = links.bytes_per_s(gt_per_s, width)
    assert rate is not None
    labels = {"device": address, "gt_per_s": gt_per_s, "width": width}
    samples = tuple(Sample(rate, number, 7, 100.0 * number) for number in range(3))
    metric = Metric(
        LINK_RATE.name, "B/s", LINK_RATE.better, labels, samples, rate, (rate, rate), State.OK, None, ()
    )
    return Outcome("pcie", f"link.{address}", State.OK, None, 3.0, 3, (), (metric,), "A link under load")


def with_devices(sheet: Any, *outcomes: Outcome, narrow: bool = True, shared: bool = False) -> Any:
    """The sheet's machine with two GPUs (the second on half of its lanes), a drive and an adapter."""
    first = link(CARDS[0], PORTS[0], (2.5, 16))
    second = link(CARDS[1], PORTS[1], (32.0, 8 if narrow else 16))
    drive = link(DRIVE, PORTS[2], (16.0, 4), (16.0, 4))
    adapter = link(ADAPTER, PORTS[3], (16.0, 16), (16.0, 16))
    gpus = tuple(
        Gpu(
            "EX 96 <b>GB</b>",
            "nvidia",
            address,
            memory_bytes=96 * 2**30,
            bar_bytes=2**28,
            node=node,
            link=one,
        )
        for node, (address, one) in enumerate(zip(CARDS, (first, second), strict=True))
    )
    second_way = (PORTS[0],) if shared else (PORTS[1],)
    devices = (
        PciDevice(
            CARDS[0],
            "gpu",
            node=0,
            link=first,
            above=(PORTS[0],),
            slot="CPU0 SLOT1",
            corrected=0,
        ),
        PciDevice(
            CARDS[1],
            "gpu",
            node=1,
            link=second,
            above=second_way,
            slot="CPU1 SLOT3",
            corrected=12,
        ),
        PciDevice(DRIVE, "nvme", node=1, link=drive, above=(PORTS[2],)),
        PciDevice(
            ADAPTER, "network", vendor="Example", device="NIC 100G", node=0, link=adapter, above=(PORTS[3],)
        ),
        *(PciDevice(port, "bridge", port="root", node=0) for port in PORTS),
    )
    inventory = attrs.evolve(
        sheet.record.inventory,
        gpus=gpus,
        pci=devices,
        storage=Storage((Drive("x", "nvme0n1", kind="nvme", link=drive, node=1),)),
        network=(NetworkAdapter("eth0", "ethernet", ADAPTER, "up", 9000, 12.5e9, "mlx5_core", 0, adapter),),
    )
    record = attrs.evolve(sheet.record, inventory=inventory, outcomes=(*sheet.record.outcomes, *outcomes))
    return attrs.evolve(sheet, record=record)


def test_the_narrow_link_is_marked_and_named_and_the_idle_one_is_not(bare_metal: Any, tree: Any) -> None:
    sheet = with_devices(bare_metal())
    text = sheet.page()
    assert "The link of GPU EX 96 &lt;b&gt;GB&lt;/b&gt; is below its best" in text
    table = link_table(sheet.record)
    assert table is not None
    by_place = {row.place: row for row in table.rows}
    good = by_place["slot CPU0 SLOT1; 41:00.0; below 40:01.1"]
    bad = by_place["slot CPU1 SLOT3; c1:00.0; below c0:01.1"]
    assert (good.seen, good.best, good.bad, good.note) == (
        "Gen1 x16",
        "Gen5 x16",
        False,
        "idle: slow while nothing is sent",
    )
    assert (bad.seen, bad.bad, bad.note, bad.errors) == (
        "Gen5 x8",
        True,
        "fewer lanes than both ends have",
        "12",
    )
    assert (sum(good.lanes), sum(bad.lanes), len(bad.lanes)) == (16, 8, 16)
    assert bad.rate == f"63.0{NBSP}GB/s"
    assert text.count('<tr class="bad">') == 1


def test_what_was_seen_under_load_stands_in_place_of_idle(bare_metal: Any) -> None:
    seen = [under_load(CARDS[0], 32.0, 16), under_load(CARDS[1], 8.0, 16)]
    table = link_table(with_devices(bare_metal(), *seen, narrow=False).record)
    assert table is not None
    first, second = table.rows[:2]
    assert (first.seen, first.note) == ("Gen5 x16", "its best, under load")
    assert (second.seen, second.note, second.bad) == ("Gen3 x16", "below its best under load", True)


def test_all_idle_says_so_and_accuses_nobody(bare_metal: Any) -> None:
    table = link_table(with_devices(bare_metal(), narrow=False).record)
    assert table is not None
    assert table.heading == "Four links, seen idle only"
    assert not any(row.bad for row in table.rows)
    assert {row.name for row in table.rows} == {
        "GPU EX 96 <b>GB</b>",
        "Drive nvme0n1",
        "Network eth0, Example NIC 100G",
    }


def test_devices_that_share_a_way_are_told(bare_metal: Any) -> None:
    table = link_table(with_devices(bare_metal(), narrow=False, shared=True).record)
    assert table is not None
    assert table.notes == ("41:00.0 and c1:00.0 share the way to the root behind 40:01.1",)


def test_a_machine_without_pci_has_no_table(bare_metal: Any) -> None:
    sheet = bare_metal()
    assert link_table(sheet.record) is None
    assert 'id="pcie"' not in sheet.page()


def test_gpus_are_listed_in_words(bare_metal: Any) -> None:
    text = with_devices(bare_metal()).page()
    assert f"96.0{NBSP}GiB, of which 0.250{NBSP}GiB within reach of the CPU" in text
    assert "41:00.0, c1:00.0" in text
