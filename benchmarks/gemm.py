"""The products of Kimi K3's experts, one thread: against what memory gives, what the units can do, ggml and oneDNN.

    python benchmarks/gemm.py [--pairs 21] [--megabytes 1250] [--cpu N] [--ggml FOLDER] [--onednn FOLDER] [--only WORD]

All weights lie in huge pages, ours and the peers', and rotate through more memory than the caches hold. Ours are packed
once, before; activations are rounded to INT8 within the time. ggml does so too, per 32 of them where ours is per token
(but of Q8_0).
A variant is proven before, and 64 rows of each reading are recomputed after it: one that fails ends the program.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ggml_peer
import onednn_peer
import pairs

from k3gate.probes import _native, gemm_kernels, pools
from k3gate.probes.sharing import choose_isa
from k3gate.probes.working_sets import HUGE_PAGE

ROWS, DEPTH = 3072, 3584
SECONDS = 0.25
"""Of a reading, about."""


class Bench:
    """One thread's products, peaks and loads, as rates to be paired."""

    def __init__(self, cpu: int, size: int) -> None:
        self.cpu, self.size = cpu, size
        self.team = _native.Team([cpu])
        self.paths = gemm_kernels.choose_path(None)
        self._trials: dict[tuple[str, str, bool], Any] = {}

    def trial(self, variant: gemm_kernels.Variant, expert: bool) -> Any:
        key = (variant.format, variant.path, expert)
        if key not in self._trials:
            self._trials.clear()  # one pool at a time
            made = variant.trial(expert, ROWS, DEPTH, self.size, "transparent", 1)
            self.check_pages(made.pool)
            self._trials[key] = made
        return self._trials[key]

    def check_pages(self, pool: Any) -> None:
        filled = pools.FilledPool(pool, None, "transparent", 0)
        if pools.page_size([filled])[0] != HUGE_PAGE:
            raise SystemExit("the pool is not of huge pages: the comparison would be unfair")

    def product(
        self, variant: gemm_kernels.Variant, tokens: int, expert: bool = False, flops: bool = False
    ) -> Callable[[], float]:
        """B/s of weights, or FLOP/s."""
        proof = (
            gemm_kernels.prove_expert(variant, min(tokens, 16), 512, 256)
            if expert
            else gemm_kernels.prove(variant, tokens)
        )
        if not proof.ok:
            raise SystemExit(f"{variant}: {proof.detail}: no figure is worth anything")
        trial = self.trial(variant, expert)
        work = trial.flops_per_item(tokens) if flops else trial.bytes_per_item
        once = trial.run(self.team, tokens, 2).seconds / 2
        calls = max(2, int(SECONDS / once))

        def read() -> float:
            region = trial.run(self.team, tokens, calls)
            proof = gemm_kernels.recomputed(trial, seed=calls)
            if not proof.ok:
                raise SystemExit(f"{variant}: {proof.detail}: no figure is worth anything")
            return float(calls * work / region.seconds)

        return read

    def loads(self) -> Callable[[], float]:
        """B/s of the read kernel over the very memory that the products read."""
        [trial] = self._trials.values()
        isa = choose_isa(None, "read")
        size = trial.pool.bytes // 4

        def read() -> float:
            region = self.team.run("read", isa, [[(trial.pool, 0, size, 0)]], 1)
            return float(size / region.seconds)

        return read

    def peak(self, path: str) -> Callable[[], float]:
        """FLOP/s of INT8 in registers."""
        [row] = [row for row in _native.gemm_peaks() if (row["path"], row["type"]) == (path, "int8")]
        turns = 1_000_000
        seconds = _native.gemm_peak(self.team, path, "int8", turns).seconds
        turns = max(1, int(turns * 0.1 / seconds))

        def read() -> float:
            region = _native.gemm_peak(self.team, path, "int8", turns)
            return float(turns * row["flops_per_turn"] / region.seconds)

        return read

    def best(self, kind: str, tokens: int, expert: bool = False) -> gemm_kernels.Variant:
        """The variant of a format that is fastest now for so many tokens."""
        rates = {}
        for variant in gemm_kernels.variants(self.paths):
            if variant.format == kind and variant.path not in ("generic", "avx2", "avx512"):
                rate = self.product(variant, tokens, expert)
                rates[variant] = max(rate() for _ in range(3))
        if not rates:
            return next(one for one in gemm_kernels.variants(self.paths) if one.format == kind)
        return max(rates, key=lambda one: rates[one])


def against_memory(bench: Bench, count: int) -> None:
    """Decode of one token: the rate of the weights against that of the loads alone."""
    for kind, expert, goal, name in (
        ("mxfp4", False, 0.92, "MXFP4 product"),
        ("mxfp4", True, 0.88, "MXFP4 expert block"),
        ("q8_0", False, 0.80, "Q8_0 product"),
    ):
        variant = bench.best(kind, 1, expert)
        ours = bench.product(variant, 1, expert)
        taken = pairs.measure(ours, bench.loads(), count, name)
        label = f"{name} of 1 token ({variant.path}) / read rate, 1 thread, huge pages"
        print(pairs.line(label, pairs.ratio(taken), goal), flush=True)


def against_peaks(bench: Bench, count: int) -> None:
    """Many tokens: FLOP/s against what the same units do in registers."""
    for variant in gemm_kernels.variants(bench.paths):
        if variant.format != "mxfp4" or variant.path not in ("amx_int8", "avx512_vnni", "avx_vnni"):
            continue
        for tokens, goal in ((16, 0.65), (64, 0.75), (256, 0.75)):
            ours = bench.product(variant, tokens, flops=True)
            taken = pairs.measure(ours, bench.peak(variant.path), count, variant.path, "GFLOP/s")
            label = f"MXFP4 of {tokens} tokens ({variant.path}) / INT8 peak of {variant.path}, 1 thread"
            print(pairs.line(label, pairs.ratio(taken), goal), flush=True)


def against_ggml(bench: Bench, count: int, folder: str | None) -> None:
    """The same shapes by ggml, whose weights lie in a pool of ours too."""
    found = ggml_peer.find(folder)
    if found is None:
        print(f"ggml: not resolvable here: there is no ggml ({ggml_peer.INSTALL})")
        return
    for kind, cases in (("mxfp4", ((1, 1.8), (4, 4.0), (16, 6.0))), ("bf16", ((1, 0.95),))):
        memory = _native.Pool(bench.size, "transparent")
        peer = ggml_peer.Products(found, kind, ROWS, DEPTH, memory.address, memory.bytes, 1)
        bench.check_pages(memory)
        for tokens, goal in cases:
            variant = bench.best(kind, tokens)
            ours = bench.product(variant, tokens)
            once = peer.bytes_of_item / peer.rate(tokens, 2, bench.cpu)
            calls = max(2, min(1000, int(SECONDS / once)))

            def theirs(peer: Any = peer, tokens: int = tokens, calls: int = calls) -> float:
                return float(peer.rate(tokens, calls, bench.cpu))

            taken = pairs.measure(ours, theirs, count, f"ggml {kind}")
            label = f"{kind.upper()} of {tokens} tokens ({variant.path}) / ggml, 1 thread, huge pages"
            print(pairs.line(label, pairs.ratio(taken), goal), flush=True)
        memory.close()
    experts_against_ggml(bench, count, found)


def experts_against_ggml(bench: Bench, count: int, found: Path) -> None:
    """Whole experts of one token; ggml's without SiTU."""
    memory = _native.Pool(bench.size, "transparent")
    peer = ggml_peer.Experts(found, ROWS, DEPTH, memory.address, memory.bytes, 1)
    bench.check_pages(memory)
    variant = bench.best("mxfp4", 1, expert=True)
    ours = bench.product(variant, 1, expert=True)
    calls = max(1, int(SECONDS * peer.rate(2, bench.cpu) / peer.bytes_of_call))
    taken = pairs.measure(ours, lambda: float(peer.rate(calls, bench.cpu)), count, "ggml experts")
    label = f"MXFP4 expert block of 1 token ({variant.path}) / ggml MUL_MAT_ID, 1 thread, huge pages"
    print(pairs.line(label, pairs.ratio(taken), 1.5), flush=True)
    memory.close()


def against_onednn(bench: Bench, count: int, folder: str | None) -> None:
    """The same shapes by oneDNN, in the layout that it chooses."""
    found = onednn_peer.find(folder)
    if found is None:
        print(f"oneDNN: not resolvable here: there is no oneDNN ({onednn_peer.INSTALL})")
        return
    for kind, cases in (
        ("int8", ((1, 1.5), (16, 1.0), (64, 1.0), (256, 1.0))),
        ("bf16", ((16, 1.0), (64, 1.0), (256, 1.0))),
    ):
        peer = onednn_peer.Products(found, kind, ROWS, DEPTH, bench.size, bench.cpu)
        pages = (
            "huge pages" if peer.huge > 0.95 else f"{100 * peer.huge:.0f} % of oneDNN's weights in huge pages"
        )
        for tokens, goal in cases:
            variant = bench.best(kind, tokens)
            ours = bench.product(variant, tokens)
            peer.rate(tokens, 2)
            calls = max(2, int(SECONDS * peer.rate(tokens, 2) / peer.bytes_of_item))

            def theirs(peer: Any = peer, tokens: int = tokens, calls: int = calls) -> float:
                return float(peer.rate(tokens, calls))

            taken = pairs.measure(ours, theirs, count, f"oneDNN {kind}")
            label = f"{kind.upper()} of {tokens} tokens ({variant.path}) / oneDNN packed, 1 thread, {pages}"
            print(pairs.line(label, pairs.ratio(taken), goal), flush=True)
        peer.close()


def paths_apart(bench: Bench) -> None:
    """What each path does with 256 tokens, once: a lower one that lacks an instruction is slower."""
    for variant in gemm_kernels.variants(bench.paths):
        trial = variant.trial(False, ROWS, DEPTH, 64 << 20, "transparent", 1)
        seconds = min(trial.run(bench.team, 256, 2).seconds / 2 for _ in range(3))
        rate = trial.flops_per_item(256) / seconds / 1e9
        print(
            f"{variant.format.upper()} of 256 tokens ({variant.path}), best of 3: {rate:.0f} GFLOP/s",
            flush=True,
        )


def main() -> None:
    """Print one line per comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--megabytes", type=int, default=1250, help="at least 4 x the last-level caches")
    parser.add_argument("--cpu", type=int, default=_native.allowed_cpus()[0])
    parser.add_argument("--ggml", help="a folder with libggml-base.so and libggml-cpu.so")
    parser.add_argument("--onednn", help="a folder with libdnnl.so and libintelocl.so")
    parser.add_argument("--only", choices=("memory", "peaks", "ggml", "onednn", "paths"))
    arguments = parser.parse_args()
    bench = Bench(arguments.cpu, arguments.megabytes * 10**6 // HUGE_PAGE * HUGE_PAGE)
    print(f"products [{ROWS}, {DEPTH}], CPU {bench.cpu}, paths: {', '.join(bench.paths)}")
    if arguments.only in (None, "memory"):
        against_memory(bench, arguments.pairs)
    if arguments.only in (None, "peaks"):
        against_peaks(bench, arguments.pairs)
    if arguments.only in (None, "ggml"):
        against_ggml(bench, arguments.pairs, arguments.ggml)
    if arguments.only in (None, "onednn"):
        against_onednn(bench, arguments.pairs, arguments.onednn)
    if arguments.only is None:
        print(
            "kt-kernel: not resolvable here: there is no driver for it (pip install --no-deps kt-kernel==0.7.2, and "
            "torch; even one worker of it keeps two threads busy, so it is no peer of one thread on two CPUs)"
        )
    if arguments.only in (None, "paths"):
        paths_apart(bench)


if __name__ == "__main__":
    main()
