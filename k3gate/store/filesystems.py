"""Which file system holds a path, and whether SQLite's write-ahead log works on it."""

from __future__ import annotations

import re
from pathlib import Path

_NETWORK = re.compile(
    r"nfs\d*|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2|ncpfs|virtiofs"
    r"|fuse\.(sshfs|glusterfs|s3fs|rclone|gcsfuse|ceph.*|smbnetfs|cifs.*|nfs.*|juicefs|mount.*)"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


def filesystem_type(path: Path, mountinfo: str) -> str | None:
    """The type of the mount that holds the absolute `path` ("ext4", "nfs4"); None where no mount does.

    `mountinfo`: text of /proc/self/mountinfo (proc(5)); of mounts at one point the last one is on top.
    """
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind:
            continue
        point = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kind[0])
    return best[1] if best else None


def is_network(kind: str | None) -> bool:
    """Whether a file system of this type is shared between hosts, where WAL's shared memory does not work."""
    return kind is not None and _NETWORK.fullmatch(kind) is not None


def read_mountinfo() -> str:
    """The mounts of this process; empty where the kernel does not show them."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
