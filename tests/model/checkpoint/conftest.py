"""Files of checkpoints as the tests need them: small, whole or damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from k3gate.model.checkpoint import safetensors
from k3gate.model.checkpoint.tensors import Header, open_file

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def safetensors_bytes(tensors: Shapes, metadata: Mapping[str, str] | None = None) -> bytes:
    """A whole file whose tensors lie in the given order and hold zeros."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * safetensors.BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    return with_header(json.dumps(header), position)


def with_header(header: str | bytes, data_bytes: int) -> bytes:
    """A file with this text as its header and so many zero bytes behind it."""
    raw = header.encode() if isinstance(header, str) else header
    return len(raw).to_bytes(8, "little") + raw + bytes(data_bytes)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], Header]:
    """Reads the header of a file of these bytes."""

    def reading(raw: bytes) -> Header:
        path = tmp_path / "model.safetensors"
        path.write_bytes(raw)
        with open_file(path) as source:
            return safetensors.read(source)

    return reading
