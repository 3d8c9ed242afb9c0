"""A miniature Kimi K3 that decodes on this machine: its shape, where its weights lie, and what a run tells.

Workers import it: no numpy. Arrays are bytes of little-endian numbers, row-major.

    setup = Setup(Shape(layers=5, experts=64), trunk="q8_0", path="avx512_vnni", node_cpus=((0, (0, 1)),), room=64)
    engine = Engine(setup)                       # random weights; or engine.load(...) for each tensor
    report = engine.run(ids, steps=32)           # ids: int16 [steps, layers, batch, used]
    proof = engine.recheck(seed=1)               # rows of the last step, recomputed from the timed weights
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from k3gate.probes import _native
from k3gate.records import Proof

TRUNKS = ("bf16", "q8_0", "mxfp4", "gpu")
"""Formats of the trunk; the router is BF16. With `gpu` trunk, attention and states are left out: rows of 3584 come in
and go out of each layer, and the chosen experts weigh the same."""
PLACEMENTS = ("owner", "interleaved", "replicated", "single")
PARTS = (
    "attention_projections",
    "attention_core",
    "router",
    "latent",
    "routed",
    "shared",
    "dense",
    "head",
    "mix",
    "synchronisation",
)
"""What a step's time is divided into; `attention_core`: convolutions, states, caches, and the products per head."""
FAULTS = (
    "expert_scale",
    "swapped_experts",
    "decay_sign",
    "output_gate",
    "cache_row",
    "lost_row",
    "router_bias",
)
"""Mistakes that can be planted in a proof."""
MOST_NODES = 32
"""Memory nodes that an engine knows."""
SAMPLED_ROWS = 8
"""Rows of each timed product that are recomputed."""


@frozen
class Shape:
    """What the model is; the defaults are Kimi K3's widths. Products need depths that are multiples of 32."""

    layers: int = 4
    experts: int = 64
    """Held by each layer; ids are below."""
    mla_layers: tuple[int, ...] | None = None
    """By default those with i % 4 == 3."""
    dense_layers: int = 1
    hidden: int = 7168
    width: int = 3584
    """Of the routed experts' inputs and outputs."""
    inner: int = 3072
    router_rows: int = 896
    """Scores that are computed: as many as the whole model has, whatever is held."""
    used: int = 16
    shared: int = 2
    heads: int = 96
    head_dim: int = 128
    query_rank: int = 1536
    cache_rank: int = 512
    rest: int = 64
    decay_rank: int = 128
    convolution: int = 4
    dense_inner: int = 33792
    block_layers: int = 12
    vocabulary: int = 163840
    """Rows of the head, and of the embedding, that are kept."""


@frozen
class Setup:
    """A miniature and how it lies and runs. `path`: an instruction set as `gemm_kernels` names them; each format takes
    the best variant at or below it."""

    shape: Shape
    trunk: str
    path: str
    node_cpus: tuple[tuple[int, tuple[int, ...]], ...]
    """Memory nodes, the first one first, and the CPUs that work for each; of `single`, the first alone works."""
    placement: str = "owner"
    batch: int = 1
    """Sequences that are decoded together: 1 to 32."""
    positions: int = 1
    """How many positions of one sequence `prefill` may take at once."""
    context: int = 0
    """Rows of the cache of each sequence that are filled, with random values, before the first step."""
    room: int = 64
    """Rows of the cache beyond these: steps until `reset`."""
    pages: str = "transparent"
    seed: int = 1
    bind: bool = True
    """Whether memory is bound to its node; the kernel may refuse, see `Engine.bind_errors`."""


@frozen
class Report:
    """What some steps took, and what the last one gave. Dicts are by part, of `PARTS`."""

    seconds: float
    """Last end less first start, over all threads."""
    step_seconds: tuple[float, ...]
    seconds_by_part: dict[str, float]
    """On the critical path: of each phase the time of its slowest thread; the rest is synchronisation."""
    thread_seconds_by_part: dict[str, float]
    """Summed over the threads."""
    read_bytes: dict[str, float]
    """Weights, states and caches that steps read: of weights what the format has, see `gemm_kernels`."""
    written_bytes: dict[str, float]
    flops: dict[str, float]
    crossed_bytes: dict[str, int]
    """Copied from one node's memory to another's, counted by the copying thread: `experts_in`, `experts_out` and
    `activations`."""
    agreement: float | None
    """The share of the forced ids that the router itself would have chosen among the experts that are held; None where
    it did choose."""
    near_ties: float | None
    """The share of choices (token and layer) where the last score chosen and the first left out differ by less than
    what rounding explains."""
    ids: bytes
    """int16 [steps, layers, rows, used]: what was used, forced or chosen; -1 in dense layers."""
    logits: bytes
    """float32 [rows, vocabulary] of the last step; empty with `gpu`."""
    hidden: bytes
    """float32 [rows, hidden] of the last step, what the head's norm takes; with `gpu` [rows, width], the sums."""
    threads: tuple[Any, ...] = field(repr=False)
    """A ThreadReport each: start, end, cpu_before, cpu_after."""


def bytes_needed(setup: Setup) -> dict[int, dict[str, int]]:
    """node -> part -> bytes of what an engine allocates; nothing is allocated.

    Parts: those of `PARTS` that have weights, and `embedding`, `state`, `cache`, `work`. Interleaved weights count in
    even shares.
    """
    return dict(_native.decode_bytes(_arguments(setup)))


def prove(setup: Setup, *, seed: int = 1, fault: str = "") -> Proof:
    """Fresh random weights and inputs at this (reduced) shape, routing forced, some steps against float64.

    With three `positions` and more, a prefill of the same tokens too. `fault`: one of `FAULTS`, to see it fail. Raises
    `ValueError` where the setup cannot have such a fault, or is too large for float64.
    """
    found = _native.decode_prove(_arguments(setup), seed, fault)
    return Proof("model_reference", bool(found["ok"]), str(found["detail"]))


class Engine:
    """A miniature in memory, and its threads. Raises `OSError` or `MemoryError` where there is no memory, `ValueError`
    for a shape that can not be."""

    def __init__(self, setup: Setup, *, fill: bool = True) -> None:
        """`fill`: with random weights; else they are zeros until they are loaded."""
        self.setup = setup
        self._native = _native.DecodeEngine(_arguments(setup), fill)

    def tensors(self) -> dict[str, tuple[str, tuple[int, int]]]:
        """name -> (format in memory, (rows, depth)): what `load` takes. Names are the released ones, without the
        prefix of the language model; a vector has one row."""
        return {name: (kind, (rows, depth)) for name, kind, rows, depth in self._native.tensors()}

    def load(self, name: str, kind: str, data: bytes, scales: bytes = b"") -> None:
        """`kind` as `tensors` lists it: f32, bf16, q8_0 (ggml's blocks) or mxfp4 (the checkpoint's codes, and scales).

        Float32 goes for bf16, where its numbers are such, and the other way round. Keys are multiplied transposed: of a
        kv_b_proj in q8_0 or mxfp4, 32 x 32 numbers must share a scale. Raises `ValueError`."""
        self._native.load(name, kind, data, scales)

    def weights(self, name: str) -> bytes:
        """float32 [rows, depth] of what lies in memory, read by other code than the kernels'."""
        return bytes(self._native.weights(name))

    def run(
        self, ids: bytes | None, steps: int, *, tokens: bytes | None = None, rows: bytes | None = None
    ) -> Report:
        """Decodes `steps` tokens of each sequence. `ids`: int16 [steps, layers, batch, used], or None for the router to
        choose among the experts that are held. `tokens`: int32 [steps, batch], else drawn. With `gpu`, `rows`: float32
        [batch, width], the inputs of every layer, else drawn."""
        return _report(self._native.run(ids or b"", steps, tokens or b"", rows or b""))

    def prefill(self, tokens: bytes, ids: bytes | None) -> Report:
        """The positions of `tokens` (int32) follow one another in the first sequence, their products taken together.

        `ids`: int16 [layers, positions, used]. Logits and hidden are of all positions."""
        return _report(self._native.prefill(ids or b"", tokens))

    def reset(self) -> None:
        """States to zero, caches back to the context."""
        self._native.reset()

    def recheck(self, seed: int, sampled: int = SAMPLED_ROWS) -> Proof:
        """Of the last step: random rows of the products of each kind, and a head's state, computed again in float64
        from the weights that were timed."""
        found = self._native.recheck(seed, sampled)
        return Proof("timed_output", bool(found["ok"]), str(found["detail"]))

    def allocated(self) -> dict[int, dict[str, int]]:
        """As `bytes_needed`, of what was allocated."""
        return dict(self._native.allocated())

    @property
    def pools(self) -> Sequence[tuple[int, Any]]:
        """(node, `_native.Pool`); node -1 is interleaved."""
        return tuple(self._native.pools())

    @property
    def bind_errors(self) -> Mapping[int, int]:
        """node -> errno of binding its pool, or 0; -1: of interleaving."""
        return dict(self._native.bind_errors())

    def nodes(self, samples: int = 256) -> dict[int, tuple[int, list[int]]]:
        """For each pool what move_pages says of evenly spread pages: (errno, nodes)."""
        return {node: pool.query_nodes(samples) for node, pool in self.pools}

    def affinities(self) -> list[list[int]]:
        """CPUs of each thread, as the kernel gives them back."""
        return list(self._native.affinities())

    def variants(self) -> dict[str, tuple[str, str]]:
        """format -> (path, activations) that multiplies it."""
        return {kind: (path, activations) for kind, path, activations in self._native.variants()}

    def close(self) -> None:
        """Gives the memory back; the engine can not be used any more."""
        self._native.close()


def _arguments(setup: Setup) -> dict[str, Any]:
    """Flat, as the bindings take it."""
    shape = setup.shape
    mla = shape.mla_layers
    numbers = {name: getattr(shape, name) for name in Shape.__annotations__ if name != "mla_layers"}
    for name in ("batch", "positions", "context", "room", "seed"):
        numbers[name] = getattr(setup, name)
    return {
        "numbers": numbers,
        "mla_layers": [i for i in range(shape.layers) if i % 4 == 3] if mla is None else list(mla),
        "trunk": setup.trunk,
        "path": setup.path,
        "placement": setup.placement,
        "pages": setup.pages,
        "bind": setup.bind,
        "nodes": [node for node, _ in setup.node_cpus],
        "cpus": [list(cpus) for _, cpus in setup.node_cpus],
    }


def _report(found: Mapping[str, Any]) -> Report:
    return Report(
        seconds=found["seconds"],
        step_seconds=tuple(found["step_seconds"]),
        seconds_by_part=_by_part(found["critical"]),
        thread_seconds_by_part=_by_part(found["thread_seconds"]),
        read_bytes=_by_part(found["read"]),
        written_bytes=_by_part(found["written"]),
        flops=_by_part(found["flops"]),
        crossed_bytes=dict(found["crossed"]),
        agreement=found["agreement"],
        near_ties=found["near_ties"],
        ids=found["ids"],
        logits=found["logits"],
        hidden=found["hidden"],
        threads=tuple(found["threads"]),
    )


def _by_part(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(PARTS, values, strict=True))
