"""The cases of the decode replay: one base case, and one factor at a time changed. Pure, from inventory and budget.

A miniature has K3's own widths, three KDA layers to one MLA layer, and as many experts a layer as a batch needs: at
least twice those that the whole model would touch, since a batch over fewer would find each other's weights in a cache.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import attrs
from attrs import frozen

from k3gate.errors import UsageError
from k3gate.model import k3, traffic
from k3gate.probes import decode_kernels
from k3gate.probes import working_sets as sets
from k3gate.probes.bandwidth import LEAST_SAMPLES
from k3gate.probes.decode_kernels import Setup, Shape
from k3gate.probes.layout import READ_RATE, READ_RATE_MOST, WORKER_SECONDS, Layout
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, LeftOut, Profile, Routing, Scalar
from k3gate.units import cpu_list, exact_bytes, listed

LAYERS = 4
"""Three KDA to one MLA, as the whole model has them: 69 to 24."""
HEAD_ROWS = 8192
"""Of the vocabulary's 163,840: the head is a product like others, and of it a part is enough."""
EXPERTS = (256, 128, 64)
"""Held by each layer where nothing asks for more: 16 of 64 are used more evenly than 16 of 896, of 256 hardly."""
BATCHES = (2, 4, 8, 16, 32)
CONTEXTS = (0, 32_768)
"""Around the base case's."""
CONTEXT = 8192
PAGE_KINDS = ("small",)
STEPS = 64
"""Of which the experts are drawn; a replay goes round."""
ROUNDS = 3
MOST_LAYERS_TOLD = 8
FILL_RATE = 0.75e9
"""B/s at which each of at most `FILLERS` threads fills memory with packed weights, taken for planning."""
FILLERS = 16
EXTRA_FILL_SECONDS = 4.0
"""For more experts than the fewest of `EXPERTS` filling takes no longer."""
MOST_FILL_SECONDS = 8.0
"""Of a short profile: where filling takes longer, layers hold no more experts than they must."""
PROOF_SECONDS = 0.8
STEP_FACTOR = 2
"""Bytes of a step by those of the caches, at least."""
TRUNK_SHARES: Mapping[str, float] = MappingProxyType(
    {"bf16": 1.0, "q8_0": 17 / 32, "mxfp4": 17 / 64, "gpu": 0.0}
)
"""Bytes of the trunk's formats by those of BF16."""
FACTORS = ("trunk", "placement", "batch", "context", "routing", "pages", "deep")


@frozen
class _Choice:
    """What a case is made of; the base case has the defaults of a run."""

    trunk: str
    placement: str = "owner"
    batch: int = 1
    context: int = CONTEXT
    layers: int = LAYERS
    experts: int = EXPERTS[-1]
    routing: str = "model"
    pages: str = "transparent"


def plan(
    probe: str,
    inventory: Inventory,
    profile: Profile,
    path: str,
) -> Planned:
    """Cases, the base case first, and what is left out with its sum. `path`: the best instruction set to take."""
    return _Planner(probe, inventory, profile, path).planned()


def least_experts(batch: int) -> int:
    """Experts that a layer must hold for a batch: twice those that the whole model would touch."""
    return math.ceil(2 * float(traffic.distinct_experts(batch)))


class _Planner(Layout):
    def __init__(self, probe: str, inventory: Inventory, profile: Profile, path: str) -> None:
        super().__init__(probe, inventory, profile, None)
        # What a node without memory costs is told by the memory probe.
        self.left_out = []
        self.path = path
        self.long = profile.seconds >= 600
        self.goal = 2.0 if self.long else 1.0
        self.specs, self.readers = self.spread(self.inventory.numa.nodes)

    def planned(self) -> Planned:
        if self.profile.seconds < 60:
            return self._none(
                "the shortest profile measures bandwidth alone; --profile quick replays decoding too"
            )
        if not self.specs:
            return self._none("no CPU that may be used has memory that may be used")
        if len(self.specs) > decode_kernels.MOST_NODES:
            return self._none(
                f"{len(self.specs)} memory nodes have CPUs that may be used, and a miniature lies on at most "
                f"{decode_kernels.MOST_NODES}: allow the CPUs of fewer nodes (taskset, a cpuset) to replay on these"
            )
        base = self._base()
        if base is None:
            return Planned((), tuple(self.left_out))
        found = [self._case("base", "base", base)]
        if self.long:
            found += [
                case for name, factor, one in self._factors(base) if (case := self._try(name, factor, one))
            ]
        else:
            reason = (
                "a short profile replays the base case alone; --profile standard changes one factor at a time"
            )
            self.left_out += [
                LeftOut(self.probe, f"{factor}.*", reason) for factor in FACTORS if factor != "deep"
            ]
            self.left_out.append(LeftOut(self.probe, "deep", reason))
        return Planned(tuple(found), tuple(self.left_out))

    def _none(self, reason: str) -> Planned:
        return Planned((), (LeftOut(self.probe, "*", reason),))

    # --- what is replayed ---

    def _base(self) -> _Choice | None:
        """The first layout of the trunk for which there is room, from the one that is asked for on."""
        asked = self.profile.trunk
        order = [asked] if asked else ["q8_0"]
        order += [one for one in ("q8_0", "mxfp4") if one not in order and asked != "gpu"]
        routing = "trace" if self.profile.routing else "model"
        for trunk in order:
            pages = sets.ordinary_kind(self.inventory)
            choice = _Choice(trunk, routing=routing, pages=pages, placement=self._placement())
            choice = attrs.evolve(choice, layers=self._layers(choice))
            choice = attrs.evolve(choice, experts=self._experts(choice))
            refused = self._refused(choice)
            if refused is None:
                return choice
            name = "base" if trunk == order[-1] else f"trunk.{trunk}"
            self.left_out.append(LeftOut(self.probe, name, refused))
        return None

    def _placement(self) -> str:
        return "owner" if len(self.specs) > 1 else "single"

    def _layers(self, choice: _Choice) -> int:
        """So many that a step reads far more than the caches hold: the next one must not find what this one left."""
        cpus = [cpu for own in self.readers for cpu in own]
        caches = (sets.cache_bytes(self.inventory.cpu, cpus) or 0) + sets.level_2_bytes(
            self.inventory.cpu, cpus
        )
        return LAYERS * max(1, math.ceil(STEP_FACTOR * caches / step_bytes(choice.trunk, LAYERS, 1, 0)))

    def _experts(self, choice: _Choice) -> int:
        """A layer's experts: beyond the caches, enough for the batch, and more where there is room and time; of a trace
        the most with which its reuse and coverage are kept."""
        least = self._least(choice)
        fitting = []
        for number in EXPERTS:
            wanted = sets.round_up(max(least, number), len(self.specs))
            full = attrs.evolve(choice, experts=wanted)
            quick = EXTRA_FILL_SECONDS if number > EXPERTS[-1] else MOST_FILL_SECONDS
            in_time = self._fill_seconds(full) <= quick or (self.long and number == EXPERTS[-1])
            if in_time and self._refused(full) is None:
                fitting.append(wanted)
        fitting.append(least)
        kept = (wanted for wanted in dict.fromkeys(fitting) if self._kept(choice, wanted))
        return next(kept, fitting[0]) if choice.routing == "trace" else fitting[0]

    def _kept(self, choice: _Choice, experts: int) -> bool:
        """Whether a trace has its reuse and coverage still with so many experts; not where it is too short."""
        trace, nodes = self.profile.routing, len(self.specs)
        try:
            told = routing_of("trace", trace, choice.layers, experts, choice.batch, nodes)[1]
        except UsageError:
            return False
        return told["not_kept"] is None

    def _least(self, choice: _Choice) -> int:
        cpus = [cpu for own in self.readers for cpu in own]
        beyond = sets.working_set(self.inventory.cpu, cpus, self.requested)
        least = max(least_experts(choice.batch), math.ceil(beyond / choice.layers / k3.EXPERT_BYTES))
        # Nodes own the same number of experts each.
        return sets.round_up(least, len(self.specs))

    def _factors(self, base: _Choice) -> list[tuple[str, str, _Choice]]:
        """(name, factor, choice) of every other case, most important first."""
        found: list[tuple[str, str, _Choice]] = []

        def change(name: str, factor: str, **changed: Any) -> None:
            one = attrs.evolve(base, **changed)
            if one != base:
                # As many experts as the base case has, for that to be no factor, unless it cannot be.
                kept = base.experts >= self._least(one) and self._refused(one) is None
                found.append((name, factor, one if kept else attrs.evolve(one, experts=self._experts(one))))

        change("deep", "deep", layers=2 * base.layers)
        change("routing.uniform", "routing", routing="uniform")
        change("batch.4", "batch", batch=4)
        if len(self.specs) > 1:
            for placement in ("owner", "interleaved", "replicated", "single"):
                change(f"placement.{placement}", "placement", placement=placement)
        else:
            reason = "one node has memory and CPUs here: all placements are the same"
            self.left_out.append(LeftOut(self.probe, "placement.*", reason))
        for trunk in decode_kernels.TRUNKS:
            change(f"trunk.{trunk}", "trunk", trunk=trunk)
        for context in CONTEXTS:
            change(f"context.{context}", "context", context=context)
        for batch in BATCHES:
            if batch != 4:
                change(f"batch.{batch}", "batch", batch=batch)
        for pages in PAGE_KINDS:
            change(f"pages.{pages}", "pages", pages=pages)
        if base.routing == "trace":
            change("routing.model", "routing", routing="model")
        return found

    def _try(self, name: str, factor: str, choice: _Choice) -> Case | None:
        if any(one.case == name for one in self.left_out):
            return None
        refused = self._refused(choice)
        if refused is None:
            try:
                return self._case(name, factor, choice)
            except UsageError as error:  # a trace of too few tokens for so many sequences
                refused = str(error)
        self.left_out.append(LeftOut(self.probe, name, refused))
        return None

    # --- a case ---

    def _setup(self, choice: _Choice) -> Setup:
        shape = Shape(layers=choice.layers, experts=choice.experts, dense_layers=0, vocabulary=HEAD_ROWS)
        node_cpus = tuple(
            (int(spec["node"]), tuple(cpus)) for spec, cpus in zip(self.specs, self.readers, strict=True)
        )
        return Setup(
            shape,
            choice.trunk,
            self.path,
            node_cpus[:1] if choice.placement == "single" else node_cpus,
            placement=choice.placement,
            batch=choice.batch,
            context=choice.context,
            room=4 * STEPS,
            pages=choice.pages,
            bind=self.inventory.numa.available,
        )

    def _refused(self, choice: _Choice) -> str | None:
        """Why there is no room, with the sum."""
        needed = decode_kernels.bytes_needed(self._setup(choice))
        refused = self.room.refuse({node: sum(parts.values()) for node, parts in needed.items()})
        if refused is None:
            return None
        parts: dict[str, int] = {}
        for own in needed.values():
            for part, size in own.items():
                parts[part] = parts.get(part, 0) + size
        routed = parts.pop("routed", 0)
        return (
            f"{refused}: {choice.layers} layers of {choice.experts} experts are {exact_bytes(routed)}, the trunk in "
            f"{choice.trunk}, states and caches {exact_bytes(sum(parts.values()))}"
        )

    def _case(self, name: str, factor: str, choice: _Choice) -> Case:
        setup = self._setup(choice)
        cpus = [cpu for _, own in setup.node_cpus for cpu in own]
        needed = decode_kernels.bytes_needed(setup)
        total = sum(sum(parts.values()) for parts in needed.values())
        nodes = len(setup.node_cpus)
        ids, told = routing_of(
            choice.routing, self.profile.routing, choice.layers, choice.experts, choice.batch, nodes
        )
        labels: dict[str, Scalar] = {
            "scope": "machine",
            "factor": factor,
            "threads": len(cpus),
            "trunk": choice.trunk,
            "placement": choice.placement,
            "batch": choice.batch,
            "context": choice.context,
            "layers": choice.layers,
            "experts": choice.experts,
            "head_rows": HEAD_ROWS,
            "routing": choice.routing,
            "path": self.path,
            "pages": choice.pages,
            "cache_bytes": sets.cache_bytes(self.inventory.cpu, cpus),
            **told,
        }
        parameters = {
            "setup": attrs.asdict(setup, recurse=True),
            "ids": base64.b64encode(zlib.compress(ids, 9)).decode(),
            "steps": STEPS,
            "reserved_bytes": 0,
            "routed_bytes": sum(parts.get("routed", 0) for parts in needed.values()),
            "level_2_bytes": sets.level_2_bytes(self.inventory.cpu, cpus),
        }
        step = self._step_seconds(choice, len(cpus))
        prepared = WORKER_SECONDS + self._fill_seconds(choice) + PROOF_SECONDS + step
        timed = max(self.goal, LEAST_SAMPLES * step)
        return Case(
            self.probe,
            name,
            self._title(choice, cpus) + _mapping(told),
            name,
            parameters,
            prepared + timed,
            total,
            rounds=ROUNDS,
            setup_seconds=prepared,
            time_limit_s=max(120.0, 10 * (prepared + timed)),
            labels=labels,
        )

    def _title(self, choice: _Choice, cpus: Sequence[int]) -> str:
        who = f"CPU {cpus[0]}" if len(cpus) == 1 else f"{len(cpus)} threads, CPUs {cpu_list(list(cpus))}"
        trunk = "the trunk left to GPUs" if choice.trunk == "gpu" else f"the trunk in {choice.trunk.upper()}"
        many = "" if choice.batch == 1 else f", {choice.batch} sequences together"
        where = {
            "owner": "experts on the node that executes them",
            "interleaved": "weights interleaved over the nodes",
            "replicated": "every expert on every node",
            "single": "one node",
        }[choice.placement]
        return (
            f"Decode: {who}, a miniature of {choice.layers} layers with {choice.experts} experts each, {trunk}, "
            f"{where}, context {choice.context:,}{many}, {ROUTING_WORDS[choice.routing]}"
        )

    def _fill_seconds(self, choice: _Choice) -> float:
        setup = self._setup(choice)
        total = sum(sum(parts.values()) for parts in decode_kernels.bytes_needed(setup).values())
        return total / (FILL_RATE * min(FILLERS, sum(len(own) for _, own in setup.node_cpus)))

    def _step_seconds(self, choice: _Choice, threads: int) -> float:
        """A step's time at a low read rate."""
        size = step_bytes(choice.trunk, choice.layers, choice.batch, choice.context, choice.experts)
        return size / min(READ_RATE * threads, READ_RATE_MOST)


def step_bytes(trunk: str, layers: int, batch: int, context: int, experts: int = k3.EXPERTS) -> float:
    """About what a step of a miniature moves, in bytes."""
    size = TRUNK_SHARES[trunk] * k3.TRUNK_READ_BYTES * layers / k3.LAYERS
    size += float(traffic.distinct_experts(batch, experts)) * layers * k3.EXPERT_BYTES
    if trunk != "gpu":
        held = k3.KV_BYTES_PER_TOKEN * context + 2 * k3.STATE_BYTES
        size += batch * held * layers / k3.LAYERS
    return size


ROUTING_WORDS: Mapping[str, str] = MappingProxyType(
    {"model": "routing by a model", "uniform": "routing uniform", "trace": "routing by the trace"}
)


@lru_cache(maxsize=64)
def routing_of(
    kind: str, trace: Routing | None, layers: int, experts: int, batch: int, nodes: int = 1
) -> tuple[bytes, Mapping[str, Scalar]]:
    """(int16 ids [STEPS, layers, batch, used], what is stated of them as labels).

    Of a trace: `fitted_from` its own shape and layers, and `not_kept` what it has otherwise now, None: nothing.
    `imbalance`: experts that the busiest of `nodes` owners executes in a step, by an even share; of several alone.
    """
    # numpy comes with it; a worker that imports this module for its constants must not pay for that.
    import numpy as np

    from k3gate.model.routing import fitting, ownership, statistics, synthesis
    from k3gate.model.routing import trace as traces

    used = k3.EXPERTS_PER_TOKEN
    told: dict[str, Scalar] = {}
    if kind == "trace":
        if trace is None:
            raise ValueError("no trace is given")
        array = np.frombuffer(trace.ids, "<i2").reshape(trace.tokens, trace.layers, trace.used)
        given = traces.of_array(array, trace.source, trace.experts, trace.starts)
        fitted = fitting.fit(given, layers, experts, used)
        made = fitted.trace
        told = {"trace": trace.digest, "fitted_from": _shape_told(given.shape, fitted.layers)}
        told["not_kept"] = fitted.reason
    elif kind == "uniform":
        made = synthesis.synthesize(STEPS, layers, experts, used, reuse=None, skew=1.0, sequences=batch).trace
    else:
        made = synthesis.synthesize(STEPS, layers, experts, used, sequences=batch).trace
    found = statistics.describe(made)
    told["reuse"] = None if found.reuse is None else round(found.reuse, 3)
    told["skew"] = round(found.skew, 2)
    if nodes > 1:
        told["imbalance"] = round(ownership.imbalance(made.steps(STEPS, batch), experts, nodes).mean, 3)
    return made.to_bytes(STEPS, batch), told


def _shape_told(shape: tuple[int, int, int], layers: Sequence[int]) -> str:
    """What a trace is of, and which of its layers stand for those of the miniature."""
    own, experts, used = shape
    names = listed(str(layer) for layer in layers[:MOST_LAYERS_TOLD])
    more = f" and {len(layers) - MOST_LAYERS_TOLD} more" if len(layers) > MOST_LAYERS_TOLD else ""
    return f"{own} layers with {used} of {experts} experts (layers {names}{more})"


def _mapping(told: Mapping[str, Scalar]) -> str:
    """How a trace became that of the miniature, for the title; empty where there is none."""
    parts = [f"fitted from {told['fitted_from']}"] if told.get("fitted_from") else []
    parts += [str(told["not_kept"])] if told.get("not_kept") else []
    return f" ({'; '.join(parts)})" if parts else ""
