"""ggml's products: found where they are, timed over a pool of ours, and one line where the library is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from fakes import FakeContext

from k3gate.errors import NotPresentError, ProbeError, UsageError
from k3gate.probes import _native, gemm_peers, ggml
from k3gate.probes.gemm import GemmProbe
from k3gate.records import Inventory, NumaNode, Profile, State

try:
    HERE = ggml.find()
except UsageError:
    HERE = None


def test_a_folder_without_the_library_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ggml.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("K3GATE_GGML", raising=False)
    assert ggml.find() is None
    for named in (str(tmp_path), "/nonexistent", "a" * 300):
        monkeypatch.setenv("K3GATE_GGML", named)
        with pytest.raises(UsageError, match=r"K3GATE_GGML=.*name the folder"):
            ggml.find()
    monkeypatch.setenv("K3GATE_GGML", str(tmp_path))
    (tmp_path / "libggml-cpu.so").write_bytes(b"no library")
    assert ggml.find() == tmp_path


def case_of(make_inventory: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Inventory, Any]:
    monkeypatch.setattr(ggml, "find", lambda: folder)
    cpus = tuple(_native.allowed_cpus()[:1])
    inventory = make_inventory("vm", cpu={"online": cpus, "allowed": cpus, "siblings": (), "caches": ()})
    memory = inventory.memory.total_bytes
    node = NumaNode(0, cpus, memory, memory // 2, "dram", {0: 10})
    inventory = attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=(node,), available=False))
    cases = GemmProbe().cases(inventory, Profile("quick", 180.0)).cases
    case = next(one for one in cases if one.name == "peer.ggml.mxfp4")
    pools = [{**spec, "bytes": 64 << 20} for spec in case.parameters["pools"]]
    return inventory, attrs.evolve(case, parameters={**case.parameters, "pools": pools, "tokens": [1, 4]})


def test_what_is_no_library_fails_in_one_line(
    make_inventory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("libggml-base.so", "libggml-cpu.so"):
        (tmp_path / name).write_bytes(b"no library")
    inventory, case = case_of(make_inventory, monkeypatch, tmp_path)
    with pytest.raises(ProbeError, match="ggml cannot be used"):
        list(GemmProbe().run(case, FakeContext(inventory)))
    monkeypatch.setattr(ggml, "find", lambda: None)
    with pytest.raises(NotPresentError, match="is gone"):
        list(gemm_peers.measure(case, FakeContext(inventory)))


@pytest.mark.skipif(HERE is None, reason=f"no ggml here: llama-cpp-python, or {ggml.FOLDER_VARIABLE}")
def test_its_rate_is_of_the_weights_with_each_number_of_tokens(
    make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HERE is not None
    inventory, case = case_of(make_inventory, monkeypatch, HERE)
    metrics = list(GemmProbe().run(case, FakeContext(inventory, 0.2)))
    assert [one.labels["tokens"] for one in metrics] == [1, 4]
    for one in metrics:
        assert one.state in (State.OK, State.UNSTABLE) and len(one.samples) >= 3
        assert str(one.labels["engine"]).startswith("ggml ")
        assert all(sample.value > 0 for sample in one.samples)
    assert os.sched_getaffinity(0) == set(_native.allowed_cpus()), "the thread may go where it might before"
