"""Streams as servers send them: what is a token, which channel, what is counted by whom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k3gate.serving.answers import Answer, Collector, Events, ProtocolError, ServerError, decoded
from tests.serving.misbehaving_server import END, finish, text, usage

Timed = list[tuple[float, Any]]


def collected(*events: tuple[float, Any]) -> Answer:
    """The answer of events at their seconds, sent as bytes and read back."""
    reader, collector = Events(), Collector()
    for at, event in events:
        raw = event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
        for data in reader.feed(b"data: [DONE]\n\n" if event == END else raw):
            collector.take(decoded(data), at)
    return collector.answer()


LAST = {
    "without choices": {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    "with the key absent": {"usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    "with choices null": {"choices": None, "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
}


@pytest.mark.case("SRV-09")
@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
def test_srv_09_a_chunk_without_choices_is_no_token(last: dict[str, Any]) -> None:
    found = collected(
        (0.1, text(None, role="assistant")),
        (1.0, text("a")),
        (1.5, b": keep-alive\n\n"),
        (1.6, b"data:\n\n"),
        (2.0, text("b")),
        (5.0, finish("stop")),
        (9.0, last),
        (9.5, END),
    )
    assert (found.first_s, found.last_s, found.chunks) == (1.0, 2.0, 2)
    assert (found.usage.prompt, found.usage.completion) == (7, 2)
    assert (found.finish, found.ended, found.text) == ("stop", True, "ab")


@pytest.mark.case("SRV-10")
def test_srv_10_the_first_token_may_be_reasoning() -> None:
    found = collected(
        (1.0, text(None, reasoning_content="a")),
        (2.0, text(None, reasoning="b")),
        (3.0, text(None)),
        (4.0, text("c")),
        (5.0, END),
    )
    assert (found.first_s, found.first_visible_s, found.chunks) == (1.0, 4.0, 3)
    assert (found.reasoning, found.visible, found.empty) == (2, 1, False)


@pytest.mark.case("SRV-10")
def test_srv_10_an_answer_that_ends_within_reasoning_is_valid_for_speed_and_empty() -> None:
    found = collected(
        *((float(at), text(None, reasoning_content="x")) for at in range(1, 11)),
        (11.0, finish("length")),
        (11.0, usage(5, 10)),
        (11.0, END),
    )
    assert found.tokens_per_s == pytest.approx(1.0)
    assert found.first_visible_s is None
    assert found.empty


@pytest.mark.case("SRV-11")
def test_srv_11_chunks_are_not_tokens() -> None:
    chunks = [(1.0 + 10 * at / 40, text("four of them ")) for at in range(41)]
    found = collected(*chunks[:40], (11.0, usage(5, 160)), (11.0, END))
    assert found.tokens_per_s == pytest.approx(16.0, rel=0.01)
    assert found.chunks_per_s == pytest.approx(4.0, rel=0.01)
    uncounted = collected(*chunks[:40], (11.0, END))
    assert uncounted.tokens_per_s is None, "what is not counted is not known"
    assert uncounted.chunks_per_s == pytest.approx(4.0, rel=0.01)


@pytest.mark.case("SRV-11")
def test_srv_11_the_servers_own_clock_is_kept() -> None:
    timings = {"prompt_n": 5, "prompt_per_second": 50.0, "predicted_n": 160, "predicted_per_second": 16.2}
    found = collected((1.0, text("a")), (2.0, {"choices": [], "timings": timings}), (2.0, END))
    assert found.timings.predicted_per_s == 16.2
    assert found.computed_prompt == 5


@pytest.mark.case("SRV-11")
@pytest.mark.parametrize("count", [-1, 1.5, True, "160", 10**12, None])
def test_srv_11_a_count_that_is_none_is_not_believed(count: object) -> None:
    found = collected(
        (1.0, text("a")), (2.0, text("b")), (3.0, {"usage": {"completion_tokens": count}}), (3.0, END)
    )
    assert found.usage.completion is None
    assert found.tokens_per_s is None


def test_a_server_that_counts_fewer_tokens_than_chunks_is_not_believed() -> None:
    found = collected(*((float(at), text("x")) for at in range(1, 9)), (9.0, usage(5, 3)), (9.0, END))
    assert found.tokens_per_s is None


def test_completions_are_read_too() -> None:
    row = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
    found = collected((1.0, row), (2.0, row), (3.0, usage(4, 2)), (3.0, END))
    assert (found.chunks, found.text, found.tokens_per_s) == (2, "aa", pytest.approx(1.0))


def test_bytes_may_come_in_any_portions() -> None:
    raw = b'data: {"choices": [{"delta": {"content": "\xc3\xa4"}}]}\r\n\r\n: x\r\n\r\ndata: [DONE]\r\n\r\n'
    reader, got = Events(), []
    for at in range(len(raw)):
        got += list(reader.feed(raw[at : at + 1]))
    assert [decoded(one) for one in got] == [{"choices": [{"delta": {"content": "ä"}}]}, None]


@pytest.mark.parametrize(
    "raw", [b"data: {\n\n", b"data: []\n\n", b"data: 3\n\n", b"data: " + b"[" * 100_000 + b"\n\n"]
)
def test_what_is_no_event_is_a_fault_of_the_server(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        collected((0.0, raw))


def test_a_stream_without_an_end_of_line_is_bounded() -> None:
    reader = Events()
    with pytest.raises(ProtocolError, match="a line of more than"):
        for _ in range(100):
            list(reader.feed(b"x" * 100_000))


def test_an_error_within_a_stream_is_the_servers() -> None:
    with pytest.raises(ServerError, match="out of memory"):
        collected((1.0, text("a")), (2.0, {"error": {"message": "out of memory", "code": 500}}))
