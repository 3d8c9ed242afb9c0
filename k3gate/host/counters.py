"""What the kernel has counted since it started: throttling of processors, errors of PCIe links and of machine checks.

Memory errors are counted by EDAC (edac.py), those and the throttling of drives by the drives (smart.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3gate.host import parsing, pcie
from k3gate.host.files import LARGE, Root
from k3gate.host.notes import Notes
from k3gate.records import Cpu, Edac, EventCounter

CPUS = "sys/devices/system/cpu"
INTERRUPTS = "proc/interrupts"
_CORRECTED, _UNCORRECTED, _THROTTLE = "corrected", "uncorrected", "throttle"
_AER = (
    ("aer_dev_correctable", "TOTAL_ERR_COR", _CORRECTED),
    ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", _UNCORRECTED),
    ("aer_dev_fatal", "TOTAL_ERR_FATAL", _UNCORRECTED),
)
AER_TOTALS = {name: total for name, total, _ in _AER}
# Rows of proc/interrupts on x86 (arch/x86/kernel/irq.c).
INTERRUPT_ROWS = {
    "TRM": (_THROTTLE, "thermal events of processors"),
    "THR": (_CORRECTED, "machine checks over a threshold"),
    "DFR": (_UNCORRECTED, "deferred machine checks"),
    "MCE": (_UNCORRECTED, "machine check exceptions"),
}
_DEVICES = 8192


def read(root: Root, notes: Notes, cpu: Cpu) -> tuple[EventCounter, ...]:
    """All counters but those of memory and of drives, zeros too."""
    found = (*throttling(root, cpu), *links(root), *machine_checks(root))
    if found:
        notes.seen(
            "sensors.counters", f"{CPUS}/cpu*/thermal_throttle, {pcie.DEVICES}/*/aer_dev_*, {INTERRUPTS}"
        )
    else:
        notes.absent(
            "sensors.counters",
            CPUS,
            "neither throttling nor errors of links or machine checks are counted here (as in a guest)",
        )
    return found


def throttling(root: Root, cpu: Cpu) -> Iterator[EventCounter]:
    """How often the firmware slowed packages and cores, as Intel's processors tell it."""
    online = cpu.online or ()
    first: dict[int, int] = {}
    for one in online:
        first.setdefault(cpu.package_of.get(one, 0), one)
    for package, one in sorted(first.items()):
        path = f"{CPUS}/cpu{one}/thermal_throttle/package_throttle_count"
        value = pcie.number(root, path)
        if value is not None:
            yield EventCounter(
                f"throttle package {package}", _THROTTLE, f"CPU package {package}, as a whole", value, path
            )
    cores: dict[int, int] = {}
    running = set(online)
    for group in cpu.siblings or tuple((one,) for one in online):
        mate = next((cpu_id for cpu_id in group if cpu_id in running), None)
        path = f"{CPUS}/cpu{mate}/thermal_throttle/core_throttle_count"
        value = None if mate is None else pcie.number(root, path)
        if mate is not None and value is not None:
            package = cpu.package_of.get(mate, 0)
            cores[package] = cores.get(package, 0) + value
    for package, count in sorted(cores.items()):
        path = f"{CPUS}/cpu*/thermal_throttle/core_throttle_count"
        yield EventCounter(
            f"throttle cores {package}", _THROTTLE, f"cores of CPU package {package}", count, path
        )


def links(root: Root) -> Iterator[EventCounter]:
    """The errors that PCIe devices reported (Advanced Error Reporting)."""
    for address in root.names(pcie.DEVICES)[:_DEVICES]:
        if not pcie.ADDRESS.fullmatch(address):
            continue
        for name, row, kind in _AER:
            path = f"{pcie.DEVICES}/{address}/{name}"
            value = total(root.line(path), row)
            if value is not None:
                grade = name.removeprefix("aer_dev_")
                yield EventCounter(
                    f"aer {address} {grade}", kind, f"PCIe link {address}, {grade}", value, path
                )


def machine_checks(root: Root) -> Iterator[EventCounter]:
    """Machine checks and thermal events by the interrupts that tell of them, summed over CPUs."""
    for line in (root.read(INTERRUPTS, LARGE).text or "").splitlines():
        name, _, rest = line.strip().partition(":")
        if name in INTERRUPT_ROWS:
            kind, domain = INTERRUPT_ROWS[name]
            numbers = re.match(r"(?:\s+\d{1,18})*", rest, re.ASCII)
            value = sum(int(word) for word in (numbers[0] if numbers else "").split())
            yield EventCounter(f"interrupt {name}", kind, domain, value, INTERRUPTS)


def memory(edac: Edac | None) -> Iterator[EventCounter]:
    """The counts of an EDAC record as counters: those of each controller and of its modules."""
    for controller in edac.controllers if edac else ():
        for kind, value in ((_CORRECTED, controller.corrected), (_UNCORRECTED, controller.uncorrected)):
            if value is not None:
                name = f"memory controller {controller.id}"
                yield EventCounter(f"edac {controller.id} {kind}", kind, name, value)
        for module in controller.modules:
            for kind, value in ((_CORRECTED, module.corrected), (_UNCORRECTED, module.uncorrected)):
                if value is not None:
                    place = f"memory module {module.label or module.id} of {controller.id}"
                    yield EventCounter(f"edac {controller.id}/{module.id} {kind}", kind, place, value)


def total(text: str | None, name: str) -> int | None:
    """The count behind a name in a file of such lines; None where it is not there."""
    match = re.search(rf"(?m)^{name} (\d{{1,20}})$", text or "")
    try:
        return parsing.integer(match[1]) if match else None
    except ValueError:
        return None
