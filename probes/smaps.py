"""What the kernel says of a mapping of this process, from /proc/self/smaps; what is read is bounded."""

from __future__ import annotations

import re

SMAPS_LIMIT = 16 << 20


def smaps_fields(address: int) -> dict[str, int]:
    """The numbers, in bytes, of the mapping that begins at `address`; empty where it is not listed.

    Raises `OSError` where smaps cannot be read.
    """
    head = re.compile(rb"^([0-9a-f]{1,16})-[0-9a-f]{1,16} ")
    fields: dict[str, int] = {}
    inside = False
    read = 0
    with open("/proc/self/smaps", "rb") as file:
        while line := file.readline(8192):
            read += len(line)
            if read > SMAPS_LIMIT:
                break
            if found := head.match(line):
                if inside:
                    break
                inside = int(found[1], 16) == address
            elif inside and (pair := re.match(rb"^(\w{1,32}):\s+(\d{1,15}) kB", line)):
                fields[pair[1].decode("ascii")] = int(pair[2]) * 1024
    return fields
