"""What a server streams, read as it comes: events, the pieces of an answer by channel, counts and times. Pure.

Of an OpenAI-compatible server, chat or completion. Chunks are not tokens: a server may put several tokens into one, or
none. Tokens are counted by the server's own usage; without it by a tokenizer, else only chunks are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from attrs import define, field, frozen

from k3gate.documents import printable
from k3gate.serving import steady
from k3gate.serving.steady import Steady

MOST_EVENT = 4 << 20
"""Bytes of one event; a server that sends more without ending it is not understood."""
_MOST_COUNT = 1 << 31
_INFINITE = re.compile(rb"(?<=[:,\[\s])-?Infinity(?=[,\]}\s])")
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[\s])-?NaN(?=[,\]}\s])")
NOT_A_NUMBER = "NaN"
"""What stands for it after decoding: unlike what is infinite or absent it tells of a fault."""
_REASONING = ("reasoning_content", "reasoning")


class ProtocolError(Exception):
    """The server sent what no such server sends; the text says what."""


class ServerError(Exception):
    """The server answered with an error of its own, within the stream or instead of it. `status`: of HTTP, None within
    a stream."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@define
class Events:
    """Server-sent events out of bytes as they come. Comments keep a connection alive and are no events."""

    _rest: bytes = b""
    _data: list[bytes] = field(factory=list)
    _size: int = 0

    def feed(self, raw: bytes) -> Iterator[bytes]:
        """The data of each event that has ended. Raises `ProtocolError`."""
        lines = (self._rest + raw).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MOST_EVENT:
            raise ProtocolError(f"a line of more than {MOST_EVENT:,} bytes")
        for line in lines:
            line = line.rstrip(b"\r")
            if not line:
                if self._data:
                    data, self._data, self._size = b"\n".join(self._data), [], 0
                    if data.strip():
                        yield data
            elif line.startswith(b"data:"):
                self._size += len(line)
                if self._size > MOST_EVENT:
                    raise ProtocolError(f"an event of more than {MOST_EVENT:,} bytes")
                self._data.append(line[5:].removeprefix(b" "))

    def end(self) -> Iterator[bytes]:
        """An event that the server did not end before it closed."""
        yield from self.feed(b"\n\n")


def decoded(data: bytes) -> dict[str, Any] | None:
    """The object of an event; None for the mark of the end. Infinite numbers, which JSON lacks, count as null, and
    what is none as `NOT_A_NUMBER`."""
    if data.strip() == b"[DONE]":
        return None
    mended = _NOT_A_NUMBER.sub(b'"NaN"', _INFINITE.sub(b"null", data))
    for raw in (data, mended):
        try:
            found = orjson.loads(raw)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(found, dict):
            raise ProtocolError("an event that is no JSON object")
        return found
    raise ProtocolError(f"an event that is no JSON: {printable(data[:80].decode('utf-8', 'replace'))}")


@frozen
class Usage:
    """The server's own count of one answer; None where it does not say. `cached`: of the prompt, not computed anew."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


@frozen
class Timings:
    """The server's own clock (llama.cpp): tokens of prompt and answer that it computed, and tokens/s of each."""

    prompt_tokens: int | None = None
    prompt_per_s: float | None = None
    predicted_tokens: int | None = None
    predicted_per_s: float | None = None


@frozen
class Answer:
    """One whole answer. Seconds count from when the request was sent; None where there was no such thing.

    `chunks`: those that carried text, in any channel; `visible`, `reasoning`: characters of either; `ended`: whether
    the server said that it was at its end; `finish`: why.
    """

    begun_s: float
    first_s: float | None
    first_visible_s: float | None
    last_s: float | None
    chunks: int
    visible: int
    reasoning: int
    tool_calls: int
    usage: Usage
    timings: Timings
    finish: str | None
    ended: bool
    text: str = field(repr=False)
    times_s: tuple[float, ...] = field(repr=False)
    counted: int | None = None
    """Tokens of its text by a tokenizer, where the server does not count them."""

    @property
    def tokens(self) -> int | None:
        """Of the answer, by the server's own count, else by a tokenizer; None: unknown."""
        return self.usage.completion if self.usage.completion is not None else self.counted

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """From each chunk to the next."""
        return tuple(later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False))

    @property
    def empty(self) -> bool:
        """Whether there is nothing that a user would see: all of it may have been reasoning."""
        return self.visible == 0 and self.tool_calls == 0

    @property
    def steady(self) -> Steady | None:
        """The part of it in which chunks come evenly."""
        return steady.find(self.times_s)

    @property
    def steady_tokens_per_s(self) -> float | None:
        """As `tokens_per_s`, of that part."""
        found, tokens = self.steady, self.tokens
        if found is None or tokens is None or tokens < self.chunks:
            return None
        return tokens / self.chunks * found.chunks_per_s

    @property
    def chunks_per_s(self) -> float | None:
        """After the first one."""
        span = self._span()
        return None if span is None else (self.chunks - 1) / span

    @property
    def tokens_per_s(self) -> float | None:
        """After the first chunk, whose share of the tokens is taken to be that of any other; None where nobody counts
        them."""
        span, tokens = self._span(), self.tokens
        if span is None or tokens is None or tokens < self.chunks:
            return None
        return tokens * (1 - 1 / self.chunks) / span

    @property
    def computed_prompt(self) -> int | None:
        """Tokens of the prompt that were computed for this answer and came from no cache."""
        if self.timings.prompt_tokens is not None:
            return self.timings.prompt_tokens
        if self.usage.prompt is None:
            return None
        return max(0, self.usage.prompt - (self.usage.cached or 0))

    def _span(self) -> float | None:
        if self.first_s is None or self.last_s is None or self.chunks < 2 or self.last_s <= self.first_s:
            return None
        return self.last_s - self.first_s


@define
class Collector:
    """Takes the events of one answer in turn."""

    keep_text: bool = True
    keep_reasoning: bool = False
    _first: float | None = None
    _first_visible: float | None = None
    _last: float | None = None
    _chunks: int = 0
    _visible: int = 0
    _reasoning: int = 0
    _calls: int = 0
    _usage: Usage = Usage()
    _timings: Timings = Timings()
    _finish: str | None = None
    _ended: bool = False
    _text: list[str] = field(factory=list)
    _times: list[float] = field(factory=list)

    @property
    def begun(self) -> bool:
        """Whether anything of an answer has come."""
        return self._first is not None

    @property
    def chunks(self) -> int:
        """That carried text so far."""
        return self._chunks

    def take(self, event: Mapping[str, Any] | None, at_s: float) -> None:
        """One event, None: the mark of the end. Raises `ServerError`, `ProtocolError`."""
        if event is None:
            self._ended = True
            return
        if event.get("error"):
            raise ServerError(error_text(event))
        self._counts(event)
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices:
            return  # a last event with the usage alone, or none at all
        choice = choices[0]
        if not isinstance(choice, dict):
            raise ProtocolError("a choice that is no object")
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._finish = printable(reason)[:40]
        delta = choice.get("delta", choice.get("message"))
        if isinstance(delta, dict):
            visible = _text(delta.get("content"))
            reasoning = next((found for name in _REASONING if (found := _text(delta.get(name)))), "")
            calls = delta.get("tool_calls")
            called = len(calls) if isinstance(calls, list) else 0
        else:
            visible, reasoning, called = _text(choice.get("text")), "", 0
        if not visible and not reasoning and not called:
            return  # it says who speaks, or that the end has come: no token
        self._chunks += 1
        self._visible += len(visible)
        self._reasoning += len(reasoning)
        self._calls += called
        if self._first is None:
            self._first = at_s
        self._times.append(at_s)
        if self._first_visible is None and (visible or called):
            self._first_visible = at_s
        self._last = at_s
        if self.keep_text and (visible or (reasoning and self.keep_reasoning)):
            self._text.append(visible or reasoning)

    def answer(self, begun_s: float = 0.0) -> Answer:
        """What came so far."""
        return Answer(
            begun_s,
            self._first,
            self._first_visible,
            self._last,
            self._chunks,
            self._visible,
            self._reasoning,
            self._calls,
            self._usage,
            self._timings,
            self._finish,
            self._ended or self._finish is not None,
            "".join(self._text),
            tuple(self._times),
        )

    def _counts(self, event: Mapping[str, Any]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self._usage = Usage(
                _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached)
            )
        timings = event.get("timings")
        if isinstance(timings, dict):
            self._timings = Timings(
                _count(timings.get("prompt_n")),
                _rate(timings.get("prompt_per_second")),
                _count(timings.get("predicted_n")),
                _rate(timings.get("predicted_per_second")),
            )


def error_text(body: Mapping[str, Any]) -> str:
    """The message of an error that a server answered with."""
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return printable(str(message or "an error without a text"))[:300]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT:
        return value
    return None


def _rate(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    return None
