"""The SMART log of NVMe drives (log page 02h of the NVM Express base specification), asked of the kernel.

Only reads: the one command that is ever sent is Get Log Page. The kernel lets root alone send it.
"""

from __future__ import annotations

import errno
import os
import struct

from k3gate.records import DriveHealth

BYTES = 512
_ADMIN_COMMAND = 0xC0484E41  # NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_passthru_cmd)
_GET_LOG_PAGE = 0x02
_PAGE = 0x02
_EVERY_NAMESPACE = 0xFFFFFFFF
_COMMAND = "<BBHIIIQQ10I"  # struct nvme_passthru_cmd of linux/nvme_ioctl.h
_TIMEOUT_MS = 2000
_KELVIN = 273
_HOTTEST_KELVIN = 500
_SENSORS = 8


def ask(device: str) -> bytes:
    """The log of the controller at `device` (/dev/nvme0). `OSError`: EACCES without the right, others as they come."""
    import ctypes
    import fcntl

    log = ctypes.create_string_buffer(BYTES)
    words = BYTES // 4 - 1
    command = bytearray(
        struct.pack(
            _COMMAND,
            *(_GET_LOG_PAGE, 0, 0, _EVERY_NAMESPACE, 0, 0, 0, ctypes.addressof(log), 0, BYTES),
            *(_PAGE | words << 16, 0, 0, 0, 0, 0, _TIMEOUT_MS, 0),
        )
    )
    descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = fcntl.ioctl(descriptor, _ADMIN_COMMAND, command)
    finally:
        os.close(descriptor)
    if status:
        raise OSError(errno.EIO, f"the drive answered with status {status:#x}")
    return log.raw


def parse(log: bytes) -> DriveHealth:
    """What a log tells; `ValueError` where it is none. A sensor that reports 0 K is not there."""
    if len(log) < BYTES:
        raise ValueError(f"{len(log)} bytes are no SMART log, which has {BYTES}")
    composite = struct.unpack_from("<H", log, 1)[0]
    temperatures = struct.unpack_from(f"<{_SENSORS}H", log, 200)
    warning, critical = struct.unpack_from("<II", log, 192)
    light, heavy, light_seconds, heavy_seconds = struct.unpack_from("<IIII", log, 216)
    return DriveHealth(
        temperature=_celsius(composite),
        sensors={
            str(number): value
            for number, kelvin in enumerate(temperatures, 1)
            if (value := _celsius(kelvin)) is not None
        },
        warning_seconds=60 * warning,
        critical_seconds=60 * critical,
        light_throttles=light,
        light_throttle_seconds=light_seconds,
        heavy_throttles=heavy,
        heavy_throttle_seconds=heavy_seconds,
        media_errors=min(int.from_bytes(log[160:176], "little"), 2**53),
        used_percent=log[5],
        spare_percent=log[3] if log[3] <= 100 else None,
        critical_warning=log[0],
    )


def _celsius(kelvin: int) -> float | None:
    return float(kelvin - _KELVIN) if 0 < kelvin <= _HOTTEST_KELVIN else None
