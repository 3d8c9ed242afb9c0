"""Asks an OpenAI-compatible server for answers, streamed, many at once, with patience for slow machines.

Three limits stand apart: to connect, until the first token, and between tokens. What goes beyond one is too slow, which
is not broken. The API key comes from the environment, goes into one header and is taken out of whatever a server says.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
from attrs import field, frozen

from k3gate import __version__
from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.serving.answers import (
    MOST_EVENT,
    Answer,
    Collector,
    Events,
    ProtocolError,
    ServerError,
    decoded,
    error_text,
)
from k3gate.units import count

KEY = "K3GATE_API_KEY"
Client = httpx2.AsyncClient
_MOST_BODY = 1 << 20
_TRIES = 3
_AGAIN = (429, 503)
_WAIT_SECONDS = 1.0
_WAYS = {"chat": "chat/completions", "completion": "completions"}


class TooSlowError(Exception):
    """A limit was exceeded; the text says which. The server may well work."""


class BrokenError(Exception):
    """The server could not be reached, refused, or went away; the text says how."""


@frozen
class Limits:
    """Seconds. A model of trillions of parameters may read a prompt for half an hour."""

    connect_s: float = 30.0
    first_token_s: float = 1800.0
    idle_s: float = 600.0


@frozen
class Endpoint:
    """Where to ask, for which model, and in which way ("chat", "completion")."""

    url: str
    model: str
    way: str = "chat"
    key: str | None = field(default=None, repr=False)

    def hidden(self, text: str) -> str:
        """A text of the server without the key, should it repeat it."""
        return printable(text.replace(self.key, "(the key)") if self.key else text)


def endpoint_url(text: str) -> str:
    """The base of an endpoint, as .../v1; `UsageError` for what is none."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{printable(text)[:100]!r} is no endpoint: write one like http://127.0.0.1:8080/v1")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"an endpoint holds no password: put the key into {KEY}")
    if parts.query or parts.fragment:
        raise UsageError(f"{printable(text)[:100]!r} has a query: write the base alone, up to /v1")
    path = parts.path.rstrip("/")
    for ending in _WAYS.values():
        path = path.removesuffix(f"/{ending}")
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def key_of(environment: Mapping[str, str] = os.environ) -> str | None:
    """The API key; None where there is none."""
    return environment.get(KEY, "").strip() or None


def open_client(limits: Limits, streams: int) -> httpx2.AsyncClient:
    """A client for so many streams. No proxy and no redirect: figures are of the server that was named. Each request
    has a connection of its own, as one that a server is about to close cannot be told from one that it keeps."""
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=limits.connect_s),
        limits=httpx2.Limits(max_connections=streams, max_keepalive_connections=0),
        trust_env=False,
        follow_redirects=False,
        headers={"User-Agent": f"k3gate/{__version__}", "Accept-Encoding": "identity"},
    )


async def models(client: httpx2.AsyncClient, url: str, key: str | None) -> list[str]:
    """Names of the models that the server offers. Raises `BrokenError`."""
    endpoint = Endpoint(url, "", key=key)
    try:
        response = await client.get(f"{url}/models", headers=_headers(endpoint), timeout=30.0)
        body = response.json() if response.status_code == 200 else {}
    except (httpx2.HTTPError, ValueError) as error:
        raise BrokenError(f"it does not answer: {endpoint.hidden(_cause(error))}") from None
    if response.status_code != 200:
        raise BrokenError(f"it answers {response.status_code} when asked for its models")
    rows = body.get("data") if isinstance(body, dict) else None
    names = [row.get("id") for row in rows or () if isinstance(row, dict)]
    return [printable(name)[:200] for name in names if isinstance(name, str)]


async def whole(
    client: httpx2.AsyncClient, endpoint: Endpoint, url: str, body: Mapping[str, Any], limits: Limits
) -> dict[str, Any]:
    """An answer that is not streamed, as its object. Raises as `ask` does."""
    headers = {"Content-Type": "application/json", **_headers(endpoint)}
    try:
        async with (
            asyncio.timeout(limits.connect_s + limits.first_token_s),
            client.stream("POST", url, content=json.dumps(body).encode(), headers=headers) as response,
        ):
            if response.status_code != 200:
                told = endpoint.hidden(await _said(response))
                raise ServerError(f"{response.status_code}: {told}", response.status_code)
            raw = b""
            async for part in response.aiter_raw():
                raw += part
                if len(raw) > MOST_EVENT:
                    raise ProtocolError(f"an answer of more than {MOST_EVENT:,} bytes")
    except TimeoutError:
        raise TooSlowError(f"no answer within {limits.first_token_s:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise BrokenError(endpoint.hidden(_cause(error))) from None
    found = decoded(raw)
    if found is None:
        raise ProtocolError("an answer that is no object")
    return found


async def tokenize(
    client: httpx2.AsyncClient, endpoint: Endpoint, text: str, limits: Limits, *, special: bool = True
) -> list[int] | None:
    """The ids of a text's tokens as the server tells them (llama-server, vLLM); None where it does not. `special`: with
    those that begin a prompt."""
    marks = {"add_special": special, "add_special_tokens": special}
    body = {"content": text, "prompt": text, "model": endpoint.model, **marks}
    root = endpoint.url.removesuffix("/v1")
    for url in (f"{root}/tokenize", f"{endpoint.url}/tokenize"):
        try:
            found = (await whole(client, endpoint, url, body, limits)).get("tokens")
        except (ServerError, BrokenError, ProtocolError, TooSlowError):
            continue
        if isinstance(found, list) and all(type(one) is int for one in found):
            return found
    return None


def request(endpoint: Endpoint, prompt: str, tokens: int) -> dict[str, Any]:
    """The body: greedy, with usage at the end, and without a prompt's cache where the server knows how."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if endpoint.way == "chat":
        return {**body, "messages": [{"role": "user", "content": prompt}]}
    return {**body, "prompt": prompt}


async def ask(
    client: httpx2.AsyncClient,
    endpoint: Endpoint,
    prompt: str,
    tokens: int,
    limits: Limits,
    origin: float | None = None,
    alive: Callable[[int], None] | None = None,
    collector: Collector | None = None,
    tries: int = _TRIES,
    retried: Callable[[], None] = lambda: None,
) -> Answer:
    """One answer. Times count from `origin` (a `time.perf_counter()`, default: now); that of the request
    is when it was sent over its connection; `alive` is called with the chunks
    so far, `retried` where a server is busy and asked again. What came before a failure stays in `collector`.

    Raises `TooSlowError`, `BrokenError`, `ServerError`, `ProtocolError`.
    """
    origin = time.perf_counter() if origin is None else origin
    collector = Collector() if collector is None else collector
    body = json.dumps(request(endpoint, prompt, tokens)).encode()
    for attempt in range(tries):
        sent = _Sent()
        try:
            status = await _one(client, endpoint, body, limits, origin, alive, collector, sent)
        except TimeoutError:
            raise TooSlowError(_too_slow(collector, limits)) from None
        except httpx2.ConnectTimeout:
            raise TooSlowError(f"no connection within {limits.connect_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise BrokenError(endpoint.hidden(_cause(error))) from None
        except ServerError as error:
            raise ServerError(endpoint.hidden(str(error)), error.status) from None
        if status is None:
            return collector.answer(sent.at - origin)
        if attempt + 1 < tries:
            retried()
            await asyncio.sleep(_WAIT_SECONDS * 2**attempt)
    raise BrokenError(f"it answered {status} {count(tries, 'time')}: it is busy")


class _Sent:
    """When a request left: with many at once some wait for their turn, and all for their connection."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    async def trace(self, name: str, _: Mapping[str, Any]) -> None:
        if name.endswith("send_request_headers.started"):
            self.at = time.perf_counter()


async def _one(
    client: httpx2.AsyncClient,
    endpoint: Endpoint,
    body: bytes,
    limits: Limits,
    origin: float,
    alive: Callable[[int], None] | None,
    collector: Collector,
    sent: _Sent,
) -> int | None:
    """None where an answer came, else the status of a server that is busy."""
    loop = asyncio.get_running_loop()
    headers = {"Content-Type": "application/json", **_headers(endpoint)}
    url = f"{endpoint.url}/{_WAYS[endpoint.way]}"
    async with (
        asyncio.timeout(limits.connect_s + limits.first_token_s) as limit,
        client.stream(
            "POST", url, content=body, headers=headers, extensions={"trace": sent.trace}
        ) as response,
    ):
        if response.status_code in _AGAIN:
            return int(response.status_code)
        if response.status_code != 200:
            raise ServerError(f"{response.status_code}: {await _said(response)}", response.status_code)
        events, seen = Events(), collector.chunks
        async for raw in response.aiter_raw():
            now = time.perf_counter() - origin
            for data in events.feed(raw):
                collector.take(decoded(data), now)
            if collector.chunks != seen:
                seen = collector.chunks
                limit.reschedule(loop.time() + limits.idle_s)
                if alive is not None:
                    alive(seen)
        for data in events.end():
            collector.take(decoded(data), time.perf_counter() - origin)
    if not collector.answer().ended:
        raise BrokenError(
            f"the stream ended after {collector.chunks} chunks without a mark of its end: the server went away"
        )
    return None


async def _said(response: httpx2.Response) -> str:
    """The text of an error's body, of bounded size."""
    raw = b""
    async for part in response.aiter_raw():
        raw += part
        if len(raw) > _MOST_BODY:
            break
    try:
        found = json.loads(raw[:_MOST_BODY])
        return error_text(found if "error" in found else {"error": found})
    except (ValueError, TypeError, RecursionError):
        return printable(raw[:200].decode("utf-8", "replace")) or "an error without a text"


def _headers(endpoint: Endpoint) -> dict[str, str]:
    return {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}


def _too_slow(collector: Collector, limits: Limits) -> str:
    if collector.begun:
        return f"no token for {limits.idle_s:g} s after {collector.chunks} chunks"
    return f"no first token within {limits.first_token_s:g} s"


def _cause(error: Exception) -> str:
    text = str(error).strip()
    return text[:200] if text else type(error).__name__


__all__ = [
    "KEY",
    "BrokenError",
    "Client",
    "Endpoint",
    "Limits",
    "ProtocolError",
    "ServerError",
    "TooSlowError",
    "ask",
    "endpoint_url",
    "key_of",
    "models",
    "open_client",
    "request",
    "tokenize",
    "whole",
]
