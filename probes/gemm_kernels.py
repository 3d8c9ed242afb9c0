"""The variants of products that this machine can run, what they cost, and their proof. Workers import it: no numpy.

for variant in variants(choose_path(None)):
    proof = prove(variant, tokens=16)
    if proof.ok:
        trial = variant.trial(False, rows=3072, depth=3584, pool_bytes=2 << 30, pages="transparent", seed=1)
        region = trial.run(team, 16, calls=8)       # per thread: bytes of weights in `bytes`
        proof = recomputed(trial, seed=2)           # of the output that was timed
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from k3gate.errors import UsageError
from k3gate.probes import _native
from k3gate.probes.sharing import ISA_VARIABLE
from k3gate.records import Proof, State

ROWS_OF_PROOF = 80
"""Five tiles of 16 rows: every row of them is compared."""
SAMPLED_ROWS = 64
"""Rows of a timed output that are recomputed."""
TILE_TOKENS = 16
SPREADS = (2, 9)
"""Of MXFP4 scales within a row, in powers of two: as normal weights have them, and so that tiles are cut."""


@frozen
class Path:
    """An instruction set for products. `error`: errno of the kernel's refusal."""

    name: str
    state: State
    error: int
    base: str
    """The instruction set of the loads that go with it, as `_native.Team.run` takes it."""


@frozen
class Variant:
    """A format of weights on a path. `activations`: bf16; or rounded within what is timed, int8 per token, int8_groups
    per 32 columns of a token."""

    format: str
    path: str
    activations: str

    def trial(
        self, expert: bool, rows: int, depth: int, pool_bytes: int, pages: str, seed: int, node: int = -1
    ) -> Any:
        """A `_native.GemmTrial`: products [rows, depth], or experts depth -> rows x 2 -> depth, in a pool of its own,
        bound to `node` where that is not negative."""
        return _native.GemmTrial(self.format, self.path, expert, rows, depth, pool_bytes, pages, seed, node)


def paths() -> list[Path]:
    """All paths, best first, with what this CPU and its kernel say of them."""
    return [
        Path(row["path"], State(row["presence"]), row["error"], row["base"]) for row in _native.gemm_paths()
    ]


def choose_path(wanted: str | None) -> list[str]:
    """The paths that may be used, best first: those from `wanted` down that are here; by default what K3GATE_ISA says.

    An instruction set of loads (avx512, avx2, ...) stands for the path of that name. `UsageError` where it is not here.
    """
    here = [path.name for path in paths() if path.state is State.OK]
    wanted = wanted or os.environ.get(ISA_VARIABLE) or None
    if wanted is None:
        return here
    if wanted not in here and wanted in _native.supported_isas():
        # Loads of NEON have no products of their own: compilers make NEON of the generic ones.
        wanted = here[-1]
    if wanted not in here:
        raise UsageError(
            f"{ISA_VARIABLE}={wanted[:40]!r}: no product can run so here; there are {', '.join(here)}"
        )
    return here[here.index(wanted) :]


def variants(allowed: list[str]) -> list[Variant]:
    """The variants on these paths, of one format the best first."""
    return [Variant(**row) for row in _native.gemm_variants() if row["path"] in allowed]


def peaks(allowed: list[str]) -> list[dict[str, Any]]:
    """The loops on registers of these paths: path, type, flops_per_turn, flops_per_instruction."""
    return [row for row in _native.gemm_peaks() if row["path"] in allowed]


def fastest_expected(some: Sequence[Variant], kind: str, tokens: int) -> Variant:
    """Of these variants, best first, the one to take for so many tokens: tiles are padded to `TILE_TOKENS` of them."""
    fitting = [one for one in some if one.format == kind]
    return next(
        (one for one in fitting if tokens >= TILE_TOKENS or not one.path.startswith("amx")), fitting[0]
    )


def prove(variant: Variant, tokens: int, depth: int = 3584, seed: int = 1, fault: str = "") -> Proof:
    """Fresh random operands against float64, outputs filled with NaN before; a variant that fails may not be timed."""
    for spread in SPREADS if variant.format == "mxfp4" else SPREADS[:1]:
        found = _native.gemm_prove(
            variant.format, variant.path, tokens, ROWS_OF_PROOF, depth, spread, seed, fault
        )
        if not found.ok:
            break
    return _proof("kernel_reference", found)


def prove_expert(
    variant: Variant, tokens: int, width: int, inner: int, seed: int = 1, fault: str = ""
) -> Proof:
    """The same of a whole expert: gate, up, SiTU, down."""
    found = _native.gemm_prove_expert(variant.format, variant.path, tokens, width, inner, seed, fault)
    return _proof("kernel_reference", found)


def recomputed(trial: Any, seed: int, rows: int = SAMPLED_ROWS) -> Proof:
    """Random rows of each thread's output that was just timed, from the weights that were read."""
    return _proof("timed_output", trial.check(rows, seed))


def _proof(name: str, found: Any) -> Proof:
    if found.drift > 1 and not found.wrong and not found.unwritten:
        detail = (
            f"{found.checked} outputs within their bounds and yet wrong: their errors are {found.drift:.3g} times what "
            "rounding explains"
        )
    elif found.ok:
        detail = (
            f"{found.checked} outputs within {found.worst:.2g} of their bounds; "
            f"{100 * found.error:.2g} % from unrounded activations"
        )
    else:
        detail = (
            f"{found.wrong} of {found.checked} outputs beyond their bounds, the first in row {found.first_row} "
            f"for token {found.first_token}; {found.unwritten} are no numbers"
        )
    return Proof(name, bool(found.ok), detail)
