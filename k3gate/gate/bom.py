"""An order held against a machine, line by line. Pure: the order is a system's file, the machine an inventory.

A part that is another one than ordered is `worse`, whatever it can do: what was measured is not what would be bought.
A number that is higher is `better`. What the inventory does not hold is `not measured`, with its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from attrs import evolve, frozen

from k3gate import units
from k3gate.analysis.system import System
from k3gate.gate import hardware
from k3gate.records import Dimm, Inventory, Verdict

SAME, BETTER, WORSE, NOT_MEASURED = "same", "better", "worse", "not measured"
Show = Callable[[float | None], str]
VERDICTS = (SAME, BETTER, WORSE, NOT_MEASURED)


@frozen
class Line:
    """One line of an order: what was ordered, what is there, and a sentence where they are not the same."""

    key: str
    title: str
    ordered: str
    found: str | None
    verdict: str
    reason: str | None = None


def verdict(lines: Iterable[Line]) -> Verdict:
    """Fail where a line is worse, unproven where one was not measured or there is none, else pass."""
    found = {line.verdict for line in lines}
    if WORSE in found:
        return Verdict.FAIL
    return Verdict.UNPROVEN if NOT_MEASURED in found or not found else Verdict.PASS


def sentence(lines: Iterable[Line]) -> str:
    """What the lines say together, the bad ones named."""
    found = list(lines)
    if not found:
        return "The order states no part that could be checked."
    counts = Counter(line.verdict for line in found)
    told = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])
    bad = [f"{line.title}: {line.reason}" for line in found if line.verdict == WORSE]
    open_ = [line.title for line in found if line.verdict == NOT_MEASURED]
    parts = [f"{units.count(len(found), 'line')}: {told}."]
    if bad:
        parts.append(f"{'; '.join(bad)}.")
    if open_:
        parts.append(f"Not measured: {', '.join(open_)}.")
    return " ".join(parts)


def check(system: System, inventory: Inventory) -> tuple[Line, ...]:
    """Every line that the order states, against the machine."""
    return unless_virtual(inventory, _lines(system, inventory), "its parts are not seen")


def unless_virtual(inventory: Inventory, lines: Iterable[Line], why: str) -> tuple[Line, ...]:
    """The lines; of a virtual machine, whose hardware is not the one that would be bought, none is measured."""
    guest = hardware.virtual(inventory)
    if guest is None:
        return tuple(lines)
    return tuple(
        Line(line.key, line.title, line.ordered, None, NOT_MEASURED, f"{guest}: {why}") for line in lines
    )


def _lines(system: System, inventory: Inventory) -> Iterator[Line]:
    if system.nodes > 1:
        yield Line(
            "nodes",
            "machines",
            f"{system.nodes}",
            None,
            NOT_MEASURED,
            "a run is of one machine: check each of them",
        )
    if system.board is not None:
        yield _part("board", "board", system.board, inventory.machine.board or inventory.machine.product)
    yield from _cpu(system, inventory)
    yield from _memory(system, inventory)
    yield from _devices(system, inventory)


def _cpu(system: System, inventory: Inventory) -> Iterator[Line]:
    cpu = inventory.cpu
    if system.cpu_model is not None:
        yield _part("cpu.model", "processor", system.cpu_model, cpu.model)
    if system.sockets is not None:
        yield _number("cpu.sockets", "sockets", system.sockets, cpu.sockets)
    if system.cores is not None:
        limited = hardware.restricted(inventory)
        cores = None if limited is not None else cpu.cores
        why = None if limited is None else limited.reason
        if system.sockets is not None:
            yield _number("cpu.cores", "cores", system.cores * system.sockets, cores, why=why)
        else:
            each = None if cores is None or not cpu.sockets else cores / cpu.sockets
            yield _number("cpu.cores", "cores of a socket", system.cores, each, why=why)


def _memory(system: System, inventory: Inventory) -> Iterator[Line]:
    ordered, memory = system.memory, inventory.memory
    if ordered is None:
        return
    dimms = None if memory.dimms is None else [one for one in memory.dimms if _is_dram(one)]
    why = hardware.because(inventory, "memory.dimms") or hardware.because(inventory, "memory.slots")
    why = why or "the firmware's memory table was not read, which needs root"
    modules = None if dimms is None else len(dimms)
    uneven = _uneven(dimms or [], memory.channels)
    count = _number("memory.modules", "memory modules", ordered.modules, modules, why=why)
    yield _less_even(count, uneven)
    size = _each("memory.size", "size of a module", ordered.module_bytes, dimms, "bytes", units.gib, why)
    yield _less_even(size, uneven)
    if ordered.slots is not None:
        yield _number("memory.slots", "slots for memory", ordered.slots, memory.slots, why=why)
    if ordered.type is not None:
        yield _kinds("memory.type", "type of memory", ordered.type, dimms, "memory_type", why)
    if ordered.mts is not None:
        yield _each("memory.speed", "speed of memory", ordered.mts, dimms, "configured_mts", _mts, why)
    if ordered.rated_mts is not None:
        yield _each("memory.rated", "rated speed", ordered.rated_mts, dimms, "rated_mts", _mts, why)
    if ordered.part is not None:
        yield _kinds("memory.part", "part number", ordered.part, dimms, "part_number", why)
    if system.populated_channels is not None:
        yield _number(
            "memory.channels", "channels in use", system.populated_channels, memory.channels, why=why
        )
    elif ordered.channels is not None:
        yield Line(
            "memory.channels",
            "channels of a socket",
            f"{ordered.channels}",
            None,
            NOT_MEASURED,
            "how many of all are used follows from the sockets, which the order does not state",
        )


def _uneven(dimms: list[Dimm], channels: int | None) -> str | None:
    """Why channels hold unlike amounts, so that a part of the memory lies on fewer of them; None where they do not."""
    if not dimms:
        return None
    usual = Counter(one.bytes for one in dimms).most_common(1)[0][0]
    others = [f"{_place(one)} has {units.gib(one.bytes)}" for one in dimms if one.bytes != usual]
    told = (
        f"{', '.join(others[:4])}{f' and {len(others) - 4} more' if len(others) > 4 else ''}"
        if others
        else ""
    )
    if all(one.channel is not None for one in dimms):
        held: Counter[tuple[int | None, int | None, str | None]] = Counter()
        for one in dimms:
            held[(one.socket, one.controller, one.channel)] += one.bytes or 0
        if len(set(held.values())) == 1:
            return None
    elif not others and (channels is None or len(dimms) % channels == 0):
        return None
    what = f"{told}, the others {units.gib(usual)}" if told else f"{len(dimms)} modules"
    where = f" on {channels} channels" if channels is not None else ""
    return f"{what}{where}: channels hold unlike amounts, and the last part of memory lies on fewer of them"


def _less_even(line: Line, uneven: str | None) -> Line:
    """More or larger modules that leave channels uneven are no better memory."""
    return line if line.verdict != BETTER or uneven is None else evolve(line, verdict=WORSE, reason=uneven)


def _devices(system: System, inventory: Inventory) -> Iterator[Line]:
    for number, gpu in enumerate(system.gpus, 1):
        key, title = f"gpu.{number}", gpu.model
        why = hardware.because(inventory, "gpus") or "the run does not tell of GPUs"
        number_there = None
        if inventory.gpus is not None:
            named = [str(one.name or "") for one in inventory.gpus]
            number_there = sum(same_part(gpu.model, name) for name in named)
        yield _number(key, title, gpu.count, number_there, why=why)
    for extra in system.extras:
        if extra.kind == "pmem":
            there = inventory.memory.pmem_bytes
            lacking = hardware.because(inventory, "memory.pmem_bytes")
            yield _number("pmem", "persistent memory", extra.bytes, there, units.gib, why=lacking)
        else:
            yield Line(extra.kind, extra.detail, "as stated", None, NOT_MEASURED, "its parts are not read")
    if system.storage is not None:
        why = hardware.because(inventory, "storage.drives") or "the run does not tell of drives"
        drives = inventory.storage.drives if inventory.storage else None
        # Persistent memory is a line of its own.
        found = None if drives is None else sum(drive.kind != "pmem" for drive in drives)
        yield _number("storage", "drives", system.storage.drives, found, why=why)
    if system.network_bytes_per_s is not None:
        yield _network(system.network_bytes_per_s, inventory)


def _network(ordered: float, inventory: Inventory) -> Line:
    """The fastest adapter that tells its rate, which it does with a cable in it."""
    told = [one.bytes_per_s for one in inventory.network or () if one.bytes_per_s is not None]
    why = hardware.because(inventory, "network") or "the run does not tell of network adapters"
    if inventory.network is not None and not told:
        why = "no network adapter tells its rate: without a cable none does"
    return _number("network", "network", ordered, max(told, default=None), _bits, why=why)


def _bits(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 8 / 1e9:g} Gbit/s"


def _is_dram(dimm: Dimm) -> bool:
    return bool(dimm.bytes) and dimm.kind in ("dram", "unknown", None) and dimm.populated is not False


def _mts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f} MT/s"


def _plain(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _number(
    key: str,
    title: str,
    ordered: float,
    found: float | None,
    show: Show = _plain,
    *,
    why: str | None = None,
) -> Line:
    if found is None:
        return Line(key, title, show(ordered), None, NOT_MEASURED, why or "the run does not hold it")
    if found == ordered:
        return Line(key, title, show(ordered), show(found), SAME)
    word = BETTER if found > ordered else WORSE
    return Line(
        key, title, show(ordered), show(found), word, f"ordered are {show(ordered)}, there are {show(found)}"
    )


def _each(
    key: str, title: str, ordered: float, dimms: list[Dimm] | None, field: str, show: Show, why: str
) -> Line:
    """A number that every module must have; the worst one decides and is named."""
    if not dimms or any(getattr(one, field) is None for one in dimms):
        lacking = why if dimms is None else "the firmware's table does not tell it of every module"
        return Line(key, title, show(ordered), None, NOT_MEASURED, lacking)
    low = min(dimms, key=lambda one: float(getattr(one, field)))
    value = float(getattr(low, field))
    shown = ", ".join(sorted({show(getattr(one, field)) for one in dimms}))
    if value < ordered:
        return Line(
            key, title, show(ordered), shown, WORSE, f"{_place(low)} has {show(value)}, not {show(ordered)}"
        )
    return Line(key, title, show(ordered), shown, SAME if shown == show(ordered) else BETTER)


def _kinds(key: str, title: str, ordered: str, dimms: list[Dimm] | None, field: str, why: str) -> Line:
    """A text that every module must have."""
    if not dimms or any(getattr(one, field) is None for one in dimms):
        lacking = why if dimms is None else "the firmware's table does not tell it of every module"
        return Line(key, title, ordered, None, NOT_MEASURED, lacking)
    shown = ", ".join(sorted({str(getattr(one, field)) for one in dimms}))
    other = [one for one in dimms if str(getattr(one, field)).strip().lower() != ordered.strip().lower()]
    if not other:
        return Line(key, title, ordered, shown, SAME)
    named = ", ".join(f"{_place(one)} has {getattr(one, field)}" for one in other[:4])
    more = f" and {len(other) - 4} more" if len(other) > 4 else ""
    return Line(key, title, ordered, shown, WORSE, f"{named}{more}, not {ordered}")


def _place(dimm: Dimm) -> str:
    return dimm.locator or dimm.bank or "a module without a name"


def _part(key: str, title: str, ordered: str, found: str | None) -> Line:
    if found is None:
        return Line(key, title, ordered, None, NOT_MEASURED, "the run does not hold its name")
    if same_part(ordered, found):
        return Line(key, title, ordered, found, SAME)
    return Line(key, title, ordered, found, WORSE, f"ordered is {ordered}, there is {found}")


_MAKERS = (
    *(
        "intel",
        "amd",
        "nvidia",
        "supermicro",
        "super micro",
        "hpe",
        "hewlett[- ]packard(?: enterprise)?",
        "dell",
    ),
    *("lenovo", "gigabyte", "giga-byte", "asrock ?rack", "asrock", "tyan", "asustek", "asus"),
)
_NOISE = re.compile(
    rf"\((?:r|tm|c)\)|\b(?:cpu|processor|\d+-core|{'|'.join(_MAKERS)}|corporation|computer|technology|inc|ltd)\b|@.*$"
    r"|(?<=xeon) 6(?= \d{4})",
    re.I,
)

_AROUND = re.compile(r"xeon|epyc|platinum|gold|silver|bronze|geforce|tesla|sxm\d?|pcie|hbm\w*|\d+gb")


def same_part(ordered: str, found: str) -> bool:
    """Whether one name is the other, but for trade marks, makers, clocks, families and forms that were not stated.

    A family alone names no part, and a word that is left over names another one (RTX PRO 6000 Max-Q).
    """
    wanted, there = (
        re.findall(r"[a-z0-9][a-z0-9+.]*", re.sub(r"(\d) gb\b", r"\1gb", _NOISE.sub(" ", name.lower())))
        for name in (ordered, found)
    )
    extra = set(there) - set(wanted)
    if not wanted or not set(wanted) <= set(there):
        return False
    return not extra or (
        any(char.isdigit() for char in "".join(wanted)) and all(_AROUND.fullmatch(word) for word in extra)
    )
