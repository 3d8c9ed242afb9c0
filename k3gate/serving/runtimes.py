"""Which runtimes are installed, and whether their registries name an architecture.

Files are read and nothing is imported; of programs that are found, `--version` alone is run.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from k3gate.documents import digest as hashed
from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.checkpoint.architecture import KIMI_K3
from k3gate.serving import environments, registries, trees, versions
from k3gate.serving.environments import Environment, Package
from k3gate.serving.registries import Registry, Sighting
from k3gate.serving.table import Entry, Gap
from k3gate.serving.trees import Folder, Tree, UnreadableError, Wheel

SUPPORTED, NOT_LISTED, UNKNOWN = "supported", "not_listed", "unknown"
_VERSION_SECONDS = 10.0
_MOST_OUTPUT = 1 << 16
_LIBRARIES = ("libllama.so*", "libllama-*.so*", "libggml*.so*")
_SYSTEM = (
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)
_MOST_LIBRARIES = 64


@frozen
class Wanted:
    """An architecture as runtimes call it: classes and type of a config.json, and llama.cpp's name. Empty, None: not
    known."""

    name: str
    classes: tuple[str, ...]
    model_type: str | None
    gguf: str | None

    def words(self, entry: Entry) -> tuple[str, ...]:
        """What to look for in a runtime's registry; nothing where the checkpoint does not say."""
        if entry.names == "gguf":
            return () if self.gguf is None else (self.gguf,)
        if entry.way == "constants" and self.model_type is not None:
            return (*self.classes, self.model_type)
        return self.classes


WANTED_K3 = Wanted(KIMI_K3, ("KimiK3ForConditionalGeneration",), "kimi_k3", KIMI_K3)
"""Its language part alone calls itself KimiLinearForCausalLM, which is the name of another model too: it proves
nothing."""


@frozen
class Runtime:
    """One runtime that was found. `build` is a digest of what it is; `confirmed`: whether its version is one that is
    known to have the model, None where that cannot be said."""

    id: str
    title: str
    version: str | None
    build: str
    path: str
    architecture: str
    reason: str
    evidence: tuple[Sighting, ...] = ()
    read: int = 0
    gaps: tuple[Gap, ...] = ()
    conflicts: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    confirmed: bool | None = None
    notes: tuple[str, ...] = field(factory=tuple)

    def document(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {
            "id": self.id,
            "name": self.title,
            "version": self.version,
            "build": self.build,
            "path": self.path,
            "architecture": self.architecture,
            "reason": self.reason,
            "evidence": [
                {"name": one.name, "file": one.file, "line": one.line, "offset": one.offset}
                for one in self.evidence
            ],
            "files_read": self.read,
            "gaps": [
                {"text": gap.text, "source": gap.source, "date": gap.date, "versions": gap.told}
                for gap in self.gaps
            ],
            "conflicts": list(self.conflicts),
            "plugins": list(self.plugins),
            "confirmed": self.confirmed,
            "notes": list(self.notes),
        }


def find(
    entries: Sequence[Entry], wanted: Wanted, places: Sequence[str], environment: Mapping[str, str]
) -> tuple[Runtime, ...]:
    """All runtimes of the table in `places` (environments, wheels, programs), else wherever this user has them."""
    found: dict[tuple[str, str], Runtime] = {}
    packages, programs = _places(entries, places) if places else _everywhere(entries, environment)
    for tree in packages:
        for runtime in _in_packages(environments.read(tree), entries, wanted):
            found.setdefault((runtime.id, runtime.path), runtime)
    for program in programs:
        of_it = _program(program, entries, wanted)
        found.setdefault((of_it.id, of_it.path), of_it)
    return tuple(sorted(found.values(), key=lambda one: (one.title.lower(), one.path)))


def _places(entries: Sequence[Entry], places: Sequence[str]) -> tuple[list[Tree], list[Path]]:
    """(trees of packages, programs) of what a user names; `UsageError` where there is nothing."""
    found: list[Tree] = []
    programs: list[Path] = []
    known = tuple(dict.fromkeys(name for entry in entries for name in entry.programs))
    for place in places:
        path = Path(place)
        try:
            is_folder = path.is_dir()
            exists = path.exists()
        except (OSError, ValueError):
            exists = is_folder = False
        if not exists:
            raise UsageError(
                f"{printable(place)[:200]} is not there; give an environment, a folder of packages, a wheel or a "
                "program"
            )
        if is_folder:
            found += environments.at(path)
            programs += [one for folder in (path / "bin", path) for one in _programs_of(folder, known)]
        elif path.suffix == ".whl":
            found.append(Wheel(path))
        elif path.is_file() and path.name in known:
            programs.append(path)
        else:
            raise UsageError(
                f"{printable(place)[:200]} is no wheel and no program of the table ({', '.join(known)}); give one, or "
                "add it by --table"
            )
    return found, programs


def _programs_of(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """A runtime's programs lie together: the first stands for all."""
    yield from [folder / name for name in names if (folder / name).is_file()][:1]


def _everywhere(entries: Sequence[Entry], environment: Mapping[str, str]) -> tuple[list[Tree], list[Path]]:
    found: list[Tree] = [Folder(site) for site in environments.installed(environment)]
    programs: dict[Path, Path] = {}
    for name in dict.fromkeys(name for entry in entries for name in entry.programs):
        program = shutil.which(name, path=environment.get("PATH"))
        if program is not None:
            programs.setdefault(Path(program).resolve().parent, Path(program))
    return found, list(programs.values())


# --- packages ---


def _in_packages(environment: Environment, entries: Sequence[Entry], wanted: Wanted) -> Iterator[Runtime]:
    for entry in entries:
        package = environment.packages.get(entry.package or "")
        if package is None:
            continue
        registry, notes, plugins = _registry(environment, package, entry, wanted)
        state, reason, evidence = judge(entry, wanted, registry)
        confirmed = None if entry.confirmed is None else versions.within(package.version, entry.confirmed)
        if entry.confirmed is not None and confirmed is None:
            notes += (
                f"version {package.version} cannot be compared with {entry.confirmed}: ask for its commit",
            )
        yield Runtime(
            entry.id,
            entry.title,
            package.version,
            package.build,
            environment.tree.place,
            state,
            reason,
            evidence,
            len(registry.files),
            tuple(gap for gap in entry.gaps if _applies(gap, package.version)),
            environment.conflicts(package.name),
            plugins,
            confirmed,
            notes,
        )


def _applies(gap: Gap, version: str) -> bool:
    """A gap whose range the version cannot be compared with may apply."""
    return gap.versions is None or versions.within(version, gap.versions) is not False


def _registry(
    environment: Environment, package: Package, entry: Entry, wanted: Wanted
) -> tuple[Registry, tuple[str, ...], tuple[str, ...]]:
    """(what is named, notes, plugins)."""
    tree, words = environment.tree, wanted.words(entry)
    if entry.way == "strings":
        if not isinstance(tree, Folder):
            return Registry(problem="a library in a wheel is not searched: unpack it"), (), ()
        paths = [tree.path / name for name in entry.given]
        return registries.strings(paths, (*words, *entry.beside.get(wanted.gguf or "", ()))), (), ()
    if entry.way == "dictionary":
        found = registries.dictionaries(tree, entry.given[0], entry.given[1])
    elif entry.way == "entry_class":
        found = registries.entry_classes(tree, entry.given[0], entry.given[1], words)
    else:
        found = registries.constants(tree, entry.given[0], words)
    plugins = tuple(_plugins(environment, package, entry)) if entry.plugins else ()
    for plugin in plugins:
        for folder in _packages_of(plugin, environment):
            more = registries.registrations(tree, folder, entry.register or "")
            found = evolve(found, names={**more.names, **found.names}, files=(*found.files, *more.files))
    told = tuple(f"{one.name} {one.version}" for one in plugins)
    return found, (), told


def _plugins(environment: Environment, package: Package, entry: Entry) -> Iterator[Package]:
    """Packages that offer entry points of the group; the runtime's own are no plugins."""
    for other in environment.packages.values():
        if other.name == package.name:
            continue
        try:
            raw = environment.tree.read(f"{other.info}/entry_points.txt")
        except UnreadableError:
            continue
        if raw is None or (entry.plugins or "").encode() not in raw:
            continue
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        try:
            parser.read_string(raw.decode("utf-8", "replace"))
        except configparser.Error:
            continue
        if parser.has_section(entry.plugins or ""):
            yield other


def _packages_of(plugin: Package, environment: Environment) -> Iterator[str]:
    """Folders that a distribution installs, by its list of files."""
    try:
        raw = environment.tree.read(f"{plugin.info}/RECORD") or b""
    except UnreadableError:
        return
    tops = {
        line.split(b",")[0].decode("utf-8", "replace").split("/")[0]
        for line in raw.splitlines()
        if b"/" in line
    }
    yield from sorted(
        top for top in tops if top not in ("..", "") and not top.endswith((".dist-info", ".data"))
    )


# --- programs ---


def _program(program: Path, entries: Sequence[Entry], wanted: Wanted) -> Runtime:
    files = [program, *_libraries(program)]
    entry = _whose(files, [one for one in entries if program.name in one.programs])
    words = wanted.words(entry)
    registry = registries.strings(files, (*words, *entry.beside.get(wanted.gguf or "", ())))
    state, reason, evidence = judge(entry, wanted, registry)
    printed = _version(program)
    build = versions.llama_build(printed)
    notes = () if build.trusted else (f"--version tells {build.told}: no least version can be confirmed",)
    return Runtime(
        entry.id,
        entry.title,
        build.told,
        hashed([trees.digest(one) for one in files]),
        printable(str(program)),
        state,
        reason,
        evidence,
        len(registry.files),
        tuple(gap for gap in entry.gaps if _has(gap, build)),
        notes=notes,
    )


def _has(gap: Gap, build: versions.Build) -> bool:
    """A gap of which the build's number does not say that it is gone may be there."""
    return gap.before_build is None or versions.build_at_least(build, gap.before_build) is not True


def _whose(files: Sequence[Path], entries: Sequence[Entry]) -> Entry:
    """The runtime that a program belongs to: by the marks that only one has, else one without marks."""
    marks = tuple(dict.fromkeys(mark for entry in entries for mark in entry.marks))
    found: set[str] = set()
    for path in files:
        try:
            found |= set(trees.find_strings(path, marks))
        except OSError:
            continue
    for entry in entries:
        if entry.marks and set(entry.marks) <= found:
            return entry
    return next((entry for entry in entries if not entry.marks), entries[0])


def _libraries(program: Path) -> list[Path]:
    """llama.cpp's libraries that a program would load: beside it, in ../lib, else the system's; each file once."""
    real = Path(os.path.realpath(program)).parent
    for folders in ((real, real.parent / "lib", real.parent / "lib64"), tuple(Path(one) for one in _SYSTEM)):
        found: dict[str, Path] = {}
        for folder in folders:
            for pattern in _LIBRARIES:
                for path in sorted(folder.glob(pattern)):
                    found.setdefault(os.path.realpath(path), path)
        if found:
            return list(found.values())[:_MOST_LIBRARIES]
    return []


def _version(program: Path) -> str:
    """What `--version` prints, in a group of its own that ends with it; nothing where it takes too long."""
    try:
        process = subprocess.Popen(
            [str(program.absolute()), "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )
    except OSError:
        return ""
    try:
        raw, _ = process.communicate(timeout=_VERSION_SECONDS)
    except subprocess.TimeoutExpired:
        raw = b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return raw[:_MOST_OUTPUT].decode("utf-8", "replace")


# --- judgement ---


def judge(entry: Entry, wanted: Wanted, registry: Registry) -> tuple[str, str, tuple[Sighting, ...]]:
    """(supported, not_listed or unknown; why, in a sentence; where the name stands). Pure."""
    words = wanted.words(entry)
    if not words:
        return UNKNOWN, f"The checkpoint does not say what {entry.title} calls its architecture.", ()
    seen = tuple(registry.names[word] for word in words if word in registry.names)
    if not seen:
        if registry.problem is not None:
            return UNKNOWN, f"It could not be read: {registry.problem}.", ()
        many = len(registry.files)
        where = (
            f"none of the {many:,} files that were read" if many > 1 else "no place of the file that was read"
        )
        return NOT_LISTED, f"{_either(words)} stands in {where}.", ()
    if entry.way == "constants":
        return UNKNOWN, f"It mentions {seen[0].told}, but has no registry that lists it.", seen
    lacking = [word for word in entry.beside.get(words[0], ()) if word not in registry.names]
    if lacking:
        return (
            UNKNOWN,
            f"It names {seen[0].told}, but lacks {', '.join(lacking)}: an early or a foreign build.",
            seen,
        )
    beside = tuple(registry.names[word] for word in entry.beside.get(words[0], ()))
    return SUPPORTED, f"It names {seen[0].told}.", (*seen, *beside)


def _either(words: Iterable[str]) -> str:
    return " or ".join(words)
