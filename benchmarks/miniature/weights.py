"""Random weights of a miniature Kimi K3 as a file stores them, and the numbers that these bytes say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from zlib import crc32

import ml_dtypes
import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.model.formats import exponents, mxfp4
from k3gate.model.formats.mxfp4 import BLOCK

from .shape import Kind, Shape

TYPES = ("f32", "bf16", "q8_0", "mxfp4")
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between the magnitudes of MXFP4."""


@frozen(eq=False)
class Weight:
    """A weight [out, in], or [length], as it is stored.

    f32: `codes` float32. bf16: the upper halves of float32, uint16. q8_0: int8 [out, in], `scales` float16
    [out, in / 32]. mxfp4: uint8 [out, in / 2] and `scales` uint8 [out, in / 32], as the checkpoint stores them.
    """

    type: str
    shape: tuple[int, ...]
    codes: NDArray[np.generic]
    scales: NDArray[np.generic] | None = None

    def numbers(self) -> NDArray[np.float64]:
        """What the bytes say, exactly."""
        if self.type == "f32":
            return self.codes.astype(np.float64)
        if self.type == "bf16":
            return self.codes.view(ml_dtypes.bfloat16).astype(np.float64)
        assert self.scales is not None
        if self.type == "mxfp4":
            return mxfp4.decode(self.codes, self.scales).astype(np.float64)
        blocks = self.codes.reshape(*self.scales.shape, BLOCK).astype(np.float64)
        return (blocks * self.scales.astype(np.float64)[..., None]).reshape(self.shape)

    def ggml(self) -> NDArray[np.uint8]:
        """The bytes [..., bytes of a row] of the same numbers as GGML stores them."""
        if self.scales is None:
            return np.ascontiguousarray(self.codes).view(np.uint8)
        if self.type == "mxfp4":
            blocks = mxfp4.to_ggml(self.codes, self.scales)
        else:
            codes = self.codes.reshape(*self.scales.shape, BLOCK).view(np.uint8)
            blocks = np.concatenate((self.scales[..., None].view(np.uint8), codes), axis=-1)
        return blocks.reshape(*blocks.shape[:-2], -1)

    def rows(self, first: int, last: int) -> Weight:
        """Some of the rows."""
        scales = None if self.scales is None else self.scales[first:last]
        return Weight(self.type, (last - first, *self.shape[1:]), self.codes[first:last], scales)

    def transposed(self) -> Weight:
        """[in, out], of the same numbers to the bit; `ValueError` where its blocks are not square."""
        codes, scales = self.codes, self.scales
        if scales is None:
            return Weight(self.type, self.shape[::-1], np.ascontiguousarray(codes.T))
        tiles = scales.reshape(-1, BLOCK, scales.shape[1])
        if (tiles != tiles[:, :1]).any():
            raise ValueError("rows of one block have scales of their own: such a matrix cannot be transposed")
        across = np.repeat(tiles[:, 0].T, BLOCK, axis=0)
        if self.type == "q8_0":
            return Weight(self.type, self.shape[::-1], np.ascontiguousarray(codes.T), across)
        nibbles = np.stack((codes & 15, codes >> 4), axis=-1).reshape(self.shape).T
        return Weight(self.type, self.shape[::-1], nibbles[:, 0::2] | (nibbles[:, 1::2] << 4), across)


Weights = Mapping[str, Weight]
"""By released name, less the language model's prefix; the codes and scales of an expert's matrix are one weight."""


@frozen
class Types:
    """What stores the trunk's matrices, the experts and the router: of `TYPES`. Norms are BF16, a few vectors F32, as
    released; with a trunk of f32 all of them are F32. llama.cpp's converter makes routers F32."""

    trunk: str = "bf16"
    experts: str = "mxfp4"
    router: str = "bf16"

    def of(self, kind: Kind) -> str:
        """Of one weight."""
        if kind.part in ("matrix", "expert", "router"):
            return {"matrix": self.trunk, "expert": self.experts, "router": self.router}[kind.part]
        return "f32" if kind.part == "single" or self.trunk == "f32" else "bf16"


RELEASED = Types()


def random_weights(shape: Shape, seed: int, types: Types = RELEASED) -> Weights:
    """Normal numbers whose products keep the size of what comes in, by released name."""
    chance = np.random.default_rng(seed)
    made = {}
    for name, kind in shape.kinds():
        numbers = chance.normal(kind.mean, kind.deviation, kind.shape).astype(np.float32)
        made[name] = _encoded(name, numbers, kind, shape, types)
    return made


def _encoded(name: str, numbers: NDArray[np.float32], kind: Kind, shape: Shape, types: Types) -> Weight:
    if name.endswith("A_log"):
        numbers[shape.heads :] = 0
    if kind.part == "router":
        # As released, also where the file has them in F32.
        numbers = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    return encode(numbers, types.of(kind), square=name.endswith("kv_b_proj.weight"))


class Repeated(Mapping[str, Weight]):
    """Random weights of any width, each made when it is asked for and the same each time: its first rows, repeated.

    Quick to make where a model has gigabytes. The router's rows all differ, as experts alike would be near ties.
    """

    _ROWS = 128

    def __init__(self, shape: Shape, seed: int, types: Types) -> None:
        self._kinds = dict(shape.kinds())
        self._shape, self._seed, self._types = shape, seed, types

    def __getitem__(self, name: str) -> Weight:
        kind = self._kinds[name]
        rows = (
            kind.shape[0] if len(kind.shape) == 1 or kind.part == "router" else min(kind.shape[0], self._ROWS)
        )
        chance = np.random.default_rng((self._seed, crc32(name.encode())))
        numbers = chance.standard_normal((rows, *kind.shape[1:]), np.float32)
        numbers *= np.float32(kind.deviation)
        numbers += np.float32(kind.mean)
        some = _encoded(name, numbers, kind, self._shape, self._types)
        again = np.arange(kind.shape[0]) % rows
        scales = None if some.scales is None else some.scales[again]
        return Weight(some.type, kind.shape, some.codes[again], scales)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def encode(numbers: NDArray[np.float32], kind: str, *, square: bool = False) -> Weight:
    """Numbers rounded to a type. `square`: one scale for 32 x 32 of them, so that the transposed holds the same."""
    if kind == "f32":
        return Weight(kind, numbers.shape, numbers.astype(np.float32))
    if kind == "bf16":
        return Weight(kind, numbers.shape, numbers.astype(ml_dtypes.bfloat16).view(np.uint16))
    if kind not in TYPES:
        raise ValueError(f"{kind} is none of {', '.join(TYPES)}")
    blocks = numbers.reshape(numbers.shape[0], -1, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    if square:
        tiles = largest.reshape(-1, BLOCK, largest.shape[1]).max(axis=1)
        largest = np.repeat(tiles, BLOCK, axis=0)
    if kind == "q8_0":
        # Up, so that no code goes beyond 127.
        scales = np.nextafter((largest / 127).astype(np.float16), np.float16(np.inf))
        codes = np.rint(blocks / scales.astype(np.float32)[..., None])
        return Weight(kind, numbers.shape, codes.astype(np.int8).reshape(numbers.shape), scales)
    # The largest comes to lie between 4 and 8, of which 6 is the last.
    scales = np.clip(np.frexp(np.maximum(largest, 1e-30))[1] - 3 + 127, 0, 254).astype(np.uint8)
    sized = blocks / exponents.decode(scales)[..., None]
    nibbles = np.digitize(np.abs(sized), _MIDDLES).astype(np.uint8) | (np.signbit(sized) * np.uint8(8))
    nibbles = nibbles.reshape(numbers.shape)
    return Weight(kind, numbers.shape, nibbles[:, 0::2] | (nibbles[:, 1::2] << 4), scales)
