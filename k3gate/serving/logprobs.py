"""Log-probabilities of an answer, in either schema, at either endpoint. Pure.

Servers mix the two: `content` is a list of positions with their alternatives; the older one has parallel lists, and
alternatives as a map from text to number. What is infinite, clipped or null is impossible and no number.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from k3gate.serving.answers import NOT_A_NUMBER, ProtocolError

CONTENT, LEGACY = "content", "legacy"
CLIPPED = -9000.0
"""At and below this a server has put a number in place of minus infinity (vLLM: -9999)."""
HINT = (
    "the server returns no log-probabilities: ask it by its native endpoint (llama-server: /completion with n_probs) "
    "or start it with them allowed"
)


class NotEvaluatedError(Exception):
    """There is nothing to compare; the text says why. It is no difference of zero."""


class NotANumberError(Exception):
    """The server computed what is no number: a fault of its own."""


@frozen
class Token:
    """A token and its log-probability; None: impossible, as it was infinite, clipped or null. `raw`: its bytes, None
    where they are not told."""

    text: str
    logprob: float | None
    raw: bytes | None = None


@frozen
class Position:
    """The token that was taken, and the likeliest ones, it among them or not, as they were told."""

    token: Token
    alternatives: tuple[Token, ...] = ()

    @property
    def gap(self) -> float | None:
        """By how much the likeliest is ahead of the next one; None where fewer than two are possible."""
        known = sorted((one.logprob for one in self.alternatives if one.logprob is not None), reverse=True)
        return known[0] - known[1] if len(known) > 1 else None


@frozen
class Logprobs:
    """Of one answer. `schema`: "content" or "legacy"; `duplicates`: alternatives of one text, all of which are kept."""

    schema: str
    positions: tuple[Position, ...] = field(repr=False)

    @property
    def impossible(self) -> int:
        """Tokens taken, and alternatives, that have no number."""
        return sum(
            one.logprob is None
            for position in self.positions
            for one in (position.token, *position.alternatives)
        )

    @property
    def duplicates(self) -> int:
        """Alternatives whose text stands at their position already."""
        return sum(len(one.alternatives) - len({t.text for t in one.alternatives}) for one in self.positions)

    @property
    def mean(self) -> float | None:
        """Over the tokens that were taken, of those that are possible; None where none is."""
        known = [one.token.logprob for one in self.positions if one.token.logprob is not None]
        return statistics.fmean(known) if known else None


def read(choice: Mapping[str, Any]) -> Logprobs:
    """Of a choice of an answer. Raises `NotEvaluatedError`, `NotANumberError`, `ProtocolError`."""
    told = choice.get("logprobs")
    if not isinstance(told, Mapping):
        raise NotEvaluatedError(HINT)
    if isinstance(told.get("content"), list):
        return Logprobs(CONTENT, tuple(_position(row) for row in told["content"]))
    if isinstance(told.get("tokens"), list):
        return Logprobs(LEGACY, tuple(_legacy(told)))
    raise NotEvaluatedError(HINT)


def _position(row: object) -> Position:
    if not isinstance(row, Mapping):
        raise ProtocolError("a position of log-probabilities that is no object")
    others = row.get("top_logprobs")
    return Position(_token(row), tuple(_token(one) for one in others) if isinstance(others, list) else ())


def _token(row: object) -> Token:
    if not isinstance(row, Mapping) or not isinstance(row.get("token"), str):
        raise ProtocolError("a token of log-probabilities without a text")
    raw = row.get("bytes")
    known = isinstance(raw, list) and all(type(one) is int and 0 <= one < 256 for one in raw)
    return Token(row["token"], _number(row.get("logprob")), bytes(raw) if known and raw is not None else None)


def _legacy(told: Mapping[str, Any]) -> list[Position]:
    tokens, numbers, tops = told["tokens"], told.get("token_logprobs"), told.get("top_logprobs")
    if not isinstance(numbers, list) or len(numbers) != len(tokens):
        raise ProtocolError("as many log-probabilities as tokens were due")
    rows: Sequence[Any] = (
        tops if isinstance(tops, list) and len(tops) == len(tokens) else [None] * len(tokens)
    )
    found = []
    for text, number, top in zip(tokens, numbers, rows, strict=True):
        if not isinstance(text, str):
            raise ProtocolError("a token of log-probabilities that is no text")
        # A list of pairs holds two tokens of one text apart, which a map cannot.
        pairs = top.items() if isinstance(top, Mapping) else _pairs(top)
        alternatives = tuple(Token(str(name), _number(value)) for name, value in pairs)
        found.append(Position(Token(text, _number(number)), alternatives))
    return found


def _pairs(top: object) -> list[tuple[object, object]]:
    if not isinstance(top, list):
        return []
    return [
        (one.get("token"), one.get("logprob")) if isinstance(one, Mapping) else (one[0], one[1])
        for one in top
        if isinstance(one, Mapping) or (isinstance(one, list) and len(one) == 2)
    ]


def _number(value: object) -> float | None:
    """The number; None for what is impossible. Raises `NotANumberError`."""
    if value == NOT_A_NUMBER or (isinstance(value, float) and value != value):
        raise NotANumberError(
            "the server gives log-probabilities that are no numbers (NaN): a fault of the server"
        )
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value in (float("inf"), float("-inf"))
    ):
        return None
    return None if value <= CLIPPED else float(value)
