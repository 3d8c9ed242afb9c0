"""Python environments and the packages that are installed in them, by their files alone."""

from __future__ import annotations

import email.parser
import email.policy
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import field, frozen
from packaging.markers import InvalidMarker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from k3gate.documents import digest, printable
from k3gate.serving.trees import Folder, Tree, UnreadableError

_SITES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages")
_MOST_CONFLICTS = 20


@frozen
class Package:
    """An installed distribution: canonical name, version, and what it declares."""

    name: str
    version: str
    tree: Tree = field(eq=False, repr=False)
    info: str
    requires: tuple[str, ...] = ()

    @property
    def build(self) -> str:
        """The digest of its list of files, which holds a digest of each: two copies of one build have the same."""
        try:
            raw = self.tree.read(f"{self.info}/RECORD") or b""
        except UnreadableError:
            raw = b""
        # Where scripts went and what was compiled belongs to the installation.
        lines = sorted(line for line in raw.splitlines() if b"sha256=" in line and b".." not in line[:3])
        own = [line for line in lines if not line.startswith(self.info.encode())]
        return digest([self.name, self.version, [line.decode("utf-8", "replace") for line in own]])


@frozen
class Environment:
    """A folder of packages, or a wheel."""

    tree: Tree = field(eq=False, repr=False)
    packages: Mapping[str, Package]

    def conflicts(self, name: str) -> tuple[str, ...]:
        """What a package requires and the environment does not have so, as clauses."""
        package, found = self.packages[name], []
        for text in package.requires:
            try:
                wanted = Requirement(text)
                if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                    continue
            except (InvalidRequirement, InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
                continue
            have = self.packages.get(canonicalize_name(wanted.name))
            if have is None:
                continue
            try:
                version = Version(have.version)
            except InvalidVersion:
                continue
            if not wanted.specifier.contains(version, prereleases=True):
                found.append(f"requires {wanted.name}{wanted.specifier}, and {have.version} is there")
        return tuple(found[:_MOST_CONFLICTS])


def read(tree: Tree) -> Environment:
    """All packages of a tree, by the folders that describe them."""
    found: dict[str, Package] = {}
    for name in tree.names():
        if name.endswith((".dist-info", ".egg-info")):
            package = _package(tree, name)
            if package is not None:
                found.setdefault(package.name, package)
    return Environment(tree, found)


def _package(tree: Tree, info: str) -> Package | None:
    for file in ("METADATA", "PKG-INFO"):
        try:
            raw = tree.read(f"{info}/{file}")
        except UnreadableError:
            raw = None
        if raw is None:
            continue
        head = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(raw, headersonly=True)
        name, version = str(head.get("Name") or ""), str(head.get("Version") or "")
        if name and version:
            requires = tuple(str(text) for text in head.get_all("Requires-Dist") or ())
            short = printable(version).strip()[:80]
            return Package(canonicalize_name(printable(name)[:100]), short, tree, info, requires)
    return None


def installed(environment: Mapping[str, str]) -> Iterator[Path]:
    """Folders of packages: of this interpreter, active environments, the Pythons on the path, and the system."""
    prefixes = [Path(sys.prefix), Path(sys.base_prefix)]
    prefixes += [Path(environment[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    for name in ("python3", "python"):
        program = shutil.which(name, path=environment.get("PATH"))
        if program is not None:
            # The link of a virtual environment lies in it; what it leads to is the system's.
            prefixes += [Path(program).parent.parent, Path(os.path.realpath(program)).parent.parent]
    prefixes += [Path("/usr/local"), Path("/usr"), Path("/opt/conda")]
    home = environment.get("HOME")
    if home:
        prefixes.append(Path(home) / ".local")
    seen = set()
    for prefix in prefixes:
        for site in sites(prefix):
            real = os.path.realpath(site)
            if real not in seen:
                seen.add(real)
                yield site


def sites(prefix: Path) -> Iterator[Path]:
    """Folders of packages below an environment's prefix."""
    for pattern in _SITES:
        try:
            yield from (path for path in sorted(prefix.glob(pattern)) if path.is_dir())
        except OSError:
            continue


def at(path: Path) -> Iterator[Folder]:
    """The trees of a folder that a user names: an environment, its site-packages, or an unpacked wheel."""
    found = list(sites(path))
    if found:
        yield from (Folder(site) for site in found)
    else:
        yield Folder(path)
