"""From a server's start to its first answer: where it listens, which model it offers, and that it really answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from attrs import frozen

from k3gate.errors import ProbeError
from k3gate.serving import client, prompts
from k3gate.serving.client import BrokenError, Endpoint, Limits, ProtocolError, ServerError, TooSlowError
from k3gate.serving.failures import WORDS, Kind
from k3gate.serving.observing import Observer
from k3gate.serving.server import Server

_AGAIN_SECONDS = 0.1
_MODELS_SECONDS = 5.0
_SETTLE_SECONDS = 60.0
"""For how long a server that answers, and refuses every question, is asked again."""


@frozen
class Ready:
    """Where it answers, and the seconds from its start to its first answer."""

    endpoint: Endpoint
    seconds: float


def not_started(server: Server) -> ProbeError:
    """Why a server ended before it answered, in one sentence."""
    why = server.why()
    conflicts = f" ({'; '.join(why.conflicts)})" if why.conflicts else ""
    return ProbeError(f"the server did not start, {server.ended}. {why.told}{conflicts}")


def unsupported(reason: str | None) -> bool:
    """Whether the reason of a case says that the runtime does not know the architecture."""
    return WORDS[Kind.ARCHITECTURE] in (reason or "")


async def wait(
    server: Server,
    observer: Observer,
    *,
    model: str | None,
    way: str,
    key: str | None,
    limits: Limits,
    load_s: float,
    beat: Callable[[str], None],
) -> Ready:
    """Ask until it answers. Raises `ProbeError` where it ends before, or takes longer than `load_s`."""
    until = server.begun + load_s
    refused: dict[str, float] = {}
    async with client.open_client(limits, 1) as opened:
        while True:
            if not server.alive:
                raise not_started(server)
            if time.monotonic() > until:
                raise ProbeError(
                    f"the server did not answer within {load_s:,.0f} s: too slow, or it waits for something"
                )
            beat(f"loading, {time.monotonic() - server.begun:,.0f} s")
            for url in urls(observer.listening):
                names = await _models(opened, url, key)
                if names is not None and len(names) > 1 and model is None:
                    few = ", ".join(names[:5])
                    raise ProbeError(f"the server offers {len(names)} models: say with --model which: {few}")
                name = model or next(iter(names or ()), None)
                if name is None:
                    continue
                endpoint = Endpoint(url, name, way, key)
                try:
                    await _first(opened, endpoint, limits)
                except ServerError as error:
                    # One that lists its models and refuses the question itself will not come to its senses; another
                    # port, which knows neither, is no matter.
                    begun = refused.setdefault(url, time.monotonic())
                    if names and time.monotonic() - begun > _SETTLE_SECONDS:
                        raise ProbeError(f"the server refuses its first question: {error}") from None
                except ProtocolError as error:
                    raise ProbeError(f"the server's answer cannot be read: {error}") from None
                except (BrokenError, TooSlowError):
                    continue
                else:
                    return Ready(endpoint, time.monotonic() - server.begun)
            await asyncio.sleep(_AGAIN_SECONDS)


async def _models(opened: client.Client, url: str, key: str | None) -> list[str] | None:
    """Names of the models that are offered; None where that is not told, or not yet."""
    try:
        return await asyncio.wait_for(client.models(opened, url, key), _MODELS_SECONDS)
    except (BrokenError, TimeoutError):
        return None


async def _first(opened: client.Client, endpoint: Endpoint, limits: Limits) -> None:
    prompt = prompts.prompt(1, random.SystemRandom())
    answer = await client.ask(opened, endpoint, prompt, 2, limits, tries=1)
    if not answer.ended:
        raise BrokenError("the first answer has no end")


def urls(listening: Sequence[tuple[str, int]]) -> list[str]:
    """Bases of endpoints, of each port once."""
    found: dict[int, str] = {}
    for address, port in sorted(listening, key=lambda one: one[1]):
        host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(address, address)
        found.setdefault(port, f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1")
    return list(found.values())
