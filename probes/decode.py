"""How fast a miniature of Kimi K3 decodes here: the replay of a token, all arithmetic, by part.

Cases: `base`, and in longer profiles one factor at a time changed around it:

    deep              twice the layers: what the prediction for the whole model is tested on
    batch.N           N sequences together, where a layer holds enough experts
    trunk.FORMAT      the trunk in bf16, q8_0, mxfp4, or left out as where GPUs hold it (gpu)
    placement.KIND    owner (experts by node, executed by their owner), interleaved, replicated, single
    context.N         rows of the cache that are filled
    routing.KIND      uniform; or by the model of routing, where a trace is given
    pages.small       4 KiB pages

Experts are forced by a trace or by a model of routing. Before it is timed a model of reduced width is compared with
float64, and of what was timed random rows are computed again: a figure that fails either is withheld.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import metrics
from k3gate.probes import decode_plan, decode_replay, gemm_kernels, layout
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile


class DecodeProbe:
    """The decode replay. See the module's text for the cases."""

    name = "replay"
    title = "Decode replay: a miniature Kimi K3, token by token, and where its time goes"
    metrics: Sequence[MetricDeclaration] = (
        metrics.REPLAY_RATE,
        metrics.REPLAY_BANDWIDTH,
        metrics.REPLAY_PART,
        metrics.REPLAY_BYTES,
        metrics.REPLAY_CROSSED,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Needs a CPU that may be used and a node that has memory."""
        return layout.applies(inventory)

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """Raises `UsageError` for a working set that fits in caches, or a lacking instruction set."""
        return decode_plan.plan(self.name, inventory, profile, gemm_kernels.choose_path(None)[0])

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case."""
        yield from decode_replay.measure(case, context)
