"""oneDNN's products by ctypes, in a process of their own: its CPU runtime takes as many threads as it finds CPUs.

The library is that of `pip install onednn intel-opencl-rt`, or a folder with libdnnl.so and libintelocl.so. Weights lie
in the layout that oneDNN chooses, reordered once, and rotate through huge pages; INT8 is u8 x s8 to int32, which
neither rounds nor scales within the time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

INSTALL = "pip install onednn intel-opencl-rt, or --onednn FOLDER with libdnnl.so and libintelocl.so"
HUGE_PAGE = 2 << 20

# dnnl_types.h, dnnl_common_types.h
CPU, IN_ORDER = 1, 1
S32, BF16, F32, S8, U8 = 4, 2, 3, 5, 6
ANY, AB, BA = 1, 3, 14
WEIGHTS_MD = 131
SOURCE, DESTINATION, WEIGHTS = 1, 17, 33
KINDS = {"int8": (U8, S8, S32, 1), "bf16": (BF16, BF16, F32, 2)}
"""Types of activations, weights and outputs; bytes of a weight."""


class _Argument(ctypes.Structure):
    _fields_ = (("what", ctypes.c_int), ("memory", ctypes.c_void_p))


def find(folder: str | None) -> Path | None:
    """The folder of the library; None where there is none."""
    candidates = [Path(folder)] if folder else [Path(sys.prefix) / "lib"]
    return next(
        (one for one in candidates if (one / "libdnnl.so").exists() and (one / "libintelocl.so").exists()),
        None,
    )


class Products:
    """Products [tokens, rows] of one format, by a process on one CPU."""

    def __init__(self, folder: Path, kind: str, rows: int, depth: int, size: int, cpu: int) -> None:
        self.bytes_of_item = rows * depth * KINDS[kind][3]
        environment = os.environ | {
            "OCL_ICD_FILENAMES": str(folder / "libintelocl.so"),  # else the CPU is no device to it
            "LD_LIBRARY_PATH": str(folder),
        }
        arguments = [str(folder), kind, str(rows), str(depth), str(size), str(cpu)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.huge = float(self._answer())
        """What share of the weights lies in huge pages."""

    def rate(self, tokens: int, calls: int) -> float:
        """B/s of weights."""
        assert self._process.stdin is not None
        print(tokens, calls, file=self._process.stdin, flush=True)
        return calls * self.bytes_of_item / float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.communicate("")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"oneDNN's process ended with {self._process.wait()}")
        return answer


class _Library:
    """oneDNN on one CPU of this process."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / "libdnnl.so"))
        self._library.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self._library.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.engine = self.made("dnnl_engine_create", CPU, ctypes.c_size_t(0))
        self.stream = self.made("dnnl_stream_create", self.engine, IN_ORDER)

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """What a function gives by its first argument."""
        found = ctypes.c_void_p()
        status = getattr(self._library, name)(ctypes.byref(found), *arguments)
        if status != 0:
            raise SystemExit(f"{name} of oneDNN answered {status}")
        return found

    def layout(self, rows: int, columns: int, kind: int, tag: int) -> ctypes.c_void_p:
        sizes = (ctypes.c_int64 * 12)(rows, columns)
        return self.made("dnnl_memory_desc_create_with_tag", 2, sizes, kind, tag)

    def size(self, layout: ctypes.c_void_p) -> int:
        return int(self._library.dnnl_memory_desc_get_size(layout))

    def memory(self, layout: ctypes.c_void_p, address: int) -> ctypes.c_void_p:
        return self.made("dnnl_memory_create", layout, self.engine, ctypes.c_void_p(address))

    def product(self, *layouts: ctypes.c_void_p) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """The primitive, and the layout of weights that it wants."""
        source, weights, outputs = layouts
        made = self.made(
            "dnnl_matmul_primitive_desc_create", self.engine, source, weights, None, outputs, None
        )
        wanted = ctypes.c_void_p(self._library.dnnl_primitive_desc_query_md(made, WEIGHTS_MD, 0))
        return self.made("dnnl_primitive_create", made), wanted

    def reorder(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> ctypes.c_void_p:
        made = self.made("dnnl_reorder_primitive_desc_create", first, self.engine, second, self.engine, None)
        return self.made("dnnl_primitive_create", made)

    def execute(self, primitive: ctypes.c_void_p, arguments: Any) -> None:
        status = self._library.dnnl_primitive_execute(primitive, self.stream, len(arguments), arguments)
        if status != 0:
            raise SystemExit(f"oneDNN's product answered {status}")

    def wait(self) -> None:
        if self._library.dnnl_stream_wait(self.stream) != 0:
            raise SystemExit("oneDNN's stream failed")


def _arguments(**memories: ctypes.c_void_p) -> Any:
    places = {"source": SOURCE, "weights": WEIGHTS, "to": DESTINATION}
    return (_Argument * len(memories))(*((places[name], one) for name, one in memories.items()))


def _huge_share(address: int, size: int) -> float:
    """Of a mapping, what the kernel says lies in huge pages."""
    inside, huge = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            first, last = (int(one, 16) for one in words[0].split("-"))
            inside = first < address + size and last > address
        elif inside and words[0] == "AnonHugePages:":
            huge += int(words[1]) << 10
    return min(1.0, huge / size)


class _Worker:
    def __init__(self, folder: Path, kind: str, rows: int, depth: int, size: int) -> None:
        self.library, self.kind, self.rows, self.depth = _Library(folder), kind, rows, depth
        self.source_type, self.weight_type, self.output_type, self.bytes_each = KINDS[kind]
        self._mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.address, self.size = -(-start // HUGE_PAGE) * HUGE_PAGE, size
        ctypes.memset(self.address, 0, size)
        self.dice = random.Random(1)
        self.values = self._random(rows * depth)
        self.next = 0
        self.layouts: dict[int, Any] = {}

    def _random(self, count: int) -> Any:
        if self.kind == "int8":
            return ctypes.create_string_buffer(self.dice.randbytes(count), count)
        block = bytearray()
        for _ in range(1 << 12):
            block += (0x3F00 + self.dice.randrange(0x100) + 0x8000 * self.dice.randrange(2)).to_bytes(
                2, "little"
            )
        return ctypes.create_string_buffer(
            (bytes(block) * (2 * count // len(block) + 1))[: 2 * count], 2 * count
        )

    def _number(self, values: Any, at: int, signed: bool) -> float:
        if self.kind == "int8":
            byte = values.raw[at : at + 1]
            return int.from_bytes(byte, "little", signed=signed)
        bits = int.from_bytes(b"\0\0" + values[2 * at : 2 * at + 2], "little")
        return ctypes.c_float.from_buffer_copy(bits.to_bytes(4, "little")).value

    def prepare(self, tokens: int) -> Any:
        """Weights as oneDNN wants them for so many tokens, all over the memory, and the first product checked."""
        library, rows, depth = self.library, self.rows, self.depth
        source = library.layout(tokens, depth, self.source_type, AB)
        outputs = library.layout(tokens, rows, self.output_type, AB)
        primitive, wanted = library.product(
            source, library.layout(depth, rows, self.weight_type, ANY), outputs
        )
        each = -(-library.size(wanted) // 4096) * 4096
        plain = library.layout(depth, rows, self.weight_type, BA)  # [rows, depth], as a checkpoint has it
        library.execute(
            library.reorder(plain, wanted),
            _arguments(
                source=library.memory(plain, ctypes.addressof(self.values)),
                to=library.memory(wanted, self.address),
            ),
        )
        library.wait()
        places = [self.address + at for at in range(0, self.size - each + 1, each)]
        for place in places[1:]:
            ctypes.memmove(place, self.address, each)
        activations = self._random(tokens * depth)
        results = (ctypes.c_int32 if self.kind == "int8" else ctypes.c_float) * (tokens * rows)
        output = results()
        inputs = library.memory(source, ctypes.addressof(activations))
        to = library.memory(outputs, ctypes.addressof(output))
        calls = [_arguments(source=inputs, weights=library.memory(wanted, one), to=to) for one in places]
        library.execute(primitive, calls[0])
        library.wait()
        for row, token in ((0, 0), (rows - 1, tokens - 1), (rows // 2, tokens // 2)):
            terms = [
                self._number(activations, token * depth + k, False)
                * self._number(self.values, row * depth + k, True)
                for k in range(depth)
            ]
            if abs(output[token * rows + row] - sum(terms)) > 1e-3 * sum(map(abs, terms)) * (
                self.kind == "bf16"
            ):
                raise SystemExit("oneDNN's product is wrong")
        return primitive, calls, (activations, output)

    def seconds(self, tokens: int, calls: int) -> float:
        if tokens not in self.layouts:
            self.layouts = {tokens: self.prepare(tokens)}
        primitive, places, _ = self.layouts[tokens]
        begun = time.monotonic()
        for _ in range(calls):
            self.library.execute(primitive, places[self.next % len(places)])
            self.next += 1
        self.library.wait()
        return time.monotonic() - begun


def main() -> None:
    """Answer lines of tokens and calls with seconds, after the share of huge pages."""
    folder, kind, rows, depth, size, cpu = sys.argv[1:]
    os.sched_setaffinity(0, {int(cpu)})
    worker = _Worker(Path(folder), kind, int(rows), int(depth), int(size))
    print(_huge_share(worker.address, worker.size), flush=True)
    for line in sys.stdin:
        tokens, calls = map(int, line.split())
        print(worker.seconds(tokens, calls), flush=True)


if __name__ == "__main__":
    main()
