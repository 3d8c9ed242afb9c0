"""The header of a safetensors file: checked against the file before anything is believed or allocated.

A file is 8 bytes with the length of the header, the header in JSON, and the bytes of all tensors without a hole
(https://github.com/safetensors/safetensors, "Format").
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from k3gate.model.checkpoint.tensors import Header, Problems, Source, Tensor, check_layout, shown
from k3gate.records import Severity

PREFIX = 8
REFERENCE_LIMIT = 100_000_000
"""Longer headers are refused by the reference library and by most loaders, which use it."""
LIMIT = 128 * 2**20
"""Longer headers are refused here: that of Kimi K3's largest shard is under a megabyte."""
MOST_AXES = 32
_SHORT = 16 * 2**20

BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of an element of each type."""

_POINTER = b"version https://git-lfs"
_PROMISED = re.compile(rb"^size (\d{1,20})$", re.MULTILINE)
_SPACE = re.compile(r"[ \t\n\r]*")


def read(source: Source) -> Header:
    """The header of the file; what is wrong with it stands in its `problems`. `OSError` where reading fails."""
    problems = Problems(source.name)
    head = source.read(0, 256)
    if head.startswith(_POINTER):
        return _pointer(source, head, problems)
    length = int.from_bytes(head[:PREFIX], "little")
    refused = _refused(source.size, head, length)
    if refused:
        problems.add("header", refused)
        return Header(source.name, source.size, "safetensors", problems=problems.told())
    if length > REFERENCE_LIMIT:
        problems.add(
            "long_header",
            f"a header of {length:,} bytes: the reference library and most loaders refuse more than "
            f"{REFERENCE_LIMIT:,}",
            Severity.MEDIUM,
        )
    raw = source.read(PREFIX, length)
    start = PREFIX + length
    tensors: list[Tensor] = []
    metadata: dict[str, object] = {}
    try:
        if len(raw) != length:
            raise ValueError(f"{len(raw)} of {length} bytes could be read")
        tensors, metadata = _tensors(_members(raw), start, problems)
    except (ValueError, RecursionError) as error:
        # A UnicodeDecodeError holds the whole header.
        what = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)[:300]
        nested = "it is nested too deep"
        problems.add(
            "header", f"the header cannot be read: {nested if isinstance(error, RecursionError) else what}"
        )
    else:
        _check(source.size, start, tensors, problems)
    return Header(
        source.name,
        source.size,
        "safetensors",
        start,
        tuple(tensors),
        metadata,
        problems.told(),
        hashlib.sha256(raw).hexdigest(),
    )


def _pointer(source: Source, head: bytes, problems: Problems) -> Header:
    promised = _PROMISED.search(head)
    size = int(promised[1]) if promised else None
    told = f"of a file of {size:,} bytes" if size is not None else "that promises no size"
    problems.add(
        "lfs_pointer",
        f"a Git LFS pointer {told}, not the file itself: fetch it (git lfs pull, or hf download)",
        size=size,
    )
    return Header(source.name, source.size, "git-lfs pointer", problems=problems.told())


def _refused(size: int, head: bytes, length: int) -> str | None:
    """Why the header is not read at all."""
    if size < PREFIX:
        return f"the file has {size} bytes, too few for the length of a header"
    if length < 2:
        return f"the file declares a header of {length} bytes, too short for any"
    if length > size - PREFIX:
        return f"the file has {size:,} bytes and declares a header of {length:,}"
    if length > LIMIT:
        return f"the file declares a header of {length:,} bytes; more than {LIMIT:,} are not read"
    if not head[PREFIX:].lstrip(b" \t\r\n").startswith(b"{"):
        return "what should be the header is no JSON object: this is no safetensors file, or a damaged one"
    return None


def _tensors(
    members: Iterable[tuple[str, Any]], start: int, problems: Problems
) -> tuple[list[Tensor], dict[str, object]]:
    tensors: list[Tensor] = []
    metadata: dict[str, object] = {}
    seen: set[str] = set()
    sizes: dict[tuple[Any, ...], tuple[tuple[int, ...], int, int]] = {}
    for name, value in members:
        if name in seen:
            problems.add("duplicate", f"the header names {shown(name)} twice")
            continue
        seen.add(name)
        if name == "__metadata__":
            if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
                metadata = dict(value)
            else:
                problems.add("metadata", "__metadata__ is no table of texts", Severity.MEDIUM)
            continue
        try:
            # What most tensors are: like one that was checked before.
            begin, end = value["data_offsets"]
            shape, elements, size = sizes[value["dtype"], *value["shape"]]
            if end - begin == size and type(begin) is type(end) is int and begin >= 0 and end < 2**63:
                tensors.append(Tensor(name, value["dtype"], shape, start + begin, start + end, elements))
                continue
        except (KeyError, TypeError, ValueError):
            pass
        try:
            tensor = _tensor(name, value, start, problems)
        except ValueError as error:
            problems.add("tensor", f"tensor {shown(name)}: {error}")
            continue
        tensors.append(tensor)
        if tensor.dtype in BITS:
            sizes[tensor.dtype, *tensor.shape] = (tensor.shape, tensor.elements, tensor.bytes)
    return tensors, metadata


def _members(raw: bytes) -> Iterable[tuple[str, Any]]:
    """The members of the outer object; of a long header one by one, so that it is never held as a tree of objects.

    orjson takes the last of two members of one name, so that it is used only where every entry is a member.
    """
    if len(raw) <= _SHORT:
        try:
            document = orjson.loads(raw)
        except ValueError:
            document = None
        if isinstance(document, dict):
            entries = len(document) - ("__metadata__" in document)
            if raw.count(b'"dtype"') == raw.count(b'"shape"') == raw.count(b'"data_offsets"') == entries:
                return document.items()
    return _one_by_one(raw.decode("utf-8"))


def _one_by_one(text: str) -> Iterator[tuple[str, Any]]:
    decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant).raw_decode
    space = _SPACE.match
    position = _after(space, text, 0) + 1
    position = _after(space, text, position)
    while text[position : position + 1] != "}":
        name, position = decode(text, position)
        if not isinstance(name, str):
            raise ValueError(f"a name is expected at character {position}")
        position = _after(space, text, position)
        if text[position : position + 1] != ":":
            raise ValueError(f"':' is expected at character {position}")
        value, position = decode(text, _after(space, text, position + 1))
        yield name, value
        position = _after(space, text, position)
        if text[position : position + 1] == ",":
            position = _after(space, text, position + 1)
            if text[position : position + 1] == "}":
                raise ValueError(f"a name is expected at character {position}")
        elif text[position : position + 1] != "}":
            raise ValueError(f"',' or '}}' is expected at character {position}")
    if text[position + 1 :].strip(" \t\r\n\0"):
        raise ValueError(f"something follows the header's end at character {position + 1}")


def _after(space: Any, text: str, position: int) -> int:
    end: int = space(text, position).end()
    return end


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _tensor(name: str, value: Any, start: int, problems: Problems) -> Tensor:
    """One entry of the header; `ValueError` where it cannot be believed."""
    if not isinstance(value, dict):
        raise ValueError("its entry is no object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if type(dtype) is not str or not dtype:
        raise ValueError("it has no dtype")
    if type(shape) is not list or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise ValueError("its shape is no list of whole numbers")
    if type(offsets) is not list or len(offsets) != 2 or not all(type(one) is int for one in offsets):
        raise ValueError("its data_offsets are no two whole numbers")
    if len(shape) > MOST_AXES:
        raise ValueError(f"its shape has {len(shape)} axes")
    begin, end = offsets
    if begin < 0 or end < begin:
        raise ValueError(f"its data_offsets [{begin}, {end}] are no range")
    if end >= 2**63:
        raise ValueError("its data_offsets are beyond any file")
    elements = math.prod(shape)
    if elements >= 2**63:
        raise ValueError("its shape has more elements than any file holds")
    bits = BITS.get(dtype)
    if bits is None:
        problems.add(
            "unknown_type",
            f"tensor {shown(name)} is of type {shown(dtype)}, which is not known here",
            Severity.MEDIUM,
        )
    elif elements * bits != 8 * (end - begin):
        if bits < 8 and shape and shape[-1] * bits % 8:
            raise ValueError(f"its rows of {shape[-1]} elements of {bits} bits fill no whole bytes")
        raise ValueError(
            f"shape {shape} of {dtype} takes {elements * bits // 8:,} bytes, and its range [{begin}, {end}] has "
            f"{end - begin:,}"
        )
    elif bits < 8 and shape and shape[-1] * bits % 8:
        raise ValueError(f"its rows of {shape[-1]} elements of {bits} bits fill no whole bytes")
    return Tensor(name, dtype, tuple(shape), start + begin, start + end, elements)


def _check(size: int, start: int, tensors: list[Tensor], problems: Problems) -> None:
    """The tensors against each other and against the length of the file."""
    end = check_layout(tensors, start, problems.add)
    if end > size:
        problems.add(
            "truncated",
            f"the file has {size:,} bytes, and its header tells of {end:,}: {end - size:,} are missing",
            size=end - size,
        )
    elif end < size:
        problems.add(
            "surplus", f"{size - end:,} bytes follow the last tensor, which ends at {end:,}", size=size - end
        )
