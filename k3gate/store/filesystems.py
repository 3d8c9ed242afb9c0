"""Which file system holds a path; on one that hosts share, SQLite's write-ahead log does not work."""

from __future__ import annotations

from pathlib import Path

from k3gate import mounts


def filesystem_type(path: Path, mountinfo: str) -> str | None:
    """The type of the mount that holds the absolute `path` ("ext4", "nfs4"); None where no mount does.

    `mountinfo`: text of /proc/self/mountinfo (proc(5)).
    """
    mount = mounts.holding(str(path), mounts.parse(mountinfo))
    return mount.file_system if mount else None


def read_mountinfo() -> str:
    """The mounts of this process; empty where the kernel does not show them."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
