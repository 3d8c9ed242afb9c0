"""Why a runtime did not start, from what it printed. Pure.

What a runtime cannot do, what is wrong with the file, and what is wrong with the installation are different answers to
different questions: only the first says that the architecture is not supported.
"""

from __future__ import annotations

import re
from enum import StrEnum

from attrs import frozen

from k3gate.documents import printable

_MOST = 1 << 20
_LONGEST = 300


class Kind(StrEnum):
    """What a failed start is about."""

    ARCHITECTURE = "architecture"
    FORMAT = "format"
    FILE = "file"
    MEMORY = "memory"
    INSTALLATION = "installation"
    UNKNOWN = "unknown"


WORDS = {
    Kind.ARCHITECTURE: "Not supported by this build",
    Kind.FORMAT: "A format that this device does not support",
    Kind.FILE: "The file is damaged",
    Kind.MEMORY: "Not enough memory",
    Kind.INSTALLATION: "Could not check: the runtime fails to import",
    Kind.UNKNOWN: "It ended for a reason that is not known",
}
_PATTERNS: tuple[tuple[Kind, str], ...] = (
    (Kind.ARCHITECTURE, r"unknown model architecture: '[^']{1,80}'"),
    (Kind.ARCHITECTURE, r"Model architectures? \[[^\]]{1,300}\] (?:are|is) not supported"),
    (Kind.ARCHITECTURE, r"model type `[^`]{1,80}` but Transformers does not recognize this architecture"),
    (Kind.FORMAT, r"type (?:fp8e4nv|fp8e4b8|fp8e5) (?:is )?not supported in this architecture"),
    (Kind.FORMAT, r"quantization method \S{1,40} is not supported for the current GPU"),
    (Kind.FORMAT, r"Minimum capability: \d+\.? Current capability: \d+"),
    (Kind.FORMAT, r"no kernel image is available for execution on the device"),
    (Kind.FILE, r"invalid magic characters?[^\n]{0,80}"),
    (Kind.FILE, r"tensor '[^']{1,120}' data is not within the file bounds[^\n]{0,120}"),
    (Kind.FILE, r"failed to read (?:key-value pairs|tensor info|header)[^\n]{0,80}"),
    (Kind.FILE, r"SafetensorError: [^\n]{1,160}"),
    (Kind.FILE, r"missing tensor '[^']{1,120}'"),
    (Kind.MEMORY, r"CUDA out of memory[^\n]{0,160}"),
    (Kind.MEMORY, r"(?:failed to allocate|unable to allocate|cannot allocate memory)[^\n]{0,160}"),
)
_IMPORT = re.compile(
    r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError|AttributeError|TypeError|SyntaxError|NameError): [^\n]{1,300}",
    re.M,
)
_CONFLICT = re.compile(
    r"^(?P<who>\S{1,80}) (?P<version>\S{1,40}) requires (?P<what>[^\n;]{1,120}?), but you have (?P<have>[^\n]{1,80}?)"
    r"(?: which is incompatible\.?)?$",
    re.M,
)
_FORMAT = re.compile(r"\b(fp8e4nv|fp8e4b8|fp8e5)\b")
_FORMATS = {"fp8e4nv": "F8_E4M3", "fp8e4b8": "F8_E4M3 (fnuz)", "fp8e5": "F8_E5M2"}
_NATIVE_CAPABILITY = {"F8_E4M3": 8.9, "F8_E5M2": 8.9}


@frozen
class Failure:
    """What a failed start is about, the line that tells it, and dependencies that do not fit."""

    kind: Kind
    line: str
    conflicts: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """ "Not supported by this build: unknown model architecture: 'kimi-linear'." """
        return f"{WORDS[self.kind]}{f': {self.line}' if self.line else ''}."


def why(output: str, capability: float | None = None) -> Failure:
    """From a runtime's output; `capability`: of the GPU, where there is one.

    What a runtime says of the model counts before a traceback: a Python runtime raises both ways.
    """
    text = printable(output[-_MOST:])
    conflicts = tuple(
        f"{found['who']} {found['version']} requires {found['what']}, and {found['have']} is there"
        for found in list(_CONFLICT.finditer(text))[:20]
    )
    for kind, pattern in _PATTERNS:
        found = re.search(pattern, text, re.I)
        if found is not None:
            line = found[0].strip()[:_LONGEST]
            return Failure(kind, _of_format(line, capability) if kind is Kind.FORMAT else line, conflicts)
    errors = _IMPORT.findall(text)
    if errors or conflicts:
        line = errors[-1].strip()[:_LONGEST] if errors else conflicts[0]
        return Failure(Kind.INSTALLATION, line, conflicts)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return Failure(Kind.UNKNOWN, last[:_LONGEST])


def _of_format(line: str, capability: float | None) -> str:
    """With the field's name of the format and what it asks of a GPU, where both are known."""
    found = _FORMAT.search(line)
    if found is None:
        return line
    name = _FORMATS[found[1]]
    least = _NATIVE_CAPABILITY.get(name)
    asks = f", which asks for compute capability {least}" if least is not None else ""
    have = f" and the GPU has {capability}" if asks and capability is not None else ""
    return f"{name}{asks}{have} ({line})"
