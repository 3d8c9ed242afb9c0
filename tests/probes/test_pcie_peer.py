"""nvbandwidth: what its answers give, recorded and spoilt; and the program itself, played by a script."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest
from fakes import FakeContext
from gpus import FIRST, SECOND, card, with_gpus

from k3gate import links
from k3gate.errors import NotPresentError, ProbeError
from k3gate.probes import pcie_peer, pcie_plan
from k3gate.probes.pcie import PcieProbe
from k3gate.probing import profiles
from k3gate.records import Metric

MACHINES = Path(__file__).resolve().parents[3] / "shared" / "machines"


def answer(
    *rows: tuple[str, list[str] | None], listed: list[str] | None = None, error: str | None = None
) -> str:
    """What nvbandwidth 0.8 prints with -j."""
    tests: list[dict[str, Any]] = [
        {"name": name, "status": "Running"}
        if row is None
        else {"name": name, "status": "Passed", "bandwidth_matrix": [row]}
        for name, row in rows
    ]
    whole: dict[str, Any] = {"version": "v0.8", "testcases": tests}
    if listed is not None:
        whole["GPU Device list"] = listed
    if error is not None:
        whole["error"] = error
    return json.dumps({"nvbandwidth": whole}, indent=1)


BOTH = (
    ("host_to_device_memcpy_ce", ["6.25849", "N/A"]),
    ("device_to_host_memcpy_ce", ["6.68574", "6.67752"]),
)
LISTED = ["0: Tesla T4 (00000000:41:00): (host)", "1: Tesla T4 (00000000:81:00): (host)"]


def test_rates_of_each_gpu_and_direction_with_what_is_no_number_left_out() -> None:
    found, addresses, version = pcie_peer.read(answer(*BOTH, listed=LISTED))
    assert {one.direction: one.rates for one in found} == {
        "host_to_device": {0: pytest.approx(6.25849e9)},
        "device_to_host": {0: pytest.approx(6.68574e9), 1: pytest.approx(6.67752e9)},
    }
    assert addresses == {0: FIRST, 1: SECOND} and version == "v0.8"


def test_words_before_the_answer_and_a_test_that_broke_off_cost_the_others_nothing() -> None:
    text = " Invalid value when checking the pattern at 0x762348000000\n" + answer(
        *BOTH, ("device_to_device_memcpy_read_ce", None), error="ASSERT in expression h_errorFlag == 0"
    )
    assert len(pcie_peer.read(text)[0]) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "none that this version understands"),
        (
            "CUDA driver version is insufficient\n",
            "understands: CUDA driver version is insufficient",
        ),
        (
            answer(("host_to_device_memcpy_ce", None), error="out of memory"),
            "measured nothing: out of memory",
        ),
        (answer(), "measured nothing: no test passed"),
        ('{"nvbandwidth": []}', "none that this version understands"),
        (
            '{"nvbandwidth": {"testcases": [{"name": "host_to_device_memcpy_ce", "status": "Passed"}]}}',
            "none",
        ),
    ],
)
def test_an_answer_without_a_figure_is_an_error_with_its_words(text: str, words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        pcie_peer.read(text)


@pytest.mark.skipif(not MACHINES.is_dir(), reason="the captured machines are not beside the checkout")
@pytest.mark.parametrize(
    ("name", "gpus", "first", "link"),
    [
        ("sc-2s-cascadelake-8xt4-metal", 8, (6.25849e9, 6.68574e9), (8.0, 8)),
        ("sc-gcp-8xh100", 8, (27.6659e9, 28.5592e9), (16.0, 16)),
        ("sc-2xb200", 2, (55.6837e9, 56.2743e9), (32.0, 16)),
    ],
)
def test_recorded_answers_of_machines_are_read_and_lie_below_their_links(
    name: str, gpus: int, first: tuple[float, float], link: tuple[float, int]
) -> None:
    """Between the bound of the check and what the lanes carry."""
    found, _, _ = pcie_peer.read((MACHINES / name / "nvbandwidth.json").read_text())
    carried = links.bytes_per_s(*link)
    assert carried is not None
    for told, rate in zip(found, first, strict=True):
        assert len(told.rates) == gpus and told.rates[0] == pytest.approx(rate)
        assert all(0.75 < one / carried < 1.0 for one in told.rates.values())


def run(make_inventory: Any, *gpus: Any) -> list[Metric]:
    machine = with_gpus(make_inventory("vm"), *gpus)
    planned = pcie_plan.plan("pcie", machine, profiles.load("quick"), peer=True)
    case = next(one for one in planned.cases if one.name == "nvbandwidth")
    return list(PcieProbe().run(attrs.evolve(case), FakeContext(machine)))


def play(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvbandwidth"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_it_is_run_on_the_two_copies_and_its_numbers_become_addresses(
    tmp_path: Path, make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told").write_text(answer(*BOTH))
    play(
        tmp_path,
        f'echo "$@ $CUDA_DEVICE_ORDER" >{tmp_path}/asked; cat {tmp_path}/told; exit 1',
        monkeypatch,
    )
    found = run(make_inventory, card(FIRST), card(SECOND))
    told = {(one.labels["device"], one.labels["direction"]): one.samples[0].value for one in found}
    # Without a list of its own its numbers follow the addresses, which is the order that it is asked for.
    assert told == {
        (FIRST, "host_to_device"): pytest.approx(6.25849e9),
        (FIRST, "device_to_host"): pytest.approx(6.68574e9),
        (SECOND, "device_to_host"): pytest.approx(6.67752e9),
    }
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["-j", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "PCI_BUS_ID"]


def test_a_partitioned_gpu_before_it_moves_no_number(
    tmp_path: Path, make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told").write_text(answer(*BOTH))
    play(tmp_path, f"cat {tmp_path}/told", monkeypatch)
    found = run(make_inventory, card(FIRST, partitioned=True), card(SECOND))
    assert {one.labels["device"]: one.samples[0].value for one in found} == {SECOND: pytest.approx(6.67752e9)}


def test_without_it_the_line_gets_it(
    tmp_path: Path, make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotPresentError, match=r"github\.com/NVIDIA/nvbandwidth"):
        run(make_inventory, card(FIRST))


def test_one_that_does_not_end_is_ended(
    tmp_path: Path, make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(tmp_path, "exec sleep 60", monkeypatch)
    monkeypatch.setattr(pcie_peer, "_SECONDS", 0.0)
    with pytest.raises(ProbeError, match="did not end"):
        run(make_inventory, card(FIRST))
