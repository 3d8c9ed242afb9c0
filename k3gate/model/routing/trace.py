"""A trace of routing: the experts that each token used in each layer, as an array and as bytes for a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.errors import UsageError
from k3gate.units import count

MAX_EXPERTS = 1 << 15
"""Of a layer, so that ids are int16."""
MAX_LAYERS = 1024
MAX_USED = 256
MAX_IDS = 1 << 27
"""Of a whole trace, 256 MiB: 91,000 tokens of Kimi K3."""

Ids = NDArray[np.int16]


@frozen(eq=False)
class Trace:
    """`experts`: int16 [tokens, layers, used], in no order within a layer and none twice there.

    `expert_count`: experts of a layer. `counted`: nobody stated that number, it is the largest id + 1.
    `starts`: the tokens with which sequences begin, rising, the first being 0; the tokens of a sequence follow
    each other. `source`: where it came from, for a person.
    """

    experts: Ids
    expert_count: int
    source: str
    starts: tuple[int, ...] = (0,)
    counted: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.experts.shape[0])

    @property
    def layers(self) -> int:
        """Layers with routed experts."""
        return int(self.experts.shape[1])

    @property
    def used(self) -> int:
        """Experts that a token uses of a layer."""
        return int(self.experts.shape[2])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(layers, experts of a layer, used of them)."""
        return self.layers, self.expert_count, self.used

    def follows(self) -> NDArray[np.bool_]:
        """bool [tokens - 1]: whether token i + 1 follows token i in one sequence."""
        joined = np.ones(max(0, self.tokens - 1), np.bool_)
        joined[[start - 1 for start in self.starts[1:]]] = False
        return joined

    def steps(self, steps: int, batch: int) -> Ids:
        """int16 [steps, layers, batch, used]: what `batch` sequences use in each of `steps` decode steps.

        Sequence b starts at token b x tokens // batch and goes on from there, from the last token to the first; so
        a trace of `batch` sequences of equal length gives each of them one place in the batch. `UsageError` where
        the trace has fewer tokens than sequences are asked for, or the result is above 256 MiB.
        """
        if steps < 1 or batch < 1:
            raise UsageError(f"{steps} steps of {batch} sequences cannot be: give 1 or more of each")
        if batch > self.tokens:
            raise UsageError(
                f"{self.source} has {count(self.tokens, 'token')}, too few for a batch of {batch}: "
                "two sequences would choose alike; give a longer trace or a smaller batch"
            )
        if steps * batch * self.layers * self.used > MAX_IDS:
            raise UsageError(
                f"{steps} steps of {batch} sequences are more than {MAX_IDS:,} expert ids: ask for fewer steps"
            )
        first = np.arange(batch) * self.tokens // batch
        rows = (first[None, :] + np.arange(steps)[:, None]) % self.tokens
        return np.ascontiguousarray(self.experts[rows].transpose(0, 2, 1, 3))

    def to_bytes(self, steps: int, batch: int) -> bytes:
        """`steps` as little-endian int16 in C order, [steps, layers, batch, used]: what `packed.load` reads."""
        return self.steps(steps, batch).astype("<i2", copy=False).tobytes()


def of_array(
    array: NDArray[Any],
    source: str,
    experts: int | None = None,
    starts: tuple[int, ...] = (0,),
) -> Trace:
    """A trace of whole numbers [tokens, layers, used]; `experts`: of a layer, None: the largest id + 1.

    `UsageError` in one line where an id is negative, too large, or twice in a token's layer, or a size is none.
    """
    if array.ndim != 3 or array.dtype.kind not in "iu":
        raise UsageError(
            f"{source}: {array.dtype} {list(array.shape)} is no trace: give whole numbers [tokens, layers, used]"
        )
    check_sizes(source, *array.shape)
    most = array.max()
    limit = MAX_EXPERTS if experts is None else experts
    if array.min() < 0 or most >= limit:
        token, layer, place = np.argwhere((array < 0) | (array >= limit))[0]
        told = wrong_id(int(array[token, layer, place]), experts)
        raise UsageError(f"{source}: token {token}, layer {layer}: {told}")
    ids = array.astype(np.int16)
    for first in range(0, len(ids), 4096):  # in parts, since it is sorted
        ordered = np.sort(ids[first : first + 4096], axis=2)
        twice = np.argwhere(ordered[..., 1:] == ordered[..., :-1])
        if len(twice):
            token, layer, place = twice[0]
            told = twice_told(int(ordered[token, layer, place]))
            raise UsageError(f"{source}: token {first + token}, layer {layer}: {told}")
    return Trace(ids, int(most) + 1 if experts is None else experts, source, starts, experts is None)


def check_sizes(source: str, tokens: int, layers: int, used: int) -> None:
    """Raise `UsageError` where a trace would be empty, or larger than is read."""
    if min(tokens, layers, used) < 1:
        raise UsageError(
            f"{source}: {tokens} tokens x {layers} layers x {used} experts are no trace: record at least one of each"
        )
    for number, most, what in ((layers, MAX_LAYERS, "layers"), (used, MAX_USED, "experts a token and layer")):
        if number > most:
            raise UsageError(
                f"{source}: {number:,} {what} are more than {most:,}: "
                "give whole numbers in the order [tokens, layers, used]"
            )
    if tokens * layers * used > MAX_IDS:
        raise UsageError(
            f"{source}: {tokens:,} tokens x {layers} layers x {used} experts are more than {MAX_IDS:,} ids: "
            "give a part of the trace"
        )


def check_count(source: str, experts: int, layer_uses: int) -> None:
    """Raise `UsageError` where a layer cannot have so many experts."""
    if not max(1, layer_uses) <= experts <= MAX_EXPERTS:
        raise UsageError(
            f"{source}: {experts} experts of a layer cannot be, where a token uses {layer_uses} of them: "
            f"give {layer_uses} to {MAX_EXPERTS:,}"
        )


def wrong_id(value: int, experts: int | None) -> str:
    """What is wrong with an id, and what to do."""
    if value < 0:
        return f"expert {value} is below 0: number experts from 0"
    if experts is None:
        return f"expert {value} is above {MAX_EXPERTS - 1}, more than any layer has: correct it"
    return f"expert {value} does not exist, since a layer has {experts} (0 to {experts - 1}): correct it or the number"


def twice_told(value: int) -> str:
    """What is wrong with an id that a token has twice in a layer."""
    return f"expert {value} is there twice: a token uses an expert of a layer once"
