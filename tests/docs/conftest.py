"""The store that the pages' examples and the documents of the schemas start from, made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STORED_RUN = "k3gate run --probe selftest --machine box-a"
Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """`shell(line, folder, K3GATE_STORE=...)`; `k3gate` and `python3` are those that run the tests."""
    commands = tmp_path_factory.mktemp("bin")
    for name, module in (("k3gate", "-m k3gate "), ("python3", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        (commands / name).chmod(0o755)

    def call(line: str, folder: Path, *, errors: int = subprocess.STDOUT, **environment: str):
        return subprocess.run(
            ["sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", **environment},
            timeout=60,
        )

    return call


@pytest.fixture(scope="session")
def stored(shell: Shell, tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The store with one run that docs/README.md tells of."""
    assert STORED_RUN in (repository / "docs" / "README.md").read_text()
    folder = tmp_path_factory.mktemp("stored")
    done = shell(STORED_RUN, folder, K3GATE_STORE=str(folder / "runs.sqlite"))
    assert done.returncode == 0, done.stdout
    return folder / "runs.sqlite"
