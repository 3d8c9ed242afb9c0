"""The command line as a user meets it: a process, its two streams, its exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen


@frozen
class Result:
    """What came of one command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    def complaint(self) -> str:
        """The one line on stderr of a command that was refused; fails the test where there is more."""
        lines = self.err.splitlines()
        assert self.code == 2, (self.code, self.out, self.err)
        assert len(lines) == 1, self.err
        assert lines[0].startswith("k3gate: ")
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[0]


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """`cli("run", "--probe", "selftest", env={...})`: runs k3gate with a store of this test."""

    def call(*arguments: str | Path, env: dict[str, str] | None = None, timeout: float = 60) -> Result:
        environment = {**os.environ, "K3GATE_STORE": str(tmp_path / "runs.sqlite"), **(env or {})}
        done = subprocess.run(
            [sys.executable, "-m", "k3gate", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def measured_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store with one complete self-test run, and its id: measured once, since every test may have a copy."""
    folder = tmp_path_factory.mktemp("measured")
    store = folder / "runs.sqlite"
    done = subprocess.run(
        [sys.executable, "-m", "k3gate", "run", "--probe", "selftest", "--json", "-q"],
        capture_output=True,
        text=True,
        env={**os.environ, "K3GATE_STORE": str(store), "HOME": str(folder)},
        cwd=folder,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return store, json.loads(done.stdout)["run"]["id"]


@pytest.fixture
def selftest(measured_store: tuple[Path, str], tmp_path: Path) -> str:
    """The id of a complete self-test run in this test's store."""
    store, run_id = measured_store
    shutil.copy(store, tmp_path / "runs.sqlite")
    return run_id
