"""ggml's products by ctypes, over weights in memory of ours: for paired comparisons alone.

The library is that of llama-cpp-python (`pip install llama-cpp-python`), or a folder with libggml-base and libggml-cpu.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import time
from pathlib import Path
from typing import Any

TYPES = {"bf16": 30, "mxfp4": 39}
"""ggml.h, enum ggml_type."""
F32 = 0
INSTALL = "pip install llama-cpp-python, or --ggml FOLDER with libggml-base.so and libggml-cpu.so"


class _Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def find(folder: str | None) -> Path | None:
    """The folder of the library; None where there is none."""
    candidates = [Path(folder)] if folder else []
    found = importlib.util.find_spec("llama_cpp")
    if found is not None and found.origin is not None:
        candidates.append(Path(found.origin).parent / "lib")
    return next((one for one in candidates if (one / "libggml-cpu.so").exists()), None)


class Products:
    """Products [tokens, rows] of one format whose weights rotate through `memory`, as ggml has them."""

    def __init__(
        self, folder: Path, kind: str, rows: int, depth: int, address: int, size: int, seed: int
    ) -> None:
        ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
        self._base = ctypes.CDLL(str(folder / "libggml-base.so"))
        for name in ("ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph", "ggml_get_data"):
            getattr(self._base, name).restype = ctypes.c_void_p
        self._base.ggml_init.argtypes = [_Parameters]
        self._base.ggml_free.argtypes = [ctypes.c_void_p]
        self._base.ggml_nbytes.restype = ctypes.c_size_t
        self._rows, self._depth = rows, depth
        self._cpu.ggml_cpu_init()
        ctypes.memset(address, 0, size)  # all of it, so that its pages can be checked
        self._weights_context = self._context(address, size)
        self._weights: list[int] = []
        dice = random.Random(seed)
        each = rows * depth * 17 // 32 if kind == "mxfp4" else rows * depth * 2
        self.bytes_of_item = each
        first = None
        for _ in range((size - (1 << 20)) // (each + 1024)):
            tensor = self._base.ggml_new_tensor_2d(
                ctypes.c_void_p(self._weights_context),
                TYPES[kind],
                ctypes.c_int64(depth),
                ctypes.c_int64(rows),
            )
            where = self._base.ggml_get_data(ctypes.c_void_p(tensor))
            if first is None:
                first = where
                block = _blocks(kind, dice, 1 << 16)
                for at in range(0, each, len(block)):
                    ctypes.memmove(where + at, block, min(len(block), each - at))
            else:
                ctypes.memmove(where, first, each)
            self._weights.append(tensor)
        self._next = 0
        self._work = ctypes.create_string_buffer(256 << 20)

    def _context(self, address: int, size: int) -> int:
        made = self._base.ggml_init(_Parameters(size, address, False))
        if not made:
            raise SystemExit("ggml gave no context")
        return int(made)

    def rate(self, tokens: int, calls: int, cpu: int) -> float:
        """B/s of weights, by this thread on one CPU; the graph is built before the time is taken."""
        base = self._base
        context = self._context(ctypes.addressof(self._work), len(self._work))
        try:
            inputs = base.ggml_new_tensor_2d(
                ctypes.c_void_p(context), F32, ctypes.c_int64(self._depth), ctypes.c_int64(tokens)
            )
            values = (ctypes.c_float * (self._depth * tokens)).from_address(
                base.ggml_get_data(ctypes.c_void_p(inputs))
            )
            values[:] = [random.gauss(0, 1) for _ in range(len(values))]
            graph = base.ggml_new_graph(ctypes.c_void_p(context))
            for _ in range(calls):
                weights = self._weights[self._next % len(self._weights)]
                self._next += 1
                made = base.ggml_mul_mat(
                    ctypes.c_void_p(context), ctypes.c_void_p(weights), ctypes.c_void_p(inputs)
                )
                base.ggml_build_forward_expand(ctypes.c_void_p(graph), ctypes.c_void_p(made))
            allowed = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {cpu})
            begun = time.monotonic()
            self._cpu.ggml_graph_compute_with_ctx(ctypes.c_void_p(context), ctypes.c_void_p(graph), 1)
            seconds = time.monotonic() - begun
            os.sched_setaffinity(0, allowed)
            return calls * self.bytes_of_item / seconds
        finally:
            base.ggml_free(ctypes.c_void_p(context))


def _blocks(kind: str, dice: random.Random, count: int) -> bytes:
    """Random weights as ggml stores them."""
    if kind == "mxfp4":
        return b"".join(bytes([118 + dice.randrange(3)]) + dice.randbytes(16) for _ in range(count))
    made: Any = bytearray()
    for _ in range(count):
        made += (0x3C00 + dice.randrange(0x180) + 0x8000 * dice.randrange(2)).to_bytes(2, "little")
    return bytes(made)
