"""ggml's own products, where its library is installed: what a runtime that uses it has of the same CPU today.

The library is that of llama-cpp-python, or lies in the folder that K3GATE_GGML names (libggml-base.so and
libggml-cpu.so). It is called by its C functions, with one thread on one CPU, over weights in a pool of ours. Workers
import it: no numpy.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import time
from pathlib import Path
from typing import Any

from k3gate.errors import ProbeError

FOLDER_VARIABLE = "K3GATE_GGML"
TYPES = {"bf16": 30, "mxfp4": 39}
"""ggml.h, enum ggml_type."""
BYTES_OF_WEIGHT = {"bf16": 2.0, "mxfp4": 17 / 32}
_F32 = 0
_WORK_BYTES = 64 << 20
_TENSOR_BYTES = 1024
"""What the description of a tensor takes of its context, at most."""


class _Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def find() -> Path | None:
    """The folder of the library; None where there is none."""
    named = os.environ.get(FOLDER_VARIABLE)
    candidates = [Path(named)] if named else []
    try:
        found = importlib.util.find_spec("llama_cpp")
    except (ImportError, ValueError):
        found = None
    if found is not None and found.origin is not None:
        candidates.append(Path(found.origin).parent / "lib")
    return next((one for one in candidates if (one / "libggml-cpu.so").exists()), None)


class Products:
    """Products [tokens, rows] of one format whose weights rotate through the memory at `address`, of `size` bytes.

    Raises `ProbeError` where the library cannot be loaded or lacks a function.
    """

    def __init__(
        self, folder: Path, kind: str, rows: int, depth: int, address: int, size: int, seed: int
    ) -> None:
        try:
            ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
            self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
            self._base = ctypes.CDLL(str(folder / "libggml-base.so"))
            self._declare()
        except (OSError, AttributeError) as error:
            raise ProbeError(f"ggml cannot be used: {error}") from error
        self._rows, self._depth = rows, depth
        self._cpu.ggml_cpu_init()
        ctypes.memset(address, 0, size)  # all of it, so that its pages can be checked
        self.bytes_of_item = int(rows * depth * BYTES_OF_WEIGHT[kind])
        self._weights = self._filled(kind, address, size, seed)
        self._next = 0
        self._work = ctypes.create_string_buffer(_WORK_BYTES)

    @property
    def version(self) -> str:
        """As the library tells it; "unknown" from those that do not."""
        try:
            told = self._base.ggml_version
        except AttributeError:
            return "unknown"
        told.restype = ctypes.c_char_p
        return (told() or b"unknown").decode(errors="replace")[:40]

    def _declare(self) -> None:
        for name in ("ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph", "ggml_get_data"):
            getattr(self._base, name).restype = ctypes.c_void_p
        self._base.ggml_init.argtypes = [_Parameters]
        self._base.ggml_free.argtypes = [ctypes.c_void_p]

    def _filled(self, kind: str, address: int, size: int, seed: int) -> list[int]:
        context = self._context(address, size)
        dice = random.Random(seed)
        block = _blocks(kind, dice, 1 << 16)
        found: list[int] = []
        first = None
        for _ in range((size - (1 << 20)) // (self.bytes_of_item + _TENSOR_BYTES)):
            tensor = self._matrix(context, TYPES[kind], self._rows)
            where = self._base.ggml_get_data(ctypes.c_void_p(tensor))
            if first is None:
                first = where
                for at in range(0, self.bytes_of_item, len(block)):
                    ctypes.memmove(where + at, block, min(len(block), self.bytes_of_item - at))
            else:
                ctypes.memmove(where, first, self.bytes_of_item)
            found.append(tensor)
        if not found:
            raise ProbeError("the pool holds not one matrix of ggml")
        return found

    def _matrix(self, context: int, kind: int, columns: int) -> int:
        made = self._base.ggml_new_tensor_2d(
            ctypes.c_void_p(context), kind, ctypes.c_int64(self._depth), ctypes.c_int64(columns)
        )
        return int(made)

    def _context(self, address: int, size: int) -> int:
        made = self._base.ggml_init(_Parameters(size, address, False))
        if not made:
            raise ProbeError("ggml gave no context")
        return int(made)

    def most_calls(self, tokens: int) -> int:
        """How many products one graph can hold: by its nodes, and by the memory of their outputs."""
        room = _WORK_BYTES - (8 << 20) - 8 * tokens * max(self._rows, self._depth)
        return max(1, min(1000, room // (4 * tokens * self._rows + 2 * _TENSOR_BYTES)))

    def seconds(self, tokens: int, calls: int, cpu: int) -> float:
        """What so many products take, by this thread on one CPU; the graph is built before the time is taken."""
        base = self._base
        context = self._context(ctypes.addressof(self._work), len(self._work))
        try:
            inputs = self._matrix(context, _F32, tokens)
            values = (ctypes.c_float * (self._depth * tokens)).from_address(
                base.ggml_get_data(ctypes.c_void_p(inputs))
            )
            some = (ctypes.c_float * self._depth)(*(random.gauss(0, 1) for _ in range(self._depth)))
            for token in range(tokens):
                ctypes.memmove(
                    ctypes.addressof(values) + token * ctypes.sizeof(some), some, ctypes.sizeof(some)
                )
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
            try:
                begun = time.monotonic()
                status = self._cpu.ggml_graph_compute_with_ctx(
                    ctypes.c_void_p(context), ctypes.c_void_p(graph), 1
                )
                taken = time.monotonic() - begun
            finally:
                os.sched_setaffinity(0, allowed)
            if status != 0:
                raise ProbeError(f"ggml ended with status {status}")
            return taken
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
