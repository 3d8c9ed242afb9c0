"""Whole experts by ggml's MUL_MAT_ID, over weights in memory of ours: for paired comparisons alone.

Single products stand in `k3gate.probes.ggml`, as a run times them too.
"""

from __future__ import annotations

import ctypes
import os
import random
from pathlib import Path

from k3gate.probes import ggml

INSTALL = ggml.INSTALL.replace(f"{ggml.FOLDER_VARIABLE}=FOLDER", "--ggml FOLDER")


def find(folder: str | None) -> Path | None:
    """The folder of the library; None where there is none."""
    if folder:
        os.environ[ggml.FOLDER_VARIABLE] = folder
    return ggml.find()


class Products(ggml.Products):
    """Products as rates."""

    def rate(self, tokens: int, calls: int, cpu: int) -> float:
        """B/s of weights."""
        calls = min(calls, self.most_calls(tokens))
        return calls * self.bytes_of_item / self.seconds(tokens, calls, cpu)


class Experts:
    """Experts of MXFP4 by MUL_MAT_ID, as many a token as Kimi K3 has: gate and up, and down; nothing between."""

    USED = 16

    def __init__(self, folder: Path, rows: int, depth: int, address: int, size: int, seed: int) -> None:
        self._library, self._rows, self._depth = ggml.Library(folder, address, size), rows, depth
        each = 3 * rows * depth * 17 // 32
        self.bytes_of_call = self.USED * each
        self._count = (size - (1 << 20)) // each
        weights = self._library.weights
        self._gate_up = self._library.tensor(weights, ggml.TYPES["mxfp4"], depth, 2 * rows, self._count)
        self._down = self._library.tensor(weights, ggml.TYPES["mxfp4"], rows, depth, self._count)
        for tensor, share in ((self._gate_up, 2), (self._down, 1)):
            ggml.fill(
                "mxfp4", random.Random(seed), self._library.data(tensor), share * each // 3 * self._count
            )
        self._next = 0

    def rate(self, calls: int, cpu: int) -> float:
        """B/s of weights, of one token a call."""
        library = self._library

        def build(context: int) -> list[int]:
            inputs = library.inputs(context, self._depth, 1, 1)
            hidden = library.inputs(context, self._rows, self.USED, 1)
            made = []
            for _ in range(calls):
                chosen = library.tensor(context, ggml.I32, self.USED, 1)
                numbers = (ctypes.c_int32 * self.USED).from_address(library.data(chosen))
                numbers[:] = [(self._next + i) % self._count for i in range(self.USED)]
                self._next += self.USED
                for weights, given in ((self._gate_up, inputs), (self._down, hidden)):
                    made.append(
                        library.base.ggml_mul_mat_id(*map(ctypes.c_void_p, (context, weights, given, chosen)))
                    )
            return made

        return calls * self.bytes_of_call / library.seconds(cpu, build)
