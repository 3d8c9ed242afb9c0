"""The mounts of a process, as proc(5) writes them in mountinfo: which of them holds a path, and of what kind it is."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from attrs import frozen

_LINES = 20_000
_NETWORK = re.compile(
    r"nfs\d*|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2|ncpfs|virtiofs"
    r"|fuse\.(sshfs|glusterfs|s3fs|rclone|gcsfuse|ceph.*|smbnetfs|cifs.*|nfs.*|juicefs|mount.*)"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


@frozen
class Mount:
    """One line. `number`: MAJOR:MINOR of what is mounted, 0:N where it is no block device; `source`: a name alone."""

    id: str
    number: str
    point: str
    file_system: str
    source: str
    options: tuple[str, ...]


def parse(mountinfo: str) -> tuple[Mount, ...]:
    """The mounts in the order of the text; of several at one point the last one is on top."""
    found = []
    for line in mountinfo.splitlines()[:_LINES]:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind:
            continue
        options = ",".join([*fields[5:6], *kind[2:3]])
        source = _plain(kind[1]) if len(kind) > 1 else ""
        found.append(
            Mount(
                fields[0],
                fields[2],
                _plain(fields[4]),
                kind[0],
                source,
                tuple(options.split(",") if options else ()),
            )
        )
    return tuple(found)


def holding(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that holds the absolute `path`, without links in it; None where none does."""
    own = PurePosixPath(path)
    best: tuple[int, Mount] | None = None
    for mount in mounts:
        point = PurePosixPath(mount.point)
        if own.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), mount)
    return best[1] if best else None


def is_network(kind: str | None) -> bool:
    """Whether a file system of this type is shared between hosts."""
    return kind is not None and _NETWORK.fullmatch(kind) is not None


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
