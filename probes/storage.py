"""How fast weights can be loaded from where they lie or are to lie: drives, file system, and the ways of loaders.

See `storage_plan` for the cases. Reading goes past the page cache, and is shown to have done so: by the pages of the
files that are in memory before and after, by the drives' own counters, by where the files' bytes lie, by content that
no one can make smaller, and by what the drives' links carry. A figure that one of these contradicts is withheld.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import metrics
from k3gate.errors import NotPresentError
from k3gate.probes import storage_direct, storage_files, storage_peer, storage_plan, storage_ways
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile, Proof


class StorageProbe:
    """Load rates. See the module's text."""

    name = "storage"
    title = "Storage: how fast weights are loaded from the paths that are named"
    metrics: Sequence[MetricDeclaration] = (
        metrics.STORAGE_READ,
        metrics.STORAGE_CPU,
        metrics.STORAGE_LOADER,
        metrics.STORAGE_CACHED,
        metrics.STORAGE_STEADY,
        metrics.STORAGE_COURSE,
        metrics.STORAGE_PEER,
        metrics.STORAGE_HASH,
        metrics.STORAGE_MADE,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Everywhere: what a place lies on decides what can be measured there."""
        return Applies()

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """See `storage_plan`."""
        return storage_plan.plan(self.name, inventory, profile, storage_peer.find() is not None)

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case."""
        kind = case.parameters["kind"]
        if kind == "direct":
            yield from storage_direct.measure(case, context)
        elif kind == "course":
            yield from storage_direct.course(case, context)
        elif kind == "way":
            yield from storage_ways.measure(case, context)
        elif kind == "fio":
            yield from storage_peer.measure(case, context)
        elif kind == "file":
            yield _made(case, context)
        else:
            raise NotPresentError(str(case.parameters["why"]))


def _made(case: Case, context: Context) -> Metric:
    source = case.parameters["sources"][0]
    size = storage_files.fill(context, source)
    proof = Proof("flushed", True, "written with a generator's numbers, then flushed (fdatasync)")
    sample = context.sample(float(size), 0.0)
    return context.metric(metrics.STORAGE_MADE, [sample], dict(case.labels), [proof])
