"""What only the kernel can tell this process: affinity, the grant of AMX, limits, the size of a page.

A capture holds the answers in `syscalls.json`; where it does not, files of proc answer as far as they can. Each
answer is (value, source, reason): value None with the reason where it cannot be had. The source is the same
for the machine and for its capture.
"""

from __future__ import annotations

import errno
import json
import os
import re
import resource
from typing import Any

from attrs import evolve

from k3gate import documents, units
from k3gate.errors import UsageError
from k3gate.host import cpulist
from k3gate.host.files import ENTRIES, SMALL, Root
from k3gate.host.notes import Notes
from k3gate.records import Inventory, Kernel, Machine, Provenance

ANSWERS = "syscalls.json"
CAPTURE = "capture.json"
KIND = "k3gate capture"
VERSION = 1
MACHINE_ID = "etc/machine-id"
_BYTES = 16 * 1024 * 1024
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_LONGEST_REASON = 300
_PATHS = 64

_ARCH_PRCTL = 158
_ARCH_GET_XCOMP_PERM = 0x1022
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18

_AFFINITY = "sched_getaffinity"
_LIMIT = "getrlimit"
_AMX = "arch_prctl"
_PAGE = "sysconf"
_ENVIRONMENT = "environment"
_PAGES = tuple(2**bits for bits in range(12, 21))
_NO_ANSWER = "implausible: no answer of the kernel"


def affinity(root: Root) -> tuple[tuple[int, ...] | None, str, str | None]:
    """CPUs on which this process may run (of a capture: proc/self/status), source, reason."""
    if root.live:
        # The interpreter grows its mask until the kernel takes it, so any width works.
        return tuple(sorted(os.sched_getaffinity(0))), _AFFINITY, None
    answers = _answers(root)
    if "affinity" in answers:
        value = answers["affinity"]
        try:
            if isinstance(value, str):
                return cpulist.parse(value[:SMALL]), _AFFINITY, None
        except ValueError as error:
            return None, ANSWERS, f"implausible: {error}"
        return None, ANSWERS, _reason(answers, "affinity") or _NO_ANSWER
    source = "proc/self/status"
    text = root.read(source).text
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            try:
                return cpulist.parse(value), source, None
            except ValueError as error:
                return None, source, f"implausible: {error}"
    return None, source, "absent"


def locked_memory(root: Root) -> tuple[int | None, str, str | None]:
    """Bytes this process may lock (None with the reason "no limit" if any number), source, reason."""
    if root.live:
        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if soft == resource.RLIM_INFINITY:
            return None, _LIMIT, "no limit"
        return soft, _LIMIT, None
    answers = _answers(root)
    if "memlock" in answers:
        value = answers["memlock"]
        if value == "unlimited":
            return None, _LIMIT, "no limit"
        if _whole(value, 0, 2**63):
            return value, _LIMIT, None
        return None, ANSWERS, _NO_ANSWER
    source = "proc/self/limits"
    for line in (root.read(source).text or "").splitlines():
        if line.startswith("Max locked memory"):
            soft_text = line[len("Max locked memory") :].split()[:1]
            if soft_text == ["unlimited"]:
                return None, source, "no limit"
            if soft_text and soft_text[0].isascii() and soft_text[0].isdigit() and len(soft_text[0]) < 20:
                return int(soft_text[0]), source, None
            return None, source, "implausible: no number"
    return None, source, "absent"


def amx_granted(root: Root) -> tuple[bool | None, str | None, str | None]:
    """Whether the kernel lets this process use AMX tile data; source None: nobody can be asked. x86-64 only."""
    if root.live:
        value, reason = _ask_for_amx()
        return value, _AMX, reason
    answers = _answers(root)
    if "amx_granted" not in answers:
        return None, None, "only the live machine can be asked"
    value, reason = answers["amx_granted"], _reason(answers, "amx_granted")
    if value is None or isinstance(value, bool):
        return value, _AMX, reason
    return None, ANSWERS, _NO_ANSWER


def _ask_for_amx() -> tuple[bool | None, str | None]:
    """Asking is what grants it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, ctypes.c_ulong(_XFEATURE_XTILEDATA))
    error = ctypes.get_errno()
    permitted = ctypes.c_uint64(0)
    if libc.syscall(_ARCH_PRCTL, _ARCH_GET_XCOMP_PERM, ctypes.byref(permitted)) != 0:
        return None, f"the kernel does not answer ARCH_GET_XCOMP_PERM: {os.strerror(ctypes.get_errno())}"
    if permitted.value >> _XFEATURE_XTILEDATA & 1:
        return True, None
    return False, f"refused: {os.strerror(error)}" if refused else None


def counts_no_errors(root: Root) -> bool:
    """Whether this is a machine whose kernel is known to have no EDAC folder, and not a capture that lacks it."""
    return root.live or _answers(root).get("errors_counted") is False


def answers_of(inventory: Inventory) -> dict[str, Any]:
    """What `syscalls.json` of a capture holds: the answers in an inventory that came from the kernel itself."""
    notes = inventory.provenance
    answers: dict[str, Any] = {"version": VERSION}
    reasons: dict[str, str] = {}

    def told(field: str, source: str) -> Provenance | None:
        note = notes.get(field)
        return note if note is not None and note.source == source else None

    if told("cpu.allowed", _AFFINITY) and inventory.cpu.allowed:
        answers["affinity"] = units.cpu_list(inventory.cpu.allowed)
    if told("limits.memlock_bytes", _LIMIT):
        amount = inventory.limits.memlock_bytes
        answers["memlock"] = "unlimited" if amount is None else amount
    if note := told("cpu.amx.granted", _AMX):
        answers["amx_granted"] = inventory.cpu.amx.granted
        if note.reason:
            reasons["amx_granted"] = note.reason
    if told("kernel.page_bytes", _PAGE):
        answers["page_bytes"] = inventory.kernel.page_bytes
    if told("machine.container", _ENVIRONMENT):
        answers["container"] = inventory.machine.container
    if inventory.edac is not None and inventory.edac.driver_present is False:
        answers["errors_counted"] = False
    if reasons:
        answers["reasons"] = reasons
    return answers if len(answers) > 1 else {}


def recall(root: Root, notes: Notes, machine: Machine, kernel: Kernel) -> tuple[Machine, Kernel]:
    """Machine and kernel with what a capture holds apart from the machine's files; unchanged of a live one."""
    if root.live:
        return machine, kernel
    answers = _answers(root)
    page = answers.get("page_bytes")
    if isinstance(page, int) and page in _PAGES:
        notes.seen("kernel.page_bytes", _PAGE)
        kernel = evolve(kernel, page_bytes=page)
    if answers.get("container") == "kubernetes":
        notes.seen("machine.container", _ENVIRONMENT)
        machine = evolve(machine, container="kubernetes")
    own = _document(root, CAPTURE).get("machine_id")
    if machine.id is None and own is not None:
        if isinstance(own, str) and _ID.fullmatch(own):
            notes.seen("machine.id", MACHINE_ID)
            machine = evolve(machine, id=own)
        else:
            notes.implausible("machine.id", CAPTURE, "not a machine id")
    return machine, kernel


def is_machine_id(raw: bytes) -> bool:
    """Whether a file holds the number that names one machine."""
    return _ID.fullmatch(raw.decode("ascii", "replace").strip("\0 \t\r\n")) is not None


def prepare(root: Root) -> None:
    """Tells a captured root what the machine refused; `UsageError` if a newer version wrote the capture."""
    if root.live:
        return
    told = _document(root, CAPTURE)
    version = told.get("version")
    if told.get("kind") == KIND and _whole(version, VERSION + 1, 2**31):
        raise UsageError(
            f"{documents.printable(root.path)}: a capture of format {version}, which a newer k3gate wrote; "
            f"this one reads format {VERSION}: update k3gate"
        )
    refused = told.get("refused")
    if isinstance(refused, dict):
        numbers = {name: number for number, name in errno.errorcode.items()}
        root.refused = {
            path: numbers[str(name)] for path, name in list(refused.items())[:ENTRIES] if str(name) in numbers
        }


def storage_paths(root: Root) -> tuple[str, ...]:
    """The paths about which a capture was asked when it was made; none of a live machine."""
    found = [] if root.live else _document(root, CAPTURE).get("storage")
    paths = found if isinstance(found, list) else []
    return tuple(
        path for path in paths[:_PATHS] if isinstance(path, str) and path.startswith("/") and "\0" not in path
    )


def _answers(root: Root) -> dict[str, Any]:
    found = _document(root, ANSWERS)
    return found if found.get("version") == VERSION else {}


def _document(root: Root, name: str) -> dict[str, Any]:
    """A small JSON object at the top of a capture; empty where there is none that can be read."""
    try:
        found = json.loads(root.raw(name, _BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _reason(answers: dict[str, Any], name: str) -> str | None:
    reasons = answers.get("reasons")
    text = reasons.get(name) if isinstance(reasons, dict) else None
    return documents.printable(" ".join(text.split()))[:_LONGEST_REASON] if isinstance(text, str) else None


def _whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
