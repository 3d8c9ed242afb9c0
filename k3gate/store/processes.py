"""Which process writes a run, so that the next start can tell whether it is still there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from attrs import frozen


@frozen
class Writer:
    """A process, told apart from a later one with its number by boot and start time (ticks since boot).

    `host` is a salted hash of the machine's id: of runs that another machine writes, nothing can be told here.
    """

    pid: int | None
    boot: str | None
    ticks: int | None
    host: str | None


def current(proc: Path = Path("/proc"), machine_id: Path = Path("/etc/machine-id")) -> Writer:
    """This process."""
    pid = os.getpid()
    return Writer(pid, _boot(proc), _ticks(proc, pid), _host(machine_id))


def is_gone(writer: Writer, here: Writer, proc: Path = Path("/proc")) -> bool:
    """Whether `writer` no longer runs, as seen from `here`; False where it runs on another machine."""
    if writer.host is not None and here.host is not None and writer.host != here.host:
        return False
    if writer.pid is None or writer.boot != here.boot:
        return True
    ticks = _ticks(proc, writer.pid)
    return ticks is None or ticks != writer.ticks


def _boot(proc: Path) -> str | None:
    return _text(proc / "sys/kernel/random/boot_id")


def _host(machine_id: Path) -> str | None:
    text = _text(machine_id)
    return hashlib.sha256(b"k3gate writer " + text.encode()).hexdigest()[:16] if text else None


def _ticks(proc: Path, pid: int) -> int | None:
    """Start time of a living process; a zombie has ended and only waits to be reaped."""
    fields = (_text(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19]) if fields[19].isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip() or None
    except OSError:
        return None
