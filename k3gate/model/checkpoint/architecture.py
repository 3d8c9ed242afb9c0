"""Which model a checkpoint is: by its tensors and by what it says of itself, and never by a similar name. Pure."""

from __future__ import annotations

from attrs import frozen

from k3gate.documents import printable
from k3gate.model import k3
from k3gate.model.checkpoint.config import Stated
from k3gate.model.checkpoint.content import Content

KIMI_K3 = "kimi-k3"
NOT_IDENTIFIED = "not identified"
_K3_NAMES = frozenset({"kimi_k3", "kimi-k3"})
_GGUF_KEYS = ("attn_res.block_size", "activation.situ_beta", "expert_latent_length")
_OTHER_KEYS = ("attnres.block_size", "situ.beta", "latent_moe.dim")
_OTHER_TENSORS = ("ffn_latent_norm", "attn_res_norm", "attn_res_proj")


@frozen
class Architecture:
    """The model's name in the field's spelling, and in a sentence by what it is told."""

    name: str
    because: str


def identify(stated: Stated | None, content: Content) -> Architecture:
    """K3 only where tensors and self-description agree on it; a relative gets its own name."""
    # A stranger's text: it is shown on terminals and kept as evidence.
    kind = printable((stated.model_type if stated else None) or "")[:100]
    signs = set(content.matrices) | set(stated.extra if stated else ())
    indexer = next(
        (name for name in sorted(signs) if "indexer" in name.lower() or name.startswith("index_")), None
    )
    if _like_k3(content):
        if indexer is not None:
            shown = printable(indexer)[:100]
            return Architecture(
                "kimi-k3.1-pro",
                f"the experts are those of Kimi K3, and its attention has a lightning indexer ({shown})",
            )
        wrong = _unlike_k3(content)
        if wrong:
            return Architecture(NOT_IDENTIFIED, f"like Kimi K3, but {wrong}")
        if kind in _K3_NAMES:
            return Architecture(KIMI_K3, "tensors, layers and experts are those of Kimi K3, and it says so")
        said = f"says it is {kind!r}" if kind else f"does not say what it is: {_unsaid(stated)}"
        return Architecture(NOT_IDENTIFIED, f"the tensors are those of Kimi K3, and the checkpoint {said}")
    if kind in _K3_NAMES:
        return Architecture(
            NOT_IDENTIFIED, f"it says {kind!r}, and {_unlike_k3(content) or 'its tensors are others'}"
        )
    if kind in ("deepseek_v3", "kimi_k2", "deepseek2"):
        if content.experts == 384:
            return Architecture("kimi-k2", f"{kind} with 384 experts")
        if content.experts == 256:
            return Architecture("deepseek-v3", f"{kind} with 256 experts")
        if content.experts in (64, 160) and kind == "deepseek2":
            return Architecture("deepseek-v2", f"{kind} with {content.experts} experts")
    if not kind:
        return Architecture(NOT_IDENTIFIED, f"the checkpoint does not say what it is: {_unsaid(stated)}")
    return Architecture(kind.replace("_", "-"), f"it says {kind!r}")


def _unsaid(stated: Stated | None) -> str:
    """Where a model's name is looked for."""
    if stated is None:
        return "there is no config.json that can be read"
    key = "model_type" if stated.source == "config.json" else "general.architecture"
    return f"{key} is absent, or no text"


def _like_k3(content: Content) -> bool:
    """Whether the routed experts are those of K3, which its successors share."""
    return content.experts == k3.EXPERTS and content.expert_parameters == k3.EXPERT_PARAMETERS


def _unlike_k3(content: Content) -> str | None:
    """What differs from K3, in words."""
    kinds = [layer.attention for layer in content.layers]
    moe = sum(layer.experts > 0 for layer in content.layers)
    for found, wanted, what in (
        (content.experts, k3.EXPERTS, "experts in a layer"),
        (content.expert_parameters, k3.EXPERT_PARAMETERS, "parameters in an expert"),
        (len(content.layers), k3.LAYERS, "layers"),
        (moe, k3.MOE_LAYERS, "layers with experts"),
        (kinds.count("kda"), k3.KDA_LAYERS, "KDA layers"),
        (kinds.count("mla"), k3.MLA_LAYERS, "MLA layers"),
    ):
        if found != wanted:
            uneven = "an uneven number of" if any(layer.experts for layer in content.layers) else "no"
            return f"it has {found if found is not None else uneven} {what}, and Kimi K3 {wanted:,}"
    return None


def dialect(stated: Stated, content: Content) -> str | None:
    """How a GGUF file of K3 is written otherwise than llama.cpp's main branch reads it; None where it is not."""
    keys = [key for key in _OTHER_KEYS if any(name.endswith(f".{key}") for name in stated.extra)]
    tensors = [name for name in _OTHER_TENSORS if name in content.matrices]
    lacking = [key for key in _GGUF_KEYS if f"{KIMI_K3}.{key}" not in stated.extra]
    if keys or tensors:
        return f"the dialect of another converter ({', '.join((*keys, *tensors))})"
    if lacking:
        return f"without the keys {', '.join(lacking)}"
    return None
