"""The whole of Kimi K3 as sparse files, written and read once a session: both take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3gate.model.checkpoint import files
from k3gate.model.checkpoint.inspection import Inspection, inspect
from tests.model.checkpoint import kimi_k3


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its 96 shards."""
    folder = tmp_path_factory.mktemp("kimi-k3")
    kimi_k3.write(folder)
    return folder


@pytest.fixture(scope="session")
def inspected(whole: Path) -> Inspection:
    """What two processes find in it."""
    return inspect(files.find(str(whole)), processes=2)
