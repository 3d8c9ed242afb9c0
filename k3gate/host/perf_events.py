"""Counters of memory controllers, of links between sockets and of energy, as sysfs describes them to perf_event_open.

A driver tells its number (`type`), which bits of which word its terms fill (`format/`), named events (`events/`, with
scale and unit) and on which CPU each of its units is to be opened (`cpumask`). What a driver leaves to perf's own
tables stands here, with its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import frozen

from k3gate.host import cpulist, parsing
from k3gate.host.files import Root

FOLDER = "sys/bus/event_source/devices"
PARANOID = "proc/sys/kernel/perf_event_paranoid"
LINE_BYTES = 64
READ, WRITTEN, MOVED, LINKED, ENERGY = "read", "written", "moved", "linked", "energy"
"""Kinds: bytes read from memory, written to it, both together; bytes sent to other sockets; joules."""
_WORDS = ("config", "config1", "config2")
_TERM = re.compile(r"([\w-]{1,40})(?:=(0x[0-9a-fA-F]{1,16}|\d{1,20}))?", re.ASCII)
_FORMAT = re.compile(r"(config[12]?):(\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?)*)", re.ASCII)
_UNITS = {"MiB": 2.0**20, "Bytes": 1.0, "Joules": 1.0}
_MOST = 4096

_BY_NAME = (
    # Intel's drivers name these themselves, with scale and unit (arch/x86/events/intel/uncore_snbep.c, uncore_snb.c).
    (r"uncore_imc(?:_\d+)?", r"cas_count_read(?:_sch\d)?|data_reads", READ),
    (r"uncore_imc(?:_\d+)?", r"cas_count_write(?:_sch\d)?|data_writes", WRITTEN),
    # perf's power PMU (arch/x86/events/rapl.c). Cores are a part of the package, and so is what psys tells.
    (r"power", r"energy-pkg|energy-ram", ENERGY),
)
_TABLED: tuple[tuple[str, str, str, float, str], ...] = (
    # AMD Zen 4 and later, a CAS command moves a line (tools/perf/pmu-events/arch/x86/amdzen4/memory-controller.json).
    (r"amd_umc(?:_\d+)?", "event=0x0a,rdwrmask=0x1", "cas_read", LINE_BYTES, READ),
    (r"amd_umc(?:_\d+)?", "event=0x0a,rdwrmask=0x2", "cas_write", LINE_BYTES, WRITTEN),
    # Intel from Skylake on: flits of data sent, of which nine carry a line (skylakex/uncore-interconnect.json).
    (r"uncore_upi(?:_\d+)?", "event=0x02,umask=0x0f", "flits_data_sent", LINE_BYTES / 9, LINKED),
)


@frozen
class Event:
    """A counter of one unit. `scale`: bytes or joules a count; `cpus`: open it on each of these."""

    unit: str
    name: str
    kind: str
    type: int
    config: tuple[int, int, int]
    scale: float
    cpus: tuple[int, ...]


def events(root: Root) -> tuple[Event, ...]:
    """All counters of these kinds that the kernel shows; those whose description is damaged are left out."""
    found: list[Event] = []
    for unit in root.names(FOLDER):
        found += _of(root, unit)
    return tuple(found[:_MOST])


def paranoid(root: Root) -> int | None:
    """kernel.perf_event_paranoid: from 1 on only privileged processes count what is not their own."""
    try:
        return int(root.line(PARANOID) or "")
    except ValueError:
        return None


def encode(terms: str, format_: Mapping[str, str]) -> tuple[int, int, int]:
    """The three words of an event such as "event=0x05,umask=0xcf", by what `format_` says of each term
    ("config:0-7,32-35"). Raises `ValueError` where a term is unknown or does not fit."""
    words = dict.fromkeys(_WORDS, 0)
    for term in filter(None, (part.strip() for part in terms.split(","))):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"{term!r:.60} is no term")
        value = int(match[2] or "1", 0) if not (match[2] or "").lstrip("0").isdigit() else int(match[2])
        if match[1] in words:  # a whole word, given as such
            words[match[1]] |= value
            continue
        word, bits = _bits(format_.get(match[1], ""))
        if value >> len(bits):
            raise ValueError(f"{term} does not fit in {len(bits)} bits")
        for place, bit in enumerate(bits):
            words[word] |= (value >> place & 1) << bit
    return words["config"], words["config1"], words["config2"]


def _bits(text: str) -> tuple[str, list[int]]:
    """The word and the bits that a term fills, lowest first."""
    match = _FORMAT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is no format")
    bits: list[int] = []
    for part in match[2].split(","):
        low, _, high = part.partition("-")
        if not int(low) <= int(high or low) < 64:
            raise ValueError(f"{text!r:.60} is no format")
        bits += range(int(low), int(high or low) + 1)
    return match[1], bits


def _of(root: Root, unit: str) -> Iterator[Event]:
    folder = f"{FOLDER}/{unit}"
    named = [(re.compile(name), kind) for pattern, name, kind in _BY_NAME if re.fullmatch(pattern, unit)]
    tabled = [row for row in _TABLED if re.fullmatch(row[0], unit)]
    if not named and not tabled:
        return
    try:
        number = parsing.integer(root.line(f"{folder}/type") or "", 0, 2**32 - 1)
        cpus = cpulist.parse(root.line(f"{folder}/cpumask") or "")
    except ValueError:
        return
    format_ = {name: root.line(f"{folder}/format/{name}") or "" for name in root.names(f"{folder}/format")}
    for name in root.names(f"{folder}/events"):
        kind = next((kind for pattern, kind in named if pattern.fullmatch(name)), None)
        if kind is None:
            continue
        try:
            scale = float(root.line(f"{folder}/events/{name}.scale") or "")
            size = _UNITS[root.line(f"{folder}/events/{name}.unit") or ""]
            config = encode(root.line(f"{folder}/events/{name}") or "", format_)
        except (ValueError, KeyError):
            continue
        if 0 < scale < 1e9:
            yield Event(unit, name, kind, number, config, scale * size, cpus)
    for _, terms, name, size, kind in tabled:
        try:
            yield Event(unit, name, kind, number, encode(terms, format_), size, cpus)
        except ValueError:
            continue
