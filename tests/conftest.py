"""Fixtures that every part shares: an isolated home, synthetic machines, the captured machines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate import metrics
from k3gate.records import (
    Cache,
    Case,
    Cpu,
    Inventory,
    Kernel,
    Limits,
    Machine,
    Memory,
    Metric,
    MetricDeclaration,
    Numa,
    NumaNode,
    Outcome,
    Phase,
    Proof,
    Provenance,
    Round,
    RunRecord,
    Sample,
    Series,
    State,
)

REPOSITORY = Path(__file__).resolve().parent.parent
MakeInventory = Callable[..., Inventory]


@pytest.fixture(autouse=True)
def isolated_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's store: HOME and the XDG folders are empty ones of this test."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_DATA_HOME", str(home / "data"))
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        for name in ("K3GATE_STORE", "K3GATE_SELFTEST_FAULT", "NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        yield home


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


def _shared(name: str) -> Path:
    path = REPOSITORY.parent / "shared" / name
    if not path.exists():
        pytest.skip(f"needs ../shared/{name}, which is not part of this checkout")
    return path


@pytest.fixture(scope="session")
def shared_machines() -> Path:
    """The folder of captured machines beside the checkout; skips where it is missing."""
    return _shared("machines")


@pytest.fixture(scope="session")
def make_inventory() -> MakeInventory:
    """`make_inventory("vm" | "bare_metal", limits={"usable_memory_bytes": 1}, ...)`: a synthetic machine.

    Keyword arguments change fields of the section that they name; "bare_metal" is a 2-socket server with
    2 x 32 cores, SMT and 768 GiB, "vm" a guest with 2 CPUs, one node and 8 GiB.
    """

    def make(kind: str = "vm", **changes: Mapping[str, Any]) -> Inventory:
        inventory = {"vm": _vm, "bare_metal": _bare_metal}[kind]()
        sections = {
            name: attrs.evolve(getattr(inventory, name), **fields) if isinstance(fields, dict) else fields
            for name, fields in changes.items()
        }
        return attrs.evolve(inventory, **sections)

    return make


def _vm() -> Inventory:
    memory = 8 * 2**30
    return Inventory(
        machine=Machine(
            id="sha256:00000000000000000000000000000001",
            fingerprint="sha256:vm",
            name="vm",
            vendor="QEMU",
            product="Standard PC",
            virtual=True,
            hypervisor="kvm",
            wsl=False,
        ),
        cpu=Cpu(
            architecture="x86_64",
            vendor="GenuineIntel",
            model="Intel(R) Xeon(R) Processor @ 2.60GHz",
            family=6,
            model_number=143,
            sockets=1,
            cores=1,
            threads=2,
            smt=True,
            present=(0, 1),
            possible=(0, 1),
            online=(0, 1),
            allowed=(0, 1),
            siblings=((0, 1),),
            package_of={0: 0, 1: 0},
            caches=(Cache(3, "Unified", 32 * 2**20, 1, 2, ((0, 1),)),),
            isa=("avx2", "avx512f"),
        ),
        numa=Numa(True, (NumaNode(0, (0, 1), memory, memory // 2, "dram", {0: 10}),)),
        memory=Memory(total_bytes=memory, available_bytes=memory // 2, swap_total_bytes=0, swap_used_bytes=0),
        kernel=Kernel(release="6.1.0", transparent_hugepage="madvise", page_bytes=4096),
        limits=Limits(
            cgroup_version=2, memlock_bytes=8 * 2**20, usable_memory_bytes=memory // 2, restricted=False
        ),
        provenance={
            "memory.slots": Provenance(State.NOT_PERMITTED, None, "needs root"),
            "machine.container": Provenance(State.OK, "proc/1/cgroup", "no sign of one"),
        },
    )


def _bare_metal() -> Inventory:
    node_bytes = 384 * 2**30
    cores = {node: tuple(range(node * 32, node * 32 + 32)) for node in (0, 1)}
    cpus = {node: (*cores[node], *(cpu + 64 for cpu in cores[node])) for node in (0, 1)}
    everything = tuple(range(128))
    return Inventory(
        machine=Machine(
            id="sha256:00000000000000000000000000000002",
            fingerprint="sha256:bare",
            name="bare",
            vendor="Supermicro",
            product="SYS-121H",
            board="X13DEM",
            virtual=False,
            wsl=False,
        ),
        cpu=Cpu(
            architecture="x86_64",
            vendor="GenuineIntel",
            model="INTEL(R) XEON(R) PLATINUM 8562Y+",
            family=6,
            model_number=207,
            sockets=2,
            cores=64,
            threads=128,
            smt=True,
            smt_control="on",
            present=everything,
            possible=everything,
            online=everything,
            allowed=everything,
            siblings=tuple((cpu, cpu + 64) for cpu in range(64)),
            package_of={cpu: (cpu % 64) // 32 for cpu in everything},
            caches=(
                Cache(2, "Unified", 2 * 2**20, 64, 2, tuple((cpu, cpu + 64) for cpu in range(64))),
                Cache(3, "Unified", 60 * 2**20, 2, 64, (cpus[0], cpus[1])),
            ),
            isa=("avx2", "avx512f", "amx_tile"),
            governor="performance",
            scaling_driver="intel_pstate",
            boost=True,
        ),
        numa=Numa(
            True,
            tuple(
                NumaNode(node, cpus[node], node_bytes, node_bytes - 2**33, "dram", {node: 10, 1 - node: 21})
                for node in (0, 1)
            ),
        ),
        memory=Memory(
            total_bytes=2 * node_bytes,
            available_bytes=2 * node_bytes - 2**34,
            swap_total_bytes=0,
            swap_used_bytes=0,
            slots=32,
            populated=16,
            channels=16,
            configured_mts=5600,
            rated_mts=5600,
            theoretical_bytes_per_s=16 * 5600e6 * 8,
        ),
        kernel=Kernel(
            release="6.8.0",
            transparent_hugepage="madvise",
            numa_balancing=False,
            overcommit_memory=0,
            page_bytes=4096,
        ),
        limits=Limits(
            cgroup_version=2,
            memlock_bytes=None,
            usable_memory_bytes=2 * node_bytes - 2**34,
            restricted=False,
        ),
        provenance={"machine.container": Provenance(State.OK, "proc/1/cgroup", "no sign of one")},
    )


MINIATURE = {"bf16": 1.0, "q8_0": 17 / 32, "mxfp4": 17 / 64, "gpu": 0.0}


def miniature_bytes(
    trunk: str,
    layers: int = 4,
    context: int = 8192,
    batch: int = 1,
    distinct: float = 16.0,
    head_rows: int = 8192,
) -> dict[str, float]:
    """Bytes of a step by part, of the checkpoint's own sums and the formulas of decoding, not of k3gate's replay."""
    share, mla = MINIATURE[trunk], layers // 4
    heads = 96 * 2 * 128 * 512 * 2.0
    found = {"routed": distinct * layers * 17_547_264.0}
    if trunk == "gpu":
        return found
    attention = (layers - mla) * 61_258_257_408 / 69 + mla * (11_145_412_608 / 24 - heads)
    state, cache = 2 * 96 * 128 * 128 * 4, 576 * 2 * context
    return found | {
        "attention_projections": share * attention,
        "attention_core": batch * ((layers - mla) * state + mla * cache) + share * mla * heads,
        "router": layers * 1_182_074_880 / 92,
        "latent": share * layers * 9_454_620_672 / 92,
        "shared": share * layers * 24_310_185_984 / 92,
        "dense": 0.0,
        "head": share * head_rows * 7168 * 2,
    }


@pytest.fixture(scope="session")
def make_replay() -> Callable[..., Outcome]:
    """`make_replay("batch.4", "batch", batch=4, stream=100e9, waiting=0.001, **labels)`: the outcome of one case of the
    replay whose parts all stream at `stream` B/s, with `waiting` seconds of synchronisation a layer; `slower` stretches
    all of them."""

    def make(
        case: str = "base",
        factor: str = "base",
        *,
        stream: float = 100e9,
        waiting: float = 0.0,
        scatter: float = 0.01,
        slower: float = 1.0,
        distinct: float = 16.0,
        crossed: float = 0.0,
        proofs: tuple[Proof, ...] = (),
        state: State = State.OK,
        reason: str | None = None,
        **told: Any,
    ) -> Outcome:
        labels = {
            "scope": "machine",
            "factor": factor,
            "threads": 64,
            "trunk": "bf16",
            "placement": "owner",
            "batch": 1,
            "context": 8192,
            "layers": 4,
            "experts": 64,
            "head_rows": 8192,
            "routing": "model",
            "path": "avx512_vnni",
            "pages": "transparent",
            "reuse": 0.295,
            "skew": 2.6,
            **told,
        }
        size = miniature_bytes(
            labels["trunk"],
            labels["layers"],
            labels["context"],
            labels["batch"],
            distinct,
            labels["head_rows"],
        )
        seconds = {part: value / stream * slower for part, value in size.items()}
        seconds |= {"mix": 0.0, "synchronisation": waiting * labels["layers"] * slower}
        whole = sum(seconds.values())

        def metric(declaration: MetricDeclaration, value: float, spread: float, **more: Any) -> Metric:
            samples = tuple(Sample(value, number, 100 + number, 1.0 + number) for number in range(3))
            interval = (value * (1 - spread), value * (1 + spread))
            own = (declaration.name, declaration.unit, declaration.better, {**labels, **more})
            return Metric(*own, samples, value, interval, state, reason, proofs)

        rows = [
            metric(metrics.REPLAY_RATE, 1 / whole, scatter),
            metric(metrics.REPLAY_BANDWIDTH, sum(size.values()) / whole, scatter),
        ]
        for part, value in seconds.items():
            rows.append(metric(metrics.REPLAY_PART, value, scatter, part=part))
            rows.append(metric(metrics.REPLAY_BYTES, size.get(part, 0.0), 0.0, part=part))
        rows.append(metric(metrics.REPLAY_CROSSED, crossed, 0.0))
        rounds = tuple(Round(number, State.OK, None, 2.0, 1.4, 0.5, 100 + number) for number in range(3))
        title = f"Decode: {case}"
        return Outcome("replay", case, state, reason, 6.0, 3, rounds, tuple(rows), title)

    return make


@pytest.fixture(scope="session")
def made_soak() -> Callable[..., RunRecord]:
    """`made_soak(record, ...)`: the record with a lasting load in it, whose rates and sensors are made.

    `fall`: what of the rate is lost at the end, by part ("memory of node 0"), growing between 40 % and 60 % of the
    load; `heat`: (sensor's labels, rise in degrees, start); `others`: shares of CPU time before and after half of the
    load; `path`: a place that is read too, on nvme0n1; `counter`: a domain whose throttling was counted; `seconds`:
    how long it really lasted; `more`: other series.
    """
    from k3gate.probes import thermal_plan

    def make(
        record: RunRecord,
        *,
        fall: Mapping[str, float] | None = None,
        heat: Sequence[tuple[Mapping[str, Any], float, float]] = (),
        others: tuple[float, float] = (0.002, 0.002),
        counter: str | None = None,
        load_s: float = 180.0,
        seconds: float | None = None,
        noise: float = 0.004,
        path: str | None = None,
        state: State = State.OK,
        more: Sequence[Series] = (),
        begun: float = 5.0,
    ) -> RunRecord:
        lasted = load_s if seconds is None else seconds
        spans = thermal_plan.spans(load_s, sensors=bool(heat))
        times = tuple(begun + 2.0 + place for place in range(int(lasted) + 1))
        chance = random.Random(7)

        def grown(at: float) -> float:
            return min(1.0, max(0.0, ((at - times[0]) / lasted - 0.4) / 0.2))

        def series(name: str, unit: str, labels: Mapping[str, Any], told: Callable[[float], float]) -> Series:
            values = (*(told(at) for at in times[:-1]), None)
            return Series(name, unit, labels, times, values)

        rates = {"memory": 250e9, "kernels": 80e9}

        def falling(part: str, node: int) -> Callable[[float], float]:
            lost = (fall or {}).get(f"{part} of node {node}", 0.0)
            return lambda at: rates[part] * (1 - lost * grown(at)) * (1 + chance.gauss(0, noise))

        watched = [
            series("load.rate", "B/s", {"part": part, "memory_node": node}, falling(part, node))
            for part in rates
            for node in (0, 1)
        ]
        if path is not None:
            rates["storage"], key = 6e9, f"storage at {path}"
            lost = (fall or {}).get(key, 0.0)
            watched.append(
                series(
                    "load.rate",
                    "B/s",
                    {"part": "storage", "place": path},
                    lambda at: rates["storage"] * (1 - lost * grown(at)) * (1 + chance.gauss(0, noise)),
                )
            )
        watched.append(series("load.others", "1", {}, lambda at: others[grown(at) > 0.5]))
        for labels, rise, start in heat:
            whole = (*times[:-1], times[-1], times[-1] + spans.cool)
            watched.append(
                Series(
                    "temperature",
                    "degC",
                    labels,
                    whole,
                    tuple(
                        round(start + rise * min(1.0, (at - times[0]) / (0.5 * lasted)), 1)
                        if at <= times[-1]
                        else start
                        for at in whole
                    ),
                )
            )
        if counter is not None:
            labels = {"counter": f"throttle {counter}", "kind": "throttle", "domain": counter}
            half = times[len(times) // 2]
            watched.append(Series("events", "1", labels, (0.0, half), (4.0, 9.0)))
        parameters = {
            "warm_up_s": spans.warm_up,
            "first_s": spans.first,
            "load_s": load_s,
            "last_s": spans.last,
            "cool_s": spans.cool,
            "drives": [] if path is None else [{"source": {"path": path}, "drives": ["nvme0n1"]}],
        }
        case = Case(
            "thermal", "soak", "The whole machine at once, made up", "soak", parameters, load_s, 0, rounds=1
        )
        reason = None if state is State.OK else "round 1 of 1: it was killed"
        outcome = Outcome("thermal", "soak", state, reason, lasted, 1, (), (), case.title)
        phase = Phase("thermal", "soak", 0, begun, times[-1] + spans.cool + 0.5)
        return attrs.evolve(
            record,
            run=attrs.evolve(record.run, plan=(*record.run.plan, case)),
            outcomes=(*record.outcomes, outcome),
            series=(*record.series, *watched, *more),
            phases=(*record.phases, phase),
        )

    return make
