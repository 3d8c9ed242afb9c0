"""What states, caches and attention itself take at another context, batch and depth than the replayed one. Pure.

A step's attention is three things (k3/layer.md of the facts), and the replay times them as one part: states of KDA,
which each sequence reads and writes; rows of a cache, of which each sequence has as many as its context; and products
per head of MLA, whose weights all sequences share. Rows are mostly arithmetic, some 180 operations a byte, so that
their bytes say little of their time: two replayed contexts do.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from k3gate.analysis.replayed import BITS, Model, Step, base_of, by_format, relative
from k3gate.model import k3

PART = "attention_core"
_ROW_FLOPS = 2 * k3.HEADS * (2 * k3.KV_LORA_RANK + k3.ROPE_DIM)
"""Of a row of the cache: scores over all of it, sums over its values."""
_STATE_FLOPS = 7 * k3.HEADS * k3.HEAD_DIM**2
_HEAD_FLOPS = 2 * k3.HEADS * 2 * k3.HEAD_DIM * k3.KV_LORA_RANK


@frozen
class Core:
    """Seconds of a step's states, caches and attention, and how far they may lie off; what was assumed, as clauses."""

    seconds: float
    off: float
    told: tuple[str, ...]


@frozen
class _Rows:
    """Seconds by context between two replayed ones, and beyond them: `at` (rows, seconds, how far off)."""

    first: tuple[int, float, float]
    second: tuple[int, float, float]

    @property
    def each(self) -> float:
        """Seconds of a row of the caches."""
        return (self.second[1] - self.first[1]) / (self.second[0] - self.first[0])

    def at(self, context: int) -> float:
        """Seconds at a context."""
        return self.first[1] + self.each * (context - self.first[0])

    def off(self, context: int) -> float:
        """How far that may lie off: the scatter of both, by the weight that each has there."""
        apart = self.second[0] - self.first[0]
        weights = (self.second[0] - context) / apart, (context - self.first[0]) / apart
        return abs(weights[0]) * self.first[2] + abs(weights[1]) * self.second[2]

    @property
    def between(self) -> str:
        """The contexts, in words."""
        return f"{self.first[0]:,} and {self.second[0]:,}"


def core(base: Step, own: Model, target: Model, found: Sequence[Step]) -> Core:
    """From the case `base`, which replayed `own`; of `found` those with other contexts tell what a row takes."""
    now = base.parts.get(PART, 0.0)
    series = _series(base, found)
    near, far = _pair(series, own.context), _pair(series, target.context)
    told: list[str] = []
    if near is None or far is None:
        cases = _unmeasured(now, own, target)
        if target.context != own.context:
            told.append(f"no other context was replayed: {_EXTREMES}")
    elif near.each <= 0 or far.each <= 0:
        flat = far if far.each <= 0 else near
        cases = _unmeasured(now, own, target)
        if target.context != own.context:
            told.append(f"rows of the cache took no time between contexts {flat.between}: {_EXTREMES}")
    else:
        of = series[0]
        many = own.batch / of.number("batch") * (own.mla / (of.number("layers") // 4))
        off = 0.0
        if target.context != own.context:
            off = many * far.off(target.context) + (0.0 if base in series else many * near.off(own.context))
            told.append(f"a row of the cache takes what it took between {far.between}{_elsewhere(base, of)}")
        whole = max(0.0, now + many * (far.at(target.context) - near.at(own.context)))
        # As far as it goes, what a row takes is that of its surroundings.
        rows = min(whole, many * far.each * target.context)
        cases = [(max(0.0, rows + one), whole - rows) for one in (-off, off)]
    values = [_scaled(rows, rest, own, target, shared) for rows, rest in cases for shared in (True, False)]
    if target.batch != own.batch:
        told.append(
            f"states and caches take {target.batch / own.batch:g} times as long for {target.batch} sequences as for "
            f"{own.batch}, products per head between as long and so many times as long"
        )
    least, most = min(values), max(values)
    return Core((least + most) / 2, (most - least) / 2, tuple(told))


_EXTREMES = "attention takes between what its bytes say and what it takes row by row"


def measurable(base: Step, found: Sequence[Step], context: int) -> bool:
    """Whether two replayed contexts say what a row of the cache takes around `context`."""
    pair = _pair(_series(base, found), context)
    return pair is not None and pair.each > 0


def core_bytes(model: Model) -> float:
    """States read and written, caches, and the products per head of MLA layers."""
    return _state_bytes(model) + _cache_bytes(model, model.context) + _head_bytes(model)


def _series(base: Step, found: Sequence[Step]) -> list[Step]:
    """Cases that differ by their context alone, by it: of the run's base case, on the placement of `base`."""
    usable = [one for one in found if one.usable and one.label("factor") in ("base", "context")]
    first = base_of(tuple(usable)) or next(iter(usable), None)
    if first is None or first.label("trunk") == "gpu":
        return []
    if not base.alike(first, "trunk", "batch", "context", "layers", "experts", "head_rows"):
        return []
    alike = {one.number("context"): one for one in reversed(usable) if one.alike(first, "context", "experts")}
    return [alike[context] for context in sorted(alike)]


def _pair(series: Sequence[Step], context: int) -> _Rows | None:
    """The two contexts that enclose this one, else the nearest two; None where there are no two."""
    if len(series) < 2:
        return None
    second = next((i for i, one in enumerate(series) if one.number("context") >= context), len(series) - 1)
    pair = series[max(1, second) - 1], series[max(1, second)]
    points = []
    for one in pair:
        seconds = one.parts.get(PART, 0.0)
        points.append((one.number("context"), seconds, seconds * one.scatter.get(PART, relative(None, None))))
    return _Rows(*points)


def _elsewhere(base: Step, of: Step) -> str:
    """What else those cases were, where they are not like the one that the rest is taken from."""
    parts = []
    if base.label("trunk") != of.label("trunk"):
        parts.append(f"a trunk in {of.label('trunk')}")
    if base.number("batch") != of.number("batch"):
        parts.append("1 sequence" if of.number("batch") == 1 else f"{of.number('batch')} sequences")
    if base.number("layers") != of.number("layers"):
        parts.append(f"{of.number('layers')} layers")
    return f", with {' and '.join(parts)}" if parts else ""


def _unmeasured(now: float, own: Model, target: Model) -> list[tuple[float, float]]:
    """(seconds of rows, of the rest) of the replayed layers at the target's context: by bytes, and all by rows."""
    if (target.context, target.batch) == (own.context, own.batch):
        rows = now * _cache_bytes(own, own.context) / core_bytes(own)
        return [(rows, now - rows)]
    if own.context:
        grown = target.context / own.context
        rows = now * _cache_bytes(own, own.context) / core_bytes(own)
        return [(rows * grown, now - rows), (now * grown, 0.0)]
    # Without a single row in the cache nothing says what one takes, but its bytes and its arithmetic beside the rest.
    rest = own.batch * (own.kda * _STATE_FLOPS + own.mla * _HEAD_FLOPS)
    by_bytes = now * _cache_bytes(own, target.context) / core_bytes(own)
    by_flops = now * own.batch * own.mla * target.context * _ROW_FLOPS / rest
    return [(by_bytes, now), (by_flops, now)]


def _scaled(rows: float, rest: float, own: Model, target: Model, shared: bool) -> float:
    """Seconds of the target's layers and sequences; `shared`: products per head take as long for any number."""
    many, mla = target.batch / own.batch, target.mla / own.mla
    heads = rest * _head_bytes(own) / (_state_bytes(own) + _head_bytes(own))
    states = (rest - heads) * many * target.kda / own.kda
    return rows * many * mla + states + heads * mla * by_format(own, target) * (1.0 if shared else many)


def _state_bytes(model: Model) -> float:
    return model.batch * model.kda * 2 * k3.HEADS * k3.HEAD_DIM**2 * 4


def _cache_bytes(model: Model, context: int) -> float:
    return model.batch * model.mla * (k3.KV_LORA_RANK + k3.ROPE_DIM) * 2 * context


def _head_bytes(model: Model) -> float:
    return model.mla * k3.HEADS * 2 * k3.HEAD_DIM * k3.KV_LORA_RANK * BITS.get(model.trunk, 16.0) / 8
