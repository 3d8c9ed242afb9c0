"""A module of persistent memory as a server has it: a namespace of mode fsdax, with an ext4 file system in it.

The kernel gives DAX only to a namespace that says where its pages are described; `ndctl` writes that block, and so
does this, after struct nd_pfn_sb of the kernel's drivers/nvdimm/pfn.h.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import image

_BLOCK_AT = 4096
_DATA_AT = 2 << 20
_PAGES_IN_RAM = 1


def build(folder: Path, file: Path, mke2fs: str, mib: int) -> list[str]:
    """Puts what lies in a folder into a module of so many MiB; QEMU's options for it, on node 1.

    What the guest writes to it is lost with the guest.
    """
    inside = image.file_system(folder, file.with_suffix(".ext4"), mke2fs, mib - (_DATA_AT >> 20))
    with file.open("wb") as out, inside.open("rb") as system:
        out.truncate(mib << 20)
        out.seek(_BLOCK_AT)
        out.write(_block(mib << 20))
        out.seek(_DATA_AT)
        shutil.copyfileobj(system, out, 1 << 20)
    inside.unlink()
    backend = f"memory-backend-file,id=persistent,mem-path={file},size={mib}M,share=off"
    options = ["-M", "nvdimm=on", "-m", "slots=1,maxmem=8G", "-object", backend]
    return [*options, "-device", "nvdimm,id=nvdimm0,memdev=persistent,node=1"]


def _block(size: int) -> bytes:
    """Where the data begins, and that the pages are described in ordinary memory; version 1.4."""
    head = struct.pack("<16s16s16sIHH", b"NVDIMM_PFN_INFO", b"k3gate emulated.", b"", 0, 1, 4)
    pages = (size - _DATA_AT) // 4096
    head += struct.pack("<QQIIIIIH", _DATA_AT, pages, _PAGES_IN_RAM, 0, 0, 2 << 20, 4096, 64)
    head = head.ljust(4096 - 8, b"\0")
    return head + struct.pack("<Q", _fletcher(head + bytes(8)))


def _fletcher(data: bytes) -> int:
    low = high = 0
    for (word,) in struct.iter_unpack("<I", data):
        low = (low + word) % (1 << 32)
        high += low
    return (high << 32 | low) % (1 << 64)
