"""One decoded token through Kimi K3 in float64, and the same by other formulas as a check of itself. Pure.

The arithmetic is that of the released modelling code; y = W x, weights [out, in]. Nothing is rounded here, so what an
engine's outputs differ by is its own rounding, and what its formats of activations and caches lose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from .shape import Shape
from .weights import Weights

Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]
EPSILON = 1e-5
"""Of all root mean squares."""
L2_EPSILON = 1e-6
"""Under the root of the L2 norm of queries and keys, as kernels of flash-linear-attention have it."""
SITU_GATE, SITU_UP = 4.0, 25.0
LOWER_BOUND = -5.0
"""Of the logarithm of a decay."""


def rms_norm(x: Numbers, weight: Numbers) -> Numbers:
    """Over the last axis."""
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON)


def sigmoid(x: Numbers) -> Numbers:
    """Without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x: Numbers) -> Numbers:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def situ(gate: Numbers, up: Numbers) -> Numbers:
    """The activation of every MLP."""
    return SITU_GATE * np.tanh(gate / SITU_GATE) * sigmoid(gate) * SITU_UP * np.tanh(up / SITU_UP)


def softmax(x: Numbers) -> Numbers:
    """Over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def l2_norm(x: Numbers) -> Numbers:
    """Over the last axis."""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + L2_EPSILON)


@frozen(eq=False)
class Step:
    """What one token gave. Rows of `ids`, `free` and `margins` are of the layers with experts, in order."""

    logits: Numbers
    """[vocabulary]"""
    hidden: Numbers
    """[layers, hidden]: the running sum as each layer leaves it."""
    ids: Ids
    """[MoE layers, used]: the experts that worked."""
    free: Ids
    """[MoE layers, used]: what the router chose, best first; other than `ids` where routing was forced."""
    margins: Numbers
    """[MoE layers]: by how much the last choice beat the first that was not made. Near 0: rounding may turn it."""


Rounding = Callable[[str, Numbers], Numbers]
"""What an engine makes of the activations [..., depth] of a product with weights of a type; see `rounding`."""


def exact(_: str, x: Numbers) -> Numbers:
    """No rounding."""
    return x


class Model:
    """Weights as numbers of float64, and the parts of a layer that know nothing of other tokens.

    With `rounding`, the inputs of each product with a matrix are rounded: the reference then tells what an engine that
    does so should give, and no longer what is right.
    """

    def __init__(self, shape: Shape, weights: Weights, rounding: Rounding = exact) -> None:
        self.shape = shape
        self._rounding = rounding
        self._types = {name: one.type for name, one in weights.items()}
        self._weights: Mapping[str, Numbers] = {name: one.numbers() for name, one in weights.items()}

    def outside(self, name: str) -> Numbers:
        """A weight of no layer."""
        return self._weights[name]

    def weight(self, layer: int, name: str) -> Numbers:
        """A weight of a layer."""
        return self._weights[f"model.layers.{layer}.{name}"]

    def rounded(self, name: str, x: Numbers) -> Numbers:
        """Inputs of a product with that weight."""
        return self._rounding(self._types[name], x)

    def product(self, layer: int, name: str, x: Numbers) -> Numbers:
        """W x."""
        whole = f"model.layers.{layer}.{name}"
        return self._weights[whole] @ self.rounded(whole, x)

    def embedding(self, token: int) -> Numbers:
        """The first hidden state of a token."""
        return self._weights["model.embed_tokens.weight"][token]

    def mix(self, blocks: Sequence[Numbers], running: Numbers, norm: Numbers, proj: Numbers) -> Numbers:
        """AttnRes: what attention, MLP or the head take of the inputs of the blocks and the running sum."""
        vectors = np.stack((*blocks, running))
        return softmax(rms_norm(vectors, norm) @ proj) @ vectors

    def mlp(self, layer: int, name: str, x: Numbers) -> Numbers:
        """A dense MLP, or the shared experts as one."""
        gate, up = (self.product(layer, f"{name}.{part}_proj.weight", x) for part in ("gate", "up"))
        return self.product(layer, f"{name}.down_proj.weight", situ(gate, up))

    def scores(self, layer: int, x: Numbers) -> tuple[Numbers, Numbers]:
        """Of all experts: as weights, and as choices are made by."""
        scores = sigmoid(self.product(layer, "block_sparse_moe.gate.weight", x))
        return scores, scores + self.weight(layer, "block_sparse_moe.gate.e_score_correction_bias")

    def moe(self, layer: int, x: Numbers, ids: Ids, scores: Numbers) -> Numbers:
        """The experts `ids`, the norm of their sum, and the shared experts, of a normalised x."""
        at = "block_sparse_moe"
        parts = scores[ids] / (scores[ids].sum() + 1e-20)
        z = self.product(layer, f"{at}.routed_expert_down_proj.weight", x)
        total = np.zeros(self.shape.width)
        for expert, part in zip(ids, parts, strict=True):
            gate, up = (self.product(layer, f"{at}.experts.{expert}.w{i}.weight", z) for i in (1, 3))
            total += part * self.product(layer, f"{at}.experts.{expert}.w2.weight", situ(gate, up))
        normed = rms_norm(total, self.weight(layer, f"{at}.routed_expert_norm.weight"))
        routed = self.product(layer, f"{at}.routed_expert_up_proj.weight", normed)
        return routed + self.mlp(layer, f"{at}.shared_experts", x) if self.shape.shared else routed

    def decays(self, layer: int, x: Numbers) -> tuple[Numbers, Numbers]:
        """Of KDA: logarithms of the decays [heads, head_dim], and betas [heads]."""
        shape = self.shape
        low = self.product(layer, "self_attn.f_a_proj.weight", x)
        given = self.product(layer, "self_attn.f_b_proj.weight", low)
        given = (given + self.weight(layer, "self_attn.dt_bias")).reshape(shape.heads, shape.head_dim)
        steepness = np.exp(self.weight(layer, "self_attn.A_log")[: shape.heads, None])
        beta = sigmoid(self.product(layer, "self_attn.b_proj.weight", x))
        return LOWER_BOUND * sigmoid(steepness * given), beta

    def kda_output(self, layer: int, x: Numbers, heads: Numbers) -> Numbers:
        """The norm, gate and last product of KDA; `heads` [heads, head_dim]."""
        normed = rms_norm(heads, self.weight(layer, "self_attn.o_norm.weight")).reshape(-1)
        gate = sigmoid(self.product(layer, "self_attn.g_proj.weight", x))
        return self.product(layer, "self_attn.o_proj.weight", normed * gate)

    def query(self, layer: int, x: Numbers) -> Numbers:
        """Of MLA [heads, head_dim + rest]."""
        low = self.product(layer, "self_attn.q_a_proj.weight", x)
        low = rms_norm(low, self.weight(layer, "self_attn.q_a_layernorm.weight"))
        return self.product(layer, "self_attn.q_b_proj.weight", low).reshape(self.shape.heads, -1)

    def compressed(self, layer: int, x: Numbers) -> Numbers:
        """What the cache holds of a token [cache_rank + rest]."""
        both = self.product(layer, "self_attn.kv_a_proj_with_mqa.weight", x)
        rank = self.shape.cache_rank
        normed = rms_norm(both[:rank], self.weight(layer, "self_attn.kv_a_layernorm.weight"))
        return np.concatenate((normed, both[rank:]))

    def mla_output(self, layer: int, x: Numbers, heads: Numbers) -> Numbers:
        """The gate and last product of MLA; `heads` [heads, head_dim]."""
        gate = sigmoid(self.product(layer, "self_attn.g_proj.weight", x))
        return self.product(layer, "self_attn.o_proj.weight", heads.reshape(-1) * gate)

    def key_value(self, layer: int) -> tuple[Numbers, Numbers]:
        """W_k and W_v, each [heads, head_dim, cache_rank]."""
        shape = self.shape
        both = self.weight(layer, "self_attn.kv_b_proj.weight")
        both = both.reshape(shape.heads, 2 * shape.head_dim, shape.cache_rank)
        return both[:, : shape.head_dim], both[:, shape.head_dim :]

    def head(self, blocks: Sequence[Numbers], running: Numbers) -> Numbers:
        """Logits of what the last layer left."""
        mixed = self.mix(
            blocks,
            running,
            self.outside("model.output_attn_res_norm.weight"),
            self.outside("model.output_attn_res_proj.weight"),
        )
        normed = rms_norm(mixed, self.outside("model.norm.weight"))
        return self.outside("lm_head.weight") @ self.rounded("lm_head.weight", normed)


def choose(scores: Numbers, used: int) -> tuple[Ids, float]:
    """The best, in order, and by how much the last of them beat the next."""
    order = np.argsort(-scores, kind="stable")
    margin = scores[order[used - 1]] - scores[order[used]] if used < len(scores) else np.inf
    return order[:used], float(margin)


@define(eq=False)
class _KdaState:
    past: Numbers
    """[3, convolution - 1, channels]: the last inputs of the convolutions of q, k and v, oldest first."""
    state: Numbers
    """[heads, key channels, value channels]"""


@define(eq=False)
class Decoder:
    """A sequence, decoded a token at a time: KDA by its state, MLA absorbed, over a cache that grows."""

    model: Model
    cache: dict[int, list[Numbers]] = field(factory=dict)
    """By layer of MLA, one [cache_rank + rest] a token; as long as given at the start, if any was."""
    _kda: dict[int, _KdaState] = field(factory=dict, init=False)

    def step(self, token: int, forced: Sequence[Sequence[int]] | None = None) -> Step:
        """The next token; `forced` [MoE layers][used]: the experts that shall work, in place of the router's."""
        model, shape = self.model, self.model.shape
        running, blocks = model.embedding(token), list[Numbers]()
        hidden, ids, free, margins = [], [], [], []
        for layer in range(shape.layers):
            x = self._mixed(layer, "self_attention_res", "input_layernorm", blocks, running)
            y = self._mla(layer, x) if shape.is_mla(layer) else self._kda_step(layer, x)
            if layer % shape.block_layers == 0:
                blocks.append(running)
                running = y
            else:
                running = running + y
            x = self._mixed(layer, "mlp_res", "post_attention_layernorm", blocks, running)
            if shape.is_dense(layer):
                running = running + model.mlp(layer, "mlp", x)
            else:
                scores, biased = model.scores(layer, x)
                chosen, margin = choose(biased, shape.used)
                working = chosen if forced is None else np.array(forced[len(ids)], dtype=np.int64)
                running = running + model.moe(layer, x, working, scores)
                ids.append(working)
                free.append(chosen)
                margins.append(margin)
            hidden.append(running)
        return Step(
            model.head(blocks, running), np.array(hidden), np.array(ids), np.array(free), np.array(margins)
        )

    def _mixed(self, layer: int, mix: str, norm: str, blocks: Sequence[Numbers], running: Numbers) -> Numbers:
        model = self.model
        mixed = model.mix(
            blocks,
            running,
            model.weight(layer, f"{mix}_norm.weight"),
            model.weight(layer, f"{mix}_proj.weight"),
        )
        return rms_norm(mixed, model.weight(layer, f"{norm}.weight"))

    def _kda_step(self, layer: int, x: Numbers) -> Numbers:
        model, shape = self.model, self.model.shape
        kept = self._kda.get(layer)
        if kept is None:
            kept = self._kda[layer] = _KdaState(
                np.zeros((3, shape.convolution - 1, shape.across)),
                np.zeros((shape.heads, shape.head_dim, shape.head_dim)),
            )
        made = []
        for number, name in enumerate("qkv"):
            inputs = np.vstack((kept.past[number], model.product(layer, f"self_attn.{name}_proj.weight", x)))
            taps = model.weight(layer, f"self_attn.{name}_conv1d.weight")[:, 0]
            made.append(silu((inputs * taps.T).sum(axis=0)).reshape(shape.heads, shape.head_dim))
            kept.past[number] = inputs[1:]
        query, key, value = l2_norm(made[0]) * shape.head_dim**-0.5, l2_norm(made[1]), made[2]
        decay, beta = model.decays(layer, x)
        state = np.exp(decay)[..., None] * kept.state
        error = value - np.einsum("hij,hi->hj", state, key)
        state = state + beta[:, None, None] * key[:, :, None] * error[:, None, :]
        kept.state = state
        return model.kda_output(layer, x, np.einsum("hij,hi->hj", state, query))

    def _mla(self, layer: int, x: Numbers) -> Numbers:
        model, shape = self.model, self.model.shape
        self.cache.setdefault(layer, []).append(model.compressed(layer, x))
        cache = np.stack(self.cache[layer])
        latent, rest = cache[:, : shape.cache_rank], cache[:, shape.cache_rank :]
        query = model.query(layer, x)
        keys, values = model.key_value(layer)
        name = f"model.layers.{layer}.self_attn.kv_b_proj.weight"
        plain = model.rounded(name, query[:, : shape.head_dim])
        absorbed = np.einsum("hdr,hd->hr", keys, plain)
        scores = absorbed @ latent.T + query[:, shape.head_dim :] @ rest.T
        weighted = model.rounded(name, softmax(scores * shape.key**-0.5) @ latent)
        return model.mla_output(layer, x, np.einsum("hdr,hr->hd", values, weighted))


def decode(
    shape: Shape,
    weights: Weights,
    tokens: Sequence[int],
    forced: Sequence[Sequence[Sequence[int]]] | None = None,
    rounding: Rounding = exact,
) -> list[Step]:
    """All tokens of a sequence in turn; `forced` [tokens][MoE layers][used]."""
    decoder = Decoder(Model(shape, weights, rounding))
    given = forced if forced is not None else [None] * len(tokens)
    return [decoder.step(token, ids) for token, ids in zip(tokens, given, strict=True)]


def prefill(shape: Shape, weights: Weights, tokens: Sequence[int]) -> Numbers:
    """Logits [tokens, vocabulary] of a whole prompt, layer by layer, by formulas that share no state with a step's.

    KDA as attention over all tokens before, without a state; convolutions over the whole prompt; MLA not absorbed, with
    keys and values of every head; routing free.
    """
    model = Model(shape, weights)
    running = [model.embedding(token) for token in tokens]
    blocks: list[list[Numbers]] = [[] for _ in tokens]
    for layer in range(shape.layers):
        taken = _normed(model, layer, "self_attention_res", "input_layernorm", blocks, running)
        made = (_mla_whole if shape.is_mla(layer) else _kda_whole)(model, layer, taken)
        for at, y in enumerate(made):
            if layer % shape.block_layers == 0:
                blocks[at] = [*blocks[at], running[at]]
                running[at] = y
            else:
                running[at] = running[at] + y
        taken = _normed(model, layer, "mlp_res", "post_attention_layernorm", blocks, running)
        for at, x in enumerate(taken):
            if shape.is_dense(layer):
                running[at] = running[at] + model.mlp(layer, "mlp", x)
            else:
                scores, biased = model.scores(layer, x)
                running[at] = running[at] + model.moe(layer, x, choose(biased, shape.used)[0], scores)
    return np.stack([model.head(*both) for both in zip(blocks, running, strict=True)])


def _normed(
    model: Model, layer: int, mix: str, norm: str, blocks: list[list[Numbers]], running: list[Numbers]
) -> Numbers:
    """[tokens, hidden]"""
    names = (f"{mix}_norm.weight", f"{mix}_proj.weight")
    weight, proj = (model.weight(layer, name) for name in names)
    mixed = np.stack(
        [model.mix(before, now, weight, proj) for before, now in zip(blocks, running, strict=True)]
    )
    return rms_norm(mixed, model.weight(layer, f"{norm}.weight"))


def _kda_whole(model: Model, layer: int, x: Numbers) -> list[Numbers]:
    """The delta rule unrolled: o_t = sum_i beta_i (k_i . u_i) v_i, where u goes back from q_t through each token."""
    shape, count = model.shape, len(x)
    made = []
    for name in "qkv":
        inputs = x @ model.weight(layer, f"self_attn.{name}_proj.weight").T
        taps = model.weight(layer, f"self_attn.{name}_conv1d.weight")[:, 0]
        summed = [np.convolve(column, row[::-1])[:count] for column, row in zip(inputs.T, taps, strict=True)]
        made.append(silu(np.stack(summed, axis=1)).reshape(count, shape.heads, shape.head_dim))
    query, key, value = l2_norm(made[0]) * shape.head_dim**-0.5, l2_norm(made[1]), made[2]
    decays, betas = (np.stack(one) for one in zip(*(model.decays(layer, one) for one in x), strict=True))
    outputs = []
    for last in range(count):
        back, total = query[last], np.zeros((shape.heads, shape.head_dim))
        for at in range(last, -1, -1):
            part = betas[at] * (key[at] * back).sum(axis=-1)
            total += part[:, None] * value[at]
            back = np.exp(decays[at]) * (back - part[:, None] * key[at])
        outputs.append(model.kda_output(layer, x[last], total))
    return outputs


def _mla_whole(model: Model, layer: int, x: Numbers) -> list[Numbers]:
    """Not absorbed: each head's own keys and values of all tokens."""
    shape = model.shape
    cache = np.stack([model.compressed(layer, one) for one in x])
    latent, rest = cache[:, : shape.cache_rank], cache[:, shape.cache_rank :]
    up, down = model.key_value(layer)
    keys, values = np.einsum("hdr,tr->htd", up, latent), np.einsum("hdr,tr->htd", down, latent)
    keys = np.concatenate((keys, np.broadcast_to(rest, (shape.heads, *rest.shape))), axis=-1)
    outputs = []
    for last, one in enumerate(x):
        scores = np.einsum("hd,htd->ht", model.query(layer, one), keys[:, : last + 1])
        heads = np.einsum("ht,htd->hd", softmax(scores * shape.key**-0.5), values[:, : last + 1])
        outputs.append(model.mla_output(layer, one, heads))
    return outputs
