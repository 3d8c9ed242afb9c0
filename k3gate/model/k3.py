"""Kimi K3 in numbers: what is to run, to the byte. All sizes in bytes, all counts exact.

Sources, by the letters used below:
  [C] the released `config.json` of moonshotai/Kimi-K3 (copy in PipeNetwork/kimi-k3-mlx, reference/)
  [I] the released `model.safetensors.index.json`, total_size 1,560,860,324,864 over 497,220 tensors
  [D] derived here from [C] and [I]; a test checks that the sums agree with the index to the byte
The tech report (arXiv:2607.24653, table 1) gives 2.78T total and 104.2B active, which [D] reproduces.
"50B active", found in a file type label and in older posts, counts the routed experts alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# --- shape [C] -------------------------------------------------------------------------------------------

LAYERS = 93
DENSE_LAYERS = 1
MOE_LAYERS = 92
KDA_LAYERS = 69
MLA_LAYERS = 24
EXPERTS = 896
EXPERTS_PER_TOKEN = 16
HIDDEN = 7168
VOCABULARY = 163_840
EXPERT_WIDTH = 3584
"""Width at which routed experts work: half the hidden size, a trap for naive counts."""
EXPERT_INTERMEDIATE = 3072
HEADS = 96
HEAD_DIM = 128
KV_LORA_RANK = 512
ROPE_DIM = 64
CONVOLUTION_WIDTH = 4
MXFP4_BLOCK = 32
MAX_CONTEXT = 1_048_576
RELEASED_FORMATS = ("mxfp4", "bf16")
"""Of routed experts, and of all else."""

# --- routed experts --------------------------------------------------------------------------------------

EXPERT_PARAMETERS = 3 * EXPERT_INTERMEDIATE * EXPERT_WIDTH
"""33,030,144: gate, up and down matrices of one expert of one layer [D]."""
EXPERT_BYTES = EXPERT_PARAMETERS // 2 + EXPERT_PARAMETERS // MXFP4_BLOCK
"""17,547,264: 4-bit codes and one scale byte per block of 32 [D, I]."""
EXPERT_TENSORS = 3 * (
    EXPERT_INTERMEDIATE * EXPERT_WIDTH // 2,
    EXPERT_INTERMEDIATE * EXPERT_WIDTH // MXFP4_BLOCK,
)
"""5,505,024 bytes of codes and 344,064 of scales, of gate, up and down in turn: they lie together [I]."""
ROUTED_BYTES = MOE_LAYERS * EXPERTS * EXPERT_BYTES
"""1,446,456,066,048: all routed experts, as in the checkpoint and bit for bit as GGML MXFP4 [D, I]."""

# --- the checkpoint by group [I, D] ----------------------------------------------------------------------

BYTES_BY_GROUP: Mapping[str, int] = MappingProxyType(
    {
        "routed_experts_codes": 1_361_370_415_104,
        "routed_experts_scales": 85_085_650_944,
        "kda_attention": 61_258_257_408,
        "shared_experts": 24_310_185_984,
        "mla_attention": 11_145_412_608,
        "latent_projections": 9_454_620_672,
        "lm_head": 2_348_810_240,
        "embed_tokens": 2_348_810_240,
        "dense_mlp": 1_453_326_336,
        "router": 1_182_074_880,
        "vision_tower": 802_428_928,
        "mm_projector": 92_289_024,
        "norms": 8_042_496,
    }
)
PARAMETERS_BY_GROUP: Mapping[str, int] = MappingProxyType(
    {
        "routed_experts": 2_722_740_830_208,
        "kda_attention": 30_618_088_704,
        "shared_experts": 12_155_092_992,
        "mla_attention": 5_572_706_304,
        "latent_projections": 4_727_310_336,
        "lm_head": 1_174_405_120,
        "embed_tokens": 1_174_405_120,
        "dense_mlp": 726_663_168,
        "router": 590_955_008,
        "vision_tower": 401_214_464,
        "mm_projector": 46_144_512,
        "norms": 4_021_248,
    }
)
"""Parameters by group; scales are none [D]."""
CHECKPOINT_BYTES = 1_560_860_324_864
"""Bytes of all tensors, metadata.total_size [I]."""
CHECKPOINT_TENSORS = 497_220

VISION_BYTES = BYTES_BY_GROUP["vision_tower"] + BYTES_BY_GROUP["mm_projector"]
EMBEDDING_BYTES = BYTES_BY_GROUP["embed_tokens"]
TRUNK_BYTES = CHECKPOINT_BYTES - ROUTED_BYTES - VISION_BYTES
"""The text trunk, all that is neither a routed expert nor vision, in BF16 and F32 as released [D]."""
TRUNK_READ_BYTES = TRUNK_BYTES - EMBEDDING_BYTES
"""The part of the trunk that every decoded token reads whole; of the embedding table it reads one row [D]."""

# --- parameters [D] --------------------------------------------------------------------------------------

TOTAL_PARAMETERS = 2_779_931_837_184
TRUNK_PARAMETERS = 56_743_648_000
"""Text trunk with the embedding table."""
EMBEDDING_PARAMETERS = 163_840 * HIDDEN
ACTIVE_PARAMETERS = 104_189_614_848
"""Active per token, without the embedding table; the tech report says 104.2B."""
ROUTED_ACTIVE_PARAMETERS = MOE_LAYERS * EXPERTS_PER_TOKEN * EXPERT_PARAMETERS

# --- trunk at Q8_0 [D] -----------------------------------------------------------------------------------

TRUNK_Q8_0_BYTES = TRUNK_PARAMETERS * 17 // 16
"""All trunk parameters at 8.5 bits (32 codes and an FP16 scale in 34 bytes)."""
TRUNK_Q8_0_READ_BYTES = (TRUNK_PARAMETERS - EMBEDDING_PARAMETERS) * 17 // 16

# --- cache and state [D] ---------------------------------------------------------------------------------

KV_BYTES_PER_TOKEN = MLA_LAYERS * (KV_LORA_RANK + ROPE_DIM) * 2
"""27,648: absorbed MLA in BF16. An engine that stores keys and values per head needs far more."""
STATE_BYTES = KDA_LAYERS * HEADS * HEAD_DIM * HEAD_DIM * 4
"""434,110,464: the recurrent state of one sequence in F32, read and written for every token."""
CONVOLUTION_BYTES = KDA_LAYERS * 3 * HEADS * HEAD_DIM * (CONVOLUTION_WIDTH - 1) * 4
"""30,523,392: the last three inputs of the short convolutions of one sequence, in F32."""
