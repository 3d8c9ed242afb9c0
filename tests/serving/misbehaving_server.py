"""A server of ours that answers as told, well or badly: no runtime, and no figure of it means anything."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, field

Script = list[object]
"""Of one answer: a number of seconds to wait, something to call, a dictionary or bytes to send as an event, or one
of the words below."""
HANG_UP = "hang up"
END = b"[DONE]"


def text(content: str | None, **delta: Any) -> dict[str, Any]:
    """A chunk of a chat's answer."""
    return {"choices": [{"index": 0, "delta": {"content": content, **delta}, "finish_reason": None}]}


def finish(reason: str) -> dict[str, Any]:
    """The chunk that says why an answer ended."""
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """A last chunk without choices."""
    told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"choices": [], "usage": told}


@define
class MisbehavingServer:
    """Gives each request the script that `answer` makes of its body and number; else (status, body), no stream."""

    answer: Callable[[dict[str, Any], int], Script | tuple[int, dict[str, Any]]]
    models: list[str] = field(factory=lambda: ["m"])
    bodies: list[dict[str, Any]] = field(factory=list)
    headers: list[str] = field(factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.headers.append(head)
                if head.startswith("GET"):
                    await self._whole(writer, 200, {"data": [{"id": name} for name in self.models]})
                    continue
                size = next(
                    int(line.split(":")[1])
                    for line in head.splitlines()
                    if line.lower().startswith("content-l")
                )
                body = json.loads(await reader.readexactly(size))
                self.bodies.append(body)
                made = self.answer(body, len(self.bodies))
                if isinstance(made, tuple):
                    await self._whole(writer, *made)
                elif not await self._stream(writer, made):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _whole(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(raw), raw))
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, script: Script) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await writer.drain()
        for step in script:
            if step == HANG_UP:
                return False
            if isinstance(step, int | float):
                await asyncio.sleep(step)
                continue
            if callable(step):
                step()
                continue
            data = step if isinstance(step, bytes) else b"data: " + json.dumps(step).encode() + b"\n\n"
            if step == END:
                data = b"data: [DONE]\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@contextmanager
def running(server: MisbehavingServer) -> Iterator[MisbehavingServer]:
    """It listens on a port of the loopback while the block runs."""
    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{made.sockets[0].getsockname()[1]}/v1"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_end(made), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(made: asyncio.Server) -> None:
    made.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
