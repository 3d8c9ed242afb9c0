"""An answer with log-probabilities, one request at a time, from a server that may fail over many alternatives."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from k3gate.serving import client, logprobs
from k3gate.serving.answers import ProtocolError, ServerError
from k3gate.serving.client import Client, Endpoint, Limits
from k3gate.serving.divergence import Inputs
from k3gate.serving.logprobs import Logprobs

_FEWER = 4
_PATHS = {"chat": "chat/completions", "completion": "completions"}


class ServerDefectError(Exception):
    """The server fails by itself over what it offers; the text says how."""


@frozen
class Scored:
    """`alternatives`: as many as it was asked for in the end; `inputs`: what it says that it read."""

    logprobs: Logprobs
    alternatives: int
    inputs: Inputs
    finish: str | None


async def ask(
    opened: Client, endpoint: Endpoint, prompt: str, tokens: int, alternatives: int, limits: Limits
) -> Scored:
    """Raises `ServerDefectError`, `logprobs.NotEvaluatedError`, `logprobs.NotANumberError`, and as `client.ask`."""
    for count in (alternatives, max(1, alternatives // _FEWER)):
        try:
            body = _body(endpoint, prompt, tokens, count)
            url = f"{endpoint.url}/{_PATHS[endpoint.way]}"
            return _read(await client.whole(opened, endpoint, url, body, limits), count)
        except ServerError as error:
            if error.status != 500:
                raise
            last = str(error)
    raise ServerDefectError(
        f"the server fails over log-probabilities, of {alternatives} alternatives and of fewer: {last}"
    )


def _body(endpoint: Endpoint, prompt: str, tokens: int, count: int) -> dict[str, Any]:
    body = client.request(endpoint, prompt, tokens)
    del body["stream"], body["stream_options"]
    if endpoint.way == "chat":
        return {**body, "logprobs": True, "top_logprobs": count}
    return {**body, "logprobs": count}


def _read(answer: dict[str, Any], count: int) -> Scored:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ProtocolError("an answer without a choice")
    usage = answer.get("usage")
    told = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    reason = choices[0].get("finish_reason")
    return Scored(
        logprobs.read(choices[0]),
        count,
        Inputs(count=told if type(told) is int else None),
        reason if isinstance(reason, str) else None,
    )
