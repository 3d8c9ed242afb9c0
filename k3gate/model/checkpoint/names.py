"""What a tensor is, by its name: which part of the model, layer, expert, and whether it holds codes or scales. Pure.

Two conventions are read: Hugging Face names ("model.layers.3.mlp.experts.7.w1.weight_packed", with any prefix) and
GGUF names ("blk.3.ffn_up_exps.weight"). A name that fits neither is "other", never guessed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

WEIGHT, CODES, SCALES, SHAPE = "weight", "codes", "scales", "shape"
"""What a tensor holds: plain numbers, packed codes, the scales or offsets of codes, or the shape of a packed one."""

ATTENTION = "attention"
EXPERTS = "routed_experts"


class Place(NamedTuple):
    """What the name says within its layer, or of the whole where it is in none.

    `part` is a group of the model; `matrix` tells one weight of it from the others; `expert` None: not of one
    expert, or of all at once (`fused`). `ending`: how many characters tell codes and scales of one matrix apart.
    """

    part: str
    expert: int | None = None
    matrix: str = ""
    holds: str = WEIGHT
    fused: bool = False
    ending: int = 0

    @property
    def group(self) -> str:
        """The group that a report shows: codes and scales of experts are groups of their own."""
        apart = self.part == EXPERTS and self.holds in (CODES, SCALES)
        return f"{self.part}_{self.holds}" if apart else self.part


_VISION = ("vision_tower.", "vision_model.", "visual.", "v.")
_PROJECTOR = ("mm_projector.", "multi_modal_projector.", "mm.")
_EXPERT = re.compile(r"(?:\w+\.){0,3}experts\.(\d{1,6})\.(\w+)(?:\.([\w.]+))?", re.ASCII)
_FUSED = re.compile(
    r"(?:\w+\.){0,3}experts\.(\w+?)((?:_blocks|_scales?(?:_inv)?|_packed|_bias)?)(\.weight|\.bias)?", re.ASCII
)
_SUFFIXES = (
    (
        re.compile(
            r"(?:[._](?:weight_|input_|output_)?(?:scale|scales|scale_inv|scale_2|global_scale|zero_point|zeros)|\.qzeros|\.g_idx)$"
        ),
        SCALES,
    ),
    (re.compile(r"(?:weight_packed|_blocks|\.qweight)$"), CODES),
    (re.compile(r"weight_shape$"), SHAPE),
)
_ENDING = re.compile(
    r"[._](?:weight_packed|weight_scale(?:_inv|_2)?|weight_global_scale|weight_zero_point|weight_shape|input_scale|"
    r"qweight|qzeros|scales|g_idx|blocks|weight)$|\.bias$"
)

_PARTS = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        (
            r"(?:.*\.)?shared_experts?\..*|ffn_(?:gate|up|down)_shexp\..*|ffn_gate_inp_shexp\..*",
            "shared_experts",
        ),
        (
            r"(?:.*\.)?routed_expert_(?:down_proj|up_proj|norm)\..*|ffn_routed_(?:down|up|norm)\..*|ffn_latent_\w+\..*",
            "latent_projections",
        ),
        (
            r"(?:.*\.)?(?:block_sparse_moe|mlp|moe|feed_forward|ffn)\.(?:gate|router)\.(?:weight|bias|e_score_correction_bias).*"
            r"|ffn_gate_inp\..*|exp_probs_b\..*|exp_probs_b",
            "router",
        ),
        (r".*(?:layernorm|_norm|norm\d?|_res_proj|res_score)\.?(?:weight|bias)?", "norms"),
        (r"(?:self_attn|attention|attn|linear_attn)\..*|attn_\w+\..*|ssm_\w+(?:\..*)?", ATTENTION),
        (r"(?:.*\.)?(?:mlp|feed_forward|ffn)\.(?:\w+)\..*|ffn_(?:gate|up|down)\..*", "dense_mlp"),
    )
)
_FUSED_GGUF = re.compile(r"ffn_(?:gate|up|down|gate_up)_exps\..*")
_NORM_OF_ATTENTION = re.compile(
    r"(?:self_attn|attention|attn|linear_attn)\..*|attn_(?:q_a|kv_a|q|k|output)_norm\..*|ssm_\w+(?:\..*)?"
)
_GLOBAL = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        (r"(?:.*\.)?(?:embed_tokens|embed|tok_embeddings|token_embd)\.weight.*", "embed_tokens"),
        (r"(?:.*\.)?(?:lm_head|head|output)\.weight.*", "lm_head"),
        (
            r"(?:.*\.)?(?:norm|output_norm|final_norm|output_attn_res_(?:norm|proj)|output_res_(?:norm|score|proj))(?:\.weight)?",
            "norms",
        ),
    )
)


def read(name: str) -> tuple[int | None, Place]:
    """The layer that the name gives, from 0 as it does, and the place in it."""
    if name.startswith(_VISION):
        return None, Place("vision_tower", matrix=name)
    if name.startswith(_PROJECTOR):
        return None, Place("mm_projector", matrix=name)
    start = name.find("layers.") + 7
    if start == 6:
        start = 4 if name.startswith("blk.") else 0
    end = name.find(".", start)
    number = name[start:end]
    if start and number.isdecimal() and number.isascii() and len(number) < 6:
        return int(number), _in_layer(name[end + 1 :])
    return None, _outside(name)


def owner(name: str, place: Place) -> str:
    """The name of the matrix that codes, scales and shape belong to."""
    return name[: len(name) - place.ending] if place.ending else name


# Every layer has the same names: of half a million only some thousand differ.
@lru_cache(maxsize=2**16)
def _in_layer(rest: str) -> Place:
    expert = _EXPERT.fullmatch(rest)
    if expert is not None:
        number, matrix, ending = expert.groups()
        return Place(
            EXPERTS, int(number), matrix, _held(ending or ""), ending=len(ending) + 1 if ending else 0
        )
    fused = _FUSED.fullmatch(rest)
    if fused is not None:
        matrix, ending, suffix = fused.groups()
        held = _held(ending or suffix or "")
        return Place(EXPERTS, None, matrix, held, fused=True, ending=len(ending or "") + len(suffix or ""))
    if _FUSED_GGUF.fullmatch(rest):
        return _place(EXPERTS, rest)._replace(fused=True)
    if _NORM_OF_ATTENTION.fullmatch(rest):
        return _place(ATTENTION, rest)
    return next(
        (_place(part, rest) for pattern, part in _PARTS if pattern.fullmatch(rest)), _place("other", rest)
    )


def _outside(name: str) -> Place:
    return next(
        (_place(part, name) for pattern, part in _GLOBAL if pattern.fullmatch(name)), _place("other", name)
    )


def _place(part: str, name: str) -> Place:
    holds = next((holds for pattern, holds in _SUFFIXES if pattern.search(name)), WEIGHT)
    matrix = _ENDING.sub("", name)
    return Place(part, None, matrix, holds, ending=len(name) - len(matrix))


def _held(ending: str) -> str:
    if ending in ("weight_packed", "qweight", "_blocks", "_packed"):
        return CODES
    if ending == "weight_shape":
        return SHAPE
    return SCALES if "scale" in ending or ending in ("qzeros", "g_idx", "weight_zero_point") else WEIGHT
