"""Every value that the captured machines are known to have, against what is read of them.

Each leaf of an expected.json is one test. A leaf that has no reader below must stand among the exceptions,
with its reason; a pattern that matches nothing is an error, so that neither list outlives its cause.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from k3gate import host
from k3gate.errors import UsageError
from k3gate.host.cpulist import parse
from k3gate.records import Dimm, Inventory

MACHINES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "machines"
GIB = 2**30
NOT_A_FACT = "a count of folders, which is nothing about the machine"
OWN_FILE = "compared in test_captured_pci.py"
OTHER_LISTS = "the source lists other devices: without bridges, and by what the system makes of them"
TABLE_ONLY = "the folder holds the firmware's table alone, which tells nothing of it"

EXCEPTIONS = {
    r".*\.cpu_dirs|.*\.cpus_with(out)?_topology|.*\.cpuinfo_processors": NOT_A_FACT,
    r".*\.die_count|counts.*\.Group": "dies and groups stand in the inventory as NUMA nodes and caches only",
    r".*\.node_possible|.*\.node_has_normal_memory": "zones and nodes that could be are no part of the inventory",
    r".*\.(pci_.*|gpus)|gpus": OWN_FILE,
    r"(lstopo_)?counts.*\.(OSDev|PCIDev)": OTHER_LISTS,
    r"(aer|hwmon_temperatures_millidegree|nvme|pci_links|rapl)\..*": "compared in test_captured_devices.py",
    r"thermal\..*": "thermal zones are names of what hwmon tells better",
    r"edac\..*(csrow\d/[cu]e_count|noinfo).*": "counts are told by channel, by controller and in all",
    r"lscpu\.NUMA.*|lstopo_numa.*|lstopo_counts\.NUMANode": TABLE_ONLY,
    r"machine": "the folder's own name",
    r"dmi-2s-epyc9654-24x128-hgx:.*type_histogram.*": "an old dmidecode did not know DDR5 and printed <OUT OF SPEC>",
    r"hwloc-8s-opteron-cpuset-restricted:.*core_count.*": "one CPU is offline and counts as no core",
    r"hwloc-8s-opteron-cpuset-restricted:.*threads_per_core.*": "one CPU is offline and counts as no core",
    r"hwloc-8s-opteron-cpuset-restricted:counts.*": "the source's own reading leaves out what the cpuset forbids",
    r"hwloc-8s-opteron-cpuset-restricted:.*\.packages.*": "one CPU is offline and counts in no package",
    r"hwloc-pmem-nodes-cpu-nodes-without-memory:.*(core_count|threads_per_core|Core|smt_active).*": (
        "this kernel lists its cores in core_cpus only, which says 8 cores without SMT"
    ),
    r"hwloc-2s-xeon-(8-vector-engines-pci|broken-numa):.*node_has_cpu": (
        "the capture's file has_cpu is empty, and its nodes list CPUs"
    ),
    r"hwloc-2s-xeon-broken-numa:counts.*NUMANode": "the source drops the eight false nodes; here they contradict",
    r"hwloc-pmem-nodes-cpu-nodes-without-memory:counts.*NUMANode": "the source leaves out nodes without memory",
    r"hwloc-power9-v100-gpu-memory-nodes:counts.*NUMANode": "the source leaves out the memory of GPUs",
    r"hwloc-4s-opteron-8nodes-uneven:counts.*Core": "the source counts the halves of a module as cores",
}


@cache
def machine(name: str) -> Inventory:
    folder = MACHINES / name
    archive = folder / "sysroot.tar.bz2"
    return host.read(archive if archive.exists() else folder)


def edac_module(inventory: Inventory, key: str) -> str:
    """What the inventory has for a file of a channel of a row of chips, as the file has it."""
    row, file = key.split("/")[-2:]
    channel, _, field = file.partition("_")
    assert inventory.edac is not None
    modules = {module.id: module for one in inventory.edac.controllers for module in one.modules}
    found = modules[f"{row}/{channel}"]
    return str({"ce_count": found.corrected, "ue_count": found.uncorrected, "dimm_label": found.label}[field])


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    elif node not in ({}, None):
        yield path, node


NAMES = sorted(
    folder.name
    for folder in (MACHINES.iterdir() if MACHINES.is_dir() else ())
    if folder.is_dir() and ((folder / "sysroot.tar.bz2").exists() or list(folder.glob("DMI*.bin")))
)
VALUES = [
    (name, path, value)
    for name in NAMES
    for path, value in leaves(json.loads((MACHINES / name / "expected.json").read_text()))
]


# --- readers: what the inventory says, in the words of the expected value ---------------------------------


def ids(cpus: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return cpus


def modules(inventory: Inventory) -> list[Dimm]:
    return [dimm for dimm in inventory.memory.dimms or () if dimm.populated]


def gib(dimms: list[Dimm]) -> int:
    return round(sum(dimm.bytes or 0 for dimm in dimms) / GIB)


def amount(text: str) -> int | None:
    match = re.fullmatch(r"([\d.]+) (MB|GB|TB)", text)
    return (
        None if match is None else int(float(match[1]) * {"MB": 2**20, "GB": GIB, "TB": 1024 * GIB}[match[2]])
    )


def rate(text: str | None) -> int | None:
    return int(text.split()[0]) if text and text[0].isdigit() else None


def named(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def told_name(text: str) -> str:
    """The expected string without what boards say where nobody filled in anything, and in single spaces."""
    return " ".join(
        re.sub(
            r"(?i)not specified|to be filled by o\.e\.m\.|default string|system product name", "", text
        ).split()
    )


def kind_of(dimm: Dimm) -> str:
    return {"logical non-volatile device": "Logical non-volatile device"}.get(
        dimm.memory_type or "", dimm.memory_type or ""
    )


def threads_per_core(inventory: Inventory) -> Counter[str]:
    return Counter(
        str(len([cpu for cpu in group if cpu in set(inventory.cpu.online or ())]))
        for group in inventory.cpu.siblings
        for _ in [cpu for cpu in group if cpu in set(inventory.cpu.online or ())]
    )


def packages(inventory: Inventory) -> Counter[str]:
    return Counter(str(package) for package in inventory.cpu.package_of.values())


def array(one: Any) -> tuple[int | None, int | None, str]:
    ecc = {"none": "None", "single-bit ECC": "Single-bit ECC", "multi-bit ECC": "Multi-bit ECC"}
    return one.maximum_bytes, one.devices, ecc.get(one.ecc, one.ecc or "")


def array_told(one: dict[str, Any]) -> tuple[int | None, int | None, str]:
    return amount(one["max_capacity"]), int(one["devices"]), one["ecc"]


def slot(dimm: Dimm) -> tuple[Any, ...]:
    return dimm.locator, dimm.bank, dimm.bytes, dimm.rated_mts, dimm.configured_mts


def slot_told(one: dict[str, Any]) -> tuple[Any, ...]:
    size = 0 if one["size"] == "No Module Installed" else amount(one["size"])
    bank = None if one["bank"] in ("Not Specified", "", None) else one["bank"]
    return one["locator"], bank, size, rate(one["rated"]), rate(one["configured"])


def node(one: Any, online: set[int]) -> tuple[Any, ...]:
    return one.id, tuple(one.cpus), one.memory_bytes, list(one.distances.values())


def node_told(one: dict[str, Any], online: set[int]) -> tuple[Any, ...]:
    kilobytes = one.get("mem_total_kb")
    cpus = tuple(cpu for cpu in parse(one["cpus"] or "") if cpu in online)
    return one["node"], cpus, None if kilobytes is None else kilobytes * 1024, one.get("distance") or []


def first_caches(inventory: Inventory) -> set[tuple[str, tuple[int, ...]]]:
    first = (inventory.cpu.online or (0,))[0]
    return {
        (f"L{cache.level} {cache.kind.title()} {cache.bytes // 1024}K", group)
        for cache in inventory.cpu.caches
        for group in cache.cpus
        if first in group
    }


def first_caches_told(lines: list[str], online: set[int]) -> set[tuple[str, tuple[int, ...]]]:
    found = (line.partition(" shared by cpus ") for line in lines)
    return {(what, tuple(cpu for cpu in parse(cpus) if cpu in online)) for what, _, cpus in found}


def persistent(inventory: Inventory, how: str) -> int:
    found = [dimm for dimm in modules(inventory) if dimm.kind == "pmem"]
    by_field = [
        dimm
        for dimm in found
        if dimm.memory_type == "logical non-volatile device"
        or (dimm.technology or "").startswith(("Intel Optane", "NVDIMM"))
    ]
    by_part = [dimm for dimm in found if (dimm.part_number or "").startswith("NM")]
    return len({"all": found, "field": by_field, "part": by_part}[how])


def nodes_where(inventory: Inventory, test: Callable[[Any], bool]) -> list[int]:
    return [one.id for one in inventory.numa.nodes if test(one)]


# pattern of the path -> (read of the inventory, expected value made comparable). `key`: the path's last part.
Reader = Callable[[Inventory, str, Any], tuple[Any, Any]]
DMI = r"(facts_read_from_the_files|facts_decoded_with_dmidecode_3_4|dmidecode)"
FILES = r"facts_read_from_the_files"
READERS: dict[str, Reader] = {
    rf"{FILES}\.cpu_(online|present|possible)": lambda i, k, v: (
        getattr(i.cpu, k.removeprefix("cpu_")),
        parse(v),
    ),
    # The kernel's file also lists CPUs that could be plugged in.
    rf"{FILES}\.cpu_offline": lambda i, k, v: (
        set(i.cpu.offline),
        set(parse(v)) & set(i.cpu.present or ()) if v else set(),
    ),
    rf"{FILES}\.package_count|counts_in_expected_output_of_source\.Package": lambda i, k, v: (
        i.cpu.sockets,
        v,
    ),
    rf"{FILES}\.core_count_by_thread_siblings|counts_in_expected_output_of_source\.Core": lambda i, k, v: (
        i.cpu.cores,
        v,
    ),
    r"counts_in_expected_output_of_source\.PU": lambda i, k, v: (i.cpu.threads, v),
    r"counts_in_expected_output_of_source\.NUMANode": lambda i, k, v: (
        len(nodes_where(i, lambda one: one.memory_bytes != 0)) if k == "with memory" else len(i.numa.nodes),
        v,
    ),
    r"counts_in_expected_output_of_source\.MemCache": lambda i, k, v: (
        len(nodes_where(i, lambda one: bool(one.memory_side_cache_bytes))),
        v,
    ),
    rf"{FILES}\.packages\..*": lambda i, k, v: (packages(i)[k], v),
    rf"{FILES}\.threads_per_core_histogram\..*": lambda i, k, v: (threads_per_core(i)[k], v),
    rf"{FILES}\.cpuinfo_model": lambda i, k, v: (i.cpu.model, told_name(v)),
    rf"{FILES}\.smt_active": lambda i, k, v: (i.cpu.smt, v == "1"),
    rf"{FILES}\.numa_nodes": lambda i, k, v: (
        [node(one, set(i.cpu.online or ())) for one in i.numa.nodes],
        [node_told(one, set(i.cpu.online or ())) for one in v],
    ),
    rf"{FILES}\.node_online": lambda i, k, v: (tuple(one.id for one in i.numa.nodes), parse(v)),
    rf"{FILES}\.node_has_cpu": lambda i, k, v: (nodes_where(i, lambda one: bool(one.cpus)), list(parse(v))),
    rf"{FILES}\.node_has_memory": lambda i, k, v: (
        nodes_where(i, lambda one: one.memory_bytes != 0),
        list(parse(v)),
    ),
    rf"{FILES}\.cpuless_nodes_with_memory": lambda i, k, v: (
        nodes_where(i, lambda one: not one.cpus and bool(one.memory_bytes)),
        v,
    ),
    rf"{FILES}\.nodes_with_cpus_but_no_memory": lambda i, k, v: (
        nodes_where(i, lambda one: bool(one.cpus) and one.memory_bytes == 0),
        v,
    ),
    rf"{FILES}\.proc_meminfo_memtotal_kb": lambda i, k, v: (i.memory.total_bytes, int(v) * 1024),
    rf"{FILES}\.first_cpu_caches": lambda i, k, v: (
        first_caches(i),
        first_caches_told(v, set(i.cpu.online or ())),
    ),
    rf"{DMI}\.system": lambda i, k, v: (named(i.machine.vendor, i.machine.product), told_name(v)),
    rf"{DMI}\.board": lambda i, k, v: (i.machine.board or "", told_name(v)),
    rf"{DMI}\.cpu": lambda i, k, v: (i.cpu.model, told_name(v)),
    rf"{DMI}\.cpu_sockets_total": lambda i, k, v: (len(i.cpu.socket_list or ()), v),
    rf"{DMI}\.cpu_sockets_populated": lambda i, k, v: (i.cpu.sockets, v),
    rf"{DMI}\.(cores|threads)_per_socket": lambda i, k, v: (
        [str(getattr(one, k.partition("_")[0])) for one in i.cpu.socket_list or () if one.populated],
        v,
    ),
    rf"{DMI}\.dimm_slots": lambda i, k, v: (i.memory.slots, v),
    rf"{DMI}\.dimms_populated": lambda i, k, v: (i.memory.populated, v),
    rf"{DMI}\.dram_gb": lambda i, k, v: (gib([d for d in modules(i) if d.kind == "dram"]), round(v)),
    rf"{DMI}\.persistent_gb": lambda i, k, v: (gib([d for d in modules(i) if d.kind == "pmem"]), round(v)),
    rf"{DMI}\.total_installed_gb": lambda i, k, v: (gib(modules(i)), round(v)),
    rf"{DMI}\.persistent_memory_modules": lambda i, k, v: (persistent(i, "all"), v),
    rf"{DMI}\.persistent_memory_modules_by_part_number": lambda i, k, v: (persistent(i, "part"), v),
    rf"{DMI}\.persistent_memory_modules_by_type_or_technology_field": lambda i, k, v: (
        persistent(i, "field"),
        v,
    ),
    rf"{DMI}\.memory_arrays": lambda i, k, v: (
        [array(one) for one in i.memory.arrays or ()],
        [array_told(one) for one in v],
    ),
    rf"{DMI}\.slots": lambda i, k, v: (
        [slot(dimm) for dimm in i.memory.dimms or ()],
        [slot_told(one) for one in v],
    ),
    rf"{DMI}\.part_numbers\..*": lambda i, k, v: (
        sum((dimm.part_number or "").strip() == k.strip() for dimm in modules(i)),
        v,
    ),
    rf"{DMI}\.ranks\..*": lambda i, k, v: (sum(str(dimm.rank or "Unknown") == k for dimm in modules(i)), v),
    rf"{DMI}\.type_histogram\..*": lambda i, k, v: (sum(kind_of(dimm) == k for dimm in modules(i)), v),
    rf"{DMI}\.size_histogram\..*": lambda i, k, v: (sum(dimm.bytes == amount(k) for dimm in modules(i)), v),
    rf"{DMI}\.rated_vs_configured\..*": lambda i, k, v: (
        sum((d.rated_mts, d.configured_mts) == tuple(map(rate, k.split(" -> "))) for d in modules(i)),
        v,
    ),
    r"lscpu\.CPU\(s\)|lstopo_counts\.PU": lambda i, k, v: (i.cpu.threads, int(v)),
    r"lscpu\.Model name": lambda i, k, v: (i.cpu.model, told_name(v)),
    r"lscpu\.Socket\(s\)|lstopo_counts\.Package": lambda i, k, v: (i.cpu.sockets, int(v)),
    r"lscpu\.Core\(s\) per socket": lambda i, k, v: ((i.cpu.cores or 0) / (i.cpu.sockets or 1), int(v)),
    r"lscpu\.Thread\(s\) per core": lambda i, k, v: ((i.cpu.threads or 0) / (i.cpu.cores or 1), int(v)),
    r"lstopo_counts\.Core": lambda i, k, v: (i.cpu.cores, int(v)),
    r"edac\.sys/devices/system/edac/mc/mc\d/ce_count": lambda i, k, v: (i.edac and i.edac.corrected, int(v)),
    r"edac\.sys/devices/system/edac/mc/mc\d/ue_count": lambda i, k, v: (
        i.edac and i.edac.uncorrected,
        int(v),
    ),
    r"edac\..*/csrow\d/ch\d_(ce_count|ue_count|dimm_label)": lambda i, k, v: (edac_module(i, k), v),
    r"nodes\.sys/devices/system/node/node\d/meminfo": lambda i, k, v: (
        next(one.memory_bytes for one in i.numa.nodes if f"node{one.id}/" in k),
        int(v) * 1024,
    ),
}


def excepted(name: str, path: str) -> str | None:
    return next(
        (
            why
            for pattern, why in EXCEPTIONS.items()
            if re.fullmatch(pattern, path) or re.fullmatch(pattern, f"{name}:{path}")
        ),
        None,
    )


def reader(path: str) -> tuple[Reader, str] | None:
    for pattern, read in READERS.items():
        if re.fullmatch(pattern, path):
            # The last part of a key may hold dots itself.
            prefix = re.match(r"[\w()]+\.[\w()]+\.", path)
            histogram = pattern.endswith(r"\..*")
            key = path[prefix.end() :] if histogram and prefix else path.partition(".")[2]
            return read, key
    return None


needs_machines = pytest.mark.skipif(not NAMES, reason="the captured machines are not beside the checkout")


KNOWN = [(name, path, value) for name, path, value in VALUES if excepted(name, path) is None]


@needs_machines
@pytest.mark.parametrize(("name", "path", "value"), KNOWN, ids=[f"{n}:{p}" for n, p, _ in KNOWN])
def test_value(name: str, path: str, value: Any) -> None:
    found = reader(path)
    assert found is not None, "neither a reader nor an exception"
    read, key = found
    seen, wanted = read(machine(name), key, value)
    assert seen == wanted


@needs_machines
def test_all_captured_machines_are_read() -> None:
    archives = [name for name in NAMES if (MACHINES / name / "sysroot.tar.bz2").exists()]
    tables = [name for name in NAMES if list((MACHINES / name).glob("DMI*.bin"))]
    assert (len(archives), len(tables)) == (19, 27)


@needs_machines
def test_no_exception_and_no_reader_outlives_its_cause() -> None:
    paths = {path for _, path, _ in VALUES} | {f"{name}:{path}" for name, path, _ in VALUES}
    for pattern in (*EXCEPTIONS, *READERS):
        assert any(re.fullmatch(pattern, path) for path in paths), pattern


@needs_machines
@pytest.mark.parametrize(
    "name",
    sorted(
        p.name
        for p in (MACHINES.iterdir() if MACHINES.is_dir() else ())
        if p.is_dir() and p.name not in NAMES and not (p / "nvidia-smi-q.xml").exists()
    ),
)
def test_a_folder_without_machine_or_table_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        host.read(MACHINES / name)
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)
