"""Loads in random order from memory of unknown content: what a chain of pointers is where none may be written.

The address of each load waits for the word before it, of which nothing is added to it. The order comes from a few
registers, each block once a turn, and is computed while a load is under way.
"""

from __future__ import annotations

from typing import Any

from attrs import define

from k3gate.probes.chase import BLOCK
from k3gate.probes.pools import Part
from k3gate.records import Proof

_WORD = 1 << 64


@define
class Scatter:
    """A walk over the blocks of a part by one thread of a team, and where it stands.

    `wanted`: what the first words of all blocks add up to, modulo 2^64, by other code than the walk's.
    """

    team: Any
    thread: int
    part: Part
    wanted: int
    walked: int = 0
    _state: int = 0
    _sum: int = 0
    _right: bool | None = None

    @property
    def blocks(self) -> int:
        """The length of a turn, in steps."""
        return int(self.part[2]) // BLOCK

    @property
    def missing(self) -> int:
        """How many steps the walk is from the end of a turn."""
        return -self.walked % self.blocks

    def walk(self, steps: int) -> Any:
        """Go on by so many steps: a `_native.Chase`. Seconds per step is the latency."""
        region = self.team.scatter(self.thread, self.part, steps, self._state)
        self._state = int(region.end)
        self._sum += region.threads[self.thread].value
        self.walked += steps
        if not self.missing:
            turns = self.walked // self.blocks
            self._right = self._right is not False and (self._sum - turns * self.wanted) % _WORD == 0
        return region

    def proof(self) -> Proof:
        """The proof "checksum": the words that whole turns loaded add up to those of all blocks."""
        if self._right is None:
            return Proof("checksum", None, "not all blocks were loaded: a whole turn takes too long")
        if not self._right:
            return Proof(
                "checksum", False, f"turns of {self.blocks:,} blocks loaded other words than those there"
            )
        if not self.wanted:
            return Proof(
                "checksum", None, "the words add up to 0: a sum does not show whether they were loaded"
            )
        return Proof("checksum", True, f"turns of {self.blocks:,} blocks loaded each of their words once")
