"""A chain of pointers through a pool: one thread follows it, alone or while the others load the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define

from k3gate.errors import ProbeError
from k3gate.probes import _native
from k3gate.probes.pools import Part, error_text
from k3gate.records import Proof

BLOCK = int(_native.CHASE_BLOCK)
"""Bytes for each pointer of a chain."""
WINDOW_PAGES = 64
"""So many pages are walked before the next: fewer than any TLB has entries."""


@define
class Load:
    """What the other threads do: a kernel that only loads, over a list of parts for each thread of the team.

    `delay`: turns of an empty loop after each block of `block_bytes`, about a CPU cycle each. Two readings are
    compared by the bandwidth that was reached, never by the delay.
    """

    isa: str
    parts: Sequence[Sequence[Part]]
    delay: int = 0
    block_bytes: int = 4096
    kernel: str = "read"


@define
class Chain:
    """A cycle of pointers that one thread of a team built in its part of a pool, and where the walk stands.

    `position` is in bytes from the part's start. Whatever writes to the part ends the chain: walking it then
    raises `ValueError`.
    """

    team: Any
    thread: int
    part: Part
    setup_seconds: float
    position: int = 0
    walked: int = 0
    _came_back: bool | None = None
    _wrong: int = 0

    @property
    def blocks(self) -> int:
        """The length of the cycle, in steps."""
        return int(self.part[2]) // BLOCK

    @property
    def missing(self) -> int:
        """How many steps the walk is from the end of a turn."""
        return -self.walked % self.blocks

    def walk(self, steps: int, load: Load | None = None) -> Any:
        """Go on by so many steps: a `_native.Chase`. Seconds per step is the latency.

        Under a load, a wrong sum of a loader makes the proof false. Raises `ValueError` where the chain is gone.
        """
        if load is None:
            region = self.team.chase(self.thread, self.part, steps, self.position)
        else:
            how = (load.kernel, load.isa, load.parts, load.delay, load.block_bytes)
            region = self.team.chase_loaded(self.thread, self.part, steps, self.position, *how)
            self._wrong += sum(thread.value for thread in region.threads)
        self.position = int(region.end)
        self.walked += steps
        if not self.missing:
            self._came_back = self._came_back is not False and self.position == 0
        return region

    def proof(self) -> Proof:
        """The proof "checksum": a whole turn, walked in one go or in several, ended where it began.

        Walks since then follow the same links.
        """
        if self._came_back is False:
            return Proof("checksum", False, f"a turn of {self.blocks:,} links did not end where it began")
        if self._wrong:
            return Proof("checksum", False, f"{self._wrong} blocks that the loaders read had a wrong sum")
        if self._came_back is None:
            return Proof("checksum", None, "the chain was not walked to its end")
        turns = self.walked // self.blocks
        return Proof(
            "checksum", True, f"turns of {self.blocks:,} links came back to where they began ({turns:,})"
        )


def build_chain(team: Any, thread: int, part: Part, window_bytes: int = 0) -> Chain:
    """Link a part of a pool into a chain, by its seed; the thread of that index faults it in and writes it.

    `window_bytes`: 0, or so many bytes are visited in random order before the next such window, as with
    `WINDOW_PAGES` pages: the difference of both latencies is what the TLB costs. Raises `ProbeError` where
    memory is refused, `ValueError` for a part under two blocks or a window under 4096 bytes.
    """
    region = team.build_cycle(thread, part, window_bytes)
    failed = region.threads[thread].error
    if failed:
        raise ProbeError(f"no memory for a chain of {part[2]} bytes: {error_text(failed)}")
    return Chain(team, thread, part, float(region.seconds))
