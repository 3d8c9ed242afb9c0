"""Whether the decode replay moves as the model of it says, with fewer threads and with pages of 4 KiB.

    python benchmarks/replay_factors.py [--pairs 25] [--trunk q8_0] [--experts 32] [--only threads|pages]

The model: of a step, what streams takes so much longer as reads of the same memory do, with the same threads and
pages; what is left, states, attention and norms, takes the same. The share that streams is that of the weights' parts,
as the first side times them; the ratio of reads is measured beside it, in turn. So

    ratio of decoding = 1 / (1 - streaming + streaming / ratio of reads)

and the interval of reads gives one of the model. Between huge and 4 KiB pages the reads are those of two kernels: of
one stream, as hardware fetches ahead within a page alone and products follow few streams, and of eight. A chase through
as much memory shows what a miss of the TLB costs where nothing hides it: that it is slower in 4 KiB pages says that the
working set is beyond the TLB's reach, so that reads and decoding which are not slower do hide it.

Pages are compared on one thread by its processor time, since another process on the CPU would else be all that is seen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import pairs
from attrs import evolve, frozen

from k3gate.probes import _native, chase, decode_plan, gemm_kernels, pools, sharing
from k3gate.probes.decode_kernels import Engine, Setup, Shape
from k3gate.probes.working_sets import HUGE_PAGE

STEPS = 2
SMALL_PAGE = 4096
STILL = frozenset({"mix", "synchronisation", "attention_core"})
"""Parts that do not stream weights: rows of a short cache and states are mostly arithmetic."""
CHASED = 1 << 20
"""Loads of a chase."""
REGION = 1 << 30
"""Bytes that are read or chased through: far beyond the caches, and beyond what a TLB reaches in 4 KiB pages."""
RESOLVED = 0.03
"""Less is no difference, as far as the model goes."""
Clock = Callable[[], float]


class Side:
    """An engine, its tokens/s, and the rates at which its threads read its memory."""

    def __init__(self, setup: Setup, ids: bytes, clock: Clock) -> None:
        self._engine = Engine(setup)
        self._ids = ids[: STEPS * (len(ids) // decode_plan.STEPS)]
        self._team = _native.Team([cpu for _, cpus in setup.node_cpus for cpu in cpus])
        self._clock = clock
        self._pool = max((one for _, one in self._engine.pools), key=lambda one: one.bytes)
        self.streaming: list[float] = []
        """Of each timed run, the part of its time that streams."""
        wanted = SMALL_PAGE if setup.pages == "small" else HUGE_PAGE
        got = pools.page_size([pools.FilledPool(self._pool, None, setup.pages, 0)])[0]
        if got != wanted:
            raise SystemExit(
                f"the engine's memory is of pages of {got} bytes, not {wanted}: nothing is compared"
            )

    def tokens(self) -> float:
        """Tokens/s, from an empty state."""
        self._engine.reset()
        begun = self._clock()
        report = self._engine.run(self._ids, STEPS)
        taken = self._clock() - begun
        whole = sum(report.seconds_by_part.values())
        still = sum(value for part, value in report.seconds_by_part.items() if part in STILL)
        self.streaming.append(1 - still / whole)
        return STEPS / taken

    def reads(self, kernel: str) -> Callable[[], float]:
        """B/s of a kernel over a part of the largest of its pools."""
        threads = len(self._team.cpus)
        part = min(self._pool.bytes, REGION) // threads // SMALL_PAGE * SMALL_PAGE
        regions = [[(self._pool, i * part, part, 0)] for i in range(threads)]
        isa = sharing.choose_isa(None, "read")

        def read() -> float:
            begun = self._clock()
            self._team.run(kernel, isa, regions, 1)
            return float(threads * part / (self._clock() - begun))

        return read

    def close(self) -> None:
        """Gives the memory back."""
        self._engine.close()


class Chaser:
    """Loads/s of a chase through memory in such pages: each waits for the one before."""

    def __init__(self, cpu: int, pages: str, clock: Clock) -> None:
        self._clock = clock
        self._pool = pools.allocate(REGION, pages, None)
        self._chain = chase.build_chain(_native.Team([cpu]), 0, (self._pool.pool, 0, REGION, 1))

    def loads(self) -> float:
        """Loads/s."""
        begun = self._clock()
        self._chain.walk(CHASED)
        return CHASED / (self._clock() - begun)

    def close(self) -> None:
        """Gives the memory back."""
        self._pool.close()


@frozen
class Modelled:
    """What the model says of a ratio, as an interval."""

    low: float
    high: float

    @property
    def direction(self) -> str:
        """In words."""
        if self.low > 1 + RESOLVED:
            return "the first side is faster"
        if self.high < 1 - RESOLVED:
            return "the first side is slower"
        if self.low >= 1 - RESOLVED and self.high <= 1 + RESOLVED:
            return f"no difference beyond {RESOLVED:.0%}"
        return "no direction, since reads do not resolve one"


def model(reads: Sequence[pairs.Ratio], streaming: float, still: Sequence[float] = (1.0,)) -> Modelled:
    """The ratio of decoding from those of reads, of which any may hold; `still`: of what does not stream."""
    found = [
        1 / ((1 - streaming) / other + streaming / ratio)
        for one in reads
        for ratio in (one.low, one.high)
        for other in still
    ]
    return Modelled(min(found), max(found))


def held(name: str, found: pairs.Ratio, said: Modelled) -> str:
    """One line: the model against what was measured."""
    if found.high < said.low or found.low > said.high:
        verdict = "they differ"
    elif found.pairs < pairs.LEAST_PAIRS:
        verdict = f"not resolvable here ({found.pairs} pairs, {pairs.LEAST_PAIRS} are needed)"
    elif found.high / found.ratio - 1 > pairs.RESOLVABLE or 1 - found.low / found.ratio > pairs.RESOLVABLE:
        verdict = "not resolvable here, both intervals have a part in common"
    else:
        verdict = "they agree"
    return (
        f"{name}: the model says {said.low:.3f} to {said.high:.3f} ({said.direction}), measured {found.ratio:.3f} "
        f"({found.low:.3f} to {found.high:.3f}, {found.pairs} pairs): {verdict}"
    )


def taken(
    name: str, one: Callable[[], float], other: Callable[[], float], count: int, unit: str, scale: float
) -> pairs.Ratio:
    """A paired ratio, told as a line of its own."""
    found = pairs.ratio(pairs.measure(one, other, count, name, unit, scale))
    print(pairs.direction(name, found), flush=True)
    return found


def compare(
    name: str,
    setups: tuple[Setup, Setup],
    ids: bytes,
    count: int,
    clock: Clock,
    kernels: Sequence[str],
    still: Sequence[float],
) -> None:
    """Lines of decoding, of reading by each kernel, and of the model."""
    sides = [Side(one, ids, clock) for one in setups]
    try:
        decoded = taken(f"{name}, decode", sides[0].tokens, sides[1].tokens, count, "tokens/s", 1.0)
        reads = [
            taken(f"{name}, {kernel}", *(side.reads(kernel) for side in sides), count, "GB/s", 1e9)
            for kernel in kernels
        ]
        streaming = statistics.median(sides[0].streaming)
        print(f"{name}: {streaming:.0%} of a step's time streams weights", flush=True)
        print(held(f"{name}, decode", decoded, model(reads, streaming, still)), flush=True)
    finally:
        for side in sides:
            side.close()


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--trunk", default="q8_0", choices=("bf16", "q8_0", "mxfp4", "gpu"))
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--only", choices=("threads", "pages"))
    given = parser.parse_args()
    cpus = tuple(_native.allowed_cpus())
    shape = Shape(
        layers=decode_plan.LAYERS, experts=given.experts, dense_layers=0, vocabulary=decode_plan.HEAD_ROWS
    )
    ids, *_ = decode_plan.routing_of("model", None, shape.layers, shape.experts, 1)
    path = gemm_kernels.choose_path(None)[0]
    whole = Setup(shape, given.trunk, path, ((0, cpus),), placement="single", context=512, bind=False)
    half = evolve(whole, node_cpus=((0, cpus[: max(1, len(cpus) // 2)]),))
    if half.node_cpus != whole.node_cpus and given.only != "pages":
        fewer = len(cpus) / len(half.node_cpus[0][1])
        name = "all threads / half of them"
        # What does not stream is shared out among the threads, or the work of one of them.
        compare(name, (whole, half), ids, given.pairs, time.perf_counter, ("read",), (1.0, fewer))
    if given.only == "threads":
        return
    name = "huge pages / 4 KiB pages, one thread"
    one = evolve(whole, node_cpus=((0, cpus[:1]),))
    setups = one, evolve(one, pages="small")
    chasers = [Chaser(cpus[0], setup.pages, time.process_time) for setup in setups]
    taken(f"{name}, chase", chasers[0].loads, chasers[1].loads, given.pairs, "million loads/s", 1e6)
    for chaser in chasers:
        chaser.close()
    kernels = "read_one", "read_streams"
    compare(name, setups, ids, given.pairs, time.process_time, kernels, (1.0,))


if __name__ == "__main__":
    main()
