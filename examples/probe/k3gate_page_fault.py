"""An example of a third-party probe: the time that a minor page fault costs, which loading a model pays."""

from __future__ import annotations

import mmap
import resource
import time
from collections.abc import Iterator

from k3gate.errors import ProbeError
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Better, Case, Inventory, Metric, MetricDeclaration, Profile, Proof, State

FAULT_SECONDS = MetricDeclaration(
    name="pagefault.seconds",
    unit="s",
    better=Better.LOWER,
    title="Cost of a minor page fault",
    divides="seconds to touch each page of fresh anonymous memory, divided by the faults the kernel counted",
)


class PageFaultProbe:
    """Touches fresh 4 KiB pages and divides by the faults the kernel counted."""

    name = "pagefault"
    title = "The cost of a minor page fault"
    metrics = (FAULT_SECONDS,)

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Needs to know the page size, as it touches each page once."""
        if inventory.kernel.page_bytes is None:
            return Reason(State.NOT_PRESENT, "the page size of this machine is not known")
        return Applies()

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """One case; 64 MiB take about 20 ms."""
        size = 64 * 2**20
        case = Case(
            probe=self.name,
            name="touch",
            title="touch 64 MiB of fresh memory three times",
            group="touch",
            parameters={"bytes": size, "page_bytes": inventory.kernel.page_bytes},
            seconds=0.2,
            bytes=size,
            labels={"bytes": size},
        )
        return Planned((case,))

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round: three samples, each on fresh memory."""
        size, page = case.parameters["bytes"], case.parameters["page_bytes"]
        samples, fewest = [], size
        for _ in range(3):
            with mmap.mmap(-1, size) as memory:
                memory.madvise(mmap.MADV_NOHUGEPAGE)
                ones = b"\1" * (size // page)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                begun = time.perf_counter()
                memory[::page] = ones
                elapsed = time.perf_counter() - begun
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            if faults == 0:
                raise ProbeError("the kernel counted no page fault")
            fewest = min(fewest, faults)
            samples.append(context.sample(elapsed / faults, elapsed))
        pages = size // page
        proof = Proof("faults", fewest >= pages * 0.99, f"{fewest} faults counted for {pages} pages")
        yield context.metric(FAULT_SECONDS, samples, dict(case.labels), [proof])
