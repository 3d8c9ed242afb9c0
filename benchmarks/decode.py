"""Tokens a miniature Kimi K3 decodes, one thread, batch 1: against llama.cpp, and its bytes against what memory gives.

    python benchmarks/decode.py [--pairs 15] [--trunk q8_0] [--layers 4] [--experts 32] [--cpu N] [--folder FOLDER]

Widths are the true ones, three layers of KDA to one of MLA and 16 experts a token; layers, experts and rows of the head
are fewer, so that both models lie in memory at once (16 GB with BF16). Both have the same tensors in the same types:
llama.cpp reads a kimi-k3 GGUF, written once into FOLDER. Both route freely, by the same weights and tokens, and before
anything is timed their logits are compared, with the engine's routing forced to llama.cpp's. Both lie in huge pages,
which is checked.

The peer: pip install llama-cpp-python==0.3.36, which builds llama.cpp in some minutes on two cores.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pairs
from miniature import engine as engines
from miniature import kimi_gguf, llama_peer
from miniature.shape import Shape
from miniature.weights import Repeated, Types

from k3gate.probes import _native, gemm_kernels, pools
from k3gate.probes.sharing import choose_isa
from k3gate.probes.working_sets import HUGE_PAGE

GOALS = {"bf16": (1.0, 0.85), "q8_0": (1.2, 0.80)}
"""Against llama.cpp, and of the read rate."""
HUGE_MALLOC = "glibc.malloc.hugetlb=1"
"""Has glibc ask for transparent huge pages, as llama.cpp's memory comes from its malloc."""
FOLDER = Path(__file__).resolve().parent.parent / "build" / "miniatures"
SEED = 1
CHECKED_STEPS = 3
CONTEXT = 64
ALIKE = 0.05
"""NMSE of logits. Both round activations, each in its own way; weights that were confused give 1 and more."""
LARGE = 64 << 20
Clock = Callable[[], float]
HUGE_SHARE = 0.95
MADV_COLLAPSE = 25


class Bench:
    """The engine with one trunk, and tokens to decode. Each reading decodes the same tokens from an empty context."""

    def __init__(self, shape: Shape, types: Types, cpu: int, tokens: int, clock: Clock) -> None:
        self.shape, self.types, self.cpu, self.count, self.clock = shape, types, cpu, tokens, clock
        chance = np.random.default_rng(SEED)
        self.tokens = chance.integers(0, shape.vocabulary, max(tokens, CHECKED_STEPS)).tolist()
        path = gemm_kernels.choose_path(None)[0]
        made = engines.setup(shape, types, path, [cpu], room=len(self.tokens), seed=SEED)
        self.engine = engines.loaded(made, self.weights())
        for _, pool in self.engine.pools:
            if pools.page_size([pools.FilledPool(pool, None, "transparent", 0)])[0] != HUGE_PAGE:
                raise SystemExit("the engine's memory is not of huge pages: the comparison would be unfair")

    def weights(self) -> Repeated:
        """The same each time."""
        return Repeated(self.shape, SEED, self.types)

    def ours(self) -> float:
        """Tokens/s."""
        return self.count / self._run()[0]

    def bytes_read(self) -> float:
        """B/s of weights, states and caches."""
        seconds, read = self._run()
        return read / seconds

    def _run(self) -> tuple[float, float]:
        """Seconds, and bytes read."""
        tokens = np.array(self.tokens[: self.count], "<i4").tobytes()
        self.engine.reset()
        begun = self.clock()
        report = self.engine.run(None, self.count, tokens=tokens)
        return self.clock() - begun, sum(report.read_bytes.values())

    def loads(self) -> Callable[[], float]:
        """B/s of the read kernel over the engine's own memory."""
        team = _native.Team([self.cpu])
        isa = choose_isa(None, "read")
        [(_, pool)] = self.engine.pools
        size = pool.bytes // 4096 * 4096

        def read() -> float:
            begun = self.clock()
            team.run("read", isa, [[(pool, 0, size, 0)]], 1)
            return float(size / (self.clock() - begun))

        return read


class Peer:
    """llama.cpp with the same model."""

    def __init__(self, bench: Bench, file: Path, repack: bool) -> None:
        self._bench = bench
        before = dict(_large_mappings())
        self._model = llama_peer.Peer(file, context=CONTEXT, repack=repack, direct=True)
        for place, _ in _large_mappings():
            if place not in before:
                _collapse(place)
        found = [sizes for place, sizes in _large_mappings() if place not in before]
        total, huge = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
        if total < file.stat().st_size / 2 or huge < HUGE_SHARE * total:
            raise SystemExit(
                f"{huge / 1e9:.2f} of {total / 1e9:.2f} GB of llama.cpp's memory is in huge pages: the "
                f"comparison would be unfair (GLIBC_TUNABLES={HUGE_MALLOC} asks for them)"
            )

    def check(self) -> str:
        """Ends the program where logits do not agree."""
        bench = self._bench
        ours = engines.OneSequence(bench.shape, bench.engine)
        layers = range(bench.shape.dense_layers, bench.shape.layers)
        self._model.begin(observe=True)
        bench.engine.reset()
        found = []
        for token in bench.tokens[:CHECKED_STEPS]:
            theirs = self._model.logits([token])[0]
            forced = self._model.observed.whole("ffn_moe_topk", layers)[-1]
            mine, _ = ours.step(token, forced)
            found.append(float(np.square(mine - theirs).mean() / np.square(theirs).mean()))
        self._model.begin(observe=False)
        told = f"logits of {CHECKED_STEPS} tokens agree with llama.cpp's to NMSE {max(found):.1e}"
        if not max(found) < ALIKE:
            raise SystemExit(f"{told}: these are not the same model")
        return told

    def rate(self) -> float:
        """Tokens/s."""
        bench = self._bench
        self._model.forget()
        with _on(bench.cpu):
            begun = bench.clock()
            for token in bench.tokens[: bench.count]:
                self._model.logits([token])
            return bench.count / (bench.clock() - begun)

    def close(self) -> None:
        """Give its memory back."""
        self._model.close()


def _large_mappings() -> Iterator[tuple[str, tuple[int, int]]]:
    """Of this process: (place, (resident bytes, of them in huge pages)) of each large mapping."""
    place, resident = "", 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+-[0-9a-f]+) ", line):
            place = found[1]
        elif found := re.match(r"(Rss|AnonHugePages):\s+(\d+) kB", line):
            if found[1] == "Rss":
                resident = int(found[2]) * 1024
            elif resident >= LARGE:
                yield place, (resident, int(found[2]) * 1024)


def _forget(file: Path) -> None:
    """Has the page cache let go of a file, since what it holds is not there for huge pages."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _collapse(place: str) -> None:
    """Asks again for huge pages where there were none; kernels before 6.1 do not know how."""
    first, last = (int(edge, 16) for edge in place.split("-"))
    first, last = -(-first // HUGE_PAGE) * HUGE_PAGE, last // HUGE_PAGE * HUGE_PAGE
    libc = ctypes.CDLL(None)
    for at in range(first, last, HUGE_PAGE):
        libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)


@contextmanager
def _on(cpu: int) -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def against_memory(bench: Bench, trunk: str, count: int) -> None:
    """What a token reads, in the time that it takes, against loads alone."""
    taken = pairs.measure(bench.bytes_read, bench.loads(), count, f"read rate, {trunk}")
    label = f"bytes of a token, {trunk} trunk and MXFP4 experts / read rate, 1 thread, batch 1, huge pages"
    print(pairs.line(label, pairs.ratio(taken), GOALS[trunk][1]), flush=True)


def against_peer(bench: Bench, trunk: str, count: int, folder: Path) -> None:
    """Tokens/s of both."""
    if (why := llama_peer.missing()) is not None:
        print(f"llama.cpp: not resolvable here: {why}")
        return
    shape = bench.shape
    name = f"kimi-k3-{trunk}-{shape.layers}-layers-{shape.experts}-experts-{shape.vocabulary}-rows.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    if not file.exists():
        print(f"writing {file}", file=sys.stderr)
        part = file.with_suffix(".part")
        kimi_gguf.write(part, shape, bench.weights(), bench.types)
        part.rename(file)
    _forget(file)
    peer = Peer(bench, file, repack=_faster_repacked(bench, file))
    try:
        print(peer.check(), flush=True)
        taken = pairs.measure(bench.ours, peer.rate, count, f"llama.cpp, {trunk}", "tokens/s", 1)
    finally:
        peer.close()
    label = f"tokens/s, {trunk} trunk and MXFP4 experts / llama.cpp, 1 thread, batch 1, huge pages"
    print(pairs.line(label, pairs.ratio(taken), GOALS[trunk][0]), flush=True)


def _faster_repacked(bench: Bench, file: Path) -> bool:
    """Whether llama.cpp is faster where it stores experts in an order of its own.

    Not tried with Q8_0: where there is AMX it then ends the process, as a product of kimi-k3's attention has inputs
    that its products for AMX do not take; with attn_k_b in BF16 it runs, and its logits are no numbers.
    """
    if bench.types.trunk == "q8_0":
        return False
    best = []
    for repack in (False, True):
        peer = Peer(bench, file, repack)
        best.append(max(peer.rate() for _ in range(3)))
        peer.close()
    print(f"llama.cpp, best of 3: {best[0]:.2f} tokens/s, repacked {best[1]:.2f}", flush=True)
    return best[1] > best[0]


def main() -> None:
    """Print two lines per trunk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="keeps the GGUF files: 12 GB by default")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--trunk", choices=sorted(GOALS), help="by default both, one after the other")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=32, help="held by each layer; 16 of them work")
    parser.add_argument("--vocabulary", type=int, default=8192, help="rows of the head")
    parser.add_argument("--tokens", type=int, default=3, help="of a reading")
    parser.add_argument("--cpu", type=int, default=_native.allowed_cpus()[0])
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count what the process had of the CPU, where other work shares it",
    )
    told = parser.parse_args()
    clock = time.process_time if told.processor_time else time.perf_counter
    if HUGE_MALLOC not in os.environ.get("GLIBC_TUNABLES", ""):
        # It is read when a process starts.
        os.environ["GLIBC_TUNABLES"] = HUGE_MALLOC
        os.execv(sys.executable, [sys.executable, *sys.argv])
    shape = Shape(told.layers, told.experts, told.vocabulary, dense_layers=0)
    for trunk in [told.trunk] if told.trunk else sorted(GOALS):
        bench = Bench(shape, Types(trunk, "mxfp4", "bf16"), told.cpu, told.tokens, clock)
        held = sum(sum(parts.values()) for parts in bench.engine.allocated().values())
        print(
            f"{trunk} trunk: {shape.layers} layers, {shape.experts} experts, {shape.vocabulary} rows of the head: "
            f"{held / 1e9:.2f} GB, CPU {told.cpu}, {told.tokens} tokens a reading"
            + (", processor time" if told.processor_time else ""),
            flush=True,
        )
        try:
            against_memory(bench, trunk, told.pairs)
            against_peer(bench, trunk, told.pairs, told.folder)
        finally:
            bench.engine.close()


if __name__ == "__main__":
    main()
