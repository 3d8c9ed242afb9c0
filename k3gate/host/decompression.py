"""A compressed file as a stream of bounded parts, for archives that come from strangers."""

from __future__ import annotations

import bz2
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol

TOTAL_BYTES = 2**30
_MEMORY_OF_XZ = 2**27
_PART = 256 * 1024


class RefusedError(Exception):
    """Why an archive is not read, in a few words."""


class _Decompressor(Protocol):
    """What bz2 and lzma offer."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib in the manner of bz2."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self._hungry = True

    @property
    def needs_input(self) -> bool:
        return self._hungry

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        found = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        # A full answer may have left more in the decompressor, which then comes without input.
        self._hungry = not self._zlib.unconsumed_tail and len(found) < max_length
        return found


class Stream(io.RawIOBase):
    """The decompressed bytes, forwards only: what the tar module wants of a file, with its bounds."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = b""
        self._at = 0  # in the buffer
        self._position = 0
        self.left = 0
        """Bytes that may still be read."""
        self.last = b""
        """The last header block that was read."""
        magic = file.read(6)
        file.seek(0)
        self._format = next((start for start in _FORMATS if magic.startswith(start)), None)
        self._decompressor = None if self._format is None else _FORMATS[self._format]()

    def allow(self, size: int) -> None:
        """From now on `size` bytes may be read; more are refused. Skipping does not count."""
        self.left = size

    def tell(self) -> int:
        """Bytes read or skipped."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Forwards to `offset`."""
        if whence != os.SEEK_SET or offset < self._position:
            raise RefusedError("not a readable tar archive")
        if offset > TOTAL_BYTES:
            raise RefusedError(f"unpacks to more than {TOTAL_BYTES // 2**30} GiB")
        while self._position < offset:
            self._fill()
            step = min(offset - self._position, len(self._buffer) - self._at)
            if step == 0:
                raise EOFError
            self._at += step
            self._position += step
        return offset

    def read(self, size: int = -1) -> bytes:
        """`size` bytes, fewer only at the end."""
        if not 0 <= size <= self.left:
            raise RefusedError("not a readable tar archive: a header without end")
        self.left -= size
        parts: list[bytes] = []
        missing = size
        while missing:
            self._fill()
            part = self._buffer[self._at : self._at + missing]
            if not part:
                break
            parts.append(part)
            self._at += len(part)
            self._position += len(part)
            missing -= len(part)
        if self._position > TOTAL_BYTES:
            raise RefusedError(f"unpacks to more than {TOTAL_BYTES // 2**30} GiB")
        found = parts[0] if len(parts) == 1 else b"".join(parts)
        if size == tarfile.BLOCKSIZE:
            self.last = found
        return found

    def _fill(self) -> None:
        """Puts bytes into an empty buffer; it stays empty at the end."""
        while self._at == len(self._buffer):
            self._at, self._buffer = 0, self._more()
            if not self._buffer and (self._decompressor is None or self._decompressor.eof):
                return

    def _more(self) -> bytes:
        engine = self._decompressor
        if self._format is None or engine is None:
            return self._file.read(_PART)
        data = b""
        if engine.eof:
            # Files that were compressed in pieces hold one stream after another.
            data = engine.unused_data or self._file.read(_PART)
            if not data.startswith(self._format[:2]):
                return b""
            engine = self._decompressor = _FORMATS[self._format]()
        elif engine.needs_input:
            data = self._file.read(_PART)
            if not data:
                raise EOFError
        return engine.decompress(data, _PART)


_FORMATS: dict[bytes, Callable[[], _Decompressor]] = {
    b"\x1f\x8b": _Gzip,
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_OF_XZ),
}
