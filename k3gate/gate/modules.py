"""The memory modules: every channel populated and evenly, and every module at its rated speed."""

from __future__ import annotations

from k3gate import units
from k3gate.gate import hardware
from k3gate.gate.judgement import Judgement, unproven
from k3gate.host.channels import channels_of_processors
from k3gate.host.memory import not_seen
from k3gate.host.module_findings import NOTICED_PERCENT
from k3gate.records import Inventory, Memory, RunRecord, State, Verdict

_EVIDENCE = ("inventory:memory.dimms",)
_AS_ROOT = 'Only root may read the firmware\'s memory table: run `sudo "$(command -v k3gate)" run`.'


def population(record: RunRecord) -> Judgement:
    """Every channel of every processor that is there has a DRAM module, and as much memory as the others."""
    inventory, memory = record.inventory, record.inventory.memory
    wanted = channels_of_processors(inventory.cpu)
    missing = [*_bare_sockets(inventory), *_too_few(inventory, wanted)]
    if memory.channels is None and not missing:
        return _unknown(inventory, "memory.channels", "Which memory channels are populated is not known")
    if memory.channels is not None:
        missing = [*_empty(memory), *_lacking(inventory, wanted), *_bare_sockets(inventory)]
    if missing:
        return Judgement(
            Verdict.FAIL,
            f"{'; '.join(missing)}. What is left interleaves more coarsely as well.",
            observed=_observed(memory),
            evidence=_EVIDENCE,
        )
    uneven = _uneven(memory)
    if uneven is not None:
        return Judgement(Verdict.FAIL, uneven, observed=_observed(memory), evidence=_EVIDENCE)
    doubt = _doubt(inventory, wanted) or not_seen(memory)
    if doubt is not None:
        return unproven(f"Whether every channel is populated is not known: {doubt}.", _EVIDENCE)
    if memory.mixed_sizes is None:
        return _unknown(inventory, "memory.mixed_sizes", "Whether the modules are of one size is not known")
    each = f", {memory.modules_per_channel} modules each" if (memory.modules_per_channel or 1) > 1 else ""
    return Judgement(
        Verdict.PASS,
        f"All {memory.channels} channels are populated alike{each}.",
        observed=_observed(memory),
        evidence=_EVIDENCE,
    )


def speed(record: RunRecord) -> Judgement:
    """No DRAM module runs below the speed that it is rated for."""
    inventory, memory = record.inventory, record.inventory.memory
    slowed = (memory.derating_percent or 0.0) > NOTICED_PERCENT
    for field in ("configured_mts", "rated_mts", "derating_percent"):
        # Some modules may hide their rated speed: one that is known to be slowed is enough.
        if getattr(memory, field) is None and not slowed:
            return _unknown(
                inventory, f"memory.{field}", "Whether the modules run at their rated speed is not known"
            )
    derating, configured = memory.derating_percent, memory.configured_mts
    assert derating is not None
    doubt = inventory.provenance.get("memory.theoretical_bytes_per_s")
    if doubt is not None and doubt.state is State.FAILED and doubt.reason:
        return unproven(f"The speeds cannot be believed: {doubt.reason}.", _EVIDENCE)
    if memory.populated is None and derating <= NOTICED_PERCENT:
        return _unknown(
            inventory, "memory.populated", "Whether every module runs at its rated speed is not known"
        )
    rated = f"{memory.rated_mts:,}" if memory.rated_mts else "unknown"
    slowest = f"{configured:,} MT/s" if configured else "a speed that not all of them tell"
    observed = f"{configured:,} of {rated} MT/s" if configured else f"{units.significant(derating)} % below"
    if derating > NOTICED_PERCENT:
        several = (memory.modules_per_channel or 1) > 1
        why = " Two modules on a channel often cost that." if several else ""
        return Judgement(
            Verdict.FAIL,
            f"Modules run up to {units.significant(derating)} % below their rated speed: the slowest at "
            f"{slowest}.{why}",
            observed=observed,
            evidence=_EVIDENCE,
        )
    return Judgement(
        Verdict.PASS,
        f"Every module runs at its rated speed{' or above' if derating < 0 else ''}, the slowest at "
        f"{slowest}.",
        observed=observed,
        evidence=_EVIDENCE,
    )


def _empty(memory: Memory) -> list[str]:
    empty = memory.empty_channels or ()
    if not empty:
        return []
    shown = ", ".join(empty[:6]) + (f" and {len(empty) - 6} more" if len(empty) > 6 else "")
    whole = sum(channel.processor for channel in memory.channel_list or ())
    verb = "is" if len(empty) == 1 else "are"
    return [f"{len(empty)} of {whole} memory channels {verb} empty: {shown}"]


def _lacking(inventory: Inventory, wanted: int | None) -> list[str]:
    """Channels of the processors for which the board has no slots, or that hold nothing."""
    memory = inventory.memory
    if wanted is None or memory.channels is None:
        return []
    if memory.channel_list is not None:
        there = sum(channel.processor for channel in memory.channel_list)
        lost = f"the table names slots for {there} of the {wanted} channels of {inventory.cpu.model}"
        return [lost] if there < wanted else []
    used = f"modules in {memory.channels} of the {wanted} channels of {inventory.cpu.model}"
    return [used] if memory.channels < wanted else []


def _doubt(inventory: Inventory, wanted: int | None) -> str | None:
    """Why full channels among those that the table shows do not mean that all are full; None where they do."""
    memory = inventory.memory
    dimms = memory.dimms or ()
    board = [dimm for dimm in dimms if dimm.kind not in ("cxl", "hbm")]
    if memory.channel_list is not None:
        lost = sum(dimm.channel is None for dimm in board)
        if lost:
            return f"{lost} of {len(board)} slots name no channel"
    if wanted is not None:
        return (
            None
            if memory.channels == wanted
            else f"{memory.channels} channels for {wanted} of the processors"
        )
    return f"how many channels {inventory.cpu.model or 'the processor'} has is not known here"


def _too_few(inventory: Inventory, wanted: int | None) -> list[str]:
    """Fewer modules than channels: whichever they are in, some channel is empty."""
    memory = inventory.memory
    board = [dimm for dimm in memory.dimms or () if dimm.kind not in ("cxl", "hbm")]
    if not board or wanted is None or memory.populated is None:
        return []
    modules = sum(dimm.populated is not False for dimm in board)
    few = f"{modules} modules for the {wanted} channels of {inventory.cpu.model}"
    return [few] if modules < wanted else []


def _bare_sockets(inventory: Inventory) -> list[str]:
    """Processors without a single DRAM module, where the modules name their sockets."""
    sockets = {dimm.socket for dimm in inventory.memory.dimms or () if dimm.kind == "dram"}
    processors = inventory.cpu.sockets
    if None in sockets or not sockets or not processors or inventory.memory.populated is None:
        return []
    if len(sockets) >= processors:
        return []
    return [f"{len(sockets)} of {processors} processors have memory modules"]


def _uneven(memory: Memory) -> str | None:
    sizes: dict[int, list[str]] = {}
    for channel in memory.channel_list or ():
        if channel.dram and channel.dram_bytes is not None:
            sizes.setdefault(channel.dram_bytes, []).append(channel.name)
    if len(sizes) > 1:
        least = min(sizes)
        return (
            f"The channels hold uneven amounts: {units.gib(least)} at {', '.join(sizes[least][:4])}, up to "
            f"{units.gib(max(sizes))} at others; a part of the memory then interleaves over fewer channels."
        )
    per_socket: dict[int | None, set[tuple[int | None, str | None]]] = {}
    for dimm in memory.dimms or ():
        if dimm.channel is not None and dimm.kind == "dram":
            per_socket.setdefault(dimm.socket, set()).add((dimm.controller, dimm.channel))
    numbers = {socket: len(channels) for socket, channels in per_socket.items()}
    if len(set(numbers.values())) > 1:
        told = ", ".join(f"socket {socket}: {number}" for socket, number in numbers.items())
        return f"The sockets have modules on unlike numbers of channels ({told})."
    if memory.channel_list is None and memory.mixed_sizes:
        return "The modules are of several sizes, so a part of the memory interleaves over fewer channels."
    return None


def _observed(memory: Memory) -> str:
    whole = len([c for c in memory.channel_list if c.processor]) if memory.channel_list is not None else None
    return f"{memory.channels} of {whole} channels" if whole is not None else f"{memory.channels} channels"


def _unknown(inventory: Inventory, field: str, sentence: str) -> Judgement:
    entry = inventory.provenance.get(field)
    reason = hardware.because(inventory, field) or "the firmware's table was not read"
    permitted = entry is None or entry.state is not State.NOT_PERMITTED
    return unproven(f"{sentence}: {reason}.", _EVIDENCE, remedy=None if permitted else _AS_ROOT)
