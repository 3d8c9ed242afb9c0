"""Where a memory slot belongs, from the two strings that firmware writes beside it. Pure; never invents.

Boards number as they like: sockets from 0 or from 1, channels by letter or by number. A place keeps the
board's own numbers: places of one machine can be told apart, but not matched with the kernel's numbers.
"""

from __future__ import annotations

import re

from attrs import frozen

LONGEST = 80


@frozen
class Place:
    """Where a slot belongs, as the board counts. `sure`: the strings name the channel in a known spelling.

    `slot` counts within the channel where one is named, else within the socket or the board.
    """

    socket: int | None = None
    controller: int | None = None
    channel: str | None = None
    slot: int | None = None
    sure: bool = False


_SOCKET = r"(?:CPU|PROC|SOCKET|SKT|P)[ _.-]?(?P<socket>\d{1,2})"
_CONTROLLER = r"(?:NODE|IMC|MC|CONTROLLER)[ _-]?(?P<controller>\d{1,2})"
_GAP = r"[ _.,/-]{0,3}"


def _spellings(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.ASCII) for pattern in patterns)


_NAMED = _spellings(
    # P0_Node1_Channel2_Dimm0, CPU0 Channel10 DIMM1, P0 CHANNEL A, NODE 0 CHANNEL 0 DIMM 0, ChannelA-DIMM1
    rf"(?:{_SOCKET}{_GAP})?(?:{_CONTROLLER}{_GAP})?CHAN(?:NEL)?[ _-]?(?P<channel>[A-Z]|\d{{1,2}})"
    rf"(?:{_GAP}(?:DIMM|SLOT)[ _-]?(?P<slot>\d{{1,2}}))?",
    # CPU0_C0D0
    rf"{_SOCKET}{_GAP}C(?P<channel>\d{{1,2}})D(?P<slot>\d)",
    # CPU1_DIMM_A1, P1-DIMMA1, CPU0.A0
    rf"{_SOCKET}(?:{_GAP}DIMM|[ _.-]){_GAP}(?P<channel>[A-Z])(?P<slot>\d)?",
    # DIMM_P0_A0
    rf"DIMM{_GAP}{_SOCKET}{_GAP}(?P<channel>[A-Z])(?P<slot>\d)?",
    # DIMM_A1, DIMMA1
    r"DIMM[ _-]?(?P<channel>[A-N])(?P<slot>\d)?",
)
_UNNAMED = _spellings(
    # PROC 1 DIMM 12, CPU1_DIMM3
    rf"{_SOCKET}{_GAP}DIMM{_GAP}(?P<slot>\d{{1,2}})",
    # DIMM12_CPU0
    rf"DIMM[ _]?(?P<slot>\d{{1,2}}){_GAP}{_SOCKET}",
    # P1-DIMM1A, P1_1A: on some boards the number is the channel, on some the letter
    rf"{_SOCKET}{_GAP}(?:DIMM)?[ _]?\d{{1,2}}[A-Z]",
    # DIMM 0
    r"DIMM[ _]?(?P<slot>\d{1,2})",
)
# A1, B16: mostly the letter is a socket and the number a slot of it, but on some boards channel and slot.
_BARE = re.compile(r"(?P<letter>[A-L])(?P<slot>\d{1,2})", re.ASCII)
_NODE = re.compile(r"NODE[ _]?(\d{1,2})", re.ASCII)
_BLANK = frozenset({"", "NOT SPECIFIED", "UNKNOWN", "NONE", "N/A"})
_SOCKETS = "ABCD"


def locate(device_locator: str | None, bank_locator: str | None) -> Place:
    """The place that the two strings name; all None and not sure where the spelling is unknown."""
    device, bank = _tidy(device_locator), _tidy(bank_locator)
    named = [place for place in (_match(bank, _NAMED), _match(device, _NAMED)) if place is not None]
    unnamed, bare = _match(device, _UNNAMED), _bare(device)
    if named:
        place = max(named, key=lambda p: (p.socket is not None) + (p.controller is not None))
        sockets = [p.socket for p in (place, *named, unnamed) if p is not None and p.socket is not None]
        slots = [p.slot for p in (place, *named, unnamed, bare) if p is not None and p.slot is not None]
        node = _NODE.fullmatch(bank)
        return Place(
            socket=sockets[0] if sockets else None,
            controller=int(node[1]) if node and not sockets else place.controller,
            channel=(place.channel or "").lstrip("0") or "0",
            slot=slots[0] if slots else None,
            sure=True,
        )
    return unnamed or (bare if bank in _BLANK else None) or Place()


def _tidy(text: str | None) -> str:
    return " ".join((text or "")[: LONGEST + 1].upper().split())


def _match(text: str, patterns: tuple[re.Pattern[str], ...]) -> Place | None:
    if len(text) > LONGEST:
        return None
    for pattern in patterns:
        match = pattern.fullmatch(text)
        if match is not None:
            found = match.groupdict()
            return Place(
                _number(found.get("socket")),
                _number(found.get("controller")),
                found.get("channel"),
                _number(found.get("slot")),
            )
    return None


def _bare(text: str) -> Place | None:
    match = _BARE.fullmatch(text)
    if match is None:
        return None
    letter = match["letter"]
    return Place(socket=_SOCKETS.index(letter) + 1 if letter in _SOCKETS else None, slot=int(match["slot"]))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
