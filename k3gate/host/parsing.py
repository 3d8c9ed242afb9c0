"""Numbers and small formats in kernel text; each raises `ValueError` with what is wrong."""

from __future__ import annotations

import math
import re

_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d{1,20}(?:[.,]\d{0,20})?", re.ASCII)
_SIZE = re.compile(r"(-?\d{1,15})\s*([KMG]?)(?:i?B)?", re.ASCII)
_KILOBYTES = re.compile(
    r"^(?:Node[ \t]+\d+[ \t]+)?([A-Za-z_()0-9]{1,40}):[ \t]*(-?\d{1,20}) kB[ \t]*$", re.ASCII | re.MULTILINE
)


def integer(text: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """A whole number within `low` and `high`."""
    text = text.strip()
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"not a whole number: {text[:40]!r}")
    value = int(text)
    if not low <= value <= high:
        raise ValueError(f"{value} is outside {low} to {high}")
    return value


def decimal(text: str) -> float:
    """A decimal number with a point or, as some locales write it, a comma: "4600,0000" is 4600."""
    text = text.strip()
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"not a number: {text[:40]!r}")
    value = float(text.replace(",", "."))
    if not math.isfinite(value):
        raise ValueError(f"not a finite number: {text[:40]!r}")
    return value


def switch(text: str) -> bool:
    """ "0" and "N" are off, "1" and "Y" on; numa_balancing also knows 2 and 3, which are on."""
    word = text.strip()
    if word in ("0", "N", "n"):
        return False
    if word in ("1", "2", "3", "Y", "y"):
        return True
    raise ValueError(f"neither on nor off: {word[:40]!r}")


def cache_bytes(text: str) -> int:
    """Bytes of a cache size such as "32K" (KiB); zero and negative sizes cannot be true."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a cache size: {text.strip()[:40]!r}")
    value = int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    if value <= 0 or value > 2**40:
        raise ValueError(f"no cache has {text.strip()[:40]!r}")
    return value


def chosen(text: str) -> str:
    """The word in brackets of "always [madvise] never", or the only word."""
    match = re.search(r"\[([a-z+_]{1,20})\]", text)
    if match:
        return match[1]
    if re.fullmatch(r"[a-z+_]{1,20}", text.strip()):
        return text.strip()
    raise ValueError(f"no choice marked in {text.strip()[:60]!r}")


def kilobytes(text: str) -> dict[str, int]:
    """The "Name:  N kB" lines of a meminfo file in bytes; values below zero are the caller's to refuse."""
    return {name: int(number) * 1024 for name, number in _KILOBYTES.findall(text)}


def words(text: str | None) -> str | None:
    """Text on one line with single spaces; None where nothing is left."""
    return (" ".join(text.split()) or None) if text else None
