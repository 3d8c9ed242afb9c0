"""A recorded trace where it is there, and one drawn once that has a shape of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3gate.model.routing.reading import read
from k3gate.model.routing.synthesis import synthesize
from k3gate.model.routing.trace import Trace


@pytest.fixture(scope="session")
def recorded(shared_machines: Path) -> Trace:
    """300 tokens of Kimi-Linear-48B-A3B: 26 layers, 8 of 256 experts."""
    return read(str(shared_machines / "trace-kimi-linear-300-tokens" / "trace_kimi_300.jsonl"))


@pytest.fixture(scope="session")
def drawn() -> Trace:
    """Two sequences of 40 tokens: 3 layers, 4 of 32 experts."""
    return synthesize(40, 3, 32, 4, reuse=0.4, skew=5, seed=3, sequences=2).trace
