"""What is wrong with a checkpoint, as findings: files, headers, and what it says of itself. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from k3gate.documents import printable
from k3gate.model.checkpoint import architecture, config
from k3gate.model.checkpoint.architecture import Architecture
from k3gate.model.checkpoint.content import EMBEDDING, Content
from k3gate.model.checkpoint.costs import active_parameters
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.readers import UNFETCHED
from k3gate.model.checkpoint.tensors import Problem, shown
from k3gate.records import Finding, Severity
from k3gate.units import count, gib

_FEW = 6


def of_files(found: FileSet, content: Content) -> Iterator[Finding]:
    """Files that are missing, and weight files beside those of the checkpoint."""
    missing = [part for part in found.parts if part.size is None]
    if not content.tensors and not missing:
        yield Finding(
            "empty",
            Severity.HIGH,
            "No tensors",
            "files whose headers name none",
            "the weights of a model",
            "There is nothing to load.",
            "Fetch the checkpoint again.",
        )
    if missing:
        named = found.index.file_of if found.index is not None else {}
        lost = Counter(named.values())
        tensors = sum(lost[part.name] for part in missing)
        total = found.index.total_size if found.index is not None else None
        gone = total - content.bytes if type(total) is int and total > content.bytes else None
        told = f", {count(tensors, 'tensor')}" if tensors else ""
        told += f", {gone:,} bytes" if gone is not None else ""
        why = "; ".join(f"{shown(part.name)}: {part.trouble}" for part in missing[:_FEW])
        more = f" and {len(missing) - _FEW:,} more" if len(missing) > _FEW else ""
        yield Finding(
            "shard_missing",
            Severity.HIGH,
            f"{len(missing):,} of {count(len(found.parts), 'file')} of the checkpoint cannot be had{told}",
            why + more,
            "all files",
            "A part of the weights is not there: no runtime can load the model.",
            "Fetch the files that are named, not the whole again (hf download REPO FILE).",
        )
    if found.beside:
        size = sum(part.size or 0 for part in found.beside)
        yield Finding(
            "files_beside",
            Severity.LOW,
            f"{count(len(found.beside), 'weight file')} beside the checkpoint",
            f"{gib(size)}: {few([part.name for part in found.beside])}",
            "only files of the checkpoint",
            "They are not counted here; a loader that takes every file reads weights twice or wrong.",
            "Move them elsewhere if they belong to nothing.",
        )


_WORDS = {
    "lfs_pointer": ("Git LFS pointers in place of weights", "the files themselves"),
    "header": ("Files whose header cannot be read", "a header that fits its file"),
    "long_header": ("Headers longer than common loaders read", "at most 100,000,000 bytes"),
    "duplicate": ("Tensors that are named twice", "each name once"),
    "duplicate_key": ("Keys that are named twice", "each key once"),
    "overlap": ("Tensors that share bytes", "bytes of one tensor each"),
    "hole": ("Bytes that belong to no tensor", "tensors without holes"),
    "tensor": ("Tensors whose entry cannot be believed", "ranges that fit shape and type"),
    "unknown_type": ("Tensors of a type that is not known here", "a known type"),
    "metadata": ("Metadata that is no table of texts", "texts"),
    "truncated": ("Files that end too early", "as many bytes as the header tells"),
    "surplus": ("Files with bytes behind the last tensor", "as many bytes as the header tells"),
    "unreadable": ("Files that cannot be read", "files that may be read"),
    UNFETCHED: ("Files that the Hub did not give", "every file that it lists"),
    "no_index": ("Shards without an index", "the index of the checkpoint"),
    "index": ("An index that cannot be used", "a map from tensors to files of the folder"),
    "json": ("A file that should be JSON and is not", "a JSON object"),
    "split": ("Parts of another set, or in another order", "parts in the order of their names"),
    "alignment": ("A wrong alignment", "a multiple of 8"),
}
_NOT_KNOWN = "What they hold is not known: this inspection proves nothing, and nothing of it is kept."
_REMEDIES = {
    "lfs_pointer": "Fetch the files: git lfs pull, or hf download.",
    "truncated": "Fetch these files again; the download was cut.",
    "surplus": "Fetch these files again.",
    "unreadable": "Make them readable for this user.",
    UNFETCHED: "Inspect again; where it stays so, look at these files on the Hub's page.",
    "long_header": "Nothing is needed here; another loader may need fewer tensors in a file.",
    "no_index": "Fetch model.safetensors.index.json.",
}


def of_problems(problems: Iterable[Problem]) -> Iterator[Finding]:
    """One finding for all problems of a kind."""
    kinds: dict[tuple[str, Severity], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.code, problem.severity), []).append(problem)
    for (code, severity), these in kinds.items():
        title, expected = _WORDS[code]
        size = sum(problem.bytes or 0 for problem in these)
        total = f" ({size:,} bytes in all)" if size and len(these) > 1 else ""
        told = "; ".join(f"{problem.file}: {problem.text}" for problem in these[:_FEW])
        more = f"; and {len(these) - _FEW:,} more" if len(these) > _FEW else ""
        yield Finding(
            code,
            severity,
            title + total,
            told + more,
            expected,
            _NOT_KNOWN
            if code == UNFETCHED
            else "A loader fails on them, or loads something else than the model.",
            _REMEDIES.get(code, "Fetch the files of one revision again, or convert anew."),
        )


def of_identity(stated: config.Stated | None, content: Content, kind: Architecture) -> Iterator[Finding]:
    """What the checkpoint says of itself and its tensors do not show, or show otherwise."""
    if kind.name == architecture.NOT_IDENTIFIED:
        yield Finding(
            "not_identified",
            Severity.MEDIUM,
            "Which model this is cannot be told",
            kind.because,
            "a checkpoint whose config and tensors agree on a model",
            "Figures for Kimi K3 say nothing about another model.",
            "Add the config that belongs to these files, or fetch the checkpoint anew.",
        )
    if stated is None:
        return
    wrong = [
        f"{what}: {said:,} by {stated.source}, {there:,} by the tensors"
        for what, said, there in _compared(stated, content)
        if said is not None and there and said != there
    ]
    if wrong:
        yield Finding(
            "config_contradicted",
            Severity.MEDIUM,
            "The checkpoint's own description differs from its tensors",
            "; ".join(wrong),
            "a description of these tensors",
            "The tensors are counted here; a runtime that believes the description fails or computes nonsense.",
            "Fetch the config of the same revision.",
        )
    other = architecture.dialect(stated, content) if stated.model_type == architecture.KIMI_K3 else None
    if other is not None:
        yield Finding(
            "gguf_dialect",
            Severity.MEDIUM,
            "llama.cpp's main branch cannot load this file",
            other,
            "the keys and names of llama.cpp's main branch",
            "The file was written by another converter: it loads only in that converter's own runtime.",
            "Convert the checkpoint with llama.cpp's own converter, or use the runtime that the file was made for.",
        )
    active = re.search(r"A(\d+(?:\.\d+)?)B", stated.label or "")
    counted = active_parameters(content, stated.experts_per_token)
    if active and counted and not 0.9 < float(active[1]) * 1e9 / counted < 1.1:
        yield Finding(
            "label_wrong",
            Severity.LOW,
            "The label states another number of active parameters than the tensors give",
            f"{printable(stated.label or '')}: {active[1]}B active",
            f"{counted / 1e9:.1f}B",
            "Bandwidth planned by the label is too little: it leaves out all but the routed experts.",
            "Go by the tensors.",
        )


def _compared(stated: config.Stated, content: Content) -> Iterator[tuple[str, int | None, int | None]]:
    moe = [layer for layer in content.layers if layer.experts]
    yield "layers", stated.layers, len(content.layers)
    yield "experts in a layer", stated.experts, content.experts
    if stated.experts and moe and stated.dense_layers is not None:
        yield "dense layers", stated.dense_layers, len(content.layers) - len(moe) or None
    embedding = content.groups.get(EMBEDDING)
    if embedding is not None and stated.hidden and stated.vocabulary:
        yield "numbers in the embedding table", stated.hidden * stated.vocabulary, embedding.parameters
    if stated.expert_intermediate and (stated.expert_width or stated.hidden) and content.expert_parameters:
        width = stated.expert_width or stated.hidden or 0
        yield "parameters in an expert", 3 * stated.expert_intermediate * width, content.expert_parameters
    for what, said, attention in (
        ("layers with full attention", stated.full_attention_layers, "mla"),
        ("layers with linear attention", stated.linear_attention_layers, "kda"),
    ):
        there = tuple(layer.number for layer in content.layers if layer.attention == attention)
        if said is not None and there and set(said) != set(there):
            yield what, len(said), len(there) if len(said) != len(there) else -1


def few(told: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(told) - _FEW:,} more" if len(told) > _FEW else ""
    return ", ".join(shown(name) for name in told[:_FEW]) + more
