"""Puts the inventory together, in the order in which one part needs another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from k3gate import documents
from k3gate.errors import UsageError
from k3gate.host import (
    adapters,
    bmc,
    counters,
    cpu,
    edac,
    findings,
    firmware,
    gpus,
    kernel,
    limits,
    machine,
    memory,
    numa,
    pci,
    power,
    sensors,
    storage,
    syscalls,
)
from k3gate.host.files import GPU_ANSWERS, SMI_ANSWERS, TABLE, Root, open_root
from k3gate.host.notes import Notes
from k3gate.records import Bmc, Cpu, Inventory, Provenance, Sensors

# Fields that may differ between two readings of one machine. Within lists the position is left out;
# findings go by their code.
volatile: frozenset[str] = frozenset(
    {
        "memory.available_bytes",
        "memory.swap_used_bytes",
        "numa.nodes.free_bytes",
        "numa.nodes.memory_bytes",  # memory that is plugged in while the machine runs shows up late
        "numa.nodes.huge_pages.free",
        "kernel.huge_pages.free",
        "kernel.load_average",
        "limits.cgroup_memory_used_bytes",
        "limits.usable_memory_bytes",
        "edac.corrected",
        "edac.uncorrected",
        "edac.controllers.corrected",
        "edac.controllers.uncorrected",
        "edac.controllers.seconds",
        "edac.controllers.modules.corrected",
        "edac.controllers.modules.uncorrected",
        "pci.link.gt_per_s",  # links save power while nothing is sent
        "pci.link.width",
        "pci.link.bytes_per_s",
        "pci.corrected",
        "pci.uncorrected",
        "gpus.memory_used_bytes",
        "gpus.link.gt_per_s",
        "gpus.link.width",
        "gpus.link.bytes_per_s",
        "gpus.clocks",
        "gpus.power_w",
        "gpus.temperature",
        "gpus.performance_state",
        "gpus.throttle",
        "gpus.ecc_corrected",
        "gpus.ecc_uncorrected",
        "gpus.ecc_corrected_lifetime",
        "gpus.ecc_uncorrected_lifetime",
        "gpus.replays",
        "gpus.unknown",
        "network.state",
        "network.bytes_per_s",
        "network.link.gt_per_s",
        "network.link.width",
        "network.link.bytes_per_s",
        "storage.drives.health",
        "storage.drives.link.gt_per_s",  # some drives slow their link down while they are idle
        "storage.drives.link.bytes_per_s",
        "storage.paths.free_bytes",
        "storage.paths.total_bytes",
        "sensors.readings.value",
        "sensors.readings.state",
        "sensors.readings.reason",
        "sensors.readings.source",  # the numbers of hwmon folders change from start to start
        "sensors.counters",
        "sensors.bmc",
        "provenance.sensors.bmc",
        "provenance.limits.usable_memory_bytes",
        "findings.high_load",
        "findings.memory_errors",
        "findings.memory_in_use",
        "findings.node_memory_differs",
        "findings.swap_in_use",
        "findings.drive_link_below_best",
        "findings.drive_throttled",
        "findings.events_counted",
        "findings.device_link_errors",
        "findings.gpu_memory_errors",
        "findings.gpu_memory_errors_before",
        "findings.gpu_slowed",
        "findings.link_narrow",
        "findings.hot",
        "findings.link_errors",
        "root",
    }
)

_SIGNS = (
    *("sys/devices/system/cpu", "sys/devices/system/node", "sys/devices/system/edac", "sys/bus/pci/devices"),
    *("sys/class/hwmon", "sys/class/block", "proc/cpuinfo", "proc/meminfo"),
)
"""A folder with one of these is a machine, or a part of one; "sys" alone is also a folder of /proc."""


def read(root: str | Path | Root = "/", *, name: str | None = None, paths: Sequence[str] = ()) -> Inventory:
    """What the machine below `root` is: the live one, or another's files in a folder or an archive.

    Reads only, needs no rights, never measures. `name` becomes `machine.name`; `paths`, absolute and without links,
    are looked up in `storage.paths`. Facts that cannot be had are
    None and have a reason in `provenance`. `UsageError` where `root` is no machine.
    """
    base = root if isinstance(root, Root) else open_root(root)
    place = documents.printable(base.path if isinstance(root, Root) else str(root)).replace("\n", "\\n")
    if not any(base.exists(path) for path in (TABLE, firmware.ENTRIES, GPU_ANSWERS, SMI_ANSWERS, *_SIGNS)):
        raise UsageError(
            f"{place}: not a machine (it holds neither sys nor proc nor a firmware table DMI.bin); give the "
            "folder that stands for /, or a capture"
        )
    syscalls.prepare(base)
    notes = Notes()
    table = firmware.read(base)
    own = machine.read(base, notes, name, table)
    processors = firmware.complete(cpu.read(base, notes), notes, table)
    amounts = memory.read(base, notes, table, processors, own.virtual)
    nodes = numa.read(base, notes, processors, amounts)
    amounts = memory.without_hidden_cxl(amounts, nodes, notes)
    settings = kernel.read(base, notes, processors.architecture)
    own, settings = syscalls.recall(base, notes, own, settings)
    bounds = limits.read(base, notes, processors, amounts, nodes)
    slots = firmware.slots(notes, table)
    devices = pci.read(base, notes, nodes, slots)
    cards = gpus.read(base, notes, devices, wsl=own.wsl is True)
    errors = edac.read(base, notes)
    disks = storage.read(base, notes, paths or syscalls.storage_paths(base))
    inventory = Inventory(
        machine=machine.with_fingerprint(own, notes, processors, nodes, amounts, devices),
        cpu=processors,
        numa=nodes,
        memory=amounts,
        kernel=settings,
        limits=bounds,
        pci=devices,
        gpus=cards,
        network=adapters.read(base, notes, nodes),
        slots=slots,
        edac=errors,
        storage=disks,
        sensors=_sensors(base, notes, processors),
        provenance=dict(sorted(notes.entries.items())),
        root="/" if base.live else place,
    )
    return evolve(inventory, findings=findings.find(inventory))


def _sensors(root: Root, notes: Notes, processors: Cpu) -> Sensors:
    counted = counters.read(root, notes, processors)
    return Sensors(
        readings=sensors.read(root, notes, processors),
        power_zones=power.read(root, notes),
        # A server has hundreds of links; those without an error are told by the source alone.
        counters=tuple(one for one in counted if one.value),
        bmc=bmc.look(root, notes),
    )


def with_bmc(inventory: Inventory, told: bmc.BmcReadings) -> Inventory:
    """The inventory with what the BMC told, and with findings that know of it."""
    before = inventory.sensors or Sensors()
    known = evolve(
        before,
        readings=(*before.readings, *told.readings),
        bmc=Bmc(told.state, told.reason, "redfish"),
    )
    note = Provenance(told.state, "redfish", told.reason)
    provenance = dict(sorted({**inventory.provenance, "sensors.bmc": note}.items()))
    whole = evolve(inventory, sensors=known, provenance=provenance)
    return evolve(whole, findings=findings.find(whole))


def document(inventory: Inventory) -> dict[str, Any]:
    """The JSON of `k3gate host --json`: plain values in base units, unknown is null, with `provenance`."""
    plain: dict[str, Any] = documents.plain(inventory)
    return plain


def stable(inventory: Inventory) -> dict[str, Any]:
    """The document without its volatile fields: equal for two readings of one machine."""
    plain = document(inventory)
    plain["findings"] = [f for f in plain["findings"] if f"findings.{f['code']}" not in volatile]
    plain["provenance"] = {k: v for k, v in plain["provenance"].items() if f"provenance.{k}" not in volatile}
    for name in volatile:
        if not name.startswith(("findings.", "provenance.")):
            _drop(plain, name.split("."))
    return plain


def _drop(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _drop(item, path)
    elif isinstance(value, dict):
        if len(path) == 1:
            value.pop(path[0], None)
        else:
            _drop(value.get(path[0]), path[1:])
