"""The matrices of Kimi K3 that are multiplied, and how much of each a thread takes at a time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from k3gate.model import k3

BYTES_OF_WEIGHT: Mapping[str, float] = MappingProxyType({"mxfp4": 0.53125, "int8": 1.0, "bf16": 2.0})
MOST_BYTES = 24e6
"""Of a matrix, a thread works on so much at a time at most, as where engines share its rows out."""


@frozen
class Shape:
    """A matrix of Kimi K3, [rows, depth]: what it is called, and the formats in which it is multiplied here.

    `matrices` of a size belong together where they are more than one, and are not cut.
    """

    key: str
    title: str
    rows: int
    depth: int
    formats: tuple[str, ...]
    matrices: int = 1

    def item_rows(self, kind: str) -> int:
        """Rows of what one thread multiplies at a time: the largest even share of at most `MOST_BYTES`."""
        if self.matrices > 1:
            return self.rows
        parts = 1
        while self.rows % parts or self.rows // parts % 32 or self._bytes(kind) / parts > MOST_BYTES:
            parts += 1
        return self.rows // parts

    def item_weights(self, kind: str) -> int:
        """Weights of what one thread multiplies at a time."""
        return self.matrices * self.item_rows(kind) * self.depth

    def _bytes(self, kind: str) -> float:
        return self.rows * self.depth * BYTES_OF_WEIGHT[kind]


EXPERT = Shape("expert", "whole routed experts", k3.EXPERT_INTERMEDIATE, k3.EXPERT_WIDTH, ("mxfp4",), 3)
"""Gate, up, SiTU and down: three matrices of these sizes."""
_HEADS = k3.HEADS * k3.HEAD_DIM
_TRUNK = ("bf16", "int8")
SHAPES = (
    Shape("expert_up", "gate or up of an expert", k3.EXPERT_INTERMEDIATE, k3.EXPERT_WIDTH, ("mxfp4", "int8")),
    Shape("attention_in", "the trunk's projections to the heads", _HEADS, k3.HIDDEN, _TRUNK),
    Shape("expert_down", "down of an expert", k3.EXPERT_WIDTH, k3.EXPERT_INTERMEDIATE, ("mxfp4",)),
    Shape("attention_out", "the trunk's projection back", k3.HIDDEN, _HEADS, _TRUNK),
    Shape("latent_in", "the projection to the experts' width", k3.EXPERT_WIDTH, k3.HIDDEN, _TRUNK),
    Shape("latent_out", "the projection from the experts' width", k3.HIDDEN, k3.EXPERT_WIDTH, _TRUNK),
    Shape("head", "the head of the vocabulary", k3.VOCABULARY, k3.HIDDEN, _TRUNK),
)
"""Most important first."""
