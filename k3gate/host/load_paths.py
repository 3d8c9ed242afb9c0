"""What lies at a place that weights are to be loaded from: shards, or room for a file of our own.

Looks and opens nothing; writes and makes nothing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from k3gate.records import LoadFile, LoadPath

ENDINGS = (".safetensors", ".gguf")
MOST_FILES = 256
"""More would only make the plan long: a load is measured on a part of them."""
_DEEPEST = 3
"""Folders below the one that is named: a Hub's cache keeps its shards three levels down."""
_MOST_FOLDERS = 2000


def look(path: str, *, asked: bool = True) -> LoadPath:
    """What is at the absolute `path`, a file or a folder; links to files are followed, links to folders are not.

    Of a file, that one. Of a folder, the shards of the first folder that has some, itself first, in the order of
    their names.
    """
    place = Path(path)
    single = _file(place)
    if single is not None:
        return LoadPath(path, str(place.parent), (single,), asked=asked)
    files = _shards(place)
    room = _room(path)
    return LoadPath(
        path,
        path,
        files,
        free_bytes=None if room is None else room.f_bavail * room.f_frsize,
        read_only=bool(room and room.f_flag & os.ST_RDONLY),
        writable=os.access(path, os.W_OK | os.X_OK),
        asked=asked,
    )


def _room(path: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None


def _file(path: Path) -> LoadFile | None:
    try:
        found = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return None
    return LoadFile(str(path), found.st_size, found.st_dev, found.st_ino)


def _shards(folder: Path) -> tuple[LoadFile, ...]:
    level, seen = [folder], 0
    for _ in range(_DEEPEST + 1):
        below: list[Path] = []
        for here in level:
            seen += 1
            if seen > _MOST_FOLDERS:
                return ()
            try:
                entries = sorted(os.scandir(here), key=lambda entry: entry.name)
            except OSError:
                continue
            named = [entry for entry in entries if entry.name.endswith(ENDINGS) and entry.name.isprintable()]
            files = [file for entry in named[:MOST_FILES] if (file := _file(Path(entry.path))) is not None]
            if files:
                return tuple(files)
            below += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        level = below
    return ()
