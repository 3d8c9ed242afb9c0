"""Where each field of the inventory came from, collected while it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attrs import frozen

from k3gate.host.files import SMALL, Reading, Root
from k3gate.records import Provenance, State

T = TypeVar("T")


@frozen
class Reason:
    """Why a field is None."""

    state: State
    text: str


class Notes:
    """Provenance by dotted field."""

    def __init__(self) -> None:
        self.entries: dict[str, Provenance] = {}

    def seen(self, name: str, source: str, reason: str | None = None) -> None:
        """The field was read from `source`; `reason` explains a value that needs it ("no limit")."""
        self.entries[name] = Provenance(State.OK, source, reason)

    def unknown(self, name: str, state: State, source: str | None, reason: str) -> None:
        """The field is None, and why."""
        self.entries[name] = Provenance(state, source, reason)

    def absent(self, name: str, source: str | None, reason: str = "absent") -> None:
        """The machine does not show the field."""
        self.unknown(name, State.NOT_PRESENT, source, reason)

    def implausible(self, name: str, source: str | None, detail: str) -> None:
        """The field holds a value that cannot be true."""
        self.unknown(name, State.FAILED, source, f"implausible: {detail}")

    def parse(self, name: str, reading: Reading, parser: Callable[[str], T]) -> T | None:
        """The parsed text of a reading with its provenance; None with the reason where it cannot be had."""
        if reading.text is None:
            self.unknown(name, reading.state, reading.source, reading.reason or "unreadable")
            return None
        try:
            value = parser(reading.text)
        except ValueError as error:
            self.implausible(name, reading.source, str(error))
            return None
        self.seen(name, reading.source)
        return value

    def take(
        self, name: str, root: Root, parser: Callable[[str], T], *paths: str, limit: int = SMALL
    ) -> T | None:
        """The first of `paths` that exists, parsed. Without any, the provenance names the first."""
        first: Reading | None = None
        for path in paths:
            reading = root.read(path, limit)
            if reading.state is not State.NOT_PRESENT:
                return self.parse(name, reading, parser)
            first = first or reading
        if first is not None:
            self.parse(name, first, parser)
        return None
