"""The header of a GGUF file: key-value pairs and tensors, every count checked before it is followed.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; sizes of the types as in ggml.c and in the
package gguf (GGML_QUANT_SIZES).
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any

from attrs import frozen

from k3gate.model.checkpoint.tensors import Header, Problems, Source, Tensor, shown
from k3gate.records import Severity

MAGIC = b"GGUF"
SWAPPED = b"FUGG"
VERSIONS = (2, 3)
LIMIT = 128 * 2**20
"""Bytes of a header that are read at most; arrays of numbers that are passed over do not count."""
MOST_PAIRS = 2**16
MOST_TENSORS = 2**17
MOST_TEXTS = 2**20
"""Texts of one array: a vocabulary has some hundred thousand."""
LONGEST_TEXT = 2**24
KEPT_ITEMS = 4096
MOST_AXES = 4
_CHUNK = 2**20
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Name, elements of a block and bytes of a block, by the number that the file holds."""

_SCALARS = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_STRING, _ARRAY = 8, 9


@frozen
class Passed:
    """An array that was passed over: of how many items, and of which kind of value."""

    items: int
    kind: int


def read(source: Source) -> Header:
    """The header of the file; what is wrong with it stands in its `problems`. `OSError` where reading fails.

    Of the metadata, arrays of texts and long arrays of numbers are not kept (`Passed`).
    """
    problems = Problems(source.name)
    cursor = _Cursor(source)
    tensors: list[Tensor] = []
    metadata: dict[str, object] = {}
    start = 0
    digest = ""
    try:
        _version(source.read(0, 8))
        cursor.take(8)
        counts = struct.unpack("<QQ", cursor.take(16))
        metadata = _pairs(cursor, counts[1], counts[0], problems)
        first = cursor.position
        start, tensors = _tensors(cursor, counts[0], metadata, problems)
        told = hashlib.sha256(source.read(first, cursor.position - first))
        # What a runtime goes by as well: of long arrays their length.
        told.update(
            repr(sorted(metadata.items(), key=lambda item: item[0])).encode("utf-8", "backslashreplace")
        )
        digest = told.hexdigest()
    except _RefusedError as refused:
        problems.add("header", str(refused))
    else:
        _check(source.size, start, tensors, _alignment(metadata), problems)
    return Header(source.name, source.size, "gguf", start, tuple(tensors), metadata, problems.told(), digest)


class _RefusedError(Exception):
    """The header cannot be read on; the text says why."""


class _Cursor:
    """Reads on through the file, never beyond its end and never more than the limit in all."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = b""
        self._at = 0
        self._behind = 0
        self._taken = 0
        self.texts = 0
        """Texts in arrays so far."""

    @property
    def position(self) -> int:
        return self._behind + self._at

    @property
    def left(self) -> int:
        """Bytes of the file from here on."""
        return self._source.size - self.position

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise _RefusedError(
                f"the header ends inside the file's {self._source.size:,} bytes: {length:,} more are wanted at "
                f"byte {self.position:,}"
            )
        self._taken += length
        if self._taken > LIMIT:
            raise _RefusedError(f"the header is longer than {LIMIT:,} bytes; no more are read")
        if self._at + length > len(self._buffer):
            self._behind += self._at
            self._buffer = self._source.read(self._behind, max(length, _CHUNK))
            self._at = 0
            if len(self._buffer) < length:
                raise _RefusedError(
                    f"the file ended at byte {self._behind + len(self._buffer):,} while it was read"
                )
        part = self._buffer[self._at : self._at + length]
        self._at += length
        return part

    def skip(self, length: int) -> None:
        if length > self.left:
            raise _RefusedError(
                f"an array of {length:,} bytes at byte {self.position:,} goes beyond the file"
            )
        if self._at + length <= len(self._buffer):
            self._at += length
        else:
            self._behind, self._buffer, self._at = self.position + length, b"", 0

    def number(self, code: str, size: int) -> int:
        return int(struct.unpack("<" + code, self.take(size))[0])

    def text(self, what: str) -> str:
        return self.raw_text(what).decode("utf-8", "replace")

    def raw_text(self, what: str) -> bytes:
        length = self.number("Q", 8)
        if length > LONGEST_TEXT or length > self.left:
            raise _RefusedError(f"{what} at byte {self.position:,} declares {length:,} bytes")
        return self.take(length)


def _version(head: bytes) -> None:
    if head[:4] == SWAPPED:
        raise _RefusedError(
            "the magic stands backwards (FUGG): the file was written byte-swapped; convert it anew"
        )
    if head[:4] != MAGIC or len(head) < 8:
        raise _RefusedError(f"this is no GGUF file: it begins with {head[:4]!r}")
    version = int.from_bytes(head[4:8], "little")
    if version and not version & 0xFFFF:
        version = int.from_bytes(head[4:8], "big")
        raise _RefusedError(
            f"a big-endian GGUF of version {version}: this machine and its runtimes read little-endian ones"
        )
    if version not in VERSIONS:
        raise _RefusedError(
            f"little-endian GGUF of version {version}: versions 2 and 3 are read"
            + ("; version 1 has counts of 32 bits, convert the file anew" if version == 1 else "")
        )


def _pairs(cursor: _Cursor, pairs: int, tensors: int, problems: Problems) -> dict[str, object]:
    if pairs > MOST_PAIRS:
        raise _RefusedError(
            f"the file declares {pairs:,} key-value pairs; more than {MOST_PAIRS:,} are not read"
        )
    if tensors > MOST_TENSORS or tensors * _LEAST_TENSOR > cursor.left:
        raise _RefusedError(f"the file declares {tensors:,} tensors, and has {cursor.left:,} bytes for them")
    found: dict[str, object] = {}
    for number in range(pairs):
        key = cursor.text(f"the key of pair {number}")
        if not key:
            raise _RefusedError(f"pair {number} has an empty key")
        if key in found:
            problems.add("duplicate_key", f"the header names the key {shown(key)} twice")
        kind = cursor.number("I", 4)
        found[key] = _value(cursor, key, kind)
    return found


def _value(cursor: _Cursor, key: str, kind: int) -> object:
    if kind in _SCALARS:
        code, size = _SCALARS[kind]
        value: Any = struct.unpack("<" + code, cursor.take(size))[0]
        return value
    if kind == _STRING:
        return cursor.text(f"the value of {shown(key)}")
    if kind != _ARRAY:
        raise _RefusedError(f"the value of {shown(key)} is of kind {kind}, which the format does not have")
    items_kind, items = cursor.number("I", 4), cursor.number("Q", 8)
    if items_kind == _STRING:
        cursor.texts += items
        if cursor.texts > MOST_TEXTS or items * 8 > cursor.left:
            raise _RefusedError(f"{shown(key)} declares {items:,} texts")
        for _ in range(items):
            cursor.raw_text(f"a text of {shown(key)}")
        return Passed(items, items_kind)
    if items_kind not in _SCALARS:
        raise _RefusedError(f"{shown(key)} is an array of kind {items_kind}; arrays hold numbers or texts")
    code, size = _SCALARS[items_kind]
    if items * size > cursor.left:
        raise _RefusedError(f"{shown(key)} declares {items:,} numbers, more than the file has bytes for")
    if items > KEPT_ITEMS:
        cursor.skip(items * size)
        return Passed(items, items_kind)
    return struct.unpack(f"<{items}{code}", cursor.take(items * size))


def _alignment(metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", 32)
    good = isinstance(value, int) and 0 < value <= 2**20 and value % 8 == 0
    return value if good and isinstance(value, int) else 32


def _tensors(
    cursor: _Cursor, count: int, metadata: dict[str, object], problems: Problems
) -> tuple[int, list[Tensor]]:
    alignment = _alignment(metadata)
    if metadata.get("general.alignment", 32) != alignment:
        problems.add(
            "alignment", f"general.alignment is {metadata['general.alignment']!r}, which is no alignment"
        )
    entries: list[tuple[str, int, tuple[int, ...], int]] = []
    seen: set[str] = set()
    for number in range(count):
        name = cursor.text(f"the name of tensor {number}")
        axes = cursor.number("I", 4)
        if axes > MOST_AXES:
            raise _RefusedError(f"tensor {shown(name)} declares {axes:,} axes; ggml knows {MOST_AXES}")
        shape = struct.unpack(f"<{axes}Q", cursor.take(8 * axes))[::-1]
        kind, offset = struct.unpack("<IQ", cursor.take(12))
        if name in seen or not name:
            if not name:
                raise _RefusedError(f"tensor {number} has no name")
            problems.add("duplicate", f"the header names {shown(name)} twice")
            continue
        seen.add(name)
        entries.append((name, kind, shape, offset))
    start = -(-cursor.position // alignment) * alignment
    return start, [
        tensor for entry in entries if (tensor := _tensor(*entry, start, alignment, problems)) is not None
    ]


def _tensor(
    name: str,
    kind: int,
    shape: tuple[int, ...],
    offset: int,
    start: int,
    alignment: int,
    problems: Problems,
) -> Tensor | None:
    elements = math.prod(shape)
    if elements >= 2**63 or offset >= 2**63:
        problems.add("tensor", f"tensor {shown(name)}: shape or offset is beyond any file")
        return None
    if offset % alignment:
        problems.add("tensor", f"tensor {shown(name)}: its offset {offset:,} is no multiple of {alignment}")
        return None
    known = TYPES.get(kind)
    if known is None:
        problems.add(
            "unknown_type",
            f"tensor {shown(name)} is of GGML type {kind}, which is not known here: its size is not counted",
        )
        return Tensor(name, f"type {kind}", shape, start + offset, start + offset, elements)
    dtype, block, size = known
    if shape and shape[-1] % block:
        problems.add(
            "tensor", f"tensor {shown(name)}: rows of {shape[-1]:,} elements are no whole blocks of {dtype}"
        )
        return None
    return Tensor(name, dtype, shape, start + offset, start + offset + elements // block * size, elements)


def _check(size: int, start: int, tensors: list[Tensor], alignment: int, problems: Problems) -> None:
    """The tensors against each other and the file; up to `alignment` bytes of padding may follow each."""
    position = end = start
    before: Tensor | None = None
    sized = True
    for tensor in sorted(tensors, key=lambda one: (one.begin, one.end)):
        if tensor.begin < end and before is not None and tensor.end > tensor.begin:
            problems.add("overlap", f"tensors {shown(before.name)} and {shown(tensor.name)} share bytes")
        elif tensor.begin >= position + alignment and sized:
            problems.add(
                "hole",
                f"{tensor.begin - position:,} bytes before tensor {shown(tensor.name)} belong to no tensor",
                Severity.MEDIUM,
            )
        if tensor.end >= end:
            end, before = tensor.end, tensor
        sized = not tensor.dtype.startswith("type ")
        position = -(-end // alignment) * alignment
    if end > size:
        problems.add(
            "truncated",
            f"the file has {size:,} bytes, and its header tells of {end:,}: {end - size:,} are missing",
            size=end - size,
        )
    elif size >= max(end, start) + alignment and tensors:
        problems.add(
            "surplus", f"{size - end:,} bytes follow the last tensor, which ends at {end:,}", size=size - end
        )
