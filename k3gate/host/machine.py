"""Which machine this is, without anything that names the one piece of hardware: no serials, no host name."""

from __future__ import annotations

import hashlib
import hmac
import re

from attrs import evolve

from k3gate import documents
from k3gate.host import parsing, virtual
from k3gate.host.files import Reading, Root
from k3gate.host.firmware import Firmware, power_supplies
from k3gate.host.notes import Notes
from k3gate.records import Cpu, Machine, Memory, Numa, PciDevice, State

_DMI = ("sys/class/dmi/id", "sys/devices/virtual/dmi/id")
_DEVICE_TREE = "sys/firmware/devicetree/base/model"
_SALT = b"k3gate machine id 1"
_FINGERPRINT_VERSION = 2
_DISPLAY_AND_COMPUTING = (0x03, 0x12)
"""Base classes of PCI."""
# What boards say where their maker has filled in nothing.
_PLACEHOLDER = re.compile(
    r"(?i)to be filled by o\.?e\.?m\.?|default string|system (?:product|manufacturer|version)(?: name)?"
    r"|not specified|not applicable|none|n/?a|unknown|o\.e\.m\.|x{3,}|0+|\.+|empty"
)


def read(root: Root, notes: Notes, name: str | None, table: Firmware) -> Machine:
    """The `Machine` record but for its fingerprint. The kernel's strings, else those of the table."""
    told = _told(table)

    def string(field: str, file: str) -> str | None:
        found = _firmware(root, notes, f"machine.{field}", file)
        if found is None and (text := told.get(file)):
            found = notes.parse(f"machine.{field}", Reading(table.source, text, State.OK), _named)
        return found

    vendor = string("vendor", "sys_vendor")
    product = string("product", "product_name")
    if product is None and root.exists(_DEVICE_TREE):
        product = notes.take("machine.product", root, _device_tree, _DEVICE_TREE)
    maker = string("board_vendor", "board_vendor")
    board = string("board", "board_name")
    notes.entries.pop("machine.board_vendor", None)
    firmware = {
        key: string(f"firmware.{key}", file)
        for key, file in (
            ("vendor", "bios_vendor"),
            ("version", "bios_version"),
            ("date", "bios_date"),
            ("release", "bios_release"),
            ("controller_release", "ec_firmware_release"),
        )
    }
    strings = " ".join(text for text in (vendor, product, maker, board, firmware["vendor"]) if text)
    around = virtual.read(root, notes, strings, table)
    if name:
        notes.seen("machine.name", "given by the user")
    else:
        notes.unknown("machine.name", State.NOT_RUN, None, "not given; --machine NAME names it")
    return Machine(
        id=notes.take("machine.id", root, _salted, "etc/machine-id"),
        name=documents.printable(name) if name else None,
        vendor=vendor,
        product=product,
        board=" ".join(text for text in (maker, board) if text) or None,
        firmware=firmware,
        virtual=around.virtual,
        hypervisor=around.hypervisor,
        container=around.container,
        wsl=around.wsl,
        power_supplies=power_supplies(notes, table),
    )


def _told(firmware: Firmware) -> dict[str, str | None]:
    """The table's strings by the names of the files in which the kernel shows them."""
    table = firmware.table
    if table is None:
        return {}
    board = table.boards[0] if table.boards else None
    return {
        "sys_vendor": table.system.manufacturer if table.system else None,
        "product_name": table.system.product if table.system else None,
        "board_vendor": board.manufacturer if board else None,
        "board_name": board.product if board else None,
        "bios_vendor": table.bios.vendor if table.bios else None,
        "bios_version": table.bios.version if table.bios else None,
        "bios_date": table.bios.date if table.bios else None,
        "bios_release": table.bios.release if table.bios else None,
        "ec_firmware_release": table.bios.controller_release if table.bios else None,
    }


def with_fingerprint(
    machine: Machine,
    notes: Notes,
    cpu: Cpu,
    numa: Numa,
    memory: Memory,
    devices: tuple[PciDevice, ...] | None,
) -> Machine:
    """`machine` with a hash of what it is made of, equal for equal machines and steady over reboots."""
    notes.seen("machine.fingerprint", "cpu; numa; memory; machine; pci")
    parts = {
        "version": _FINGERPRINT_VERSION,
        "cpu": [cpu.architecture, cpu.vendor, cpu.model, cpu.family, cpu.model_number, cpu.stepping],
        "cpus": len(cpu.present or cpu.online or ()),
        "sockets": cpu.sockets,
        "nodes": [[node.id, bool(node.cpus), bool(node.memory_bytes)] for node in numa.nodes],
        "memory": _installed(memory.total_bytes),
        "board": [machine.vendor, machine.product, machine.board],
        "virtual": machine.virtual,
        "gpus": _gpus(devices),
    }
    return evolve(machine, fingerprint=documents.digest(parts))


def _gpus(devices: tuple[PciDevice, ...] | None) -> list[list[float | int | None]] | None:
    """Devices for display and computing, by maker and kind, and what their links can at most.

    By their class alone, so that a driver that is loaded or not changes nothing. Not where they are: numbers of buses
    change with whatever else is fitted. Nor what links do now.
    """
    if devices is None:
        return None
    found: list[list[float | int | None]] = [
        [
            one.vendor_id,
            one.device_id,
            None if one.link is None else one.link.best_gt_per_s,
            None if one.link is None else one.link.best_width,
        ]
        for one in devices
        if (one.class_code or 0) >> 16 in _DISPLAY_AND_COMPUTING and one.virtual_of is None
    ]
    return sorted(found, key=lambda one: [-1 if part is None else part for part in one])


def _installed(total: int | None) -> int | None:
    """MemTotal rounded up to a sixteenth of the next power of two: what the kernel reserves varies."""
    if not total:
        return None
    step = max(1, (1 << (total - 1).bit_length()) // 16)
    return -(-total // step) * step


def _firmware(root: Root, notes: Notes, field: str, name: str) -> str | None:
    return notes.take(field, root, _named, *(f"{folder}/{name}" for folder in _DMI))


def _named(text: str) -> str:
    word = parsing.words(text)
    if word is None:
        raise ValueError("empty")
    if _PLACEHOLDER.fullmatch(word):
        raise ValueError(f"a placeholder of the firmware: {word[:60]!r}")
    return word[:200]


def _device_tree(text: str) -> str:
    return _named(text.replace("\\x00", " "))


def _salted(text: str) -> str:
    word = text.strip()
    if not re.fullmatch(r"[0-9a-f]{32}", word) or word == "0" * 32:
        raise ValueError("not a machine id")
    return hmac.new(_SALT, word.encode("ascii"), hashlib.sha256).hexdigest()[:32]
