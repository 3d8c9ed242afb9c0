"""Names of vendors and devices from pci.ids, the list of the PCI ID project, where a machine has it."""

from __future__ import annotations

from collections.abc import Collection

from k3gate.documents import printable
from k3gate.host.files import LARGE, PCI_NAMES, Root

PATHS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", PCI_NAMES)
_LONGEST = 80

Ids = Collection[tuple[int, int]]
"""(vendor, device) of the devices that are to be named."""
Names = dict[tuple[int, int | None], str]
"""By (vendor, device); the device None: the vendor's own name."""


def read(root: Root, wanted: Ids) -> tuple[Names, bool]:
    """The names of these devices, and whether there is such a list."""
    for path in PATHS:
        try:
            raw = root.raw(path, LARGE)
        except (OSError, ValueError):
            continue
        return parse(raw.decode("utf-8", "surrogateescape"), wanted), True
    return {}, False


def parse(text: str, wanted: Ids) -> Names:
    """Vendors stand at the beginning of a line, their devices below, after one tab."""
    found: Names = {}
    for line, vendor, device in _wanted_lines(text, wanted):
        name = printable(" ".join(line.strip().split()[1:]))[:_LONGEST]
        if name:
            found[(vendor, device)] = name
    return found


def subset(text: str, wanted: Ids) -> str:
    """The lines that name these devices: a capture need not carry the whole list."""
    return "".join(f"{line}\n" for line, _, _ in _wanted_lines(text, wanted))


def _wanted_lines(text: str, wanted: Ids) -> list[tuple[str, int, int | None]]:
    vendors = {f"{vendor:04x}": vendor for vendor, _ in wanted}
    devices = {(vendor, f"{device:04x}"): device for vendor, device in wanted}
    found: list[tuple[str, int, int | None]] = []
    vendor: int | None = None
    for line in text.split("\n"):
        if line.startswith("\t"):
            if vendor is not None and (device := devices.get((vendor, line[1:5].lower()))) is not None:
                found.append((line, vendor, device))
        elif line and not line.startswith("#"):
            # Classes, at the end, begin with "C ".
            vendor = vendors.get(line[:4].lower()) if line[4:6] == "  " else None
            if vendor is not None:
                found.append((line, vendor, None))
    return found
