"""How unevenly a step falls on nodes that each own some of the experts. Pure.

An owner reads each of its experts once a step and layer, however many tokens chose it, and a layer is done when the
busiest node is. So what is counted are distinct experts, and the imbalance of a step is the sum over its layers of the
busiest node's experts, times the nodes, by all of them: 1 is even, the number of nodes is all on one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.errors import UsageError
from k3gate.model.routing.trace import Ids

MAX_NODES = 1024
QUANTILES = (0.05, 0.5, 0.95)

Rule = Callable[[int, int], NDArray[np.integer]]
"""(experts, nodes) -> the owner of each expert, [experts], or of each layer's, [layers, experts]."""


@frozen
class Imbalance:
    """`mean` over steps, `quantiles` (5, 50, 95 %) and `largest` of steps; `by_layer`: the mean of each layer alone.

    `distinct`: different experts of a layer that a step reads, the mean over steps and layers.
    """

    nodes: int
    mean: float
    quantiles: tuple[float, ...]
    largest: float
    by_layer: tuple[float, ...]
    distinct: float


def turns(experts: int, nodes: int) -> NDArray[np.integer]:
    """Expert e lies on node e modulo nodes."""
    return np.arange(experts) % nodes


def blocks(experts: int, nodes: int) -> NDArray[np.integer]:
    """Equal runs of neighbouring experts lie on one node."""
    return np.arange(experts) * nodes // experts


def imbalance(steps: Ids, experts: int, nodes: int, rule: Rule = turns) -> Imbalance:
    """`steps`: [steps, layers, batch, used], as `Trace.steps` gives them; `rule` says which node owns which expert."""
    if not 1 <= nodes <= min(experts, MAX_NODES):
        raise UsageError(f"{nodes} nodes cannot share {experts} experts: give 1 to {min(experts, MAX_NODES)}")
    number, layers = steps.shape[:2]
    owner = np.broadcast_to(rule(experts, nodes), (layers, experts))
    busiest = np.empty((number, layers), np.int64)
    distinct = np.empty((number, layers), np.int64)
    for step in range(number):
        chosen = np.zeros((layers, experts), np.bool_)
        np.put_along_axis(chosen, steps[step].reshape(layers, -1).astype(np.int64), True, axis=1)
        of_node = np.stack([(chosen & (owner == node)).sum(1) for node in range(nodes)])
        busiest[step], distinct[step] = of_node.max(0), of_node.sum(0)
    of_steps = busiest.sum(1) * nodes / distinct.sum(1)
    return Imbalance(
        nodes,
        float(of_steps.mean()),
        tuple(float(value) for value in np.quantile(of_steps, QUANTILES)),
        float(of_steps.max()),
        tuple(float(value) for value in (busiest * nodes / distinct).mean(0)),
        float(distinct.mean()),
    )
