"""What the client costs and how true it is: 64 streams of 200 tokens a second from a stub that says when it sent what.

    python benchmarks/client.py

The stub is a process of its own that sends on a grid. With each answer it tells how long it took from the request to
the first token, and at which rate it sent. Held against that: the client's time to first token and rate, and its own
CPU time, which must stay under one core.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection

import httpx2

from k3gate.serving import client
from k3gate.serving.answers import Answer
from k3gate.serving.client import Endpoint, Limits

STREAMS, RATE, SECONDS, FIRST_S, REPEATS = 64, 200.0, 5.0, 0.5, 5
TOKENS = int(RATE * SECONDS)
APART, CORES = 0.02, 1.0
_CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": null}]}\n\n'


def stub(port: Connection) -> None:
    """Answers every POST with `TOKENS` chunks on a grid."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        got = time.perf_counter()
        size = next(
            int(one.split(b":")[1]) for one in head.splitlines() if one.lower().startswith(b"content-l")
        )
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        # Streams are out of step with each other, as those of a server that does one after the other are.
        start = got + FIRST_S + (hash(id(writer)) % 1000) / 1000 / RATE
        sent = []
        for number in range(TOKENS):
            wait = start + number / RATE - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            writer.write(_CHUNK)
            sent.append(time.perf_counter())
        own = (TOKENS - 1) / (sent[-1] - sent[0])
        told = {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 8, "completion_tokens": TOKENS},
            "timings": {"predicted_per_second": own, "prompt_per_second": 1 / (sent[0] - got)},
        }
        writer.write(b"data: " + json.dumps(told).encode() + b"\n\ndata: [DONE]\n\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=STREAMS * 2)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def ask(url: str) -> list[Answer]:
    """All streams at once."""
    limits = Limits()
    async with client.open_client(limits, STREAMS) as opened:
        made = Endpoint(url, "stub")
        return list(
            await asyncio.gather(*(client.ask(opened, made, "hello", TOKENS, limits) for _ in range(STREAMS)))
        )


def main() -> int:
    """Exit code 1 where a line does not hold."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=stub, args=(theirs,), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{ours.recv()}/v1"
    what = f"{STREAMS} streams of {RATE:g} tokens/s, {TOKENS} tokens each"
    print(f"{what}, httpx2 {httpx2.__version__}, {os.cpu_count()} CPUs")
    cores, rates, firsts = [], [], []
    for _ in range(REPEATS):
        begun, used = time.perf_counter(), time.process_time()
        answers = asyncio.run(ask(url))
        spent = time.perf_counter() - begun
        cores.append((time.process_time() - used) / spent)
        for one in answers:
            assert (
                one.tokens_per_s and one.timings.predicted_per_s and one.timings.prompt_per_s and one.first_s
            )
            rates.append(one.tokens_per_s / one.timings.predicted_per_s)
            firsts.append((one.first_s - one.begun_s) * one.timings.prompt_per_s)
        got = sum(one.timings.predicted_per_s or 0 for one in answers) / STREAMS
        print(f"  the stub sent {got:.1f} tokens/s a stream; the client took {cores[-1]:.2f} of a core")
    held = True
    for name, values, low, high in (
        ("CPU of the client, cores", cores, 0.0, CORES),
        ("rate by the stub's", rates, 1 - APART, 1 + APART),
        ("time to first token by the stub's", firsts, 1 - APART, 1 + APART),
    ):
        middle = statistics.median(values)
        good = low <= middle < high
        held = held and good
        bound = f"{low:g} to {high:g}" if low else f"under {high:g}"
        spread = f"{middle:.4f} ({min(values):.4f} to {max(values):.4f})"
        print(f"{name}: {spread}, {bound}: {'holds' if good else 'MISSED'}")
    process.terminate()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
