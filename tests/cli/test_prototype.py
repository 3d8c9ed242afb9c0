"""`k3gate prototype` against a server that answers as told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Cli
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

KEY = "sk-very-secret-0123"


def good(body: dict[str, Any], _: int) -> Script:
    size = len(body["messages"][0]["content"])
    return [*([text("a"), 0.005] * 4), finish("length"), usage(size, 4), END]


def test_a_server_is_measured_and_is_no_evidence(cli: Cli) -> None:
    with running(MisbehavingServer(good)) as server:
        asked = ("prototype", "--endpoint", server.url, "--prompts", "64", "--tokens", "4", "--streams", "2")
        done = cli(*asked, "--json", env={"K3GATE_API_KEY": KEY})
        shown = cli(*asked, env={"K3GATE_API_KEY": KEY})
    assert (done.code, shown.code) == (0, 0), done.err + shown.err
    document = done.json()
    assert (document["model"], document["served_identity"]) == ("m", "unproven")
    alone, many = document["readings"]
    assert len(alone["decode_tokens_per_s"]) == 3
    assert len(many["answers"]) == 6
    assert "they are no evidence for a target" in " ".join(shown.out.split())
    assert KEY not in done.out + done.err + shown.out + shown.err


def test_a_server_that_goes_away_leaves_what_came_and_exit_4(cli: Cli) -> None:
    def answer(body: dict[str, Any], number: int) -> Script:
        return good(body, number) if number < 5 else [text("a"), HANG_UP]

    with running(MisbehavingServer(answer)) as server:
        done = cli("prototype", "--endpoint", server.url, "--prompts", "64", "--tokens", "4", "--json")
    assert done.code == 4
    (reading,) = done.json()["readings"]
    assert len(reading["answers"]) == 2
    assert len(reading["failures"]) == 1


def test_which_model_is_meant_must_be_said_where_there_are_several(cli: Cli) -> None:
    with running(MisbehavingServer(good, models=["one", "two"])) as server:
        told = cli("prototype", "--endpoint", server.url).complaint()
    assert "offers 2 models: say with --model which one: one, two" in told


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--endpoint", "http://127.0.0.1:9"), "does not answer"),
        (("--endpoint", "http://127.0.0.1:9", "--model", "m"), "does not answer the first question"),
        (("--endpoint", "http://u:p@box"), "holds no password"),
        (("--endpoint", "http://box", "--prompts", "12"), "--prompts"),
        (("--endpoint", "http://box", "--prompts", "many"), "--prompts"),
        (("--endpoint", "http://box", "--rounds", "1"), "--rounds"),
        ((), "--endpoint"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: tuple[str, ...], word: str) -> None:
    assert word in cli("prototype", *arguments).complaint()
