"""A server measured once, for a person who wants to know: nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from k3gate.documents import plain
from k3gate.errors import ProbeError, UsageError
from k3gate.harness import serving
from k3gate.pages import page, row
from k3gate.records import Labels, Serving
from k3gate.serving import load_text
from k3gate.serving.load import Reading, Say
from k3gate.serving.session import Session
from k3gate.units import quantity, significant

NO_EVIDENCE = (
    "These figures are of whatever answers there. Which files it has open cannot be told from here, so that they are "
    "no evidence for a target (prototype.served_identity stays unproven)."
)
NOT_STORED = "Nothing was stored: `k3gate run` with the same options makes evidence of it."
_WORDS = {True: "proven", False: "failed", None: "unproven"}


@define
class Found:
    """What came of it. `lost`: why the server could be asked no longer."""

    serving: Serving
    readings: Sequence[Reading] = ()
    lost: str | None = None
    interrupted: bool = False
    session: Session | None = None
    seconds: float | None = None
    notes: list[str] = field(factory=list)

    def document(self) -> dict[str, Any]:
        """As `--json` has it. Bytes and seconds; unknown is null."""
        session, endpoint = self.session, None if self.session is None else self.session.endpoint
        observer = None if session is None else session.observer
        started = self.serving.command is not None
        return {
            "command": None if self.serving.command is None else list(self.serving.command),
            "endpoint": None if endpoint is None else endpoint.url,
            "model": None if endpoint is None else endpoint.model,
            "way": self.serving.way,
            "runtime": self.serving.runtime,
            "build": self.serving.build,
            "checkpoint": self.serving.checkpoint,
            "interrupted": self.interrupted,
            "lost": self.lost,
            "served_identity": "unproven" if session is None else _WORDS[session.identity.ok],
            "note": (session.identity.detail if started and session is not None else NO_EVIDENCE),
            "load_seconds": None if session is None else session.load_s,
            "page_cache_share_before": session.cached_before
            if session is not None and isinstance(session.cached_before, float)
            else None,
            "page_cache_share": session.cached
            if session is not None and isinstance(session.cached, float)
            else None,
            "peak_memory_bytes": None if observer is None else observer.peak_bytes,
            "memory_by_node": {} if observer is None else plain(observer.placed),
            "readings": [one.document() for one in self.readings],
        }

    def text(self) -> str:
        """As a terminal shows it."""
        sections = []
        session = self.session
        if self.serving.command is not None and session is not None:
            observer = session.observer
            cached = session.cached
            if isinstance(cached, float):
                cached = f"{cached:.1%} of the files when it was started"
            lines = [
                row("runtime", self.serving.runtime),
                row("load", None if session.load_s is None else f"{significant(session.load_s)} s"),
                row("in cache", cached),
                row("identity", f"{_WORDS[session.identity.ok]}. {session.identity.detail}"),
            ]
            if observer is not None and observer.peak_bytes is not None:
                lines.append(row("memory", f"{quantity(observer.peak_bytes, 'B')} at most"))
            sections.append(("The server", lines))
        told = load_text.told(self.readings)
        parts = [page(sections) if sections else "", told]
        if self.lost is not None:
            parts.append(f"{self.lost}\n")
        parts.append(f"{NOT_STORED if self.serving.command is not None else NO_EVIDENCE}\n")
        return "\n".join(part for part in parts if part)


class _Life:
    """Shows life, and keeps no series."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def heartbeat(self, note: str = "") -> None:
        """See `session.Life`."""
        self._say(note)

    def watched(
        self, name: str, unit: str, labels: Labels, times: Sequence[float], values: Sequence[float | None]
    ) -> None:
        """See `session.Life`."""


def measure(asked: serving.Asked, rounds: int, say: Say) -> Found:
    """All readings; `UsageError` where nothing answers. An interruption leaves what was read."""
    wanted = serving.prepare(asked).serving
    found = Found(wanted)
    session: Session | None = None
    try:
        session = Session({**plain(wanted), "command": wanted.command}, _Life(say))
        found.session = session
        if session.lost is not None:
            raise UsageError(f"{_whole(session.lost)}; start the server, or look into its log")
        for length, streams in _readings(wanted):
            session.read(length, streams, rounds)
            if session.lost is not None:
                break
        session.look()
        if session.observer is not None:
            session.observer.count(last=True)
    except ProbeError as error:
        if not session or not any(one.answers or one.partial for one in session.readings):
            raise UsageError(f"{_whole(str(error))}; look into its log") from None
        found.lost = str(error)
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        if session is not None:
            found.readings = tuple(session.readings)
            found.lost = found.lost or session.lost
            session.close()
    return found


def _readings(wanted: Serving) -> list[tuple[int, int]]:
    return [
        *((length, 1) for length in wanted.lengths),
        *((wanted.lengths[0], streams) for streams in wanted.streams if streams > 1),
    ]


def _whole(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
