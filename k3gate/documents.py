"""Records to JSON documents and back, canonical JSON, hashes, and text from strangers made safe to store.

Documents are plain dict, list, str, int, float, bool and None: what `json` reads and writes. Not-a-number
and infinities never enter a document: they become None on the way out and are refused on the way in.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")


def plain(value: Any) -> Any:
    """`value` as a document: attrs records become dicts, tuples lists, mapping keys strings, NaN None."""
    fields = getattr(type(value), "__attrs_attrs__", None)
    if fields is not None:
        return {f.name: plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return printable(value)
    return value


@lru_cache(maxsize=1)
def _converter() -> Converter:
    from cattrs import Converter

    from k3gate.records import Scalar

    converter = Converter(forbid_extra_keys=False)
    converter.register_structure_hook(Scalar, lambda value, _: value)
    converter.register_structure_hook(float | str | None, lambda value, _: value)
    converter.register_structure_hook(
        float, lambda value, _: _finite(value) if isinstance(value, int | float) else float(value)
    )
    return converter


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def structure(document: Any, kind: type[T]) -> T:
    """A record of type `kind` from a document; raises `ValueError` with one line when it does not fit."""
    try:
        return _converter().structure(document, kind)
    except Exception as error:
        raise ValueError(f"not a {kind.__name__}: {_innermost(error)}") from error


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def canonical(document: Any) -> str:
    """The one JSON text of a document: sorted keys, no spaces, no NaN. Used for hashing and as a key."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(document: Any) -> str:
    """SHA-256 of the canonical JSON of a document, or of a text or bytes as they are; "sha256:..."."""
    if isinstance(document, bytes):
        raw = document
    elif isinstance(document, str):
        raw = document.encode("utf-8", "surrogatepass")
    else:
        raw = canonical(document).encode("utf-8", "surrogatepass")
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def pretty(document: Any) -> str:
    """JSON for a person or a pipe: indented, UTF-8, no NaN, newline at the end."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def decode(raw: bytes) -> str:
    """Text from the machine: UTF-8, with bytes that are not shown as visible escapes (`\\xff`)."""
    return printable(raw.decode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """`text` with control characters and lone surrogates as visible escapes; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or c.isprintable() or c == "\u00a0" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )
