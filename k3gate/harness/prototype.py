"""An endpoint driven, and what came of it told: figures of whatever answers there, until its files are known."""

from __future__ import annotations

import asyncio
from typing import Any

from k3gate.errors import UsageError
from k3gate.serving import client
from k3gate.serving.client import BrokenError, Endpoint, Limits, ProtocolError, ServerError, TooSlowError
from k3gate.serving.load import Driver, Say, Wanted

NO_EVIDENCE = (
    "These figures are of whatever answers there. Which files it has open cannot be told from here, so that they are "
    "no evidence for a target (prototype.served_identity stays unproven)."
)


def driver(url: str, model: str | None, way: str, wanted: Wanted, limits: Limits, say: Say) -> Driver:
    """What drives an endpoint; its model is the only one that it offers, where none is named. `UsageError` where
    nothing answers."""
    base, key = client.endpoint_url(url), client.key_of()
    if model is None:
        model = _only(base, asyncio.run(_models(base, key, limits)))
    return Driver(Endpoint(base, model, way, key), wanted, limits, say)


async def _models(base: str, key: str | None, limits: Limits) -> list[str]:
    async with client.open_client(limits, 1) as opened:
        try:
            return await client.models(opened, base, key)
        except BrokenError as error:
            raise UsageError(
                f"{base}: {error}; start the server, or name it with --model if it lists none"
            ) from None


def _only(base: str, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(f"{base} lists no models: name the one to ask with --model")
    few = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
    raise UsageError(f"{base} offers {len(names)} models: say with --model which one: {few}")


def drive(made: Driver) -> None:
    """All its readings; `UsageError` where the first question is not answered. An interruption leaves what was read."""
    try:
        asyncio.run(made.run())
    except (BrokenError, ServerError, ProtocolError, TooSlowError) as error:
        raise UsageError(
            f"{made.endpoint.url} does not answer the first question: {error}; look into its log"
        ) from None


def document(made: Driver, interrupted: bool) -> dict[str, Any]:
    """As `--json` has it."""
    return {
        "endpoint": made.endpoint.url,
        "model": made.endpoint.model,
        "way": made.endpoint.way,
        "interrupted": interrupted,
        "served_identity": "unproven",
        "note": NO_EVIDENCE,
        "readings": [one.document() for one in made.readings],
    }
