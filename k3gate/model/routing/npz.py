"""The npz form of a trace: a member `experts.npy` of whole numbers [tokens, layers, used], and `expert_count.npy`.

The archive and its headers are checked before anything is unpacked, since a few kB can claim any size.
"""

from __future__ import annotations

import ast
import math
import os
import struct
import zipfile
import zlib
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from k3gate.errors import UsageError
from k3gate.model.routing.trace import MAX_EXPERTS, Trace, check_count, check_sizes, of_array

MAX_MEMBERS = 64
_MAX_HEADER = 4096
_END_BYTES = 22
_HOW = "save it by numpy.savez(FILE, experts=ARRAY, expert_count=NUMBER)"


def read(file: BinaryIO, name: str, experts: int | None) -> Trace:
    """The trace in an npz file; see `reading.read`."""
    _check_directory(file, name)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            known = {member.filename: member for member in members}
            if len(known) < len(members):
                raise UsageError(f"{name} has two members of one name: {_HOW}")
            if "experts.npy" not in known:
                raise UsageError(f"{name} has no array 'experts': {_HOW}")
            stated = None
            if "expert_count.npy" in known:
                stated = _number(_array(archive, known["expert_count.npy"], name), name)
            array = _array(archive, known["experts.npy"], name)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
        told = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"{name} is cut off or damaged ({told}): copy it again, or {_HOW}") from error
    where = f"{name}, experts.npy"
    if stated is not None and experts not in (None, stated):
        raise UsageError(f"{name} states {stated} experts of a layer, not {experts}: leave the number out")
    wanted = experts if stated is None else stated
    if wanted is not None:
        check_count(where, wanted, array.shape[2])
    trace = of_array(array, where, wanted)
    return Trace(trace.experts, trace.expert_count, name, (0,), trace.counted)


def _check_directory(file: BinaryIO, name: str) -> None:
    """Raise `UsageError` unless the file ends as numpy ends it, and its directory is short.

    `zipfile` reads a directory of any length before it can be asked about it.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END_BYTES))
    end = file.read(_END_BYTES)
    if len(end) < _END_BYTES or not end.startswith(b"PK\x05\x06"):
        raise UsageError(f"{name} is no npz, or is cut off or damaged: copy it again, or {_HOW}")
    members, length = struct.unpack_from("<HI", end, 10)
    if members > MAX_MEMBERS or length > MAX_MEMBERS * _MAX_HEADER:
        raise UsageError(
            f"{name} has {members:,} members in a directory of {length:,} bytes and is no trace: {_HOW}"
        )
    file.seek(0)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[np.integer]:
    """A member as an array of whole numbers, once its header has shown that it is one of bearable size."""
    where = f"{name}, {member.filename}"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UsageError(f"{where} is compressed in a way that numpy does not write: {_HOW}")
    with archive.open(member) as stream:
        magic = stream.read(8)
        if len(magic) < 8 or magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
            raise UsageError(f"{where} is no array of numpy: {_HOW}")
        length = int.from_bytes(stream.read(2 if magic[6] == 1 else 4), "little")
        if length > _MAX_HEADER:
            raise UsageError(f"{where} has a header of {length:,} bytes and is no array of numbers: {_HOW}")
        kind, shape, fortran = _header(stream.read(length), where)
        if member.filename == "experts.npy":
            if len(shape) != 3:
                raise UsageError(
                    f"{where} has {len(shape)} dimensions {list(shape)[:8]}: give [tokens, layers, used]"
                )
            check_sizes(where, *shape)
        elif math.prod(shape) != 1:
            raise UsageError(f"{where} is to be one number, and has the shape {list(shape)[:8]}: {_HOW}")
        wanted = math.prod(shape) * kind.itemsize
        raw = stream.read(wanted + 1)
    if len(raw) != wanted:
        raise UsageError(
            f"{where} has not the {wanted:,} bytes that its header states: copy it again, or {_HOW}"
        )
    return np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C")


def _header(raw: bytes, where: str) -> tuple[np.dtype[np.integer], tuple[int, ...], bool]:
    try:
        header = ast.literal_eval(raw.decode("latin1"))
        descr, shape, fortran = header["descr"], header["shape"], header["fortran_order"]
        if not isinstance(descr, str) or not isinstance(shape, tuple) or len(descr) > 16:
            raise ValueError("an array of records")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("a size that is none")
        kind = np.dtype(descr)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise UsageError(f"{where} has no header of an array of whole numbers: {_HOW}") from error
    if kind.hasobject:
        raise UsageError(f"{where} is pickled, which is never read, since reading it runs it: {_HOW}")
    if kind.kind not in "iu":
        why = ", which may be not-a-number" if kind.kind in "fc" else ""
        raise UsageError(f"{where} holds {kind.name}{why}: expert ids are whole numbers; save them as int16")
    return kind, shape, bool(fortran)


def _number(array: NDArray[np.integer], name: str) -> int:
    value = int(array.reshape(-1)[0])
    if not 1 <= value <= MAX_EXPERTS:
        raise UsageError(f"{name}: expert_count {value} cannot be: give 1 to {MAX_EXPERTS:,}")
    return value
