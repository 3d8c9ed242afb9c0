"""The memory modules: every channel populated and evenly, and every module at its rated speed."""

from __future__ import annotations

from k3gate import units
from k3gate.gate import hardware
from k3gate.gate.judgement import Judgement, unproven
from k3gate.host.channels import channels_of_processors
from k3gate.records import Inventory, Memory, RunRecord, State, Verdict

DERATING_NOTICED = 0.5
"""Percent below the rated speed from which on it counts: makers round 2933.3 MT/s to 2933 and to 2934."""
_EVIDENCE = ("inventory:memory.dimms",)
_AS_ROOT = 'Only root may read the firmware\'s memory table: run `sudo "$(command -v k3gate)" run`.'


def population(record: RunRecord) -> Judgement:
    """Every channel of every processor that is there has a DRAM module, and as much memory as the others."""
    inventory, memory = record.inventory, record.inventory.memory
    if memory.channels is None:
        return _unknown(inventory, "memory.channels", "Which memory channels are populated is not known")
    wanted = channels_of_processors(inventory.cpu)
    partial = _partial(memory)
    if partial is not None:
        return unproven(f"Whether every channel is populated is not known: {partial}.", _EVIDENCE)
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
    doubt = _doubt(inventory, wanted)
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
    slowed = (memory.derating_percent or 0.0) > DERATING_NOTICED and memory.configured_mts is not None
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
    rated = f"{memory.rated_mts:,}" if memory.rated_mts else "unknown"
    observed = f"{configured:,} of {rated} MT/s"
    if derating > DERATING_NOTICED:
        several = (memory.modules_per_channel or 1) > 1
        why = " Two modules on a channel often cost that." if several else ""
        return Judgement(
            Verdict.FAIL,
            f"Modules run up to {units.significant(derating)} % below their rated speed: the slowest at "
            f"{configured:,} MT/s.{why}",
            observed=observed,
            evidence=_EVIDENCE,
        )
    return Judgement(
        Verdict.PASS,
        f"Every module runs at its rated speed{' or above' if derating < 0 else ''}, the slowest at "
        f"{configured:,} MT/s.",
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
    if memory.channel_list is None:
        return "the slots name no channel, and how many the processor has is not known"
    sockets = {dimm.socket for dimm in dimms if dimm.socket is not None}
    unused = any(not channel.processor for channel in memory.channel_list)
    if unused and len(inventory.cpu.socket_list or ()) < len(sockets):
        return "empty slots name sockets of which the table has no record, and the processor's channels are not known"
    if not memory.arrays or any(array.devices is None for array in memory.arrays):
        return "the table does not tell how many slots the board has, and nobody here knows the processor's channels"
    return None


def _partial(memory: Memory) -> str | None:
    """Why the table is not whole: it was cut, or shows other slots than it counts."""
    board = [dimm for dimm in memory.dimms or () if dimm.kind not in ("cxl", "hbm")]
    told = [array.devices for array in memory.arrays or ()]
    if board and told and None not in told:
        slots = sum(devices or 0 for devices in told)
        if slots != len(board):
            return f"the table shows {len(board)} of the board's {slots} slots"
    return next((note for note in memory.notes if "rest was not read" in note or "truncated" in note), None)


def _bare_sockets(inventory: Inventory) -> list[str]:
    """Processors without a single DRAM module, where the modules name their sockets."""
    sockets = {dimm.socket for dimm in inventory.memory.dimms or () if dimm.kind == "dram"}
    processors = inventory.cpu.sockets
    if None in sockets or not sockets or not processors or len(sockets) >= processors:
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
