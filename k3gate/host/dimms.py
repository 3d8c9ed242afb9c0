"""What the firmware's table says of the memory modules: channels, rates and the ceiling they allow. Pure.

The ceiling is populated channels x configured rate x 8 bytes. It is None wherever a part of it is unknown: a
slot is no channel, a rated speed is no configured one, and a locator of unknown spelling names nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from attrs import evolve, field, frozen

from k3gate.host.locators import Place, locate
from k3gate.host.notes import Reason
from k3gate.host.smbios import MemoryArray, MemoryDevice, Processor
from k3gate.records import Channel, Dimm, State

_T = TypeVar("_T")

GIB = 2**30
BYTES_PER_TRANSFER = 8
MOST_CHANNELS = 16
MOST_SLOTS = 3
"""No server has more slots on a channel: a name that groups more is no channel's."""

VIRTUAL = "virtual machine, population not evaluated"
LOOKS_VIRTUAL = "the memory table is like that of a virtual machine, population not evaluated"
NO_TABLE = "the machine shows no firmware table"
NO_SLOTS = "the firmware's table describes no memory slots"

_DRAM = frozenset(
    {
        *("DRAM", "EDRAM", "SDRAM", "SGRAM", "RDRAM", "CDRAM", "3DRAM"),
        *("DDR", "DDR2", "DDR2 FB-DIMM", "FBD2", "DDR3", "DDR4", "DDR5", "MRDIMM"),
        *("LPDDR", "LPDDR2", "LPDDR3", "LPDDR4", "LPDDR5"),
    }
)
_VAGUE = frozenset({None, "other", "RAM", "DRAM"})
# Below these a number is no rate of such a module; some firmware gives the clock, which is half the rate.
_LEAST_MTS = {"DDR2": 400, "DDR3": 800, "DDR4": 1600, "DDR5": 3200, "MRDIMM": 4000}
# Optane modules of the 128, 256 and 512 GB class: no DRAM module has such a size.
_OPTANE_GIB = ((126, 127), (252, 253), (502, 506))
_OPTANE_PART = re.compile(r"NM[ABC]\d", re.ASCII)
_SOCKET_AND_NUMBER = re.compile(r"[A-D]\d{1,2}", re.ASCII)
_VIRTUAL_SLOT = re.compile(r"(?:NVD|RAM slot) #\d+", re.ASCII | re.IGNORECASE)
_VIRTUAL_MAKERS = ("QEMU", "VMWARE", "MICROSOFT", "XEN", "BOCHS")
_CXL_NAME = re.compile(r"(?<![A-Z])CXL(?![A-Z])", re.ASCII | re.IGNORECASE)
_NO_NAME = frozenset(
    {"", "NO DIMM", "UNKNOWN", "UNDEFINED", "NOT SPECIFIED", "NONE", "EMPTY", "N/A", "TO BE FILLED BY O.E.M."}
)


@frozen
class Summary:
    """What the table says; `reasons` tells for each field that is None why. Rates in MT/s.

    `channels` have at least one DRAM module; `empty_channels` have none, though their processor is there.
    `full_bytes_per_s` is the ceiling if these had one too. `derating_percent` is that of the module that runs
    furthest below its rated speed, negative where all run above it.
    """

    evaluated: bool = False
    dimms: tuple[Dimm, ...] | None = None
    slots: int | None = None
    populated: int | None = None
    dram_bytes: int | None = None
    pmem_bytes: int | None = None
    channels: int | None = None
    channel_list: tuple[Channel, ...] | None = None
    empty_channels: tuple[str, ...] | None = None
    modules_per_channel: int | None = None
    configured_mts: int | None = None
    rated_mts: int | None = None
    derating_percent: float | None = None
    theoretical_bytes_per_s: float | None = None
    full_bytes_per_s: float | None = None
    mixed_sizes: bool | None = None
    mixed_speeds: bool | None = None
    mixed_parts: bool | None = None
    notes: tuple[str, ...] = ()
    reasons: Mapping[str, Reason] = field(factory=dict)


FIELDS = tuple(a.name for a in Summary.__attrs_attrs__ if a.name not in ("evaluated", "notes", "reasons"))


@frozen
class _Channels:
    """The channels in use, or why they are not known; `named` None where only their number is."""

    count: int | None = None
    named: tuple[Channel, ...] | None = None
    reason: str = ""
    note: str = ""


def summarize(
    devices: Sequence[MemoryDevice] | None,
    arrays: Sequence[MemoryArray] = (),
    processors: Sequence[Processor] = (),
    *,
    virtual: bool | None = None,
    missing: Reason | None = None,
    cut: str | None = None,
    sockets: int | None = None,
    channels_per_socket: int | None = None,
    channels_of_processors: int | None = None,
) -> Summary:
    """The summary of the records of types 17, 16 and 4.

    `devices` None: there is no table, and `missing` says why. `cut`: why a part of the table was not read, so that
    what was read may be less than there is. `sockets`: how many processors the kernel sees.
    `channels_per_socket`, where the processor's model is known to have so many, helps with boards whose
    locators name no channel; `channels_of_processors` with tables that leave out the slots of empty ones.
    """
    if devices is None:
        return _nothing(missing or Reason(State.NOT_PRESENT, NO_TABLE))
    if virtual:
        return _nothing(Reason(State.NOT_RUN, VIRTUAL))
    pairs = _system_memory(devices, arrays)
    if not pairs:
        return _nothing(Reason(State.NOT_PRESENT, NO_SLOTS))
    if _looks_virtual([device for device, _ in pairs]):
        return _nothing(Reason(State.NOT_RUN, LOOKS_VIRTUAL))
    dimms = [_dimm(device, array) for device, array in pairs]
    inside = [
        index for index, dimm in enumerate(dimms) if dimm.kind != "hbm" and not _expander(*pairs[index])
    ]
    slots = _placed([dimms[index] for index in inside], max(sockets or 0, len(processors)))
    note = ""
    if not all(dimm.channel for dimm in slots if dimm.kind == "dram"):
        positions = _by_sets(slots, [pairs[index][0] for index in inside], channels_per_socket)
        if positions is not None:
            slots = [evolve(dimm, channel=str(n)) for dimm, n in zip(slots, positions, strict=True)]
            note = "channels told from the sets of slots that the firmware groups; the locators name none"
    for index, dimm in zip(inside, slots, strict=True):
        dimms[index] = dimm
    absent = _absent_processors(slots, processors, sockets)
    partial = _partial(pairs, dimms, cut)
    if partial:
        found = _Channels(reason=partial)
    else:
        found = _channels(slots, absent, channels_per_socket, channels_of_processors)
    summary = _summary(dimms, slots, found, channels_of_processors, partial)
    return evolve(summary, notes=(note, *summary.notes)) if note else summary


def _nothing(reason: Reason) -> Summary:
    return Summary(reasons=dict.fromkeys(FIELDS, reason))


def _system_memory(
    devices: Sequence[MemoryDevice], arrays: Sequence[MemoryArray]
) -> list[tuple[MemoryDevice, MemoryArray | None]]:
    """The devices with their arrays, without those of arrays for video memory, flash and the like."""
    by_handle = {array.handle: array for array in arrays}
    pairs = [
        (device, None if device.array_handle is None else by_handle.get(device.array_handle))
        for device in devices
    ]
    return [(d, array) for d, array in pairs if array is None or array.use in (None, "system memory")]


def _partial(
    pairs: Sequence[tuple[MemoryDevice, MemoryArray | None]], dimms: Sequence[Dimm], cut: str | None
) -> str | None:
    """Why the slots are not all: the board's arrays count others than are listed. Of expanders nobody asks.

    Where no array counts them, a table that was cut may lack some.
    """
    listed: Counter[int] = Counter()
    arrays: dict[int, MemoryArray] = {}
    for (_, array), dimm in zip(pairs, dimms, strict=True):
        if array is not None and dimm.kind not in ("cxl", "hbm"):
            listed[array.handle] += 1
            arrays[array.handle] = array
    counts = [array.devices for array in arrays.values()]
    if not counts or not all(counts):
        return cut
    slots = sum(devices or 0 for devices in counts)
    if slots != listed.total():
        return f"the table shows {listed.total()} of the board's {slots} slots"
    return None


def _looks_virtual(devices: Sequence[MemoryDevice]) -> bool:
    """Modules of no type and no rate, in slots or by makers that only hypervisors name."""
    there = [device for device in devices if device.size_bytes != 0]
    vague = all(
        device.memory_type in _VAGUE and device.rated_mts is None and device.configured_mts is None
        for device in there
    )
    names = [(d.device_locator or "", d.bank_locator or "", d.manufacturer or "") for d in devices]
    return vague and any(
        _VIRTUAL_SLOT.fullmatch(locator)
        or _VIRTUAL_SLOT.fullmatch(bank)
        or maker.upper().startswith(_VIRTUAL_MAKERS)
        for locator, bank, maker in names
    )


def _dimm(device: MemoryDevice, array: MemoryArray | None) -> Dimm:
    populated = _populated(device)
    dimm = Dimm(
        locator=device.device_locator,
        bank=device.bank_locator,
        bytes=device.size_bytes,
        populated=populated,
        kind="cxl" if _expander(device, array) else None,
    )
    if populated is False:
        return dimm
    return evolve(
        dimm,
        kind=_kind(device, array),
        memory_type=device.memory_type,
        rated_mts=device.rated_mts,
        configured_mts=device.configured_mts,
        rank=device.rank,
        part_number=_real(device.part_number),
        manufacturer=_real(device.manufacturer),
        technology=device.technology,
        data_width=device.data_width,
    )


def _populated(device: MemoryDevice) -> bool | None:
    if device.size_bytes is not None:
        return device.size_bytes > 0
    return True if device.rated_mts or device.configured_mts or _real(device.part_number) else None


def _real(text: str | None) -> str | None:
    return None if text is None or text.upper() in _NO_NAME else text


def _kind(device: MemoryDevice, array: MemoryArray | None) -> str:
    kind = device.memory_type or ""
    if _persistent(device):
        return "pmem"
    if _expander(device, array):
        return "cxl"
    if kind.startswith("HBM"):
        return "hbm"
    return "dram" if kind in _DRAM or device.technology == "DRAM" else "unknown"


def _expander(device: MemoryDevice, array: MemoryArray | None) -> bool:
    """CXL memory, which hangs on PCIe lanes and on no memory channel; some firmware says so in a name alone."""
    names = (device.device_locator or "", device.bank_locator or "")
    return (array is not None and array.location == "CXL card") or any(map(_CXL_NAME.search, names))


def _persistent(device: MemoryDevice) -> bool:
    """Firmware tells of persistent memory in one of these ways, and calls it DDR4 in the others."""
    technology = device.technology or ""
    gib = (device.size_bytes or 0) / GIB
    return (
        device.memory_type == "logical non-volatile device"
        or technology.startswith(("NVDIMM", "Intel Optane"))
        or "non-volatile" in (device.type_detail or ())
        or bool(device.non_volatile_bytes)
        or _OPTANE_PART.match(device.part_number or "") is not None
        or any(low <= gib < high for low, high in _OPTANE_GIB)
    )


def _placed(dimms: Sequence[Dimm], sockets: int) -> list[Dimm]:
    """The slots with their places; none has a channel where two slots would be the same, and none a socket where
    letters that may be sockets are more than the board has (`sockets`; 0: not known)."""
    places = [locate(dimm.locator, dimm.bank) for dimm in dimms]
    if not _distinct(places):
        others = [locate(dimm.locator, None) for dimm in dimms]
        if all(place.sure for place in others) and _distinct(others):
            places = others
        else:
            places = [Place(socket=place.socket) for place in places]
    letters = {place.socket for place in places if not place.sure} - {None}
    if sockets and len(letters) > sockets:
        places = [place if place.sure else Place(slot=place.slot) for place in places]
    return [
        evolve(d, socket=p.socket, controller=p.controller, channel=p.channel, slot=p.slot)
        for d, p in zip(dimms, places, strict=True)
    ]


def _distinct(places: Sequence[Place]) -> bool:
    sure = [place for place in places if place.sure]
    return len(set(sure)) == len(sure)


def _channels(
    slots: Sequence[Dimm],
    absent: frozenset[int],
    channels_per_socket: int | None,
    channels_of_processors: int | None,
) -> _Channels:
    """The channels by their names, else by what is evident without."""
    there = [dimm for dimm in slots if dimm.populated is not False]
    if not there:
        return _Channels(reason=f"the table shows no module in any of {len(slots)} slots")
    odd = sum(dimm.kind == "unknown" or dimm.populated is None for dimm in there)
    if odd:
        return _Channels(reason=f"of {odd} of {len(there)} modules the table does not tell the kind")
    dram = [dimm for dimm in there if dimm.kind == "dram"]
    if all(dimm.channel for dimm in dram):
        named = _grouped(slots, absent)
        crowded = next((channel for channel in named if len(channel.slots) > MOST_SLOTS), None)
        if crowded is not None:
            return _Channels(
                reason=f"the locators put {len(crowded.slots)} slots on one channel ({crowded.name})"
            )
        lost = sum(dimm.channel is None for dimm in slots)
        note = f"the locators of {lost} slots name no channel" if lost else ""
        return _Channels(sum(channel.dram > 0 for channel in named), named, note=note)
    return _evident(dram, slots, absent, channels_per_socket, channels_of_processors)


def _absent_processors(
    slots: Sequence[Dimm], processors: Sequence[Processor], seen: int | None
) -> frozenset[int]:
    """The board's numbers of sockets without a processor, where both lists are of one length and agree.

    Firmware may leave out the record of an empty socket: then where just as many sockets hold modules as there
    are processors (`seen` by the kernel), the others are empty.
    """
    numbers = sorted({dimm.socket for dimm in slots if dimm.socket is not None})
    if len(numbers) != len(processors):
        filled = {dimm.socket for dimm in slots if dimm.populated is not False}
        if None not in filled and len(filled) == seen and len(numbers) > max(len(filled), len(processors)):
            return frozenset(n for n in numbers if n not in filled)
        return frozenset()
    absent = frozenset(
        n for n, cpu in zip(numbers, _in_order(processors), strict=True) if cpu.populated is False
    )
    return frozenset() if any(d.populated is not False and d.socket in absent for d in slots) else absent


def _in_order(processors: Sequence[Processor]) -> Sequence[Processor]:
    """The sockets by the numbers in their names, where each has one of its own; else as the table has them."""
    found = [re.search(r"(\d{1,2})\D*$", one.socket or "", re.ASCII) for one in processors]
    numbers = [int(match[1]) for match in found if match is not None]
    if len(set(numbers)) < len(processors):
        return processors
    return [one for _, one in sorted(zip(numbers, processors, strict=True), key=lambda pair: pair[0])]


_Key = tuple[int | None, int | None, str | None]


def _grouped(slots: Sequence[Dimm], absent: frozenset[int]) -> tuple[Channel, ...]:
    """The channels in the order in which the table first names them."""
    labels = Counter(dimm.locator for dimm in slots)
    groups: dict[_Key, list[Dimm]] = {}
    for dimm in slots:
        if dimm.channel is not None:
            groups.setdefault((dimm.socket, dimm.controller, dimm.channel), []).append(dimm)
    return tuple(
        _channel(_channel_name(key), group, labels, key[0] not in absent) for key, group in groups.items()
    )


def _channel(name: str, group: Sequence[Dimm], labels: Mapping[str | None, int], processor: bool) -> Channel:
    dram = [dimm for dimm in group if dimm.kind == "dram"]
    return Channel(
        name,
        tuple(_label(dimm, labels) for dimm in group),
        sum(dimm.populated is not False for dimm in group),
        len(dram),
        _total(dram),
        _lowest(dram, lambda dimm: dimm.configured_mts),
        processor,
    )


def _channel_name(key: _Key) -> str:
    words = ("socket", "controller", "channel")
    return " ".join(f"{word} {part}" for word, part in zip(words, key, strict=True) if part is not None)


def _label(dimm: Dimm, labels: Mapping[str | None, int]) -> str:
    """The locator as the board's print has it, with the bank where several slots share it."""
    if dimm.locator is None or labels[dimm.locator] > 1:
        return " ".join(text for text in (dimm.bank, dimm.locator) if text) or "a slot without a name"
    return dimm.locator


def _by_sets(
    slots: Sequence[Dimm], devices: Sequence[MemoryDevice], channels_per_socket: int | None
) -> list[int] | None:
    """For slots A1, A2, ... B1, ...: their channels 1, 2, ..., where the device sets tell how many there are.

    Such firmware puts the first slots of all channels of a socket into one set, the second ones into the next.
    A single set for all slots of a socket could be anything, unless the processor is known to have so many.
    """
    if not all(_SOCKET_AND_NUMBER.fullmatch(dimm.locator or "") for dimm in slots):
        return None
    by_socket: dict[int | None, dict[int, int | None]] = {}
    for dimm, device in zip(slots, devices, strict=True):
        by_socket.setdefault(dimm.socket, {})[dimm.slot or 0] = device.device_set
    sizes: set[int] = set()
    for sets in by_socket.values():
        if sorted(sets) != list(range(1, len(sets) + 1)):
            return None
        runs = [(number, len(list(run))) for number, run in groupby(sets[slot] for slot in sorted(sets))]
        if not all(number for number, _ in runs) or len({number for number, _ in runs}) != len(runs):
            return None
        lengths = {length for _, length in runs}
        if len(runs) > min(lengths) or (len(runs) == 1 and channels_per_socket is None):
            return None
        sizes |= lengths
    if len(sizes) != 1 or sum(map(len, by_socket.values())) != len(slots):
        return None
    size = sizes.pop()
    if not 2 <= size <= MOST_CHANNELS or channels_per_socket not in (None, size):
        return None
    return [((dimm.slot or 1) - 1) % size + 1 for dimm in slots]


def _evident(
    dram: Sequence[Dimm],
    slots: Sequence[Dimm],
    absent: frozenset[int],
    channels_per_socket: int | None,
    channels_of_processors: int | None,
) -> _Channels:
    """Channels that no locator names: a lone module of each socket has one; full sockets use all they have."""
    sockets = [dimm.socket for dimm in dram]
    if len(dram) == 1 or (None not in sockets and len(set(sockets)) == len(sockets)):
        note = "the locators name no channel; a lone module in a socket has one to itself"
        return _Channels(len(dram), note=note)
    by_socket = Counter(dimm.socket for dimm in slots if dimm.socket not in absent)
    full = None not in by_socket and Counter(sockets) == by_socket
    if full and channels_per_socket and all(n % channels_per_socket == 0 for n in by_socket.values()):
        note = (
            f"the locators name no channel; all slots are filled, so all {channels_per_socket} of each socket"
        )
        return _Channels(channels_per_socket * len(by_socket), note=note)
    whole = channels_of_processors
    if len(dram) == len(slots) and whole and len(slots) % whole == 0 and len(slots) // whole <= MOST_SLOTS:
        note = (
            f"the locators name no channel; all slots are filled, so all {whole} channels of the processors"
        )
        return _Channels(whole, note=note)
    example = next((dimm.locator or dimm.bank for dimm in dram if not dimm.channel), None)
    return _Channels(reason=f"the locators ({example or 'none'}) do not name the channel")


def _summary(
    dimms: Sequence[Dimm],
    slots: Sequence[Dimm],
    found: _Channels,
    channels_of_processors: int | None,
    partial: str | None,
) -> Summary:
    """Every field, with the reason of each that cannot be had."""
    reasons: dict[str, Reason] = {}
    dram = [dimm for dimm in slots if dimm.kind == "dram"]
    modules = sum(dimm.populated is not False for dimm in slots)
    none_anywhere = not any(dimm.populated is not False for dimm in dimms)

    def shown(value: _T | None, name: str, text: str, state: State = State.NOT_PRESENT) -> _T | None:
        """The value, or None with the reason."""
        if none_anywhere:
            reasons[name] = Reason(State.FAILED, f"implausible: {found.reason}")
            return None
        if value is None:
            reasons[name] = Reason(state, text)
        return value

    unnamed = found.reason or found.note
    named = found.named
    sizes = "the table does not tell the size of every module"
    none = "" if dram else _silent(dram, "")
    configured = _lowest(dram, lambda dimm: dimm.configured_mts)
    rated = _lowest(dram, lambda dimm: dimm.rated_mts)
    shares = [100 * (1 - d.configured_mts / d.rated_mts) for d in dram if d.configured_mts and d.rated_mts]
    doubt = next(filter(None, (_doubt(d, d.configured_mts) for d in dram)), "")
    ceiling, full, why = _ceilings(dram, found, configured, doubt, channels_of_processors)
    state = State.FAILED if why and why == doubt else State.NOT_PRESENT
    rates = [_differ([d.configured_mts for d in dram]), _differ([d.rated_mts for d in dram])]
    summary = Summary(
        evaluated=True,
        dimms=tuple(dimms),
        slots=len(slots),
        populated=shown(
            None if partial or any(dimm.populated is None for dimm in slots) else modules,
            "populated",
            partial or "of some slots the table does not tell whether they hold a module",
        ),
        dram_bytes=shown(None if partial else _total(dram), "dram_bytes", partial or sizes),
        pmem_bytes=shown(
            None if partial else _total([d for d in slots if d.kind == "pmem"]),
            "pmem_bytes",
            partial or sizes,
        ),
        channels=shown(found.count, "channels", found.reason),
        channel_list=shown(named, "channel_list", unnamed),
        empty_channels=shown(
            None if named is None else tuple(_empty(c) for c in named if c.processor and not c.dram),
            "empty_channels",
            unnamed,
        ),
        modules_per_channel=shown(
            None if named is None else max((channel.dram for channel in named), default=0),
            "modules_per_channel",
            unnamed,
        ),
        configured_mts=shown(configured, "configured_mts", _silent(dram, "configured")),
        rated_mts=shown(rated, "rated_mts", _silent(dram, "rated")),
        derating_percent=shown(
            max(shares, default=None),
            "derating_percent",
            none or "no DRAM module tells both its rated and its configured speed",
        ),
        theoretical_bytes_per_s=shown(ceiling, "theoretical_bytes_per_s", why, state),
        full_bytes_per_s=shown(full, "full_bytes_per_s", why or unnamed, state),
        mixed_sizes=shown(_differ([d.bytes for d in dram]), "mixed_sizes", none or sizes),
        mixed_speeds=shown(
            True if True in rates else None if None in rates else False,
            "mixed_speeds",
            none or "the table does not tell both speeds of every module",
        ),
        mixed_parts=shown(
            _differ([d.part_number for d in dram]),
            "mixed_parts",
            none or "the table does not tell the part number of every module",
        ),
        notes=tuple(
            dict.fromkeys(filter(None, (found.note, doubt, *(_doubt(d, d.rated_mts) for d in dram))))
        ),
    )
    return evolve(summary, reasons=reasons)


def _differ(values: Sequence[int | str | None]) -> bool | None:
    """Whether there are several values; None where that hangs on one that is not told."""
    known = {value for value in values if value is not None}
    return True if len(known) > 1 else None if None in values or not values else False


def _silent(dram: Sequence[Dimm], what: str) -> str:
    """Why no lowest speed is told."""
    if not dram:
        return "no DRAM module is installed"
    unknown = sum(getattr(dimm, f"{what}_mts") is None for dimm in dram)
    return f"{unknown} of {len(dram)} DRAM modules tell no {what} speed"


def _empty(channel: Channel) -> str:
    return f"{channel.name} ({', '.join(channel.slots)})"


def _lowest(dimms: Sequence[Dimm], rate: Callable[[Dimm], int | None]) -> int | None:
    """The lowest rate; None without modules, or where one does not tell its own."""
    rates = [rate(dimm) for dimm in dimms]
    known = [value for value in rates if value is not None]
    return min(known) if known and len(known) == len(rates) else None


def _total(dimms: Sequence[Dimm]) -> int | None:
    sizes = [dimm.bytes for dimm in dimms]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _ceilings(
    dram: Sequence[Dimm], found: _Channels, configured: int | None, doubt: str, wanted: int | None
) -> tuple[float | None, float | None, str]:
    """The ceiling of the channels in use, that of all channels, and why there is none.

    All channels are those that the table names, or as many as the processors have (`wanted`) if that is more.
    """
    if found.count is None:
        return None, None, found.reason
    if configured is None or doubt:
        return None, None, doubt or _silent(dram, "configured")
    if found.named is not None:
        used = sum(channel.configured_mts or 0 for channel in found.named if channel.dram)
        idle = sum(channel.processor and not channel.dram for channel in found.named)
        idle = max(idle, (wanted or 0) - found.count)
        return _rate(used), _rate(used + idle * configured), ""
    idle_of_all = None if wanted is None else max(0, wanted - found.count)
    if found.count == len(dram):
        used = sum(dimm.configured_mts or 0 for dimm in dram)
        return _rate(used), None if idle_of_all is None else _rate(used + idle_of_all * configured), ""
    if len({dimm.configured_mts for dimm in dram}) > 1:
        return None, None, "the modules run at several speeds, and their channels are not told"
    used = found.count * configured
    return _rate(used), None if idle_of_all is None else _rate(used + idle_of_all * configured), ""


def _rate(mts: int) -> float:
    """Bytes per second of transfers of millions a second."""
    return float(mts * 10**6 * BYTES_PER_TRANSFER)


def _doubt(dimm: Dimm, mts: int | None) -> str:
    """Why a speed of a module is no rate of a channel of 8 bytes; empty where it is, or none is told."""
    kind = dimm.memory_type or ""
    if mts is None:
        return ""
    if dimm.data_width is not None and 0 < dimm.data_width < 64:
        return f"a module of {dimm.data_width} bits is narrower than the 8 bytes of a channel"
    if kind.startswith("LPDDR"):
        return f"a channel of {kind} is narrower than 8 bytes, and the table does not tell how many there are"
    if mts < _LEAST_MTS.get(kind, 0):
        return f"{mts} MT/s is no rate of {kind}; the firmware may give the clock, which is half the rate"
    if dimm.rated_mts is not None and abs(2 * mts - dimm.rated_mts) <= 2:
        return (
            f"the configured {mts} MT/s is half of the rated {dimm.rated_mts}; "
            "the firmware may give the clock instead of the rate"
        )
    return ""
