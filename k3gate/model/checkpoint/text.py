"""The page of `k3gate inspect`: findings first, then what the checkpoint is and what a token of it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from k3gate import pages
from k3gate.model.checkpoint import costs
from k3gate.model.checkpoint.inspection import Inspection
from k3gate.pages import WIDTH, row
from k3gate.units import count, quantity


def page(found: Inspection, context: int, batch: int) -> str:
    """Plain text of at most 100 columns; the traffic is that of `batch` sequences of `context` tokens."""
    sections = (
        ("Findings", pages.findings(found.findings, "None: files, index, config and tensors agree.")),
        ("Checkpoint", _checkpoint(found)),
        ("Groups", _groups(found)),
        ("A decoded token", _token(found, context, batch)),
    )
    return pages.page(sections)


def _checkpoint(found: Inspection) -> Iterator[str]:
    content, shards, stated = found.content, found.shards, found.stated
    yield row("place", found.place)
    if found.revision is not None:
        yield row("revision", found.revision)
    yield row("model", f"{found.architecture.name}: {found.architecture.because}")
    yield row("digest", found.digest)
    yield row("files", f"{shards.found:,} of {shards.expected:,}, {found.format}, {_bytes(shards.bytes)}")
    yield row("tensors", f"{content.tensors:,}, {_bytes(content.bytes)}")
    yield row("parameters", f"{content.parameters:,}")
    yield row(
        "active", f"{found.active_parameters:,} a token" if found.active_parameters is not None else None
    )
    yield row("layers", _layers(found))
    if content.experts:
        used = f", {found.experts_per_token} used" if found.experts_per_token else ""
        size = f", each {_bytes(content.expert_bytes)}" if content.expert_bytes else ""
        yield row("routed experts", f"{content.experts:,} in a layer{used}{size}")
    for pair in content.pairs[:4]:
        scale = (
            f"{pair.scale} ({pair.scale_type}), {pair.group} weights each; {pair.meaning}"
            if pair.scale
            else "no scale"
        )
        yield row(
            "quantized", f"{count(pair.number, 'matrix', 'matrices')} of {pair.part}: {pair.type}, {scale}"
        )
    yield row("context", f"{stated.context:,} tokens" if stated and stated.context else None)
    yield row("licence", ", ".join(f"{name} {digest}" for name, digest in found.licences) or "no such file")
    yield row("tokenizer", ", ".join(found.tokenizers) or "no such file")
    yield row("template", ", ".join(found.templates) or "no such file")
    for note in found.notes:
        yield row("note", note)


def _layers(found: Inspection) -> str:
    layers = found.content.layers
    kinds = Counter(layer.attention or "without attention" for layer in layers)
    moe = sum(layer.experts > 0 for layer in layers)
    told = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    return f"{len(layers)} ({told}); {moe} with experts" if layers else "none that names tell"


def _groups(found: Inspection) -> Iterator[str]:
    whole = found.content.bytes or 1
    yield f"{'':<24}{'tensors':>9}{'bytes':>21}{'share':>9}  types"
    for name, group in found.content.groups.items():
        types = " ".join(sorted(group.types, key=lambda one: -group.types[one]))
        yield f"{name:<24}{group.tensors:>9,}{group.bytes:>21,}{group.bytes / whole:>9.2%}  {types}"[:WIDTH]


def _token(found: Inspection, context: int, batch: int) -> Iterator[str]:
    told = found.bytes_per_token
    yield row("weights", _bytes(told.get("native")) + ", as they are stored, batch 1")
    yield row("trunk at Q8_0", _bytes(told.get("trunk_q8_0")))
    yield row("routed alone", _bytes(told.get("routed")))
    yield row("KV cache", f"{_bytes(costs.cache_bytes(found.content))} for each token of context, in BF16")
    yield row("state", f"{_bytes(found.content.state_bytes)} for each sequence, in F32")
    step = costs.step_bytes(found, context, batch)
    who = f"{count(batch, 'sequence')} of {context:,} tokens"
    yield row("one step", f"{_bytes(step)} for {who}, with uniform routing")


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,} B ({quantity(size, 'B')})"
