"""A weight as a file stores it: rows of numbers in a known coding, or the reason why they cannot be read. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from attrs import field, frozen

from k3gate.model.checkpoint import names
from k3gate.model.checkpoint.gguf import TYPES
from k3gate.model.checkpoint.safetensors import BITS
from k3gate.model.checkpoint.tensors import Tensor
from k3gate.model.conversion.naming import Name, Scheme
from k3gate.model.formats import floats, mxfp4, packed

MXFP4 = "MXFP4"
INT4 = "INT4"
_GGML = {name: (block, size) for name, block, size in TYPES.values()}
_PLAIN = frozenset(floats.TYPES)
_FP8 = frozenset(name for name in _PLAIN if name.startswith("F8") and name != "F8_E8M0")
_FP8_BLOCK = 128
_WITHOUT_NUMBERS = ("weight_shape", "g_idx", "input_scale", "output_scale")


@frozen
class Place:
    """Where bytes lie: the number of the file in its set, and the first byte."""

    file: int
    begin: int


@frozen
class Scales:
    """The factors of a weight: [rows, columns] of a type, each for a block of the weight."""

    place: Place
    dtype: str
    rows: int
    columns: int

    @property
    def row_bytes(self) -> int:
        """Of a row of factors."""
        return self.columns * BITS[self.dtype] // 8


@frozen
class Stored:
    """A weight of `rows` x `columns` numbers (a vector: one row), each row of `row_bytes` from `place` on.

    `coding`: a type of safetensors or GGML, "MXFP4" of either (with `scales`: as checkpoints store it), or "INT4".
    `trouble`: why its numbers cannot be read here, else None. `shape`: as the file has it, without axes of one.
    """

    tensor: str
    group: str
    coding: str
    shape: tuple[int, ...]
    rows: int
    columns: int
    row_bytes: int
    place: Place
    scales: Scales | None = field(default=None)
    trouble: str | None = None

    @property
    def bytes(self) -> int:
        """Of codes and scales together."""
        factors = self.scales.rows * self.scales.row_bytes if self.scales else 0
        return self.rows * self.row_bytes + factors

    @property
    def is_mxfp4_of_a_checkpoint(self) -> bool:
        """Codes and scales apart, and not in blocks of GGML."""
        return self.coding == MXFP4 and self.scales is not None


def of_layer(
    tensors: Iterable[tuple[int, Tensor]], kind: str, scheme: Scheme
) -> tuple[dict[Name, Stored], list[str]]:
    """The weights that tensors of a layer make up, each with the number of its file; and names that stand twice.

    `kind`: "gguf" or "safetensors".
    """
    found: dict[Name, Stored] = {}
    twice: list[str] = []
    for name, stored in (_gguf if kind == "gguf" else _safetensors)(tensors, scheme):
        if name in found:
            twice.append(stored.tensor)
        else:
            found[name] = stored
    return found, twice


def _gguf(tensors: Iterable[tuple[int, Tensor]], scheme: Scheme) -> Iterable[tuple[Name, Stored]]:
    for file, tensor in tensors:
        _, place = names.read(tensor.name)
        name = scheme.name(tensor.name, place)
        shape = squeezed(tensor.shape)
        coding = _GGML.get(tensor.dtype)
        experts = tensor.shape[0] if place.fused and len(tensor.shape) == 3 else None
        if experts is not None:
            shape = tensor.shape[1:]
        rows, columns = _rows(shape)
        trouble = None
        if coding is None:
            trouble = f"{tensor.dtype} is not known here"
        block, size = coding or (1, 0)
        row_bytes = columns // block * size
        for expert in range(experts or 1):
            own = tensor.name if experts is None else f"{tensor.name}[{expert}]"
            at = Place(file, tensor.begin + expert * rows * row_bytes)
            yield (
                name if experts is None else name._replace(expert=expert),
                Stored(own, place.part, tensor.dtype, shape, rows, columns, row_bytes, at, trouble=trouble),
            )


def _safetensors(tensors: Iterable[tuple[int, Tensor]], scheme: Scheme) -> Iterable[tuple[Name, Stored]]:
    owners: dict[str, dict[str, tuple[int, Tensor, names.Place]]] = {}
    for file, tensor in tensors:
        _, place = names.read(tensor.name)
        owner = names.owner(tensor.name, place)
        ending = tensor.name[len(owner) :].lstrip("._")
        # A bias is a weight of its own, and no part of the one whose name it shares.
        key = tensor.name if ending == "bias" else owner
        owners.setdefault(key, {})[ending] = (file, tensor, place)
    for parts in owners.values():
        yield from _owned(parts, scheme)


def _owned(
    parts: dict[str, tuple[int, Tensor, names.Place]], scheme: Scheme
) -> Iterable[tuple[Name, Stored]]:
    numbers = [one for one in parts.values() if one[2].holds in (names.CODES, names.WEIGHT)]
    scales = [
        one
        for ending, one in parts.items()
        if one[2].holds == names.SCALES and ending not in _WITHOUT_NUMBERS
    ]
    if not numbers:
        return
    file, tensor, place = numbers[0]
    yield scheme.name(tensor.name, place), _single(file, tensor, place, scales, len(numbers) > 1)


def _single(
    file: int,
    tensor: Tensor,
    place: names.Place,
    scales: list[tuple[int, Tensor, names.Place]],
    several: bool,
) -> Stored:
    at = Place(file, tensor.begin)
    shape = squeezed(tensor.shape)
    rows, columns = _rows(shape)

    def stored(coding: str, wide: int, factors: Scales | None = None, trouble: str | None = None) -> Stored:
        whole = (*shape[:-1], shape[-1] * wide) if shape else (1,)
        row_bytes = columns * BITS.get(tensor.dtype, 0) // 8
        return Stored(
            tensor.name, place.part, coding, whole, rows, columns * wide, row_bytes, at, factors, trouble
        )

    if several or len(scales) > 1:
        return stored(tensor.dtype, 1, trouble="codes with several scales, a layout that is not read here")
    scale = _scales(scales[0]) if scales else None
    if place.holds == names.CODES:
        if scale is None:
            return stored(tensor.dtype, 1, trouble="codes without a scale")
        if tensor.dtype == "U8" and scale.dtype in ("U8", "F8_E8M0"):
            fits = (scale.rows, scale.columns * mxfp4.BLOCK) == (rows, columns * 2) and not place.fused
            why = None if fits else "codes and scales of another layout than MXFP4 in groups of 32"
            return stored(MXFP4, 2, scale, why)
        if tensor.dtype == "I32" and scale.dtype in _PLAIN:
            fits = scale.rows == rows and scale.columns > 0 and columns * packed.IN_WORD % scale.columns == 0
            return stored(
                INT4, packed.IN_WORD, scale, None if fits else "codes and scales that do not fit each other"
            )
        return stored(
            tensor.dtype, 1, trouble=f"codes of {tensor.dtype} with scales of {scale.dtype} are not read here"
        )
    if tensor.dtype not in _PLAIN:
        return stored(tensor.dtype, 1, trouble=f"{tensor.dtype} is no type of numbers that is read here")
    if scale is None:
        why = "FP8 without a scale" if tensor.dtype in _FP8 else None
        return stored(tensor.dtype, 1, trouble=why)
    fits = (
        tensor.dtype in _FP8 and scale.dtype in (*_PLAIN, "U8") and blocks(rows, columns, scale) is not None
    )
    return stored(tensor.dtype, 1, scale, None if fits else "scales that do not fit their weight")


def _scales(found: tuple[int, Tensor, names.Place]) -> Scales:
    file, tensor, _ = found
    rows, columns = (tensor.shape[0], 1) if len(tensor.shape) == 1 else _rows(tensor.shape or (1,))
    return Scales(Place(file, tensor.begin), tensor.dtype, rows, columns)


def blocks(rows: int, columns: int, scale: Scales) -> tuple[int, int] | None:
    """How many rows and columns share a factor; None where they do not come out."""
    high, wide = _block(rows, scale.rows), _block(columns, scale.columns)
    return (high, wide) if high and wide else None


def _block(length: int, factors: int) -> int:
    if factors and length % factors == 0:
        return length // factors
    # DeepSeek's FP8: blocks of 128, of which the last may be short.
    return _FP8_BLOCK if -(-length // _FP8_BLOCK) == factors else 0


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without axes of one."""
    return tuple(axis for axis in shape if axis != 1) or (1,)


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]
