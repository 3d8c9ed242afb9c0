"""Systems of the examples and of a few lines, planned without a command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.analysis import planning, system_file
from k3gate.analysis.layout import Demand
from k3gate.analysis.planning import Plan
from k3gate.model.sizes import ModelSizes, kimi_k3

SYSTEMS = Path(__file__).resolve().parents[2] / "examples" / "systems"
ONE = Demand("one", 8192, 1)
MakePlan = Callable[..., Plan]


def plan_of(text: str, sizes: ModelSizes | None = None, read: Any = None, **demand: Any) -> Plan:
    """The plan of a TOML text, for one sequence of 8192 tokens unless told."""
    described = system_file.read(text, "test.toml")
    asked = attrs.evolve(ONE, **demand)
    return planning.plan(described, sizes or described.model or kimi_k3(), asked, read)


@pytest.fixture(scope="session")
def example() -> MakePlan:
    """`example("sp3-24x64", context=1)`: the plan of a shipped system."""

    def make(name: str, **demand: Any) -> Plan:
        return plan_of((SYSTEMS / f"{name}.toml").read_text(), **demand)

    return make


@pytest.fixture(scope="session")
def plan() -> MakePlan:
    """`plan(text, sizes, read, context=1)`."""
    return plan_of
