"""Findings about settings and use of a machine that take speed or room from K3, and that a command can change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3gate.records import Cpu, Finding, Inventory, Severity
from k3gate.units import gib

_IN_USE = 0.15
_WITH_AMX = {143, 173, 174, 207}
"""Models of Intel's family 6 whose cores have AMX: Sapphire, Granite and Emerald Rapids (Linux, intel-family.h)."""
_NAMED_WITH_AMX = re.compile(
    r"Xeon\(R\) (?:Platinum|Gold|Silver|Bronze) [3-9][45]\d\d|Xeon\(R\) CPU Max 94\d\d|Xeon\(R\) 6[3579]\d\dP"
)
_FIRST_KERNEL = (5, 16)
"""That grants AMX to processes."""


def find(inventory: Inventory) -> Iterator[Finding]:
    """Boost that is off, AMX that the kernel refuses, strict overcommit, and memory that others hold."""
    cpu, kernel, memory = inventory.cpu, inventory.kernel, inventory.memory
    if cpu.boost is False:
        yield Finding(
            "boost_off",
            Severity.LOW,
            "Boost clocks are off",
            "the kernel's switch for them",
            "on",
            "Prefill and the decoding of 4-bit weights are bound by compute: they run at the base clock.",
            "Switch it on (/sys/devices/system/cpu/cpufreq/boost, or intel_pstate/no_turbo), or in the firmware.",
        )
    if cpu.amx.tile and cpu.amx.granted is False:
        yield Finding(
            "amx_refused",
            Severity.MEDIUM,
            "The kernel does not let this process use AMX",
            "the processor has it, arch_prctl refuses it",
            "granted",
            "Expert kernels fall back to AVX-512, which costs prefill a large part of its rate.",
            "Use a kernel of 5.16 or later, outside a sandbox that forbids arch_prctl.",
        )
    if cpu.amx.tile is False and _has_amx_by_model(cpu):
        yield _hidden_amx(inventory)
    if kernel.overcommit_memory == 2:
        yield Finding(
            "overcommit_strict",
            Severity.LOW,
            "The kernel commits no more memory than it has been told to",
            "vm.overcommit_memory is 2",
            "0 or 1",
            "Mapping 1.4 TiB of experts is refused once the limit is reached, though the memory is free.",
            "sudo sysctl vm.overcommit_memory=0",
        )
    total, available = memory.total_bytes, memory.available_bytes
    reserved = sum(pool.page_bytes * pool.total for pool in kernel.huge_pages)
    if total and available is not None and total - available - reserved > _IN_USE * total:
        yield Finding(
            "memory_in_use",
            Severity.MEDIUM,
            f"{gib(total - available - reserved)} of memory are in use",
            f"{gib(available)} of {gib(total)} are available",
            "an idle machine",
            "What others hold is not there for the weights, and may be spread unevenly over the nodes.",
            "Stop what holds it (ps aux --sort -rss; df -h -t tmpfs), then look again.",
        )


def _has_amx_by_model(cpu: Cpu) -> bool:
    known = cpu.vendor == "GenuineIntel" and cpu.family == 6 and cpu.model_number in _WITH_AMX
    return known or _NAMED_WITH_AMX.search(cpu.model or "") is not None


def _hidden_amx(inventory: Inventory) -> Finding:
    """The model promises what this system cannot use: of a runtime that needs it, it proves nothing."""
    release = re.match(r"(\d{1,4})\.(\d{1,4})", inventory.kernel.release or "")
    old = release is not None and (int(release[1]), int(release[2])) < _FIRST_KERNEL
    causes = [f"kernel {inventory.kernel.release} is older than 5.16"] if old else []
    if inventory.machine.virtual:
        causes.append(f"hypervisor ({inventory.machine.hypervisor or 'of an unknown kind'})")
    why = " and ".join(causes) or "by the firmware or the kernel's command line"
    return Finding(
        "amx_hidden",
        Severity.MEDIUM,
        "The CPU model has AMX, hidden here",
        f"{inventory.cpu.model} without amx_tile among its flags; hidden: {why}",
        "amx_tile, amx_int8 and amx_bf16 among the flags",
        "A runtime that needs AMX does not run here, or falls back: this system is no prototype for one that will.",
        "Measure on the bare machine with a kernel of 5.16 or later, or let the hypervisor pass AMX on.",
    )
