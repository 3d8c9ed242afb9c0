"""The firmware's SMBIOS table (DMTF DSP0134), decoded from raw bytes: pure, bounded, never raises.

Offsets are those of the specification, counted from the start of a structure. A field that a structure is
too short for, or that the firmware calls unknown, is None. Serial numbers, asset tags and UUIDs are never
read out.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from k3gate import documents
from k3gate.host import parsing

TABLE = 1024 * 1024
STRUCTURES = 20_000
STRINGS = 255
CHARACTERS = 4096
PROBLEMS = 16
END = 127

MIB = 1024 * 1024


def _numbered(names: str) -> dict[int, str]:
    """Names by number from 1 on."""
    return dict(enumerate(names.split("|"), 1))


_CHASSIS = _numbered(
    "other|unknown|desktop|low-profile desktop|pizza box|mini tower|tower|portable|laptop|notebook|"
    "hand-held|docking station|all in one|sub-notebook|space-saving|lunch box|main server chassis|"
    "expansion chassis|sub-chassis|bus expansion chassis|peripheral chassis|RAID chassis|"
    "rack mount chassis|sealed-case PC|multi-system chassis|CompactPCI|AdvancedTCA|blade|"
    "blade enclosure|tablet|convertible|detachable|IoT gateway|embedded PC|mini PC|stick PC"
)
_CPU_STATUS = {1: "enabled", 2: "disabled by the user", 3: "disabled by the firmware", 4: "idle", 7: "other"}
_SLOT_TYPE: dict[int, str] = {
    **_numbered(
        "other|unknown|ISA|MCA|EISA|PCI|PC Card|VL-VESA|proprietary|processor card|"
        "proprietary memory card|I/O riser card|NuBus|PCI 66 MHz|AGP|AGP 2x|AGP 4x|PCI-X|AGP 8x|"
        "M.2 socket 1-DP|M.2 socket 1-SD|M.2 socket 2|M.2 socket 3|MXM type I|MXM type II|"
        "MXM type III|MXM type III-HE|MXM type IV|MXM 3.0 type A|MXM 3.0 type B|"
        "PCI Express 2 SFF-8639|PCI Express 3 SFF-8639|PCI Express Mini 52-pin|"
        "PCI Express Mini 52-pin|PCI Express Mini 76-pin|PCI Express 4 SFF-8639|"
        "PCI Express 5 SFF-8639|OCP NIC 3.0 small|OCP NIC 3.0 large|OCP NIC before 3.0"
    ),
    0x30: "CXL Flexbus 1.0",
    0xC4: "PCI Express 6",
    0xC5: "EDSFF E1",
    0xC6: "EDSFF E3",
    **{
        base + index: f"PCI Express{generation}{lanes}"
        for base, generation in ((0xA5, ""), (0xAB, " 2"), (0xB1, " 3"), (0xB8, " 4"), (0xBE, " 5"))
        for index, lanes in enumerate(("", " x1", " x2", " x4", " x8", " x16"))
    },
}
_SLOT_WIDTH = {
    3: "8 bits",
    4: "16 bits",
    5: "32 bits",
    6: "64 bits",
    7: "128 bits",
    8: "x1",
    9: "x2",
    10: "x4",
    11: "x8",
    12: "x12",
    13: "x16",
    14: "x32",
}
_SLOT_USE = {3: False, 4: True}
_ARRAY_LOCATION = {
    1: "other",
    3: "system board",
    4: "ISA card",
    5: "EISA card",
    6: "PCI card",
    7: "MCA card",
    8: "PCMCIA card",
    9: "proprietary card",
    10: "NuBus",
    0xA0: "PC-98/C20 card",
    0xA1: "PC-98/C24 card",
    0xA2: "PC-98/E card",
    0xA3: "PC-98 local bus card",
    0xA4: "CXL card",
}
_ARRAY_USE = {
    1: "other",
    3: "system memory",
    4: "video memory",
    5: "flash memory",
    6: "non-volatile RAM",
    7: "cache memory",
}
_ECC = {1: "other", 3: "none", 4: "parity", 5: "single-bit ECC", 6: "multi-bit ECC", 7: "CRC"}
_FORM = _numbered(
    "other|unknown|SIMM|SIP|chip|DIP|ZIP|proprietary card|DIMM|TSOP|row of chips|RIMM|SODIMM|SRIMM|"
    "FB-DIMM|die|CAMM"
)
_MEMORY_TYPE: dict[int, str] = {
    **_numbered(
        "other|unknown|DRAM|EDRAM|VRAM|SRAM|RAM|ROM|flash|EEPROM|FEPROM|EPROM|CDRAM|3DRAM|SDRAM|SGRAM|"
        "RDRAM|DDR|DDR2|DDR2 FB-DIMM"
    ),
    0x18: "DDR3",
    0x19: "FBD2",
    0x1A: "DDR4",
    0x1B: "LPDDR",
    0x1C: "LPDDR2",
    0x1D: "LPDDR3",
    0x1E: "LPDDR4",
    0x1F: "logical non-volatile device",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
    0x25: "MRDIMM",
}
_TYPE_DETAIL = {
    1: "other",
    3: "fast-paged",
    4: "static column",
    5: "pseudo-static",
    6: "RAMBUS",
    7: "synchronous",
    8: "CMOS",
    9: "EDO",
    10: "window DRAM",
    11: "cache DRAM",
    12: "non-volatile",
    13: "registered",
    14: "unbuffered",
    15: "LRDIMM",
}
_TECHNOLOGY = {
    1: "other",
    3: "DRAM",
    4: "NVDIMM-N",
    5: "NVDIMM-F",
    6: "NVDIMM-P",
    7: "Intel Optane persistent memory",
}
_MODES = {
    1: "other",
    3: "volatile",
    4: "byte-accessible persistent",
    5: "block-accessible persistent",
}
_SUPPLY_STATUS = {1: "other", 3: "OK", 4: "non-critical", 5: "critical"}


@frozen
class EntryPoint:
    """What points to the table. `exact`: `table_bytes` is the length (2.x), not just its bound (3.x)."""

    major: int
    minor: int
    table_bytes: int | None = None
    structures: int | None = None
    exact: bool = False
    checksum: bool | None = None


@frozen
class Structure:
    """One structure; `formatted` begins with its header, so that offsets are those of the specification."""

    type: int
    handle: int
    formatted: bytes = field(repr=False)
    strings: tuple[str, ...] = field(default=(), repr=False)

    def number(self, offset: int, size: int) -> int | None:
        """The little-endian number of `size` bytes at `offset`; None where the structure ends before."""
        part = self.formatted[offset : offset + size]
        return int.from_bytes(part, "little") if len(part) == size else None

    def byte(self, offset: int) -> int | None:
        """8 bits."""
        return self.number(offset, 1)

    def word(self, offset: int) -> int | None:
        """16 bits."""
        return self.number(offset, 2)

    def dword(self, offset: int) -> int | None:
        """32 bits."""
        return self.number(offset, 4)

    def qword(self, offset: int) -> int | None:
        """64 bits."""
        return self.number(offset, 8)

    def text(self, offset: int) -> str | None:
        """The string whose number stands at `offset`; None for none, for an empty one and for a false number."""
        index = self.byte(offset)
        return (self.strings[index - 1] or None) if index and index <= len(self.strings) else None

    def named(self, offset: int, names: Mapping[int, str], *, mask: int = 0xFF) -> str | None:
        """The name of an enumerated byte; None for 0 and for what the firmware calls unknown."""
        return _name(self.byte(offset), names, mask)


@frozen
class Structures:
    """What a table holds, in its order, and what is wrong with it."""

    structures: tuple[Structure, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, kind: int) -> tuple[Structure, ...]:
        """The structures of one type."""
        return tuple(s for s in self.structures if s.type == kind)


@frozen
class Bios:
    """Type 0. `virtual_machine` True: the table says that it describes one."""

    vendor: str | None = None
    version: str | None = None
    date: str | None = None
    release: str | None = None
    controller_release: str | None = None
    virtual_machine: bool | None = None


@frozen
class System:
    """Type 1, without serial number and UUID."""

    manufacturer: str | None = None
    product: str | None = None
    version: str | None = None


@frozen
class Board:
    """Type 2, without serial number and asset tag."""

    manufacturer: str | None = None
    product: str | None = None
    version: str | None = None


@frozen
class Chassis:
    """Type 3, without serial number and asset tag."""

    kind: str | None = None
    power_cords: int | None = None


@frozen
class Processor:
    """Type 4: one processor socket. Speeds in MHz."""

    socket: str | None = None
    manufacturer: str | None = None
    version: str | None = None
    populated: bool | None = None
    status: str | None = None
    max_mhz: int | None = None
    current_mhz: int | None = None
    cores: int | None = None
    cores_enabled: int | None = None
    threads: int | None = None


@frozen
class Slot:
    """Type 9: one expansion slot; `bus_address` as the kernel writes it, 0000:41:00.0."""

    designation: str | None = None
    kind: str | None = None
    width: str | None = None
    in_use: bool | None = None
    bus_address: str | None = None


@frozen
class MemoryArray:
    """Type 16: a set of memory devices."""

    handle: int
    location: str | None = None
    use: str | None = None
    ecc: str | None = None
    maximum_bytes: int | None = None
    devices: int | None = None


@frozen
class MemoryDevice:
    """Type 17: one memory slot. `size_bytes` is 0 where no module is installed, None where it is unknown.

    Rates in MT/s, widths in bits, voltages in millivolts. `device_set` 0: belongs to no set.
    """

    handle: int
    array_handle: int | None = None
    total_width: int | None = None
    data_width: int | None = None
    size_bytes: int | None = None
    form_factor: str | None = None
    device_set: int | None = None
    device_locator: str | None = None
    bank_locator: str | None = None
    memory_type: str | None = None
    type_detail: tuple[str, ...] | None = None
    rated_mts: int | None = None
    configured_mts: int | None = None
    manufacturer: str | None = None
    part_number: str | None = None
    rank: int | None = None
    minimum_mv: int | None = None
    maximum_mv: int | None = None
    configured_mv: int | None = None
    technology: str | None = None
    operating_modes: tuple[str, ...] | None = None
    firmware_version: str | None = None
    non_volatile_bytes: int | None = None
    volatile_bytes: int | None = None
    cache_bytes: int | None = None
    logical_bytes: int | None = None


@frozen
class ArrayMapping:
    """Type 19: addresses of an array; `end` is the last byte."""

    array_handle: int | None = None
    start: int | None = None
    end: int | None = None
    partition_width: int | None = None


@frozen
class DeviceMapping:
    """Type 20: addresses of a device; `end` is the last byte. `interleave_position` 0: not interleaved."""

    device_handle: int | None = None
    array_mapping_handle: int | None = None
    start: int | None = None
    end: int | None = None
    row_position: int | None = None
    interleave_position: int | None = None
    interleaved_depth: int | None = None


@frozen
class PowerSupply:
    """Type 39."""

    location: str | None = None
    capacity_watts: int | None = None
    status: str | None = None
    present: bool | None = None
    plugged: bool | None = None


@frozen
class Table:
    """Everything that is read out of a table, in its order, and what is wrong with it."""

    bios: Bios | None = None
    system: System | None = None
    boards: tuple[Board, ...] = ()
    chassis: tuple[Chassis, ...] = ()
    processors: tuple[Processor, ...] = ()
    slots: tuple[Slot, ...] = ()
    arrays: tuple[MemoryArray, ...] = ()
    devices: tuple[MemoryDevice, ...] = ()
    array_mappings: tuple[ArrayMapping, ...] = ()
    device_mappings: tuple[DeviceMapping, ...] = ()
    power_supplies: tuple[PowerSupply, ...] = ()
    problems: tuple[str, ...] = ()


def entry_point(raw: bytes) -> EntryPoint | None:
    """The entry point that `raw` begins with; None where there is none. A false checksum is noted, no more."""
    if raw[:5] == b"_SM3_" and len(raw) >= 9:
        length = int.from_bytes(raw[12:16], "little") if len(raw) >= 16 else 0
        return EntryPoint(raw[7], raw[8], length or None, None, False, _checksum(raw, raw[6]))
    if raw[:4] == b"_SM_" and len(raw) >= 8:
        length = int.from_bytes(raw[22:24], "little") if len(raw) >= 24 else 0
        count = int.from_bytes(raw[28:30], "little") if len(raw) >= 30 else 0
        return EntryPoint(raw[6], raw[7], length or None, count or None, True, _checksum(raw, raw[5]))
    return None


def _checksum(raw: bytes, length: int) -> bool | None:
    return sum(raw[:length]) % 256 == 0 if 0 < length <= len(raw) else None


def structures(table: bytes, entry: EntryPoint | None = None) -> Structures:
    """The whole structures of a table up to its end marker; what is cut off is left out and told."""
    problems: list[str] = []
    told = entry.table_bytes if entry is not None else None
    short = told is not None and len(table) < told
    if told is not None:
        table = table[:told]
    if len(table) > TABLE:
        problems.append(f"the table is larger than {TABLE} bytes; the rest was not read")
        table = table[:TABLE]
    found: list[Structure] = []
    position = 0
    ended = False
    while position < len(table) and not ended:
        if len(found) >= STRUCTURES:
            problems.append(f"more than {STRUCTURES} structures; the rest was not read")
            break
        length = table[position + 1] if position + 1 < len(table) else None
        if length is not None and length < 4:
            problems.append(f"a structure at byte {position} has a length of {length}; the rest was not read")
            break
        end = position + (length or 4)
        if end > len(table):
            problems.append(f"truncated: the structure at byte {position} is not whole")
            break
        kind = table[position]
        ended = kind == END
        stop = table.find(b"\0\0", end)
        if stop < 0 and not ended:
            problems.append(f"truncated: the strings of the structure at byte {position} do not end")
            break
        strings = _strings(table[end : max(stop, end)], problems)
        handle = int.from_bytes(table[position + 2 : position + 4], "little")
        found.append(Structure(kind, handle, table[position:end], strings))
        position = stop + 2
    _compare(problems, found, entry, ended=ended, short=short)
    return Structures(tuple(found), tuple(problems))


def _strings(raw: bytes, problems: list[str]) -> tuple[str, ...]:
    if not raw:
        return ()
    parts = raw.split(b"\0", STRINGS)
    if len(parts) > STRINGS:
        _note(problems, f"a structure has more than {STRINGS} strings; the rest was not read")
    if any(len(part) > CHARACTERS for part in parts[:STRINGS]):
        _note(problems, f"a string has more than {CHARACTERS} characters; the rest was not read")
    return tuple(
        parsing.words(documents.decode(part[:CHARACTERS])[:CHARACTERS]) or "" for part in parts[:STRINGS]
    )


def _note(problems: list[str], text: str) -> None:
    if text not in problems and len(problems) < PROBLEMS:
        problems.append(text)


def _compare(
    problems: list[str], found: list[Structure], entry: EntryPoint | None, *, ended: bool, short: bool
) -> None:
    """What the entry point tells against what was found."""
    count = entry.structures if entry is not None else None
    complete = ended or count == len(found)
    if not complete and not problems:
        problems.append("truncated: the table has no end marker")
    if short and entry is not None and (entry.exact or not complete):
        _note(problems, f"truncated: the entry point tells {entry.table_bytes} bytes")
    if count is not None and count != len(found):
        _note(problems, f"the entry point tells {count} structures, found {len(found)}")


def decode(read: Structures) -> Table:
    """All records of the types that are known here; of several BIOS or system structures the first."""
    bioses, systems = read.of(0), read.of(1)
    return Table(
        bios(bioses[0]) if bioses else None,
        system(systems[0]) if systems else None,
        tuple(board(s) for s in read.of(2)),
        tuple(chassis(s) for s in read.of(3)),
        tuple(processor(s) for s in read.of(4) if s.byte(5) not in _NO_CPU),
        tuple(slot(s) for s in read.of(9)),
        tuple(memory_array(s) for s in read.of(16)),
        tuple(memory_device(s) for s in read.of(17)),
        tuple(array_mapping(s) for s in read.of(19)),
        tuple(device_mapping(s) for s in read.of(20)),
        tuple(power_supply(s) for s in read.of(39)),
        read.problems,
    )


def bios(s: Structure) -> Bios:
    """Type 0."""
    characteristics = s.byte(0x13)
    return Bios(
        s.text(0x04),
        s.text(0x05),
        s.text(0x08),
        _release(s, 0x14),
        _release(s, 0x16),
        None if characteristics is None else bool(characteristics & 0x10),
    )


def _release(s: Structure, offset: int) -> str | None:
    major, minor = s.byte(offset), s.byte(offset + 1)
    return None if major in (None, 0xFF) or minor in (None, 0xFF) else f"{major}.{minor}"


def system(s: Structure) -> System:
    """Type 1."""
    return System(s.text(0x04), s.text(0x05), s.text(0x06))


def board(s: Structure) -> Board:
    """Type 2."""
    return Board(s.text(0x04), s.text(0x05), s.text(0x06))


def chassis(s: Structure) -> Chassis:
    """Type 3; the highest bit of the kind tells of a lock."""
    return Chassis(s.named(0x05, _CHASSIS, mask=0x7F), s.byte(0x12) or None)


_NO_CPU = (4, 5, 6)
"""Types of "processors" that are none: mathematical, signal and video processors."""


def processor(s: Structure) -> Processor:
    """Type 4."""
    status = s.byte(0x18)
    return Processor(
        s.text(0x04),
        s.text(0x07),
        s.text(0x10),
        None if status is None else bool(status & 0x40),
        None if status is None else _CPU_STATUS.get(status & 7),
        s.word(0x14) or None,
        s.word(0x16) or None,
        _many(s, 0x23, 0x2A),
        _many(s, 0x24, 0x2C),
        _many(s, 0x25, 0x2E),
    )


def _many(s: Structure, offset: int, wide: int) -> int | None:
    """A count of cores or threads; what a byte cannot hold stands in a word of newer tables."""
    count = s.byte(offset)
    if count == 0xFF:
        count = s.word(wide)
        if count == 0xFFFF:
            return None
    return count or None


def slot(s: Structure) -> Slot:
    """Type 9."""
    kind, width, use = s.byte(0x05), s.byte(0x06), s.byte(0x07)
    segment, bus, device = s.word(0x0D), s.byte(0x0F), s.byte(0x10)
    address = None
    if segment is not None and bus is not None and device is not None and (bus, device) != (0xFF, 0xFF):
        address = f"{segment:04x}:{bus:02x}:{device >> 3:02x}.{device & 7}"
    return Slot(
        s.text(0x04),
        _name(kind, _SLOT_TYPE),
        _SLOT_WIDTH.get(width or 0),
        _SLOT_USE.get(use or 0),
        address,
    )


def memory_array(s: Structure) -> MemoryArray:
    """Type 16."""
    kilobytes = s.dword(0x07)
    maximum = s.qword(0x0F) if kilobytes == 0x8000_0000 else None if kilobytes is None else kilobytes * 1024
    return MemoryArray(
        s.handle,
        s.named(0x04, _ARRAY_LOCATION),
        s.named(0x05, _ARRAY_USE),
        s.named(0x06, _ECC),
        maximum or None,
        s.word(0x0D),
    )


def memory_device(s: Structure) -> MemoryDevice:
    """Type 17."""
    attributes = s.byte(0x1B)
    return MemoryDevice(
        handle=s.handle,
        array_handle=s.word(0x04),
        total_width=_known(s.word(0x08), 0xFFFF) or None,
        data_width=_known(s.word(0x0A), 0xFFFF) or None,
        size_bytes=_size(s),
        form_factor=s.named(0x0E, _FORM),
        device_set=_known(s.byte(0x0F), 0xFF),
        device_locator=s.text(0x10),
        bank_locator=s.text(0x11),
        memory_type=s.named(0x12, _MEMORY_TYPE),
        type_detail=_bits(s.word(0x13), _TYPE_DETAIL),
        rated_mts=_rate(s, 0x15, 0x54),
        configured_mts=_rate(s, 0x20, 0x58),
        manufacturer=s.text(0x17),
        part_number=s.text(0x1A),
        rank=None if attributes is None else (attributes & 0x0F) or None,
        minimum_mv=s.word(0x22) or None,
        maximum_mv=s.word(0x24) or None,
        configured_mv=s.word(0x26) or None,
        technology=s.named(0x28, _TECHNOLOGY),
        operating_modes=_bits(s.word(0x29), _MODES),
        firmware_version=s.text(0x2B),
        non_volatile_bytes=_known(s.qword(0x34), 2**64 - 1),
        volatile_bytes=_known(s.qword(0x3C), 2**64 - 1),
        cache_bytes=_known(s.qword(0x44), 2**64 - 1),
        logical_bytes=_known(s.qword(0x4C), 2**64 - 1),
    )


def _size(s: Structure) -> int | None:
    size = s.word(0x0C)
    if size is None or size == 0xFFFF:
        return None
    if size == 0x7FFF:
        extended = s.dword(0x1C)
        return None if extended is None else (extended & 0x7FFF_FFFF) * MIB or None
    return (size & 0x7FFF) * 1024 if size & 0x8000 else size * MIB


def _rate(s: Structure, offset: int, extended: int) -> int | None:
    rate = s.word(offset)
    if rate == 0xFFFF:
        wide = s.dword(extended)
        rate = None if wide is None else wide & 0x7FFF_FFFF
    return rate or None


def array_mapping(s: Structure) -> ArrayMapping:
    """Type 19."""
    start, end = _range(s, 0x0F, 0x17)
    return ArrayMapping(s.word(0x0C), start, end, s.byte(0x0E) or None)


def device_mapping(s: Structure) -> DeviceMapping:
    """Type 20."""
    start, end = _range(s, 0x13, 0x1B)
    return DeviceMapping(
        s.word(0x0C),
        s.word(0x0E),
        start,
        end,
        _known(s.byte(0x10), 0xFF) or None,
        _known(s.byte(0x11), 0xFF),
        _known(s.byte(0x12), 0xFF),
    )


def _range(s: Structure, extended_start: int, extended_end: int) -> tuple[int | None, int | None]:
    """First and last byte: kilobytes, or bytes in the extended fields where the first field says so."""
    start, end = s.dword(0x04), s.dword(0x08)
    if start == 0xFFFF_FFFF:
        return s.qword(extended_start), s.qword(extended_end)
    return None if start is None else start * 1024, None if end is None else end * 1024 + 1023


def power_supply(s: Structure) -> PowerSupply:
    """Type 39."""
    traits = s.word(0x0E)
    return PowerSupply(
        s.text(0x05),
        _known(s.word(0x0C), 0x8000) or None,
        None if traits is None else _SUPPLY_STATUS.get(traits >> 7 & 7),
        None if traits is None else bool(traits & 2),
        None if traits is None else not traits & 4,
    )


def _known(value: int | None, unknown: int) -> int | None:
    return None if value == unknown else value


def _name(value: int | None, names: Mapping[int, str], mask: int = 0xFF) -> str | None:
    """0 stands for nothing and 2 for unknown in every enumeration of the specification that is read here."""
    number = (value or 0) & mask
    return None if number in (0, 2) else names.get(number, f"type 0x{number:02X}")


def _bits(value: int | None, names: Mapping[int, str]) -> tuple[str, ...] | None:
    """The names of the bits set; None where none is, or none but that for unknown."""
    return tuple(name for bit, name in names.items() if (value or 0) >> bit & 1) or None
