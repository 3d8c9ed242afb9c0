"""Of what kind the memory of a NUMA node is, told only by what names it; else "unknown", and why.

Signs that settle it: the device behind a dax device that the kernel turned into memory, regions of the nd
and CXL buses, the NVIDIA driver, POWER's device tree, the names in the physical memory map. Where none
speaks, the firmware's figures (HMAT) and then the processor's name may.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from attrs import frozen

from k3gate.host import parsing
from k3gate.host.files import LARGE, Root
from k3gate.records import Cpu, NumaNode
from k3gate.units import cpu_list, gib, quantity

NODES = "sys/devices/system/node"
_DAX = "sys/bus/dax/devices"
_ND = "sys/bus/nd/devices"
_CXL = "sys/bus/cxl/devices"
_NVIDIA = "proc/driver/nvidia/gpus"
_DEVICE_TREE = "proc/device-tree"
_MAP = "proc/iomem"
_DEVICES = 1024
_PARENTS = 6

_RANGE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) : (.{1,80})", re.ASCII)
_BLOCK = re.compile(r"memory(\d{1,9})", re.ASCII)
_DAX_NAME = re.compile(r"dax\d{1,6}\.\d{1,6}", re.ASCII)
_REGION = re.compile(r"region\d{1,6}", re.ASCII)
_CXL_NAME = re.compile(r"(?:mem|region)\d{1,6}", re.ASCII)
_GPU_NAME = re.compile(r"[0-9a-fA-F:.]{4,20}", re.ASCII)
_TREE_NAME = re.compile(r"memory@[0-9a-fA-F]{1,16}", re.ASCII)
_NOUN = {"pmem": "persistent memory", "cxl": "CXL memory"}
_NAMED = (("Persistent Memory", "pmem"), ("CXL Window", "cxl"), ("System RAM (NVIDIA)", "gpu"))
_WITH_HBM = re.compile(r"Xeon(?:\(R\))? (?:CPU )?Max |Xeon(?:\(R\))? Phi", re.ASCII)
_HBM_ALONE = re.compile(r"A64FX|MI300A", re.ASCII)
_HBM_OF_A_SOCKET = 64 * 2**30
# Processors of notebooks have small memory-side caches, which say nothing of what lies behind them.
_CACHE_OF_WEIGHT = 2**30
# HBM has several times the rate of DRAM at about its latency; an expander with more lanes than there are
# DIMMs may have the rate, and not the latency.
_FASTER, _AS_NEAR = 1.5, 1.5


@frozen
class Verdict:
    """A kind, where it was seen, and in a sentence why, or why it stays unknown."""

    kind: str
    source: str
    reason: str


@frozen
class Signs:
    """What names the memory of nodes, by node, and what was seen that fits no node."""

    by_node: Mapping[int, tuple[Verdict, ...]]
    hints: tuple[str, ...] = ()


def signs(root: Root, bare: Sequence[int]) -> Signs:
    """All that sysfs, procfs and the device tree tell of the memory of nodes; `bare` are those without CPUs."""
    found: dict[int, list[Verdict]] = {}
    hints: list[str] = []
    for node, sign in _dax(root, hints):
        found.setdefault(node, []).append(sign)
    if bare:
        # With CPUs a node is named by these as the nearest one too, without holding any of the memory.
        blocks = _Blocks(root, bare)
        for source in (_nd(root), _cxl(root, blocks, hints), _nvidia(root), _tree(root)):
            for node, sign in source:
                if node in bare:
                    found.setdefault(node, []).append(sign)
        for node, sign in _mapped(root, blocks, hints):
            found.setdefault(node, []).append(sign)
    return Signs({node: tuple(told) for node, told in found.items()}, tuple(dict.fromkeys(hints)))


def _dax(root: Root, hints: list[str]) -> Iterator[tuple[int, Verdict]]:
    """Devices that the driver kmem turned into memory; their parents say what the devices are."""
    for name in _names(root, _DAX, _DAX_NAME):
        base = f"{_DAX}/{name}"
        node = _id(root.line(f"{base}/target_node"))
        kmem = root.exists(f"sys/bus/dax/drivers/kmem/{name}")
        if node is None or not (kmem or "DRIVER=kmem" in (root.line(f"{base}/uevent") or "").split()):
            continue
        kind = _ancestor(root, base)
        if kind in ("pmem", "cxl"):
            yield (
                node,
                Verdict(kind, base, f"the driver kmem made {name}, which is {_NOUN[kind]}, its memory"),
            )
        else:
            what = "that the firmware set aside for special use" if kind == "aside" else "of unknown origin"
            hints.append(f"{name} is memory {what}, target node {node}")


def _ancestor(root: Root, base: str) -> str | None:
    """What the nearest parent of a dax device that names its bus is. A CXL device may be persistent: nd."""
    for level in range(1, _PARENTS + 1):
        up = f"{base}{'/..' * level}"
        # The link was followed before "..", so these are the parents in sys/devices.
        told = " ".join(root.line(f"{up}/{name}") or "" for name in ("uevent", "modalias", "devtype"))
        if re.search(r"\bnd:t\d|\bnd_", told):
            return "pmem"
        if re.search(r"\bcxl:t\d|\bcxl_", told):
            return "cxl"
        if "platform:hmem" in told or "DRIVER=dax_hmem" in told:
            return "aside"
    return None


def _nd(root: Root) -> Iterator[tuple[int, Verdict]]:
    # A region's numa_node is only the nearest node; before target_node was known no region became memory.
    for name in _names(root, _ND, _REGION):
        node = _id(root.line(f"{_ND}/{name}/target_node"))
        if node is not None:
            yield node, Verdict("pmem", f"{_ND}/{name}/target_node", f"the persistent {name} belongs to it")


def _cxl(root: Root, blocks: _Blocks, hints: list[str]) -> Iterator[tuple[int, Verdict]]:
    """Regions by their physical address: those that the firmware mapped have no dax device."""
    for name in _names(root, _CXL, _CXL_NAME):
        base = f"{_CXL}/{name}"
        if name.startswith("mem"):
            near = _id(root.line(f"{base}/numa_node"))
            place = "" if near is None else f" near node {near}"
            hints.append(f"there is a CXL memory device, {name}{place}")
            continue
        start = _hexadecimal(root.line(f"{base}/resource"))
        size = _hexadecimal(root.line(f"{base}/size"))
        if start and size and (root.line(f"{base}/mode") or "ram") == "ram":
            sign = Verdict("cxl", f"{base}/resource", f"the CXL {name} holds the addresses of its memory")
            yield from ((node, sign) for node in blocks.of_range(start, start + size))


def _nvidia(root: Root) -> Iterator[tuple[int, Verdict]]:
    """GPUs whose memory the driver gave to a node of its own: POWER9, Grace Hopper."""
    for name in _names(root, _NVIDIA, _GPU_NAME):
        source = f"{_NVIDIA}/{name}/numa_status"
        match = re.search(r"^Node:[ \t]*(\d{1,4})[ \t]*$", root.line(source) or "", re.ASCII | re.MULTILINE)
        if match:
            yield int(match[1]), Verdict("gpu", source, f"the NVIDIA driver says that it is of GPU {name}")


def _tree(root: Root) -> Iterator[tuple[int, Verdict]]:
    """POWER9's firmware numbers the memory of GPUs downwards from 255, and this is the node's number."""
    for name in _names(root, _DEVICE_TREE, _TREE_NAME):
        base = f"{_DEVICE_TREE}/{name}"
        if "ibm,coherent-device-memory" not in (root.line(f"{base}/compatible") or ""):
            continue
        try:
            node = int.from_bytes(root.raw(f"{base}/ibm,chip-id", 4), "big")
        except (OSError, ValueError):
            continue
        yield node, Verdict("gpu", base, "the firmware's device tree calls it memory of a coherent device")


def _mapped(root: Root, blocks: _Blocks, hints: list[str]) -> Iterator[tuple[int, Verdict]]:
    """The map of physical memory by name; without rights the kernel writes all addresses as zero."""
    if not blocks.starts:
        return
    ranges: list[tuple[int, int, str, str]] = []
    for line in (root.read(_MAP, LARGE, head=True).text or "").splitlines()[:65_536]:
        match = _RANGE.fullmatch(line.strip())
        kind = next((kind for word, kind in _NAMED if match and match[3].startswith(word)), None)
        if match is None or kind is None:
            continue
        start, end = int(match[1], 16), int(match[2], 16)
        if end > start:
            ranges.append((start, end, kind, match[3]))
        else:
            hints.append(f"{_MAP} names {match[3]!r} and hides where (readable by root)")
    for node, starts in blocks.starts.items():
        for address in dict.fromkeys((starts[0], starts[-1])):
            around = [entry for entry in ranges if entry[0] <= address <= entry[1]]
            if around:
                # Ranges nest, and a CXL window may hold persistent memory: the narrowest speaks.
                _, _, kind, name = min(around, key=lambda entry: entry[1] - entry[0])
                yield node, Verdict(kind, _MAP, f"its memory lies in {name!r}")


class _Blocks:
    """Where the memory of nodes begins and ends physically, by the blocks in which it can be plugged."""

    def __init__(self, root: Root, nodes: Sequence[int]) -> None:
        self.starts: dict[int, list[int]] = {}
        self.size = _hexadecimal(root.line("sys/devices/system/memory/block_size_bytes"))
        if not self.size:
            return
        for node in nodes:
            numbers = [
                int(m[1]) for name in root.names(f"{NODES}/node{node}") if (m := _BLOCK.fullmatch(name))
            ]
            if numbers:
                self.starts[node] = [number * self.size for number in sorted(numbers)]

    def of_range(self, start: int, end: int) -> tuple[int, ...]:
        """The nodes with a block that begins in the range."""
        return tuple(n for n, starts in self.starts.items() if any(start <= s < end for s in starts))


def _names(root: Root, folder: str, pattern: re.Pattern[str]) -> list[str]:
    return [name for name in root.names(folder) if pattern.fullmatch(name)][:_DEVICES]


def _id(text: str | None) -> int | None:
    try:
        return parsing.integer(text or "", 0, 9999)
    except ValueError:
        return None


def _hexadecimal(text: str | None) -> int | None:
    match = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{1,16})", text or "", re.ASCII)
    return int(match[1], 16) if match else None


@frozen
class Access:
    """What the firmware (HMAT) tells of reaching a node's memory from `initiators`, in B/s and seconds.

    Class 0 speaks of whatever is nearest, which may be an accelerator, class 1 of the nearest CPUs.
    """

    source: str
    initiators: tuple[int, ...]
    figures: Mapping[str, float]


_FIGURES = {"read_bandwidth": 1e6, "read_latency": 1e-9, "write_bandwidth": 1e6, "write_latency": 1e-9}


def accesses(root: Root, node: int) -> tuple[Access, ...]:
    """Access classes 0 and 1 of a node, those that are there."""
    found: list[Access] = []
    for number in (0, 1):
        source = f"{NODES}/node{node}/access{number}/initiators"
        names = root.names(source)
        if not names:
            continue
        figures: dict[str, float] = {}
        for name, scale in _FIGURES.items():
            try:
                # The kernel writes whole MB/s and ns, and 0 where the firmware tells nothing.
                figures[name] = parsing.integer(root.line(f"{source}/{name}") or "", 1, 10**9) * scale
            except ValueError:
                continue
        nodes = (re.fullmatch(r"node(\d{1,4})", name, re.ASCII) for name in names)
        found.append(Access(source, tuple(sorted(int(match[1]) for match in nodes if match)), figures))
    return tuple(found)


def of_cpus(told: Sequence[Access], with_cpus: Collection[int]) -> Access | None:
    """The last access class with figures that speaks of CPUs: class 1, or class 0 of kernels before 5.10."""
    for access in reversed(told):
        if access.figures and (not access.initiators or set(access.initiators) & set(with_cpus)):
            return access
    return None


def side_cache(root: Root, node: int) -> int | None:
    """Bytes of the memory-side cache before a node's memory, the largest where there are several."""
    base = f"{NODES}/node{node}/memory_side_cache"
    sizes: list[int] = []
    for name in _names(root, base, re.compile(r"index\d{1,2}", re.ASCII)):
        try:
            sizes.append(parsing.integer(root.line(f"{base}/{name}/size") or "", 1, 2**60))
        except ValueError:
            continue
    return max(sizes, default=None)


def nearest(node: NumaNode, nodes: Sequence[NumaNode]) -> tuple[int, ...]:
    """The nodes with CPUs that are nearest to a node by the distances, several where they are equally near."""
    far: dict[int, int] = {}
    for other in nodes:
        value = node.distances.get(other.id, other.distances.get(node.id))
        if other.cpus and value is not None:
            far[other.id] = value
    return tuple(sorted(other for other, value in far.items() if value == min(far.values())))


def of_cpu_node(node: NumaNode, told: Signs, cpu: Cpu, others: Sequence[NumaNode]) -> Verdict:
    """The kind of a node with CPUs: "dram" unless something speaks against it, and then "unknown".

    It is the machine's own memory in any case, so it is never called by another kind.
    """
    folder = f"{NODES}/node{node.id}"
    mixed = told.by_node.get(node.id, ())
    if mixed:
        return Verdict("unknown", mixed[0].source, f"DRAM may be mixed with other memory: {mixed[0].reason}")
    cache = node.memory_side_cache_bytes or 0
    if cache >= _CACHE_OF_WEIGHT:
        return Verdict(
            "unknown",
            f"{folder}/memory_side_cache",
            f"a memory-side cache of {gib(cache)} stands before it: likely persistent memory in Memory Mode, or "
            "DRAM behind HBM in cache mode",
        )
    model = cpu.model or ""
    if _HBM_ALONE.search(model):
        return Verdict("unknown", "cpu.model", "by its name the processor has HBM and no modules")
    flat = any(not other.cpus for other in others)
    size = sum(other.memory_bytes or 0 for other in others)
    if _WITH_HBM.search(model) and not flat and size <= _HBM_OF_A_SOCKET * (cpu.sockets or 1):
        return Verdict(
            "unknown",
            "cpu.model",
            "by its name the processor has HBM, and no more memory than that is there: HBM or modules",
        )
    return Verdict("dram", folder, "the node has CPUs, and nothing says that its memory is of another kind")


def of_bare_node(
    root: Root,
    node: NumaNode,
    told: Signs,
    cpu: Cpu,
    nodes: Sequence[NumaNode],
    reached: Mapping[int, tuple[Access, ...]],
) -> Verdict:
    """The kind of a node without CPUs."""
    folder = f"{NODES}/node{node.id}"
    if node.memory_bytes == 0:
        return Verdict("unknown", folder, "the node has neither CPUs nor memory")
    found = told.by_node.get(node.id, ())
    kinds = {sign.kind for sign in found}
    if len(kinds) == 1:
        return found[0]
    if kinds:
        sentences = "; ".join(dict.fromkeys(f"{sign.kind}: {sign.reason}" for sign in found))
        return Verdict("unknown", found[0].source, f"the signs contradict each other: {sentences}"[:500])
    if any(re.fullmatch(r"cpu\d{1,5}", name, re.ASCII) for name in root.names(folder)):
        return Verdict("dram", folder, "the node has CPUs, and all of them are offline")
    faster, figures = _figures(node, nodes, reached)
    if faster is not None:
        return faster
    if _flat_hbm(node, cpu, nodes, told):
        return Verdict(
            "hbm",
            "cpu.model",
            f"by its name the processor has HBM, and the node is nearest to node {node.nearest}",
        )
    if node.memory_side_cache_bytes:
        figures.append(f"a memory-side cache of {gib(node.memory_side_cache_bytes)} stands before it")
    looked = (
        "no dax, nd or CXL device, no GPU driver and no device tree names it, nor does the processor's name"
    )
    extra = "; ".join((*figures, *told.hints[:4]))
    return Verdict(
        "unknown",
        folder,
        f"the node has no CPUs, and what its memory is cannot be told apart here: {looked}; {extra}"[:900],
    )


def _figures(
    node: NumaNode, nodes: Sequence[NumaNode], reached: Mapping[int, tuple[Access, ...]]
) -> tuple[Verdict | None, list[str]]:
    """HBM where the firmware tells far more bandwidth than for the CPU node's own memory; else the figures."""
    with_cpus = {one.id for one in nodes if one.cpus}
    mine = of_cpus(reached.get(node.id, ()), with_cpus)
    if mine is None or "read_bandwidth" not in mine.figures:
        return None, ["the firmware tells no bandwidth of it (HMAT)"]
    rate = mine.figures["read_bandwidth"]
    said = f"the firmware tells {quantity(rate, 'B/s')} for it"
    near = reached.get(node.id, ())[:1]
    if near and near[0].initiators and not with_cpus & set(near[0].initiators):
        which = f"node {cpu_list(near[0].initiators)}, has no CPUs"
        return None, [f"{said}, and what is nearest to it, {which}: it may be an accelerator's own"]
    own = of_cpus(reached.get(-1 if node.nearest is None else node.nearest, ()), with_cpus)
    if own is None or "read_bandwidth" not in own.figures:
        return None, [f"{said}, and nothing for the memory of the nearest CPUs to compare it with"]
    said += f", {quantity(own.figures['read_bandwidth'], 'B/s')} for the memory of node {node.nearest}"
    late = mine.figures.get("read_latency", 0.0) > _AS_NEAR * own.figures.get("read_latency", float("inf"))
    if rate >= _FASTER * own.figures["read_bandwidth"] and not late:
        return Verdict("hbm", mine.source, f"{said}: far more, at no longer latency"), []
    return None, [f"{said}{' at a longer latency' if late else ''}, which is not how HBM differs"]


def _flat_hbm(node: NumaNode, cpu: Cpu, nodes: Sequence[NumaNode], told: Signs) -> bool:
    """HBM in flat mode: a node of at most a socket's HBM beside each CPU node, nearer to it than to any other."""
    if not _WITH_HBM.search(cpu.model or "") or any("CXL" in hint for hint in told.hints):
        return False
    bare = [one for one in nodes if not one.cpus and one.memory_bytes and one.id not in told.by_node]
    beside = [nearest(one, nodes) for one in bare]
    return (
        all(len(near) == 1 for near in beside)
        and len(set(beside)) == len(bare)
        and node in bare
        and all((one.memory_bytes or 0) <= _HBM_OF_A_SOCKET for one in bare)
    )
