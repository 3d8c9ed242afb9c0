"""Prompts that no cache has seen: each begins with words of its own, and has about so many tokens."""

from __future__ import annotations

import random

WORDS = (
    *("river", "stone", "window", "paper", "garden", "silver", "morning", "copper"),
    *("letter", "market", "winter", "bridge", "island", "forest", "candle", "harbor"),
    *("summer", "engine", "ladder", "basket", "mirror", "valley", "anchor", "button"),
    *("carpet", "ribbon", "saddle", "temple", "violin", "walnut", "yellow", "zebra"),
)
PROBE_WORDS = 64
"""Of the first prompt, which tells how many tokens a word takes."""
_UNIQUE = 8
"""Words at the beginning by which prompts differ: 32^8 beginnings."""


def prompt(words: int, dice: random.Random) -> str:
    """So many words, at least `_UNIQUE`, drawn anew: even the first block of a prefix cache differs."""
    return " ".join(dice.choice(WORDS) for _ in range(max(_UNIQUE, words)))


def words_for(tokens: int, per_word: float, fixed: float) -> int:
    """Words of a prompt of about `tokens` tokens, of which `fixed` belong to the template."""
    return max(_UNIQUE, round((tokens - fixed) / per_word))
