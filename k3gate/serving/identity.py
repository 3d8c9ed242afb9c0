"""Whether what a server has open is the checkpoint that was inspected. Pure, but for the headers of strange files.

A file is known by device, inode, size and time of change: names prove nothing. Another file with the same header may
hold other weights, which nobody compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from k3gate.documents import printable
from k3gate.model.checkpoint import gguf, safetensors
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.readers import LocalReader
from k3gate.model.checkpoint.tensors import Header
from k3gate.serving.processes import SeenFile

_READERS = {".gguf": gguf.read, ".safetensors": safetensors.read}
_OTHER_ENDINGS = (".bin", ".pt", ".pth")
_LEAST_BYTES, _LEAST_OTHER_BYTES = 4096, 64 << 20
_MAGIC = b"GGUF"


@frozen
class WantedFile:
    """A file of the inspected checkpoint."""

    path: str
    device: int
    inode: int
    bytes: int
    changed_ns: int
    header: str


@frozen
class Served:
    """`ok`: whether the server has the inspected files open, None: not seen; and why, in a sentence."""

    ok: bool | None
    detail: str


def wanted(found: FileSet) -> tuple[WantedFile, ...]:
    """The files of a checkpoint of this machine as they are now; `OSError` where one is gone."""
    files = []
    for part in found.parts:
        path = part.path
        there = path.stat()
        header = _header(path)
        files.append(
            WantedFile(
                str(path.resolve()),
                there.st_dev,
                there.st_ino,
                there.st_size,
                there.st_mtime_ns,
                "" if header is None else header.digest,
            )
        )
    return tuple(files)


def read(rows: Iterable[Mapping[str, Any]]) -> tuple[WantedFile, ...]:
    """Of the parameters of a case."""
    return tuple(WantedFile(**row) for row in rows)


def weights(one: SeenFile, known: Mapping[tuple[int, int], object]) -> bool:
    """Whether a file holds weights: it is one of the checkpoint's, is called so, or begins like a GGUF."""
    if (one.device, one.inode) in known:
        return True
    if one.bytes < _LEAST_BYTES or one.path.endswith(".so"):
        return False
    ending = Path(one.path).suffix.lower()
    if ending in _READERS or (ending in _OTHER_ENDINGS and one.bytes >= _LEAST_OTHER_BYTES):
        return True
    with contextlib.suppress(OSError), open(one.path, "rb") as file:
        return file.read(4) == _MAGIC
    return False


def judge(inspected: Iterable[WantedFile], seen: Iterable[SeenFile]) -> Served:
    """All files of the checkpoint seen open or mapped, as they were inspected, and no other weights beside them."""
    own = {(one.device, one.inode): one for one in inspected}
    found: dict[tuple[int, int], SeenFile] = {}
    others: dict[tuple[int, int], SeenFile] = {}
    for one in seen:
        if (one.device, one.inode) in own:
            found[one.device, one.inode] = one
        elif weights(one, own):
            others[one.device, one.inode] = one
    changed = [
        one.path
        for key, one in found.items()
        if (one.bytes, one.changed_ns) != (own[key].bytes, own[key].changed_ns)
    ]
    if changed:
        return Served(False, f"{_name(changed[0])} was changed after it was inspected.")
    if not found and others:
        return _other(list(others.values()), own.values())
    if not found:
        return Served(None, "No file of weights was seen open in its processes.")
    if len(found) < len(own):
        return Served(
            None, f"{len(found)} of the {len(own)} inspected files were seen open in its processes."
        )
    if others:
        beside = ", ".join(sorted(_name(one.path) for one in others.values())[:3])
        return Served(None, f"Other weights were open too: {beside}. Which of them answers cannot be told.")
    files = "the inspected file" if len(own) == 1 else f"all {len(own)} inspected files"
    return Served(True, f"Its processes had {files} open, by device and inode, and no other weights.")


def _other(others: list[SeenFile], own: Iterable[WantedFile]) -> Served:
    name = _name(others[0].path)
    headers = {(one.bytes, one.header) for one in own if one.header}
    for one in others:
        header = _header(Path(one.path))
        if header is None or (one.bytes, header.digest) not in headers:
            return Served(
                False, f"Its processes had {_name(one.path)} open, and not the inspected checkpoint."
            )
    return Served(
        None,
        f"Its processes had {name} open, which has the inspected header and is another file: its weights were not "
        "compared. Start it with the inspected path.",
    )


def _header(path: Path) -> Header | None:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        return None
    try:
        with LocalReader(path.parent).open(path.name) as source:
            return reader(source)
    except (OSError, ValueError):
        return None


def _name(path: str) -> str:
    return printable(Path(path).name)[:100]
