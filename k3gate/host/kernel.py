"""The kernel and those of its settings that spoil figures."""

from __future__ import annotations

import os
import re

from k3gate.host import identities, parsing
from k3gate.host.files import Root
from k3gate.host.memory import huge_pages
from k3gate.host.notes import Notes
from k3gate.records import HugePagePool, Kernel, State

_THP = "sys/kernel/mm/transparent_hugepage"
_VULNERABILITIES = "sys/devices/system/cpu/vulnerabilities"
_HUGE_PAGES = "sys/kernel/mm/hugepages"


def read(root: Root, notes: Notes, architecture: str | None) -> Kernel:
    """The `Kernel` record. Names and addresses of this one machine are cut from the command line."""
    sysctl = "proc/sys"
    return Kernel(
        release=_release(root, notes),
        command_line=notes.take("kernel.command_line", root, identities.of_command_line, "proc/cmdline"),
        transparent_hugepage=notes.take(
            "kernel.transparent_hugepage", root, parsing.chosen, f"{_THP}/enabled"
        ),
        transparent_hugepage_defrag=notes.take(
            "kernel.transparent_hugepage_defrag", root, parsing.chosen, f"{_THP}/defrag"
        ),
        numa_balancing=notes.take(
            "kernel.numa_balancing", root, parsing.switch, f"{sysctl}/kernel/numa_balancing"
        ),
        overcommit_memory=notes.take(
            "kernel.overcommit_memory", root, _small, f"{sysctl}/vm/overcommit_memory"
        ),
        zone_reclaim_mode=notes.take(
            "kernel.zone_reclaim_mode", root, _small, f"{sysctl}/vm/zone_reclaim_mode"
        ),
        swappiness=notes.take("kernel.swappiness", root, _small, f"{sysctl}/vm/swappiness"),
        mitigations=_mitigations(root, notes),
        load_average=notes.take("kernel.load_average", root, _load, "proc/loadavg"),
        page_bytes=_page_bytes(root, notes, architecture),
        huge_pages=_pools(root, notes),
    )


def _small(text: str) -> int:
    return parsing.integer(text, 0, 1000)


def _load(text: str) -> tuple[float, float, float]:
    words = text.split()
    if len(words) < 3:
        raise ValueError("fewer than three load averages")
    one, five, fifteen = (parsing.decimal(word) for word in words[:3])
    if min(one, five, fifteen) < 0:
        raise ValueError("a load average below zero")
    return one, five, fifteen


def release(root: Root) -> tuple[str | None, str]:
    """The kernel's release, and the file that tells it."""
    source = "proc/sys/kernel/osrelease"
    text = parsing.words(root.line(source))
    if text:
        return text[:200], source
    # "Linux version RELEASE (builder) ...": the rest names the machine that built it.
    match = re.match(r"Linux version (\S{1,200})", root.read("proc/version").text or "")
    return (match[1], "proc/version") if match else (None, source)


def _release(root: Root, notes: Notes) -> str | None:
    found, source = release(root)
    if found is not None:
        notes.seen("kernel.release", source)
        return found
    reading = root.read(source)
    state = State.FAILED if reading.state is State.OK else reading.state
    notes.unknown("kernel.release", state, source, reading.reason or "implausible: empty")
    return None


def _mitigations(root: Root, notes: Notes) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in root.names(_VULNERABILITIES)[:100]:
        if re.fullmatch(r"[a-z0-9_]{1,40}", name):
            text = parsing.words(root.line(f"{_VULNERABILITIES}/{name}"))
            if text:
                found[name] = text[:300]
    if found:
        notes.seen("kernel.mitigations", f"{_VULNERABILITIES}/*")
    else:
        notes.absent("kernel.mitigations", _VULNERABILITIES)
    return found


def _page_bytes(root: Root, notes: Notes, architecture: str | None) -> int | None:
    if root.live:
        notes.seen("kernel.page_bytes", "sysconf")
        return os.sysconf("SC_PAGE_SIZE")
    if architecture == "x86_64":
        notes.seen("kernel.page_bytes", "cpu.architecture", "x86-64 knows one base page size")
        return 4096
    notes.unknown("kernel.page_bytes", State.NOT_RUN, None, "only the live machine can be asked")
    return None


def _pools(root: Root, notes: Notes) -> tuple[HugePagePool, ...]:
    pools = huge_pages(root, _HUGE_PAGES)
    if pools:
        notes.seen("kernel.huge_pages", f"{_HUGE_PAGES}/hugepages-*")
    else:
        notes.absent("kernel.huge_pages", _HUGE_PAGES, "the kernel shows no huge page pools")
    return pools
