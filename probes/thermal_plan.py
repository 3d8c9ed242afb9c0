"""The one case of the thermal probe: which cores stream, which multiply, and for how long. Pure.

Of the cores at a memory node three quarters stream from its memory, as a decoded token has nearly all cores do, and one
quarter multiplies experts with many tokens, as a prompt or a large batch has them do: vector and tile code heats a
package most. Both figures are ours. A core that is alone at its node streams. Beside them one thread reads each place
that was named with --storage past the page cache, many blocks at a time, wherever the kernel has it run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from k3gate.probes import storage_plan
from k3gate.probes import working_sets as sets
from k3gate.probes.gemm_kernels import Variant, fastest_expected
from k3gate.probes.gemm_plan import (
    FILL_RATE,
    FILLERS,
    FLOP_RATES,
    MOST_CALL_SECONDS,
    PACKED,
    PROOF_SECONDS,
    call_seconds,
)
from k3gate.probes.gemm_shapes import BYTES_OF_WEIGHT, EXPERT
from k3gate.probes.layout import TOUCH_RATE, TOUCH_RATE_MOST, WORKER_SECONDS, Layout, Spec, sizes
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, LeftOut, NumaNode, Profile, State
from k3gate.units import count, duration

CASE = "soak"
FORMAT = "mxfp4"
MULTIPLY_SHARE = 4
"""One core of so many at a node multiplies."""
TOKENS = (64, 16, 8, 4, 1)
"""The most with which a thread multiplies an expert in a fraction of a second."""
WARM_UP_S, FIRST_S, LAST_S = 20.0, 60.0, 60.0
LAST_SHARE = 0.1
"""Of a long load, the last part whose rate is compared with the first minute."""
COOL_SHARE, MOST_COOL_S = 1 / 12, 120.0
STARTED_S = 5.0
"""For all threads to end what they have begun, and for the proofs."""


@frozen
class Spans:
    """The parts of a load, in seconds: warm-up, the first minute after it, all of it, the last part, cooling."""

    warm_up: float
    first: float
    load: float
    last: float
    cool: float


def spans(load_s: float, *, sensors: bool) -> Spans:
    """How a load of this length is divided; a short one in thirds. `sensors`: whether anything is seen to cool."""
    return Spans(
        warm_up=min(WARM_UP_S, load_s / 9),
        first=min(FIRST_S, load_s / 3),
        load=load_s,
        last=max(min(LAST_S, load_s / 3), LAST_SHARE * load_s),
        cool=min(MOST_COOL_S, COOL_SHARE * load_s) if sensors else 0.0,
    )


def plan(
    probe: str, inventory: Inventory, profile: Profile, isa: str | None, variants: Sequence[Variant]
) -> Planned:
    """The case and what it leaves out. `isa` None: the best for reading; `variants`: products that may be used.

    Raises `UsageError` for a working set that fits in caches.
    """
    return _Planner(probe, inventory, profile, isa, variants).planned()


class _Planner(Layout):
    def __init__(
        self,
        probe: str,
        inventory: Inventory,
        profile: Profile,
        isa: str | None,
        variants: Sequence[Variant],
    ) -> None:
        super().__init__(probe, inventory, profile, isa)
        # What a node without memory costs is told by the memory probe.
        self.left_out = []
        self.variants = variants

    def planned(self) -> Planned:
        if self.profile.load_s <= 0:
            reason = (
                f"the {self.profile.name} profile is too short to show that a rate lasts; "
                "--profile standard loads the machine for 3 minutes, soak for as long as you like"
            )
            return Planned((), (LeftOut(self.probe, CASE, reason),))
        drives, left_out = storage_plan.loads(self.probe, self.inventory, self.profile)
        self.left_out += [LeftOut(self.probe, f"{CASE} of {one.case}", one.reason) for one in left_out]
        if not any(named.asked for named in self.profile.load_paths):
            reason = "no place was named with --storage: memory and kernels alone are loaded"
            self.left_out.append(LeftOut(self.probe, f"{CASE} of drives", reason))
        streams, products = self._parts()
        if not streams:
            reason = "no CPU that may be used has memory that may be used"
            return Planned((), (LeftOut(self.probe, CASE, reason),))
        case = self._case(streams, products, drives)
        return Planned(tuple(self._with_room(case)), tuple(self.left_out))

    def _parts(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """(what streams, what multiplies), each a pool with the CPUs that work on it."""
        streams: list[dict[str, Any]] = []
        products: list[dict[str, Any]] = []
        specs, groups = self.spread(self.inventory.numa.nodes)
        nodes = {node.id: node for node in self.targets}
        for spec, cpus in zip(specs, groups, strict=True):
            node = nodes[spec["node"]]
            number = max(1, len(cpus) // MULTIPLY_SHARE) if len(cpus) > 1 else 0
            streaming, multiplying = cpus[: len(cpus) - number], cpus[len(cpus) - number :]
            for far in self._without_cpus(node):
                if len(streaming) > 1:
                    streams.append(self._stream(far, [streaming.pop()]))
                else:
                    reason = f"no core of node {node.id}, which is nearest, is left to read it"
                    self.left_out.append(LeftOut(self.probe, f"{CASE} of node {far.id}", reason))
            streams.append(self._stream(node, streaming))
            if multiplying:
                products.append(self._product(node, multiplying))
            else:
                reason = f"node {node.id} has one core, which streams"
                self.left_out.append(LeftOut(self.probe, f"{CASE} of kernels", reason))
        return streams, products

    def _without_cpus(self, near: NumaNode) -> list[NumaNode]:
        """Nodes of memory alone whose readers are the cores at this one."""
        return [
            node
            for node in self.targets
            if not node.cpus and (near.id if node.nearest is None else node.nearest) == near.id
        ]

    def _stream(self, node: NumaNode, cpus: Sequence[int]) -> dict[str, Any]:
        size = sets.working_set(self.inventory.cpu, cpus, None)
        return {
            "memory_node": node.id,
            "cpus": list(cpus),
            "pool": self.spec(node, size, cpus),
            "cache_bytes": sets.cache_bytes(self.inventory.cpu, cpus),
            "level_2_bytes": sets.level_2_bytes(self.inventory.cpu, cpus),
        }

    def _product(self, node: NumaNode, cpus: Sequence[int]) -> dict[str, Any]:
        """Experts for these CPUs, two each: what counts is the arithmetic, not where the weights come from."""
        weights = EXPERT.item_weights(FORMAT)
        tokens, variant = self._kernel(weights)
        size = int(2 * len(cpus) * weights * BYTES_OF_WEIGHT[FORMAT] * PACKED) + sets.HUGE_PAGE
        return {
            "memory_node": node.id,
            "cpus": list(cpus),
            "pool": self.spec(node, size, cpus),
            "path": variant.path,
            "tokens": tokens,
            "rows": EXPERT.item_rows(FORMAT),
            "depth": EXPERT.depth,
        }

    def _kernel(self, weights: int) -> tuple[int, Variant]:
        for tokens in TOKENS:
            variant = fastest_expected(self.variants, FORMAT, tokens)
            if call_seconds(weights, FORMAT, FLOP_RATES[variant.path], tokens) <= MOST_CALL_SECONDS:
                return tokens, variant
        return 1, fastest_expected(self.variants, FORMAT, 1)

    def _case(
        self, streams: list[dict[str, Any]], products: list[dict[str, Any]], drives: list[dict[str, Any]]
    ) -> Case:
        found = spans(self.profile.load_s, sensors=self._sensors())
        specs = [one["pool"] for one in (*streams, *products)]
        total, reserved = sizes(specs)
        own = [one["source"] for one in drives if one["source"]["scratch"]]
        setup = self._set_up(streams, products)
        setup += sum(source["bytes"] for source in own) / storage_plan.WRITE_RATE
        threads = sum(len(one["cpus"]) for one in (*streams, *products))
        reading = sum(len(one["cpus"]) for one in streams)
        title = f"The whole machine at once for {duration(found.load)}: {count(reading, 'thread')} "
        title += "streams from memory" if reading == 1 else "stream from memory"
        if products:
            number = threads - reading
            title += (
                f", {number} {'multiplies' if number == 1 else 'multiply'} experts by {products[0]['path']} "
            )
            title += f"with {count(products[0]['tokens'], 'token')}"
        if drives:
            title += (
                f", {count(len(drives), 'thread')} {'reads' if len(drives) == 1 else 'read'} from storage"
            )
        if found.cool:
            title += f"; then {duration(found.cool)} of cooling"
        return Case(
            self.probe,
            CASE,
            title,
            CASE,
            {
                "isa": self.isa,
                "streams": streams,
                "products": products,
                "drives": drives,
                "scratch": [source["scratch"] for source in own],
                "warm_up_s": found.warm_up,
                "first_s": found.first,
                "load_s": found.load,
                "last_s": found.last,
                "cool_s": found.cool,
                "reserved_bytes": reserved,
            },
            setup + found.load + found.cool,
            total - reserved + len(drives) * storage_plan.MAIN.in_flight,
            rounds=1,
            setup_seconds=setup + found.warm_up + found.cool,
            labels={"scope": "machine", "threads": threads, "load_s": found.load},
        )

    def _set_up(self, streams: Sequence[dict[str, Any]], products: Sequence[dict[str, Any]]) -> float:
        filled = sum(
            one["pool"]["bytes"] / min(TOUCH_RATE * len(one["cpus"]), TOUCH_RATE_MOST) for one in streams
        )
        packed = sum(one["pool"]["bytes"] for one in products) / (FILL_RATE * min(FILLERS, len(self.cpus)))
        return WORKER_SECONDS + float(filled + packed) + PROOF_SECONDS * len(products) + STARTED_S

    def _sensors(self) -> bool:
        """Whether this machine shows a temperature or its power."""
        sensors = self.inventory.sensors
        if sensors is None:
            return False
        return any(
            one.state is State.OK and one.quantity in ("temperature", "power") for one in sensors.readings
        ) or any(one.state is State.OK for one in sensors.power_zones)

    def _with_room(self, case: Case) -> list[Case]:
        wanted: dict[int, int] = {}
        pools: list[Spec] = [one["pool"] for key in ("streams", "products") for one in case.parameters[key]]
        for spec in pools:
            if not spec["pages"].startswith("reserved"):
                wanted[spec["node"]] = wanted.get(spec["node"], 0) + spec["bytes"]
        reason = self.room.refuse(wanted)
        if reason is None:
            return [case]
        self.left_out.append(LeftOut(self.probe, case.name, reason))
        return []
