"""A machine as one file that travels: the raw files that host/ read, without what names the one machine.

    capture.json      {"kind", "version", "k3gate", "machine_id", "refused": {path: name of the error},
                       "storage": [the paths that were asked about]}
    syscalls.json     what only the kernel could tell, see syscalls.py
      sys/..., proc/... the files that were read, the links on the way to them, and folders that were listed

Reading it gives the same inventory but for what changes from reading to reading. It never holds an inventory of
ours: a later version reads more out of the same files.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from k3gate import __version__, documents
from k3gate.atomic import replacing
from k3gate.errors import UsageError
from k3gate.host import archive, inventory, pci, pci_ids, redaction, syscalls
from k3gate.host.files import GPU_ANSWERS, LARGE, PCI_NAMES, SMALL, SMART_LOGS, Root, open_root
from k3gate.records import Inventory

_OWN = frozenset({syscalls.ANSWERS, syscalls.CAPTURE})
_HOST_NAMES = ("proc/sys/kernel/hostname", "etc/hostname")
# Where these errors come from is seen from the files themselves: nothing is there, or links that lead nowhere.
_PLAIN = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_HEAD = 64 * 1024
_NAMES_OF_ALL = "usr/"


@frozen
class Summary:
    """What was written; `differs`: fields of the inventory that the capture does not give back."""

    bytes: int
    files: int
    differs: tuple[str, ...]


class Recorder(Root):
    """Reads below another root, each file once, and keeps what was read, listed, found there and followed."""

    def __init__(self, base: Root) -> None:
        self.path = base.path
        self.live = base.live
        self.refused = {}
        self._resolved = {"": ""}
        self._base = base
        self._read: dict[str, bytes | OSError] = {}
        self._size = 0
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self.failures: dict[str, str] = {}

    def raw(self, relative: str, limit: int = SMALL, *, head: bool = False) -> bytes:
        """As of the other root; each file is read whole and once, so that what is kept is what was told."""
        found = self._read.get(relative)
        if found is None:
            found = self._read[relative] = self._fetch(relative)
        if isinstance(found, OSError):
            raise OSError(found.errno, found.strerror)
        if len(found) > limit and not head:
            raise OSError(errno.EFBIG, f"more than {limit} bytes")
        return found[:limit]

    def smart_log(self, controller: str) -> bytes:
        """As of the other root; kept as a file."""
        path = f"{SMART_LOGS}/{controller}"
        try:
            found = self.files[path] = self._base.smart_log(controller)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0)
            if name is not None and error.errno not in _PLAIN:
                self.failures[path] = name
            raise
        return found

    def gpu_answers(self) -> bytes:
        """As of the other root; kept as a file, never as what nvidia-smi printed, which holds serial numbers."""
        found = self.files[GPU_ANSWERS] = self._base.gpu_answers()
        return found

    def exists(self, relative: str) -> bool:
        """As of the other root."""
        there = self._base.exists(relative)
        if there:
            self._place(relative)
        return there

    def names(self, relative: str) -> tuple[str, ...]:
        """As of the other root; folders and links in the folder are kept, files only where they are read."""
        found = self._base.names(relative)
        if found:
            real = self._place(relative)
            for name in found:
                below = f"{real}/{name}" if real else name
                try:
                    link = self.link(below)
                except OSError:
                    continue
                if link is None and self._base.folder(below):
                    self.folders.add(below)
        return found

    def folder(self, relative: str) -> bool:
        """As of the other root."""
        return self._base.folder(relative)

    def link(self, path: str) -> str | None:
        """As of the other root, except for the number of this process."""
        if path == "proc/self":
            return None
        target = self._base.link(path)
        if target is not None:
            self.links[path] = target
        return target

    def _fetch(self, relative: str) -> bytes | OSError:
        try:
            if relative in self.refused:
                number = self.refused[relative]
                raise OSError(number, os.strerror(number))
            content = self._base.raw(relative, LARGE, head=True)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0)
            if name is not None and error.errno not in _PLAIN and relative not in _OWN:
                self.failures[relative] = name
                if self._base.exists(relative):
                    self._place(relative)
            return error
        self._size += len(content)
        if self._size > archive.KEPT_BYTES:
            raise UsageError(
                f"{documents.printable(self.path)}: more than {archive.KEPT_BYTES // 2**20} MiB of files were "
                "read; this is no machine: give the folder that stands for /"
            )
        if relative == syscalls.MACHINE_ID:
            # The identity of the machine goes into the capture only as our salted one.
            if not syscalls.is_machine_id(content):
                self.files[relative] = b"not a machine id\n"
        elif relative not in _OWN:
            self.files[self._real(relative)] = content
        return content

    def _place(self, relative: str) -> str:
        """Notes that something is there; a file that was only looked for is kept empty."""
        real = self._real(relative)
        if self._base.folder(relative):
            self.folders.add(real)
        elif real not in self.links and real != syscalls.MACHINE_ID:
            self.files.setdefault(real, b"")
        return real

    def _real(self, relative: str) -> str:
        try:
            return self._resolve(relative)
        except OSError:  # a link to nowhere, or a path that stands for another file
            return relative


def write(target: Path, place: str | Path = "/", paths: Sequence[str] = ()) -> Summary:
    """Captures the machine at `place` into the file `target`, whole or not at all; `UsageError` if it cannot.

    `paths`: where a checkpoint lies, absolute and without links; their mounts are kept.
    """
    raw, read, files = pack(place, paths)
    captured = inventory.read(archive.ArchiveRoot(target, raw))
    differs = _differences(inventory.stable(read), inventory.stable(captured))
    with replacing(target) as file:
        file.write(raw)
    return Summary(len(raw), files, tuple(differs))


def pack(place: str | Path = "/", paths: Sequence[str] = ()) -> tuple[bytes, Inventory, int]:
    """The bytes of a capture, the inventory that was read for it, and the number of files in it."""
    recorder = Recorder(open_root(place))
    read = inventory.read(recorder, paths=paths)
    names = _names(recorder)
    asked = read.storage.paths if read.storage else ()
    names.learn_mounts(
        documents.decode(recorder.files.get("proc/self/mountinfo", b"")),
        {path.mount_point for path in asked if path.mount_point is not None},
    )
    members: dict[str, bytes | str | None] = {}
    for path in recorder.folders:
        if path.startswith(_NAMES_OF_ALL):
            continue
        members[names.path(path, folder=True)] = None
    for path, target in recorder.links.items():
        if path.startswith(_NAMES_OF_ALL):
            continue
        members[names.path(path, folder=True)] = target
    for path, content in recorder.files.items():
        if path.rpartition("/")[2] == PCI_NAMES:
            # Of the long list of the PCI ID project the lines of this machine's devices, where an archive has a place.
            text = content.decode("utf-8", "surrogateescape")
            own = pci_ids.subset(text, pci.ids(read.pci or ()))
            members[PCI_NAMES] = own.encode("utf-8", "surrogateescape")
            continue
        members[names.path(path)] = redaction.clean(path, content, names)
    refused = {names.path(path): name for path, name in sorted(recorder.failures.items())}
    head: dict[str, bytes] = {
        syscalls.CAPTURE: _json(
            {
                "kind": syscalls.KIND,
                "version": syscalls.VERSION,
                "k3gate": __version__,
                "machine_id": read.machine.id,
                "refused": refused,
                **({"storage": [names.apply(path.path) for path in asked]} if asked else {}),
            }
        )
    }
    answers = syscalls.answers_of(read)
    if answers:
        head[syscalls.ANSWERS] = _json(answers)
    kept = {path: members[path] for path in _wanted(members)}
    return _archive({**head, **kept}), read, len(head) + sum(isinstance(m, bytes) for m in kept.values())


def is_capture(path: str | Path) -> bool:
    """Whether the file is a capture that k3gate wrote; reads its beginning only."""
    try:
        with Path(path).open("rb") as file:
            head = zlib.decompressobj(wbits=31).decompress(file.read(_HEAD), _HEAD)
        with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as made:
            first = made.next()
            content = (
                made.extractfile(first) if first is not None and first.name == syscalls.CAPTURE else None
            )
            return content is not None and f'"kind": "{syscalls.KIND}"'.encode() in content.read(_HEAD)
    except (OSError, ValueError, zlib.error, tarfile.TarError):
        return False


def _names(recorder: Recorder) -> redaction.Names:
    # Asked of the root below: the names are looked for and not kept.
    root = recorder._base
    hosts = [line for path in _HOST_NAMES if (line := root.line(path))]
    if not root.live:
        return redaction.Names(hosts)
    return redaction.Names([*hosts, os.uname().nodename], _users(root.line("proc/self/loginuid")))


def _users(login: str | None) -> set[str]:
    """The names of who runs this, also through sudo; `login`: the number of the user who logged in."""
    import pwd

    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "DOAS_USER")}
    for number in (str(os.getuid()), os.environ.get("SUDO_UID"), os.environ.get("PKEXEC_UID"), login):
        # A container runs under a number without a name, and who did not log in has none at all.
        with suppress(KeyError, ValueError, OverflowError):
            names.add(pwd.getpwuid(int(number or "")).pw_name)
    return names - {""}


def _wanted(members: Iterable[str]) -> list[str]:
    """The paths in order, without folders that stand for themselves by what lies in them, and unusable names."""
    every = set(members)
    parents = {path[:end] for path in every for end in range(len(path)) if path[end] == "/"}
    return sorted(
        path
        for path in every - parents - {""}
        if "\n" not in path
        and "\0" not in path
        and len(path) < archive.NAME
        and path.count("/") < archive.DEPTH
    )


def _archive(members: dict[str, bytes | str | None]) -> bytes:
    """A tar.gz whose bytes depend on nothing but names and contents. None is a folder, text a symbolic link."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as made,
    ):
        for path, content in members.items():
            member = tarfile.TarInfo(path)
            if isinstance(content, bytes):
                member.size = len(content)
            elif content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            else:
                member.type, member.linkname = tarfile.SYMTYPE, content
            made.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return buffer.getvalue()


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode("ascii")


def _differences(live: Any, captured: Any, path: str = "") -> list[str]:
    """The dotted names of what is not the same in both."""
    if isinstance(live, dict) and isinstance(captured, dict):
        return [
            name
            for key in sorted({*live, *captured})
            for name in _differences(live.get(key), captured.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if live == captured else [path]
