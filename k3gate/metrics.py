"""The registry of metric names: unit, direction, and a sentence saying what is divided by what.

A probe of a third party declares its own through its `metrics` attribute; `declare` refuses a name that is
already taken with another meaning. Names that no probe of this version measures are declared too, since the
shipped criteria speak of them.
"""

from __future__ import annotations

from k3gate.errors import UsageError
from k3gate.records import Better, MetricDeclaration

_REGISTRY: dict[str, MetricDeclaration] = {}


def declare(*declarations: MetricDeclaration) -> None:
    """Add declarations; raises `UsageError` where a name is taken with another unit or direction."""
    for new in declarations:
        old = _REGISTRY.setdefault(new.name, new)
        if (old.unit, old.better, old.exact) != (new.unit, new.better, new.exact):
            raise UsageError(
                f"metric {new.name!r} is declared twice, as {old.unit} ({old.better}) and as "
                f"{new.unit} ({new.better}): rename one"
            )


def find(name: str) -> MetricDeclaration | None:
    """The declaration of a metric, or None where the name is unknown."""
    return _REGISTRY.get(name)


def names() -> tuple[str, ...]:
    """All declared names, sorted."""
    return tuple(sorted(_REGISTRY))


def _metric(
    name: str, unit: str, better: Better, title: str, divides: str, exact: bool = False
) -> MetricDeclaration:
    return MetricDeclaration(name, unit, better, title, divides, exact)


MEMORY_READ = _metric(
    "memory.bandwidth.read",
    "B/s",
    Better.HIGHER,
    "Sustained read bandwidth",
    "bytes loaded by all threads divided by the wall time of their common window; a load-only kernel, "
    "so counted bytes are bus bytes",
)
RESIDENCY_BYTES = _metric(
    "memory.residency.bytes",
    "B",
    Better.HIGHER,
    "Memory image held and verified",
    "bytes of anonymous memory that were allocated, touched and found with the right pattern",
    exact=True,
)
RESIDENCY_RATE = _metric(
    "memory.residency.touch_rate",
    "B/s",
    Better.HIGHER,
    "First-touch rate of the image",
    "bytes of the image divided by the seconds that all threads took to touch it for the first time",
)
SELFTEST_RATE = _metric(
    "selftest.hash_rate",
    "B/s",
    Better.HIGHER,
    "SHA-256 rate of the self-test",
    "bytes hashed divided by the seconds it took; says that the harness works, nothing about memory",
)

declare(MEMORY_READ, RESIDENCY_BYTES, RESIDENCY_RATE, SELFTEST_RATE)
