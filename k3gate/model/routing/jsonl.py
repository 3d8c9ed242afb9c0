"""The form of a trace in JSON lines: one token a line, {"token": 0, "layers": [[ids of layer 0], ...]}.

"tok" does for "token". A token number that falls begins another sequence. The first line may say what the rest is:
{"k3gate_routing": 1, "experts": 256, "tokens": 300, "source": "text"}, each but the first optional.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import orjson
from attrs import frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.routing.trace import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_USED,
    Ids,
    Trace,
    check_count,
    check_sizes,
    twice_told,
    wrong_id,
)

VERSION = 1
MAX_LINE = MAX_LAYERS * 4096
MAX_DOCUMENT = 8 << 20
_LINE = 'give one token a line, {"token": 0, "layers": [[expert ids], ...]}'
_FREQUENCY = ("frequenc", "prob_density", "histogram", "count")


@frozen
class _Header:
    experts: int | None = None
    tokens: int | None = None
    source: str | None = None


def read(file: BinaryIO, name: str, experts: int | None) -> Trace:
    """The trace in a file of JSON lines; see `reading.read`."""
    header, starts, last = _Header(), [0], -1
    rows: list[Ids] = []
    for number, line in _lines(file, name):
        where = f"{name}, line {number}"
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise _no_json(file, name, number, line, error) from error
        if not isinstance(record, dict):
            raise UsageError(f"{where} is no object: {_LINE}")
        if "k3gate_routing" in record and not rows:
            header = _header(record, where)
            experts = _agreed(header.experts, experts, name)
            continue
        if "layers" not in record:
            raise _no_trace(name, record) if number == 1 else UsageError(f'{where} has no "layers": {_LINE}')
        token = _token(record, where)
        if rows and token <= last:
            starts.append(len(rows))
        if (rows and token > last + 1) or token == last > 0:
            told = "is there twice" if token == last else f"comes after token {last}"
            raise UsageError(
                f"{where}: token {token} {told}, and tokens are to follow each other: record each of them, "
                "or number each sequence anew"
            )
        last = token
        rows.append(_row(record["layers"], where, rows[0].shape if rows else None, experts))
        check_sizes(name, len(rows), *rows[0].shape)
    return _trace(name, header, experts, rows, starts)


def _trace(name: str, header: _Header, experts: int | None, rows: list[Ids], starts: list[int]) -> Trace:
    if not rows:
        raise UsageError(f"{name} has no tokens: {_LINE}")
    if header.tokens not in (None, len(rows)):
        raise UsageError(
            f"{name} states {header.tokens} tokens and has {len(rows)}: it is cut off; copy it again"
        )
    ids = np.stack(rows)
    if experts is not None:
        check_count(name, experts, ids.shape[2])
    source = name if header.source is None else f"{name} ({header.source})"
    return Trace(
        ids, int(ids.max()) + 1 if experts is None else experts, source, tuple(starts), experts is None
    )


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise UsageError(f"{name}, line {number} is longer than {MAX_LINE >> 20} MiB: {_LINE}")
        if line.strip():
            yield number, line


def _header(record: dict[str, Any], where: str) -> _Header:
    if record["k3gate_routing"] != VERSION:
        raise UsageError(
            f"{where}: a trace of version {record['k3gate_routing']!r:.40} is unknown: {VERSION} is read"
        )
    found: dict[str, int | None] = {}
    for key, most in (("experts", MAX_EXPERTS), ("tokens", 2**40)):
        value = record.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise UsageError(f"{where}: {key} must be a whole number from 1 to {most:,}, not {value!r:.40}")
        found[key] = value
    source = record.get("source")
    if source is not None and not isinstance(source, str):
        raise UsageError(f"{where}: source must be a text, not {source!r:.40}")
    return _Header(found["experts"], found["tokens"], source and " ".join(printable(source).split())[:200])


def _agreed(stated: int | None, asked: int | None, name: str) -> int | None:
    if None not in (stated, asked) and stated != asked:
        raise UsageError(f"{name} states {stated} experts of a layer, not {asked}: leave the number out")
    return asked if stated is None else stated


def _token(record: dict[str, Any], where: str) -> int:
    value = record.get("token", record.get("tok"))
    if type(value) is not int or not 0 <= value < 2**40:
        told = "is missing" if value is None else f"{value!r:.40} is no number from 0"
        raise UsageError(f'{where}: "token" {told}: {_LINE}')
    return value


def _row(layers: Any, where: str, shape: tuple[int, int] | None, experts: int | None) -> Ids:
    """int16 [layers, used] of one line."""
    if not isinstance(layers, list) or not layers or not all(isinstance(ids, list) for ids in layers):
        raise UsageError(f'{where}: "layers" is no list of lists of expert ids: {_LINE}')
    if len(layers) > MAX_LAYERS:
        raise UsageError(f"{where} has {len(layers):,} layers, more than {MAX_LAYERS:,}: {_LINE}")
    wanted, used = shape or (len(layers), len(layers[0]))
    if len(layers) != wanted:
        raise UsageError(
            f"{where} has {len(layers)} layers and the first token {wanted}: record the same layers of each token"
        )
    if not 1 <= used <= MAX_USED:
        raise UsageError(f"{where}, layer 0 has {used:,} experts: a token uses 1 to {MAX_USED} of a layer")
    for layer, ids in enumerate(layers):
        if len(ids) != used:
            raise UsageError(
                f"{where}, layer {layer} has {len(ids)} experts and not {used}: each token uses as many of each layer"
            )
    if set(map(type, chain.from_iterable(layers))) != {int}:  # True is no expert either
        layer, value = next((n, v) for n, ids in enumerate(layers) for v in ids if type(v) is not int)
        raise UsageError(f"{where}, layer {layer}: {value!r:.40} is no expert id: write whole numbers")
    limit = MAX_EXPERTS if experts is None else experts
    for layer, ids in enumerate(layers):
        if min(ids) < 0 or max(ids) >= limit:
            value = next(v for v in ids if not 0 <= v < limit)
            raise UsageError(f"{where}, layer {layer}: {wrong_id(value, experts)}")
        if len(set(ids)) != used:
            value = next(v for v in ids if ids.count(v) > 1)
            raise UsageError(f"{where}, layer {layer}: {twice_told(value)}")
    return np.array(layers, np.int16)


def _no_json(
    file: BinaryIO, name: str, number: int, line: bytes, error: orjson.JSONDecodeError
) -> UsageError:
    """A line that is no JSON: cut off, with not-a-number, or the first of a document of many lines."""
    where = f"{name}, line {number}"
    if number == 1 and line.lstrip()[:1] in (b"{", b"["):
        file.seek(0)
        raw = file.read(MAX_DOCUMENT + 1)
        if len(raw) <= MAX_DOCUMENT:
            try:
                return _no_trace(name, orjson.loads(raw))
            except orjson.JSONDecodeError:
                pass
    if any(word in line for word in (b"NaN", b"nan", b"Infinity")):
        return UsageError(f"{where} holds not-a-number or infinity, which is no expert id: record it again")
    if not line.endswith(b"\n"):
        return UsageError(f"{where} is cut off: copy the file again, or remove that line")
    told = printable(str(error.msg))[:100]
    return UsageError(f"{where} is no JSON ({told}, column {error.colno}): {_LINE}")


def _no_trace(name: str, document: Any) -> UsageError:
    """A JSON document that is no line of a trace; a table of frequencies is told from others."""
    if any(word in key.lower() for key in _keys(document) for word in _FREQUENCY):
        return UsageError(
            f"{name} tells how often experts are used and not which token used which, so it is no trace: what follows "
            f"what, and what is used together, cannot be had from it; {_LINE}"
        )
    return UsageError(f"{name} is one JSON document and no trace: {_LINE}")


def _keys(document: Any, depth: int = 6) -> Iterator[str]:
    """Keys of nested objects, of lists only the first entry; bounded in depth."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            if depth:
                yield from _keys(value, depth - 1)
    elif isinstance(document, list) and document and depth:
        yield from _keys(document[0], depth - 1)


def lines(trace: Trace) -> Iterator[bytes]:
    """`trace` in this form, line by line, with its header."""
    header = {
        "k3gate_routing": VERSION,
        "experts": trace.expert_count,
        "tokens": trace.tokens,
        "source": trace.source,
    }
    yield orjson.dumps(header) + b"\n"
    starts, first = set(trace.starts), 0
    for row, ids in enumerate(trace.experts.tolist()):
        first = row if row in starts else first
        yield orjson.dumps({"token": row - first, "layers": ids}) + b"\n"
