"""Arithmetic on registers alone: the roof that no product exceeds, and how many instructions a cycle it is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from k3gate import metrics
from k3gate.errors import ProbeError
from k3gate.probes import _native, bandwidth, gemm_kernels, pools, sharing, timing
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, Proof, Scalar
from k3gate.units import quantity, significant

LEAST_SAMPLES = 2
"""Loops on registers hardly scatter, and there are many of them."""
ISSUED_PER_CYCLE = 4
"""More vector instructions a cycle than any core begins."""
TOLERANCE = 1.1
"""Of a clock that is taken right after, and that other tenants of a core may lower for a moment."""


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """FLOP/s of a loop of independent instructions, the clock right after it, and their quotient."""
    path, kind = str(case.parameters["path"]), str(case.parameters["type"])
    found = [one for one in gemm_kernels.peaks([path]) if one["type"] == kind]
    if not found:
        raise ProbeError(f"this build has no loop of {path} on {kind}")
    [peak] = found
    cpus = [cpu for group in case.parameters["readers"] for cpu in group]
    team = sharing.team(context, cpus)
    watch = pools.PinWatch(team)
    samples: list[SampleToken] = []
    clocks: list[float] = []
    run = partial(_native.gemm_peak, team, path, kind)
    for region, turns in timing.regions(
        context, run, context.seconds, "computing", start=100_000, least=LEAST_SAMPLES
    ):
        clocks.append(min(team.clocks()))
        watch.see(region)
        rate = len(cpus) * turns * float(peak["flops_per_turn"]) / region.seconds
        samples.append(context.sample(rate, region.seconds))
    labels: dict[str, Scalar] = {
        **case.labels,
        "flops_per_instruction": float(peak["flops_per_instruction"]),
    }
    proofs = [watch.proof()]
    per_cycle = None
    # Of the slowest core, and of the best moment: whatever else ran meanwhile makes a clock look lower.
    clock = max(clocks)
    if clock > 0:
        per_cycle = bandwidth.median_rate(samples) / len(cpus) / float(peak["flops_per_instruction"]) / clock
        proofs.append(_ceiling(path, per_cycle, clock))
    state, reason = sharing.state_of(proofs)
    yield context.metric(metrics.KERNEL_PEAK, samples, labels, proofs, state, reason)
    if per_cycle is not None:
        # Not labels of the rate: they differ from round to round.
        yield context.metric(metrics.CORE_CLOCK, [context.sample(clock, 0.0)], dict(case.labels))
        yield context.metric(metrics.KERNEL_PER_CYCLE, [context.sample(per_cycle, 0.0)], labels)


def _ceiling(path: str, per_cycle: float, clock: float) -> Proof:
    most = 1 / metrics.TILE_CYCLES if path.startswith("amx") else ISSUED_PER_CYCLE
    detail = f"{significant(per_cycle)} instructions a cycle at {quantity(clock, 'Hz')}, of at most {significant(most)}"
    return Proof("ceiling", per_cycle <= most * TOLERANCE, detail)
