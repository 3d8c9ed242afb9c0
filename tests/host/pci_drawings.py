"""Functions on PCI drawn as files of sysfs, with links and configuration space as the kernel shows them."""

from __future__ import annotations

import struct
from pathlib import Path

GPU, NVME, NIC, BRIDGE = 0x030200, 0x010802, 0x020000, 0x060400
NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
End = tuple[float, int]


def put_device(
    root: Path,
    path: str,
    *,
    code: int = BRIDGE,
    vendor: int = INTEL,
    device: int = 0x1234,
    now: End | None = None,
    best: End | None = None,
    node: int = -1,
    cpus: str | None = None,
    driver: str | None = None,
    config: bytes | None = None,
    more: dict[str, str] | None = None,
) -> None:
    """A function at `path` below sys/devices, such as "pci0000:00/0000:00:01.0/0000:01:00.0"."""
    folder = root / "sys/devices" / path
    address = path.rpartition("/")[2]
    files = {
        "class": f"0x{code:06x}\n",
        "vendor": f"0x{vendor:04x}\n",
        "device": f"0x{device:04x}\n",
        "numa_node": f"{node}\n",
        **(more or {}),
    }
    if now is not None:
        files |= {"current_link_speed": f"{now[0]} GT/s PCIe\n", "current_link_width": f"{now[1]}\n"}
    if best is not None:
        files |= {"max_link_speed": f"{best[0]} GT/s PCIe\n", "max_link_width": f"{best[1]}\n"}
    if cpus is not None:
        files["local_cpulist"] = f"{cpus}\n"
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    if config is not None:
        (folder / "config").write_bytes(config)
    if driver is not None:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to("/sys/bus/pci/drivers/" + driver)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(f"../../../devices/{path}")


def config(*, port: int | None = None, acs: int | None = None, secret: bytes = b"") -> bytes:
    """A configuration space with a PCI Express capability of this port type, access control, and a serial number."""
    raw = bytearray(4096)
    struct.pack_into("<H", raw, 6, 0x10)
    raw[0x34] = 0x40
    raw[0x40:0x44] = bytes([0x10, 0x00, (port or 0) << 4 | 2, 0])
    struct.pack_into("<I", raw, 0x4C, 5 | 16 << 4)
    struct.pack_into("<H", raw, 0x52, 1 | 8 << 4)
    struct.pack_into("<I", raw, 0x100, 0x0003 | 1 << 16 | 0x110 << 20)
    raw[0x104 : 0x104 + len(secret)] = secret
    struct.pack_into("<I", raw, 0x110, (0x000D if acs is not None else 0x0001) | 1 << 16)
    struct.pack_into("<H", raw, 0x116, acs or 0)
    return bytes(raw)
