"""The cases of the GEMM probe: pure, from the inventory, a budget and what this CPU can run.

Every path is a group of its own, so that an instruction which a CPU turns out to lack costs that path alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs

from k3gate.probes import working_sets as sets
from k3gate.probes.bandwidth import LEAST_SAMPLES, SAMPLE_SECONDS
from k3gate.probes.gemm_kernels import Path, Variant, fastest_expected
from k3gate.probes.gemm_shapes import BYTES_OF_WEIGHT, EXPERT, SHAPES, Shape
from k3gate.probes.layout import READ_RATE, WORKER_SECONDS, Layout, Spec, sizes
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, LeftOut, Profile, Scalar, State
from k3gate.units import count, cpu_list

MOST_CALL_SECONDS = 0.3
"""A product that takes a thread longer is left out: plain code would take minutes for many tokens."""
TOKENS = (1, 2, 4, 8, 16, 64, 256)
SHORT_TOKENS = (1, 4, 16, 64, 256)
FEW_TOKENS = (1, 16, 256)
"""For the matrices that tell little beyond those before them."""
ENDS = (1, 256)
"""Where a kernel is bound by memory, and where by arithmetic."""
PACKED = 1.05
"""Of packed weights over those of the format, at most."""
FILL_RATE = 0.5e9
"""B/s at which each of at most `FILLERS` threads fills a pool with packed weights, taken for planning."""
FILLERS = 16
FLOP_RATES: Mapping[str, float] = MappingProxyType(
    {
        "amx_int8": 3e11,
        "amx_bf16": 1.5e11,
        "avx512_vnni": 1e11,
        "avx512_bf16": 5e10,
        "avx512": 3e10,
        "avx_vnni": 5e10,
        "avx2": 2e10,
        "generic": 1.5e9,
    }
)
"""FLOP/s of a core, taken for planning, on the low side of what was seen."""
PEER_FLOP_RATE = 2e10
"""The same of ggml, whose products of MXFP4 reached 4e10 on a core that multiplies by vectors."""
ROUNDS = 3
LEADING = ("expert_up", "attention_in")
SHORT_SHAPES = (("expert_up", "mxfp4"), ("attention_in", "bf16"))
PROOF_SECONDS = 0.1
CHECK_SECONDS = 4e-8
"""Of recomputing what was timed, for each thread, token and column of depth, in each of the rows that are taken."""


def plan(
    probe: str,
    inventory: Inventory,
    profile: Profile,
    paths: Sequence[Path],
    variants: Sequence[Variant],
    peaks: Sequence[Mapping[str, str]],
    peer: bool = False,
) -> Planned:
    """Cases, most important first, and what is left out.

    `paths`: all of this build, with what the CPU and its kernel say; `variants`, `peaks`: those that may be used;
    `peer`: whether ggml's library is there.
    """
    return _Planner(probe, inventory, profile, paths, variants, peaks, peer).planned()


class _Planner(Layout):
    def __init__(
        self,
        probe: str,
        inventory: Inventory,
        profile: Profile,
        paths: Sequence[Path],
        variants: Sequence[Variant],
        peaks: Sequence[Mapping[str, str]],
        peer: bool,
    ) -> None:
        super().__init__(probe, inventory, profile, None)
        # What a node without memory costs is told by the memory probe.
        self.left_out = []
        self.paths, self.variants, self.peaks, self.peer = paths, variants, peaks, peer
        self.long = profile.seconds >= 600
        self.goal = 0.3 if self.long else 0.15

    def planned(self) -> Planned:
        if self.profile.seconds < 60:
            reason = "the shortest profile measures bandwidth alone; --profile quick multiplies too"
            return Planned((), (LeftOut(self.probe, "*", reason),))
        specs, readers = self.spread(self.inventory.numa.nodes)
        if not specs:
            reason = "no CPU that may be used has memory that may be used"
            return Planned((), (LeftOut(self.probe, "*", reason),))
        tokens = TOKENS if self.long else SHORT_TOKENS
        core = [specs[0] | {"bytes": self._core_bytes(readers[0][0]), "touch": readers[0][:1]}]
        found = self._expert("machine", specs, readers, tokens)
        found += self._peaks(readers)
        for shape in SHAPES:
            for kind in shape.formats:
                if self.long or (shape.key, kind) in SHORT_SHAPES:
                    some = tokens if shape.key in LEADING else FEW_TOKENS
                    found += self._product("machine", shape, kind, specs, readers, some)
        if self.peer:
            found += self._beside(core, readers[0][0])
        if self.long:
            found += self._expert("core", core, [readers[0][:1]], tokens)
            found += self._by_path(core, readers[0][0])
        else:
            reason = "a short profile multiplies two of K3's matrices; --profile standard takes all of them"
            self.left_out.append(LeftOut(self.probe, "product.*", reason))
            reason = "a short profile takes the best instruction set; --profile standard takes each"
            self.left_out.append(LeftOut(self.probe, "isa.*", reason))
        return Planned(tuple(self._timed([*self.fitting(found), *self._absent()])), tuple(self.left_out))

    # --- cases ---

    def _core_bytes(self, cpu: int) -> int:
        return sets.working_set(self.inventory.cpu, [cpu], self.requested)

    def _expert(
        self, scope: str, specs: Sequence[Spec], readers: Sequence[Sequence[int]], tokens: Sequence[int]
    ) -> list[Case]:
        """The whole block of routed experts: gate, up, SiTU, down."""
        return self._cases(f"expert.{scope}", scope, EXPERT, "mxfp4", specs, readers, tokens)

    def _product(
        self,
        scope: str,
        shape: Shape,
        kind: str,
        specs: Sequence[Spec],
        readers: Sequence[Sequence[int]],
        tokens: Sequence[int],
    ) -> list[Case]:
        name = f"product.{shape.key}.{kind}.{scope}"
        return self._cases(name, scope, shape, kind, specs, readers, tokens)

    def _cases(
        self,
        name: str,
        scope: str,
        shape: Shape,
        kind: str,
        specs: Sequence[Spec],
        readers: Sequence[Sequence[int]],
        tokens: Sequence[int],
    ) -> list[Case]:
        """A case for each path that is taken, the one of the fewest tokens by the bare name."""
        by_path: dict[str, list[int]] = {}
        for count_, path in self._paths(kind, tokens).items():
            by_path.setdefault(path, []).append(count_)
        found = []
        for number, (path, some) in enumerate(by_path.items()):
            full = f"{name}.{path}" if number else name
            kept = self._affordable(full, shape, kind, path, some)
            if kept:
                found.append(self._case(full, full, scope, shape, kind, specs, readers, path, kept))
        return found

    def _affordable(self, name: str, shape: Shape, kind: str, path: str, tokens: Sequence[int]) -> list[int]:
        """Of these numbers of tokens those that a thread multiplies in a fraction of a second, and one in any case."""
        weights = shape.item_weights(kind)
        kept = [
            each
            for each in tokens
            if each == 1 or call_seconds(weights, kind, FLOP_RATES[path], each) <= MOST_CALL_SECONDS
        ]
        dropped = [each for each in tokens if each not in kept]
        if dropped:
            some = ", ".join(map(str, dropped))
            reason = f"with {some} tokens a call by {path} takes a thread more than {MOST_CALL_SECONDS:g} s"
            self.left_out.append(LeftOut(self.probe, f"{name} with {some} tokens", reason))
        return kept

    def _beside(self, core: Sequence[Spec], cpu: int) -> list[Case]:
        """ggml's product of a matrix by one thread, and ours beside it."""
        found = []
        for kind in ("mxfp4", "bf16") if self.long else ("mxfp4",):
            ours = self._product("core", SHAPES[0], kind, core, [[cpu]], FEW_TOKENS)
            parameters = {**ours[0].parameters, "kind": "peer", "tokens": list(FEW_TOKENS)}
            title = f"CPU {cpu} multiplies {SHAPES[0].title}, {kind.upper()}, by ggml's own code"
            name = f"peer.ggml.{kind}"
            theirs = attrs.evolve(ours[0], name=name, group=name, title=title, parameters=parameters)
            found += [*ours, theirs]
        return found

    def _paths(self, kind: str, tokens: Sequence[int]) -> dict[int, str]:
        return {each: fastest_expected(self.variants, kind, each).path for each in tokens}

    def _by_path(self, specs: Sequence[Spec], cpu: int) -> list[Case]:
        """The same product by each instruction set, one core, at both ends."""
        shape = SHAPES[0]
        found = []
        for variant in self.variants:
            kind, path = variant.format, variant.path
            # Formats of the decode replay alone are timed there.
            if kind not in BYTES_OF_WEIGHT or (path == "generic" and kind != "mxfp4"):
                continue
            name = f"isa.{kind}.{path}"
            kept = self._affordable(name, shape, kind, path, ENDS)
            found.append(self._case(name, f"{path}.{kind}", "isa", shape, kind, specs, [[cpu]], path, kept))
        return found

    def _case(
        self,
        name: str,
        group: str,
        scope: str,
        shape: Shape,
        kind: str,
        specs: Sequence[Spec],
        readers: Sequence[Sequence[int]],
        path: str,
        tokens: Sequence[int],
    ) -> Case:
        cpus = [cpu for each in readers for cpu in each]
        rows = shape.item_rows(kind)
        item = shape.item_weights(kind) * BYTES_OF_WEIGHT[kind]
        specs = [self._holding(spec, len(own) * item) for spec, own in zip(specs, readers, strict=True)]
        total, reserved = sizes(specs)
        labels = self._labels(scope, specs, cpus) | {
            "pool_bytes": total,
            "cache_bytes": sets.cache_bytes(self.inventory.cpu, cpus),
            "shape": shape.key,
            "rows": shape.rows,
            "depth": shape.depth,
            "format": kind,
        }
        parameters = {
            "kind": "expert" if shape is EXPERT else "product",
            "rows": rows,
            "tokens": list(tokens),
            "path": path,
            "pools": [dict(spec) for spec in specs],
            "readers": [list(each) for each in readers],
            "reserved_bytes": reserved,
            "level_2_bytes": sets.level_2_bytes(self.inventory.cpu, cpus),
        }
        who = f"CPU {cpus[0]}" if len(cpus) == 1 else f"{len(cpus)} threads, CPUs {cpu_list(cpus)}"
        verb = "multiplies" if len(cpus) == 1 else "multiply"
        some = ", ".join(map(str, tokens))
        title = f"{who} {verb} {shape.title}, {kind.upper()}, with {some} tokens by {path}"
        return Case(self.probe, name, title, group, parameters, 0.0, total - reserved, labels=labels)

    def _holding(self, spec: Spec, items: float) -> Spec:
        """A pool that holds these bytes of weights packed: one item for each thread, as two that read the same one at
        once would share it in a cache."""
        least = int(items * PACKED) + sets.HUGE_PAGE
        if spec["bytes"] >= least:
            return spec
        node = next(one for one in self.targets if one.id == spec["node"])
        return self.spec(node, least, spec["touch"])

    def _labels(self, scope: str, specs: Sequence[Spec], cpus: Sequence[int]) -> dict[str, Scalar]:
        alone = scope != "machine"
        node = specs[0]["node"] if specs else None
        return {
            "scope": scope,
            "cpu_node": node if alone else None,
            "memory_node": node if alone else None,
            "placement": "local" if alone else "spread",
            "threads": len(cpus),
        }

    def _peaks(self, readers: Sequence[Sequence[int]]) -> list[Case]:
        """What the units of a core, and of all cores, do on registers: the roof of arithmetic.

        A short profile asks all cores at once only for the paths that its products take.
        """
        everyone = [cpu for each in readers for cpu in each]
        node = self._node_of(everyone[0])
        taken = {path for kind in BYTES_OF_WEIGHT for path in self._paths(kind, SHORT_TOKENS).values()}
        found = []
        for peak in self.peaks:
            path, kind = peak["path"], peak["type"]
            whole = [("machine", everyone)] if self.long or path in taken else []
            for scope, cpus in (*whole, ("core", everyone[:1])):
                labels: dict[str, Scalar] = {
                    "scope": scope,
                    "cpu_node": node if scope == "core" else None,
                    "threads": len(cpus),
                    "path": path,
                    "type": kind,
                }
                who = "one core" if scope == "core" else count(len(cpus), "core")
                title = f"Arithmetic of {path} on {kind}, {who}, registers alone"
                parameters = {
                    "kind": "peak",
                    "path": path,
                    "type": kind,
                    "pools": [],
                    "readers": [list(cpus)],
                }
                found.append(
                    Case(
                        self.probe,
                        f"peak.{scope}.{path}.{kind}",
                        title,
                        path,
                        parameters,
                        0.0,
                        0,
                        labels=labels,
                    )
                )
        return found

    def _node_of(self, cpu: int) -> int | None:
        return next((node.id for node in self.inventory.numa.nodes if cpu in node.cpus), None)

    def _absent(self) -> list[Case]:
        """What this CPU or its kernel has not got, so that a run says so."""
        return [
            Case(
                self.probe,
                f"peak.{path.name}",
                f"Arithmetic of {path.name}",
                path.name,
                {"kind": "absent", "path": path.name, "pools": [], "readers": []},
                0.0,
                0,
                labels={"path": path.name},
            )
            for path in self.paths
            if path.state is not State.OK
        ]

    # --- time ---

    def _timed(self, cases: Sequence[Case]) -> list[Case]:
        """Cases with their seconds; each that multiplies is a group of its own, with its own pool."""
        found = []
        for case in cases:
            setup, timed = self._seconds(case)
            rounds = 1 if case.parameters["kind"] == "absent" else ROUNDS
            found.append(_with_seconds(case, setup, timed, rounds))
        return found

    def _seconds(self, case: Case) -> tuple[float, float]:
        """(set-up, timed) of a round."""
        kind, parameters = case.parameters["kind"], case.parameters
        if kind == "absent":
            return 0.05, 0.0
        if kind == "peak":
            return 0.05, max(0.1, self.goal)
        fillers = min(FILLERS, len(self.cpus))
        setup = WORKER_SECONDS + max(spec["bytes"] for spec in parameters["pools"]) / (FILL_RATE * fillers)
        threads = int(case.labels["threads"] or 1)
        depth, matrices = int(case.labels["depth"] or 1), EXPERT.matrices if kind == "expert" else 1
        timed = 0.0
        weights = matrices * parameters["rows"] * depth
        rate = PEER_FLOP_RATE if kind == "peer" else FLOP_RATES[parameters["path"]]
        for tokens in parameters["tokens"]:
            call = call_seconds(weights, str(case.labels["format"]), rate, tokens)
            setup += PROOF_SECONDS + 2 * call
            setup += CHECK_SECONDS * threads * tokens * depth * rows_checked(threads) / 64
            timed += max(self.goal, LEAST_SAMPLES * max(SAMPLE_SECONDS, call))
        return setup, timed


def call_seconds(weights: int, kind: str, flop_rate: float, tokens: int) -> float:
    """What a thread takes to multiply so many weights with so many tokens, for planning."""
    return max(weights * BYTES_OF_WEIGHT[kind] / READ_RATE, 2 * weights * tokens / flop_rate)


def rows_checked(threads: int) -> int:
    """Rows of each thread's output that are recomputed after it was timed: 64 in all, and some of each."""
    return max(4, -(-64 // threads))


def _with_seconds(case: Case, setup: float, timed: float, rounds: int) -> Case:
    seconds = setup + timed
    return attrs.evolve(
        case,
        seconds=seconds,
        setup_seconds=setup,
        rounds=rounds,
        time_limit_s=max(60.0, 10 * seconds),
    )
