"""Which files make up a checkpoint: the shards that index or names call for, what is missing, and what lies beside.

Finding them reads names, links and small JSON files, no weights. A checkpoint that is damaged is found all the
same, with its problems; `UsageError` is for a place that holds none. The rules hold for a folder of this machine
and for one of a Hub alike: a `Reader` tells names and gives files.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from attrs import evolve, field, frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.checkpoint.readers import UNFETCHED, LocalReader, Part, Reader, names_in, small, why
from k3gate.model.checkpoint.tensors import Problem, shown
from k3gate.records import Severity

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
_INDEX_BYTES = 512 * 2**20
_CONFIG_BYTES = 16 * 2**20
_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5,6})\.(?P<format>safetensors|gguf)", re.ASCII
)
_MOST_SHARDS = 10_000
_LICENCE = re.compile(r"(?i)(?:.*[-_.])?(?:licen[cs]e|copying)(?:[-_.].*)?")
_TOKENIZER = re.compile(
    r"(?i)tokenizer(?:_config)?\.(?:json|model)|tiktoken\.model|.*\.tiktoken|vocab\.json|merges\.txt"
)
_TEMPLATE = re.compile(r"(?i)chat_template\.(?:jinja|json)|encoding_.*\.py")


@frozen
class Index:
    """The map from tensors to files, as the checkpoint's index has it."""

    file_of: Mapping[str, str] = field(repr=False)
    total_size: object = None


@frozen
class FileSet:
    """A checkpoint's files. `parts` are those that belong to it, `beside` other weight files in the folder.

    `revision` is the commit of a Hub's repository, None for files of this machine.
    """

    place: str
    format: str
    reader: Reader = field(repr=False)
    parts: tuple[Part, ...]
    beside: tuple[Part, ...] = ()
    index: Index | None = None
    config: Mapping[str, Any] | None = None
    licences: tuple[str, ...] = ()
    tokenizers: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    revision: str | None = None

    @property
    def folder(self) -> Path:
        """Where the files lie on this machine; `ValueError` where they lie elsewhere."""
        if self.reader.path is None:
            raise ValueError(f"{self.place} is no folder of this machine")
        return self.reader.path


def find(place: str | Path) -> FileSet:
    """The checkpoint at `place`: its folder, one of its files, or a repository in the cache of the Hub."""
    given = Path(place)
    name = printable(str(place))
    try:
        mode = given.stat().st_mode
    except OSError as error:
        raise UsageError(
            f"{name}: {why(given, error)}; give a checkpoint's folder or one of its files"
        ) from error
    if stat.S_ISREG(mode):
        found = of_file(LocalReader(given.parent), given.name, name)
        return evolve(found, notes=(*found.notes, *_unfinished(given.parent)))
    if not stat.S_ISDIR(mode):
        raise UsageError(
            f"{name}: neither a folder nor a file; give a checkpoint's folder or one of its files"
        )
    folder, notes = _snapshot(given)
    found = in_folder(LocalReader(folder), name)
    return evolve(found, notes=(*notes, *found.notes, *_unfinished(folder)))


def of_file(reader: Reader, file: str, place: str) -> FileSet:
    """The checkpoint that a file of the folder stands for: itself, or the whole set of which it is a part."""
    if file == INDEX or (file == CONFIG and any(n.endswith(".safetensors") for n in reader.names())):
        return in_folder(reader, place)
    match = _SHARD.fullmatch(file)
    if match is not None and match["format"] == "gguf":
        found = _split(reader, match, place)
        note = f"{shown(file)} is part {int(match['number'])} of {int(match['count'])}: the whole set is read"
        return evolve(found, notes=(note,))
    if file.endswith(".gguf"):
        return FileSet(place, "gguf", reader, (reader.part(file),))
    if file.endswith(".safetensors"):
        if match is not None or INDEX in reader.names():
            found = in_folder(reader, place)
            if any(part.name == file for part in found.parts):
                note = f"{shown(file)} is one of {len(found.parts)} files of a checkpoint: the whole is read"
                return evolve(found, notes=(note,))
        return FileSet(place, "safetensors", reader, (reader.part(file),))
    raise UsageError(f"{place}: not a checkpoint; give a folder, a .safetensors or a .gguf file")


def _snapshot(folder: Path) -> tuple[Path, list[str]]:
    """The folder itself, or the snapshot of a repository in the Hub's cache (models--ORG--NAME)."""
    snapshots = folder / "snapshots"
    if not (snapshots.is_dir() and (folder / "blobs").is_dir()):
        return folder, []
    revisions = [name for name in names_in(snapshots) if (snapshots / name).is_dir()]
    if not revisions:
        raise UsageError(
            f"{printable(str(folder))}: a repository of the Hub's cache without a snapshot; download it"
        )
    if len(revisions) == 1:
        return snapshots / revisions[0], [f"snapshot {revisions[0]} of the Hub's cache"]
    try:
        main = (folder / "refs" / "main").read_text("ascii", "replace").strip()
    except OSError:
        main = ""
    if main in revisions:
        others = len(revisions) - 1
        return snapshots / main, [
            f"snapshot {main} of the Hub's cache, which refs/main names; {others} more are there"
        ]
    few = ", ".join(revisions[:3])
    raise UsageError(
        f"{printable(str(folder))}: several snapshots ({few}); give the folder of one, below snapshots/"
    )


def _unfinished(folder: Path) -> list[str]:
    """A note of downloads into the Hub's cache that did not come to their end."""
    blobs = folder.parent.parent / "blobs"
    if folder.parent.name != "snapshots" or not blobs.is_dir():
        return []
    halves = [name for name in names_in(blobs) if name.endswith(".incomplete")]
    few = ", ".join(halves[:3])
    return [f"{len(halves)} unfinished downloads in the Hub's cache: {few}"] if halves else []


def in_folder(reader: Reader, place: str) -> FileSet:
    """The one checkpoint in a folder."""
    names = reader.names()
    weights = [name for name in names if name.endswith(".safetensors")]
    packed = [name for name in names if name.endswith(".gguf")]
    if weights or INDEX in names:
        found = _shards(reader, names, weights, place)
    elif packed:
        found = _one_of(reader, packed, place)
    else:
        other = next((n for n in names if n.endswith((".bin", ".pt", ".pth", ".npz"))), None)
        why = (
            f"{shown(other)} is of a format that is not read"
            if other
            else "no .safetensors and no .gguf file"
        )
        raise UsageError(f"{place}: not a checkpoint ({why}); give its folder or one of its files")
    return evolve(
        found,
        licences=tuple(name for name in names if _LICENCE.fullmatch(name) and not name.endswith(".py")),
        tokenizers=tuple(name for name in names if _TOKENIZER.fullmatch(name)),
        templates=tuple(name for name in names if _TEMPLATE.fullmatch(name)),
    )


# --- safetensors ---


def _shards(reader: Reader, names: list[str], weights: list[str], place: str) -> FileSet:
    problems: list[Problem] = []
    index = _index(reader, problems) if INDEX in names else None
    wanted = _wanted(weights, index, problems)
    belonging = set(wanted)
    return FileSet(
        place,
        "safetensors",
        reader,
        tuple(reader.part(name) for name in wanted),
        tuple(reader.part(name) for name in weights if name not in belonging),
        index,
        _json(reader, CONFIG, _CONFIG_BYTES, problems) if CONFIG in names else None,
        problems=tuple(problems),
    )


def _wanted(weights: list[str], index: Index | None, problems: list[Problem]) -> list[str]:
    """The files that belong together: those of the index, else those that their numbers call for."""
    if index is not None:
        return sorted(set(index.file_of.values()))
    sets: dict[tuple[str, int], set[int]] = {}
    for name in weights:
        match = _SHARD.fullmatch(name)
        if match is not None:
            sets.setdefault((match["stem"], int(match["count"])), set()).add(len(match["count"]))
    if len(sets) == 1:
        (stem, count), widths = next(iter(sets.items()))
        if 0 < count <= _MOST_SHARDS and len(widths) == 1:
            width = widths.pop()
            if count > 1:
                problems.append(
                    Problem(
                        "no_index",
                        Severity.MEDIUM,
                        INDEX,
                        f"{count} shards and no index: what belongs to them is told by their names alone",
                    )
                )
            return [f"{stem}-{number:05d}-of-{count:0{width}d}.safetensors" for number in range(1, count + 1)]
    return weights


def _index(reader: Reader, problems: list[Problem]) -> Index | None:
    document = _json(reader, INDEX, _INDEX_BYTES, problems)
    if document is None:
        return None
    told = document.get("weight_map")
    if not isinstance(told, dict) or not told:
        problems.append(Problem("index", Severity.HIGH, INDEX, "the index has no weight_map"))
        return None
    file_of: dict[str, str] = {}
    files: dict[str, str] = {}
    for name, file in told.items():
        if not isinstance(file, str) or not _plain(file):
            problems.append(
                Problem(
                    "index",
                    Severity.HIGH,
                    INDEX,
                    f"the index names {shown(str(file))}, which is no file of the folder",
                )
            )
            return None
        file_of[name] = files.setdefault(file, file)
    metadata = document.get("metadata")
    return Index(file_of, metadata.get("total_size") if isinstance(metadata, dict) else None)


def _plain(name: str) -> bool:
    """Whether a file's name stays in the folder."""
    parts = name.split("/")
    return bool(name) and len(name) < 256 and "\0" not in name and not ({"", ".", ".."} & set(parts))


def _json(reader: Reader, name: str, limit: int, problems: list[Problem]) -> dict[str, Any] | None:
    """The object in a small file; None with a problem where there is none."""
    try:
        document = orjson.loads(small(reader, name, limit))
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        return document
    except OSError as error:
        code = "json" if reader.path is not None else UNFETCHED
        text = f"it cannot be read: {reader.why(name, error)}"
    except ValueError as error:
        code = "json"
        text = f"it is no JSON: {str(error)[:200]}"
    problems.append(Problem(code, Severity.HIGH, name, printable(text)))
    return None


# --- GGUF ---


def _one_of(reader: Reader, packed: list[str], place: str) -> FileSet:
    """The one model in a folder of GGUF files; vision parts (mmproj) belong to another program."""
    models = [name for name in packed if "mmproj" not in name.lower()]
    splits = {(m["stem"], int(m["count"])): m for name in models if (m := _SHARD.fullmatch(name)) is not None}
    single = [name for name in models if _SHARD.fullmatch(name) is None]
    if len(splits) + len(single) != 1:
        few = ", ".join([*single, *(f"{stem}-*-of-{count:05d}.gguf" for stem, count in splits)][:4])
        what = f"several models ({few})" if models else "vision parts (mmproj) alone"
        raise UsageError(f"{place}: {what}; give one file of the model that is meant")
    beside = tuple(reader.part(name) for name in packed if name not in models)
    found = (
        FileSet(place, "gguf", reader, (reader.part(single[0]),))
        if single
        else _split(reader, next(iter(splits.values())), place)
    )
    return evolve(found, beside=beside)


def _split(reader: Reader, match: re.Match[str], place: str) -> FileSet:
    count = int(match["count"])
    if not 0 < count <= _MOST_SHARDS:
        raise UsageError(f"{place}: a set of {count} parts; sets of 1 to {_MOST_SHARDS} are read")
    width = len(match["count"])
    wanted = [f"{match['stem']}-{number:05d}-of-{count:0{width}d}.gguf" for number in range(1, count + 1)]
    return FileSet(place, "gguf", reader, tuple(reader.part(name) for name in wanted))
