"""The products of a runtime's own library, over the same matrix as ours and in the same run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from k3gate import metrics
from k3gate.errors import NotPresentError, ProbeError
from k3gate.probes import bandwidth, ggml, pools, sharing
from k3gate.probes.bandwidth import LEAST_SAMPLES, SAMPLE_SECONDS
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, Scalar
from k3gate.units import exact_bytes


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """B/s of weights for each number of tokens, one thread. Its results are not compared with anything here: the
    figure says how fast it is, and no check reads it."""
    folder = ggml.find()
    if folder is None:
        raise NotPresentError("ggml's library was there when the run was planned, and is gone")
    parameters, labels = case.parameters, case.labels
    [spec], [[cpu]] = parameters["pools"], parameters["readers"]
    kind, rows, depth = str(labels["format"]), int(labels["rows"] or 0), int(labels["depth"] or 0)
    try:
        filled = pools.allocate(spec["bytes"], spec["pages"], spec["bind"])
    except OSError as error:
        raise ProbeError(f"no memory for {exact_bytes(spec['bytes'])} of weights: {error}") from error
    try:
        begun = time.monotonic()
        address = int(filled.pool.address)
        products = ggml.Products(folder, kind, rows, depth, address, filled.bytes, secrets.randbits(32))
        context.setup(time.monotonic() - begun)
        caches = labels["cache_bytes"]
        page, page_proof = pools.page_size([filled])
        proofs = [
            pools.placement([filled]),
            page_proof,
            sharing.working_set(
                filled.bytes, caches if isinstance(caches, int) else None, parameters["level_2_bytes"]
            ),
        ]
        for tokens in parameters["tokens"]:
            own: dict[str, Scalar] = {
                **labels,
                "tokens": tokens,
                "page_size": page,
                "engine": f"ggml {products.library.version}",
            }
            samples = _samples(context, products, tokens, cpu, context.seconds / len(parameters["tokens"]))
            all_ = [*proofs, *bandwidth.ceiling(bandwidth.median_rate(samples), context.inventory, own)]
            state, reason = sharing.state_of(all_)
            yield context.metric(metrics.KERNEL_PEER, samples, own, all_, state, reason)
    finally:
        filled.close()


def _samples(
    context: Context, products: ggml.Products, tokens: int, cpu: int, seconds: float
) -> list[SampleToken]:
    begun = time.monotonic()
    most = products.most_calls(tokens)
    once = products.seconds(tokens, 1, cpu)
    calls = min(most, max(1, round(1.2 * SAMPLE_SECONDS / once)))
    context.setup(time.monotonic() - begun)
    samples: list[SampleToken] = []
    spent = taken = 0.0
    while len(samples) < LEAST_SAMPLES or spent + taken <= seconds:
        taken = products.seconds(tokens, calls, cpu)
        context.heartbeat("multiplying by ggml")
        samples.append(context.sample(calls * products.bytes_of_item / taken, taken))
        spent += taken
    return samples
