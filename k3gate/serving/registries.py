"""Where a runtime names the architectures that it loads, read without running it.

Each way gives a `Registry`: the names that it holds, each with its place, or why it could not be read. A name counts
where it is equal; nothing follows from one that is alike.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from attrs import field, frozen

from k3gate.documents import printable
from k3gate.serving.trees import Tree, UnreadableError, find_strings

Wanted = tuple[str, ...]
_MOST_FILES = 20_000


@frozen
class Sighting:
    """Where a name stands: the file, and the line (source) or the byte (library)."""

    name: str
    file: str
    line: int | None = None
    offset: int | None = None

    @property
    def told(self) -> str:
        """ "KimiK3ForConditionalGeneration in .../registry.py, line 488"."""
        at = f"line {self.line}" if self.line is not None else f"byte {self.offset:,}"
        return f"{self.name} in {self.file}, {at}"


@frozen
class Registry:
    """What was read: names with where they stand, the files that were read, and what went wrong."""

    names: Mapping[str, Sighting] = field(factory=dict)
    files: tuple[str, ...] = ()
    problem: str | None = None


def dictionaries(tree: Tree, file: str, name: str) -> Registry:
    """Keys of the dictionary `name` of a module, and of those that it spreads: vLLM's `_VLLM_MODELS`.

    Dictionaries beside it, of models that are no longer supported, are not part of it.
    """
    module, problem = _module(tree, file)
    if module is None:
        return Registry(problem=problem)
    assigned = _assignments(module)
    names: dict[str, Sighting] = {}
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        value = assigned.get(current)
        if current in seen or not isinstance(value, ast.Dict):
            continue
        seen.add(current)
        for key, entry in zip(value.keys, value.values, strict=True):
            if key is None and isinstance(entry, ast.Name):
                waiting.append(entry.id)
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                names.setdefault(key.value, Sighting(key.value, tree.where(file), key.lineno))
    if not names:
        return Registry(
            files=(tree.where(file),), problem=f"{tree.where(file)} has no dictionary {name} with names"
        )
    return Registry(names, (tree.where(file),))


def entry_classes(tree: Tree, folder: str, name: str, wanted: Wanted) -> Registry:
    """Those of the wanted classes that modules of a folder assign to `name`: SGLang's `EntryClass`."""

    def entries(module: ast.Module) -> Iterator[tuple[str, int]]:
        value = _assignments(module).get(name)
        for entry in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            if isinstance(entry, ast.Name) and entry.id in wanted:
                yield entry.id, entry.lineno

    return _of_modules(tree, folder, wanted, entries, deep=False)


def constants(tree: Tree, folder: str, wanted: Wanted) -> Registry:
    """Those wanted that stand as a text in a package's modules: of a runtime that names models here and there."""

    def texts(module: ast.Module) -> Iterator[tuple[str, int]]:
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in wanted:
                yield node.value, node.lineno

    return _of_modules(tree, folder, wanted, texts)


def registrations(tree: Tree, folder: str, method: str) -> Registry:
    """Names that a plugin registers by a call like `ModelRegistry.register_model("Name", ...)`."""

    def registered(module: ast.Module) -> Iterator[tuple[str, int]]:
        for node in ast.walk(module):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            first = node.args[0] if node.func.attr == method and node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value, first.lineno

    return _of_modules(tree, folder, (method,), registered)


def _of_modules(
    tree: Tree,
    folder: str,
    needed: Wanted,
    find: Callable[[ast.Module], Iterator[tuple[str, int]]],
    *,
    deep: bool = True,
) -> Registry:
    """What `find` gives, name and line, of the modules of a folder that contain something of `needed`."""
    names: dict[str, Sighting] = {}
    files, problem = [], None
    for file in _sources(tree, folder, deep):
        module, unread = _module(tree, file, needed)
        if module is None:
            problem = problem or unread
            continue
        files.append(tree.where(file))
        for name, line in find(module):
            names.setdefault(name, Sighting(name, tree.where(file), line))
    if not files:
        problem = problem or f"no module lies in {tree.where(folder)}"
    return Registry(names, tuple(files), problem)


def strings(paths: Iterable[Path], words: Wanted) -> Registry:
    """Words that a program or library holds as whole texts: of all files, the one that has most."""
    best: dict[str, Sighting] = {}
    files, problem = [], None
    for path in paths:
        shown = printable(str(path))
        try:
            found = find_strings(path, words)
        except OSError as error:
            problem = problem or f"{shown}: {error.strerror}"
            continue
        files.append(shown)
        if len(found) > len(best):
            best = {word: Sighting(word, shown, offset=offset) for word, offset in found.items()}
    if not files:
        problem = problem or "its library was not found"
    return Registry(best, tuple(files), problem)


def _module(tree: Tree, file: str, needed: Wanted = ()) -> tuple[ast.Module | None, str | None]:
    """(module, None), or (None, why not). One that contains nothing of `needed` is empty, without being parsed."""
    try:
        raw = tree.read(file)
    except UnreadableError as error:
        return None, f"{tree.where(file)}: {error}"
    if raw is None:
        return None, f"{tree.where(file)} is not there"
    if needed and not any(one.encode() in raw for one in needed):
        return ast.Module([], []), None
    try:
        return ast.parse(raw), None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return None, f"{tree.where(file)} cannot be parsed: {printable(str(error))[:120]}"


def _assignments(module: ast.Module) -> dict[str, ast.expr | None]:
    """The last value of each name that a module assigns at its top level."""
    found: dict[str, ast.expr | None] = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def _sources(tree: Tree, folder: str, deep: bool) -> Iterator[str]:
    """Python modules of a folder, by name; of folders below too where `deep`."""
    waiting, given = [folder], 0
    while waiting and given < _MOST_FILES:
        here = waiting.pop()
        for name in tree.names(here):
            if fnmatch.fnmatch(name, "*.py"):
                given += 1
                yield f"{here}/{name}"
            elif deep and "." not in name and name != "__pycache__":
                waiting.append(f"{here}/{name}")
