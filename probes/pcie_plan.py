"""The cases of the PCIe probe: pure, from the inventory and a budget.

    copy.nodeN.GPU       locked memory of node N to the GPU, and back
    both.nodeN.GPU       each way while the other is under way
    trip.nodeN.GPU       a token's activations, 7 KiB there and back, 92 times
    together             all GPUs at once, each with its nearest memory: to them, then from them
    loaded.nodeN.GPU     as copy, while the other cores of the node read its memory
    sizes.nodeN.GPU      copies of 4 KiB to 256 MiB of locked memory
    pageable.nodeN.GPU   the same of memory that is not locked
    device.GPU           the GPU's own memory
    peer.GPU.GPU         from the first to the second
    nvbandwidth          NVIDIA's own program on the same copies, where it is installed

GPU is its address on PCI, without domain and function where they are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve

from k3gate.model import k3
from k3gate.probes import working_sets as sets
from k3gate.probes.layout import TOUCH_RATE, TOUCH_RATE_MOST, WORKER_SECONDS, Spec
from k3gate.probing.contract import Planned
from k3gate.records import Case, Gpu, Inventory, LeftOut, NumaNode, Profile, Scalar, State
from k3gate.units import cpu_list

KIB, MIB = 1 << 10, 1 << 20
COPY_BYTES = 256 * MIB
SIZES = tuple(4 * KIB << 2 * power for power in range(9))
"""4 KiB to 256 MiB."""
TOGETHER_BYTES = 64 * MIB
TRIP_BYTES = k3.HIDDEN
"""A token's row of 7,168 numbers in 8 bits."""
TRIPS = k3.MOE_LAYERS
DRIVER_BYTES = 512 * MIB
"""Host memory that the driver takes for itself, for planning."""
CONTEXT_SECONDS = 0.8
"""Of a GPU in a worker that uses it for the first time, for planning."""
HELPERS = 8
"""Cores that fill and compare host memory, at most."""
ROUNDS = 3
WITHOUT_PEER = (
    "nvbandwidth is not installed: build https://github.com/NVIDIA/nvbandwidth with cmake and put it on PATH"
)


def short(address: str) -> str:
    """A GPU in the name of a case: "41:00" of 0000:41:00.0, so far as that leaves nothing out."""
    return address.removeprefix("0000:").removesuffix(".0")


def refusal(inventory: Inventory) -> tuple[State, str] | None:
    """Why no copy can be measured on this machine, and what to do; None where there is a GPU that can."""
    gpus = inventory.gpus
    if gpus is None:
        note = inventory.provenance.get("gpus")
        return State.NOT_PRESENT, f"GPUs were not seen: {(note and note.reason) or 'PCI does not tell'}"
    if not gpus:
        return State.NOT_PRESENT, "this machine shows no GPU"
    if any(_unfit(one) is None for one in gpus):
        return None
    reasons = dict.fromkeys(f"{one.address or one.name or 'a GPU'}: {_unfit(one)}" for one in gpus)
    states = [one.state for one in gpus if one.vendor == "nvidia" and one.state is not State.OK]
    # A card of another maker is there and could be measured by another version.
    state = states[0] if states else State.NOT_RUN
    return state, f"no GPU can be copied to: {'; '.join(list(reasons)[:3])}"


def _unfit(gpu: Gpu) -> str | None:
    """Why a GPU is not measured; None where it is."""
    if gpu.vendor != "nvidia":
        return "copies are measured through CUDA, which it does not have; `k3gate host` shows its link and sensors"
    if gpu.state is not State.OK:
        return gpu.reason or "it cannot be asked"
    if gpu.shared_memory:
        return "integrated interconnect, not evaluated: it has no memory of its own to copy to"
    if gpu.address is None:
        return "its address on PCI is not told"
    if gpu.partitioned:
        return "partitioned, not representative: its parts share one link"
    return None


def plan(probe: str, inventory: Inventory, profile: Profile, peer: bool) -> Planned:
    """Cases, most important first, and what is left out. `peer`: nvbandwidth is installed."""
    return _Planner(probe, inventory, profile, peer).planned()


class _Planner:
    def __init__(self, probe: str, inventory: Inventory, profile: Profile, peer: bool) -> None:
        self.probe, self.inventory, self.profile, self.peer = probe, inventory, profile, peer
        self.long = profile.seconds >= 600
        self.seconds = 0.8 if self.long else 0.4
        self.left_out: list[LeftOut] = []
        self.cpus = sets.one_per_core(sets.usable_cpus(inventory), inventory.cpu.siblings)
        self.room = sets.room(inventory)
        self.gpus = [one for one in inventory.gpus or () if self._fit(one)]
        self.nodes = [one for one in inventory.numa.nodes if self._holds(one)]

    def _fit(self, gpu: Gpu) -> bool:
        reason = _unfit(gpu)
        if reason is not None:
            name = f"copy.*.{short(gpu.address)}" if gpu.address else "copy.*"
            self.left_out.append(LeftOut(self.probe, name, reason))
        return reason is None

    def _holds(self, node: NumaNode) -> bool:
        """Whether buffers may lie there. Memory of a GPU that shows as a node is no host memory."""
        allowed = self.inventory.limits.cpuset_mems
        if node.memory_bytes == 0 or node.kind == "gpu" or (allowed is not None and node.id not in allowed):
            return False
        reason = self.room.refuse({node.id: 2 * COPY_BYTES})
        if reason is not None:
            self.left_out.append(LeftOut(self.probe, f"*.node{node.id}.*", reason))
        return reason is None

    def planned(self) -> Planned:
        if self.profile.seconds < 60:
            reason = "the shortest profile measures memory alone; --profile quick copies to GPUs too"
            return Planned((), (LeftOut(self.probe, "*", reason),))
        near = [(node, gpu) for gpu in self.gpus for node in self._near(gpu)]
        far = [(node, gpu) for gpu in self.gpus for node in self.nodes if (node, gpu) not in near]
        cases = [self._cell("copy", *cell) for cell in near]
        cases += [self._cell(kind, *cell) for kind in ("trip", "both") for cell in near]
        cases += self._together()
        if self.long:
            cases += [self._cell("copy", *cell) for cell in far]
        else:
            reason = (
                "a short profile copies from the memory nearest to a GPU; --profile standard from every node"
            )
            self.left_out += [LeftOut(self.probe, self._name("copy", *cell), reason) for cell in far]
        shown = near if self.long else near[:1]
        for kind in ("loaded", "sizes", "pageable"):
            cases += [case for cell in shown for case in self._detail(kind, *cell)]
        first = {gpu.address: (node, gpu) for node, gpu in reversed(near)}
        own = [first[gpu.address] for gpu in self.gpus if gpu.address in first]
        cases += [self._device(*cell) for cell in (own if self.long else own[:1])]
        cases += self._peers()
        cases += [self._beside()] if self.peer else []
        if not self.peer:
            self.left_out.append(LeftOut(self.probe, "nvbandwidth", WITHOUT_PEER))
        if self.long:
            for kind in ("both", "trip", "pageable", "loaded", "sizes"):
                cases += [case for cell in far for case in self._detail(kind, *cell)]
        return Planned(tuple(self._priced(cases)), tuple(self.left_out))

    def _near(self, gpu: Gpu) -> list[NumaNode]:
        """The node that a GPU belongs to, else the nearest with memory; all of them where that is not told."""
        if len(self.nodes) == 1 or gpu.node is None:
            return self.nodes
        own = next((node for node in self.inventory.numa.nodes if node.id == gpu.node), None)
        if own is None:
            return self.nodes
        return sorted(self.nodes, key=lambda node: (node.id != own.id, own.distances.get(node.id, 1 << 30)))[
            :1
        ]

    def _placement(self, node: NumaNode, gpu: Gpu) -> str:
        near = self._near(gpu)
        return "unknown" if len(near) > 1 else "near" if node in near else "far"

    def _name(self, kind: str, node: NumaNode, gpu: Gpu) -> str:
        return f"{kind}.node{node.id}.{short(gpu.address or '')}"

    def _helpers(self, node: NumaNode) -> list[int]:
        """Cores of the node, or of that which is nearest to one without."""
        own = [cpu for cpu in self.cpus if cpu in node.cpus]
        if not own and node.nearest is not None:
            nearest = next((one for one in self.inventory.numa.nodes if one.id == node.nearest), None)
            own = [cpu for cpu in self.cpus if nearest is not None and cpu in nearest.cpus]
        return own or list(self.cpus)

    def _spec(self, node: NumaNode, size: int, cpus: Sequence[int]) -> Spec:
        """Ordinary memory: reserved pages are few, and others may want them."""
        bind = node.id if self.inventory.numa.available else None
        pages = sets.ordinary_kind(self.inventory)
        size = sets.round_up(size, sets.HUGE_PAGE)
        return {"node": node.id, "bind": bind, "bytes": size, "pages": pages, "touch": list(cpus)}

    def _memory(self, node: NumaNode, size: int) -> dict[str, Any]:
        cpus = self._helpers(node)[:HELPERS]
        return {"source": self._spec(node, size, cpus), "sink": self._spec(node, size, cpus), "cpus": cpus}

    def _cell(self, kind: str, node: NumaNode, gpu: Gpu) -> Case:
        assert gpu.address is not None
        placement = self._placement(node, gpu)
        labels: dict[str, Scalar] = {
            "scope": {"copy": "cell", "sizes": "size"}.get(kind, kind),
            "device": gpu.address,
            "memory_node": node.id,
            "placement": placement,
        }
        words = {"near": "its nearest memory", "far": "far from it", "unknown": "how near is not told"}
        title = _TITLES[kind].format(gpu=f"GPU {gpu.address}", node=f"memory of node {node.id}")
        return self._case(
            self._name(kind, node, gpu),
            f"{title} ({words[placement]})",
            # Memory that is not locked is other memory, and need not be held beside that which is.
            f"{'pageable' if kind == 'pageable' else 'node'}{node.id}",
            {"kind": kind, "devices": [gpu.address], "memory": [self._memory(node, COPY_BYTES)]},
            labels,
            self._timed(kind),
            2 * COPY_BYTES,
        )

    def _timed(self, kind: str) -> float:
        """Seconds that are timed, for planning; sizes are many figures."""
        return {"sizes": 3.0 * self.seconds, "pageable": 3.0 * self.seconds}.get(kind, self.seconds)

    def _detail(self, kind: str, node: NumaNode, gpu: Gpu) -> Iterator[Case]:
        if kind != "loaded":
            yield self._cell(kind, node, gpu)
            return
        loading = self._helpers(node)[1:]
        name = self._name(kind, node, gpu)
        if not any(cpu in node.cpus for cpu in loading):
            reason = f"node {node.id} has no second core that could read its memory meanwhile"
            self.left_out.append(LeftOut(self.probe, name, reason))
            return
        size = sets.working_set(self.inventory.cpu, loading)
        lacking = self.room.refuse({node.id: size + 2 * COPY_BYTES})
        if lacking is not None:
            self.left_out.append(LeftOut(self.probe, name, lacking))
            return
        case = self._cell(kind, node, gpu)
        stream = {
            "memory_node": node.id,
            "cpus": loading,
            "pool": self._spec(node, size, loading),
            "cache_bytes": sets.cache_bytes(self.inventory.cpu, loading),
            "level_2_bytes": sets.level_2_bytes(self.inventory.cpu, loading),
        }
        yield Case(
            case.probe,
            case.name,
            f"{case.title}, while CPUs {cpu_list(loading)} read that memory",
            f"loaded{node.id}",
            {**case.parameters, "stream": stream},
            case.seconds,
            case.bytes + size,
            case.rounds,
            size / min(len(loading) * TOUCH_RATE, TOUCH_RATE_MOST),
            case.time_limit_s,
            {**case.labels, "threads": len(loading)},
        )

    def _together(self) -> list[Case]:
        if len(self.gpus) < 2:
            return []
        nearest = [self._near(gpu)[:1] for gpu in self.gpus]
        if not all(nearest):
            return []
        memory = [self._memory(own[0], TOGETHER_BYTES) for own in nearest]
        size = 2 * TOGETHER_BYTES * len(self.gpus)
        reason = self.room.refuse({nearest[0][0].id: size})
        if reason is not None:
            self.left_out.append(LeftOut(self.probe, "together", reason))
            return []
        devices = [gpu.address for gpu in self.gpus]
        return [
            self._case(
                "together",
                f"Copies: {len(devices)} GPUs at once, each with its nearest memory, to them and from them",
                "together",
                {"kind": "together", "devices": devices, "memory": memory},
                {"scope": "all", "gpus": len(devices)},
                self.seconds,
                size,
            )
        ]

    def _device(self, node: NumaNode, gpu: Gpu) -> Case:
        """The pattern that is copied within it comes from host memory."""
        return self._case(
            f"device.{short(gpu.address or '')}",
            f"GPU {gpu.address}: copies within its own memory",
            f"node{node.id}",
            {"kind": "device", "devices": [gpu.address], "memory": [self._memory(node, COPY_BYTES)]},
            {"scope": "device", "device": gpu.address},
            0.5 * self.seconds,
            2 * COPY_BYTES,
        )

    def _peers(self) -> list[Case]:
        if not self.nodes:
            return []
        pairs = [(one, other) for one in self.gpus for other in self.gpus if one is not other]
        kept = pairs if self.long else pairs[:1]
        reason = "a short profile copies between one pair of GPUs; --profile standard between all"
        for one, other in pairs[len(kept) :]:
            name = f"peer.{short(one.address or '')}.{short(other.address or '')}"
            self.left_out.append(LeftOut(self.probe, name, reason))
        found = []
        for one, other in kept:
            between = one.peers.get(other.address or "")
            tail = f" (between them: {between})" if between else ""
            found.append(
                self._case(
                    f"peer.{short(one.address or '')}.{short(other.address or '')}",
                    f"GPU {one.address} to GPU {other.address}{tail}",
                    # Bridges that redirect can make such a copy hang: it costs this group alone.
                    "peers",
                    {
                        "kind": "peer",
                        "devices": [other.address, one.address],
                        "memory": [self._memory(self._near(other)[0], TOGETHER_BYTES)],
                    },
                    {"scope": "peer", "device": one.address, "peer": other.address},
                    0.5 * self.seconds,
                    2 * TOGETHER_BYTES,
                )
            )
        return found

    def _beside(self) -> Case:
        devices = [gpu.address for gpu in self.gpus]
        # nvbandwidth counts all GPUs of the driver, by address.
        listed = sorted(
            one.address
            for one in self.inventory.gpus or ()
            if one.vendor == "nvidia" and one.state is State.OK and one.address
        )
        return self._case(
            "nvbandwidth",
            "nvbandwidth: copies between host memory and GPUs by NVIDIA's own program",
            "nvbandwidth",
            {"kind": "nvbandwidth", "devices": devices, "listed": listed, "memory": []},
            {"scope": "nvbandwidth"},
            8.0 if self.long else 5.0,
            DRIVER_BYTES,
        )

    def _case(
        self,
        name: str,
        title: str,
        group: str,
        parameters: dict[str, Any],
        labels: dict[str, Scalar],
        seconds: float,
        size: int,
    ) -> Case:
        return Case(
            probe=self.probe,
            name=name,
            title=title,
            group=group,
            parameters=parameters,
            seconds=seconds,
            bytes=size + DRIVER_BYTES,
            rounds=ROUNDS,
            time_limit_s=max(60.0, 20 * seconds),
            labels=labels,
        )

    def _priced(self, cases: Sequence[Case]) -> Iterator[Case]:
        """With the set-up of whoever first uses a GPU or fills memory in a worker."""
        seen: set[tuple[str, object]] = set()
        for case in cases:
            setup = case.setup_seconds + _SET_UP.get(str(case.parameters["kind"]), 0.4)
            if (case.group, None) not in seen:
                seen.add((case.group, None))
                size = sum(
                    one[part]["bytes"] for one in case.parameters["memory"] for part in ("source", "sink")
                )
                threads = sum(len(one["cpus"]) for one in case.parameters["memory"][:1])
                setup += WORKER_SECONDS + size / min(max(1, threads) * TOUCH_RATE, TOUCH_RATE_MOST)
            for device in case.parameters["devices"] if case.group != "nvbandwidth" else ():
                if (case.group, device) not in seen:
                    seen.add((case.group, device))
                    setup += CONTEXT_SECONDS
            yield evolve(case, seconds=case.seconds + setup, setup_seconds=setup)


_SET_UP = {
    "copy": 1.0,
    "both": 1.5,
    "loaded": 1.5,
    "sizes": 2.5,
    "pageable": 1.0,
    "together": 1.0,
    "nvbandwidth": 0.1,
}
"""Seconds in which a case spoils, compares and warms up, for planning."""
_TITLES = {
    "copy": "Copies: {node} to and from {gpu}",
    "both": "Copies both ways at once: {node} to and from {gpu}",
    "trip": f"Round trip of a token's activations, {TRIP_BYTES // KIB} KiB {TRIPS} times: {{gpu}} and {{node}}",
    "loaded": "Copies under load: {node} to and from {gpu}",
    "pageable": "Copies of memory that is not locked: {node} to and from {gpu}",
    "sizes": "Copies of 4 KiB to 256 MiB: {node} to and from {gpu}",
}
