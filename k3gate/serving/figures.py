"""The metrics of a round, from what a session saw. Samples that came before a failure are kept, in a failed metric."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from k3gate import metrics
from k3gate.probing.contract import Context
from k3gate.records import Metric, MetricDeclaration, Proof, Scalar, State
from k3gate.serving.load import Reading
from k3gate.serving.observing import Reading as Look

COLD_SHARE = 0.01
"""Up to this share of a checkpoint in the page cache a load counts as cold."""
CLOCKS_AGREE = 0.05
SERVED = "served_identity"
"""The proof of which files the server has open."""
Labels = dict[str, Scalar]


def load(context: Context, session: Any) -> Iterator[Metric]:
    """Seconds to the first answer, with what was in memory before."""
    seconds = float(session.load_s)
    yield context.metric(
        metrics.SERVED_LOAD,
        [context.sample(seconds, seconds)],
        {"architecture": session.architecture},
        [uncached(session.cached_before, session.cached), _served(session)],
    )


def uncached(before: float | str, share: float | str) -> Proof:
    """A warm load is shown, and proves nothing of a cold one."""
    if isinstance(share, str) or isinstance(before, str):
        return Proof("uncached", None, share if isinstance(share, str) else str(before))
    told = f"of the checkpoint {before:.1%} lay in the page cache, and {share:.1%} when it was started"
    return Proof("uncached", True if share <= COLD_SHARE else None, told)


def memory(context: Context, session: Any) -> Iterator[Metric]:
    """What the processes held."""
    observer = session.observer
    labels: Labels = {"architecture": session.architecture}
    proofs = [_served(session)]
    if observer.peak_bytes is not None:
        how = Proof("counted", True, observer.peak_of)
        yield context.metric(
            metrics.SERVED_PEAK, [context.sample(observer.peak_bytes, 0.0)], labels, [*proofs, how]
        )
    for node, size in sorted(observer.placed.items()):
        yield context.metric(
            metrics.SERVED_PLACED, [context.sample(size, 0.0)], {**labels, "memory_node": node}, proofs
        )
    if session.tokens:
        grown = observer.now().own - session.begun_own
        told = Proof("tokens", True, f"{grown:,} bytes over {session.tokens:,} tokens read and written")
        sample = context.sample(grown / session.tokens, 0.0)
        yield context.metric(metrics.SERVED_GROWTH, [sample], labels, [*proofs, told])


def reading(
    context: Context, session: Any, found: Reading, labels: Labels, before: Look | None, after: Look | None
) -> Iterator[Metric]:
    """What the answers of a round tell. Where the server is gone, or none came to its end, every metric is failed and
    keeps the samples that came."""
    labels = {**labels, "architecture": session.architecture}
    reason = session.lost or (found.failures[0] if found.failures and not found.answers else None)
    state = State.OK if reason is None else State.FAILED
    proofs = [_served(session)]

    def metric(
        declaration: MetricDeclaration, values: Sequence[float], timed: float, *more: Proof
    ) -> Iterator[Metric]:
        # So many seconds in all, whichever sample they are booked on.
        samples = [context.sample(value, timed / len(values)) for value in values]
        if samples:
            yield context.metric(declaration, samples, labels, [*proofs, *more], state, reason)

    came = (*found.answers, *found.partial)
    first = [one.first_s - one.begun_s for one in came if one.first_s is not None]
    yield from metric(metrics.SERVED_FIRST, first, max(first, default=0.0))
    cache = _cache(found)
    if found.streams == 1:
        yield from metric(metrics.SERVED_PREFILL, found.prefill, 0.0, cache)
    spans = [one.last_s - one.first_s for one in came if one.first_s and one.last_s]
    how = [_steady(found), _clock(found), _counted(found)]
    yield from metric(metrics.SERVED_DECODE, found.rates, max(spans, default=0.0), *how)
    if not found.rates:
        yield from metric(metrics.SERVED_CHUNKS, found.chunk_rates, max(spans, default=0.0), _steady(found))
    yield from metric(metrics.SERVED_GAP, [gap for one in came for gap in one.gaps_s], 0.0, _spread(found))
    together = found.together
    if found.streams > 1 and together is not None:
        yield from metric(metrics.SERVED_TOGETHER, [together], 0.0)
    sent = len(found.answers) + len(found.failures)
    told = Proof("answers", True, "; ".join(dict.fromkeys(found.failures)) or f"all {sent} came to their end")
    share = context.sample(len(found.answers) / sent, 0.0)
    # Answers that did not come are what this one counts.
    yield context.metric(metrics.SERVED_COMPLETED, [share], labels, [*proofs, told])
    yield context.metric(metrics.SERVED_RETRIES, [context.sample(found.retries, 0.0)], labels)
    if before is not None and after is not None and after.at > before.at:
        busy = max(0.0, after.cpu_s - before.cpu_s) / (after.at - before.at)
        yield context.metric(metrics.SERVED_CORES, [context.sample(busy, 0.0)], labels)


def _served(session: Any) -> Proof:
    return Proof(SERVED, session.identity.ok, session.identity.detail)


def _counted(found: Reading) -> Proof:
    if any(one.counted is not None for one in found.answers):
        return Proof("tokens", None, "counted in the text by a tokenizer, as the server counts none")
    return Proof("tokens", True, "as the server counts them")


def _cache(found: Reading) -> Proof:
    if found.cached:
        return Proof("uncached_prompt", None, f"{found.cached} prompts came from a cache and are left out")
    known = any(
        one.timings.prompt_tokens is not None or one.usage.cached is not None for one in found.answers
    )
    told = (
        "the server computed all of each prompt"
        if known
        else "every prompt was new; the server tells no more"
    )
    return Proof("uncached_prompt", True if known else None, told)


def _steady(found: Reading) -> Proof:
    parts = [part for one in found.answers if (part := one.steady) is not None]
    if not parts:
        return Proof("steady", None, "no answer has two chunks")
    worst = next((part for part in parts if not part.ok), parts[0])
    return Proof("steady", worst.ok, worst.detail)


def _clock(found: Reading) -> Proof:
    clocks = found.own_clock
    if clocks is None:
        return Proof("server_clock", None, "the server tells no rate of its own")
    told = f"{clocks[0]:.4g} tokens/s over whole answers, {clocks[1]:.4g} by the server's own clock"
    return Proof("server_clock", True if abs(clocks[0] / clocks[1] - 1) <= CLOCKS_AGREE else None, told)


def _spread(found: Reading) -> Proof:
    gaps = sorted(gap for one in found.answers for gap in one.gaps_s)
    if len(gaps) < 2:
        return Proof("spread", None, "too few gaps")
    high = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
    return Proof("spread", True, f"median {statistics.median(gaps):.4g} s, 99th percentile {high:.4g} s")
