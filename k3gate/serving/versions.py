"""What a version says, and whether it is enough. Pure.

Versions of packages follow PEP 440; builds of llama.cpp are counted, and told in several ways.
"""

from __future__ import annotations

import re

from attrs import frozen
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

_LONGEST = 200
_LEAST_TRUSTED_BUILD = 2
"""A build from a shallow checkout counts one commit: 1 says nothing of what is in it."""
_BUILDS = (
    re.compile(r"\(build (?P<build>\d{1,9}), commit (?P<commit>[0-9a-f.]+)\)"),
    re.compile(r"\bversion: (?P<build>\d{1,9}) \((?P<commit>[0-9a-z]+)\)"),
    re.compile(r"^b(?P<build>\d{1,9})(?:-(?P<commit>[0-9a-f]{6,40}))?$"),
)


@frozen
class Build:
    """A build of llama.cpp: its number, None where it is not known; `trusted`: whether the number says anything."""

    number: int | None
    commit: str | None = None
    trusted: bool = True

    @property
    def told(self) -> str:
        """ "b10470 (abc1234)", "an unknown build"."""
        if self.number is None:
            return "an unknown build"
        name = f"b{self.number}" + (f" ({self.commit})" if self.commit else "")
        return name if self.trusted else f"{name}, a number that says nothing"


def llama_build(text: str) -> Build:
    """From what `--version` prints, a release's name, or a server's fingerprint."""
    for line in text[: _LONGEST * 50].splitlines():
        for pattern in _BUILDS:
            found = pattern.search(line.strip()[:_LONGEST])
            if found is None:
                continue
            number = int(found["build"])
            commit = found["commit"] if re.fullmatch(r"[0-9a-f]{6,40}", found["commit"] or "") else None
            if number == 0:
                return Build(None, commit, False)
            return Build(number, commit, number >= _LEAST_TRUSTED_BUILD)
    return Build(None, None, False)


def build_at_least(build: Build, least: int) -> bool | None:
    """None where the number is unknown or says nothing: then nothing is confirmed."""
    return build.number >= least if build.trusted and build.number is not None else None


def within(version: str, specifier: str) -> bool | None:
    """Whether a package's version lies in a range like ">=0.27,<0.33"; None where that cannot be said.

    A development or local build was made from some commit between releases, so its number places it nowhere: to
    compare it, ask for the commit.
    """
    try:
        parsed, wanted = Version(version[:_LONGEST]), SpecifierSet(specifier)
    except (InvalidVersion, InvalidSpecifier):
        return None
    if parsed.is_devrelease or parsed.local is not None:
        return None
    return wanted.contains(parsed, prereleases=True)
