"""Where a memory slot belongs, by the spelling of its two locators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.host.locators import Place, locate

MACHINES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "machines"


def slots(name: str) -> list[tuple[str, str]]:
    expected = json.loads((MACHINES / name / "expected.json").read_text())
    parts = [part for part in expected.values() if isinstance(part, dict) and "dimm_slots" in part]
    return [(slot["locator"], slot["bank"]) for part in parts for slot in part["slots"]]


NAMES = sorted(path.parent.name for path in MACHINES.glob("*/expected.json") if slots(path.parent.name))
# Machines whose locators name no channel, and so no sure place.
NOT_TOLD = {
    "dmi-1s-epyc7702p-speed-unknown": "A1 to A16: socket and number",
    "dmi-2s-epyc7551-only-2-dimms": "A1 to B16: socket and number",
    "dmi-2s-epyc7742-16of32": "A1 to B16: socket and number",
    "dmi-2s-epyc7763-32x128-hpe": "PROC 1 DIMM 1: socket and number",
    "dmi-2s-xeon8280-optane-shown-as-ddr4": "DIMM5_CPU0: socket and number",
    "smbios-2s-dell-r630-half-empty": "A1 to B12: socket and number",
    "smbios-4s-opteron-ddr3": "P1_1A: which of the two is the channel is not said",
}
CHANNELS = {
    "dmi-1s-altra-16of16": 8,
    "dmi-1s-epyc9454p-9of12": 12,
    "dmi-1s-threadripper-overclocked": 8,
    "dmi-2s-cascadelake-optane-appdirect": 12,
    "dmi-2s-epyc7302-nps4-gpu-server": 16,
    "dmi-2s-epyc7402-mixed-sizes-and-speeds": 16,
    "dmi-2s-epyc7601-supermicro-16of16": 16,
    "dmi-2s-epyc7763-32x64-2dpc-2933": 16,
    "dmi-2s-epyc7763-gpu-server": 16,
    "dmi-2s-epyc9654-24x128-hgx": 24,
    "dmi-2s-xeon6710e-16of32": 16,
    "dmi-2s-xeon8488c-single-dimm": 16,
    "dmi-4s-xeon6330h-48x64": 24,
    "sc-2s-cascadelake-8xt4-metal": 12,
    "sc-2s-epyc7r13-milan-metal-m6a": 16,
    "sc-2s-epyc9r14-genoa-metal": 24,
    "sc-2s-epyc9r45-turin-metal": 24,
    "sc-2s-icelake-metal-x2idn": 16,
    "smbios-1s-threadripper-x399": 4,
    "smbios-2s-supermicro-x9dbl-mixed": 6,
}


@pytest.mark.parametrize(
    ("device", "bank", "place"),
    [
        ("DIMM 0", "P0 CHANNEL A", Place(0, None, "A", 0, True)),
        ("DIMM_P0_A0", "BANK 0", Place(0, None, "A", 0, True)),
        ("P2-DIMME2", "P1_Node1_Channel1_Dimm1", Place(1, 1, "1", 1, True)),
        ("P1-DIMMK1", "P0_Node0_ChannelA_Dimm0", Place(0, 0, "A", 0, True)),
        ("P1-DIMM1A", "P0_Node0_Channel0_Dimm0", Place(0, 0, "0", 0, True)),
        ("P1-DIMMA1", None, Place(1, None, "A", 1, True)),
        ("CPU1_DIMM_A1", "NODE 4", Place(1, None, "A", 1, True)),
        ("CPU0.H1", "BANK 7", Place(0, None, "H", 1, True)),
        ("CPU0_C0D0", "NODE 0", Place(0, None, "0", 0, True)),
        ("CPU1_C11D1", None, Place(1, None, "11", 1, True)),
        ("CPU0 Channel10 DIMM0", "CPU0 Channel10", Place(0, None, "10", 0, True)),
        ("CPU1_DIMM_Q1", "P1 CHANNEL Q", Place(1, None, "Q", 1, True)),
        ("DIMM 3", "NODE 0 CHANNEL 0 DIMM 0", Place(None, 0, "0", 0, True)),
        ("DIMM000", "Socket 0 Channel 01", Place(0, None, "1", None, True)),
        ("Controller1-ChannelB-DIMM1", "BANK 3", Place(None, 1, "B", 1, True)),
        ("A1", "P0 CHANNEL C", Place(0, None, "C", 1, True)),
        ("A1", "CHANNEL A", Place(None, None, "A", 1, True)),
        ("CPU1 DIMM 0", "Channel A", Place(1, None, "A", 0, True)),
        ("DIMM_A1", "BANK 0", Place(None, None, "A", 1, True)),
        ("DIMM_A0", "NODE 1", Place(None, 1, "A", 0, True)),
    ],
)
def test_spellings_that_name_the_channel(device: str, bank: str | None, place: Place) -> None:
    assert locate(device, bank) == place
    assert locate(device.lower(), bank and bank.lower()) == place
    assert locate(f" {device}  ", bank) == place


@pytest.mark.parametrize(
    ("device", "bank", "place"),
    [
        ("A1", "Not Specified", Place(socket=1, slot=1)),
        ("B16", None, Place(socket=2, slot=16)),
        ("L2", None, Place(slot=2)),
        ("A1", "BANK 0", Place()),
        ("PROC 2 DIMM 12", None, Place(socket=2, slot=12)),
        ("DIMM12_CPU0", None, Place(socket=0, slot=12)),
        ("P4_4B", "31", Place(socket=4)),
        ("P1-DIMM1A", None, Place(socket=1)),
        ("PROC 1 DIMM 1A", None, Place(socket=1)),
        ("DIMM 0", "BANK 0", Place(slot=0)),
        ("RAM slot #0", "NVD #0", Place()),
        (None, None, Place()),
        ("", "  ", Place()),
        ("Motherboard", "the first one", Place()),
        ("P0 CHANNEL A and more", "P0 CHANNEL", Place()),
        ("CPU٣ Channel٣", None, Place()),
        ("P0 CHANNEL A" + "-" * 100, "P0" + " " * 9000 + "x", Place()),
    ],
)
def test_spellings_that_do_not(device: str | None, bank: str | None, place: Place) -> None:
    assert locate(device, bank) == place
    assert not place.sure


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text(device: str, bank: str) -> None:
    place = locate(device, bank)
    assert place.sure is (place.channel is not None)


@pytest.mark.skipif(not NAMES, reason="the captured machines are not beside the checkout")
@pytest.mark.parametrize("name", NAMES)
def test_captured_machines(name: str) -> None:
    """The channels that a machine's locators name are those that it has; each slot has a place of its own."""
    places = [locate(device, bank) for device, bank in slots(name)]
    if name in NOT_TOLD:
        assert not any(place.sure for place in places)
        return
    assert all(place.sure for place in places)
    assert len(set(places)) == len(places)
    assert len({(p.socket, p.controller, p.channel) for p in places}) == CHANNELS[name]
