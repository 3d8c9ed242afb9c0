"""A captured machine in a tar archive, read into memory and never unpacked; such files come from strangers.

Everything is bounded before it is read: the file, what it decompresses to, the number of members, the bytes
that are read for one member's headers, and what is kept in memory in all. What breaks a bound, or is no whole
archive, is refused in one line. Of a name that stands twice the last counts.
"""

from __future__ import annotations

import errno
import io
import lzma
import os
import stat
import tarfile
import zlib
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from k3gate import documents
from k3gate.errors import UsageError
from k3gate.host.decompression import RefusedError, Stream
from k3gate.host.files import (
    ENTRIES,
    GPU_ANSWERS,
    LARGE,
    PCI_NAMES,
    SMALL,
    SMART_LOGS,
    SMI_ANSWERS,
    Root,
    unusable,
)

FOLDERS = frozenset({"sys", "proc", "etc", "run", "dev", SMART_LOGS})
FILES = frozenset({".dockerenv", "syscalls.json", "capture.json", GPU_ANSWERS, SMI_ANSWERS, PCI_NAMES})
DISK_BYTES = 2**28
KEPT_BYTES = 2**28
MEMBERS = 200_000
NAME = 4096
DEPTH = 64
# For one member: its header and those that carry a long name or a table of attributes.
HEADER_BYTES = 64 * 1024
# For all members together, besides one block each: such tables are slow to take apart.
EXTRA_BYTES = 2**26
# About what Python needs for an entry besides the bytes of its name and content.
_ENTRY_BYTES = 300
_END = bytes(tarfile.BLOCKSIZE)


@frozen
class _File:
    """A regular file: its content up to `LARGE` bytes, and its size. None: the archive does not hold it plainly."""

    content: bytes | None
    size: int


# A folder is a dictionary by name; a symbolic link is the text of where it leads to.
_Node = dict[str, "_Node"] | _File | str
_Folder = dict[str, _Node]


class ArchiveRoot(Root):
    """The root of a machine whose files lie in a tar archive, plain or compressed by gzip, bzip2 or xz."""

    def __init__(self, path: str | Path, raw: bytes | None = None) -> None:
        """The archive at `path`, or the bytes that are to be written there."""
        self.path = os.path.realpath(path)
        self.live = False
        self.refused = {}
        self._resolved = {"": ""}
        self._tree: _Folder = {}
        shown = documents.printable(str(path)).replace("\n", "\\n")
        try:
            with _plain_file(self.path) if raw is None else io.BytesIO(raw) as file:
                self._tree = _Reader(file).tree()
        except RefusedError as error:
            raise UsageError(f"{shown}: {error}; give the root of a machine, or a capture of one") from None
        except OSError as error:
            raise unusable(path, error) from error

    def raw(self, relative: str, limit: int = SMALL, *, head: bool = False) -> bytes:
        """As of a folder."""
        if relative in self.refused:
            raise OSError(self.refused[relative], os.strerror(self.refused[relative]))
        node = self._node(self._resolve(relative))
        if not isinstance(node, _File) or node.content is None:
            raise OSError(errno.EINVAL, "not a regular file")
        if node.size > limit and not head:
            raise OSError(errno.EFBIG, f"more than {limit} bytes")
        return node.content[:limit]

    def exists(self, relative: str) -> bool:
        """As of a folder."""
        try:
            self._node(self._resolve(relative))
        except OSError:
            return False
        return True

    def names(self, relative: str) -> tuple[str, ...]:
        """As of a folder."""
        try:
            node = self._node(self._resolve(relative))
        except OSError:
            return ()
        return tuple(sorted(list(node)[:ENTRIES])) if isinstance(node, dict) else ()

    def folder(self, relative: str) -> bool:
        """As of a folder."""
        try:
            return isinstance(self._node(self._resolve(relative)), dict)
        except OSError:
            return False

    def link(self, path: str) -> str | None:
        """As of a folder."""
        node = self._node(path)
        return node if isinstance(node, str) else None

    def _node(self, path: str) -> _Node:
        """What lies at a path that holds no links."""
        node: _Node = self._tree
        for name in path.split("/") if path else ():
            if not isinstance(node, dict):
                raise OSError(errno.ENOTDIR, "not a folder")
            if name not in node:
                raise OSError(errno.ENOENT, "absent")
            node = node[name]
        return node


def _plain_file(path: str) -> BinaryIO:
    """The open file; a device or a pipe is never waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode):
            raise RefusedError("neither a folder nor a file")
        if told.st_size > DISK_BYTES:
            raise RefusedError(f"larger than a capture may be ({DISK_BYTES // 2**20} MiB)")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


class _Member(tarfile.TarInfo):
    """A member of which only what is needed here is decoded: thousands must be read in under a second."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        size, kind = buf[124:136].strip(b" \0"), bytes(buf[156:157])
        if len(buf) != tarfile.BLOCKSIZE or kind not in _COMMON or not size.isdigit() or buf[0] == 0:
            return super().frombuf(buf, encoding, errors)
        told = buf[148:156].strip(b" \0")
        if not told.isdigit() or int(told, 8) != 256 + sum(buf[:148]) + sum(buf[156:]):
            return super().frombuf(buf, encoding, errors)
        member = cls()
        name, prefix = buf[:100], buf[345:500]
        if prefix[0]:
            name = prefix.split(b"\0", 1)[0] + b"/" + name
        member.name = name.split(b"\0", 1)[0].decode(encoding, errors)
        member.type = kind
        member.size = int(size, 8)
        if kind == tarfile.SYMTYPE:
            member.linkname = buf[157:257].split(b"\0", 1)[0].decode(encoding, errors)
        elif kind == tarfile.DIRTYPE:
            member.name = member.name.rstrip("/")
        return member


_COMMON = frozenset({tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE})


class _Reader:
    """Reads an archive once, from front to back."""

    def __init__(self, file: BinaryIO) -> None:
        self._stream = Stream(file)
        self._folders: _Folder = {}
        self._kept = 0
        self._extra = 0
        # Most files of sysfs hold one of a few texts; each text is kept once.
        self._contents: dict[bytes, bytes] = {}

    def tree(self) -> _Folder:
        """All that is kept of the archive; raises `RefusedError`."""
        try:
            self._stream.allow(HEADER_BYTES)
            archive = tarfile.TarFile(fileobj=self._stream, mode="r", tarinfo=_Member, encoding="utf-8")
            for _ in range(MEMBERS + 1):
                self._stream.allow(HEADER_BYTES)
                member = archive.next()
                if member is None:
                    break
                self._extra += HEADER_BYTES - self._stream.left - tarfile.BLOCKSIZE
                if self._extra > EXTRA_BYTES:
                    raise RefusedError(f"holds more than {EXTRA_BYTES // 2**20} MiB of headers")
                # Else the archive object would keep every member, and headers for all members would add up.
                archive.members = []  # type: ignore[attr-defined]  # the stubs leave `members` out
                archive.pax_headers = {}
                self._take(member)
            else:
                raise RefusedError(f"holds more than {MEMBERS} files")
        except EOFError:
            raise RefusedError("cut off: the archive is not whole") from None
        except (tarfile.TarError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise RefusedError(self._what_is_wrong()) from None
        except RefusedError:
            raise
        except Exception:
            # What the tar module stumbles over where a header is made up: numbers, names, nesting.
            raise RefusedError("not a readable tar archive") from None
        if self._stream.last != _END:
            raise RefusedError(self._what_is_wrong())
        return self._folders

    def _what_is_wrong(self) -> str:
        return "not a tar archive" if not self._folders else "damaged: the archive is not whole"

    def _take(self, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts or not (parts[0] in FOLDERS or (len(parts) == 1 and parts[0] in FILES)):
            return
        node: _Node | None
        if member.isdir():
            node = {}
        elif member.issym():
            node = _checked(member.linkname)
            self._charge(len(node))
        elif member.islnk():
            node = self._linked(_parts(member.linkname))
        elif member.isreg():
            node = self._content(member)
        else:  # a device or a pipe
            node = None
        self._put(parts, node)

    def _content(self, member: tarfile.TarInfo) -> _File:
        if member.sparse is not None:
            return _File(None, 0)
        self._stream.seek(member.offset_data)
        size = min(member.size, LARGE)
        self._stream.allow(size)
        content = self._stream.read(size)
        if len(content) < size:
            raise EOFError
        if content not in self._contents:
            self._charge(size)
        return _File(self._contents.setdefault(content, content), member.size)

    def _linked(self, parts: list[str]) -> _Node | None:
        """The file that a hard link is another name of; it stands before the link."""
        node: _Node | None = self._folders
        for name in parts:
            node = node.get(name) if isinstance(node, dict) else None
        return node if isinstance(node, _File | str) else None

    def _put(self, parts: list[str], node: _Node | None) -> None:
        folder: _Folder = self._folders
        for name in parts[:-1]:
            below = folder.get(name)
            if not isinstance(below, dict):
                self._charge(_ENTRY_BYTES + len(name))
                below = folder[name] = {}
            folder = below
        name = parts[-1]
        if node is None:
            folder.pop(name, None)
        elif not (isinstance(node, dict) and isinstance(folder.get(name), dict)):
            self._charge(_ENTRY_BYTES + len(name))
            folder[name] = node

    def _charge(self, size: int) -> None:
        self._kept += size
        if self._kept > KEPT_BYTES:
            raise RefusedError(f"holds more than {KEPT_BYTES // 2**20} MiB of files")


def _parts(name: str) -> list[str]:
    """The parts of a member's name, as if the archive had been made in "/"."""
    parts = [part for part in _checked(name).split("/") if part not in ("", ".")]
    if ".." in parts:
        raise RefusedError("holds a name that leads out of it")
    if len(parts) > DEPTH:
        raise RefusedError(f"holds a folder more than {DEPTH} deep")
    return parts


def _checked(name: str) -> str:
    if len(name) > NAME:
        raise RefusedError(f"holds a name of more than {NAME} characters")
    if "\0" in name or "\n" in name:
        raise RefusedError("holds a name with a line break or NUL in it")
    return name
