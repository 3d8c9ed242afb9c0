"""The kernel's counts of memory errors (EDAC): controllers, modules, corrected and uncorrected errors."""

from __future__ import annotations

import re

from k3gate.host import parsing, syscalls
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import Edac, EdacController, EdacModule, State

FOLDER = "sys/devices/system/edac/mc"
_CONTROLLER = re.compile(r"mc\d{1,3}", re.ASCII)
_MODULE = re.compile(r"(?:dimm|rank)\d{1,4}", re.ASCII)
_ROW = re.compile(r"csrow\d{1,4}", re.ASCII)
_CHANNEL = re.compile(r"ch(\d{1,2})_(?:dimm_label|ce_count)", re.ASCII)
_CONTROLLERS = 64
_MODULES = 64
_LONGEST = 120
# A driver that cannot tell a size writes all ones; no module has a pebibyte.
_MOST_MEBIBYTES = 2**30


def read(root: Root, notes: Notes) -> Edac:
    """The `Edac` record. No driver means that errors are not counted, not that there are none."""
    if not root.exists(FOLDER):
        absent = syscalls.counts_no_errors(root)
        if absent:
            notes.seen("edac.driver_present", FOLDER, "absent: the kernel has no EDAC")
        else:
            notes.absent("edac.driver_present", FOLDER)
        _uncounted(notes, "the kernel counts no memory errors here")
        return Edac(driver_present=False if absent else None)
    names = [name for name in root.names(FOLDER) if _CONTROLLER.fullmatch(name)]
    names = sorted(names, key=lambda name: int(name[2:]))[:_CONTROLLERS]
    if not names:
        notes.seen("edac.driver_present", FOLDER, "no driver has taken a memory controller")
        _uncounted(notes, "no driver counts the errors of a memory controller")
        return Edac(driver_present=False)
    notes.seen("edac.driver_present", f"{FOLDER}/mc*")
    notes.seen("edac.controllers", f"{FOLDER}/mc*")
    controllers = tuple(_controller(root, name) for name in names)
    types = sorted({m.memory_type for c in controllers for m in c.modules if m.memory_type})
    if types:
        notes.seen("edac.memory_type", f"{FOLDER}/mc*")
    else:
        notes.absent("edac.memory_type", f"{FOLDER}/mc*", "no module tells its type")
    return Edac(
        driver_present=True,
        controllers=controllers,
        corrected=_sum(notes, "corrected", controllers, "ce_count"),
        uncorrected=_sum(notes, "uncorrected", controllers, "ue_count"),
        memory_type=", ".join(types[:8]) or None,
    )


def _uncounted(notes: Notes, reason: str) -> None:
    for name in ("controllers", "corrected", "uncorrected", "memory_type"):
        notes.absent(f"edac.{name}", FOLDER, reason)


def _sum(notes: Notes, field: str, controllers: tuple[EdacController, ...], name: str) -> int | None:
    total = 0
    for controller in controllers:
        count = getattr(controller, field)
        if count is None:
            source = f"{FOLDER}/{controller.id}/{name}"
            reason = f"{controller.id} tells no count, so the sum is unknown"
            notes.unknown(f"edac.{field}", State.FAILED, source, reason)
            return None
        total += count
    notes.seen(f"edac.{field}", f"{FOLDER}/mc*/{name}")
    return total


def _controller(root: Root, name: str) -> EdacController:
    base = f"{FOLDER}/{name}"
    inside = root.names(base)
    modules = [_module(root, base, folder) for folder in inside if _MODULE.fullmatch(folder)]
    if not modules:
        # Before 3.6 there are rows of chips with channels, and a size of the row alone.
        rows = [folder for folder in inside if _ROW.fullmatch(folder)]
        modules = [module for row in rows[:_MODULES] for module in _channels(root, base, row)]
    return EdacController(
        id=name,
        name=_words(root, f"{base}/mc_name"),
        bytes=_mebibytes(root, f"{base}/size_mb"),
        corrected=_number(root, f"{base}/ce_count"),
        uncorrected=_number(root, f"{base}/ue_count"),
        seconds=_number(root, f"{base}/seconds_since_reset"),
        modules=tuple(modules[:_MODULES]),
    )


def _module(root: Root, base: str, folder: str) -> EdacModule:
    path = f"{base}/{folder}"
    return EdacModule(
        id=folder,
        label=_words(root, f"{path}/dimm_label"),
        location=_words(root, f"{path}/dimm_location"),
        bytes=_mebibytes(root, f"{path}/size"),
        memory_type=_words(root, f"{path}/dimm_mem_type"),
        mode=_words(root, f"{path}/dimm_edac_mode"),
        corrected=_number(root, f"{path}/dimm_ce_count"),
        uncorrected=_number(root, f"{path}/dimm_ue_count"),
    )


def _channels(root: Root, base: str, row: str) -> list[EdacModule]:
    path = f"{base}/{row}"
    numbers = sorted({int(m[1]) for name in root.names(path) if (m := _CHANNEL.fullmatch(name))})
    return [
        EdacModule(
            id=f"{row}/ch{number}",
            label=_words(root, f"{path}/ch{number}_dimm_label"),
            memory_type=_words(root, f"{path}/mem_type"),
            mode=_words(root, f"{path}/edac_mode"),
            corrected=_number(root, f"{path}/ch{number}_ce_count"),
            uncorrected=_number(root, f"{path}/ch{number}_ue_count"),
        )
        for number in numbers[:_MODULES]
    ]


def _words(root: Root, path: str) -> str | None:
    text = parsing.words(root.line(path))
    return text[:_LONGEST] if text else None


def _number(root: Root, path: str) -> int | None:
    try:
        return parsing.integer(root.line(path) or "", 0, 2**53)
    except ValueError:
        return None


def _mebibytes(root: Root, path: str) -> int | None:
    size = _number(root, path)
    return size * 2**20 if size is not None and size <= _MOST_MEBIBYTES else None
