"""The decode engine against the float64 reference, which shares no code with it: formulas, names, layouts."""

from __future__ import annotations

import numpy as np
import pytest
from miniature import engine as engines
from miniature import reference, rounding, weights
from miniature.shape import SMALL
from numpy.typing import NDArray

from k3gate.probes import _native, gemm_kernels

TOKENS = (1, 2, 3, 77, 5, 6, 1, 1)
PATHS = gemm_kernels.choose_path(None)
TYPES = [weights.Types(trunk, "mxfp4", "bf16") for trunk in ("bf16", "q8_0", "mxfp4")]


def nmse(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> float:
    return float(np.square(found - wanted).mean() / np.square(wanted).mean())


@pytest.mark.parametrize("path", sorted({PATHS[0], PATHS[-1]}))
@pytest.mark.parametrize("types", TYPES, ids=lambda one: one.trunk)
def test_logits_are_the_references_within_the_bound_of_the_format(types: weights.Types, path: str) -> None:
    """Routing forced. The bound is what the reference loses where it rounds activations as ggml does; the engine rounds
    those beside MXFP4 more coarsely. With the gates of one attention layer altered the same bound is far exceeded."""
    made = dict(weights.random_weights(SMALL, 1, types))
    exact = reference.decode(SMALL, made, TOKENS)
    ids = np.stack([one.ids for one in exact])
    logits = np.stack([one.logits for one in exact])
    rounded = reference.decode(SMALL, made, TOKENS, ids.tolist(), rounding.ggml)
    bound = 5 * nmse(np.stack([one.logits for one in rounded]), logits)

    def engine() -> NDArray[np.float32]:
        wanted = engines.setup(
            SMALL, types, path, _native.allowed_cpus()[:1], room=len(TOKENS), pages="small"
        )
        sequence = engines.OneSequence(SMALL, engines.loaded(wanted, made))
        try:
            return np.stack([sequence.step(token, ids[at])[0] for at, token in enumerate(TOKENS)])
        finally:
            sequence.engine.close()

    assert nmse(engine(), logits) < bound
    made["model.layers.3.self_attn.g_proj.weight"] = made["model.layers.7.self_attn.g_proj.weight"]
    assert nmse(engine(), logits) > bound
