"""A converted checkpoint against its source, layer by layer, on several cores, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.checkpoint import config, names
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.model.checkpoint.content import VISION
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.conversion import catalogue, difference, mistakes, pairing, stored
from k3gate.model.conversion.catalogue import Catalogue
from k3gate.model.conversion.difference import Difference, Sides
from k3gate.model.conversion.measures import Factors, Sums
from k3gate.model.conversion.mistakes import Found, Mistake, Suspect
from k3gate.model.conversion.naming import Name, Scheme
from k3gate.model.conversion.pairing import Pair
from k3gate.model.conversion.reading import Files
from k3gate.model.conversion.stored import Stored
from k3gate.units import count

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

_FEW = 6
_DERIVED = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""What a converter adds from the config; no weight of the source stands for it."""
_REORDERED = ("attn_q", "attn_k", "attn_q.bias", "attn_k.bias")
"""Whose rows llama.cpp reorders for models of Llama's kind."""


def _shown(name: Name) -> str:
    """A name from a file, fit to be shown."""
    return printable(str(name))[:200]


@define
class Part:
    """Weights of one part of the model: how many, how many exact, and how far the others are off.

    `sums` are over the weights that are not exact; `worst`: the largest NMSE of one weight, and which it is.
    `codings`: how many weights of each pair of codings.
    """

    weights: int = 0
    exact: int = 0
    sums: Sums = field(factory=Sums)
    worst: tuple[float, str] = (0.0, "")
    codings: Counter[str] = field(factory=Counter)
    source_factors: Factors = field(factory=Factors)
    converted_factors: Factors = field(factory=Factors)

    def add(self, pair: Pair, found: Difference) -> None:
        """Take a weight."""
        self.weights += 1
        self.exact += found.exact
        self.codings[f"{pair.source[0].coding} to {pair.converted.coding}"] += 1
        self.sums.merge(found.sums if not found.exact else Sums())
        self.source_factors.merge(found.source_factors)
        self.converted_factors.merge(found.converted_factors)
        if not found.exact and found.sums.numbers:
            self.worst = max(self.worst, (found.sums.nmse, _shown(pair.name)))

    def merge(self, other: Part) -> None:
        """Add what another one took."""
        self.weights += other.weights
        self.exact += other.exact
        self.sums.merge(other.sums)
        self.worst = max(self.worst, other.worst)
        self.codings += other.codings
        self.source_factors.merge(other.source_factors)
        self.converted_factors.merge(other.converted_factors)


@define
class Named:
    """A mistake that was found: in so many weights of a part, the first of them by name."""

    mistake: Mistake
    part: str
    detail: str
    number: int = 0
    weights: list[str] = field(factory=list)

    def add(self, name: str) -> None:
        """Take a weight."""
        self.number += 1
        if len(self.weights) < _FEW:
            self.weights.append(name)


@define
class Compared:
    """What was found so far. Lists of names are bounded; `lacking` and `unread` count what they do not name."""

    parts: dict[str, Part] = field(factory=dict)
    layers: dict[str, dict[int | None, Part]] = field(factory=dict)
    mistakes: dict[tuple[Mistake, str], Named] = field(factory=dict)
    missing: list[str] = field(factory=list)
    lacking: int = 0
    left_out: Counter[str] = field(factory=Counter)
    unknown: list[str] = field(factory=list)
    added: int = 0
    unread: list[str] = field(factory=list)
    not_read: int = 0
    least_scales: int = 0
    """Weights of the source whose scales are all the byte 0: 2^-127, or scales that were never written."""

    def take(self, pair: Pair, part: str, found: Difference) -> None:
        """Take a weight of a part of the model that was compared."""
        self.parts.setdefault(part, Part()).add(pair, found)
        self.layers.setdefault(part, {}).setdefault(pair.name.layer, Part()).add(pair, found)
        if found.found is not None:
            self.blame(found.found, part, pair.name)
        factors = found.source_factors
        if factors.number and factors.largest == 2.0**-127:
            self.least_scales += 1

    def blame(self, found: Found, part: str, name: Name) -> None:
        """Note a mistake."""
        known = self.mistakes.setdefault((found.mistake, part), Named(found.mistake, part, found.detail))
        known.add(_shown(name))

    def lack(self, name: Name, part: str) -> None:
        """Note a weight that the converted files do not have."""
        if part in VISION:
            self.left_out[part] += 1
            return
        self.lacking += 1
        if len(self.missing) < _FEW:
            self.missing.append(_shown(name))

    def add_unknown(self, name: Name) -> None:
        """Note a weight that no weight of the source stands for."""
        self.added += 1
        if len(self.unknown) < _FEW:
            self.unknown.append(_shown(name))

    def not_readable(self, text: str, number: int = 1) -> None:
        """Note what could not be compared, and why."""
        self.not_read += number
        if len(self.unread) < _FEW:
            self.unread.append(printable(text)[:300])

    def merge(self, other: Compared) -> None:
        """Add what was found of other layers."""
        for group, part in other.parts.items():
            self.parts.setdefault(group, Part()).merge(part)
        for group, layers in other.layers.items():
            for layer, part in layers.items():
                self.layers.setdefault(group, {}).setdefault(layer, Part()).merge(part)
        for key, named in other.mistakes.items():
            known = self.mistakes.setdefault(key, Named(named.mistake, named.part, named.detail))
            known.number += named.number
            known.weights += named.weights[: _FEW - len(known.weights)]
        self.missing += other.missing[: _FEW - len(self.missing)]
        self.lacking += other.lacking
        self.left_out += other.left_out
        self.unknown += other.unknown[: _FEW - len(self.unknown)]
        self.added += other.added
        self.unread += other.unread[: _FEW - len(self.unread)]
        self.not_read += other.not_read
        self.least_scales += other.least_scales

    @property
    def notes(self) -> list[str]:
        """What a reader should know and no verdict rests on."""
        if not self.least_scales:
            return []
        return [
            f"{count(self.least_scales, 'weight')} of the source with scales that are all the byte 0: 2^-127, or never "
            "written"
        ]

    @property
    def lossless(self) -> bool:
        """Whether every number of every weight is the source's; vision may be left out."""
        return (
            not (self.lacking or self.added or self.not_read or self.mistakes)
            and bool(self.parts)
            and all(part.exact == part.weights for part in self.parts.values())
        )


@frozen
class Task:
    """Both sides, and how their names are brought together."""

    source: Catalogue
    converted: Catalogue
    scheme: Scheme
    folded: bool
    keys: int | None = None
    """Rows of a head that are keys, in the compressed keys and values of MLA; None where no config says."""
    reordered: bool = False
    """Whether the converter reorders rows of queries and keys, as llama.cpp does for models of Llama's kind."""


def prepare(source: FileSet, converted: FileSet) -> Task:
    """Read the headers of both sides; `UsageError` where they cannot be source and conversion of one model."""
    here, there = catalogue.build(source), catalogue.build(converted)
    for found, side in ((source, here), (converted, there)):
        if not side.files_of:
            why = f"{side.unread[0][0]}: {side.unread[0][1]}" if side.unread else "it has no tensors"
            raise UsageError(
                f"{found.place}: nothing can be compared ({printable(why)[:200]}); fetch it again"
            )
    if source.format == "gguf" and converted.format != "gguf":
        raise UsageError(
            f"{source.place}: a GGUF file is a conversion itself; give the checkpoint that it was made of as SOURCE"
        )
    stated = config.of_config(source.config) if source.config is not None else None
    said = (stated.model_type or "").replace("_", "-") if stated else ""
    architecture = there.architecture or here.architecture or (KIMI_K3 if said == KIMI_K3 else None)
    last = max((layer for layer in (*here.files_of, *there.files_of) if layer is not None), default=0)
    scheme = Scheme(architecture, last + 1, here.recurrent | there.recurrent)
    return Task(
        here,
        there,
        scheme,
        folded=source.format != converted.format,
        keys=stated.head_keys if stated else None,
        reordered=source.format != converted.format and architecture == "llama",
    )


def compare(task: Task, processes: int, progress: Callable[[int], None]) -> Compared:
    """Compare all layers; `progress` is told now and then how many bytes of the source are done."""
    from multiprocessing import get_context

    from k3gate.model import processes as shared_out

    layers = sorted({*task.source.files_of, *task.converted.files_of}, key=_order)
    whole = Compared()
    for name, why in task.source.unread:
        whole.not_readable(f"{name} of the source: {why}")
    for name, why in task.converted.unread:
        whole.not_readable(f"{name}: {why}")
    done = get_context("fork").Value("Q", 0)
    _shared.append((task, done))
    try:
        for found in shared_out.in_order(_layer_in_process, layers, processes, lambda: progress(done.value)):
            whole.merge(found)
    finally:
        _shared.clear()
    return whole


_shared: list[tuple[Task, Synchronized[int]]] = []
"""What forked processes begin with."""


def _layer_in_process(layer: int | None) -> Compared:
    task, done = _shared[0]

    def add(size: int) -> None:
        with done.get_lock():
            done.value += size

    return _layer(task, layer, add)


def _order(layer: int | None) -> int:
    return -1 if layer is None else layer


def _layer(task: Task, layer: int | None, progress: Callable[[int], None]) -> Compared:
    compared = Compared()
    try:
        here, twice = stored.of_layer(task.source.tensors(layer), task.source.format, task.scheme)
        there, again = stored.of_layer(task.converted.tensors(layer), task.converted.format, task.scheme)
    except OSError as error:
        compared.not_readable(f"layer {layer}: {error}")
        return compared
    for name in (*twice, *again):
        compared.not_readable(f"{name}: a second weight of this name")
    found = pairing.pair(here, there, folded=task.folded, keys=task.keys)
    for one, weight in found.missing:
        compared.lack(one, weight.group)
    for one, _ in found.unknown:
        if one.weight not in _DERIVED:
            compared.add_unknown(one)
    with Files(task.source.paths) as source, Files(task.converted.paths) as converted:
        attention = _attention(here)
        suspects: list[tuple[Suspect, Pair]] = []
        for pair in found.pairs:
            if task.reordered and pair.name.weight in _REORDERED:
                compared.not_readable(f"{pair.name}: llama.cpp reorders its rows, which is not undone here")
                continue
            try:
                told = difference.compare(pair, Sides(source, converted), progress)
            except (OSError, ValueError) as error:
                compared.not_readable(f"{pair.name}: {error}")
            else:
                compared.take(pair, _part_of(pair, attention), told)
                if told.suspect is not None:
                    suspects.append((told.suspect, pair))
    pairs = {id(suspect): pair for suspect, pair in suspects}
    for mistake, those in mistakes.exchanged([suspect for suspect, _ in suspects]):
        for suspect in those:
            pair = pairs[id(suspect)]
            part = _part_of(pair, attention)
            _exonerate(compared, part, pair.name)
            compared.blame(mistake, part, pair.name)
    return compared


def _attention(weights: Mapping[Name, Stored]) -> str:
    """What a layer's attention is called, by what it has."""
    own = {name.weight for name in weights}
    return (
        "kda_attention" if "ssm_a" in own else "mla_attention" if "attn_kv_a_mqa" in own else names.ATTENTION
    )


def _part_of(pair: Pair, attention: str) -> str:
    return attention if pair.group == names.ATTENTION else pair.group


def _exonerate(compared: Compared, part: str, name: Name) -> None:
    """What another mistake explains is not called altered as well."""
    known = compared.mistakes.get((Mistake.ALTERED, part))
    if known is None:
        return
    known.number -= 1
    known.weights = [one for one in known.weights if one != _shown(name)]
    if not known.number:
        del compared.mistakes[Mistake.ALTERED, part]


# --- the document ---


def document(found: Compared) -> dict[str, Any]:
    """The part of `k3gate quant --json` that tells of the comparison. NMSE is null where it is infinite."""
    return {
        "lossless": found.lossless,
        "mistakes": list(_mistakes(found)),
        "groups": {
            group: {**_part(part), "layers": list(_layers(found, group))} for group, part in _sorted(found)
        },
        "left_out": dict(found.left_out),
        "missing": {"number": found.lacking, "weights": found.missing},
        "added": {"number": found.added, "weights": found.unknown},
        "not_compared": {"number": found.not_read, "reasons": found.unread},
        "notes": found.notes,
    }


def _sorted(found: Compared) -> list[tuple[str, Part]]:
    return sorted(found.parts.items(), key=lambda item: -item[1].weights)


def _mistakes(found: Compared) -> Iterator[dict[str, Any]]:
    for named in sorted(found.mistakes.values(), key=lambda one: -one.number):
        yield {
            "mistake": str(named.mistake),
            "words": mistakes.WORDS[named.mistake],
            "part": named.part,
            "number": named.number,
            "weights": named.weights,
            "detail": named.detail,
        }


def _part(part: Part) -> dict[str, Any]:
    worst, name = part.worst
    return {
        "weights": part.weights,
        "exact": part.exact,
        **part.sums.document(),
        "worst": {"nmse": worst if math.isfinite(worst) else None, "weight": name} if name else None,
        "codings": dict(part.codings),
        "scales": {
            "source": part.source_factors.document(),
            "converted": part.converted_factors.document(),
        },
    }


def _layers(found: Compared, group: str) -> Iterator[dict[str, Any]]:
    layers = found.layers.get(group, {})
    for layer in sorted(layers, key=_order):
        yield {
            "layer": layer,
            **{key: value for key, value in _part(layers[layer]).items() if key != "codings"},
        }
