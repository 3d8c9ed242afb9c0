"""Products of K3's own matrices on this CPU: what its units can do, and what the weights of a token take.

Cases, planned from the inventory and from what the CPU and its kernel grant:

    expert.machine          whole MXFP4 experts (gate, up, SiTU, down), one thread per physical core on its own node's
                            weights, with 1 to 256 tokens; expert.core by one thread
    product.SHAPE.FORMAT.machine   one of K3's matrices, its rows shared out, each slice by one thread
    isa.FORMAT.PATH         the same product by each instruction set, one thread
    peak.core.PATH.TYPE     arithmetic on registers alone, one core; peak.machine.PATH.TYPE all of them
    peer.ggml.FORMAT        ggml's product of the same matrix by one thread, where its library is installed, and
                            product.SHAPE.FORMAT.core, ours beside it
    peak.PATH               an instruction set that is not here or not permitted: says so

Weights rotate through pools far beyond the caches. Before a variant is timed it is compared with float64, and of what
was timed random rows are computed again: a figure that fails either is withheld.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import metrics
from k3gate.errors import NotPermittedError, NotPresentError
from k3gate.probes import gemm_kernels, gemm_peaks, gemm_peers, gemm_plan, gemm_products, ggml, layout
from k3gate.probes.pools import error_text
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile, State


class GemmProbe:
    """Products of matrices. See the module's text for the cases."""

    name = "gemm"
    title = "Arithmetic: K3's matrices from MXFP4, INT8 and BF16 weights, by instruction set"
    metrics: Sequence[MetricDeclaration] = (
        metrics.KERNEL_EXPERT,
        metrics.KERNEL_WEIGHTS,
        metrics.KERNEL_FLOPS,
        metrics.KERNEL_PEER,
        metrics.KERNEL_PEAK,
        metrics.KERNEL_PER_CYCLE,
        metrics.CORE_CLOCK,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Needs a CPU that may be used and a node that has memory."""
        return layout.applies(inventory)

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """Raises `UsageError` for a working set that fits in caches, or a lacking instruction set."""
        allowed = gemm_kernels.choose_path(None)
        return gemm_plan.plan(
            self.name,
            inventory,
            profile,
            gemm_kernels.paths(),
            gemm_kernels.variants(allowed),
            gemm_kernels.peaks(allowed),
            peer=ggml.find() is not None,
        )

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case."""
        kind = case.parameters["kind"]
        if kind == "peak":
            yield from gemm_peaks.measure(case, context)
        elif kind == "peer":
            yield from gemm_peers.measure(case, context)
        elif kind == "absent":
            raise absence(str(case.parameters["path"]), context.inventory)
        else:
            yield from gemm_products.measure(case, context)


def absence(path: str, inventory: Inventory) -> NotPresentError | NotPermittedError:
    """Why a path cannot be used, as the CPU and its kernel say now."""
    [found] = [one for one in gemm_kernels.paths() if one.name == path]
    if found.state is State.NOT_PERMITTED:
        return NotPermittedError(
            f"the CPU has {path}, and its kernel refuses the state of its tiles: arch_prctl: "
            f"{error_text(found.error)}"
        )
    hidden = next((one for one in inventory.findings if one.code == "amx_hidden"), None)
    if path.startswith("amx") and hidden is not None:
        return NotPresentError(f"{path} is hidden here: {hidden.observed}")
    return NotPresentError(f"this CPU has no {path}")
