"""The configuration space of a PCI function: its port, its link, its access control. Bounded; any bytes are survived.

Layout by the PCI Express Base Specification: a chain of capabilities from 0x34 on, another one from 0x100 on. The
kernel shows 64 bytes to everybody and all of them to root.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

BYTES = 4096
_HEADER = 64
_STATUS, _CAPABILITIES_LISTED = 0x06, 0x10
_FIRST = 0x34
_EXTENDED = 0x100
_EXPRESS, _ACS, _RESIZABLE = 0x10, 0x0D, 0x15
_EXPRESS_BYTES, _ACS_BYTES, _RESIZABLE_BYTES = 0x3C, 8, 4 + 8 * 6
_PORTS = {4: "root", 5: "upstream", 6: "downstream"}
_RATES = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_WIDEST = 32
# The bits of the control word that take a peer's transfer up to the root complex.
_REDIRECTS = ((2, "requests"), (3, "completions"))


End = tuple[float | None, int | None]
"""The GT/s of a lane and the number of lanes."""


@frozen
class Config:
    """What was read. `port`: root, upstream or downstream, None: no bridge of PCI Express. `link`: GT/s of a lane and
    lanes now; `best`: at most. `redirects`: what access control sends up to the root; None: it was not readable.
    `resizable`: whether its BARs can grow.
    """

    port: str | None = None
    link: End = (None, None)
    best: End = (None, None)
    redirects: tuple[str, ...] | None = None
    resizable: bool | None = None


def parse(raw: bytes) -> Config:
    """What a configuration space tells, as far as it was readable."""
    port: str | None = None
    link: End = (None, None)
    best: End = (None, None)
    for kind, at in _capabilities(raw):
        if kind == _EXPRESS and at + 0x14 <= len(raw):
            port = _PORTS.get(_word(raw, at + 2) >> 4 & 0xF)
            best, link = _end(_word(raw, at + 0x0C)), _end(_word(raw, at + 0x12))
            break
    whole = len(raw) > _EXTENDED
    redirects: tuple[str, ...] | None = () if whole else None
    resizable = False if whole else None
    for kind, at in _extended(raw):
        if kind == _ACS and at + _ACS_BYTES <= len(raw):
            control = _word(raw, at + 6)
            redirects = tuple(name for bit, name in _REDIRECTS if control >> bit & 1)
        elif kind == _RESIZABLE:
            resizable = True
    return Config(port, link, best, redirects, resizable)


def without_identity(raw: bytes) -> bytes:
    """The same length with what `parse` reads and nothing else: a device may keep its serial number in there."""
    out = bytearray(len(raw))
    out[:_HEADER] = raw[:_HEADER]
    for kind, at in _capabilities(raw):
        size = _EXPRESS_BYTES if kind == _EXPRESS else 2
        out[at : at + size] = raw[at : at + size]
    for kind, at in _extended(raw):
        size = {_ACS: _ACS_BYTES, _RESIZABLE: _RESIZABLE_BYTES}.get(kind, 4)
        out[at : at + size] = raw[at : at + size]
    return bytes(out)


def _capabilities(raw: bytes) -> Iterator[tuple[int, int]]:
    """(kind, offset) of each capability below 0x100; a chain that turns back ends."""
    if len(raw) <= _HEADER or not _word(raw, _STATUS) & _CAPABILITIES_LISTED:
        return
    at, seen = raw[_FIRST] & 0xFC, set[int]()
    while _HEADER <= at <= min(len(raw), _EXTENDED) - 2 and at not in seen:
        seen.add(at)
        yield raw[at], at
        at = raw[at + 1] & 0xFC


def _extended(raw: bytes) -> Iterator[tuple[int, int]]:
    at, seen = _EXTENDED, set[int]()
    while _EXTENDED <= at <= len(raw) - 4 and at not in seen:
        seen.add(at)
        head = int.from_bytes(raw[at : at + 4], "little")
        if head in (0, 0xFFFFFFFF):
            return
        yield head & 0xFFFF, at
        at = head >> 20 & 0xFFC


def _word(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 2], "little")


def _end(value: int) -> End:
    width = value >> 4 & 0x3F
    return _RATES.get(value & 0xF), width if 0 < width <= _WIDEST else None
