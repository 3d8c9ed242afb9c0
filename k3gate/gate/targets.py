"""Targets: what a buyer wants of the machine, as data. Read strictly from TOML; shipped: data/targets/.

The hash is `documents.digest` of the parsed content, so comments and spacing change nothing; the text is
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from k3gate import tables
from k3gate.documents import digest
from k3gate.errors import UsageError
from k3gate.model import k3, residency, traffic
from k3gate.tables import Table

FOLDER = Path(__file__).parent / "data" / "targets"
TIERS = ("residency-lab", "hybrid", "production")
MODALITIES = ("text", "vision")
SUBJECTS = ("checkpoint", "converted", "runtime", "bom")
PRICES = ("machine_usd", "hour_usd", "kwh_usd")

_FIGURES = (
    *("context", "sequences", "modalities", "nodes", "trunk", "decode_tokens_per_s", "decode_batch"),
    *("prefill_tokens_per_s", "load_seconds", "replicate_per_node"),
)
"""What needs a source where it is given."""

KEYS = (
    "context",
    "sequences",
    "nodes",
    "decode_tokens_per_s",
    "decode_batch",
    "decode_bytes_per_s",
    "prefill_tokens_per_s",
    "load_seconds",
    "load_bytes_per_s",
    "image_bytes",
    "vision",
    "gpu_trunk",
    "several_nodes",
    "several_sequences",
)
"""Figures that criteria may ask for, given or derived."""


@frozen
class Licence:
    """Who accepted the checkpoint's licence, on which day, and the hash of the text that was accepted."""

    by: str
    on: str
    sha256: str


@frozen
class Target:
    """What is wanted. Rates are of each sequence in tokens/s; None: nothing is asked.

    `trunk`: "bf16" or "q8_0" in CPU memory, or "gpu". `decode_batch`: sequences decoded together when
    `decode_tokens_per_s` must hold. `subjects` pins by digest what evidence must be about.
    """

    name: str
    text: str
    hash: str
    tier: str
    context: int
    sequences: int
    modalities: tuple[str, ...]
    nodes: int
    trunk: str
    sources: Mapping[str, str]
    decode_tokens_per_s: float | None = None
    decode_batch: int = 1
    prefill_tokens_per_s: float | None = None
    load_seconds: float | None = None
    replicate_per_node: bool = False
    prices: Mapping[str, float] = field(factory=dict)
    subjects: Mapping[str, str] = field(factory=dict)
    licence_accepted: Licence | None = None

    @property
    def vision(self) -> bool:
        """Whether images are to be understood."""
        return "vision" in self.modalities

    def image(self, memory_nodes: int = 1) -> residency.Image:
        """What must lie in CPU memory. `memory_nodes` counts where weights are replicated per node."""
        copies = max(1, memory_nodes) if self.replicate_per_node else 1
        return residency.image(self.trunk, self.vision, self.context, self.sequences, copies, self.nodes)

    def cpu_bytes_per_token(self, *, alike: bool = False) -> float:
        """Bytes that CPU memory moves while each sequence of the decode batch gets one token, full context.

        So a bandwidth divided by it compares with `decode_tokens_per_s`. `alike`: all sequences choose the
        same experts, the least there can be; else they choose uniformly.
        """
        return float(traffic.bytes_per_token(self.trunk, self.context, self.decode_batch, alike=alike))

    def value(self, key: str, memory_nodes: int = 1) -> float | None:
        """The figure `key` of `KEYS`, in base units; truth values are 1.0 and 0.0; None: nothing is asked."""
        if key == "decode_bytes_per_s":
            rate = self.decode_tokens_per_s
            return None if rate is None else rate * self.cpu_bytes_per_token()
        if key == "load_bytes_per_s":
            return self.load_seconds and residency.weight_bytes(self.trunk, self.vision) / self.load_seconds
        derived: dict[str, float] = {
            "vision": self.vision,
            "gpu_trunk": self.trunk == "gpu",
            "several_nodes": self.nodes > 1,
            "several_sequences": self.sequences > 1,
        }
        if key in derived:
            return float(derived[key])
        if key == "image_bytes":
            return float(self.image(memory_nodes).bytes)
        given: float | None = getattr(self, key)
        return given

    def least(self, key: str, memory_nodes: int = 1) -> float | None:
        """The least that `value` can truly be: lower where it rests on how a batch is routed."""
        if key == "decode_bytes_per_s" and self.decode_tokens_per_s is not None:
            return self.decode_tokens_per_s * self.cpu_bytes_per_token(alike=True)
        return self.value(key, memory_nodes)


def names() -> tuple[str, ...]:
    """The shipped targets, the least demanding first."""
    return TIERS


def reference(name_or_path: str) -> str:
    """The name of a shipped target, or the whole path of a file: what finds it again from another folder."""
    return name_or_path if name_or_path in TIERS else str(Path(name_or_path).absolute())


def load(name_or_path: str) -> Target:
    """A shipped target by its name, or one from a TOML file. `UsageError` names file and key."""
    if name_or_path in TIERS:
        return _read(FOLDER / f"{name_or_path}.toml")
    path = Path(name_or_path)
    if "/" not in name_or_path and not name_or_path.endswith(".toml") and not path.exists():
        raise UsageError(
            f"target {name_or_path!r} is unknown: {tables.near(name_or_path, TIERS)} "
            f"(or give a TOML file; shipped are {', '.join(TIERS)})"
        )
    return _read(path)


def stored(name: str, text: str) -> Target:
    """A target from the text that a run keeps of it; `name` is that of its file, which is not opened."""
    return _target(name[:300], text, tables.parse(text, name[:300], "target"))


def _read(path: Path) -> Target:
    text, data = tables.read(path, "target")
    return _target(path.name, text, data)


def _target(name: str, text: str, data: dict[str, Any]) -> Target:
    known = ("name", "tier", *_FIGURES, "prices", "licence_accepted", "subjects", "sources")
    top = Table(f"target file {name}", data, known)
    sources = top.table("sources", _FIGURES)
    for key in _FIGURES:
        if key in data:
            sources.text(key)
        elif key in sources.data:
            raise sources.refuse(key, "has a source but the target does not give it; remove one")
    prices = top.table("prices", PRICES)
    subjects = top.table("subjects", SUBJECTS)
    decode_rate = top.positive("decode_tokens_per_s")
    sequences = top.integer("sequences", 1, 65_536)
    batch = top.integer("decode_batch", 1, sequences, 1)
    if decode_rate is None and "decode_batch" in data:
        raise top.refuse("decode_batch", "has no meaning without decode_tokens_per_s; add that or remove it")
    modalities = top.texts("modalities", MODALITIES, required=True)
    if "text" not in modalities:
        raise top.refuse("modalities", 'must hold "text"')
    return Target(
        name=top.text("name"),
        text=text,
        hash=digest(data),
        tier=top.choice("tier", TIERS),
        context=top.integer("context", 1, k3.MAX_CONTEXT),
        sequences=sequences,
        modalities=modalities,
        nodes=top.integer("nodes", 1, 4096),
        trunk=top.choice("trunk", residency.TRUNKS),
        sources={key: sources.text(key) for key in sources.data},
        decode_tokens_per_s=decode_rate,
        decode_batch=batch,
        prefill_tokens_per_s=top.positive("prefill_tokens_per_s"),
        load_seconds=top.positive("load_seconds"),
        replicate_per_node=top.flag("replicate_per_node"),
        prices={key: price for key in prices.data if (price := prices.positive(key)) is not None},
        subjects={key: subjects.text(key) for key in subjects.data},
        licence_accepted=_licence(top),
    )


def _licence(top: Table) -> Licence | None:
    if "licence_accepted" not in top.data:
        return None
    table = top.table("licence_accepted", ("by", "on", "sha256"))
    sha256 = table.text("sha256").removeprefix("sha256:").lower()
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise table.refuse("sha256", "must be the 64 hex digits of the licence file's SHA-256")
    return Licence(table.text("by"), table.text("on"), sha256)
