"""Memory modules as a server's firmware tells of them: SMBIOS structures of types 16 and 17 for QEMU."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

CHANNELS = "ABCDEFGH"
_ARRAY = 0x1000
_UNKNOWN = 0xFFFE  # of the handle of an error record: none is provided


@frozen
class Module:
    """A DDR5 module; rates in MT/s."""

    gib: int = 64
    rated: int = 5600
    configured: int = 5600


def options(folder: Path, modules: Mapping[str, Module]) -> list[str]:
    """QEMU's options for a server with one slot on each of eight channels, and these modules in them.

    The strings say nothing of QEMU; that the guest is one, its processor's flag still tells.
    """
    told = ["-smbios", "type=1,manufacturer=Example,product=Server"]
    structures = [_array(), *(_device(n, name, modules.get(name)) for n, name in enumerate(CHANNELS))]
    folder.mkdir()
    for number, structure in enumerate(structures):
        file = folder / f"{number}.bin"
        file.write_bytes(structure)
        told += ["-smbios", f"file={file}"]
    return told


def _array() -> bytes:
    """Type 16: on the system board, system memory, with error correction; 2 TiB in 8 slots."""
    body = struct.pack("<BBBIHHQ", 3, 3, 6, 0x8000_0000, _UNKNOWN, len(CHANNELS), 2 << 40)
    return _structure(16, _ARRAY, body, ())


def _device(number: int, channel: str, module: Module | None) -> bytes:
    """Type 17 as of SMBIOS 2.8: an empty slot has no size, no rate and an unknown memory type."""
    strings = (f"DIMM {number}", f"P0 CHANNEL {channel}")
    widths = (80, 64) if module else (0xFFFF, 0xFFFF)
    size = 0x7FFF if module else 0  # the true size stands in the extended field, in MiB
    body = struct.pack(
        "<HHHHHBBBBBH", _ARRAY, _UNKNOWN, *widths, size, 9, 0, 1, 2, 0x22 if module else 2, 0x80
    )
    if module is None:
        body += struct.pack("<HBBBBBIHHHH", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    else:
        strings += ("Example", f"SERIAL{number}", f"EX{module.gib}-{module.rated}")
        body += struct.pack("<HBBBBBI", module.rated, 3, 4, 0, 5, 2, module.gib * 1024)
        body += struct.pack("<HHHH", module.configured, 1100, 1100, 1100)
    return _structure(17, 0x1100 + number, body, strings)


def _structure(kind: int, handle: int, body: bytes, strings: tuple[str, ...]) -> bytes:
    text = b"".join(string.encode("ascii") + b"\0" for string in strings) or b"\0"
    return struct.pack("<BBH", kind, 4 + len(body), handle) + body + text + b"\0"
