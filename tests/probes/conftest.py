"""Makes the helpers beside the tests importable (planning, fakes), as tests are no package, and the miniature model of
the benchmarks; and runs on fakes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fakes import SIZE, FakeContext, FakeTeam, case_on_two_cpus, fake_pool

from k3gate.probes import pools
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Metric


@pytest.fixture
def fake(make_inventory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Metric], Any]]:
    """`fake(name, team, **state)`: the metrics of the case run by this team over such pools, and its context.

    smaps shows base pages and nothing in swap; the machine is the synthetic guest, with this `paper` rate.
    """

    def run(
        name: str,
        team: FakeTeam,
        *,
        seconds: float = 1.0,
        size: int = SIZE,
        paper: float | None = None,
        **state: Any,
    ) -> tuple[list[Metric], Any]:
        def allocate(size: int, pages: str, node: int | None) -> pools.FilledPool:
            return attrs.evolve(fake_pool(size, node, pages, **state), filled=[])

        monkeypatch.setattr(pools, "make_team", lambda cpus: team)
        monkeypatch.setattr(pools, "allocate", allocate)
        fields = {"KernelPageSize": 4096, "AnonHugePages": 0, "Swap": 0}
        monkeypatch.setattr(pools, "smaps_fields", lambda address: fields)
        inventory = make_inventory("vm", memory={"theoretical_bytes_per_s": paper})
        context = FakeContext(inventory, seconds)
        return list(MemoryProbe().run(case_on_two_cpus(inventory, name, size), context)), context

    return run
