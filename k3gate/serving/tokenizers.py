"""Counts the tokens of a text with the tokenizer that lies beside a checkpoint, by the package tokenizers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

NAME = "tokenizer.json"


def counter(path: str | None) -> Callable[[str], int] | None:
    """By a tokenizer.json; None where there is none that can be read, or no package that reads it."""
    if path is None or importlib.util.find_spec("tokenizers") is None:
        return None
    import tokenizers

    try:
        found = tokenizers.Tokenizer.from_file(path)
    except Exception:  # the package raises its own errors as plain ones
        return None
    return lambda text: len(found.encode(text, add_special_tokens=False).ids)
