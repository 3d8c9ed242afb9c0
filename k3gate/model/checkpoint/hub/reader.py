"""A folder of a repository on a Hub as a checkpoint's reader: headers are fetched some files ahead, by many threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from attrs import evolve

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.checkpoint import files
from k3gate.model.checkpoint.files import FileSet
from k3gate.model.checkpoint.hub.address import parse
from k3gate.model.checkpoint.hub.repository import Entry, Repository
from k3gate.model.checkpoint.readers import Part
from k3gate.model.checkpoint.tensors import Source

THREADS = 16
FIRST = 2**20
"""Bytes that the first request of a file asks for: the header of Kimi K3's largest shard is shorter."""
_MOST_AHEAD = 8 * 2**20
_HELD = 64 * 2**20
_LONG = 16 * 2**20
_FEW = 6
_FILES = (".safetensors", ".gguf", ".json")


def find(place: str) -> FileSet:
    """The checkpoint at an address (hf://...): a repository, a folder of it, or one of its files."""
    repository = Repository(place, parse(place))
    shown = repository.place
    folder, file = _located(repository)
    reader = HubReader(repository, folder)
    if file is not None:
        return evolve(files.of_file(reader, file, shown), revision=repository.commit)
    inside = repository.folder(folder) or {}
    folders = [entry.name for entry in inside.values() if entry.is_folder]
    if folders and not any(
        name.endswith((".safetensors", ".gguf")) or name == files.INDEX for name in inside
    ):
        more = " ..." if len(folders) > _FEW else ""
        raise UsageError(
            f"{shown}: no .safetensors and no .gguf file; give one of its folders: {', '.join(folders[:_FEW])}{more}"
        )
    return evolve(files.in_folder(reader, shown), revision=repository.commit)


def sums(place: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """The commit that an address means, and SHA-256 by name of those of these files whose digest the Hub lists.

    A name is one in the folder of the address, or in that of the file that it leads to.
    """
    repository = Repository(place, parse(place))
    reader = HubReader(repository, _located(repository)[0])
    told = {name: entry.sha256 for name in names if (entry := reader.entry(name)) is not None}
    return repository.commit, {name: digest for name, digest in told.items() if digest is not None}


def _located(repository: Repository) -> tuple[str, str | None]:
    """The folder that the address leads to, and the file in it, None where it leads to the folder itself."""
    path = repository.address.path
    above, _, last = path.rpartition("/")
    if last.endswith(_FILES):
        entry = (repository.folder(above) or {}).get(last)
        if entry is not None and not entry.is_folder:
            return above, last
    if repository.folder(path) is None:
        raise UsageError(
            f"{repository.place}: the repository has no folder and no file {printable(path)!r} at this revision"
        )
    return path, None


class HubReader:
    """A folder of a repository; see `Reader`."""

    path: Path | None = None

    def __init__(self, repository: Repository, folder: str) -> None:
        self._repository = repository
        self._folder = folder
        self._tasks: SimpleQueue[tuple[str, int, Future[Ranged]] | None] = SimpleQueue()
        self._waiting: deque[str] = deque()
        self._begun: dict[str, Future[Ranged]] = {}
        self._first = FIRST

    def names(self) -> list[str]:
        """See `Reader`."""
        return sorted(self._repository.folder(self._folder) or {})

    def entry(self, name: str) -> Entry | None:
        """What the Hub lists under a name; None for nothing."""
        above, _, last = self._full(name).rpartition("/")
        return (self._repository.folder(above) or {}).get(last)

    def part(self, name: str) -> Part:
        """See `Reader`."""
        entry = self.entry(name)
        if entry is None:
            return Part(name, None, None, "it is not there")
        if entry.is_folder:
            return Part(name, None, None, "it is no regular file")
        return Part(name, None, entry.size, None if entry.size is not None else "the Hub tells no size of it")

    @contextmanager
    def open(self, name: str) -> Iterator[Source]:
        """See `Reader`; it waits for what was begun with, and lets the next file begin."""
        begun = self._begun.pop(name, None)
        self._begin()
        source = begun.result() if begun is not None else self._source(name)
        yield source
        # What one file needed more than was fetched at first, the next ones are likely to need too.
        self._first = max(FIRST, min(source.asked, _MOST_AHEAD))

    @contextmanager
    def ahead(self, names: list[str]) -> Iterator[None]:
        """See `Reader`."""
        threads = min(THREADS, len(names))
        self._waiting = deque(names)
        # No executor: it would keep who presses Ctrl-C waiting for a server that does not answer.
        for number in range(threads):
            threading.Thread(target=self._work, name=f"k3gate-hub-{number}", daemon=True).start()
        ended = False
        try:
            self._begin()
            yield
            ended = True
        finally:
            if not ended:
                self._repository.close()
            self._waiting.clear()
            self._begun.clear()
            for _ in range(threads):
                self._tasks.put(None)

    def why(self, name: str, error: OSError) -> str:
        """See `Reader`."""
        return str(error)

    def _full(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name

    def _begin(self) -> None:
        while self._waiting and len(self._begun) < THREADS:
            name = self._waiting.popleft()
            self._begun[name] = Future()
            self._tasks.put((name, self._first, self._begun[name]))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            name, first, future = task
            try:
                source = self._source(name)
                source.hold(first)
                future.set_result(source)
            except BaseException as error:
                future.set_exception(error)

    def _source(self, name: str) -> Ranged:
        part = self.part(name)
        if part.size is None:
            raise OSError(part.trouble)
        path, size = self._full(name), part.size
        return Ranged(
            printable(name.rpartition("/")[2]),
            size,
            lambda offset, length: self._repository.fetch(path, offset, length, size),
        )


class Ranged:
    """A file whose bytes are fetched as they are asked for, some at once; those fetched last are held.

    `fetch(offset, length)` gives just so many bytes or raises. `asked` is the end of what was asked for.
    """

    def __init__(self, name: str, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self.name = name
        self.size = size
        self.asked = 0
        self._fetch = fetch
        self._begin = 0
        self._held = bytearray()

    def hold(self, length: int) -> None:
        """Fetch the file's first bytes."""
        self._held = bytearray(self._fetch(0, min(length, self.size))) if self.size else bytearray()

    def read(self, offset: int, length: int) -> bytes:
        """As in `Source`."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        reach = self._begin + len(self._held)
        if not self._begin <= offset <= reach:
            self._begin = reach = offset
            self._held.clear()
        missing = end - reach
        if missing > _LONG:
            # A long piece is asked for once, and held once: by who asked.
            return bytes(self._held[offset - self._begin :]) + self._fetch(reach, missing)
        if missing > 0:
            more = max(FIRST, min(len(self._held), _MOST_AHEAD))
            self._held += self._fetch(reach, min(max(missing, more), self.size - reach))
        self.asked = max(self.asked, end)
        piece = bytes(self._held[offset - self._begin : end - self._begin])
        if len(self._held) > _HELD:
            del self._held[: offset - self._begin]
            self._begin = offset
        return piece
