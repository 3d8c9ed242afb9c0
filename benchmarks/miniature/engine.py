"""The decode engine with the weights of a miniature, and its logits a step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, fields
from numpy.typing import NDArray

from k3gate.probes import decode_kernels

from .shape import Shape
from .weights import Types, Weights

_SAME = tuple(one.name for one in fields(Shape) if one.name != "mla_every")
"""What both shapes call alike."""


def setup(
    shape: Shape, types: Types, path: str, cpus: Sequence[int], node: int = 0, **options: Any
) -> decode_kernels.Setup:
    """Of this shape on one node; the router has a row for each expert that is held, and no more."""
    if types.experts != "mxfp4":
        raise ValueError(f"experts are {types.experts}: the engine has MXFP4 alone")
    numbers = {name: getattr(shape, name) for name in _SAME}
    mla = tuple(layer for layer in range(shape.layers) if shape.is_mla(layer))
    wanted = decode_kernels.Shape(**numbers, mla_layers=mla, router_rows=shape.experts)
    return decode_kernels.Setup(wanted, types.trunk, path, ((node, tuple(cpus)),), **options)


def loaded(made: decode_kernels.Setup, weights: Weights) -> decode_kernels.Engine:
    """An engine with these weights. Close it."""
    engine = decode_kernels.Engine(made, fill=False)
    try:
        for name in engine.tensors():
            one = weights[name]
            if one.type == "mxfp4":
                assert one.scales is not None
                engine.load(name, one.type, one.codes.tobytes(), one.scales.tobytes())
            else:
                engine.load(name, one.type, one.ggml().tobytes())
    except BaseException:
        engine.close()
        raise
    return engine


@define(eq=False)
class OneSequence:
    """One sequence of an engine of batch 1."""

    shape: Shape
    engine: decode_kernels.Engine

    def step(
        self, token: int, forced: NDArray[np.integer] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        """Logits [vocabulary] of the next token, and the experts [MoE layers, used] that worked."""
        ids = None if forced is None else self.ids(np.asarray(forced)[None])
        report = self.engine.run(ids, 1, tokens=np.array([token], "<i4").tobytes())
        used = np.frombuffer(report.ids, "<i2").reshape(self.shape.layers, self.shape.used)
        return np.frombuffer(report.logits, "<f4").copy(), used[self.shape.dense_layers :].copy()

    def ids(self, forced: NDArray[np.integer]) -> bytes:
        """[steps, MoE layers, used] as the engine takes it: of all layers."""
        whole = np.full((len(forced), self.shape.layers, 1, self.shape.used), -1, "<i2")
        whole[:, self.shape.dense_layers :, 0] = forced
        return whole.tobytes()
