"""Log-probabilities in two schemas, what is no number among them, and answers that part at near ties."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from k3gate.serving import client, scored
from k3gate.serving.answers import decoded
from k3gate.serving.client import Endpoint, Limits
from k3gate.serving.divergence import (
    DIFFERENT,
    NEAR,
    SAME,
    Inputs,
    UnequalInputsError,
    check_inputs,
    compare,
)
from k3gate.serving.logprobs import NotANumberError, NotEvaluatedError, Position, Token, read
from tests.serving.misbehaving_server import MisbehavingServer, running

QUICK = Limits(connect_s=5, first_token_s=30, idle_s=30)
CONTENT = {
    "content": [
        {
            "token": "a",
            "logprob": -0.1,
            "bytes": [97],
            "top_logprobs": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5, "bytes": None}],
        },
    ]
}
LEGACY = {
    "tokens": ["a"],
    "token_logprobs": [-0.1],
    "top_logprobs": [{"a": -0.1, "b": -2.5}],
    "text_offset": [0],
}


@pytest.mark.case("SRV-01")
@pytest.mark.parametrize(
    "choice",
    [
        {"text": "a", "logprobs": None, "finish_reason": "length"},
        {"message": {"content": "a"}, "finish_reason": "length"},
        {"logprobs": {}},
        {"logprobs": {"content": None}},
    ],
)
def test_srv_01_no_log_probabilities_are_not_evaluated_and_no_difference_of_zero(
    choice: dict[str, Any],
) -> None:
    with pytest.raises(
        NotEvaluatedError, match=r"returns no log-probabilities: ask it by its native endpoint"
    ):
        read(choice)


@pytest.mark.case("SRV-02")
@pytest.mark.parametrize("way", ["chat", "completion"])
@pytest.mark.parametrize(("told", "schema"), [(CONTENT, "content"), (LEGACY, "legacy")])
def test_srv_02_both_schemas_are_read_at_both_endpoints(way: str, told: dict[str, Any], schema: str) -> None:
    def answer(body: dict[str, Any], _: int) -> tuple[int, dict[str, Any]]:
        return 200, {
            "choices": [{"logprobs": told, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 5},
        }

    found = ask(answer, way)
    assert found.logprobs.schema == schema
    (position,) = found.logprobs.positions
    assert (position.token.text, position.token.logprob) == ("a", -0.1)
    assert [(one.text, one.logprob) for one in position.alternatives] == [("a", -0.1), ("b", -2.5)]
    assert position.gap == pytest.approx(2.4)
    assert found.inputs.count == 5


@pytest.mark.case("SRV-02")
def test_srv_02_tokens_of_one_text_do_not_overwrite_each_other() -> None:
    twice = [{"token": "\ufffd", "logprob": -0.2}, {"token": "\ufffd", "logprob": -3.0, "bytes": [191]}]
    listed = {"content": [{"token": "\ufffd", "logprob": -0.2, "top_logprobs": twice}]}
    older = {"tokens": ["x"], "token_logprobs": [-0.2], "top_logprobs": [[["x", -0.2], ["x", -3.0]]]}
    for told in (listed, older):
        found = read({"logprobs": told})
        assert [one.logprob for one in found.positions[0].alternatives] == [-0.2, -3.0]
        assert found.duplicates == 1


@pytest.mark.case("SRV-04")
def test_srv_04_what_is_impossible_is_counted_and_left_out_of_means() -> None:
    raw = (
        b'{"choices": [{"logprobs": {"content": ['
        b'{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}, '
        b'{"token": "b", "logprob": null}, {"token": "c", "logprob": -9999.0}, {"token": "d", "logprob": -Infinity}]},'
        b'{"token": "e", "logprob": -Infinity, "top_logprobs": []}, {"token": "f", "logprob": -1.5}]}}]}'
    )
    told = decoded(raw)
    assert told is not None
    found = read(told["choices"][0])
    assert found.mean == pytest.approx(-1.0)
    assert found.impossible == 4
    assert found.positions[0].gap is None, "one possible token has no second"


@pytest.mark.case("SRV-04")
def test_srv_04_what_is_no_number_is_a_fault_of_the_server() -> None:
    told = decoded(b'{"choices": [{"logprobs": {"content": [{"token": "a", "logprob": NaN}]}}]}')
    assert told is not None
    with pytest.raises(NotANumberError, match="a fault of the server"):
        read(told["choices"][0])


@pytest.mark.case("SRV-04")
def test_srv_04_a_500_is_asked_again_with_fewer_alternatives_once() -> None:
    failing = (500, {"error": {"message": "Out of range float values are not JSON compliant"}})

    def sometimes(body: dict[str, Any], _: int) -> tuple[int, dict[str, Any]]:
        return failing if body["top_logprobs"] > 5 else (200, {"choices": [{"logprobs": CONTENT}]})

    assert ask(sometimes).alternatives == 5
    asked = []

    def never(body: dict[str, Any], _: int) -> tuple[int, dict[str, Any]]:
        asked.append(body["top_logprobs"])
        return failing

    with pytest.raises(scored.ServerDefectError, match="Out of range float values"):
        ask(never)
    assert asked == [20, 5]


def ask(answer: Any, way: str = "chat") -> scored.Scored:
    server = MisbehavingServer(answer)
    with running(server):

        async def once() -> scored.Scored:
            async with client.open_client(QUICK, 1) as opened:
                return await scored.ask(opened, Endpoint(server.url, "m", way), "hello", 4, 20, QUICK)

        return asyncio.run(once())


def greedy(texts: str, gaps: dict[int, float]) -> list[Position]:
    return [
        Position(Token(text, -0.1), (Token(text, -0.1), Token("?", -0.1 - gaps.get(at, 5.0))))
        for at, text in enumerate(texts)
    ]


@pytest.mark.case("SRV-06")
def test_srv_06_a_near_tie_is_accepted_and_a_clear_difference_is_not() -> None:
    same = "x" * 57
    near = compare(greedy(same + "abc", {57: 0.02}), greedy(same + "dbc", {57: 0.03}))
    assert (near.kind, near.at, near.scored) == (NEAR, 57, 57)
    clear = compare(greedy(same + "abc", {57: 3.5}), greedy(same + "dbc", {57: 3.5}))
    assert (clear.kind, clear.at, clear.gap) == (DIFFERENT, 57, pytest.approx(3.5))
    equal = compare(greedy(same, {}), greedy(same, {}))
    assert (equal.kind, equal.at, equal.scored) == (SAME, None, 57)
    shorter = compare(greedy(same, {}), greedy(same[:-1], {}))
    assert (shorter.kind, shorter.at) == (DIFFERENT, 56), "an end is a token too"


@pytest.mark.case("SRV-07")
def test_srv_07_unequal_inputs_stop_a_comparison_at_the_first_token_that_differs() -> None:
    with pytest.raises(UnequalInputsError, match=r"from token 1 on: 1 and 529 \(3 and 2 tokens\)"):
        check_inputs(Inputs((1, 1, 529)), Inputs((1, 529)))
    with pytest.raises(UnequalInputsError, match="41 and 40 tokens"):
        check_inputs(Inputs(count=41), Inputs(count=40))
    with pytest.raises(UnequalInputsError, match="not known"):
        check_inputs(Inputs(count=41), Inputs())
    check_inputs(Inputs((1, 529), 2), Inputs((1, 529), 2))
    check_inputs(Inputs((1, 529)), Inputs(count=2))


@pytest.mark.case("SRV-07")
@pytest.mark.parametrize("ids", [[1, 1, 529], [1, 529]])
def test_srv_07_a_server_is_asked_for_the_ids_of_a_prompt(ids: list[int]) -> None:
    server = MisbehavingServer(lambda _, __: (200, {"tokens": ids}))
    deaf = MisbehavingServer(lambda _, __: (404, {"error": "no such path"}))
    with running(server), running(deaf):

        async def once(url: str) -> list[int] | None:
            async with client.open_client(QUICK, 1) as opened:
                return await client.tokenize(opened, Endpoint(url, "m"), "hello", QUICK)

        assert asyncio.run(once(server.url)) == ids
        assert asyncio.run(once(deaf.url)) is None
