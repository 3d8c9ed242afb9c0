"""What a checkpoint is, to the byte, and what is wrong with it: from its headers, without loading a weight."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from attrs import evolve, field, frozen

from k3gate.documents import digest as hashed
from k3gate.model.checkpoint import (
    architecture,
    config,
    findings,
    gguf,
    names,
    quantization,
    safetensors,
)
from k3gate.model.checkpoint.architecture import Architecture
from k3gate.model.checkpoint.content import FP8, Content, Tally
from k3gate.model.checkpoint.costs import active_parameters, per_token
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.readers import Part, Reader, unread
from k3gate.model.checkpoint.tensors import Header, Problem, Tensor, shown
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
        yield from findings.of_files(self.found, content)
        yield from findings.of_problems(self.problems)
        yield from self._of_index(content)
        yield from quantization.findings(stated, content, self.modules, self._names())
        yield from findings.of_identity(stated, content, kind)

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
                f"{first[0]} lacks {findings.few(first[1])}",
                "every tensor of the index in its file",
                "Weights are missing, or the index belongs to other files.",
                "Fetch the files and the index of one revision.",
            )
        files = ", ".join(list(self.unlisted)[:_FEW])
        unlisted = {name for more in self.unlisted.values() for name in more}
        if unlisted:
            yield Finding(
                "index_tensor_unlisted",
                Severity.MEDIUM,
                f"{count(len(unlisted), 'tensor')} that the index does not name there",
                f"{gib(self.unlisted_bytes)} in {files}: {findings.few(sorted(unlisted))}",
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
