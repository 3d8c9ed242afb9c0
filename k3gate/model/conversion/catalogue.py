"""Which files of a checkpoint hold which layers, so that a layer can be read without the others' headers in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from attrs import field, frozen

from k3gate.model.checkpoint import gguf, names, safetensors
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.tensors import Header, Tensor, open_file

_READERS = {"safetensors": safetensors.read, "gguf": gguf.read}
_DECAY = (".A_log", ".ssm_a")


@frozen
class _Told:
    """What one file told: its layers (None: tensors of no layer), which are recurrent, and its architecture."""

    layers: frozenset[int | None]
    recurrent: frozenset[int]
    architecture: str | None
    tensor_bytes: int


@frozen
class Catalogue:
    """A checkpoint's files by layer. `unread`: files that cannot be read or are not there, with the reason."""

    format: str
    paths: tuple[Path, ...]
    files_of: dict[int | None, tuple[int, ...]] = field(repr=False)
    recurrent: frozenset[int]
    architecture: str | None
    bytes: int
    unread: tuple[tuple[str, str], ...]

    @property
    def layers(self) -> list[int | None]:
        """The layers in order, first what is in none."""
        return sorted(self.files_of, key=lambda one: -1 if one is None else one)

    def tensors(self, layer: int | None) -> Iterable[tuple[int, Tensor]]:
        """The tensors of a layer, each with the number of its file. `OSError` where a file is gone by now."""
        for file in self.files_of.get(layer, ()):
            for tensor in _header(self.format, self.paths[file]).tensors:
                if names.read(tensor.name)[0] == layer:
                    yield file, tensor


# A layer lies in one or two files; of a single large file the header is read once.
@lru_cache(maxsize=4)
def _header(kind: str, path: Path) -> Header:
    with open_file(path) as source:
        return _READERS[kind](source)


def build(found: FileSet) -> Catalogue:
    """Read every header once and keep which layers it tells of. Damage makes a file unread, and nothing else."""
    parts = [part for part in found.parts if part.size is not None]
    unread = [(part.name, part.trouble or "it is not there") for part in found.parts if part.size is None]
    files_of: dict[int | None, list[int]] = {}
    recurrent: set[int] = set()
    architecture = None
    size = 0
    for number, part in enumerate(parts):
        try:
            told = _told(found.format, part.path)
        except (OSError, ValueError) as error:
            unread.append((part.name, str(error)))
            continue
        for layer in told.layers:
            files_of.setdefault(layer, []).append(number)
        recurrent |= told.recurrent
        architecture = architecture or told.architecture
        size += told.tensor_bytes
    return Catalogue(
        found.format,
        tuple(part.path for part in parts),
        {layer: tuple(numbers) for layer, numbers in files_of.items()},
        frozenset(recurrent),
        architecture,
        size,
        tuple(unread),
    )


def _told(kind: str, path: Path) -> _Told:
    header = _header(kind, path)
    if not header.header_bytes:
        raise ValueError(header.problems[0].text if header.problems else "it has no header")
    layers: set[int | None] = set()
    recurrent: set[int] = set()
    for tensor in header.tensors:
        layer, _ = names.read(tensor.name)
        layers.add(layer)
        if layer is not None and tensor.name.endswith(_DECAY):
            recurrent.add(layer)
    name = header.metadata.get("general.architecture")
    return _Told(
        frozenset(layers),
        frozenset(recurrent),
        name if isinstance(name, str) else None,
        header.tensor_bytes,
    )
