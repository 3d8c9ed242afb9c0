"""Finds probes by the entry-point group `k3gate.probes`, loads them and checks them against the contract.

A probe of a third party is found as soon as its distribution is visible on `sys.path`; adding one touches
nothing here. What strangers wrote may be broken: a notice says so, or a `UsageError`
when it was asked for.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence

from attrs import frozen

from k3gate import metrics
from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.probing.contract import ENTRY_POINT_GROUP, Probe
from k3gate.probing.profiles import suggest
from k3gate.records import MetricDeclaration

ON_REQUEST = frozenset({"selftest"})
"""Probes that never run by default: they measure the harness, not the machine."""

FIRST = frozenset({"thermal"})
"""Probes whose cases come before all others, on a machine that nothing has warmed yet: one that is hot at the start
and throttles all the time has a rate that lasts."""

RESERVED = frozenset({"machine", "inventory"})
"""First parts of evidence ids that are not probes: the harness's own outcome, and facts of the inventory."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@frozen
class Listing:
    """A probe that is installed, not loaded yet. `value` is "module:class"; `distribution` brought it."""

    name: str
    value: str
    distribution: str | None
    version: str | None

    @property
    def ours(self) -> bool:
        """Whether k3gate itself ships it."""
        return self.value.startswith("k3gate.")


def installed(notices: list[str] | None = None) -> list[Listing]:
    """All probes on this system by name: our own first, then others; one name is listed once."""
    from importlib.metadata import entry_points  # 30 ms that a worker does without

    found = [
        Listing(
            point.name,
            point.value,
            point.dist.name if point.dist is not None else None,
            point.dist.version if point.dist is not None else None,
        )
        for point in entry_points(group=ENTRY_POINT_GROUP)
    ]
    chosen: dict[str, Listing] = {}
    for listing in sorted(found, key=lambda one: (not one.ours, one.name)):
        first = chosen.setdefault(listing.name, listing)
        if first.value != listing.value and notices is not None:
            notices.append(
                f"probe {listing.name!r} of {listing.distribution} ({listing.value}) is hidden by the one of "
                f"{first.distribution} ({first.value}): uninstall one of them"
            )
    return list(chosen.values())


def load(names: Sequence[str] | None = None, notices: list[str] | None = None) -> list[Probe]:
    """The probes `names`, or all but those of `ON_REQUEST`; their metrics are declared.

    Raises `UsageError` for a name that is unknown or whose probe is broken. A broken probe that was not asked
    for by name is left out with a line in `notices`.
    """
    notices = [] if notices is None else notices
    listings = {listing.name: listing for listing in installed(notices)}
    if names is not None:
        for name in names:
            if name not in listings:
                raise UsageError(f"probe {printable(name)!r} is unknown: {suggest(name, list(listings))}")
        return [_load(listings[name]) for name in dict.fromkeys(names)]
    probes = []
    for name, listing in listings.items():
        if name in ON_REQUEST:
            continue
        try:
            probes.append(_load(listing))
        except UsageError as error:
            notices.append(f"{error}; it is left out of this run")
    return probes


def reference(probe: Probe) -> str:
    """Where a worker finds the probe: "module:class"."""
    return f"{type(probe).__module__}:{type(probe).__qualname__}"


def create(value: str) -> Probe:
    """The probe at "module:class", created and checked; raises `ValueError` with one line otherwise.

    This is what a worker calls: it looks at no entry point and imports nothing but the probe.
    """
    module, _, attribute = value.partition(":")
    try:
        made: object = importlib.import_module(module)
        for part in attribute.split("."):
            made = getattr(made, part)
        if not isinstance(made, type):
            raise ValueError("it is no class")
        probe: object = made()
    except Exception as error:
        raise ValueError(f"{value} cannot be loaded: {one_line(error)}") from error
    if not isinstance(probe, Probe):
        lacking = [name for name in _ATTRIBUTES if not hasattr(probe, name)]
        raise ValueError(f"{value} is no probe: it lacks {', '.join(lacking)}")
    if not isinstance(probe.name, str) or not _NAME.fullmatch(probe.name) or probe.name in RESERVED:
        raise ValueError(f"{value} is no probe: its name {probe.name!r} is no lower-case word, or reserved")
    if not isinstance(probe.title, str):
        raise ValueError(f"{value} is no probe: its title is no text")
    declared = probe.metrics
    if not isinstance(declared, list | tuple) or not all(isinstance(m, MetricDeclaration) for m in declared):
        raise ValueError(f"{value} is no probe: its metrics are no sequence of MetricDeclaration")
    return probe


_ATTRIBUTES = ("name", "title", "metrics", "applies", "cases", "run")


def one_line(error: BaseException) -> str:
    """An exception as a reason: type and message on one line, bounded, printable."""
    text = " ".join(f"{type(error).__name__}: {error}".split()) if str(error) else type(error).__name__
    return printable(text[:300])


def _load(listing: Listing) -> Probe:
    origin = f" of {listing.distribution}" if listing.distribution else ""
    try:
        probe = create(listing.value)
        if probe.name != listing.name:
            raise ValueError(f"it calls itself {probe.name!r}")
        metrics.declare(*probe.metrics)
    except (ValueError, UsageError) as error:
        raise UsageError(
            f"probe {listing.name!r}{origin} is broken: {printable(str(error))}; repair or uninstall it"
        ) from error
    return probe
