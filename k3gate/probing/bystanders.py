"""Who else used the machine while it was measured: processes by their CPU time, and traffic of drives.

`idle` tells how much went to others; this tells to whom. Read before the first worker and after the last one, when
none of ours runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from k3gate.documents import decode, printable
from k3gate.probing.sources import disk_bytes

_PROCESSES = 100_000
_READ_BYTES = 4096
_TABLE_BYTES = 2**20
_STAT = re.compile(r"(\d+) \((.*)\) (\S.*)", re.DOTALL)


@frozen
class Look:
    """One look. `processes`: CPU ticks by number and start of a process, with its name; `moved`: bytes of all drives.

    None: that could not be read.
    """

    load: float | None
    processes: Mapping[tuple[int, int], tuple[str, int]]
    moved: int | None
    own_moved: int | None


@frozen
class Others:
    """What others did between two looks. `names`: CPU seconds by name, the most first.

    `loads`: the load average before and after; that after holds our own load too.
    """

    names: tuple[tuple[str, float], ...]
    disk_bytes: int | None
    loads: tuple[float | None, float | None] = (None, None)


def look(drives: Sequence[str] | None, root: str = "/") -> Look:
    """The machine now. Never raises: what cannot be read is None, or is left out.

    `drives`: their names; None where they are not known. Where there are none, none moves anything.
    """
    base = Path(root)
    load = (_text(base / "proc/loadavg") or "").split()
    table = disk_bytes(_text(base / "proc/diskstats", _TABLE_BYTES) or "", drives or ())
    return Look(
        load=_decimal(load[0]) if load else None,
        processes=_processes(base / "proc"),
        moved=sum(sum(pair) for pair in table.values()) if table or drives == () else None,
        own_moved=_own(base / "proc/self/io"),
    )


def between(before: Look, after: Look, own: int, hertz: int | None = None) -> Others:
    """What others used. `own`: the number of our process; our workers are gone when the looks are taken.

    A process that ended in between is not seen; its time stands in the share of `idle` all the same.
    """
    ticks = hertz or os.sysconf("SC_CLK_TCK")
    spent: dict[str, float] = {}
    for key, (name, used) in after.processes.items():
        if key[0] != own:
            delta = used - before.processes.get(key, (name, 0))[1]
            if delta > 0:
                spent[name] = spent.get(name, 0.0) + delta / ticks
    moved: int | None = None
    if before.moved is not None and after.moved is not None:
        ours = max(0, (after.own_moved or 0) - (before.own_moved or 0))
        # What we wrote may reach the drive later, and what we read may have come from memory.
        moved = max(0, after.moved - before.moved - ours)
    return Others(tuple(sorted(spent.items(), key=lambda pair: -pair[1])), moved, (before.load, after.load))


def _processes(folder: Path) -> dict[tuple[int, int], tuple[str, int]]:
    found: dict[tuple[int, int], tuple[str, int]] = {}
    try:
        numbers = [path.name for path in folder.iterdir() if path.name.isdigit()][:_PROCESSES]
    except OSError:
        return found
    for number in numbers:
        match = _STAT.match(_text(folder / number / "stat") or "")
        words = match[3].split() if match else []
        # From the state on, user and system time are the 12th and 13th word, the start is the 20th (proc(5)).
        if match is not None and len(words) >= 20 and all(words[i].isdigit() for i in (11, 12, 19)):
            name = printable(" ".join(match[2].split()))[:40]
            found[int(number), int(words[19])] = (name, int(words[11]) + int(words[12]))
    return found


def _own(path: Path) -> int | None:
    """Bytes that we and our reaped children moved to and from drives."""
    pairs = dict(re.findall(r"(?m)^(read_bytes|write_bytes): (\d{1,20})$", _text(path) or ""))
    return sum(int(value) for value in pairs.values()) if len(pairs) == 2 else None


def _decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,9}\.\d{1,4}", text, re.ASCII) else None


def _text(path: Path, limit: int = _READ_BYTES) -> str | None:
    try:
        with path.open("rb") as file:
            return decode(file.read(limit))
    except OSError:
        return None
