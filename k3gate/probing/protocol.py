"""The lines between the parent and a worker: their bounds, and their checking on the way in.

The request is one JSON document on the worker's stdin. Results are JSON lines on a pipe of their own:

    {"type": "ready", "process", "notes"}                      the worker is set up
    {"type": "started", "case"}                                a case begins
    {"type": "heartbeat", "note"}                              work goes on
    {"type": "metric", "metric": <Metric>}                     of the case under way, in this round
    {"type": "series", "series": <Series>}                     a piece of one, of the case under way
    {"type": "done", "case", "state", "reason", "seconds", "timed_seconds", "setup_seconds"}
    {"type": "end"}                                            all cases ran and what they shared is released

After each "done" the worker waits for one byte on a second pipe, by which the parent says that it has taken
and stored the round.
"""

from __future__ import annotations

import json
import math
from typing import Any

from k3gate.documents import printable

VERSION = 1
LINE_BYTES = 2**20
"""The longest line, with its newline."""
RESULT_BYTES = 2**26
"""The most that one worker may send in all."""
REQUEST_BYTES = 2**26
OUTPUT_BYTES = 2**18
"""How much of stdout and of stderr is kept for each case; the rest is read, counted and dropped."""
REASON_CHARACTERS = 500
MOST_SERIES = 256
"""How many series one worker may tell."""
SERIES_KEY_CHARACTERS = 1000

_KINDS = frozenset({"ready", "started", "heartbeat", "metric", "series", "done", "end"})


class ProtocolError(Exception):
    """A worker sent what no worker sends; the message says what."""


def parse(line: bytes) -> dict[str, Any]:
    """One result line as a document with a known `type`; raises `ProtocolError`."""
    try:
        document = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ProtocolError(f"sent a line that is no result: {excerpt(line)}") from None
    if not isinstance(document, dict) or document.get("type") not in _KINDS:
        raise ProtocolError(f"sent a line that is no result: {excerpt(line)}")
    return document


def excerpt(line: bytes) -> str:
    """The start of a stranger's line, made safe to print."""
    shown = printable(line[:60].decode("utf-8", "backslashreplace").strip())
    return f"'{shown}'" + (" ..." if len(line) > 60 else "")


def seconds(document: dict[str, Any], key: str) -> float:
    """A span in a result; raises `ProtocolError` unless it is a finite number that is not negative."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ProtocolError(f"sent {key} = {value!r:.60}, which is no span of seconds")
    return float(value)


def reason(value: object) -> str | None:
    """A worker's reason, on one line and bounded; None stays None."""
    if value is None:
        return None
    return printable(" ".join(str(value).split())[:REASON_CHARACTERS])


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")
