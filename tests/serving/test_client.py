"""The client against a server that misbehaves: slow, gone, busy, wrong, or telling the key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from k3gate.errors import UsageError
from k3gate.serving import client, tokenizers
from k3gate.serving.answers import Answer, Collector
from k3gate.serving.client import BrokenError, Endpoint, Limits, ServerError, TooSlowError
from k3gate.serving.load import Driver, Wanted
from tests.serving.misbehaving_server import (
    END,
    HANG_UP,
    MisbehavingServer,
    Script,
    finish,
    running,
    text,
    usage,
)

QUICK = Limits(connect_s=5, first_token_s=30, idle_s=30)
KEY = "sk-very-secret-0123"


def ask(
    script: Script | tuple[int, dict[str, Any]],
    limits: Limits = QUICK,
    key: str | None = None,
    collector: Collector | None = None,
) -> Answer:
    server = MisbehavingServer(lambda _, __: script)
    with running(server):

        async def once() -> Answer:
            async with client.open_client(limits, 1) as opened:
                endpoint = Endpoint(server.url, "m", key=key)
                return await client.ask(opened, endpoint, "hello", 8, limits, collector=collector)

        return asyncio.run(once())


def test_an_answer_comes_with_its_counts() -> None:
    found = ask([text(None, role="assistant"), text("a"), text("b"), finish("length"), usage(5, 2), END])
    assert (found.chunks, found.usage.completion, found.finish) == (2, 2, "length")
    assert found.first_s is not None
    assert found.first_s > found.begun_s


@pytest.mark.case("SRV-15")
def test_srv_15_minutes_without_a_byte_are_slow_and_not_broken() -> None:
    """As a server that reads a prompt for 400 s and then gives a token every 2.5 s, four hundred times as fast."""
    limits = Limits(connect_s=5, first_token_s=60, idle_s=30)
    script: Script = [1.0, *(step for _ in range(8) for step in (text("x"), 0.02)), usage(5, 8), END]
    found = ask(script, limits)
    assert found.chunks == 8
    assert (found.first_s or 0) - found.begun_s >= 1.0


@pytest.mark.case("SRV-15")
def test_srv_15_each_limit_is_told_as_what_it_is() -> None:
    with pytest.raises(TooSlowError, match=r"no first token within 0\.2 s"):
        ask([b": waiting\n\n", 20.0, text("x")], Limits(connect_s=0.1, first_token_s=0.2, idle_s=30))
    kept = Collector()
    with pytest.raises(TooSlowError, match=r"no token for 0\.3 s after 2 chunks"):
        ask([text("x"), text("y"), 20.0], Limits(connect_s=5, first_token_s=30, idle_s=0.3), collector=kept)
    assert kept.answer().chunks == 2, "what came is kept"
    assert Limits().first_token_s >= 1800


def test_signs_of_life_do_not_put_off_the_first_token_for_ever() -> None:
    alive: Script = [step for _ in range(200) for step in (b": alive\n\n", 0.02)]
    with pytest.raises(TooSlowError, match="no first token"):
        ask(alive, Limits(connect_s=0.1, first_token_s=0.3, idle_s=0.3))


def test_a_server_that_goes_away_is_broken_and_leaves_what_came() -> None:
    kept = Collector()
    with pytest.raises(BrokenError):
        ask([text("a"), text("b"), HANG_UP], collector=kept)
    assert kept.answer().chunks == 2
    with pytest.raises(BrokenError, match="without a mark of its end"):
        ask([text("a"), text("b")])


def test_nobody_there() -> None:
    async def once() -> None:
        async with client.open_client(QUICK, 1) as opened:
            await client.ask(opened, Endpoint("http://127.0.0.1:9/v1", "m"), "x", 8, QUICK)

    with pytest.raises(BrokenError):
        asyncio.run(once())


def test_a_busy_server_is_asked_again_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_WAIT_SECONDS", 0.01)
    with pytest.raises(BrokenError, match="503 3 times"):
        ask((503, {"error": "loading model"}))


@pytest.mark.case("SRV-04")
def test_srv_04_a_server_that_fails_over_a_number_says_so() -> None:
    with pytest.raises(ServerError, match="500: Out of range float values are not JSON compliant"):
        ask((500, {"error": {"message": "Out of range float values are not JSON compliant"}}))


@pytest.mark.case("SRV-04")
def test_srv_04_infinities_in_a_stream_are_read() -> None:
    row = b'data: {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [{"logprob": -Infinity}]}}]}\n\n'
    assert ask([row, END]).chunks == 1


def test_a_key_goes_into_one_header_and_out_of_every_text() -> None:
    server = MisbehavingServer(lambda _, __: (401, {"error": {"message": f"no such key: {KEY}"}}))
    with running(server):

        async def once() -> None:
            async with client.open_client(QUICK, 1) as opened:
                await client.ask(opened, Endpoint(server.url, "m", key=KEY), "x", 8, QUICK)

        with pytest.raises(ServerError) as caught:
            asyncio.run(once())
    assert KEY not in str(caught.value)
    assert "no such key: (the key)" in str(caught.value)
    assert any(f"authorization: bearer {KEY}" in head.lower() for head in server.headers)
    assert KEY not in repr(Endpoint(server.url, "m", key=KEY))


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("http://box:8080/v1/", "http://box:8080/v1"),
        ("https://box/api/v1/chat/completions", "https://box/api/v1"),
        ("http://[::1]:8000/v1/completions", "http://[::1]:8000/v1"),
    ],
)
def test_an_endpoint_is_its_base(given: str, base: str) -> None:
    assert client.endpoint_url(given) == base


@pytest.mark.parametrize(
    "given",
    [
        "",
        "box:8080",
        "ftp://box",
        "http://",
        "http://box:99999",
        "http://u:p@box/v1",
        "http://box/v1?key=1",
        "http://box:0",
    ],
)
def test_what_is_no_endpoint_is_bad_input(given: str) -> None:
    with pytest.raises(UsageError):
        client.endpoint_url(given)


# --- a measurement ---


def driven(server: MisbehavingServer, wanted: Wanted) -> Driver:
    with running(server):
        made = Driver(Endpoint(server.url, "m"), wanted, QUICK, lambda _: None)
        asyncio.run(made.run())
    return made


def spelled(body: dict[str, Any], cached: int = 0, tokens: int = 4) -> Script:
    """A server whose tokens are letters, four to an answer, two to a chunk."""
    size = len(body["messages"][0]["content"]) + 11
    return [*([text("ab"), 0.002] * (tokens // 2)), finish("length"), usage(size, tokens, cached), END]


@pytest.mark.case("SRV-13")
def test_srv_13_no_prompt_begins_as_another_one() -> None:
    server = MisbehavingServer(lambda body, _: spelled(body))
    made = driven(server, Wanted((64, 256), 4, 3, 3))
    texts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(texts) == 2 + 3 + 3 + 9
    assert len({" ".join(one.split()[:8]) for one in texts}) == len(texts)
    alone, longer, many = made.readings
    assert [len(one.answers) for one in made.readings] == [3, 3, 9]
    for reading, length in ((alone, 64), (longer, 256), (many, 64)):
        for answer in reading.answers:
            assert answer.usage.prompt == pytest.approx(length, abs=16)
    assert alone.cached == 0
    assert len(alone.prefill) == 3


@pytest.mark.case("SRV-13")
def test_srv_13_a_prompt_from_a_cache_is_no_reading() -> None:
    made = driven(MisbehavingServer(lambda body, _: spelled(body, cached=60)), Wanted((64,), 4, 1, 3))
    (reading,) = made.readings
    assert reading.prefill == ()
    assert reading.cached == 3
    assert "3 of 3 prompts came from a cache, though none was sent twice" in reading.notes
    assert reading.rates, "its decoding is measured all the same"


def test_the_server_is_asked_for_greedy_answers_with_their_counts() -> None:
    server = MisbehavingServer(lambda body, _: spelled(body))
    driven(server, Wanted((64,), 4, 1, 3))
    assert all(body["temperature"] == 0 and body["stream_options"]["include_usage"] for body in server.bodies)
    assert server.bodies[-1]["max_tokens"] == 4


def test_a_request_that_fails_costs_itself_alone() -> None:
    def answer(body: dict[str, Any], number: int) -> Script | tuple[int, dict[str, Any]]:
        return [text("a"), HANG_UP] if number == 4 else spelled(body)

    (reading,) = driven(MisbehavingServer(answer), Wanted((64,), 4, 1, 3)).readings
    assert len(reading.answers) == 2
    assert len(reading.failures) == 1
    assert reading.failures[0].startswith("failed after 1 chunks: ")


def test_a_server_that_counts_nothing_gives_rates_of_chunks() -> None:
    made = driven(
        MisbehavingServer(lambda _, __: [text("a"), 0.01, text("b"), finish("stop"), END]),
        Wanted((64,), 4, 1, 3),
    )
    (reading,) = made.readings
    assert reading.rates == ()
    assert len(reading.chunk_rates) == 3
    assert "the server counts no tokens: rates are of chunks" in reading.notes
    assert reading.together is None


def uncounted(body: dict[str, Any]) -> Script | tuple[int, dict[str, Any]]:
    """An answer of eight letters in four chunks, two of them reasoning, whose tokens nobody counts."""
    if "content" in body:
        return 200, {"tokens": list(range(len(body["content"])))}
    chunks = [text(None, reasoning_content="ab"), text(None, reasoning="cd"), text("ef"), text("gh")]
    return [*(step for one in chunks for step in (one, 0.01)), finish("length"), END]


@pytest.mark.case("SRV-11")
def test_srv_11_what_the_server_does_not_count_its_tokenizer_does() -> None:
    (reading,) = driven(MisbehavingServer(lambda body, _: uncounted(body)), Wanted((64,), 8, 1, 3)).readings
    assert [one.counted for one in reading.answers] == [8, 8, 8], "reasoning is output"
    assert reading.rates[0] == pytest.approx(2 * reading.chunk_rates[0])
    assert "the server counts no tokens: they were counted in the text, by a tokenizer" in reading.notes


@pytest.mark.case("SRV-11")
def test_srv_11_a_tokenizer_beside_the_checkpoint_counts_where_the_server_has_none(tmp_path: Path) -> None:
    deaf = MisbehavingServer(lambda body, _: (404, {"error": "no"}) if "content" in body else uncounted(body))
    with running(deaf):
        made = Driver(Endpoint(deaf.url, "m"), Wanted((64,), 8, 1, 3), QUICK, lambda _: None, count=len)
        asyncio.run(made.run())
    assert [one.counted for one in made.readings[0].answers] == [8, 8, 8]
    assert tokenizers.counter(None) is None
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    assert tokenizers.counter(str(broken)) is None


def test_a_tokenizer_file_counts_tokens(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers", reason="there is no tokenizers: pip install k3gate[tokens]")
    words = library.Tokenizer(library.models.WordLevel({"river": 0, "stone": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    count = tokenizers.counter(str(path))
    assert count is not None
    assert count("river stone river") == 3


def test_streams_together_are_counted_while_all_decode() -> None:
    def answer(body: dict[str, Any], number: int) -> Script:
        return [*([text("ab"), 0.01] * 30), finish("length"), usage(75, 60), END]

    made = driven(MisbehavingServer(answer), Wanted((64,), 60, 4, 3))
    alone, many = made.readings
    assert many.together is not None
    assert alone.together is not None
    assert many.together == pytest.approx(4 * alone.together, rel=0.5)
