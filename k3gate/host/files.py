"""Bounded reading of small files below a root; with archive.py the only place of host/ that opens files.

The root is "/", a folder with the files of another machine, or an archive of such a folder. Within a capture
symbolic links are followed as if the root were "/", so that no link leads out of it; sizes, link counts and
folder lengths are bounded; devices, pipes and sockets are never opened for reading.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from k3gate import documents
from k3gate.errors import UsageError
from k3gate.records import State

SMALL = 64 * 1024
LARGE = 16 * 1024 * 1024
ENTRIES = 65_536
LINKS = 40

SMART_LOGS = "smart-logs"
"""Where a capture keeps what drives answered; no machine has a file there."""

GPU_ANSWERS = "nvml.json"
"""Where a capture keeps what the library of GPUs answered, see nvml.py."""
PCI_NAMES = "pci.ids"
"""Where a capture keeps the names of its devices on PCI, see pci_ids.py."""
SMI_ANSWERS = "nvidia-smi-q.xml"
"""What `nvidia-smi -q -x` printed, as people save it beside other files of a machine."""

TABLE = "sys/firmware/dmi/tables/DMI"
ENTRY_POINT = "sys/firmware/dmi/tables/smbios_entry_point"
# A firmware table that was saved on its own, as people and our own tools name it, with what points to it.
_SAVED = {
    TABLE: ("DMI.bin", "DMI.reconstructed.bin"),
    ENTRY_POINT: ("smbios_entry_point.bin", "smbios_entry_point.reconstructed.bin"),
}

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ENODATA, errno.ENOSYS})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


@frozen
class Reading:
    """What became of reading one file: its text (stripped, escapes for what is not UTF-8), or why not."""

    source: str
    text: str | None
    state: State
    reason: str | None = None


class Root:
    """A directory that stands for "/". Paths are relative to it, written without a leading slash."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.path.realpath(path)
        self.live = self.path == "/"
        self.refused: Mapping[str, int] = {}
        """Of a capture: paths that the machine refused to let be read, with the error numbers."""
        self._resolved: dict[str, str] = {"": ""}
        try:
            # The dot asks whether what lies in the folder may be looked for.
            os.stat(f"{path}/.")  # noqa: PTH116  # pathlib drops the dot
        except (OSError, ValueError) as error:
            raise unusable(path, error) from None

    def raw(self, relative: str, limit: int = SMALL, *, head: bool = False) -> bytes:
        """The content of a regular file; `OSError` EFBIG beyond `limit` bytes unless its `head` will do."""
        if relative in self.refused:
            raise OSError(self.refused[relative], os.strerror(self.refused[relative]))
        parts: list[bytes] = []
        size = 0
        descriptor = self._open(relative)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            while size <= limit:
                part = os.read(descriptor, min(65_536 if size else 4_096, limit + 1 - size))
                if not part:
                    break
                parts.append(part)
                size += len(part)
        finally:
            os.close(descriptor)
        raw = b"".join(parts)
        if size > limit:
            if not head:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            raw = raw[:limit]
        return raw

    def read(self, relative: str, limit: int = SMALL, *, head: bool = False) -> Reading:
        """Reads text; never raises for what the file system or the file holds."""
        try:
            raw = self.raw(relative, limit, head=head)
        except (OSError, ValueError) as error:
            state, reason = explain(error)
            return Reading(relative, None, state, reason)
        return Reading(relative, _text(raw), State.OK)

    def line(self, relative: str) -> str | None:
        """The text of a small file, for what is read a thousand times; None if unreadable."""
        try:
            raw = self.raw(relative)
        except (OSError, ValueError):
            return None
        return _text(raw)

    def exists(self, relative: str) -> bool:
        """Whether something is there: a file, a folder or a link that leads somewhere within the root."""
        try:
            os.lstat(self._full(relative))
        except (OSError, ValueError):
            return False
        return True

    def names(self, relative: str) -> tuple[str, ...]:
        """The names in a folder, sorted; empty where it cannot be listed; at most `ENTRIES` of them."""
        found: list[str] = []
        try:
            with os.scandir(self._full(relative)) as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) >= ENTRIES:
                        break
        except (OSError, ValueError):
            return ()
        return tuple(sorted(found))

    def folder(self, relative: str) -> bool:
        """Whether a folder is there, perhaps by way of links."""
        try:
            return Path(self._full(relative)).is_dir()
        except (OSError, ValueError):
            return False

    def link(self, path: str) -> str | None:
        """Where the symbolic link at `path`, which holds no other link, leads to; None if it is none."""
        full = f"{self.path}/{path}"
        if not stat.S_ISLNK(os.lstat(full).st_mode):
            return None
        return str(Path(full).readlink())

    def real(self, relative: str) -> str | None:
        """`relative` without links, below the root again; None where it leads nowhere."""
        try:
            return self._resolve(relative)
        except (OSError, ValueError):
            return None

    def smart_log(self, controller: str) -> bytes:
        """The SMART log of an NVMe controller ("nvme0"); of a capture, the bytes that were kept of it."""
        if not self.live:
            return self.raw(f"{SMART_LOGS}/{controller}")
        from k3gate.host import smart

        return smart.ask(f"/dev/{controller}")

    def gpu_answers(self) -> bytes:
        """What NVIDIA's library tells of the GPUs, see nvml.py; of a capture, what was kept of it."""
        from k3gate.host import nvidia_smi, nvml

        if self.live:
            return nvml.write(nvml.ask_apart())
        try:
            return self.raw(GPU_ANSWERS, nvml.BYTES)
        except FileNotFoundError:
            return nvml.write(nvidia_smi.parse(self.raw(SMI_ANSWERS, nvidia_smi.BYTES)))

    def _full(self, relative: str) -> str:
        return f"/{relative}" if self.live else f"{self.path}/{self._resolve(relative)}"

    def _open(self, relative: str) -> int:
        if self.live:
            return os.open(f"/{relative}", _FLAGS)
        folder, _, name = relative.rpartition("/")
        try:
            return os.open(f"{self.path}/{self._resolve(folder)}/{name}", _FLAGS | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        return os.open(f"{self.path}/{self._resolve(relative)}", _FLAGS | os.O_NOFOLLOW)

    def _resolve(self, relative: str) -> str:
        """`relative` without links, still relative; one lstat for each folder not seen before."""
        known = self._resolved.get(relative)
        if known is None:
            folder, _, name = relative.rpartition("/")
            known = self._step(self._resolve(folder) if folder else "", name, [LINKS])
            self._resolved[relative] = known
        return known

    def _step(self, base: str, name: str, links: list[int]) -> str:
        if name in ("", "."):
            return base
        if name == "..":
            return base.rpartition("/")[0]
        path = f"{base}/{name}" if base else name
        target = self.link(path)
        if target is None:
            return path
        links[0] -= 1
        if links[0] < 0:
            raise OSError(errno.ELOOP, "too many symbolic links")
        if target.startswith("/"):
            base = ""
        for part in target.split("/"):
            base = self._step(base, part, links)
        return base


class FirmwareTable(Root):
    """A folder in which a firmware table lies by itself: it is read as if it lay where the kernel shows it."""

    def raw(self, relative: str, limit: int = SMALL, *, head: bool = False) -> bytes:
        """As of a folder; the table and what points to it come from the top of the folder."""
        return super().raw(self._saved(relative), limit, head=head)

    def exists(self, relative: str) -> bool:
        """As of a folder."""
        return super().exists(self._saved(relative))

    def _saved(self, relative: str) -> str:
        found = (name for name in _SAVED.get(relative, ()) if super(FirmwareTable, self).exists(name))
        return next(found, relative)


def open_root(place: str | Path) -> Root:
    """The root that `place` stands for: a folder, a saved firmware table, or an archive; else `UsageError`."""
    try:
        folder = stat.S_ISDIR(Path(place).stat().st_mode)
    except (OSError, ValueError) as error:
        raise unusable(place, error) from None
    if not folder:
        from k3gate.host import archive

        return archive.ArchiveRoot(place)
    root = Root(place)
    if not root.live and not root.exists("sys") and any(root.exists(name) for name in _SAVED[TABLE]):
        return FirmwareTable(place)
    return root


def unusable(place: str | Path, error: OSError | ValueError) -> UsageError:
    """What is wrong with a place that is to be the root of a machine, and what to do, in one line."""
    shown = documents.printable(str(place)).replace("\n", "\\n")
    number = error.errno if isinstance(error, OSError) else None
    if number in _FORBIDDEN:
        return UsageError(
            f"{shown}: it may not be read: permission denied; read it as root, or give a copy of it"
        )
    if number == errno.ELOOP:
        what = "a symbolic link that leads back to itself"
    elif number in (None, errno.ENOENT, errno.ENOTDIR):
        what = "no such folder"
    else:
        what = os.strerror(number or 0).lower()
    return UsageError(f"{shown}: {what}; give the root of a machine, such as / or a capture of one")


def _text(raw: bytes) -> str:
    # Some kernels and all device trees end their strings with NUL bytes.
    return documents.decode(raw.rstrip(b"\0 \t\r\n")).strip()


def explain(error: OSError | ValueError) -> tuple[State, str]:
    """State and reason of a failed reading, for a person."""
    if isinstance(error, ValueError):
        return State.FAILED, f"implausible: {error}"
    if error.errno in _ABSENT:
        return State.NOT_PRESENT, "absent"
    if error.errno in _FORBIDDEN:
        return State.NOT_PERMITTED, "not permitted; readable by root"
    if error.errno in (errno.ETIMEDOUT, errno.EAGAIN):
        return State.FAILED, "timed out"
    return State.FAILED, f"could not be read: {os.strerror(error.errno) if error.errno else error}"
