"""The registry of metric names: unit, direction, and a sentence saying what is divided by what.

A probe of a third party declares its own through its `metrics` attribute; `declare` refuses a name that is
already taken with another meaning. Names that no probe of this version measures are declared too, since the
shipped criteria speak of them.
"""

from __future__ import annotations

from k3gate.errors import UsageError
from k3gate.records import Better, MetricDeclaration

_REGISTRY: dict[str, MetricDeclaration] = {}


def declare(*declarations: MetricDeclaration) -> None:
    """Add declarations; raises `UsageError` where a name is taken with another unit or direction."""
    for new in declarations:
        old = _REGISTRY.setdefault(new.name, new)
        if (old.unit, old.better, old.exact) != (new.unit, new.better, new.exact):
            raise UsageError(
                f"metric {new.name!r} is declared twice, as {old.unit} ({old.better}) and as "
                f"{new.unit} ({new.better}): rename one"
            )


def find(name: str) -> MetricDeclaration | None:
    """The declaration of a metric, or None where the name is unknown."""
    return _REGISTRY.get(name)


def names() -> tuple[str, ...]:
    """All declared names, sorted."""
    return tuple(sorted(_REGISTRY))


def _metric(
    name: str, unit: str, better: Better, title: str, divides: str, exact: bool = False
) -> MetricDeclaration:
    return MetricDeclaration(name, unit, better, title, divides, exact)


CORE_CLOCK = _metric(
    "cpu.clock.achieved",
    "Hz",
    Better.NEITHER,
    "Clock that the slowest core achieves right after a load",
    "dependent multiplications of 3 cycles each, times 3, divided by the wall time they take; the least of the "
    "cores, within a millisecond after the timed regions",
)
MEMORY_READ = _metric(
    "memory.bandwidth.read",
    "B/s",
    Better.HIGHER,
    "Sustained read bandwidth",
    "bytes loaded by all threads divided by the wall time of their common window; a load-only kernel, "
    "so counted bytes are bus bytes",
)
EXPERT_READ = _metric(
    "memory.bandwidth.expert_read",
    "B/s",
    Better.HIGHER,
    "Read bandwidth of routed experts in random order",
    "bytes loaded by all threads divided by the wall time of their common window; tensors of experts of "
    "17,547,264 bytes, each expert of the pool once a pass in random order",
)
_STORES = (
    " all threads divided by the wall time of their common window; the label stores says how it stores, and a "
    "cached store makes the bus carry bus_bytes_per_word for counted_bytes_per_word"
)
MEMORY_WRITE = _metric(
    "memory.bandwidth.write",
    "B/s",
    Better.HIGHER,
    "Sustained write bandwidth",
    "bytes stored by" + _STORES,
)
MEMORY_COPY = _metric(
    "memory.bandwidth.copy",
    "B/s",
    Better.HIGHER,
    "Sustained copy bandwidth",
    "bytes loaded and bytes stored by" + _STORES,
)
MEMORY_TRIAD = _metric(
    "memory.bandwidth.triad",
    "B/s",
    Better.HIGHER,
    "Sustained bandwidth of the triad a = b + 3 c",
    "bytes loaded and bytes stored by" + _STORES,
)
LATENCY_IDLE = _metric(
    "memory.latency.idle",
    "s",
    Better.LOWER,
    "Idle memory latency",
    "wall time of a chain of dependent random loads divided by the number of loads, nothing else running",
)
LATENCY_LOADED = _metric(
    "memory.latency.loaded",
    "s",
    Better.LOWER,
    "Memory latency under load",
    "wall time of a chain of dependent random loads divided by the number of loads, while other threads read; "
    "to be seen against the bandwidth that they reached, memory.bandwidth.under_load",
)
UNDER_LOAD = _metric(
    "memory.bandwidth.under_load",
    "B/s",
    Better.HIGHER,
    "Read bandwidth beside a latency chain",
    "bytes loaded by the loading threads divided by the wall time of their common window, while one thread "
    "followed the chain whose latency has the same labels",
)
FILE_READ = _metric(
    "memory.file.read",
    "B/s",
    Better.HIGHER,
    "Read bandwidth of a mapped file",
    "bytes of the mapping loaded by all threads divided by the wall time of their common window; a load-only "
    "kernel, the file in memory (its page cache, or memory that is its device)",
)
FILE_EXPERTS = _metric(
    "memory.file.expert_read",
    "B/s",
    Better.HIGHER,
    "Read bandwidth of a mapped file, in experts in random order",
    "as memory.file.read; whole tensors of experts of 17,547,264 bytes, each expert of the mapping once a pass in "
    "random order",
)
FILE_LATENCY = _metric(
    "memory.file.latency",
    "s",
    Better.LOWER,
    "Latency of a mapped file",
    "wall time of loads in random order, each waiting for the one before, divided by the number of loads, nothing "
    "else running",
)
RESIDENCY_BYTES = _metric(
    "memory.residency.bytes",
    "B",
    Better.HIGHER,
    "Memory image held and verified",
    "bytes of anonymous memory that were allocated, touched and found with the right pattern",
    exact=True,
)
RESIDENCY_RATE = _metric(
    "memory.residency.touch_rate",
    "B/s",
    Better.HIGHER,
    "First-touch rate of the image",
    "bytes of the image divided by the seconds that all threads took to touch it for the first time",
)
SELFTEST_RATE = _metric(
    "selftest.hash_rate",
    "B/s",
    Better.HIGHER,
    "SHA-256 rate of the self-test",
    "bytes hashed divided by the seconds it took; says that the harness works, nothing about memory",
)

KERNEL_EXPERT = _metric(
    "kernel.expert.rate",
    "B/s",
    Better.HIGHER,
    "Weights through the block of routed experts",
    "bytes of MXFP4 weights, 17,547,264 an expert, that all threads multiplied with the activations of the label's "
    "tokens (gate, up, SiTU, down), divided by the wall time of their common window",
)
KERNEL_WEIGHTS = _metric(
    "kernel.product.weight_rate",
    "B/s",
    Better.HIGHER,
    "Weights through a product",
    "bytes of weights, as their format has them, that all threads multiplied with the activations of the label's "
    "tokens, divided by the wall time of their common window; activations are rounded within it",
)
KERNEL_PEER = _metric(
    "kernel.peer.weight_rate",
    "B/s",
    Better.HIGHER,
    "Weights through a product of another library",
    "bytes of weights that one thread of the library of the label multiplied with the label's tokens, divided by the "
    "wall time of its call",
)
KERNEL_FLOPS = _metric(
    "kernel.product.flops",
    "FLOP/s",
    Better.HIGHER,
    "Arithmetic of a product",
    "two operations for each weight and token, of all threads, divided by the wall time of their common window",
)
KERNEL_PEAK = _metric(
    "kernel.peak.flops",
    "FLOP/s",
    Better.HIGHER,
    "Arithmetic on registers alone",
    "operations of the label's instruction set on its type, twelve independent sums a core, of all threads, divided "
    "by the wall time of their common window",
)
TILE_CYCLES = 16
"""What a tile product takes its unit, where a vector instruction takes one cycle (Intel, optimization reference manual,
on AMX)."""
KERNEL_PER_CYCLE = _metric(
    "kernel.peak.per_cycle",
    "1",
    Better.NEITHER,
    "Instructions of arithmetic in a cycle",
    "operations a second on registers divided by threads, by operations of an instruction, and by the clock that the "
    "slowest core achieved right after",
)
REPLAY_RATE = _metric(
    "replay.miniature.rate",
    "tokens/s",
    Better.HIGHER,
    "Decode rate of a miniature of Kimi K3, each sequence",
    "decoded tokens of one sequence divided by the wall time of the steps; a miniature of true widths, with the "
    "label's layers and experts",
)
REPLAY_BANDWIDTH = _metric(
    "replay.bandwidth",
    "B/s",
    Better.HIGHER,
    "Bytes that the replay moves",
    "bytes of weights, states and caches that the steps read and wrote, as counted by the replay, divided by their "
    "wall time",
)
REPLAY_PART = _metric(
    "replay.part.seconds",
    "s",
    Better.LOWER,
    "Time of a step by part",
    "wall time of a step that the label's part takes: of each phase the time of its slowest thread, and the rest as "
    "synchronisation",
)
REPLAY_BYTES = _metric(
    "replay.part.bytes",
    "B",
    Better.NEITHER,
    "Bytes of a step by part",
    "bytes that the label's part reads and writes in all steps that were timed, divided by their number",
    exact=True,
)
REPLAY_CROSSED = _metric(
    "replay.crossed.bytes",
    "B",
    Better.LOWER,
    "Bytes of a step that cross memory nodes",
    "bytes that threads copied from another node's memory in all steps that were timed, divided by their number",
    exact=True,
)
SUSTAINED_RATIO = _metric(
    "sustained.ratio",
    "1",
    Better.HIGHER,
    "Rate under lasting load",
    "mean rate of a part of the machine over the last minute of the load, or its last tenth, divided by that of the "
    "first minute after warm-up; its interval, of blocks of both, is in the judgement",
    exact=True,
)
SUSTAINED_RATE = _metric(
    "sustained.rate",
    "B/s",
    Better.HIGHER,
    "Rate at the end of a lasting load",
    "bytes that the threads of a part counted in the last part of the load, divided by its time; of kernels bytes of "
    "weights, while memory is read too",
    exact=True,
)
STORAGE_READ = _metric(
    "storage.read.rate",
    "B/s",
    Better.HIGHER,
    "Load rate of the checkpoint's storage",
    "bytes read from files past the page cache divided by the wall time of the threads' common window",
)
STORAGE_CPU = _metric(
    "storage.read.cpu",
    "s/B",
    Better.LOWER,
    "CPU time of reading past the page cache",
    "CPU seconds of the reading threads, in user and kernel mode, divided by the bytes that they read; 1e-10 s/B are "
    "10 % of a core per GB/s",
)
STORAGE_LOADER = _metric(
    "storage.loader.rate",
    "B/s",
    Better.HIGHER,
    "Load rate the way loaders read",
    "bytes read through a page cache that was cold, divided by the wall time; the label way says how",
)
STORAGE_CACHED = _metric(
    "storage.cached.rate",
    "B/s",
    Better.HIGHER,
    "Load rate from the page cache, no figure of storage",
    "bytes of a file in the page cache that one thread copied into fresh memory, divided by the wall time",
)
STORAGE_STEADY = _metric(
    "storage.steady.rate",
    "B/s",
    Better.HIGHER,
    "Load rate that storage keeps up",
    "bytes read past the page cache in the last third of a long read, divided by the wall time of that third",
    exact=True,
)
STORAGE_COURSE = _metric(
    "storage.course.rate",
    "B/s",
    Better.HIGHER,
    "Load rate in the course of a long read",
    "bytes read past the page cache in each piece of a long read, divided by the wall time of that piece",
    exact=True,
)
STORAGE_PEER = _metric(
    "storage.peer.rate",
    "B/s",
    Better.HIGHER,
    "Load rate as fio measures it",
    "bytes that fio read past the page cache, of the same files by the same blocks, threads and depth, divided by its "
    "own run time",
)
STORAGE_HASH = _metric(
    "storage.hash.rate",
    "B/s",
    Better.HIGHER,
    "Rate of k3gate's checksums",
    "bytes in memory whose SHA-256 was computed by one thread for each physical core, divided by the wall time",
)
STORAGE_MADE = _metric(
    "storage.made.bytes",
    "B",
    Better.NEITHER,
    "File made to be read",
    "incompressible bytes written into a file without a name, and flushed",
    exact=True,
)
OTHER_SHARE = _metric(
    "machine.cpu.other_share",
    "1",
    Better.LOWER,
    "Share of CPU time that went to others",
    "CPU seconds used by processes that are not of this run, divided by the CPU seconds that all online CPUs "
    "had, over the time that workers ran",
    exact=True,
)
STEAL_SHARE = _metric(
    "machine.cpu.steal_share",
    "1",
    Better.LOWER,
    "Share of CPU time that a hypervisor took",
    "CPU seconds booked as stolen, divided by the CPU seconds that all online CPUs had, over the time that "
    "workers ran",
    exact=True,
)

# What the monitor of a run gives: circumstances of the machine, each of one sitting.
ERRORS_CORRECTED = _metric(
    "machine.errors.corrected",
    "1",
    Better.LOWER,
    "Errors that were corrected during the run",
    "rise of the counters of memory controllers, PCIe devices, machine checks or drives from before the first worker "
    "to after the last",
    exact=True,
)
ERRORS_UNCORRECTED = _metric(
    "machine.errors.uncorrected",
    "1",
    Better.LOWER,
    "Errors that could not be corrected during the run",
    "as of the corrected ones",
    exact=True,
)
THROTTLE_EVENTS = _metric(
    "machine.throttle.events",
    "1",
    Better.LOWER,
    "Throttling during the run",
    "rise of the counters of processors, and of the throttled seconds and events of drives",
    exact=True,
)
TEMPERATURE_HIGHEST = _metric(
    "machine.temperature.highest",
    "degC",
    Better.LOWER,
    "Highest temperature during the run",
    "the highest reading of a sensor; a value that cannot be true is none",
    exact=True,
)
TEMPERATURE_ROOM = _metric(
    "machine.temperature.room",
    "degC",
    Better.HIGHER,
    "Distance of the highest temperature to the sensor's limit",
    "the lower of the limits that the sensor tells, less its highest reading",
    exact=True,
)
POWER_MEAN = _metric(
    "machine.power.mean",
    "W",
    Better.NEITHER,
    "Mean power while cases ran",
    "the mean over the time of all rounds; of processors the rise of an energy counter divided by the time",
    exact=True,
)
POWER_HIGHEST = _metric(
    "machine.power.highest",
    "W",
    Better.NEITHER,
    "Highest power during the run",
    "the highest reading",
    exact=True,
)
PROCESS_SHARE = _metric(
    "machine.process.cpu_share",
    "1",
    Better.LOWER,
    "Share of CPU time that a process of others took",
    "CPU seconds of processes of one name, divided by the CPU seconds that all online CPUs had",
    exact=True,
)
LOAD = _metric(
    "machine.load",
    "1",
    Better.LOWER,
    "Load average over the last minute, before and after",
    "processes that run or wait for a drive, on average; that after the run holds its own load too",
    exact=True,
)
DISK_OTHER = _metric(
    "machine.disk.other_rate",
    "B/s",
    Better.LOWER,
    "Traffic of drives that was not ours",
    "bytes that all drives moved less those that this run moved, divided by its wall time",
    exact=True,
)
MONITOR_CPU = _metric(
    "machine.monitor.cpu_share",
    "1",
    Better.LOWER,
    "CPU time of the monitor, as a share of one core",
    "CPU seconds of its threads divided by the wall time",
    exact=True,
)
MONITOR_LATENESS = _metric(
    "machine.monitor.lateness",
    "s",
    Better.LOWER,
    "How late a source was read at worst",
    "start of the latest reading less its point on the grid",
    exact=True,
)
MONITOR_MISSED = _metric(
    "machine.monitor.missed",
    "1",
    Better.LOWER,
    "Points of the grid that a source missed",
    "points that passed while it was being read",
    exact=True,
)
MONITOR_FAILED = _metric(
    "machine.monitor.failed",
    "1",
    Better.LOWER,
    "Readings of a source that failed",
    "readings that gave no value",
    exact=True,
)
LINK_RATE = _metric(
    "pcie.link.rate",
    "B/s",
    Better.HIGHER,
    "PCIe link under load",
    "what the lanes carry in one direction by their number and rate, read while the device was copying",
    exact=True,
)
declare(LINK_RATE)
declare(ERRORS_CORRECTED, ERRORS_UNCORRECTED, THROTTLE_EVENTS, TEMPERATURE_HIGHEST, TEMPERATURE_ROOM)
declare(POWER_MEAN, POWER_HIGHEST, PROCESS_SHARE, LOAD, DISK_OTHER)
declare(MONITOR_CPU, MONITOR_LATENESS, MONITOR_MISSED, MONITOR_FAILED)

declare(MEMORY_WRITE, MEMORY_COPY, MEMORY_TRIAD)
declare(CORE_CLOCK)
declare(MEMORY_READ, EXPERT_READ, LATENCY_IDLE, LATENCY_LOADED, UNDER_LOAD)
declare(KERNEL_PEER)
declare(KERNEL_EXPERT, KERNEL_WEIGHTS, KERNEL_FLOPS, KERNEL_PEAK, KERNEL_PER_CYCLE)
declare(REPLAY_RATE, REPLAY_BANDWIDTH, REPLAY_PART, REPLAY_BYTES, REPLAY_CROSSED)
declare(FILE_READ, FILE_EXPERTS, FILE_LATENCY)
declare(SUSTAINED_RATIO, SUSTAINED_RATE)
declare(STORAGE_READ, STORAGE_CPU, STORAGE_LOADER, STORAGE_CACHED, STORAGE_STEADY, STORAGE_COURSE)
declare(STORAGE_PEER, STORAGE_HASH, STORAGE_MADE)
declare(RESIDENCY_BYTES, RESIDENCY_RATE, SELFTEST_RATE, OTHER_SHARE, STEAL_SHARE)

# Between two machines. Payload of TCP is counted, without the heads of packets.
NETWORK_RATE = _metric(
    "network.bandwidth",
    "B/s",
    Better.HIGHER,
    "Bandwidth between this machine and the peer",
    "payload bytes that arrived over all TCP streams in a window of the receiver's clock, divided by its length",
)
NETWORK_SHARE = _metric(
    "network.link_share",
    "1",
    Better.HIGHER,
    "Node to node rate as a share of the link",
    "received bytes per second divided by the line rate of the slower end",
)
NETWORK_LINE = _metric(
    "network.line_rate",
    "B/s",
    Better.HIGHER,
    "Line rate of the network",
    "bits a second of the slower of the two interfaces, as their drivers tell it, divided by 8",
    exact=True,
)
NETWORK_MTU = _metric(
    "network.path_mtu",
    "B",
    Better.NEITHER,
    "Largest packet of the path to the peer",
    "bytes of the largest packet that the kernel sends there in one piece",
    exact=True,
)
NETWORK_TRIP = _metric(
    "network.latency",
    "s",
    Better.LOWER,
    "Round trip of a message to the peer and back",
    "wall time from sending a message of the label's bytes until all of it has come back; the median of a round",
)
NETWORK_TRIP_99 = _metric(
    "network.latency.p99",
    "s",
    Better.LOWER,
    "Round trip that 1 % of the messages exceed",
    "as network.latency; the 99th percentile of a round",
)
NETWORK_CPU = _metric(
    "network.cpu_seconds",
    "s",
    Better.LOWER,
    "CPU time of moving a gigabyte",
    "CPU seconds of the threads that send or receive at the label's end, divided by the gigabytes that they moved",
)
NETWORK_RESENT = _metric(
    "network.resent",
    "1",
    Better.LOWER,
    "Segments that were sent again",
    "segments that the senders of all streams of a round repeated, as the kernel counts them",
    exact=True,
)
NETWORK_IPERF3 = _metric(
    "network.iperf3.bandwidth",
    "B/s",
    Better.HIGHER,
    "Bandwidth that iperf3 measures on the same path",
    "bytes that iperf3's receiver got, divided by its seconds",
)
NETWORK_RDMA = _metric(
    "network.rdma.bandwidth",
    "B/s",
    Better.HIGHER,
    "Bandwidth of RDMA writes to the peer",
    "the average of perftest's ib_write_bw, messages of 1 MiB",
)
NETWORK_RDMA_LATENCY = _metric(
    "network.rdma.latency",
    "s",
    Better.LOWER,
    "Latency of an RDMA message, one way",
    "the typical time of perftest's ib_send_lat, messages of 7 KiB: half of a round trip",
)
declare(NETWORK_RATE, NETWORK_SHARE, NETWORK_LINE, NETWORK_MTU, NETWORK_TRIP, NETWORK_TRIP_99)
declare(NETWORK_CPU, NETWORK_RESENT, NETWORK_IPERF3, NETWORK_RDMA, NETWORK_RDMA_LATENCY)

# Between host memory and GPUs, in one direction.
PCIE_COPY = _metric(
    "pcie.copy.rate",
    "B/s",
    Better.HIGHER,
    "Copy rate between host memory and a GPU",
    "bytes of a batch of copies divided by its time between two events of the GPU; the copies wait until all are "
    "queued, so that launching them does not count; of pageable memory, wall time of the calls; of all GPUs at once, "
    "of the slowest",
)
PCIE_SHARE = _metric(
    "pcie.copy.link_share",
    "1",
    Better.HIGHER,
    "Copy rate between host memory and a GPU as a share of its link",
    "copied bytes per second divided by what the lanes carry in one direction by their number and rate, as the link "
    "was seen under that load",
)
PCIE_DRAM = _metric(
    "pcie.copy.dram_rate",
    "B/s",
    Better.HIGHER,
    "Read bandwidth of memory beside copies",
    "bytes that the other cores of the node load from the memory that is copied from and to, divided by the wall time",
)
PCIE_TRIP = _metric(
    "pcie.trip",
    "s",
    Better.LOWER,
    "Round trip of a token's activations of one layer",
    "the time of 92 pairs of copies of 7 KiB, each from the GPU to host memory and back, divided by 92; the label says "
    "whether all were queued before and timed by events, or each was waited for by a Python program",
)
PCIE_TOKEN = _metric(
    "pcie.trip.token",
    "s",
    Better.LOWER,
    "Round trips of a token's activations of all layers",
    "as pcie.trip, of all 92 layers with routed experts",
)
PCIE_PINNED = _metric(
    "pcie.pinned_bytes",
    "B",
    Better.HIGHER,
    "Host memory that could be locked for copies",
    "bytes of the largest buffer that the driver locked, of those that were tried",
    exact=True,
)
PCIE_DEVICE = _metric(
    "pcie.device.bandwidth",
    "B/s",
    Better.HIGHER,
    "Bandwidth of a GPU's own memory",
    "twice the bytes that are copied within it, as each is read and written, divided by the time between two events",
)
PCIE_PEER = _metric(
    "pcie.peer.rate",
    "B/s",
    Better.HIGHER,
    "Copy rate from one GPU to another",
    "bytes of a batch of copies divided by its time between two events of the GPU that receives them",
)
PCIE_NVBANDWIDTH = _metric(
    "pcie.nvbandwidth.rate",
    "B/s",
    Better.HIGHER,
    "Copy rate that nvbandwidth measures",
    "as nvbandwidth tells it for the copy engines, in units of 10^9 bytes a second",
)
PCIE_SLOWED = _metric(
    "pcie.gpu.slowed_share",
    "1",
    Better.LOWER,
    "How often a GPU was slowed down while it copied",
    "readings in which NVIDIA's library named hardware slowdown, heat or a power brake as holding clocks down, divided "
    "by all readings while copies were under way",
    exact=True,
)
declare(PCIE_COPY, PCIE_SHARE, PCIE_DRAM, PCIE_TRIP, PCIE_TOKEN, PCIE_PINNED, PCIE_SLOWED)
declare(PCIE_DEVICE, PCIE_PEER, PCIE_NVBANDWIDTH)

# A runtime that serves the model.
SERVED_LOAD = _metric(
    "prototype.load.seconds",
    "s",
    Better.LOWER,
    "Load time of the runtime",
    "wall time from starting the runtime to its first answer; what of the files was in memory before is its proof",
    exact=True,
)
SERVED_PEAK = _metric(
    "prototype.memory.peak",
    "B",
    Better.LOWER,
    "Peak memory of the running runtime",
    "largest resident memory of all processes of the runtime, shared pages counted once",
    exact=True,
)
SERVED_PLACED = _metric(
    "prototype.memory.placed",
    "B",
    Better.NEITHER,
    "Memory of the running runtime by memory node",
    "pages of all processes of the runtime on the label's node, by numa_maps, times their size; pages that several "
    "processes map count for each",
    exact=True,
)
SERVED_GROWTH = _metric(
    "prototype.memory.growth",
    "B",
    Better.LOWER,
    "Memory that the runtime takes with a token",
    "rise of resident memory of no file, from ready to the end, divided by the tokens read and written meanwhile",
    exact=True,
)
SERVED_CORES = _metric(
    "prototype.cpu.cores",
    "1",
    Better.NEITHER,
    "Cores that the runtime keeps busy",
    "CPU seconds of all processes of the runtime divided by the wall time of the requests",
    exact=True,
)
SERVED_FIRST = _metric(
    "prototype.first_token.seconds",
    "s",
    Better.LOWER,
    "Time to first token",
    "wall time from sending a request to its first token in any channel, queueing in it",
    exact=True,
)
SERVED_PREFILL = _metric(
    "prototype.prefill.rate",
    "tokens/s",
    Better.HIGHER,
    "Prefill rate of the runtime",
    "prompt tokens divided by the time to first token, nothing cached",
)
SERVED_DECODE = _metric(
    "prototype.decode.rate",
    "tokens/s",
    Better.HIGHER,
    "Decode rate of the runtime, each sequence",
    "generated tokens of one sequence after its first, divided by the time that they took; of the steady part",
)
SERVED_CHUNKS = _metric(
    "prototype.chunk.rate",
    "chunks/s",
    Better.NEITHER,
    "Chunks of an answer whose tokens nobody counts",
    "chunks of one sequence after its first, divided by the time that they took",
)
SERVED_GAP = _metric(
    "prototype.token.gap",
    "s",
    Better.LOWER,
    "Inter-token latency",
    "wall time from each chunk with text to the next one of the same answer",
    exact=True,
)
SERVED_TOGETHER = _metric(
    "prototype.together.rate",
    "tokens/s",
    Better.HIGHER,
    "Decode rate of all sequences together",
    "tokens of all sequences while all of them decode, divided by that time",
)
SERVED_COMPLETED = _metric(
    "prototype.concurrency.completed_share",
    "1",
    Better.HIGHER,
    "Requests that completed under the target's concurrency",
    "requests answered in full divided by requests sent",
    exact=True,
)
SERVED_RETRIES = _metric(
    "prototype.retries",
    "1",
    Better.LOWER,
    "Requests that a busy runtime had to be sent again",
    "answers of 429 and 503 in a round",
    exact=True,
)
declare(SERVED_LOAD, SERVED_PEAK, SERVED_PLACED, SERVED_GROWTH, SERVED_CORES, SERVED_FIRST, SERVED_PREFILL)
declare(SERVED_DECODE, SERVED_CHUNKS, SERVED_GAP, SERVED_TOGETHER, SERVED_COMPLETED, SERVED_RETRIES)
