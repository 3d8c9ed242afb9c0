"""Whether the machine was ours alone while we measured: CPU time that went to others, or was stolen.

Read from /proc/stat (proc(5): jiffies since boot; guest time is part of user time) and from the kernel's
account of our own process and its ended children.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from attrs import frozen

from k3gate.documents import decode

_READ_BYTES = 2**16
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_BUSY = (0, 1, 2, 5, 6)


@frozen
class Reading:
    """One look. `ticks`: the machine's CPU time by kind, in clock ticks; None, and `reason` says why."""

    ticks: tuple[int, ...] | None
    own_seconds: float
    reason: str | None = None


@frozen
class Shares:
    """Shares of all CPU time of the machine between two readings, 0 to 1; None where they are not known."""

    other: float | None
    steal: float | None
    reason: str | None = None


def read(root: str | Path = "/") -> Reading:
    """The counters now. Take readings when no worker runs: a child counts when it has been reaped."""
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    path = Path(root) / "proc/stat"
    try:
        with path.open("rb") as file:
            text = decode(file.read(_READ_BYTES))
    except OSError as error:
        return Reading(None, own, f"{path} cannot be read: {error.strerror}")
    ticks = parse(text)
    return Reading(ticks, own, None if ticks else f"{path} has no line of all CPUs with its times")


def parse(text: str) -> tuple[int, ...] | None:
    """The times of the line "cpu" of /proc/stat, in the order of proc(5) up to steal; None without one.

    Kernels before 2.6.11 have fewer columns; what is not there is not known, so the line is refused.
    """
    for line in text.splitlines():
        words = line.split()
        if words[:1] != ["cpu"]:
            continue
        values = words[1 : 1 + len(_FIELDS)]
        if len(values) < len(_FIELDS) or not all(word.isascii() and word.isdigit() for word in values):
            return None
        return tuple(int(word) for word in values)
    return None


def busy_shares(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[float, float] | None:
    """Shares of all CPU time that were busy and that a hypervisor stole; None where no time passed."""
    spent = [max(0, late - early) for early, late in zip(before, after, strict=True)]
    total = sum(spent)
    return (sum(spent[index] for index in _BUSY) / total, spent[7] / total) if total else None


def shares(before: Reading, after: Reading, ticks_per_second: int | None = None) -> Shares:
    """What others took and what a hypervisor stole between two readings of one boot.

    `other` is the busy time of all CPUs less our own process and its reaped children, over the time of all
    CPUs; counters are in ticks of 10 ms, so short spans are coarse and a share never goes under 0.
    """
    if before.ticks is None or after.ticks is None:
        return Shares(None, None, before.reason or after.reason)
    spent = [max(0, late - early) for early, late in zip(before.ticks, after.ticks, strict=True)]
    total = sum(spent)
    if total == 0:
        return Shares(None, None, "the CPU times of this system do not advance")
    hertz = ticks_per_second or os.sysconf("SC_CLK_TCK")
    own = max(0.0, after.own_seconds - before.own_seconds) * hertz
    busy = sum(spent[index] for index in _BUSY)
    return Shares(max(0.0, busy - own) / total, spent[7] / total)
