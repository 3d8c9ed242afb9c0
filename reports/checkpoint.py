"""The page of `k3gate inspect -o FILE.html`: what a checkpoint is, what is wrong with it, what a token of it costs."""

from __future__ import annotations

from attrs import frozen
from markupsafe import Markup

from k3gate import __version__, units
from k3gate.model.checkpoint import costs
from k3gate.model.checkpoint.inspection import Inspection
from k3gate.records import Severity, Verdict
from k3gate.reports import charts, words
from k3gate.reports.page import environment, footer

_CONTEXTS = (8_192, 32_768, 131_072, 1_048_576)
_SEQUENCES = (1, 4, 16, 64)
_WEIGHT = {Severity.HIGH: 3, Severity.MEDIUM: 2, Severity.LOW: 1}


@frozen
class GroupRow:
    """A part of the model with its share drawn."""

    name: str
    chart: Markup
    share: str
    bytes: str
    tensors: str
    types: str


def render(found: Inspection, written: str, checksums: tuple[Verdict, str] | None = None) -> str:
    """The page as text; everything from the checkpoint is escaped. `written`: ISO 8601 stamp; `checksums`: verdict
    and reason of the comparison with a list, where there was one."""
    model = found.architecture.name
    context = {
        "kind": "checkpoint",
        "title": "Inspection of a checkpoint",
        "places": [found.place],
        "heading": f"{words.capital(model_name(model))}, {'damaged' if found.damaged else 'whole'}",
        "decided": Verdict.FAIL if found.damaged else None,
        "lead": f"{words.capital(found.architecture.because)}.",
        "version": f"k3gate {__version__}",
        "written": written,
        "facts": list(_facts(found)),
        "files": _files(found),
        "findings": [(_WEIGHT[one.severity], one) for one in found.findings],
        "groups": [_group(found, name) for name in found.content.groups],
        "groups_title": _groups_title(found),
        "contexts": [f"{context:,}" for context in _contexts(found)],
        "steps": _steps(found),
        "token": _token(found),
        "token_title": _token_title(found),
        "checksums": f"{words.capital(str(checksums[0]))}: {checksums[1]}" if checksums else None,
        "unknown": list(_unknown(found, checksums)),
        "footer": footer(f"k3gate inspect {found.digest[:23]}"),
    }
    return environment().get_template("checkpoint.html.j2").render(context)


_NAMES = {"kimi-k3": "Kimi K3", "kimi-k2": "Kimi K2", "not identified": "a model that is not identified"}
_PARTS = {
    "kda": "KDA",
    "mla": "MLA",
    "lm": "LM",
    "mlp": "MLP",
    "mm": "multimodal",
    "embed": "token",
    "tokens": "embeddings",
}


def model_name(name: str) -> str:
    """A model as its makers write it, where that is known."""
    return _NAMES.get(name, name)


def part_name(name: str) -> str:
    """A part of the model in words: "KDA attention"."""
    return words.capital(" ".join(_PARTS.get(word, word) for word in name.split("_")))


def _facts(found: Inspection) -> list[tuple[str, str | None]]:
    content, stated = found.content, found.stated
    kinds: dict[str, int] = {}
    for layer in content.layers:
        kinds[layer.attention or "without attention"] = (
            kinds.get(layer.attention or "without attention", 0) + 1
        )
    told = ", ".join(f"{number} {_PARTS.get(kind, kind)}" for kind, number in kinds.items())
    experts = None
    if content.experts:
        used = f", {found.experts_per_token} used by a token" if found.experts_per_token else ""
        experts = f"{content.experts:,} in a layer{used}"
    return [
        ("Parameters", f"{content.parameters:,}"),
        (
            "Active for a token",
            f"{found.active_parameters:,}" if found.active_parameters is not None else None,
        ),
        ("Layers", f"{len(content.layers)} ({told})" if content.layers else None),
        ("Routed experts", experts or "none"),
        ("An expert", f"{content.expert_bytes:,} bytes" if content.expert_bytes else "none"),
        ("Context", f"{stated.context:,} tokens" if stated and stated.context else None),
    ]


def _files(found: Inspection) -> list[tuple[str, str | None, bool]]:
    shards = found.shards
    licence = "; ".join(f"{name} {digest}" for name, digest in found.licences)
    return [
        ("Files", f"{shards.found:,} of {shards.expected:,}, {found.format}", False),
        ("Bytes of files", f"{shards.bytes:,}", False),
        ("Tensors", f"{found.content.tensors:,}", False),
        ("Bytes of tensors", f"{found.content.bytes:,}", False),
        ("Licence", licence or "no such file", bool(licence)),
        ("Tokenizer", ", ".join(found.tokenizers) or "no such file", False),
        ("Digest", found.digest, True),
        *(("Note", note, False) for note in found.notes),
    ]


def _group(found: Inspection, name: str) -> GroupRow:
    group = found.content.groups[name]
    share = group.bytes / (found.content.bytes or 1)
    place = charts.scale(0, 1)
    return GroupRow(
        part_name(name),
        charts.cell([charts.band(0, place(share), "30%", "40%", "f-data")]),
        f"{share * 100:.2f}",
        f"{group.bytes:,}",
        f"{group.tensors:,}",
        ", ".join(sorted(group.types, key=lambda one: -group.types[one])),
    )


def _groups_title(found: Inspection) -> str:
    whole = found.content.bytes
    if not whole:
        return "No tensors"
    routed = sum(g.bytes for name, g in found.content.groups.items() if name.startswith("routed_experts"))
    size = units.quantity(whole, "B")
    return (
        f"{size}, {routed / whole * 100:.1f}{units.NBSP}% of it routed experts"
        if routed
        else f"{size} of tensors"
    )


def _contexts(found: Inspection) -> tuple[int, ...]:
    longest = found.stated.context if found.stated and found.stated.context else _CONTEXTS[-1]
    return tuple(one for one in _CONTEXTS if one <= longest) or (longest,)


def _steps(found: Inspection) -> list[tuple[str, list[str]]]:
    if costs.step_bytes(found, 0, 1) is None:
        return []
    return [
        (
            f"{batch}",
            [units.quantity(costs.step_bytes(found, context, batch), "B") for context in _contexts(found)],
        )
        for batch in _SEQUENCES
    ]


def _token(found: Inspection) -> list[tuple[str, str]]:
    told = found.bytes_per_token
    content = found.content

    def size(value: int | None) -> str:
        return "unknown" if value is None else f"{value:,} bytes ({units.quantity(value, 'B')})"

    return [
        ("Weights as stored, batch 1", size(told.get("native"))),
        ("With all but the experts at Q8_0", size(told.get("trunk_q8_0"))),
        ("Routed experts alone", size(told.get("routed"))),
        ("KV cache of a token", size(costs.cache_bytes(content))),
        ("State of a sequence", size(content.state_bytes)),
    ]


def _token_title(found: Inspection) -> str:
    native = found.bytes_per_token.get("native")
    if native is None:
        return "What a decoded token reads is not known"
    return f"A decoded token reads {units.quantity(native, 'B')} of weights"


def _unknown(found: Inspection, checksums: tuple[Verdict, str] | None) -> list[str]:
    told = []
    if checksums is None:
        told.append(
            "Whether the weights are those that were released: only headers were read. `k3gate inspect PATH "
            "--checksums` reads all."
        )
    if found.experts_per_token is None and found.content.experts:
        told.append("How many experts a token uses: neither config nor header says it.")
    if not found.licences:
        told.append("Under which licence the weights stand: no such file lies beside them.")
    return told
