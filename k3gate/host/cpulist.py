"""Lists of CPU or node ids as the kernel writes them: "0-3,8" and the older masks "00000000,0000010f"."""

from __future__ import annotations

import re
from functools import lru_cache

LIMIT = 16_384
_LONGEST = 128 * 1024
_WORD = re.compile(r"[0-9a-fA-F]+")


@lru_cache(maxsize=4096)
def parse(text: str, limit: int = LIMIT) -> tuple[int, ...]:
    """Sorted ids of a list such as "0-3,8,16-1535"; empty text is an empty list.

    `ValueError` where the text is not such a list or names an id of `limit` or above.
    """
    text = text.strip()
    if not text:
        return ()
    if len(text) > _LONGEST:
        raise ValueError("a CPU list of more than 128 KiB")
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = _number(first, limit)
        high = _number(last, limit) if dash else low
        if high < low:
            raise ValueError(f"the range {part.strip()!r} runs backwards")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


@lru_cache(maxsize=4096)
def parse_mask(text: str, limit: int = LIMIT) -> tuple[int, ...]:
    """Sorted ids of a mask of hexadecimal 32-bit words, highest first: "00000001,00000003" is 0, 1, 32."""
    text = text.strip()
    if not text or len(text) > _LONGEST:
        raise ValueError("not a CPU mask")
    words = text.split(",")
    bits = 0
    for position, word in enumerate(words):
        if not _WORD.fullmatch(word) or (len(word) > 8 and len(words) > 1):
            raise ValueError(f"not a word of a CPU mask: {word[:20]!r}")
        # Kernels pad the highest word to the width of the mask only.
        if position and len(word) != 8:
            raise ValueError(f"a short word inside a CPU mask: {word[:20]!r}")
        bits = (bits << 32) | int(word, 16)
    if bits.bit_length() > limit:
        raise ValueError(f"a CPU mask names an id of {limit} or above")
    return tuple(i for i, bit in enumerate(reversed(bin(bits)[2:])) if bit == "1")


def _number(text: str, limit: int) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"not a CPU id: {text[:20]!r}")
    value = int(text)
    if value >= limit:
        raise ValueError(f"the id {value} is {limit} or above")
    return value
