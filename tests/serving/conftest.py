"""Small checkpoints, and the command of a program that serves them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # the package miniature

PROGRAM = Path(__file__).with_name("misbehaving_program.py")
Command = Callable[..., str]


def write_gguf(path: Path, architecture: str = "kimi-k3", width: int = 256) -> Path:
    """A GGUF with one tensor, which says that it is of an architecture."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("small")
    writer.add_tensor("output.weight", np.ones((16, width), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def command(*arguments: str | Path) -> str:
    """The line that starts the misbehaving program."""
    return shlex.join([sys.executable, str(PROGRAM), *map(str, arguments)])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small one."""
    return write_gguf(tmp_path / "small.gguf")
