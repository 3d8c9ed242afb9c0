"""What published model files store: bits of routed experts, of the trunk and of cached values. Pure.

A mean over a whole file does not do: nearly all of a file is routed experts, of which a token reads a few, and the
rest, which it reads whole, is stored in more bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from attrs import frozen

from k3gate.model.known import KIMI_K2, sizes_of
from k3gate.model.sizes import EMBEDDING, ROUTED, TRUNK


@frozen
class Stored:
    """Bits a parameter of routed experts and of the trunk (None: as released), the type of cached values, and on what
    this rests."""

    experts: float | None
    trunk: float | None
    words: str
    kv: str = "bf16"


@frozen
class Tensors:
    """Tensors of one kind in a file. `row`: parameters of a row; `read`: whether a decoded token reads them, since some
    serve prefill alone."""

    what: str
    role: str
    parameters: int
    row: int
    type: str
    read: bool = True

    @property
    def bytes(self) -> float:
        """Bytes in the file, with the scales of blocks and of rows."""
        return self.parameters * (BITS[self.type] / 8 + ROW_BYTES.get(self.type, 0) / self.row)


BITS: Mapping[str, float] = {
    "f32": 32.0,
    "q8_0": 34 * 8 / 32,
    "q5_0": 22 * 8 / 32,
    "iq6_k": 212 * 8 / 256,
    "iq5_ks": 168 * 8 / 256,
    "iq4_ks": 136 * 8 / 256,
    "iq4_k": 144 * 8 / 256,
    "iq3_ks": 102 * 8 / 256,
    "iq2_kl": 86 * 8 / 256,
}
"""Bits a parameter of block formats: bytes and elements of a block (ggml-common.h of ggml-org/llama.cpp and
ikawrakow/ik_llama.cpp)."""
ROW_BYTES: Mapping[str, int] = {"iq2_kl": 2, "iq3_ks": 2, "iq4_ks": 4, "iq5_ks": 4}
"""Bytes before the blocks of a row, its scale (ggml.c of ikawrakow/ik_llama.cpp)."""


@lru_cache(maxsize=1)
def iq2_kl_of_kimi_k2() -> tuple[Tensors, ...]:
    """The tensors of Kimi-K2-Instruct-IQ2_KL by the recipe that its author printed (ikawrakow/ik_llama.cpp pull 612,
    comment of 2025-07-15). They sum to the 345.687 GiB that the loader prints there; a test holds them to it."""
    sizes = sizes_of("Kimi-K2-Instruct")
    assert sizes is not None
    size = {group.name: group.parameters or 0 for group in sizes.groups}
    shape = KIMI_K2
    hidden, latent = shape["hidden_size"], shape["kv_lora_rank"]
    each = shape["num_hidden_layers"] * latent * shape["num_attention_heads"]
    keys, values = each * shape["qk_nope_head_dim"], each * shape["v_head_dim"]
    found = [
        Tensors("attn_k_b", TRUNK, keys, latent, "q5_0"),
        Tensors("other attention", TRUNK, size["mla_attention"] - keys, hidden, "iq5_ks"),
        # Keys and values once more, for prefill with -mla 3.
        Tensors("attn_kv_b", TRUNK, keys + values, latent, "q8_0", read=False),
        Tensors("router and norms", TRUNK, size["router"] + size["norms"], hidden, "f32"),
        Tensors("output", TRUNK, size["lm_head"], hidden, "iq6_k"),
        Tensors("token_embd", EMBEDDING, size["embed_tokens"], hidden, "iq4_k"),
    ]
    for name, role, down, others, inner in (
        ("dense_mlp", TRUNK, "iq5_ks", "iq4_ks", "intermediate_size"),
        ("shared_experts", TRUNK, "iq5_ks", "iq4_ks", "moe_intermediate_size"),
        ("routed_experts", ROUTED, "iq3_ks", "iq2_kl", "moe_intermediate_size"),
    ):
        third = size[name] // 3
        found.append(Tensors(f"{name}, down", role, third, shape[inner], down))
        found.append(Tensors(f"{name}, gate and up", role, 2 * third, hidden, others))
    return tuple(found)


def mean_bits(tensors: Iterable[Tensors], role: str) -> float:
    """Bits a parameter of what a decoded token reads of a role, weighted by parameters."""
    read = [one for one in tensors if one.role == role and one.read]
    return 8 * sum(one.bytes for one in read) / sum(one.parameters for one in read)


_LLAMA_MEANS = {"q4_k_m": 4.85, "q4_k_s": 4.58, "q4": 4.85}
"""Mean bits a parameter that llama.cpp's quantize program prints for these types."""
_UD_Q2_K_XL = 2.91
"""Routed experts of UD-Q2_K_XL: 12.79 GB a rank over 6 ranks read for a token, less a trunk at Q8_0
(libxsmm/kimi-k3-in-c): (76.74 - 59.04) GB x 8 / 48.62 G parameters."""


def stored(quant: str, model: str) -> Stored | None:
    """What a published row's quantization stores of its model; None: not known here."""
    plain = quant.lower()
    if plain.startswith("native"):
        return Stored(None, None, "weights as released")
    if plain.startswith("mxfp4 experts + q8_0"):
        return Stored(None, BITS["q8_0"], "experts as released, trunk at Q8_0")
    if plain.startswith("ud-q2_k_xl"):
        words = f"experts at {_UD_Q2_K_XL} bits, trunk at Q8_0: bytes a rank as its authors state"
        return Stored(_UD_Q2_K_XL, BITS["q8_0"], words)
    if plain.startswith("rawint4"):
        return Stored(4.5, 16.0, "experts at 4 bits with a 16-bit scale for each 32, trunk in BF16")
    if plain.startswith("iq2_kl (345.7 gib") and model.lower().startswith("kimi-k2-instruct"):
        tensors = iq2_kl_of_kimi_k2()
        experts, trunk = mean_bits(tensors, ROUTED), mean_bits(tensors, TRUNK)
        words = (
            f"experts at {experts:.3f} bits, trunk at {trunk:.3f}, cache at Q8_0: by the recipe and the command that "
            "the file's author printed"
        )
        return Stored(experts, trunk, words, "q8_0")
    for name, mean in _LLAMA_MEANS.items():
        if plain == name or plain.startswith(f"{name} "):
            return Stored(mean, mean, f"{mean} bits a parameter throughout")
    return None
