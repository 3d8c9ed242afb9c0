"""The kernel's counts of memory errors, and that no count is not a count of zero."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate import documents
from k3gate.host import edac
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import Edac, State

MakeRoot = Any
FOLDER = "sys/devices/system/edac/mc"
CAPTURED = Path(__file__).resolve().parents[3] / "shared" / "machines" / "sensors-node-exporter-fixture"


def read(root: Path) -> tuple[Edac, Notes]:
    notes = Notes()
    return edac.read(Root(root), notes), notes


def controller(number: int, corrected: str = "0\n", modules: int = 2) -> dict[str, str | bytes | None]:
    """A controller as a driver of today shows it."""
    base = f"{FOLDER}/mc{number}"
    files: dict[str, str | bytes | None] = {
        f"{base}/mc_name": "Intel_10nm Socket#0 IMC#0\n",
        f"{base}/size_mb": f"{modules * 65_536}\n",
        f"{base}/ce_count": corrected,
        f"{base}/ue_count": "0\n",
        f"{base}/seconds_since_reset": "8640000\n",
    }
    for index in range(modules):
        module = f"{base}/dimm{index}"
        files |= {
            f"{module}/dimm_label": f"CPU_SrcID#0_MC#0_Chan#{index}_DIMM#0\n",
            f"{module}/dimm_location": f"channel {index} slot 0\n",
            f"{module}/dimm_mem_type": "Registered-DDR5\n",
            f"{module}/dimm_edac_mode": "S4ECD4ED\n",
            f"{module}/size": "65536\n",
            f"{module}/dimm_ce_count": corrected,
            f"{module}/dimm_ue_count": "0\n",
        }
    return files


def test_controllers_and_modules(make_root: MakeRoot) -> None:
    found, notes = read(make_root(controller(0), controller(10), controller(2, "7\n"), bare=True))
    assert found.driver_present is True
    assert [one.id for one in found.controllers] == ["mc0", "mc2", "mc10"]
    assert (found.corrected, found.uncorrected, found.memory_type) == (7, 0, "Registered-DDR5")
    first = found.controllers[0]
    assert (first.name, first.bytes, first.seconds) == ("Intel_10nm Socket#0 IMC#0", 2**37, 8_640_000)
    module = first.modules[1]
    assert (module.label, module.location) == ("CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "channel 1 slot 0")
    assert (module.bytes, module.mode, module.corrected) == (2**36, "S4ECD4ED", 0)
    assert notes.entries["edac.corrected"].state is State.OK


def test_a_captured_machine(make_root: MakeRoot) -> None:
    """Rows of chips with channels, as old drivers show them."""
    if not CAPTURED.is_dir():
        pytest.skip("the captured machines are not beside the checkout")
    files: dict[str, bytes] = {}
    with tarfile.open(CAPTURED / "sysroot.tar.bz2") as archive:
        for member in archive:
            if member.isfile() and "/edac/" in member.name:
                content = archive.extractfile(member)
                assert content is not None
                files[member.name.removeprefix("./")] = content.read()
    told = json.loads((CAPTURED / "expected.json").read_text())["edac"]
    found, _ = read(make_root(files, bare=True))
    (only,) = found.controllers
    assert found.corrected == only.corrected == int(told[f"{FOLDER}/mc0/ce_count"])
    assert found.uncorrected == only.uncorrected == int(told[f"{FOLDER}/mc0/ue_count"])
    assert [module.id for module in only.modules] == [f"csrow{r}/ch{c}" for r in range(3) for c in range(2)]
    for module in only.modules:
        row, channel = module.id.split("/")
        for field, name in ((module.corrected, "ce_count"), (module.uncorrected, "ue_count")):
            text = told.get(f"{FOLDER}/mc0/{row}/{channel}_{name}")
            assert field == (None if text is None else int(text))
    assert only.modules[0].label == "mc0csrow0channel0"


def test_no_driver_is_not_zero_errors(make_root: MakeRoot) -> None:
    found, notes = read(make_root({f"{FOLDER}/power/x": ""}, bare=True))
    assert (found.driver_present, found.corrected, found.uncorrected) == (False, None, None)
    assert "no driver" in (notes.entries["edac.corrected"].reason or "")


def test_a_capture_without_the_folder_says_nothing_of_drivers(make_root: MakeRoot) -> None:
    found, notes = read(make_root())
    assert found == Edac()
    assert notes.entries["edac.driver_present"].state is State.NOT_PRESENT


@pytest.mark.parametrize("text", ["", "-1\n", "many\n", "99999999999999999999\n"])
def test_a_sum_with_an_unknown_part_is_unknown(make_root: MakeRoot, text: str) -> None:
    found, notes = read(make_root(controller(0, "3\n"), controller(1, text), bare=True))
    assert found.corrected is None
    assert "mc1 tells no count" in (notes.entries["edac.corrected"].reason or "")
    assert found.uncorrected == 0


def test_more_controllers_and_modules_than_a_machine_has_are_cut(make_root: MakeRoot) -> None:
    many: dict[str, str | bytes | None] = {f"{FOLDER}/mc{n}/ce_count": "1\n" for n in range(100)}
    many |= {f"{FOLDER}/mc0/dimm{n}/dimm_label": "x" * 500 for n in range(100)}
    found, _ = read(make_root(many, bare=True))
    assert len(found.controllers) == len(found.controllers[0].modules) == 64
    assert len(found.controllers[0].modules[0].label or "") == 120


NAMES = (
    *("mc0/ce_count", "mc0/ue_count", "mc0/mc_name", "mc0/size_mb", "mc0/seconds_since_reset"),
    *("mc0/dimm0/dimm_label", "mc0/dimm0/size", "mc0/dimm0/dimm_mem_type", "mc0/dimm0/dimm_ce_count"),
    *("mc1/csrow0/ch0_dimm_label", "mc1/csrow0/ch0_ce_count", "mc1/csrow0/mem_type", "mc1/ce_count"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({name: st.text(max_size=60) | st.binary(max_size=60) for name in NAMES}))
def test_no_text_in_these_files_is_an_error(make_root: MakeRoot, files: dict[str, str | bytes]) -> None:
    encoded = {
        f"{FOLDER}/{name}": text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        for name, text in files.items()
    }
    found, _ = read(make_root(encoded, bare=True))
    assert documents.structure(documents.plain(found), Edac) == found
