"""The PCIe probe in real workers, through NVIDIA's own bindings, over a fake libcuda that is named so."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpus import FIRST, card, with_gpus

from k3gate import host
from k3gate.probes.pcie import PcieProbe
from k3gate.probing import plan, profiles
from k3gate.probing.events import CaseDone
from k3gate.probing.execute import Executor
from k3gate.records import Metric, State

pytest.importorskip(
    "cuda.bindings.driver", reason="cuda-bindings are not installed: pip install k3gate[cuda]"
)
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
SOURCE = Path(__file__).parent / "fake_libcuda.cpp"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libcuda.so.1."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("fake-cuda")
    line = ["g++", "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]
    subprocess.run([*line, folder / "libcuda.so.1", SOURCE, "-ldl"], check=True)
    return folder


@pytest.fixture
def measured(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[str, CaseDone], dict[str, list[Metric]]]]:
    """`measured(only=..., NAME=...)`: what became of each case of a short profile, and what it gave, under these
    settings of the fake."""

    def run(only: Any = None, **settings: str) -> tuple[dict[str, CaseDone], dict[str, list[Metric]]]:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        for name, value in {"FAKE_LIBCUDA_GPU": FIRST, **settings}.items():
            monkeypatch.setenv(name, value)
        inventory = with_gpus(host.read("/"), card())
        cases = plan.plan([PcieProbe()], inventory, profiles.load("quick"), only=only)
        done: dict[str, CaseDone] = {}
        found: dict[str, list[Metric]] = {}
        with Executor(inventory) as executor:
            for execution in [one for one in cases.executions if one.round == 0]:
                for event in executor.run(execution):
                    if isinstance(event, CaseDone):
                        done[event.case.name] = event
                        found[event.case.name] = list(event.metrics)
        return done, found

    return run


def test_every_case_measures_and_proves_what_it_copied(measured: Any) -> None:
    done, found = measured()
    states = {name: (one.round.state, one.round.reason) for name, one in done.items()}
    states.pop("nvbandwidth", None)  # where it is installed, it finds no GPU
    assert {state for state, _ in states.values()} == {State.OK}, states
    metrics = [one for some in found.values() for one in some]
    wrong = [
        (one.name, one.reason)
        for one in metrics
        # The link is not there to be seen, and what reads memory beside the copies may fit into caches here.
        if one.state is State.FAILED and one.name != "pcie.copy.dram_rate"
    ]
    assert not wrong
    copied = [*found["copy.node0.41:00"], *found["both.node0.41:00"]]
    rates = [one for one in copied if one.name == "pcie.copy.rate"]
    assert len(rates) == 4 and all(one.samples[0].value > 1e8 for one in rates)
    for one in rates:
        proofs = {proof.name: proof for proof in one.proofs}
        assert proofs["checksum"].ok and proofs["gated"].ok
        assert "33554432 copied words" in proofs["checksum"].detail or one.labels["together"]


@pytest.mark.case("PCI-11")
def test_pci_11_halves_are_locked_where_the_driver_refuses_more(measured: Any) -> None:
    _, found = measured(["pcie/copy.*"], FAKE_LIBCUDA_LOCKS=str(100 << 20))
    (pinned,) = [one for one in found["copy.node0.41:00"] if one.name == "pcie.pinned_bytes"]
    assert pinned.samples[0].value == 64 << 20 and "out of memory" in (pinned.reason or "")
    rate = next(one for one in found["copy.node0.41:00"] if one.name == "pcie.copy.rate")
    assert rate.labels["bytes"] == 64 << 20 and rate.state is State.OK


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"FAKE_LIBCUDA_GPU": "0000:99:00.0"}, "CUDA_VISIBLE_DEVICES"),
        ({"FAKE_LIBCUDA_LACKS": "cuEventElapsedTime"}, "pip install 'cuda-bindings<13'"),
    ],
)
def test_what_the_driver_lacks_is_not_present_with_the_cure(
    measured: Any, settings: dict[str, str], words: str
) -> None:
    done, _ = measured(["pcie/copy.*"], **settings)
    (only,) = done.values()
    assert only.round.state is State.NOT_PRESENT and words in (only.round.reason or "")


def test_a_machine_without_the_drivers_library_is_told_what_to_install(measured: Any, tmp_path: Path) -> None:
    done, _ = measured(["pcie/copy.*"], LD_LIBRARY_PATH=str(tmp_path))
    (only,) = done.values()
    assert only.round.state is State.NOT_PRESENT and "install NVIDIA's driver" in (only.round.reason or "")
