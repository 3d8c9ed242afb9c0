"""What a plan says of the shipped systems, each figure recomputed here by hand from the released model's numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k3gate.analysis import plan_text
from k3gate.analysis.planning import document
from k3gate.model import k3, traffic

GIB = 2**30
ROUTED_TOKEN = 92 * 16 * 17_547_264  # 25.83 GB
TRUNK = 111_160_730_624  # all BF16 and F32 that a token reads whole
TRUNK_Q8 = (56_743_648_000 - 1_174_405_120) * 34 // 32  # 59.04 GB
STATE = 434_110_464 + 30_523_392


def judged(plan: Any, name: str) -> Any:
    return next(one for one in plan.claims if one.claim.name == name)


def said(plan: Any, name: str) -> str:
    return "\n".join(judged(plan, name).reasons)


def test_what_a_token_reads_is_that_of_the_traffic_model() -> None:
    assert ROUTED_TOKEN + TRUNK == 136_990_303_232 == traffic.weights_per_token("bf16")
    assert TRUNK_Q8 == k3.TRUNK_Q8_0_READ_BYTES == 59_042_320_560


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(
    ("trunk", "precision", "key"),
    [("dram", '"native"', "bf16"), ("dram", '"q8_0"', "q8_0"), ("gpu", '"native"', "gpu")],
)
def test_bytes_of_dram_agree_with_what_the_gate_asks_of_it(
    plan: Any, trunk: str, precision: str, key: str, batch: int
) -> None:
    made = plan(
        f"""name = "x"
[memory]
modules = 24
module_gib = 128
[[gpu]]
model = "g"
count = 8
memory_gb = 96
[placement]
trunk = "{trunk}"
[precision]
trunk = {precision}""",
        context=32768,
        batch=batch,
        sequences=batch,
    )
    step = made.estimate.decode
    assert step.bytes_of("dram") == pytest.approx(traffic.bytes_per_token(key, 32768, batch), rel=1e-9)
    least = sum(part.least for part in step.parts if part.tier == "dram")
    assert least == traffic.bytes_per_token(key, 32768, batch, alike=True)


# --- the recycled SP3 machine ---


def test_sp3_holds_the_model_and_not_1400_gb(example: Any) -> None:
    made = example("sp3-24x64")
    assert judged(made, "weights").verdict == "false_assumption"
    assert "1,560,860,324,864 bytes = 1,453.7 GiB" in said(made, "weights")
    assert judged(made, "headroom").verdict == "false_assumption"
    left = 24 * 64 * GIB - 1_560_860_324_864
    assert f"{left / GIB:.1f} GiB" == "82.3 GiB"
    assert (
        "1,453.7 GiB of weights as released: 82.3 GiB (88.4 GB) remain before the operating system"
        in said(made, "headroom")
    )


def test_sp3_reads_25_gb_only_while_the_gpus_hold_the_whole_trunk(example: Any) -> None:
    made = example("sp3-24x64")
    assert judged(made, "read_per_token").verdict == judged(made, "decode").verdict == "false_assumption"
    text = said(made, "decode")
    cards = 2 * 32 * GIB
    assert cards < TRUNK and "111.2 GB do not fit in 68.7 GB" in text
    left = cards - TRUNK_Q8 - STATE
    assert f"{left / 1e9:.1f}" == "9.2"
    cache = 27_648 * 1_048_576
    assert f"{cache / 1e9:.1f}" == "29.0" and cache > left
    assert (
        "leave 9.2 GB of 68.7 GB, and the KV cache of 1,048,576 tokens, 29.0 GB, does not fit there" in text
    )
    for read, shown, most in ((ROUTED_TOKEN + TRUNK_Q8, "84.87", 4.0), (ROUTED_TOKEN + TRUNK, "136.99", 2.5)):
        assert round(340e9 / read, 1) == most
        assert (
            f"{shown} GB of weights are read from DRAM for a token, and 340 GB/s gives at most {most}" in text
        )


def test_sp3_claims_of_memory_rate_context_and_prefill(example: Any) -> None:
    made = example("sp3-24x64")
    assert 16 * 3200e6 * 8 == 409.6e9
    assert judged(made, "bandwidth").verdict == "consistent"
    assert "73% to 83% of the paper rate, 409.6 GB/s (16 channels x 3,200 MT/s x 8 B)" in said(
        made, "bandwidth"
    )
    assert judged(made, "free_vram").verdict == "above_ceiling"
    assert "leave 9.7 GB" in said(made, "free_vram") and "34.7 GB of the trunk" in said(made, "free_vram")
    assert judged(made, "context").verdict == "above_ceiling"
    assert judged(made, "price").verdict == "untestable"
    assert judged(made, "prefill").verdict == "untestable"
    seconds = k3.ROUTED_BYTES / (2 * 15.75e9)
    assert f"{4096 / seconds:.1f} where tokens choose uniformly (4,096 tokens / (1,446.5 GB of" in said(
        made, "prefill"
    )
    assert "800 tokens/s are more than the 308 of uniform choice" in said(made, "prefill")
    assert f"need a pass of {800 * seconds:,.0f} tokens" in said(made, "prefill")


def test_sp3_with_twelve_modules_has_twelve_channels(example: Any) -> None:
    made = example("sp3-12x128")
    assert 12 * 3200e6 * 8 == 307.2e9
    assert judged(made, "bandwidth").verdict == "consistent", "300 of 300 to 340 GB/s"
    assert (
        "98% to 111% of the paper rate, 307.2 GB/s (12 channels x 3,200 MT/s x 8 B); 340 is above it"
        in said(made, "bandwidth")
    )
    fill = next(change for change in made.changes if change.key == "fill_channels")
    assert fill.title.startswith("fill the channels: 4 more modules, 16 in all")
    assert fill.after.decode.rate("dram").bytes_per_s == 409.6e9


# --- the CPU-first nodes ---


@pytest.mark.parametrize(("name", "mts"), [("xeon6-24x128", 6400), ("epyc9005-24x128", 6000)])
def test_cpu_first_nodes_cannot_decode_as_the_article_says(example: Any, name: str, mts: int) -> None:
    made = example(name)
    assert judged(made, "decode").verdict == "false_assumption"
    text = said(made, "decode")
    assert round(600 / (50 * 4.25 / 8), 1) == 22.6
    assert "600 GB/s / (50 B x 4.25 bits / 8 = 26.6 GB) = 22.6 tokens/s" in text
    assert round(600e9 / 136_990_303_232, 1) == 4.4
    assert "600 GB/s / 136.99 GB of weights = 4.4 tokens/s at most" in text
    assert "104.2 (48.6 routed and 55.6 of the trunk); 50 B are about the routed experts alone" in text
    read = 136_990_303_232 + 2 * 434_110_464 + 27_648 * 8192
    assert made.estimate.decode.ceiling == pytest.approx(24 * mts * 8e6 / read)
    assert made.estimate.layout.fits is True


def test_half_of_the_channels_are_half_of_the_bandwidth(example: Any) -> None:
    half, full = example("xeon6-12x256"), example("xeon6-24x128")
    assert half.estimate.decode.ceiling == pytest.approx(full.estimate.decode.ceiling / 2)
    assert half.estimate.layout.tier("dram").capacity == full.estimate.layout.tier("dram").capacity
    assert judged(half, "bandwidth").verdict == "false_assumption"
    assert "premise 24 memory channels: 12 hold a module (12 modules)" in said(half, "bandwidth")
    fill = next(change for change in half.changes if change.key == "fill_channels")
    assert fill.after.decode.ceiling == pytest.approx(full.estimate.decode.ceiling)


# --- with GPUs ---


@pytest.mark.parametrize("count", [4, 8])
def test_hybrids_read_only_the_routed_experts_from_dram(example: Any, count: int) -> None:
    made = example(f"hybrid-{count}x96", context=32768, sequences=4)
    step = made.estimate.decode
    assert step.bytes_of("dram") == ROUTED_TOKEN
    on_gpu = TRUNK + 2 * 434_110_464 + 27_648 * 32768
    assert step.bytes_of("gpu") == on_gpu
    seconds = ROUTED_TOKEN / (24 * 6000 * 8e6) + on_gpu / (count * 1792e9) + 92 * 2 * 7168 / (count * 63e9)
    assert step.ceiling == pytest.approx(1 / seconds)
    assert step.bytes_of("pcie") == 92 * 2 * 3584 * 2
    assert step.round_trips == {"pcie": 92}
    low, high = made.estimate.expected.low, made.estimate.expected.high
    assert 0 < low < high < step.ceiling
    assert made.limiting == ("dram",)
    assert made.cost.per_million[0] < made.cost.per_million[1]


def test_eight_h200_are_too_small_for_all_of_it(example: Any) -> None:
    made = example("h200-8")
    assert 8 * 141e9 < 1_560_860_324_864
    assert judged(made, "in_one_chassis").verdict == "above_ceiling"
    assert made.estimate.layout.fits is True, "with the experts in DRAM"


def test_eight_b300_are_one_chassis_that_holds_all(example: Any) -> None:
    made = example("b300-8")
    assert 8 * 288e9 > 1_560_860_324_864
    assert judged(made, "chassis").verdict == "false_assumption"
    assert "1 chassis holds all" in said(made, "chassis")
    assert made.estimate.decode.bytes_of("pcie") == 0 and not made.estimate.decode.round_trips


def test_sixty_four_accelerators_are_not_needed_to_hold_it(example: Any) -> None:
    made = example("cluster-64")
    assert judged(made, "accelerators").verdict == "false_assumption"
    assert "= 12 hold all of it" in said(made, "accelerators")
    assert judged(made, "cache_tens").verdict == "consistent"
    assert judged(made, "cache").verdict == "false_assumption"
    assert "27,648 B a token x 1,048,576 tokens, the longest context = 29.0 GB" in said(made, "cache")
    assert made.estimate.expected.low is None
    assert "186 round trips" in made.limit_words and made.limit_words.startswith("Not known")


# --- what does not fit, and slow tiers ---


def test_what_does_not_fit_is_said_first(example: Any) -> None:
    made = example("xeon8368-two-servers")
    assert made.estimate.layout.fits is False
    assert made.limiting == ("capacity",)
    first = plan_text.text(made).splitlines()[2]
    assert first.startswith("[short] DRAM is 4")
    need = 1_560_860_324_864 - 894_717_952 + 27_648 * 8192 + STATE + 2 * 16 * GIB
    assert made.estimate.layout.tier("dram").need == need
    assert f"{(need - 1024 * GIB) / 1e9:,.1f} GB short" in first
    assert judged(made, "servers").verdict == "above_ceiling"
    assert "3 chassis hold all" in said(made, "servers")


def test_persistent_memory_is_a_tier_of_its_own(example: Any) -> None:
    made = example("xeon-pmem200")
    experts = 92 * 16 * 33_030_144 * 3 / 8
    rest = TRUNK_Q8 + 2 * 434_110_464 + 27_648 * 8192
    assert made.estimate.decode.bytes_of("pmem") == pytest.approx(experts)
    assert made.estimate.decode.without_hits == pytest.approx(1 / (experts / 64.8e9 + rest / 204.8e9))
    assert made.estimate.decode.ceiling == pytest.approx(204.8e9 / (experts + rest)), (
        "kept in 196 GB of free DRAM"
    )
    one = 1 / (experts / 3 / 64.8e9 + rest / 204.8e9)
    assert judged(made, "three_bits").verdict == judged(made, "one_bit").verdict == "consistent"
    assert f"{0.85 / one:.0%} of it" in said(made, "one_bit")
    assert f"{0.75 / made.estimate.decode.without_hits:.0%} of it without a hit" in said(made, "three_bits")


def test_drives_are_a_tier_that_bounds_decode(example: Any) -> None:
    made = example("expert-offload-node")
    assert made.estimate.decode.bytes_of("nvme") == ROUTED_TOKEN
    assert made.estimate.decode.without_hits < 28e9 / ROUTED_TOKEN
    assert made.limiting[0] == "nvme" and "Transfer-bound" in made.limit_words
    assert made.load.seconds is None and "experts stay on the drives" in made.load.detail
    assert judged(made, "one_node").verdict == "consistent"


# --- words and documents ---

NAMES = (
    *(
        "b300-8",
        "cluster-64",
        "epyc9005-24x128",
        "expert-offload-node",
        "h200-8",
        "hybrid-4x96",
        "hybrid-8x96",
    ),
    *("residency-lab", "sp3-12x128", "sp3-24x64", "xeon-pmem200", "xeon6-12x256", "xeon6-24x128"),
    "xeon8368-two-servers",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_planned_and_has_intervals_below_its_ceiling(example: Any, name: str) -> None:
    made = example(name)
    told = json.loads(json.dumps(document(made)))
    assert {"residency", "decode", "limiting_tier", "claims", "cost"} <= told.keys()
    expected, ceiling = told["decode"]["expected_tokens_per_s"], told["decode"]["ceiling_tokens_per_s"]
    assert ceiling > 0
    if expected is not None:
        assert 0 < expected[0] < expected[1] <= ceiling
    for claim in told["claims"]:
        assert claim["verdict"] in ("consistent", "above_ceiling", "false_assumption", "untestable")
        assert claim["reasons"]
    text = plan_text.text(made)
    assert "None" not in text and "nan" not in text
    assert "prototype: nothing here shows" in text


def test_all_examples_are_listed() -> None:
    from tests.analysis.conftest import SYSTEMS

    assert {path.stem for path in SYSTEMS.glob("*.toml")} == set(NAMES)


def test_a_hot_set_without_a_curve_covers_an_unknown_share(plan: Any) -> None:
    base = """name = "x"
[cpu]
sockets = 1
[memory]
modules = 12
module_gib = 192
mts = 6000
channels = 12
[[gpu]]
model = "g"
count = 8
memory_gb = 96
gb_per_s = 1792
[placement]
trunk = "gpu"
[hot_experts]
per_layer = 100
"""
    unknown = plan(base).estimate
    cold = plan(base.replace("[hot_experts]\nper_layer = 100\n", "")).estimate
    assert unknown.expected.low == pytest.approx(cold.expected.low), "no hit is promised"
    assert unknown.expected.high > cold.expected.high, "and none is excluded"
    known = plan(base + "curve = [[50, 0.2], [150, 0.4]]").estimate
    assert known.decode.bytes_of("dram") == pytest.approx(0.7 * ROUTED_TOKEN), "half-way between 0.2 and 0.4"
    assert known.layout.tier("gpu").need - cold.layout.tier("gpu").need == 100 * 92 * 17_547_264
    beyond = plan(base + "curve = [[50, 0.2]]").estimate
    assert beyond.expected.low == pytest.approx(cold.expected.low), "beyond the curve's end nothing is known"


def test_a_measured_rate_replaces_paper_and_narrows_nothing_else(example: Any) -> None:
    paper = example("xeon6-24x128").estimate
    measured = example("xeon6-24x128", read={"dram": (900e9, "run abc")})
    assert measured.estimate.decode.ceiling == pytest.approx(paper.decode.ceiling * 900 / 1228.8)
    ratio = 900 / (0.8 * 1228.8)
    assert measured.estimate.expected.high == pytest.approx(paper.expected.high * ratio)
    assert "measured rates" in measured.estimate.expected.basis


def test_replicas_for_each_node_are_counted(plan: Any) -> None:
    made = plan(
        """name = "x"
[cpu]
sockets = 2
numa_nodes = 2
[memory]
modules = 32
module_gib = 128
[runtime]
replicate_per_node = true"""
    )
    item = made.estimate.layout.tier("dram").items[0]
    assert item.bytes == 4 * k3.ROUTED_BYTES and "4 copies" in item.detail
    assert made.estimate.layout.fits is False


def test_what_is_not_stated_is_unknown_and_never_zero(plan: Any) -> None:
    made = plan('name = "x"\n[memory]\nmodules = 24\nmodule_gib = 128')
    told = document(made)
    assert told["decode"]["ceiling_tokens_per_s"] is None
    assert told["decode"]["expected_tokens_per_s"] is None
    assert told["limiting_tier"] is None
    assert told["prefill"]["ceiling_tokens_per_s"] is None
    assert told["load"]["seconds"] is told["fetch"]["seconds"] is told["power"]["total"] is None
    assert told["cost"]["usd_per_year"] is None
    assert "Not known" in told["limit"]
    assert told["residency"]["fits"] is True


GROUPS = """name = "x"
[cpu]
sockets = 1
[memory]
modules = 12
module_gib = 192
mts = 6000
channels = 12
[[gpu]]
model = "g"
count = 8
memory_gb = 96
gb_per_s = 1792
[placement]
trunk = "gpu"
[placement.groups]
shared_experts = "dram"
"""


def test_a_single_tensor_group_can_lie_elsewhere(plan: Any) -> None:
    made = plan(GROUPS).estimate
    shared = 24_310_185_984
    assert made.decode.bytes_of("dram") == ROUTED_TOKEN + shared
    assert made.decode.bytes_of("gpu") == TRUNK - shared + 2 * 434_110_464 + 27_648 * 8192
    held = {item.what: item.bytes for item in made.layout.tier("dram").items}
    assert held["shared experts"] == shared
    assert sum(tier.weights() for tier in made.layout.tiers) == 1_560_860_324_864 - 894_717_952


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GROUPS.replace("shared_experts", "shared_expert"), "did you mean 'shared_experts'?"),
        (
            GROUPS.replace('"dram"', '"cxl"'),
            "shared_experts is to lie in CXL memory, and the file names none",
        ),
        (GROUPS + "[hot_experts]\nper_layer = 1000", "per_layer 1000 is above 896"),
        (
            GROUPS.replace(
                "[placement.groups]", 'experts = "gpu"\n[hot_experts]\nper_layer = 3\n[placement.groups]'
            ),
            "already",
        ),
        ('name = "x"\n[memory]\nmodules = 1\nmodule_gib = 1\n[hot_experts]\nper_layer = 3', "names no GPU"),
    ],
)
def test_placements_that_cannot_be_are_refused(plan: Any, text: str, told: str) -> None:
    from k3gate.errors import UsageError

    with pytest.raises(UsageError) as error:
        plan(text)
    assert told in str(error.value)


def test_a_curve_alone_says_what_a_hot_set_would_bring(plan: Any) -> None:
    made = plan(GROUPS + "[hot_experts]\ncurve = [[100, 0.3], [896, 1.0]]")
    change = next(one for one in made.changes if one.key == "hot_experts")
    number = change.after.system.hot.experts
    share = 0.3 + 0.7 * (number - 100) / 796
    assert f"the curve gives {share:.1%} of the reads" in change.note
    assert change.after.decode.bytes_of("dram") == pytest.approx((1 - share) * ROUTED_TOKEN + 24_310_185_984)
    assert change.after.expected.low > made.estimate.expected.low


def test_how_the_memory_is_populated_is_told(example: Any) -> None:
    notes = " ".join(example("sp3-24x64").notes)
    assert "8 of 16 channels hold 2 modules and the others 1" in notes
    assert "4 of 16 memory channels are empty" in " ".join(example("sp3-12x128").notes)
    assert not any("channels" in note for note in example("xeon6-24x128").notes)


def test_a_dense_model_is_all_trunk(plan: Any) -> None:
    from k3gate.model.shapes import of_config

    dense = of_config(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
        },
        "config.json",
    )
    assert dense.parameters == pytest.approx(8.03e9, rel=1e-3)
    made = plan(
        'name = "x"\n[cpu]\nsockets = 1\n[memory]\nmodules = 8\nmodule_gib = 16\nmts = 4800\nchannels = 8',
        dense,
    )
    read = 2 * (dense.parameters - 128256 * 4096) + 8192 * 32 * 2 * 8 * 128 * 2
    assert made.estimate.decode.ceiling == pytest.approx(8 * 4800e6 * 8 / read)
    assert "does not fit" not in plan_text.text(made)


def test_sequences_together_are_expected_by_uniform_choice_and_bounded_by_equal_choice(example: Any) -> None:
    made = example("hybrid-8x96", context=131_072, sequences=16, batch=16, decode_tokens_per_s=20.0)
    distinct = 896 * (1 - (1 - 16 / 896) ** 16)
    assert made.estimate.decode.bytes_of("dram") == pytest.approx(ROUTED_TOKEN * distinct / 16)
    on_gpu = TRUNK + 16 * (2 * 434_110_464 + 27_648 * 131_072)
    most = ROUTED_TOKEN / 1152e9 + on_gpu / (8 * 1792e9) + 16 * 92 * 2 * 7168 / (8 * 63e9)
    assert made.estimate.decode.ceiling == pytest.approx(1 / most)
    dram = ROUTED_TOKEN * distinct / 16 / (0.8 * 0.725 * 1152e9)
    rest = on_gpu / (0.8 * 8 * 1792e9) + 16 * 92 * 2 * 7168 / (8 * 63e9)
    assert made.estimate.expected.low == pytest.approx(1 / (dram / 0.25 + rest))
    assert made.estimate.expected.high == pytest.approx(1 / (dram / 0.70 + rest))
    assert made.undecided == ("decode of 20 tokens/s is not expected: 0.46 to 1.3 are",)
    assert "not tested on 16 sequences at once" in made.estimate.expected.basis


def test_a_model_of_no_parameters_has_no_prefill(plan: Any) -> None:
    made = plan(
        """name = "x"
[cpu]
sockets = 1
cores = 64
ghz = 2.5
isa = "amx"
[memory]
modules = 12
module_gib = 192
mts = 6000
channels = 12
[[gpu]]
model = "g"
memory_gb = 96
tflops = 100
pcie_gb_per_s = 60
[model.stated]
name = "tiny"
source = "nobody"
layers = 2
experts = 8
experts_per_token = 2
[[model.stated.group]]
name = "experts"
role = "routed"
gb = 1
parameters_billion = 1e-12
"""
    )
    assert [path.ceiling for path in made.estimate.prefill.paths] == [None, None]
    assert {path.arithmetic for path in made.estimate.prefill.paths} == {"the parameters are not known"}


def test_two_ways_of_prefill_read_the_experts_from_the_same_memory(example: Any) -> None:
    found = example("h200-8").estimate.prefill
    cpu, gpu = (path.uniform for path in found.paths)
    once = k3.ROUTED_BYTES * (1 - (1 - 16 / 896) ** 4096)
    shared = 4096 * 563.2e9 / once
    assert cpu + gpu > shared == pytest.approx(found.uniform)
    assert (
        f"{shared:,.0f}" == "1,595" and "the experts: 4,096 tokens / (1,446.5 GB" in found.uniform_arithmetic
    )


def test_no_pass_of_a_prompt_is_faster_than_where_all_tokens_choose_alike(plan: Any) -> None:
    """16 tokens that choose the same 16 experts of each layer read them once; CPUs, GPUs and memory work at once."""
    text = HOT_PREFILL.replace('isa = "amx"', 'isa = "avx512_vnni"') + "[runtime]\nprefill_batch = 16\n"
    found = plan(text).estimate.prefill
    used = k3.ACTIVE_PARAMETERS - 163_840 * k3.HIDDEN
    routed = 92 * 16 * 33_030_144
    cpu = max(
        ROUTED_TOKEN / 1228.8e9, 16 * 2 * routed / (128 * 2.6e9 * 256), 16 * 2 * (used - routed) / 7200e12
    )
    gpu = max(ROUTED_TOKEN / 400e9, 16 * 2 * used / 7200e12)
    assert found.paths[0].ceiling == pytest.approx(16 / cpu)
    assert found.paths[1].ceiling == pytest.approx(16 / gpu)
    assert found.ceiling == pytest.approx(min(16 / cpu + 16 / gpu, 16 / (ROUTED_TOKEN / 1228.8e9)))
    uniform = k3.ROUTED_BYTES * (1 - (1 - 16 / 896) ** 16)
    assert found.uniform == pytest.approx(16 / (uniform / 1228.8e9)) and found.uniform < found.ceiling / 5
    claim = '[claims.it]\nkind = "prefill"\nsource = "x"\nvalue = '
    for value, verdict in (
        (found.uniform * 0.9, "consistent"),
        (found.uniform * 1.1, "untestable"),
        (found.ceiling * 1.01, "above_ceiling"),
    ):
        assert judged(plan(text + claim + f"{value}"), "it").verdict == verdict


KEPT = """name = "experts on a drive"
[cpu]
sockets = 2
[memory]
modules = 24
module_gib = {gib}
mts = 4800
channels = 12
[storage]
drives = 1
gb_per_s = 4.6
drive_gb = 3840
[placement]
experts = "nvme"
trunk = "dram"
[claims.published]
kind = "decode"
value = {rate}
source = "published-results.csv"
"""


def test_experts_on_drives_may_have_been_kept_in_free_memory(plan: Any) -> None:
    """0.179 tokens/s were published of a machine that reads 0.174 without a hit: that is no ceiling."""
    made = plan(KEPT.format(gib=16, rate=0.179))
    step, rest = made.estimate.decode, TRUNK + 2 * 434_110_464 + 27_648 * 8192
    assert step.without_hits == pytest.approx(1 / (ROUTED_TOKEN / 4.6e9 + rest / 921.6e9))
    assert step.ceiling == pytest.approx(921.6e9 / (ROUTED_TOKEN + rest))
    assert judged(made, "published").verdict == "untestable"
    assert "how many reads it catches is not stated" in said(made, "published")
    assert made.estimate.expected.high < step.without_hits and "free memory keeps not counted" in (
        made.estimate.expected.basis
    )
    page = " ".join(plan_text.text(made).split())
    assert "decode at most 6.67 tokens/s with every hit, 0.174 without one" in page
    assert judged(plan(KEPT.format(gib=16, rate=0.17)), "published").verdict == "consistent"
    assert judged(plan(KEPT.format(gib=16, rate=7)), "published").verdict == "above_ceiling"
    # Room for a part: 24 x 5 GiB less trunk, embedding table, state, and cache are free, whatever is reserved.
    part = plan(KEPT.format(gib=5, rate=0.19)).estimate.decode
    free = 24 * 5 * GIB - TRUNK - 2_348_810_240 - STATE - 27_648 * 8192
    assert 0 < free < ROUTED_TOKEN
    assert part.ceiling == pytest.approx(1 / ((ROUTED_TOKEN - free) / 4.6e9 + (rest + free) / 921.6e9))
    silent = plan(
        KEPT.format(gib=16, rate=0.179)
        .replace("mts = 4800\n", "")
        .replace('trunk = "dram"', 'trunk = "nvme"')
    )
    assert silent.estimate.decode.ceiling == pytest.approx(4.6e9 / rest), (
        "their time in DRAM is not known, and left out"
    )
    assert silent.estimate.decode.without_hits == pytest.approx(4.6e9 / (ROUTED_TOKEN + rest))


def test_what_lies_in_dram_is_not_kept_elsewhere_by_itself(example: Any) -> None:
    assert example("hybrid-8x96").estimate.decode.without_hits is None
    assert example("sp3-24x64").estimate.decode.without_hits is None


def test_of_a_prompt_only_the_last_token_needs_the_head(example: Any) -> None:
    found = example("b300-8").estimate.prefill
    used = k3.ACTIVE_PARAMETERS - 163_840 * k3.HIDDEN
    assert [path.name for path in found.paths] == ["all on the GPUs"], "cores reach no weights in GPU memory"
    flops = 8 * next(gpu.flops for gpu in example("b300-8").estimate.system.gpus)
    assert found.ceiling == pytest.approx(flops / (2 * used))


# --- what a group, a hot set and a measurement decide ---

EXPERTS_ELSEWHERE = """name = "x"
[cpu]
sockets = 2
[memory]
modules = 24
module_gib = 16
mts = 6400
channels = 12
[storage]
drives = 4
drive_gb = 4000
gb_per_s = 7
"""


def test_experts_placed_as_a_group_are_read_from_there(plan: Any) -> None:
    group = plan(EXPERTS_ELSEWHERE + '[placement.groups]\nrouted_experts = "nvme"')
    kind = plan(EXPERTS_ELSEWHERE + '[placement]\nexperts = "nvme"')
    told, same = document(group), document(kind)
    for key in ("residency", "decode", "prefill", "load", "changes"):
        assert told[key] == same[key], key
    assert group.estimate.decode.bytes_of("nvme") == ROUTED_TOKEN
    assert group.estimate.decode.without_hits < 28e9 / ROUTED_TOKEN and group.load.seconds is None


def test_routed_experts_are_not_split_over_tiers(plan: Any) -> None:
    from k3gate.errors import UsageError

    model = """[model.stated]
name = "m"
source = "s"
layers = 2
experts = 8
experts_per_token = 2
[[model.stated.group]]
name = "a"
role = "routed"
gb = 1
[[model.stated.group]]
name = "b"
role = "routed"
gb = 1
"""
    with pytest.raises(UsageError, match="splits the routed experts over tiers"):
        plan(EXPERTS_ELSEWHERE + model + '[placement.groups]\na = "nvme"')


SLOW_GPUS = """name = "x"
[cpu]
sockets = 2
[memory]
modules = 24
module_gib = 128
mts = 8800
channels = 12
[[gpu]]
model = "g"
count = 2
memory_gb = 96
gb_per_s = {rate}
[runtime]
gpu_split = "layer"
"""


@pytest.mark.parametrize("rate", [20, 960])
@pytest.mark.parametrize("batch", [1, 8])
def test_hits_on_slow_gpus_raise_no_ceiling_and_turn_no_interval(plan: Any, rate: int, batch: int) -> None:
    text = SLOW_GPUS.format(rate=rate)
    cold = plan(text, batch=batch, sequences=batch).estimate
    hot = plan(text + "[hot_experts]\nper_layer = 16", batch=batch, sequences=batch).estimate
    assert hot.decode.ceiling == pytest.approx(cold.decode.ceiling), "no hit is the fastest"
    for found in (cold, hot):
        assert 0 < found.expected.low < found.expected.high <= found.decode.ceiling


def test_a_small_hot_set_catches_no_more_than_it_holds(plan: Any) -> None:
    text = GROUPS.split("[placement.groups]")[0] + "[hot_experts]\nper_layer = 1\n"
    one = plan(text).estimate
    least = {(part.what, part.least) for part in one.decode.parts}
    assert ("routed experts", ROUTED_TOKEN * 15 / 16) in least and ("hot experts", ROUTED_TOKEN / 16) in least
    distinct = 896 * (1 - (1 - 16 / 896) ** 4)
    four = plan(text, batch=4, sequences=4).estimate
    best = next(part.best for part in four.decode.parts if part.what == "hot experts")
    assert best == pytest.approx(ROUTED_TOKEN / 16), f"one of {distinct} different experts"


def test_a_curve_above_what_so_many_experts_can_catch_is_refused(plan: Any) -> None:
    from k3gate.errors import UsageError

    with pytest.raises(UsageError, match=r"of which 1 are 6\.2% at most"):
        plan(GROUPS + "[hot_experts]\nper_layer = 1\ncurve = [[1, 1.0]]")
    assert plan(GROUPS + "[hot_experts]\nper_layer = 1\ncurve = [[1, 0.0625]]").estimate.expected.low


def test_a_part_of_no_bytes_does_not_spare_gpus_their_band(plan: Any) -> None:
    text = GROUPS.split("[placement.groups]")[0] + "[hot_experts]\nper_layer = 16\ncurve = [[16, 1.0]]"
    found = plan(text).estimate.expected
    assert found.low < found.high / 2, "all lies in GPU memory"


def test_a_run_measures_one_machine_of_several(plan: Any) -> None:
    text = SLOW_GPUS.format(rate=960).replace('name = "x"', 'name = "x"\nnodes = 2')
    made = plan(text, read={"dram": (900e9, "run abc")})
    rate = made.estimate.decode.rate("dram")
    assert (rate.bytes_per_s, rate.detail) == (1800e9, "2 machines x run abc")


@pytest.mark.parametrize("read", [None, {"dram": (9000e9, "run abc")}])
def test_a_rate_above_paper_is_refused(plan: Any, read: Any) -> None:
    from k3gate.errors import UsageError

    text = (
        'name = "x"\n[cpu]\nsockets = 1\n[memory]\nmodules = 8\nmodule_gib = 256\nmts = 3200\nchannels = 8\n'
    )
    stated = "" if read else "[measured]\ndram_gb_per_s = 9000\nsource = 'us'\n"
    with pytest.raises(UsageError, match=r"9,000\.0 GB/s of DRAM .* above the paper rate, 204\.8 GB/s"):
        plan(text + stated, read=read)


def test_what_was_measured_says_nothing_of_changed_memory(plan: Any) -> None:
    made = plan(
        """name = "x"
[cpu]
sockets = 1
[memory]
modules = 4
module_gib = 512
mts = 3200
channels = 8
[measured]
dram_gb_per_s = 80
source = "us" """
    )
    assert made.estimate.decode.rate("dram").bytes_per_s == 80e9
    after = {change.key: change.after for change in made.changes}
    assert after["fill_channels"].decode.rate("dram").bytes_per_s == 8 * 3200e6 * 8
    assert after["second_socket"].decode.rate("dram").bytes_per_s == 8 * 3200e6 * 8
    assert after["trunk_q8_0"].decode.rate("dram").bytes_per_s == 80e9, "the same memory"
    notes = {change.key: change.note for change in made.changes}
    assert "DRAM at its paper rate" in notes["fill_channels"] and not notes["trunk_q8_0"]


def test_copies_in_dram_are_read_once_and_the_gpus_share_too(plan: Any) -> None:
    made = plan(
        """name = "x"
[cpu]
sockets = 2
[memory]
modules = 32
module_gib = 128
[[gpu]]
model = "g"
count = 8
memory_gb = 96
[storage]
drives = 1
gb_per_s = 10
[placement]
trunk = "gpu"
[runtime]
replicate_per_node = true"""
    )
    assert made.load.seconds == pytest.approx((1_560_860_324_864 - 894_717_952) / 10e9)
    assert "(1 drive x 10 GB/s)" in made.load.detail


def test_the_text_says_what_enforce_cannot_decide(example: Any) -> None:
    made = example("sp3-24x64", decode_tokens_per_s=2.0)
    assert made.undecided and not made.falls_short
    page = " ".join(plan_text.text(made).split())
    assert all(f"[undecided] {line}" in page for line in made.undecided)


def test_arithmetic_names_its_divisors_and_small_sizes(example: Any) -> None:
    text = plan_text.text(example("epyc9005-24x128"))
    assert "54.4 G of the trunk) / 2 sockets x 128 cores" in " ".join(text.split())
    assert "0.00 GB of network" not in plan_text.text(example("cluster-64"))
    assert "\npersistent memory" in plan_text.text(example("xeon-pmem200"))


HOT_PREFILL = """name = "x"
[cpu]
sockets = 2
cores = 64
ghz = 2.6
isa = "amx"
[memory]
modules = 24
module_gib = 128
mts = 6400
channels = 12
[[gpu]]
model = "g"
count = 8
memory_gb = 141
gb_per_s = 4800
tflops = 900
pcie_gb_per_s = 50
[storage]
drives = 1
gb_per_s = 10
[placement]
trunk = "gpu"
"""


def test_what_a_hot_set_holds_is_neither_read_nor_streamed_for_a_prompt(plan: Any) -> None:
    cold = plan(HOT_PREFILL).estimate.prefill
    hot = plan(HOT_PREFILL + "[hot_experts]\nper_layer = 448\ncurve = [[448, 0.6]]").estimate.prefill
    missed = 1 - (1 - 16 * 0.4 / 448) ** 4096
    read = k3.ROUTED_BYTES / 2 * missed
    streamed = next(path for path in hot.paths if "streamed" in path.name)
    assert streamed.uniform == pytest.approx(4096 / (read / 400e9))
    assert hot.uniform == pytest.approx(4096 / (read / 1228.8e9)), "all ways read the rest from DRAM"
    assert hot.uniform > 1.9 * cold.uniform
    assert "the hot set catches 60.0% of the reads (measured curve)" in hot.arithmetic


def test_a_prefill_ceiling_with_a_hot_set_that_nobody_measured_is_above_any_hit_rate(plan: Any) -> None:
    ceilings = [
        plan(HOT_PREFILL + f"[hot_experts]\nper_layer = 100\n{curve}").estimate.prefill.ceiling
        for curve in ("", "curve = [[100, 0.2]]", "curve = [[100, 0.9]]", "curve = [[100, 1.0]]")
    ]
    assert ceilings[0] >= max(ceilings)


def test_ways_of_prefill_share_the_gpus_that_hold_the_trunk_and_all_experts(plan: Any) -> None:
    """All reads hit: whichever way a token takes, the GPUs compute all of it, once."""
    text = HOT_PREFILL.replace("count = 8", "count = 16")
    found = plan(text + "[hot_experts]\nper_layer = 896\ncurve = [[896, 1.0]]").estimate.prefill
    used = k3.ACTIVE_PARAMETERS - 163_840 * k3.HIDDEN
    assert found.ceiling == pytest.approx(16 * 900e12 / (2 * used))
    assert "all ways compute 103.0 G parameters of every token on the GPUs" in found.arithmetic


def test_a_hot_set_is_loaded_once(plan: Any) -> None:
    cold = plan(HOT_PREFILL).load
    hot = plan(HOT_PREFILL + "[hot_experts]\nper_layer = 100")
    assert hot.load.seconds == cold.seconds == pytest.approx((1_560_860_324_864 - 894_717_952) / 10e9)
    assert hot.estimate.layout.tier("gpu").need > TRUNK + 100 * 92 * 17_547_264


def test_words_of_a_plan_are_of_this_machine(example: Any) -> None:
    """Experts in persistent memory stay there, one GPU reads not "all at once", thousands have their commas."""
    pmem = example("xeon-pmem200")
    note = next(change.note for change in pmem.changes if change.key == "trunk_on_gpus")
    assert "18.23 GB a token would be left to persistent memory" in note
    assert example("expert-offload-node").estimate.decode.rate("gpu").detail == "1 x 1,792 GB/s"
    assert "a pass of 36,735 tokens" in said(example("sp3-24x64"), "prefill")
    told = said(example("cluster-64"), "accelerators")
    assert "/ 139.9 GB = 12 hold all of it (H200 SXM 141 GB: 141.0 GB less 1.1 GB of workspace)" in told


# --- changes ---

BOX = """name = "box"
[cpu]
sockets = {sockets}
[memory]
modules = 12
module_gib = 192
channels = 12
{memory}
"""


def changed(plan: Any, memory: str, key: str, *, sockets: int = 1, more: str = "") -> Any:
    made = plan(BOX.format(memory=memory, sockets=sockets) + more)
    return next((change for change in made.changes if change.key == key), None)


@pytest.mark.parametrize(
    ("memory", "mts", "words"),
    [
        ('type = "DDR5"\nmts = 3600\nrated_mts = 4800', 4800, "these modules at their rated 4,800 MT/s"),
        ('type = "DDR5"\nmts = 3600', 4000, "modules that run at 4,000 MT/s"),
        ('type = "DDR4"\nmts = 2666', 2933, "modules that run at 2,933 MT/s"),
        ('type = "DDR4"\nmts = 3200', None, None),
        ('type = "DDR4"\nmts = 3200\nrated_mts = 3200', None, None),
        ("mts = 2666", 2933, "modules that run at 2,933 MT/s"),
        ("mts = 4800", 5200, "modules that run at 5,200 MT/s"),
        ("mts = 3200", None, None),
        ('type = "LPDDR5X"\nmts = 8533', None, None),
    ],
)
def test_faster_modules_are_of_the_same_type(plan: Any, memory: str, mts: Any, words: Any) -> None:
    change = changed(plan, memory, "faster_dimms")
    assert (change is None) is (mts is None)
    if change is not None:
        assert change.title.startswith(words)
        assert change.after.decode.rate("dram").bytes_per_s == 12 * mts * 8e6


def test_a_trunk_at_q8_0_that_is_larger_is_no_change(plan: Any) -> None:
    model = """[model.stated]
name = "m"
source = "a GGUF"
layers = 93
experts = 896
experts_per_token = 16
[[model.stated.group]]
name = "routed"
role = "routed"
gb = 500
parameters_billion = 2722
[[model.stated.group]]
name = "trunk"
role = "trunk"
gb = {}
parameters_billion = 55.57
"""
    memory = "mts = 4800"
    assert changed(plan, memory, "trunk_q8_0", more=model.format(111)) is not None
    assert changed(plan, memory, "trunk_q8_0", more=model.format(31)) is None
    small = plan(BOX.format(memory=memory, sockets=1) + model.format(31))
    assert [way.key for way in small.placements] == ["bf16_dram"]
    assert "at Q8_0" not in plan_text.text(small)


def test_a_second_socket_brings_its_own_persistent_memory(plan: Any) -> None:
    more = '[[tier]]\nkind = "pmem"\nmodules = 8\nmodule_gib = 256\ngb_per_s = 64.8\n[placement]\nexperts = "pmem"\n'
    more += '[[tier]]\nkind = "cxl"\ngib = 512\ngb_per_s = 30\n'
    change = changed(plan, "mts = 3200", "second_socket", more=more)
    assert change.title == "a second socket with as many modules and as much persistent memory"
    after = change.after
    assert after.decode.rate("pmem").bytes_per_s == 2 * 64.8e9
    assert after.layout.tier("pmem").capacity == 16 * 256 * GIB
    assert [extra.bytes for extra in after.system.extras if extra.kind == "cxl"] == [512 * GIB]


def test_what_is_expected_of_four_sockets_was_not_tested(plan: Any) -> None:
    basis = {
        number: plan(BOX.format(memory="mts = 4800", sockets=number)).estimate.expected.basis
        for number in (1, 2, 4)
    }
    assert "of which several sockets give the 0.725" in basis[4] and "not tested on 4 sockets" in basis[4]
    assert "of which two sockets give 0.725" in basis[2] and "not tested" not in basis[1] + basis[2]


def test_words_agree_in_number(plan: Any) -> None:
    drives = plan(KEPT.format(gib=16, rate=1))
    assert "NVMe drives take most of a token" in drives.limit_words
    assert judged(drives, "published").text.startswith("decode rate of one sequence: 1 token/s (")
    assert "1 token/s is more than without a hit" in said(drives, "published")
