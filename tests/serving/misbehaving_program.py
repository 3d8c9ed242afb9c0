"""A program of ours that serves like a runtime, well or badly: no runtime, and no figure of it means anything.

python misbehaving_program.py --open FILE [--kill-at N] [--child] [--stubborn] [--say TEXT] [--exit CODE] ...
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.serving.misbehaving_server import (
    END,
    MisbehavingServer,
    Script,
    finish,
    text,
    usage,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--open", action="append", default=[], dest="files")
    parser.add_argument(
        "--close", action="store_true", help="read the files and close them before it answers"
    )
    parser.add_argument("--kill-at", type=int, default=0, help="die of SIGKILL within this answer")
    parser.add_argument(
        "--child", default="", help="leave a process in a session of its own, and write its pid there"
    )
    parser.add_argument("--stubborn", action="store_true", help="take no SIGTERM")
    parser.add_argument("--say", default="")
    parser.add_argument("--exit", type=int, default=-1)
    parser.add_argument("--load", type=float, default=0.0, help="seconds")
    parser.add_argument("--rate", type=float, default=200.0, help="tokens a second")
    parser.add_argument("--key", default="")
    parser.add_argument("--pid", default="", help="where to write its own pid")
    parser.add_argument("--refuse-from", type=int, default=0, help="500 from this answer on")
    return parser.parse_args()


def leave_a_child(path: str) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(path).write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)


def main() -> None:
    told = arguments()
    print(told.say, flush=True)
    if told.key:
        print(f"listening with the key {told.key}", flush=True)
    if told.exit >= 0:
        raise SystemExit(told.exit)
    if told.pid:
        Path(told.pid).write_text(str(os.getpid()))
    if told.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if told.child:
        leave_a_child(told.child)
    kept = []
    for number, path in enumerate(told.files):
        file = Path(path).open("rb")  # noqa: SIM115  # open as long as it serves
        kept.append(file if number else (file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    time.sleep(told.load)
    if told.close:
        kept.clear()

    def answer(body: dict[str, Any], number: int) -> Script | tuple[int, dict[str, Any]]:
        if told.refuse_from and number >= told.refuse_from:
            return 500, {"error": {"message": f"cannot, whatever your key {told.key} says"}}
        content = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        tokens = body["max_tokens"]
        steps: Script = [step for _ in range(tokens) for step in (text("a"), 1 / told.rate)]
        if told.kill_at and number == told.kill_at:
            steps.insert(len(steps) // 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return [*steps, finish("length"), usage(len(content), tokens), END]

    async def serve() -> None:
        server = MisbehavingServer(answer)
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            await listening.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
