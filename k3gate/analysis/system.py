"""A system: a bill of materials in TOML. The same file is planned, checked against a run, and frozen. Pure.

All quantities are in base units. Everything is optional but the name, since a buyer plans before all is known: what
is not stated is None. `system_file` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from k3gate.model.sizes import ModelSizes

GIB, GB = 2**30, 10**9
TIERS = ("gpu", "dram", "hbm", "pmem", "cxl", "nvme")
"""Where weights can lie, the fastest first as a rule."""
TIER_TITLES = {
    "gpu": "GPU memory",
    "dram": "DRAM",
    "hbm": "HBM of the CPUs",
    "pmem": "persistent memory",
    "cxl": "CXL memory",
    "nvme": "NVMe drives",
    "network": "network",
    "pcie": "PCIe",
}
ISAS: Mapping[str, float] = {"avx2": 64, "avx512": 128, "avx512_vnni": 256, "avx512_bf16": 256, "amx": 2048}
"""Operations a cycle and core at most, in 8-bit integers, as quantized kernels compute: with AVX2 and AVX-512 a product
of two instructions on two multipliers, with VNNI one instruction on two; a tile unit of AMX does 16 x 16 x 64 products
and sums in 16 cycles (Intel's optimization manual, chapters on VNNI and AMX)."""
MODULE_SPEEDS: Mapping[str, tuple[int, ...]] = {
    "ddr3": (800, 1066, 1333, 1600, 1866),
    "ddr4": (1600, 1866, 2133, 2400, 2666, 2933, 3200),
    "ddr5": (3200, 3600, 4000, 4400, 4800, 5200, 5600, 6000, 6400, 7200, 8000, 8800, 12800),
}
"""MT/s at which server modules are sold, by type; MRDIMM are the last of DDR5 (JEDEC JESD79-3, -4, -5)."""
FASTEST: Mapping[str, int] = {"ddr3": 3000, "ddr4": 5333, "ddr5": 12800}
"""MT/s of the fastest modules of a type that are sold at all, for desktops."""
ENGINES = ("general", "tuned")
"""`general`: llama.cpp, KTransformers and the like. `tuned`: kernels and placement made for CPUs alone, such as
libxsmm's K3 engine with a rank per NUMA domain, or ik_llama.cpp on one socket."""
PRECISIONS: Mapping[str, float | None] = {"native": None, "q8_0": 8.5}
"""Bits of a parameter by name; native: as the model stores it."""
KV_BYTES: Mapping[str, float] = {"bf16": 1.0, "q8_0": 8.5 / 16, "fp8": 0.5}
"""Bytes of a cached value over those in BF16, by type; `q8_0` has an FP16 scale for each 32 (llama.cpp's -ctk)."""


@frozen
class Gpu:
    """So many alike GPUs of one machine. Bytes, B/s, FLOP/s (dense BF16 or FP16) and W of each; PCIe each way."""

    model: str
    count: int
    bytes: int
    bytes_per_s: float | None = None
    flops: float | None = None
    pcie_bytes_per_s: float | None = None
    watts: float | None = None


@frozen
class Extra:
    """A tier of memory beyond DRAM and GPUs, of one machine: HBM on CPUs, persistent memory, CXL."""

    kind: str
    bytes: int
    bytes_per_s: float | None
    detail: str
    modules: int | None = None


@frozen
class MemoryModules:
    """The DRAM of one machine. Rates in MT/s as they run; `channels` of one socket, `slots` of the board."""

    modules: int
    module_bytes: int
    mts: int | None
    type: str | None = None
    channels: int | None = None
    slots: int | None = None
    populated: int | None = None
    part: str | None = None
    rated_mts: int | None = None
    watts: float | None = None

    @property
    def bytes(self) -> int:
        """All modules together."""
        return self.modules * self.module_bytes


@frozen
class Storage:
    """Drives of one machine; bytes and B/s (reading) of each."""

    drives: int
    bytes: int | None
    bytes_per_s: float | None
    watts: float | None = None
    model: str | None = None


@frozen
class Placement:
    """Which tier holds what. None: not stated, so that the plan decides by target and machine.

    `groups`: tensor groups by name that lie elsewhere than the rest of their kind.
    """

    experts: str | None = None
    trunk: str | None = None
    embedding: str | None = None
    vision: str | None = None
    cache: str | None = None
    groups: Mapping[str, str] = field(factory=dict)


@frozen
class Precision:
    """Bits of a parameter with its share of scales; None: as released. `kv`: the type of cached values.

    `trunk_stated`: the file says so, and a target's wish does not change it.
    """

    experts: float | None = None
    trunk: float | None = None
    kv: str = "bf16"
    trunk_stated: bool = False

    @property
    def stated(self) -> bool:
        """Whether the file says how weights are stored."""
        return self.experts is not None or self.trunk_stated


@frozen
class HotSet:
    """So many experts of each layer that lie in GPU memory too; `curve`: (experts of a layer, share of all hits)."""

    experts: int
    curve: tuple[tuple[int, float], ...] = ()

    def coverage(self, experts: int) -> float | None:
        """The share of routed reads that so many experts catch, between points of the curve; None without one."""
        return coverage(self.curve, experts)


def coverage(curve: tuple[tuple[int, float], ...], experts: int) -> float | None:
    """Linear between the points of a measured curve that starts at (0, 0); None beyond its end or without one."""
    if not curve or experts > curve[-1][0]:
        return None
    low = (0, 0.0)
    for point in curve:
        if experts <= point[0]:
            width = point[0] - low[0]
            return low[1] + (point[1] - low[1]) * (experts - low[0]) / width if width else point[1]
        low = point
    return None


@frozen
class Reserve:
    """What else needs memory, in bytes. Defaults are ours: a server's kernel and services, llama.cpp's compute
    buffers at a micro-batch of 4096, the page cache of headers and of files being loaded."""

    os: int = 8 * GIB
    page_cache: int = 4 * GIB
    workspace: int = 4 * GIB
    gpu_workspace: int = 1 * GIB


@frozen
class Prices:
    """USD. `machine`: of one machine; `hour`: rent; `kwh`: of energy; years of use and share of time at work."""

    machine: float | None = None
    hour: float | None = None
    kwh: float | None = None
    years: float = 3.0
    utilisation: float = 0.5


@frozen
class Measured:
    """Rates that somebody measured on this very machine, B/s; `source` says who and how."""

    dram: float | None = None
    gpu: float | None = None
    pmem: float | None = None
    source: str | None = None


@frozen
class Override:
    """A statement about the model that contradicts, or repeats, what the model's own sizes say."""

    key: str
    stated: float


@frozen
class Claim:
    """What a seller or an article states: a range (low and high may be equal) in base units, with its premises."""

    name: str
    kind: str
    low: float
    high: float
    source: str
    premises: Mapping[str, Any] = field(factory=dict)
    unit: str = ""


@frozen
class System:
    """The whole description. Per machine, of which there are `nodes` alike that share the model."""

    name: str
    text: str
    hash: str
    nodes: int = 1
    board: str | None = None
    cpu_model: str | None = None
    sockets: int | None = None
    cores: int | None = None
    numa_nodes: int = 1
    hertz: float | None = None
    isa: str | None = None
    cpu_watts: float | None = None
    memory: MemoryModules | None = None
    gpus: tuple[Gpu, ...] = ()
    gpu_split: str = "tensor"
    extras: tuple[Extra, ...] = ()
    storage: Storage | None = None
    network_bytes_per_s: float | None = None
    network_seconds: float | None = None
    network_fabric: str | None = None
    line_bytes_per_s: float | None = None
    runtime: str | None = None
    engine: str = "general"
    replicate: bool = False
    prefill_batch: int = 4096
    placement: Placement = field(factory=Placement)
    precision: Precision = field(factory=Precision)
    hot: HotSet | None = None
    curve: tuple[tuple[int, float], ...] = ()
    reserve: Reserve = field(factory=Reserve)
    prices: Prices = field(factory=Prices)
    other_watts: float | None = None
    measured: Measured = field(factory=Measured)
    model_path: str | None = None
    model: ModelSizes | None = None
    overrides: tuple[Override, ...] = ()
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(factory=dict)

    @property
    def populated_channels(self) -> int | None:
        """Memory channels of one machine that hold a module, as stated, else as many as modules allow."""
        if self.memory is None:
            return None
        if self.memory.populated is not None:
            return self.memory.populated
        if self.memory.channels is None or self.sockets is None:
            return None
        return min(self.memory.modules, self.memory.channels * self.sockets)

    @property
    def all_channels(self) -> int | None:
        """Memory channels of one machine, populated or not."""
        if self.memory is None or self.memory.channels is None or self.sockets is None:
            return None
        return self.memory.channels * self.sockets

    @property
    def gpu_count(self) -> int:
        """GPUs of one machine."""
        return sum(gpu.count for gpu in self.gpus)


@frozen
class ClaimKind:
    """A kind of claim: what it is of, the unit in which it is written, and how many base units that has."""

    title: str
    unit: str
    factor: float


CLAIM_KINDS: Mapping[str, ClaimKind] = {
    "decode": ClaimKind("decode rate of one sequence", "tokens/s", 1),
    "prefill": ClaimKind("prefill rate", "tokens/s", 1),
    "bandwidth": ClaimKind("read bandwidth of DRAM", "GB/s", GB),
    "bytes_per_token": ClaimKind("bytes read for a token", "GB", GB),
    "weights": ClaimKind("bytes of all weights", "GB", GB),
    "headroom": ClaimKind("DRAM left beside the weights", "GB", GB),
    "gpu_free": ClaimKind("GPU memory left free", "GB", GB),
    "context": ClaimKind("context of one sequence", "tokens", 1),
    "kv_per_request": ClaimKind("KV cache of a long request", "GB", GB),
    "accelerators": ClaimKind("accelerators needed to hold the model", "", 1),
    "chassis": ClaimKind("chassis needed to hold the model", "", 1),
    "cost": ClaimKind("price of the machine", "USD", 1),
    "active_parameters": ClaimKind("parameters active for a token", "billion", 1e9),
}
PREMISES = (
    *("active_parameters_billion", "total_parameters_billion", "bits_per_parameter", "bytes_per_token_gb"),
    *("bandwidth_gb_per_s", "weights_gb", "memory_gb", "layers", "experts_bits", "trunk_bits", "channels"),
    *("machine", "machine_gb_per_s", "tier", "batch", "context", "kv"),
)
