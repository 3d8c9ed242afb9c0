"""Two greedy answers to one prompt: whether they part, where, and whether that is more than a near tie. Pure.

What follows the first difference answers another prompt and is not compared. Both must have been computed from the same
tokens, one request at a time: a batch changes the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from attrs import frozen

from k3gate.serving.logprobs import Position

NEAR_TIE = 0.5
"""Nats between the two likeliest tokens within which another order of sums may take the other one. Ours: residuals over
layers amplify rounding, and logits that differ by 5 % are normal."""
SAME, NEAR, DIFFERENT = "same", "near tie", "different"


class UnequalInputsError(Exception):
    """The two sides did not read the same tokens, so their answers are not to be compared; the text says where."""


@frozen
class Inputs:
    """What one side read: ids of the prompt's tokens, else their number; None: not told."""

    ids: tuple[int, ...] | None = None
    count: int | None = None


@frozen
class Divergence:
    """`kind`: same, near tie, different. `at`: the first position that differs, None: none does. `gap`: of the two
    likeliest there. `scored`: positions before it, which are compared."""

    kind: str
    at: int | None
    gap: float | None
    scored: int


def check_inputs(ours: Inputs, theirs: Inputs) -> None:
    """Raise `UnequalInputsError` unless both sides read the same, as far as they tell."""
    if ours.ids is not None and theirs.ids is not None:
        for at, (one, other) in enumerate(zip_longest(ours.ids, theirs.ids)):
            if one != other:
                raise UnequalInputsError(
                    f"the prompts differ from token {at} on: {_id(one)} and {_id(other)} "
                    f"({len(ours.ids)} and {len(theirs.ids)} tokens)"
                )
        return
    counts = [len(side.ids) if side.ids is not None else side.count for side in (ours, theirs)]
    if None in counts:
        raise UnequalInputsError(
            "how many tokens a side read is not known, so nothing shows that both read the same"
        )
    if counts[0] != counts[1]:
        raise UnequalInputsError(f"the prompts have {counts[0]} and {counts[1]} tokens")


def compare(reference: Sequence[Position], candidate: Sequence[Position]) -> Divergence:
    """Where two greedy answers part. An end is a token too."""
    for at, (one, other) in enumerate(zip_longest(reference, candidate)):
        if one is None or other is None or one.token.text != other.token.text:
            gaps = [gap for side in (one, other) if side is not None and (gap := side.gap) is not None]
            gap = min(gaps, default=None)
            near = gap is not None and gap <= NEAR_TIE
            return Divergence(NEAR if near else DIFFERENT, at, gap, at)
    return Divergence(SAME, None, None, len(reference))


def _id(value: int | None) -> str:
    return "the end" if value is None else str(value)
