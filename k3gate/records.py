"""The immutable records that everything passes around; the ground floor, imports nothing of ours.

One module on purpose, though long: it is the vocabulary, and it is read as one page.
All quantities are in base units (bytes, seconds, B/s, FLOP/s, W, degC). Unknown is None, never 0, "" or -1.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

Scalar = str | int | float | bool | None
Labels = Mapping[str, Scalar]
Interval = tuple[float, float]


class State(enum.StrEnum):
    """How a case, a metric or a fact came out."""

    OK = "ok"
    UNSTABLE = "unstable"
    FAILED = "failed"
    NOT_PERMITTED = "not_permitted"
    NOT_PRESENT = "not_present"
    NOT_RUN = "not_run"


class Better(enum.StrEnum):
    """The direction in which a metric is good."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Verdict(enum.StrEnum):
    """What the gate says of a check, a step or the whole."""

    PASS = "pass"
    FAIL = "fail"
    UNPROVEN = "unproven"
    WAIVED = "waived"
    NOT_APPLICABLE = "not_applicable"


class Severity(enum.StrEnum):
    """How much a finding weighs for the purchase."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class RunStatus(enum.StrEnum):
    """Where a run stands. Only a `complete` run is evidence for the gate."""

    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    ABANDONED = "abandoned"
    STORAGE_FAILED = "storage_failed"


# --- measuring -------------------------------------------------------------------------------------------


@frozen
class Sample:
    """One observed value. `start_s`: monotonic seconds since the run began; `process`: the worker's pid."""

    value: float
    round: int
    process: int
    start_s: float


@frozen
class Proof:
    """What shows that a sample measured what it says. `ok` None: not seen, and `detail` says why."""

    name: str
    ok: bool | None
    detail: str


@frozen
class MetricDeclaration:
    """Name, unit and meaning of a metric. `exact`: a count or a size, whose interval is its own range."""

    name: str
    unit: str
    better: Better
    title: str
    divides: str
    exact: bool = False


@frozen
class Metric:
    """A named quantity with its samples; median and interval are derived once, when it is stored."""

    name: str
    unit: str
    better: Better
    labels: Labels
    samples: tuple[Sample, ...]
    median: float | None
    interval: Interval | None
    state: State
    reason: str | None = None
    proofs: tuple[Proof, ...] = ()


@frozen
class Case:
    """One configuration of a probe. Cases of a `group` share one worker and one allocation per round.

    `seconds` is the estimate for one round, `setup_seconds` the part of it that is not timed; `bytes` the
    memory that a worker holds while the case runs; `time_limit_s` ends a round of this case that hangs.
    """

    probe: str
    name: str
    title: str
    group: str
    parameters: Mapping[str, Any]
    seconds: float
    bytes: int
    rounds: int = 3
    setup_seconds: float = 0.0
    time_limit_s: float = 60.0
    labels: Labels = field(factory=dict)


@frozen
class Round:
    """One execution of a case in a fresh process. `timed_seconds` is the part inside timed regions."""

    round: int
    state: State
    reason: str | None
    seconds: float
    timed_seconds: float
    setup_seconds: float
    process: int | None


@frozen
class Outcome:
    """What became of a case: its rounds and its metrics."""

    probe: str
    case: str
    state: State
    reason: str | None
    seconds: float
    rounds_planned: int
    rounds: tuple[Round, ...] = ()
    metrics: tuple[Metric, ...] = ()
    title: str = ""


@frozen
class LeftOut:
    """A case, or rounds of it, that the plan does not run, and why."""

    probe: str
    case: str
    reason: str


@frozen
class MemoryFile:
    """A file that is to be measured as memory, or a folder in which to make one. Sizes in bytes.

    `bytes`: of the file; of a folder, what is free there, None where that is not told. `data_bytes`: the same
    before the first hole. `dax`: mounted so for all files. `page_bytes`: of the mapping.
    """

    path: str
    folder: bool
    bytes: int | None
    data_bytes: int | None
    device: int
    inode: int
    file_system: str | None
    dax: bool
    page_bytes: int


@frozen
class LoadFile:
    """A file with weights: what it is told apart by, and its size in bytes."""

    path: str
    bytes: int
    device: int
    inode: int


@frozen
class LoadPath:
    """A place from which weights are to be loaded. `files`: those that lie there already, if any.

    Else a file of our own is made in `folder`: `free_bytes` there, `read_only` and `writable` say whether it can.
    `asked` False: the user named no place, and this one stands in.
    """

    path: str
    folder: str
    files: tuple[LoadFile, ...] = ()
    free_bytes: int | None = None
    read_only: bool = False
    writable: bool = True
    asked: bool = True


@frozen
class NetworkPeer:
    """Where another machine runs `k3gate net serve`."""

    host: str
    port: int


@frozen
class Routing:
    """A trace of experts that is to be replayed: int16 little-endian [tokens, layers, used], where it came from, and
    the tokens with which its sequences begin."""

    source: str
    digest: str
    tokens: int
    layers: int
    used: int
    experts: int
    starts: tuple[int, ...]
    ids: bytes = field(repr=False)


@frozen
class Serving:
    """A runtime that is to serve the model: started by `command`, or already there behind `endpoint`.

    `command` holds no key. `lengths`: of prompts in tokens; `streams`: answers at once; limits in seconds. `build`: the
    runtime's digest, `runtime`: its name, `programs`: files of which it must have one open. `checkpoint`: the digest of
    what was inspected, `architecture`: what it is, `files`: its files (`serving.identity.WantedFile`), `bytes`: their
    size; `tokenizer`: the path of one beside them. `seconds`: what all rounds are taken to need.
    """

    command: tuple[str, ...] | None = None
    endpoint: str | None = None
    model: str | None = None
    way: str = "chat"
    lengths: tuple[int, ...] = (256, 1024)
    tokens: int = 64
    streams: tuple[int, ...] = ()
    first_token_s: float = 1800.0
    idle_s: float = 600.0
    load_s: float = 7200.0
    runtime: str | None = None
    build: str | None = None
    programs: tuple[str, ...] = ()
    checkpoint: str | None = None
    architecture: str | None = None
    files: tuple[Mapping[str, Any], ...] = ()
    bytes: int = 0
    tokenizer: str | None = None
    seconds: float = 0.0


@frozen
class Profile:
    """A time budget, what the target wants resident (`image_bytes` None: a small pool stands in), files that
    are to be measured as memory, and places from which weights are to be loaded.

    `trunk`: how the replay lays it out, None: as the target does where there is room; `routing`: the trace that it
    replays, None: a model of routing. `load_s`: for how long of the `seconds` the whole machine is loaded at once;
    `peer`: the other end of the network, None: it is not measured; `serving`: the runtime to measure, None: none."""

    name: str
    seconds: float
    image_bytes: int | None = None
    image_detail: str = ""
    working_set_bytes: int | None = None
    memory_files: tuple[MemoryFile, ...] = ()
    trunk: str | None = None
    routing: Routing | None = None
    load_s: float = 0.0
    load_paths: tuple[LoadPath, ...] = ()
    peer: NetworkPeer | None = None
    serving: Serving | None = None


# --- the machine -----------------------------------------------------------------------------------------


@frozen
class Provenance:
    """Where a field of the inventory came from, or why it is unknown."""

    state: State
    source: str | None = None
    reason: str | None = None


@frozen
class Finding:
    """Something about the machine or its settings that a buyer must know. `code` is stable."""

    code: str
    severity: Severity
    title: str
    observed: str
    expected: str
    why: str
    remedy: str


@frozen
class Machine:
    """Which machine. `virtual` True in a VM; `hypervisor`, `container` name the kind; no serial numbers."""

    id: str | None = None
    fingerprint: str | None = None
    name: str | None = None
    vendor: str | None = None
    product: str | None = None
    board: str | None = None
    firmware: Mapping[str, str | None] = field(factory=dict)
    virtual: bool | None = None
    hypervisor: str | None = None
    container: str | None = None
    wsl: bool | None = None
    power_supplies: int | None = None


@frozen
class Cache:
    """One kind of cache. `instances` of `bytes` each; `shared_by` logical CPUs share one."""

    level: int
    kind: str
    bytes: int
    instances: int
    shared_by: int
    cpus: tuple[tuple[int, ...], ...] = ()


@frozen
class Amx:
    """Advanced Matrix Extensions: in the CPU's flags, and granted to this process by the kernel."""

    tile: bool | None = None
    int8: bool | None = None
    bf16: bool | None = None
    granted: bool | None = None


@frozen
class CpuSocket:
    """A socket of the board as the firmware tells of it; `populated` False: it is empty.

    `status`: enabled, idle, other, or disabled and by whom. Of `cores` the firmware starts `cores_enabled`.
    """

    designation: str | None = None
    populated: bool | None = None
    model: str | None = None
    cores: int | None = None
    threads: int | None = None
    max_hz: float | None = None
    status: str | None = None
    cores_enabled: int | None = None


@frozen
class ExpansionSlot:
    """An expansion slot of the board; `address` is that of the device in it, 0000:41:00.0."""

    designation: str | None = None
    kind: str | None = None
    width: str | None = None
    in_use: bool | None = None
    address: str | None = None


@frozen
class Cpu:
    """Processors. CPU lists are real ids; `core_of`, `package_of` map a CPU id to its core group and package.

    `cores` counts online physical cores, `threads` online logical CPUs.
    """

    architecture: str | None = None
    vendor: str | None = None
    model: str | None = None
    family: int | None = None
    model_number: int | None = None
    stepping: int | None = None
    microcode: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    smt: bool | None = None
    smt_control: str | None = None
    present: tuple[int, ...] | None = None
    possible: tuple[int, ...] | None = None
    online: tuple[int, ...] | None = None
    offline: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None
    siblings: tuple[tuple[int, ...], ...] = ()
    package_of: Mapping[int, int] = field(factory=dict)
    caches: tuple[Cache, ...] = ()
    isa: tuple[str, ...] = ()
    amx: Amx = field(factory=Amx)
    governor: str | None = None
    scaling_driver: str | None = None
    boost: bool | None = None
    max_hz: float | None = None
    socket_list: tuple[CpuSocket, ...] | None = None


@frozen
class HugePagePool:
    """Pages of one size: reserved in all, and free."""

    page_bytes: int
    total: int
    free: int


@frozen
class NumaNode:
    """One NUMA node by its real id. `cpus` are the online ones; `memory_bytes` None: unknown, 0: has none.

    `kind`: dram, hbm, pmem, cxl, gpu or unknown; a node with CPUs is dram or unknown. `nearest`: the node with
    CPUs nearest to a node without. `performance`: what the firmware tells CPUs of the memory, in B/s and s, by
    read_bandwidth, read_latency, write_bandwidth, write_latency.
    """

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | None
    free_bytes: int | None = None
    kind: str = "unknown"
    distances: Mapping[int, int] = field(factory=dict)
    huge_pages: tuple[HugePagePool, ...] = ()
    nearest: int | None = None
    memory_side_cache_bytes: int | None = None
    performance: Mapping[str, float] = field(factory=dict)


@frozen
class Numa:
    """The nodes. `available` False: the kernel shows no NUMA information and the one node is a stand-in."""

    available: bool
    nodes: tuple[NumaNode, ...] = ()
    contradictions: tuple[str, ...] = ()


@frozen
class Dimm:
    """One slot and what is in it. Place and locators as the board writes them; no serial number.

    `bytes` is 0 and `kind` None where nothing is installed. Kinds: dram, pmem, hbm, cxl (on a card, on no
    memory channel of a processor) and unknown.
    """

    locator: str | None = None
    bank: str | None = None
    socket: int | None = None
    controller: int | None = None
    channel: str | None = None
    slot: int | None = None
    bytes: int | None = None
    populated: bool | None = None
    kind: str | None = None
    memory_type: str | None = None
    rated_mts: int | None = None
    configured_mts: int | None = None
    rank: int | None = None
    part_number: str | None = None
    manufacturer: str | None = None
    technology: str | None = None
    data_width: int | None = None


@frozen
class Channel:
    """One memory channel. `modules` of any kind, `dram` of them DRAM; `configured_mts` its lowest rate.

    `processor` False: its socket is empty, so that the channel cannot be used.
    """

    name: str
    slots: tuple[str, ...]
    modules: int
    dram: int
    dram_bytes: int | None
    configured_mts: int | None
    processor: bool = True


@frozen
class MemoryArray:
    """A set of memory slots of the board; `maximum_bytes` is what they may hold at most."""

    location: str | None = None
    ecc: str | None = None
    maximum_bytes: int | None = None
    devices: int | None = None


@frozen
class Memory:
    """Memory in bytes, rates in MT/s. All from `slots` on is from firmware tables; None where unreadable.

    `channels` have at least one DRAM module, and `empty_channels` none though their processor is there.
    `theoretical_bytes_per_s` is populated channels x configured rate x 8; `full_bytes_per_s` that of all
    channels, as many as the table names or the processors are known to have. `derating_percent`: how far the
    module that is slowed most runs below its rated speed.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    slots: int | None = None
    populated: int | None = None
    channels: int | None = None
    configured_mts: int | None = None
    rated_mts: int | None = None
    theoretical_bytes_per_s: float | None = None
    dimms: tuple[Dimm, ...] | None = None
    full_bytes_per_s: float | None = None
    derating_percent: float | None = None
    dram_bytes: int | None = None
    pmem_bytes: int | None = None
    modules_per_channel: int | None = None
    mixed_sizes: bool | None = None
    mixed_speeds: bool | None = None
    mixed_parts: bool | None = None
    channel_list: tuple[Channel, ...] | None = None
    empty_channels: tuple[str, ...] | None = None
    arrays: tuple[MemoryArray, ...] | None = None
    notes: tuple[str, ...] = ()


@frozen
class EdacModule:
    """A memory module, rank or channel of a row of chips as an EDAC driver tells of it; `mode`: how it corrects."""

    id: str
    label: str | None = None
    location: str | None = None
    bytes: int | None = None
    memory_type: str | None = None
    mode: str | None = None
    corrected: int | None = None
    uncorrected: int | None = None


@frozen
class EdacController:
    """A memory controller and its error counts in the `seconds` since they were last set to zero."""

    id: str
    name: str | None = None
    bytes: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    seconds: int | None = None
    modules: tuple[EdacModule, ...] = ()


@frozen
class Edac:
    """Memory errors that the kernel counted. `driver_present` False: none are counted, which is not zero."""

    driver_present: bool | None = None
    controllers: tuple[EdacController, ...] = ()
    corrected: int | None = None
    uncorrected: int | None = None
    memory_type: str | None = None


@frozen
class Kernel:
    """The kernel and the settings that spoil figures, as found; nothing here is ever changed."""

    release: str | None = None
    command_line: str | None = None
    transparent_hugepage: str | None = None
    transparent_hugepage_defrag: str | None = None
    numa_balancing: bool | None = None
    overcommit_memory: int | None = None
    zone_reclaim_mode: int | None = None
    swappiness: int | None = None
    mitigations: Mapping[str, str] = field(factory=dict)
    load_average: tuple[float, float, float] | None = None
    page_bytes: int | None = None
    huge_pages: tuple[HugePagePool, ...] = ()


@frozen
class Limits:
    """What this process may use: cgroup memory and CPU time (None: no limit), locked memory, affinity.

    `restricted`: one of these, or the affinity, keeps a part of the machine from it.
    """

    cgroup_version: int | None = None
    cgroup_memory_bytes: int | None = None
    cgroup_memory_used_bytes: int | None = None
    cgroup_cpus: float | None = None
    cpuset_cpus: tuple[int, ...] | None = None
    cpuset_mems: tuple[int, ...] | None = None
    memlock_bytes: int | None = None
    usable_memory_bytes: int | None = None
    restricted: bool | None = None


@frozen
class PcieLink:
    """The PCIe link of a device, now and at best: the lower of what the device and the port above it can.

    Rates of a lane in GT/s, of the link in B/s and in one direction, after its line code and before packets.
    `device_*`, `port_*`: what each end can at most; `port`: the address of the port above.
    """

    address: str
    gt_per_s: float | None = None
    width: int | None = None
    best_gt_per_s: float | None = None
    best_width: int | None = None
    bytes_per_s: float | None = None
    best_bytes_per_s: float | None = None
    device_gt_per_s: float | None = None
    device_width: int | None = None
    port: str | None = None
    port_gt_per_s: float | None = None
    port_width: int | None = None


@frozen
class PciDevice:
    """A function on PCI. `kind`: gpu, display, network, infiniband, nvme, storage, accelerator, bridge, memory, other.

    `above`: the bridges from the root port down to the one directly above. `node`: from `node_source`, numa_node or
    local_cpulist, or the only node; None: not told. `port`: root, upstream or downstream, of a bridge.
    `redirects`: what access control (ACS) of a bridge sends up to the root; empty: nothing; None: not readable.
    `iommu`: identity (addresses pass unchanged), DMA or DMA-FQ (they are translated). Errors: since the start.
    """

    address: str
    kind: str = "other"
    class_code: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    vendor: str | None = None
    device: str | None = None
    driver: str | None = None
    node: int | None = None
    node_source: str | None = None
    link: PcieLink | None = None
    above: tuple[str, ...] = ()
    port: str | None = None
    slot: str | None = None
    virtual_of: str | None = None
    redirects: tuple[str, ...] | None = None
    iommu: str | None = None
    bar_bytes: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None


@frozen
class NetworkAdapter:
    """A network interface of a device, or a port of an RDMA device (mlx5_0/1); never its MAC.

    `kind`: ethernet, infiniband, wireless, virtual or other. `bytes_per_s`: its line rate, None: it tells none, as
    without a cable. `verbs`: the RDMA device of the same adapter.
    """

    name: str
    kind: str
    address: str | None = None
    state: str | None = None
    mtu: int | None = None
    bytes_per_s: float | None = None
    driver: str | None = None
    node: int | None = None
    link: PcieLink | None = None
    verbs: str | None = None


@frozen
class NvLink:
    """One link between GPUs, or to a switch of them. `bytes_per_s`: in one direction; `peer`: its PCI address."""

    number: int
    active: bool | None = None
    version: int | None = None
    bytes_per_s: float | None = None
    peer: str | None = None


@frozen
class GpuPart:
    """A part of a GPU that is split into several (MIG): what it is called, and its memory."""

    name: str | None = None
    memory_bytes: int | None = None


@frozen
class Gpu:
    """A GPU. `state` other than OK: it is there and cannot be asked, and `reason` says why.

    `source`: nvml, nvidia-smi, amdgpu or sysfs. `shared_memory`: it has none of its own. `bar_bytes`: of its memory, so
    much the CPU can reach at once. `power_source` names what told `power_w`. `throttle`: why it is slowed down now.
    `ecc_corrected`, `ecc_uncorrected`: since the driver was loaded; `_lifetime`: in all. `parts`: of a partitioned one.
    `peers`: by address, what lies between; `peer_access`: by address, whether copies may go there directly, in words.
    `unknown`: of fields that are None, why. Hz, W, degC.
    """

    name: str | None = None
    vendor: str | None = None
    address: str | None = None
    state: State = State.OK
    reason: str | None = None
    source: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    shared_memory: bool | None = None
    bar_bytes: int | None = None
    node: int | None = None
    link: PcieLink | None = None
    clocks: Mapping[str, float] = field(factory=dict)
    max_clocks: Mapping[str, float] = field(factory=dict)
    power_w: float | None = None
    power_source: str | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_max_w: float | None = None
    temperature: float | None = None
    performance_state: str | None = None
    throttle: tuple[str, ...] | None = None
    ecc: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected_lifetime: int | None = None
    ecc_uncorrected_lifetime: int | None = None
    repair_pending: bool | None = None
    repair_failed: bool | None = None
    partitioned: bool | None = None
    parts: tuple[GpuPart, ...] = ()
    partition_mode: str | None = None
    replays: int | None = None
    nvlinks: tuple[NvLink, ...] = ()
    peers: Mapping[str, str] = field(factory=dict)
    peer_access: Mapping[str, str] = field(factory=dict)
    unknown: Mapping[str, str] = field(factory=dict)


@frozen
class DriveHealth:
    """What the SMART log of an NVMe drive tells. Temperatures in degC; counts and seconds over the drive's life.

    `light_*`, `heavy_*`: how often and how long the drive slowed itself down, by its first and second limit;
    `warning_seconds`, `critical_seconds`: in steps of a minute, how long it was hotter than these limits.
    """

    temperature: float | None = None
    sensors: Mapping[str, float] = field(factory=dict)
    warning_seconds: int | None = None
    critical_seconds: int | None = None
    light_throttles: int | None = None
    light_throttle_seconds: int | None = None
    heavy_throttles: int | None = None
    heavy_throttle_seconds: int | None = None
    media_errors: int | None = None
    used_percent: int | None = None
    spare_percent: int | None = None
    critical_warning: int | None = None


@frozen
class Drive:
    """A drive as the kernel shows it; no serial number. `id`: its place, the same after each start.

    `kind`: nvme, sata, sas, scsi, virtio, xen, mmc, pmem, or other. `node` None: the firmware does not tell.
    `largest_io_bytes`: what the kernel hands to the drive at once. `discard_bytes` 0: it cannot.
    """

    id: str
    name: str
    number: str | None = None
    kind: str = "other"
    controller: str | None = None
    transport: str | None = None
    vendor: str | None = None
    model: str | None = None
    firmware: str | None = None
    bytes: int | None = None
    node: int | None = None
    link: PcieLink | None = None
    rotational: bool | None = None
    removable: bool | None = None
    read_only: bool | None = None
    state: str | None = None
    scheduler: str | None = None
    logical_block_bytes: int | None = None
    physical_block_bytes: int | None = None
    optimal_io_bytes: int | None = None
    largest_io_bytes: int | None = None
    discard_bytes: int | None = None
    requests: int | None = None
    queues: int | None = None
    write_cache: str | None = None
    health: DriveHealth | None = None


@frozen
class BlockLayer:
    """A block device that is made of others, named in `on`: a partition, RAID, a volume, an encrypted one.

    `kind`: partition, lvm, crypt, raid0 and other levels, multipath, loop, bcache, mapped, or file (a loop
    device's). `degraded`: so many members are missing.
    """

    name: str
    number: str | None
    kind: str
    on: tuple[str, ...] = ()
    bytes: int | None = None
    logical_block_bytes: int | None = None
    chunk_bytes: int | None = None
    degraded: int | None = None


@frozen
class StoragePath:
    """What a path lies on: its mount, and the layers below down to the drives (by `name`), top first.

    `kind`: block, memory (a tmpfs: no storage at all), network, pool (ZFS: its drives are not told by files) or
    unknown, and `reason` says why. `logical_block_bytes`: the largest of the stack, for direct reads.
    """

    path: str
    kind: str
    summary: str
    mount_point: str | None = None
    file_system: str | None = None
    number: str | None = None
    layers: tuple[BlockLayer, ...] = ()
    drives: tuple[str, ...] = ()
    encrypted: bool = False
    dax: bool = False
    logical_block_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    reason: str | None = None


@frozen
class PmemNamespace:
    """A piece of persistent memory as the nd bus has it. `mode`: memory (fsdax), dax (devdax), safe (sector), raw."""

    id: str
    mode: str | None = None
    bytes: int | None = None
    node: int | None = None
    device: str | None = None
    region: str | None = None


@frozen
class Storage:
    """The drives of the machine, and what the paths lie on that were asked about."""

    drives: tuple[Drive, ...] = ()
    paths: tuple[StoragePath, ...] = ()
    pmem: tuple[PmemNamespace, ...] = ()


@frozen
class SensorReading:
    """A sensor and what it told. `id`: chip, place and label, the same after each start.

    `role`: cpu, module, drive, gpu, board, or bmc; `of`: the package, the drive's controller or None. Units: degC,
    rpm, W, V, A, J, Hz. `value` None: `state` and `reason` say why. `offset`: a control value, of which only the
    distance to a limit means anything.
    """

    id: str
    chip: str
    label: str
    quantity: str
    unit: str
    role: str = "board"
    of: str | None = None
    value: float | None = None
    maximum: float | None = None
    critical: float | None = None
    minimum: float | None = None
    offset: bool = False
    state: State = State.OK
    reason: str | None = None
    source: str | None = None


@frozen
class PowerZone:
    """An energy counter of the processor (RAPL). It starts again from 0 beyond `range_j`. `limits`: W by name.

    `package` None: of the whole platform. `state`: whether its energy may be read, which mostly only root may.
    """

    id: str
    domain: str
    package: int | None = None
    range_j: float | None = None
    enabled: bool | None = None
    limits: Mapping[str, float] = field(factory=dict)
    state: State = State.OK
    reason: str | None = None
    source: str | None = None


@frozen
class EventCounter:
    """A count since the start of the system. `kind`: throttle, corrected or uncorrected; `domain`: what it is of."""

    id: str
    kind: str
    domain: str
    value: int | None = None
    source: str | None = None


@frozen
class Bmc:
    """The management controller: how it may be asked from here. `state` OK: by `interface`."""

    state: State
    reason: str | None = None
    interface: str | None = None


@frozen
class Sensors:
    """What the machine tells of its heat, power, throttling and errors."""

    readings: tuple[SensorReading, ...] = ()
    power_zones: tuple[PowerZone, ...] = ()
    counters: tuple[EventCounter, ...] = ()
    bmc: Bmc | None = None


@frozen
class Inventory:
    """What this machine is. `provenance` maps a dotted field ("cpu.model") to its source or its reason."""

    machine: Machine
    cpu: Cpu
    numa: Numa
    memory: Memory
    kernel: Kernel
    limits: Limits
    pci: tuple[PciDevice, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    network: tuple[NetworkAdapter, ...] | None = None
    storage: Storage | None = None
    sensors: Sensors | None = None
    slots: tuple[ExpansionSlot, ...] | None = None
    edac: Edac | None = None
    findings: tuple[Finding, ...] = ()
    provenance: Mapping[str, Provenance] = field(factory=dict)
    root: str = "/"


# --- the run and its judgement ---------------------------------------------------------------------------


@frozen
class Run:
    """One execution on one machine. Stamps: ISO 8601, UTC, as the wall clock had them; `seconds`: monotonic.

    `target`: the name of a shipped one, or the path of a file, whose content is `target_text`.
    """

    id: str
    machine: str | None
    fingerprint: str | None
    machine_name: str | None
    profile: str
    version: str
    started: str
    ended: str | None
    status: RunStatus
    seconds: float | None = None
    target: str | None = None
    command: str | None = None
    notices: tuple[str, ...] = ()
    split: Mapping[str, float] = field(factory=dict)
    plan: tuple[Case, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    target_text: str | None = None


@frozen
class Series:
    """A quantity that was watched while a run went on. A value holds from its time until the next one.

    `times`: seconds since the run began, rising. A value of None: it could not be read then. `labels` tell of what
    it is: sensor, role, of, limit; drive; zone; counter, kind, domain.
    """

    name: str
    unit: str
    labels: Labels
    times: tuple[float, ...]
    values: tuple[float | None, ...]


@frozen
class Phase:
    """When a round of a case ran, in seconds since the run began, as its parent process saw it."""

    probe: str
    case: str
    round: int
    start_s: float
    end_s: float


@frozen
class Evidence:
    """A fact gathered about a subject (checkpoint, converted file, runtime build, machine), by its digest."""

    check: str
    subject: str
    subject_kind: str
    verdict: Verdict
    detail: str
    gathered: str
    data: Mapping[str, Any] = field(factory=dict)


@frozen
class Waiver:
    """A person's decision to let one check be. Bound to check, run, criteria, target and observed value.

    `criteria` and `target` are hashes; `target` None: given before waivers were bound to it.
    """

    id: int | None
    run: str
    check: str
    criteria: str
    observed: str
    verdict: Verdict
    who: str
    when: str
    why: str
    target: str | None = None


@frozen
class RunRecord:
    """All that the gate, the analysis and the report see of a run."""

    run: Run
    inventory: Inventory
    outcomes: tuple[Outcome, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    series: tuple[Series, ...] = ()
    phases: tuple[Phase, ...] = ()


@frozen
class Bound:
    """The range in which a check passes; None: open on that side."""

    min: float | None = None
    max: float | None = None


@frozen
class CheckResult:
    """A judged check. `observed` is a number in `unit`, a word, or None; `evidence` names rows of the run.

    `decided` is the verdict that the evidence gives; `verdict` differs from it only by a waiver.
    """

    id: str
    claim: str
    verdict: Verdict
    decided: Verdict
    observed: float | str | None = None
    interval: Interval | None = None
    bound: Bound = field(factory=Bound)
    unit: str | None = None
    reason: str | None = None
    source: str | None = None
    remedy: str | None = None
    waiver: Waiver | None = None
    evidence: tuple[str, ...] = ()


@frozen
class StepResult:
    """One of the seven steps and its checks."""

    step: int
    name: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]
    question: str = ""


@frozen
class GateResult:
    """The judgement of a run against criteria and target; both are kept by hash and text."""

    run: str
    target: str
    target_hash: str
    criteria: str
    criteria_hash: str
    verdict: Verdict
    waivers: int
    steps: tuple[StepResult, ...]
    version: str = ""
    evaluated: str = ""
    notices: tuple[str, ...] = ()
