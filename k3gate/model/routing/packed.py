"""Routing as a worker gets it: a plain file of little-endian int16, [steps, layers, batch, used] in C order.

`Trace.to_bytes(steps, batch)` makes the bytes. Nothing here imports numpy, and the file has no header: the shape
travels with the request, and the size of the file is held against it.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

from k3gate.errors import ProbeError

Shape = tuple[int, int, int, int]
"""(steps, layers, batch, used)."""


def load(path: Path, shape: Shape, experts: int) -> array[int]:
    """All ids of `path` as array("h"); id of (s, l, b, u) at ((s x layers + l) x batch + b) x used + u.

    `ProbeError` where the file has another size than `shape`, or an id is not from 0 to `experts` - 1.
    """
    steps, layers, batch, used = shape
    wanted = 2 * steps * layers * batch * used
    try:
        with path.open("rb") as file:
            raw = file.read(wanted + 1)
    except OSError as error:
        raise ProbeError(f"the routing file {path.name} cannot be read: {error.strerror}") from error
    if len(raw) != wanted or not wanted:
        raise ProbeError(
            f"the routing file {path.name} has not the {wanted:,} bytes of {steps} steps x {layers} layers x "
            f"{batch} sequences x {used} experts"
        )
    ids = array("h")
    ids.frombytes(raw)
    if sys.byteorder == "big":
        ids.byteswap()
    if min(ids) < 0 or max(ids) >= experts:
        raise ProbeError(f"the routing file {path.name} holds an expert that is not from 0 to {experts - 1}")
    return ids
