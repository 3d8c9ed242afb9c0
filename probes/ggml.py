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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from k3gate.errors import ProbeError, UsageError
from k3gate.probes.gemm_shapes import BYTES_OF_WEIGHT

FOLDER_VARIABLE = "K3GATE_GGML"
INSTALL = f"pip install llama-cpp-python, or {FOLDER_VARIABLE}=FOLDER with libggml-base.so and libggml-cpu.so"
TYPES = {"bf16": 30, "mxfp4": 39}
"""ggml.h, enum ggml_type."""
F32, I32 = 0, 26
_WORK_BYTES = 256 << 20
_TENSOR_BYTES = 1024
"""What the description of a tensor takes of its context, at most."""
_NODES = 1000
"""Products in one graph, of which ggml allows 2,048 nodes and leaves."""
_FUNCTIONS = ("init", "new_tensor_2d", "new_tensor_3d", "mul_mat", "mul_mat_id", "new_graph", "get_data")


class _Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def find() -> Path | None:
    """The folder of the library; None where there is none.

    `UsageError` where the variable names a folder without it.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        folder = Path(named)
        try:
            if (folder / "libggml-cpu.so").is_file():
                return folder
            why = "there is no libggml-cpu.so"
        except OSError as error:
            why = error.strerror or str(error)
        raise UsageError(
            f"{FOLDER_VARIABLE}={named[:80]!r}: {why}: name the folder of ggml's libraries, or leave it empty"
        )
    try:
        found = importlib.util.find_spec("llama_cpp")
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "lib"
    try:
        return folder if (folder / "libggml-cpu.so").is_file() else None
    except OSError:
        return None


class Library:
    """ggml, with a context for weights in memory that is not its own: `size` bytes at `address`.

    Raises `ProbeError` where the library cannot be loaded or lacks a function.
    """

    def __init__(self, folder: Path, address: int, size: int) -> None:
        try:
            ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
            self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
            self.base = ctypes.CDLL(str(folder / "libggml-base.so"))
            for name in _FUNCTIONS:
                getattr(self.base, f"ggml_{name}").restype = ctypes.c_void_p
            self.base.ggml_init.argtypes = [_Parameters]
            self.base.ggml_free.argtypes = [ctypes.c_void_p]
            self._cpu.ggml_cpu_init()
        except (OSError, AttributeError) as error:
            raise ProbeError(f"ggml cannot be used: {error}") from error
        ctypes.memset(address, 0, size)  # all of it, so that its pages can be checked
        self.weights = self._context(address, size)
        self._work = ctypes.create_string_buffer(_WORK_BYTES)

    @property
    def version(self) -> str:
        """As the library tells it; "unknown" from those that do not."""
        try:
            told = self.base.ggml_version
        except AttributeError:
            return "unknown"
        told.restype = ctypes.c_char_p
        return (told() or b"unknown").decode(errors="replace")[:40]

    def _context(self, address: int, size: int) -> int:
        made = self.base.ggml_init(_Parameters(size, address, False))
        if not made:
            raise ProbeError("ggml gave no context")
        return int(made)

    def tensor(self, context: int, kind: int, *sizes: int) -> int:
        """A tensor of two or three sizes in a context."""
        make = getattr(self.base, f"ggml_new_tensor_{len(sizes)}d")
        return int(make(ctypes.c_void_p(context), kind, *map(ctypes.c_int64, sizes)))

    def data(self, tensor: int) -> int:
        """Where its values lie."""
        return int(self.base.ggml_get_data(ctypes.c_void_p(tensor)))

    def inputs(self, context: int, depth: int, *sizes: int) -> int:
        """Random float32, the same for each token."""
        made = self.tensor(context, F32, depth, *sizes)
        values = (ctypes.c_float * depth)(*(random.gauss(0, 1) for _ in range(depth)))
        count = 1
        for size in sizes:
            count *= size
        for number in range(count):
            ctypes.memmove(self.data(made) + number * ctypes.sizeof(values), values, ctypes.sizeof(values))
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
            self.base.ggml_free(ctypes.c_void_p(context))


class Products:
    """Products [tokens, rows] of one format whose weights rotate through memory, as ggml has them."""

    def __init__(
        self, folder: Path, kind: str, rows: int, depth: int, address: int, size: int, seed: int
    ) -> None:
        self.library = Library(folder, address, size)
        self._rows, self._depth = rows, depth
        self.bytes_of_item = int(rows * depth * BYTES_OF_WEIGHT[kind])
        count = (size - (1 << 20)) // (self.bytes_of_item + _TENSOR_BYTES)
        if count < 1:
            raise ProbeError("the pool holds not one matrix of ggml")
        self._weights = [
            self.library.tensor(self.library.weights, TYPES[kind], depth, rows) for _ in range(count)
        ]
        first, *others = map(self.library.data, self._weights)
        fill(kind, random.Random(seed), first, self.bytes_of_item)
        for one in others:
            ctypes.memmove(one, first, self.bytes_of_item)
        self._next = 0

    def most_calls(self, tokens: int) -> int:
        """How many products one graph can hold: by its nodes, and by the memory of their outputs."""
        room = _WORK_BYTES - (8 << 20) - 8 * tokens * max(self._rows, self._depth)
        return max(1, min(_NODES, room // (4 * tokens * self._rows + 2 * _TENSOR_BYTES)))

    def seconds(self, tokens: int, calls: int, cpu: int) -> float:
        """What so many products take, of the next weights in turn."""
        library = self.library

        def build(context: int) -> list[int]:
            inputs = library.inputs(context, self._depth, tokens)
            made = []
            for _ in range(calls):
                weights = self._weights[self._next % len(self._weights)]
                self._next += 1
                made.append(library.base.ggml_mul_mat(*map(ctypes.c_void_p, (context, weights, inputs))))
            return made

        return library.seconds(cpu, build)


def fill(kind: str, dice: random.Random, address: int, size: int) -> None:
    """Random weights as ggml stores them."""
    block = _blocks(kind, dice, 1 << 16)
    for at in range(0, size, len(block)):
        ctypes.memmove(address + at, block, min(len(block), size - at))


def _blocks(kind: str, dice: random.Random, count: int) -> bytes:
    if kind == "mxfp4":
        return b"".join(bytes([118 + dice.randrange(3)]) + dice.randbytes(16) for _ in range(count))
    made: Any = bytearray()
    for _ in range(count):
        made += (0x3C00 + dice.randrange(0x180) + 0x8000 * dice.randrange(2)).to_bytes(2, "little")
    return bytes(made)
