"""What a checkpoint is, to the byte, and what is wrong with it: from its headers, without loading a weight."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

from k3gate.documents import digest as hashed
from k3gate.documents import plain, printable
from k3gate.model.checkpoint import architecture, config, gguf, names, quantization, safetensors
from k3gate.model.checkpoint.architecture import Architecture
from k3gate.model.checkpoint.content import CACHE_BYTES, EMBEDDING, FP8, VISION, Content, Group, Tally
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.readers import UNFETCHED, Part, Reader, unread
from k3gate.model.checkpoint.tensors import Header, Problem, Tensor, shown
from k3gate.model.traffic import distinct_experts
from k3gate.records import Finding, Severity
from k3gate.units import count, gib

_FEW = 6
_LICENCE_BYTES = 4 * 2**20
_READERS = {"safetensors": safetensors.read, "gguf": gguf.read}


@frozen
class Shards:
    """The files with weights: how many belong to the checkpoint, how many are there, and which are not whole."""

    expected: int
    found: int
    bytes: int
    truncated: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()


@frozen
class Inspection:
    """One checkpoint. Bytes and counts are exact; None where neither tensors nor config tell.

    `digest` names the checkpoint by its config, its files' sizes and all names, types, shapes and places of its
    tensors: not by the weights, which were not read. `damaged`: it cannot be used as it is.
    """

    place: str
    format: str
    architecture: Architecture
    digest: str
    shards: Shards
    content: Content = field(repr=False)
    stated: config.Stated | None = field(repr=False)
    experts_per_token: int | None = None
    active_parameters: int | None = None
    bytes_per_token: Mapping[str, int | None] = field(factory=dict)
    licences: tuple[tuple[str, str], ...] = ()
    tokenizers: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    revision: str | None = None
    """The commit of a Hub's repository; None for files of this machine."""

    @property
    def damaged(self) -> bool:
        """Whether a finding is of a kind that makes the checkpoint unusable."""
        return any(finding.severity is Severity.HIGH for finding in self.findings)


Progress = Callable[[int, int], None]
"""Called with the number of files whose header was read, and of all."""


def inspect(found: FileSet, processes: int = 1, progress: Progress | None = None) -> Inspection:
    """Read all headers of a checkpoint, many files by so many processes. Damage becomes findings.

    Files of a Hub are read by one process: what takes its time is the way to them.
    """
    gathered = _Gathered(found)
    parts = [part for part in found.parts if part.size is not None]
    here = found.reader.path is not None
    if here and found.index is not None and processes > 1 and len(parts) >= _MANY_FILES:
        _in_parallel(gathered, parts, processes, progress)
    else:
        with found.reader.ahead([part.name for part in parts]):
            for number, part in enumerate(parts, 1):
                gathered.take(part)
                if progress is not None:
                    progress(number, len(parts))
    return gathered.inspection()


_MANY_FILES = 8
_BATCH = 4
_shared: list[_Gathered] = []
"""What forked processes begin with: an index of half a million names is not sent through a pipe."""


def _in_parallel(whole: _Gathered, parts: list[Part], processes: int, progress: Progress | None) -> None:
    from k3gate.model.processes import in_order

    batches = [parts[start : start + _BATCH] for start in range(0, len(parts), _BATCH)]
    _shared.append(whole)
    try:
        for number, some in enumerate(in_order(_batch, batches, processes), 1):
            whole.merge(some)
            if progress is not None:
                progress(min(number * _BATCH, len(parts)), len(parts))
    finally:
        _shared.clear()


def _batch(parts: list[Part]) -> _Gathered:
    """A few files, read in a process of its own; what it began with is not sent back."""
    own = _shared[0].begun()
    for part in parts:
        own.take(part)
    own.wanted = {}
    return own


class _Gathered:
    """What the headers told so far."""

    def __init__(self, found: FileSet) -> None:
        self.found = found
        self.tally = Tally()
        self.problems: list[Problem] = list(found.problems)
        self.identity: list[tuple[str, int, str]] = []
        self.metadata: dict[str, object] = {}
        self.modules: dict[str, bool] = {}
        self.file_of: dict[str, str] = {}
        self.lost: dict[str, list[str]] = {}
        self.unlisted: dict[str, list[str]] = {}
        self.unlisted_bytes = 0
        self.wanted: dict[str, set[str]] = {}
        if found.index is not None:
            for name, file in found.index.file_of.items():
                self.wanted.setdefault(file, set()).add(name)

    def begun(self) -> _Gathered:
        """One that has read nothing, for some files of the same set."""
        bare = evolve(self.found, index=None, config=None, problems=())
        other = _Gathered(bare)
        other.wanted = self.wanted
        return other

    def merge(self, other: _Gathered) -> None:
        """Add what another process read of other files."""
        self.tally.merge(other.tally)
        self.problems += other.problems
        self.identity += other.identity
        for module, quantized in other.modules.items():
            self.modules[module] = self.modules.get(module, False) or quantized
        self.lost |= other.lost
        self.unlisted |= other.unlisted
        self.unlisted_bytes += other.unlisted_bytes

    def take(self, part: Part) -> None:
        try:
            with self.found.reader.open(part.name) as source:
                header = _READERS[self.found.format](source)
        except OSError as error:
            text = f"it cannot be read: {(error.strerror or '').lower() or error}"
            self.problems.append(Problem(unread(self.found.reader), Severity.HIGH, part.name, text))
            return
        self.problems += header.problems
        self.identity.append((part.name, header.size, header.digest))
        self._modules(header)
        if self.wanted:
            self.tally.add(self._against_index(header, part.name))
        else:
            self.tally.add(self._once(header))
        if self.found.format == "gguf":
            self._split(part, header)

    def _once(self, header: Header) -> Iterator[Tensor]:
        """The tensors of the file but those that another file has too."""
        for tensor in header.tensors:
            other = self.file_of.setdefault(tensor.name, header.file)
            if other is not header.file:
                self._twice(header.file, tensor.name, other)
            else:
                yield tensor

    def _twice(self, file: str, name: str, other: str) -> None:
        self.problems.append(
            Problem("duplicate", Severity.HIGH, file, f"tensor {shown(name)} is in {other} as well")
        )

    def _modules(self, header: Header) -> None:
        """Modules with a weight, of the experts of a layer the first alone."""
        for tensor in header.tensors:
            if (
                ".experts." in tensor.name
                and ".experts.0." not in tensor.name
                and names.read(tensor.name)[1].expert
            ):
                continue
            _, place = names.read(tensor.name)
            module = names.owner(tensor.name, place)
            if place.holds == names.CODES or tensor.dtype in FP8:
                self.modules[module] = True
            elif place.holds == names.WEIGHT:
                self.modules.setdefault(module, False)

    def _against_index(self, header: Header, name: str) -> Iterable[Tensor]:
        """Holds the file against the index; gives its tensors but those that the index looks for elsewhere."""
        wanted = self.wanted.get(name, set())
        there = {tensor.name for tensor in header.tensors}
        lost = wanted - there
        if lost:
            self.lost[name] = sorted(lost)
        more = there - wanted
        if not more:
            return header.tensors
        self.unlisted[name] = sorted(more)
        self.unlisted_bytes += sum(tensor.bytes for tensor in header.tensors if tensor.name in more)
        elsewhere = {one for one in more if any(one in names for names in self.wanted.values())}
        return [tensor for tensor in header.tensors if tensor.name not in elsewhere]

    def _split(self, part: Part, header: Header) -> None:
        """A part of a split GGUF: what it says of its place in the set."""
        if not self.metadata:
            self.metadata = header.metadata
        parts = self.found.parts
        number, total = header.metadata.get("split.no"), header.metadata.get("split.count")
        place = [one.name for one in parts].index(part.name)
        if header.header_bytes and len(parts) > 1 and (number != place or total != len(parts)):
            self.problems.append(
                Problem(
                    "split",
                    Severity.HIGH,
                    part.name,
                    f"by its name part {place + 1} of {len(parts)}; inside it says split.no {number!r} of {total!r}, "
                    f"where {place} of {len(parts)} is due",
                )
            )

    # --- the whole ---

    def inspection(self) -> Inspection:
        found = self.found
        self._duplicates()
        stated = _stated(found, self.metadata)
        content = self.tally.content(config.code_bits(stated.quantization if stated else None))
        kind = architecture.identify(stated, content)
        used = stated.experts_per_token if stated else None
        shards = Shards(
            expected=len(found.parts),
            found=sum(part.size is not None for part in found.parts),
            bytes=sum(part.size or 0 for part in found.parts),
            truncated=tuple(p.file for p in self.problems if p.code == "truncated"),
            missing=tuple(part.name for part in found.parts if part.size is None),
            surplus=tuple(p.file for p in self.problems if p.code == "surplus"),
        )
        return Inspection(
            place=found.place,
            format=found.format,
            architecture=kind,
            digest=self._digest(),
            shards=shards,
            content=content,
            stated=stated,
            experts_per_token=used,
            active_parameters=active_parameters(content, used, tied=bool(stated and stated.tied)),
            bytes_per_token=per_token(content, used, tied=bool(stated and stated.tied)),
            licences=tuple(_licences(found.reader, found.licences)),
            tokenizers=found.tokenizers,
            templates=found.templates,
            notes=found.notes,
            findings=tuple(
                sorted(self._findings(stated, content, kind), key=lambda one: _ORDER[one.severity])
            ),
            revision=found.revision,
        )

    def _digest(self) -> str:
        told = hashlib.sha256()
        for name, size, digest in sorted(self.identity):
            told.update(f"{name}\0{size}\0{digest}\n".encode("utf-8", "surrogatepass"))
        if self.found.config is not None:
            told.update(hashed(dict(self.found.config)).encode())
        return f"sha256:{told.hexdigest()}"

    def _findings(
        self, stated: config.Stated | None, content: Content, kind: Architecture
    ) -> Iterator[Finding]:
        yield from _of_files(self.found, content)
        yield from _of_problems(self.problems)
        yield from self._of_index(content)
        yield from quantization.findings(stated, content, self.modules, self._names())
        yield from _of_identity(stated, content, kind)

    def _names(self) -> Container[str]:
        """The names of all tensors."""
        return self.found.index.file_of if self.found.index is not None else self.file_of

    def _duplicates(self) -> None:
        """Tensors that a file has though the index looks for them, and finds them, in another one."""
        if self.found.index is None:
            return
        gone = {part.name for part in self.found.parts if part.size is None}
        for file, more in self.unlisted.items():
            for name in more:
                other = self.found.index.file_of.get(name)
                if other is not None and other not in gone and name not in self.lost.get(other, ()):
                    self._twice(file, name, other)

    def _of_index(self, content: Content) -> Iterator[Finding]:
        if self.lost:
            number = sum(map(len, self.lost.values()))
            first = next(iter(self.lost.items()))
            yield Finding(
                "index_tensor_missing",
                Severity.HIGH,
                f"The index names {count(number, 'tensor')} that are not where it says",
                f"{first[0]} lacks {_few(first[1])}",
                "every tensor of the index in its file",
                "Weights are missing, or the index belongs to other files.",
                "Fetch the files and the index of one revision.",
            )
        unlisted = {name for more in self.unlisted.values() for name in more}
        if unlisted:
            yield Finding(
                "index_tensor_unlisted",
                Severity.MEDIUM,
                f"{count(len(unlisted), 'tensor')} that the index does not name there",
                f"{gib(self.unlisted_bytes)} in {', '.join(list(self.unlisted)[:_FEW])}: {_few(sorted(unlisted))}",
                "an index of all tensors",
                "A loader that goes by the index leaves them out.",
                "Fetch the index of the same revision.",
            )
        if self.found.index is None:
            return
        total = self.found.index.total_size
        if (
            total != content.bytes
            and not self.lost
            and all(part.size is not None for part in self.found.parts)
        ):
            yield Finding(
                "total_size",
                Severity.LOW,
                "The index states another total than its tensors have",
                "none" if total is None else repr(total)[:60],
                f"{content.bytes:,} bytes, the sum of the tensors",
                "The sum is used; a tool that believes the index plans with another.",
                "Nothing is needed.",
            )


_ORDER = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2}


def _stated(found: FileSet, metadata: Mapping[str, object]) -> config.Stated | None:
    if found.format == "gguf":
        return config.of_gguf(metadata)
    return config.of_config(found.config) if found.config is not None else None


def _licences(reader: Reader, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and SHA-256 of each licence file that can be read."""
    for name in names:
        try:
            with reader.open(name) as source:
                yield source.name, "sha256:" + hashlib.sha256(source.read(0, _LICENCE_BYTES)).hexdigest()
        except OSError:
            continue


# --- arithmetic ---


def _read_whole(content: Content, *, tied: bool) -> list[Group]:
    """What a decoded text token reads whole: no vision, and of the embedding table one row, unless it is the head."""
    unread = VISION if tied else (*VISION, EMBEDDING)
    return [
        group
        for name, group in content.groups.items()
        if not name.startswith(names.EXPERTS) and name not in unread
    ]


def _routed(content: Content) -> list[Group]:
    return [group for name, group in content.groups.items() if name.startswith(names.EXPERTS)]


def active_parameters(content: Content, used: int | None, *, tied: bool = False) -> int | None:
    """Parameters that a text token uses: all but vision, the embedding table, and the experts not chosen."""
    rest = sum(group.parameters for group in _read_whole(content, tied=tied))
    return _with_share(rest, sum(group.parameters for group in _routed(content)), content.experts, used)


def per_token(content: Content, used: int | None, *, tied: bool = False) -> dict[str, int | None]:
    """Bytes of weights that a decoded token reads at batch 1: as stored, with all but the experts at Q8_0, and
    the chosen experts alone."""
    rest = _read_whole(content, tied=tied)
    routed = sum(group.bytes for group in _routed(content))
    chosen = _with_share(0, routed, content.experts, used)
    small = sum(group.parameters for group in rest) * 17 // 16
    return {
        "native": _with_share(sum(group.bytes for group in rest), routed, content.experts, used),
        "trunk_q8_0": None if chosen is None else small + chosen,
        "routed": chosen,
    }


def step_bytes(found: Inspection, context: int, batch: int) -> int | None:
    """Bytes of a decode step of `batch` sequences of `context` tokens, routed uniformly: weights once, the
    distinct experts once, and of each sequence its state, read and written, and its KV cache."""
    told, content = found.bytes_per_token, found.content
    native, routed = told.get("native"), told.get("routed")
    if native is None or routed is None:
        return None
    experts, used = content.experts, found.experts_per_token
    distinct = round(routed * distinct_experts(batch, experts, used) / used) if experts and used else routed
    # Of the state: the inputs of short convolutions are a thousandth of it.
    own = 2 * content.recurrent_bytes + cache_bytes(content) * context
    return native - routed + distinct + batch * own


def _with_share(rest: int, routed: int, experts: int | None, used: int | None) -> int | None:
    """`rest` and the share of the routed experts that a token uses."""
    if not routed:
        return rest
    if not experts or used is None or used > experts:
        return None
    return rest + routed * used // experts


def cache_bytes(content: Content) -> int:
    """Bytes of the KV cache of a token in BF16; of MLA in its compressed form."""
    return content.cache_values * CACHE_BYTES


# --- findings ---


def _of_files(found: FileSet, content: Content) -> Iterator[Finding]:
    missing = [part for part in found.parts if part.size is None]
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
            f"{gib(size)}: {_few([part.name for part in found.beside])}",
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


def _of_problems(problems: Iterable[Problem]) -> Iterator[Finding]:
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


def _of_identity(stated: config.Stated | None, content: Content, kind: Architecture) -> Iterator[Finding]:
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


def _few(told: list[str]) -> str:
    more = f" and {len(told) - _FEW:,} more" if len(told) > _FEW else ""
    return ", ".join(shown(name) for name in told[:_FEW]) + more


def document(found: Inspection) -> dict[str, Any]:
    """The JSON of `k3gate inspect --json`; bytes per token are those of weights at batch 1."""
    content = found.content
    stated = found.stated
    kinds = Counter(layer.attention or "none" for layer in content.layers)
    return {
        "place": found.place,
        "revision": found.revision,
        "format": found.format,
        "architecture": found.architecture.name,
        "because": found.architecture.because,
        "digest": found.digest,
        "shards": plain(found.shards),
        "tensors": content.tensors,
        "bytes": {
            "tensors": content.bytes,
            "files": found.shards.bytes,
            "groups": {name: group.bytes for name, group in content.groups.items()},
        },
        "groups": plain(content.groups),
        "parameters": {"total": content.parameters, "active": found.active_parameters},
        "bytes_per_token": dict(found.bytes_per_token),
        "kv_bytes_per_token": cache_bytes(content),
        "state_bytes_per_sequence": content.state_bytes,
        "layers": {
            "total": len(content.layers),
            "attention": dict(kinds),
            "with_experts": sum(layer.experts > 0 for layer in content.layers),
        },
        "experts": {
            "per_layer": content.experts,
            "per_token": found.experts_per_token,
            "parameters": content.expert_parameters,
            "bytes": content.expert_bytes,
            "layout": "fused" if content.fused else "single" if content.experts else None,
        },
        "quantization": plain(content.pairs),
        "context": stated.context if stated else None,
        "licences": [{"file": name, "sha256": digest} for name, digest in found.licences],
        "tokenizers": list(found.tokenizers),
        "templates": list(found.templates),
        "notes": list(found.notes),
        "findings": plain(found.findings),
    }
