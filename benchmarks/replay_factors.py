"""Whether the decode replay moves as the model of it says: fewer threads and small pages make it slower.

    python benchmarks/replay_factors.py [--pairs 15] [--trunk q8_0] [--experts 32]

Both sides decode the same miniature of true widths, in turn. Beside each ratio stands that of the read rates over the
same memory, with the same threads and pages: what streams weights must follow it, and more weakly so where arithmetic
and waiting take a part of a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pairs
from attrs import evolve

from k3gate.probes import _native, decode_plan, gemm_kernels, sharing
from k3gate.probes.decode_kernels import Engine, Setup, Shape

STEPS = 2


class Side:
    """An engine, its tokens/s, and the rate at which its threads read its memory."""

    def __init__(self, setup: Setup, ids: bytes) -> None:
        self._engine = Engine(setup)
        self._ids = ids[: STEPS * (len(ids) // decode_plan.STEPS)]
        self._team = _native.Team([cpu for _, cpus in setup.node_cpus for cpu in cpus])
        self._isa = sharing.choose_isa(None, "read")

    def tokens(self) -> float:
        """Tokens/s, from an empty state."""
        self._engine.reset()
        return STEPS / self._engine.run(self._ids, STEPS).seconds

    def reads(self) -> float:
        """B/s over the largest of its pools."""
        pool = max((one for _, one in self._engine.pools), key=lambda one: one.bytes)
        threads = len(self._team.cpus)
        part = pool.bytes // threads // 4096 * 4096
        region = self._team.run("read", self._isa, [[(pool, i * part, part, 0)] for i in range(threads)], 1)
        return float(threads * part / region.seconds)

    def close(self) -> None:
        """Gives the memory back."""
        self._engine.close()


def compare(name: str, first: Setup, second: Setup, ids: bytes, count: int) -> None:
    """Two lines: of decoding, and of reading."""
    sides = Side(first, ids), Side(second, ids)
    try:
        kinds: tuple[tuple[str, tuple[Callable[[], float], Callable[[], float]], str, float], ...] = (
            ("decode", (sides[0].tokens, sides[1].tokens), "tokens/s", 1.0),
            ("read", (sides[0].reads, sides[1].reads), "GB/s", 1e9),
        )
        for what, (one, other), unit, scale in kinds:
            taken = pairs.measure(one, other, count, f"{name}, {what}", unit, scale)
            print(pairs.direction(f"{name}, {what}", pairs.ratio(taken)), flush=True)
    finally:
        for side in sides:
            side.close()


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=pairs.LEAST_PAIRS)
    parser.add_argument("--trunk", default="q8_0", choices=("bf16", "q8_0", "mxfp4", "gpu"))
    parser.add_argument("--experts", type=int, default=32)
    given = parser.parse_args()
    cpus = tuple(_native.allowed_cpus())
    shape = Shape(
        layers=decode_plan.LAYERS, experts=given.experts, dense_layers=0, vocabulary=decode_plan.HEAD_ROWS
    )
    ids, *_ = decode_plan.routing_of("model", None, shape.layers, shape.experts, 1)
    path = gemm_kernels.choose_path(None)[0]
    whole = Setup(shape, given.trunk, path, ((0, cpus),), placement="single", context=512, bind=False)
    half = evolve(whole, node_cpus=((0, cpus[: max(1, len(cpus) // 2)]),))
    small = evolve(whole, pages="small")
    if half.node_cpus != whole.node_cpus:
        compare("all threads / half of them", whole, half, ids, given.pairs)
    compare("huge pages / 4 KiB pages", whole, small, ids, given.pairs)


if __name__ == "__main__":
    main()
