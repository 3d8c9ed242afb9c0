"""The map of the memory modules on the page: holes and odd modules are seen, and said in words."""

from __future__ import annotations

from typing import Any

import attrs

from k3gate.records import Channel, Dimm, Memory
from k3gate.reports.modules import module_map

GIB = 2**30


def slot(name: str, gib: int, **changes: Any) -> Dimm:
    filled = (
        {"kind": "dram", "rated_mts": 4800, "configured_mts": 4800, "part_number": "EX-4800"} if gib else {}
    )
    place = {"locator": f"DIMM_{name}1", "socket": 0, "channel": name}
    return Dimm(**{**place, "bytes": gib * GIB, "populated": gib > 0, **filled, **changes})


def page_with(sheet: Any, *dimms: Dimm, **changes: Any) -> str:
    """The page of a machine with one channel for each of `dimms`, whose processor nobody knows."""
    listed = tuple(
        Channel(dimm.channel or "", (), 1, int(bool(dimm.bytes)), dimm.bytes, None) for dimm in dimms
    )
    told = {
        "dimms": dimms,
        "slots": len(dimms),
        "channels": None,
        "empty_channels": None,
        "channel_list": listed,
    }
    memory = attrs.evolve(sheet.record.inventory.memory, **{**told, **changes})
    cpu = attrs.evolve(sheet.record.inventory.cpu, model=None, socket_list=None)
    inventory = attrs.evolve(sheet.record.inventory, memory=memory, cpu=cpu)
    return str(attrs.evolve(sheet, record=attrs.evolve(sheet.record, inventory=inventory)).page())


def test_an_empty_channel_is_a_hole_in_the_map(bare_metal: Any, tree: Any) -> None:
    dimms = (slot("A", 64), slot("B", 64), slot("C", 64), slot("D", 0))
    text = page_with(
        bare_metal(),
        *dimms,
        channels=3,
        empty_channels=("socket 0 channel D (DIMM_D1)",),
        theoretical_bytes_per_s=115.2e9,
        full_bytes_per_s=153.6e9,
        configured_mts=4800,
        rated_mts=4800,
    )
    seen = tree(text).text
    assert "1 of 4 channels is empty" in seen
    assert "Socket 0 3 of 4 channels, 192" in seen
    assert text.count('class="dm odd"') == 1
    assert 'aria-label="Socket 0: A 64, B 64, C 64, D empty"' in text
    assert "153.6 GB/s on paper" in seen.replace("\u00a0", " ")


def test_unlike_modules_stand_out_and_full_ones_say_so(bare_metal: Any, tree: Any) -> None:
    alike = [slot(one, 64) for one in "ABCD"]
    even = {"channels": 4, "empty_channels": (), "mixed_sizes": False, "mixed_speeds": False}
    text = page_with(bare_metal(), *alike, **even, configured_mts=4800)
    assert "All 4 channels are populated at 4,800" in tree(text).text
    assert 'class="dm odd"' not in text
    odd = [*alike[:3], slot("D", 64, part_number="OTHER-4800")]
    text = page_with(bare_metal(), *odd, **even)
    assert text.count('class="dm odd"') == 1
    assert "OTHER-4800" in tree(text).text


def test_channels_that_the_table_leaves_out_are_counted_where_the_processor_is_known(
    bare_metal: Any, tree: Any
) -> None:
    sheet = bare_metal()
    cpu = attrs.evolve(sheet.record.inventory.cpu, model="AMD EPYC 9354 32-Core Processor", sockets=1)
    memory = attrs.evolve(
        sheet.record.inventory.memory, dimms=(slot("A", 64), slot("B", 64)), channels=2, channel_list=None
    )
    heading = module_map(attrs.evolve(sheet.record.inventory, cpu=cpu, memory=memory)).heading
    assert heading == "10 of 12 channels are empty"
    unknown = attrs.evolve(cpu, model="A processor", socket_list=None)
    heading = module_map(attrs.evolve(sheet.record.inventory, cpu=unknown, memory=memory)).heading
    assert heading.startswith("2 channels in use") and heading.endswith("of how many is not known")


def test_slots_without_a_channel_and_hostile_names_are_shown_as_text(bare_metal: Any, tree: Any) -> None:
    hostile = "<script>alert(1)</script>"
    dimms = (
        slot("A", 64, channel=None, locator=hostile),
        slot("B", 16, channel=None, kind="pmem", locator="X"),
    )
    text = page_with(bare_metal(), *dimms, populated=2)
    assert hostile not in text
    assert "2 of 2 slots hold a module" in tree(text).text


def test_without_a_table_there_is_no_map(bare_metal: Any) -> None:
    sheet = bare_metal()
    inventory = attrs.evolve(sheet.record.inventory, memory=Memory())
    text = attrs.evolve(sheet, record=attrs.evolve(sheet.record, inventory=inventory)).page()
    assert 'id="modules"' not in text
