"""Findings about the memory modules: what a buyer sees before any bandwidth is measured."""

from __future__ import annotations

from collections.abc import Iterator

from k3gate.host.channels import usable_channels
from k3gate.host.memory import in_memory_mode, not_seen
from k3gate.records import Edac, EdacController, EdacModule, Finding, Inventory, Memory, Severity
from k3gate.units import count, gib, quantity, significant

NOTICED_PERCENT = 0.5
"""Percent off the rated speed from which on it counts: makers round 2933.3 MT/s to 2933 and to 2934."""


_EMPTY_COSTS = (
    "Decoding K3 streams weights from all channels at once: an empty one carries nothing, and the rest interleave "
    "more coarsely."
)


def find(inventory: Inventory) -> Iterator[Finding]:
    """Empty channels, slowed, mixed and persistent modules, memory without ECC, and errors that were counted."""
    yield from _errors(inventory)
    memory = inventory.memory
    if memory.dimms is None:
        return
    yield from _channels(inventory)
    yield from _speed(memory)
    yield from _mixture(memory)
    yield from _kinds(memory)
    yield from _seen(inventory)


def _channels(inventory: Inventory) -> Iterator[Finding]:
    memory = inventory.memory
    named = memory.empty_channels or ()
    whole = usable_channels(inventory.cpu, memory)
    if whole is None:
        return
    if memory.channels is None:
        yield from _too_few(inventory, whole)
        return
    if memory.channels >= whole:
        return
    empty = whole - memory.channels
    rates = ""
    if memory.theoretical_bytes_per_s and memory.full_bytes_per_s:
        rates = (
            f"; on paper {quantity(memory.theoretical_bytes_per_s, 'B/s')} of "
            f"{quantity(memory.full_bytes_per_s, 'B/s')}"
        )
    shown = ", ".join(named[:8]) + (f" and {empty - 8} more" if empty > 8 else "")
    if len(named) < empty:
        unlisted = f"modules in {memory.channels} of the {whole} channels of {inventory.cpu.model}"
        shown = "; ".join(filter(None, (", ".join(named[:8]), unlisted)))
    yield Finding(
        "empty_channels",
        Severity.HIGH,
        f"{count(empty, 'memory channel')} of {whole} {'is' if empty == 1 else 'are'} empty",
        f"{shown}{rates}",
        "a module in every channel",
        _EMPTY_COSTS,
        "Fill the empty channels with modules of the kind that the others hold; if they are not empty, reseat "
        "or replace what the firmware does not see.",
    )


def _too_few(inventory: Inventory, whole: int) -> Iterator[Finding]:
    """Fewer modules than channels, where their slots do not tell which are empty."""
    modules = inventory.memory.populated
    if modules is None or modules >= whole:
        return
    yield Finding(
        "empty_channels",
        Severity.HIGH,
        f"At least {whole - modules} of {count(whole, 'memory channel')} are empty",
        f"{count(modules, 'module')} for the {whole} channels of {inventory.cpu.model}; which are empty the slots do "
        "not tell",
        "a module in every channel",
        _EMPTY_COSTS,
        "Look up in the board's manual which slots belong to which channel, and fill every channel alike.",
    )


def _speed(memory: Memory) -> Iterator[Finding]:
    derating = memory.derating_percent
    if derating is None:
        return
    configured = (
        f"{memory.configured_mts:,} MT/s" if memory.configured_mts else "less, as far as the modules tell"
    )
    rated = f"{memory.rated_mts:,} MT/s" if memory.rated_mts else "more, as far as the modules tell"
    if memory.theoretical_bytes_per_s is None and memory.notes:
        return  # the firmware may give clocks for rates
    if derating > NOTICED_PERCENT:
        two = (memory.modules_per_channel or 1) > 1
        yield Finding(
            "modules_slowed",
            Severity.MEDIUM,
            "Memory runs below its rated speed",
            f"configured {configured}, rated {rated}: up to {significant(derating)} % less",
            "the rated speed",
            "Decoding is bound by memory: a slower module costs that share of the tokens per second.",
            "Two modules on a channel often cost a speed grade: one larger module per channel keeps it."
            if two
            else "Look at the memory speed in the firmware settings, at what the processor supports, and for a "
            "slower module among the others.",
        )
    elif derating < -NOTICED_PERCENT:
        yield Finding(
            "modules_overclocked",
            Severity.MEDIUM,
            "Memory runs above its rated speed",
            f"configured {configured}, rated {rated}",
            "the rated speed",
            "A wrong bit in a weight or a cache stays until the next load; nobody vouches for this speed.",
            "Turn the memory profile off in the firmware settings, or order modules that are rated for it.",
        )


def _mixture(memory: Memory) -> Iterator[Finding]:
    dram = [dimm for dimm in memory.dimms or () if dimm.kind == "dram"]
    sizes = sorted({dimm.bytes for dimm in dram if dimm.bytes})
    if memory.mixed_sizes:
        yield Finding(
            "mixed_module_sizes",
            Severity.MEDIUM,
            "Memory modules of several sizes",
            ", ".join(f"{sum(d.bytes == size for d in dram)} x {gib(size)}" for size in sizes),
            "one size",
            "What the larger modules hold beyond the smaller ones interleaves over fewer channels, and weights "
            "that lie there are read more slowly.",
            "Populate all channels with modules of one size.",
        )
    if memory.mixed_speeds:
        speeds = sorted({(dimm.configured_mts or 0, dimm.rated_mts or 0) for dimm in dram})
        yield Finding(
            "mixed_module_speeds",
            Severity.MEDIUM,
            "Memory modules of several speeds",
            ", ".join(
                f"{sum((d.configured_mts or 0, d.rated_mts or 0) == pair for d in dram)} at {_mts(pair[0])}, rated "
                f"{_mts(pair[1])}"
                for pair in speeds
            ),
            "one speed",
            "Modules of a machine mostly run as slowly as its slowest, and what interleaves waits for it.",
            "Replace the slower modules.",
        )
    parts = sorted({dimm.part_number for dimm in dram if dimm.part_number})
    if memory.mixed_parts and not memory.mixed_sizes and not memory.mixed_speeds:
        yield Finding(
            "mixed_module_parts",
            Severity.LOW,
            "Memory modules of several part numbers",
            ", ".join(f"{sum(d.part_number == part for d in dram)} x {part}" for part in parts[:6]),
            "one part number",
            "Modules of other makes may train to other timings; a second machine may get another mixture.",
            "Order one part number, and write it into the bill of materials.",
        )


def _mts(rate: int) -> str:
    return f"{rate:,} MT/s" if rate else "an unknown speed"


def _errors(inventory: Inventory) -> Iterator[Finding]:
    edac = inventory.edac
    if edac is None or inventory.machine.virtual is not False:
        return
    if edac.driver_present is False:
        yield Finding(
            "memory_errors_not_counted",
            Severity.LOW,
            "Nobody counts memory errors",
            "no EDAC driver has taken a memory controller",
            "an EDAC driver for each memory controller",
            "Whether the modules correct errors all day cannot be seen; absence of counts is not absence of errors.",
            "Load the driver of this processor (amd64_edac, skx_edac, i10nm_edac), or read the BMC's event log.",
        )
    corrected, uncorrected = edac.corrected or 0, edac.uncorrected or 0
    if corrected or uncorrected:
        bad = [
            f"{where}: {one.corrected or 0:,} corrected, {one.uncorrected or 0:,} uncorrected"
            for where, one in _with_errors(edac)
        ]
        yield Finding(
            "memory_errors",
            Severity.HIGH if uncorrected else Severity.MEDIUM,
            f"The kernel counted {corrected:,} corrected and {uncorrected:,} uncorrected memory errors",
            "; ".join(bad[:8]) or "not told by which controller",
            "none",
            "A module that is corrected again and again slows reads and fails one day under a terabyte of weights; "
            "an uncorrected error ends the process, or worse, does not.",
            "Find the module by its label in /sys/devices/system/edac, and have it replaced before you buy.",
        )


def _with_errors(edac: Edac) -> Iterator[tuple[str, EdacController | EdacModule]]:
    """The modules that errors were counted for, by their labels; of a controller without such the controller."""
    for controller in edac.controllers:
        known = [one for one in controller.modules if one.corrected or one.uncorrected]
        for module in known:
            yield module.label or f"{controller.name or controller.id} {module.id}", module
        if not known and (controller.corrected or controller.uncorrected):
            yield controller.name or controller.id, controller


def _seen(inventory: Inventory) -> Iterator[Finding]:
    """What the kernel sees against what is installed."""
    memory = inventory.memory
    total, dram = memory.total_bytes, memory.dram_bytes
    if not total or not dram:
        return
    if in_memory_mode(memory):
        yield Finding(
            "memory_mode",
            Severity.HIGH,
            "Persistent memory serves as main memory",
            f"the kernel has {gib(total)}, of which {gib(dram)} are DRAM",
            "DRAM alone as main memory",
            "In Memory Mode the DRAM is a cache before persistent memory: weights beyond it are read at the pace "
            "of the latter, and nothing in the nodes shows it.",
            "Switch the modules to App Direct in the firmware settings, or count the DRAM alone.",
        )
    elif not_seen(memory) is not None:
        yield Finding(
            "memory_not_seen",
            Severity.HIGH if total < 0.9 * dram else Severity.MEDIUM,
            "The kernel sees less memory than is installed",
            f"{gib(total)} of {gib(dram)}",
            "all of it, less what kernel and firmware keep",
            "Mirrored or spared memory, modules that were mapped out, or a limit on the command line take room "
            "from the weights.",
            "Look at memory mirroring and sparing in the firmware settings, at its event log, and for mem= on the "
            "kernel's command line.",
        )


def _kinds(memory: Memory) -> Iterator[Finding]:
    persistent = [dimm for dimm in memory.dimms or () if dimm.kind == "pmem"]
    if persistent:
        yield Finding(
            "persistent_modules",
            Severity.HIGH,
            f"{count(len(persistent), 'memory module')} of persistent memory, not DRAM",
            f"{gib(memory.pmem_bytes)} persistent beside {gib(memory.dram_bytes)} of DRAM",
            "DRAM in every channel",
            "Persistent memory reads at a fraction of the rate of DRAM and has several times its latency: "
            "experts that lie on it decode at its pace.",
            "Count the DRAM alone for K3, or measure with the weights on this memory before you believe a rate.",
        )
    plain = [array for array in memory.arrays or () if array.ecc == "none"]
    if plain:
        yield Finding(
            "no_ecc",
            Severity.MEDIUM,
            "The memory has no error correction",
            "the firmware calls it without ECC",
            "ECC",
            "Over a terabyte of weights, bits flip unseen for as long as the model is loaded.",
            "Choose a board and modules with ECC.",
        )
