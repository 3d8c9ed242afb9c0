"""ggml's products by ctypes, over weights in memory of ours: for paired comparisons alone.

The library is that of llama-cpp-python (`pip install llama-cpp-python`), or a folder with libggml-base and libggml-cpu.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TYPES = {"bf16": 30, "mxfp4": 39}
"""ggml.h, enum ggml_type."""
F32, I32 = 0, 26
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


class _Library:
    """ggml, its weights in memory that is not its own."""

    def __init__(self, folder: Path, address: int, size: int) -> None:
        ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"))
        for name in (
            "init",
            "new_tensor_2d",
            "new_tensor_3d",
            "mul_mat",
            "mul_mat_id",
            "new_graph",
            "get_data",
        ):
            getattr(self.base, f"ggml_{name}").restype = ctypes.c_void_p
        self.base.ggml_init.argtypes = [_Parameters]
        self.base.ggml_free.argtypes = [ctypes.c_void_p]
        self._cpu.ggml_cpu_init()
        ctypes.memset(address, 0, size)  # all of it, so that its pages can be checked
        self.weights = self._context(address, size)
        self._work = ctypes.create_string_buffer(256 << 20)

    def _context(self, address: int, size: int) -> int:
        made = self.base.ggml_init(_Parameters(size, address, False))
        if not made:
            raise SystemExit("ggml gave no context")
        return int(made)

    def tensor(self, context: int, kind: int, *sizes: int) -> int:
        make = getattr(self.base, f"ggml_new_tensor_{len(sizes)}d")
        return int(make(ctypes.c_void_p(context), kind, *map(ctypes.c_int64, sizes)))

    def data(self, tensor: int) -> int:
        return int(self.base.ggml_get_data(ctypes.c_void_p(tensor)))

    def inputs(self, context: int, *sizes: int) -> int:
        """Random float32."""
        made, count = self.tensor(context, F32, *sizes), math.prod(sizes)
        values = (ctypes.c_float * count).from_address(self.data(made))
        values[:] = [random.gauss(0, 1) for _ in range(count)]
        return made

    def seconds(self, cpu: int, build: Callable[[int], list[int]]) -> float:
        """Of all that `build` makes in a context, by this thread on one CPU; built before the time is taken."""
        context = self._context(ctypes.addressof(self._work), len(self._work))
        try:
            made = build(context)
            graph = self.base.ggml_new_graph(ctypes.c_void_p(context))
            for one in made:
                self.base.ggml_build_forward_expand(ctypes.c_void_p(graph), ctypes.c_void_p(one))
            allowed = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {cpu})
            begun = time.monotonic()
            self._cpu.ggml_graph_compute_with_ctx(ctypes.c_void_p(context), ctypes.c_void_p(graph), 1)
            seconds = time.monotonic() - begun
            os.sched_setaffinity(0, allowed)
            return seconds
        finally:
            self.base.ggml_free(ctypes.c_void_p(context))


def _fill(kind: str, dice: random.Random, address: int, size: int) -> None:
    block = _blocks(kind, dice, 1 << 16)
    for at in range(0, size, len(block)):
        ctypes.memmove(address + at, block, min(len(block), size - at))


class Products:
    """Products [tokens, rows] of one format whose weights rotate through `memory`, as ggml has them."""

    def __init__(
        self, folder: Path, kind: str, rows: int, depth: int, address: int, size: int, seed: int
    ) -> None:
        self._library, self._depth = _Library(folder, address, size), depth
        each = rows * depth * 17 // 32 if kind == "mxfp4" else rows * depth * 2
        self.bytes_of_item = each
        count = (size - (1 << 20)) // (each + 1024)
        self._weights = [
            self._library.tensor(self._library.weights, TYPES[kind], depth, rows) for _ in range(count)
        ]
        first, *others = map(self._library.data, self._weights)
        _fill(kind, random.Random(seed), first, each)
        for one in others:
            ctypes.memmove(one, first, each)
        self._next = 0

    def rate(self, tokens: int, calls: int, cpu: int) -> float:
        """B/s of weights."""
        library = self._library

        def build(context: int) -> list[int]:
            inputs = library.inputs(context, self._depth, tokens)
            made = []
            for _ in range(calls):
                weights = self._weights[self._next % len(self._weights)]
                self._next += 1
                made.append(library.base.ggml_mul_mat(*map(ctypes.c_void_p, (context, weights, inputs))))
            return made

        return calls * self.bytes_of_item / library.seconds(cpu, build)


class Experts:
    """Experts of MXFP4 by MUL_MAT_ID, as many a token as Kimi K3 has: gate and up, and down; nothing between."""

    USED = 16

    def __init__(self, folder: Path, rows: int, depth: int, address: int, size: int, seed: int) -> None:
        self._library, self._rows, self._depth = _Library(folder, address, size), rows, depth
        each = 3 * rows * depth * 17 // 32
        self.bytes_of_call = self.USED * each
        self._count = (size - (1 << 20)) // each
        weights = self._library.weights
        self._gate_up = self._library.tensor(weights, TYPES["mxfp4"], depth, 2 * rows, self._count)
        self._down = self._library.tensor(weights, TYPES["mxfp4"], rows, depth, self._count)
        for tensor, share in ((self._gate_up, 2), (self._down, 1)):
            _fill("mxfp4", random.Random(seed), self._library.data(tensor), share * each // 3 * self._count)
        self._next = 0

    def rate(self, calls: int, cpu: int) -> float:
        """B/s of weights, of one token a call."""
        library = self._library

        def build(context: int) -> list[int]:
            inputs = library.inputs(context, self._depth, 1, 1)
            hidden = library.inputs(context, self._rows, self.USED, 1)
            made = []
            for _ in range(calls):
                chosen = library.tensor(context, I32, self.USED, 1)
                numbers = (ctypes.c_int32 * self.USED).from_address(library.data(chosen))
                numbers[:] = [(self._next + i) % self._count for i in range(self.USED)]
                self._next += self.USED
                for weights, given in ((self._gate_up, inputs), (self._down, hidden)):
                    made.append(
                        library.base.ggml_mul_mat_id(*map(ctypes.c_void_p, (context, weights, given, chosen)))
                    )
            return made

        return calls * self.bytes_of_call / library.seconds(cpu, build)


def _blocks(kind: str, dice: random.Random, count: int) -> bytes:
    """Random weights as ggml stores them."""
    if kind == "mxfp4":
        return b"".join(bytes([118 + dice.randrange(3)]) + dice.randbytes(16) for _ in range(count))
    made: Any = bytearray()
    for _ in range(count):
        made += (0x3C00 + dice.randrange(0x180) + 0x8000 * dice.randrange(2)).to_bytes(2, "little")
    return bytes(made)
