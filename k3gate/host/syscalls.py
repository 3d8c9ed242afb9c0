"""What only the kernel can tell this process: affinity, the grant of AMX, limits. Of a capture: nothing.

Each answer is (value, source, reason): value None with the reason where it cannot be had.
"""

from __future__ import annotations

import os
import resource

from k3gate.host import cpulist
from k3gate.host.files import Root

_ARCH_PRCTL = 158
_ARCH_GET_XCOMP_PERM = 0x1022
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def affinity(root: Root) -> tuple[tuple[int, ...] | None, str, str | None]:
    """CPUs on which this process may run (of a capture: proc/self/status), source, reason."""
    if root.live:
        # The interpreter grows its mask until the kernel takes it, so any width works.
        return tuple(sorted(os.sched_getaffinity(0))), "sched_getaffinity", None
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
            return None, "getrlimit", "no limit"
        return soft, "getrlimit", None
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


def amx_granted() -> tuple[bool | None, str | None]:
    """Whether the kernel lets this process use AMX tile data; asking is what grants it. x86-64 only."""
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
