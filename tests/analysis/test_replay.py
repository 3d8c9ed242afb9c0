"""The prediction for the whole of Kimi K3 from a miniature's step: by hand-computed bytes, intervals, its own tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from k3gate.analysis import replay
from k3gate.records import Inventory, Metric, Outcome, Run, RunRecord, RunStatus, State

STREAM = 100e9
ROUTED, STATE, CONVOLUTION = 25_829_572_608, 434_110_464, 30_523_392
TRUNK, TRUNK_Q8_0 = 111_160_730_624, 59_041_513_472
ROUTER = 1_182_074_880
Make = Callable[..., Outcome]


@pytest.fixture(scope="session")
def record(make_inventory: Callable[..., Inventory]) -> Callable[..., RunRecord]:
    """`record(outcome, ...)`: a complete run of these cases."""

    def make(*outcomes: Outcome) -> RunRecord:
        run = Run("a", None, None, None, "standard", "0", "t", None, RunStatus.COMPLETE)
        return RunRecord(run, make_inventory("bare_metal"), outcomes)

    return make


def test_the_whole_in_bf16_takes_its_bytes_at_the_rate_of_the_parts(record: Any, make_replay: Make) -> None:
    found = replay.for_target(record(make_replay()), "bf16", 8192, 1)
    assert found is not None
    cache = 24 * 576 * 2 * 8192
    wanted = ROUTED + TRUNK + 2 * STATE + cache
    assert sum(found.bytes.values()) == pytest.approx(wanted, rel=1e-3)
    assert 1 / found.middle == pytest.approx(wanted / STREAM, rel=1e-3)
    assert found.seconds["routed"] == pytest.approx(ROUTED / STREAM)
    assert found.seconds["router"] == pytest.approx(ROUTER / STREAM)
    assert found.seconds["head"] == pytest.approx(2_348_810_240 / STREAM)
    assert found.seconds["shared"] == pytest.approx(24_310_185_984 / STREAM)
    assert found.seconds["dense"] == pytest.approx(1_453_326_336 / STREAM)
    assert found.seconds["latent"] == pytest.approx(9_454_620_672 / STREAM)
    both = found.seconds["attention_projections"] + found.seconds["attention_core"]
    assert both == pytest.approx((61_258_257_408 + 11_145_412_608 + 2 * STATE + cache) / STREAM, rel=1e-3)


def test_the_whole_in_q8_0_reads_84_87_gb_of_weights_but_for_its_router(
    record: Any, make_replay: Make
) -> None:
    """The router stays in BF16, where the sum of 84.87 GB has it at 8.5 bits."""
    found = replay.for_target(record(make_replay(trunk="q8_0")), "q8_0", 0, 1)
    assert found is not None
    core = found.bytes["attention_core"] - 2 * STATE - 24 * 96 * 2 * 128 * 512 * 17 / 16
    assert core == pytest.approx(0, abs=1e6)
    weights = sum(found.bytes.values()) - 2 * STATE
    assert weights == pytest.approx(84.871e9 + ROUTER * 15 / 32, rel=1e-3)
    assert weights == pytest.approx(ROUTED + TRUNK_Q8_0 + ROUTER * 15 / 32, rel=1e-3)


def test_another_trunk_is_scaled_by_its_bits_and_the_case_that_has_it_is_preferred(
    record: Any, make_replay: Make
) -> None:
    alone = replay.for_target(record(make_replay()), "q8_0", 8192, 1)
    assert alone is not None
    assert "a trunk in q8_0 streams as many bytes a second as the one in bf16" in alone.assumptions
    assert alone.seconds["shared"] == pytest.approx(24_310_185_984 * 17 / 32 / STREAM)
    assert alone.seconds["router"] == pytest.approx(ROUTER / STREAM)
    both = replay.for_target(
        record(make_replay(), make_replay("trunk.q8_0", "trunk", trunk="q8_0", stream=50e9)), "q8_0", 8192, 1
    )
    assert both is not None
    assert both.base.outcome.case == "trunk.q8_0"
    assert 1 / both.middle == pytest.approx(2 / alone.middle, rel=0.01)


def test_the_interval_holds_scatter_and_allowance(record: Any, make_replay: Make) -> None:
    calm = replay.for_target(record(make_replay(scatter=0.0)), "bf16", 8192, 1)
    noisy = replay.for_target(record(make_replay(scatter=0.2)), "bf16", 8192, 1)
    assert calm is not None
    assert noisy is not None
    assert calm.interval == pytest.approx((calm.middle / 1.15, calm.middle * 1.15))
    assert noisy.interval == pytest.approx((noisy.middle / (1.25 * 1.15), noisy.middle * 1.25 * 1.15))
    assert calm.narrow
    assert not noisy.narrow, "1.4375 squared is above 2"
    bare = make_replay()
    without = attrs.evolve(bare, metrics=tuple(attrs.evolve(one, interval=None) for one in bare.metrics))
    unknown = replay.for_target(record(without), "bf16", 8192, 1)
    assert unknown is not None
    assert unknown.high == pytest.approx(unknown.middle * 1.25 * 1.15), "no interval counts as a quarter"


def test_the_parts_add_up_to_the_step_though_their_medians_do_not(record: Any, make_replay: Make) -> None:
    bent = make_replay()
    longer = tuple(
        attrs.evolve(one, median=one.median * 1.2) if one.name == "replay.part.seconds" else one
        for one in bent.metrics
    )
    found = replay.for_target(record(attrs.evolve(bent, metrics=longer)), "bf16", 8192, 1)
    plain = replay.for_target(record(bent), "bf16", 8192, 1)
    assert found is not None
    assert plain is not None
    assert found.middle == pytest.approx(plain.middle)


def test_a_batch_reads_the_trunk_once_and_the_distinct_experts(record: Any, make_replay: Make) -> None:
    found = replay.for_target(record(make_replay()), "bf16", 8192, 4)
    assert found is not None
    distinct = 896 * (1 - (1 - 16 / 896) ** 4)
    assert found.bytes["routed"] == pytest.approx(distinct * 92 * 17_547_264)
    assert found.bytes["shared"] == pytest.approx(24_310_185_984)
    heads = 24 * 96 * 2 * 128 * 512 * 2
    assert found.bytes["attention_core"] == pytest.approx(
        4 * (2 * STATE + 24 * 576 * 2 * 8192) + heads, rel=1e-6
    )
    assert found.high / found.middle == pytest.approx(1.3 * (1 / 0.99), rel=0.01), (
        "wider, for it is not the replayed batch"
    )
    assert any(one.startswith("4 sequences touch 62 experts") for one in found.assumptions)
    own = make_replay("batch.4", "batch", batch=4, distinct=40.0)
    of_it = replay.for_target(record(make_replay(), own), "bf16", 8192, 4)
    assert of_it is not None
    assert of_it.base.outcome.case == "batch.4"
    assert of_it.high / of_it.middle == pytest.approx(1.15 * (1 / 0.99), rel=0.01)


def test_two_contexts_give_what_a_row_of_the_cache_takes_and_one_widens(
    record: Any, make_replay: Make
) -> None:
    one = replay.for_target(record(make_replay()), "bf16", 131_072, 1)
    two = replay.for_target(
        record(make_replay(), make_replay("context.32768", "context", context=32_768)), "bf16", 131_072, 1
    )
    assert one is not None
    assert two is not None
    heads = 24 * 96 * 2 * 128 * 512 * 2
    core = (2 * STATE + 24 * 576 * 2 * 131_072 + heads) / STREAM
    assert two.seconds["attention_core"] == pytest.approx(core, rel=0.05)
    assert "a row of the cache takes what it took between 8,192 and 32,768" in two.assumptions
    assert two.high / two.low == pytest.approx((1.15 / 0.99) ** 2, rel=0.01)
    assert one.high / one.low > two.high / two.low * 1.1
    assert one.low < two.middle < one.high
    assert any(told.startswith("no other context was replayed") for told in one.assumptions)


def test_an_empty_cache_says_nothing_of_a_full_one_but_its_bytes(record: Any, make_replay: Make) -> None:
    found = replay.for_target(record(make_replay(context=0)), "bf16", 1_000_000, 1)
    assert found is not None
    cache = 24 * 576 * 2 * 1_000_000 / STREAM
    assert found.high / found.low > (1.15 / 0.99) ** 2
    assert 1 / found.low > (ROUTED + TRUNK + 2 * STATE) / STREAM + cache


def test_of_a_trunk_on_gpus_the_routed_experts_and_waiting_remain(record: Any, make_replay: Make) -> None:
    found = replay.for_target(record(make_replay(waiting=1e-4)), "gpu", 8192, 1)
    assert found is not None
    assert {part for part, value in found.seconds.items() if value} == {"routed", "synchronisation"}
    assert 1 / found.middle == pytest.approx(ROUTED / STREAM + 93e-4)
    assert any("it is a ceiling" in one for one in found.assumptions)
    both = record(make_replay(), make_replay("trunk.gpu", "trunk", trunk="gpu", stream=80e9))
    of_it = replay.for_target(both, "gpu", 8192, 1)
    assert of_it is not None
    assert of_it.base.outcome.case == "trunk.gpu"
    assert 1 / of_it.middle == pytest.approx(ROUTED / 80e9)


def test_routed_experts_alone_say_nothing_of_a_trunk(record: Any, make_replay: Make) -> None:
    assert replay.for_target(record(make_replay(trunk="gpu")), "bf16", 8192, 1) is None
    assert replay.for_target(record(), "bf16", 8192, 1) is None


def test_mixes_grow_with_the_blocks_that_they_go_over(record: Any, make_replay: Make) -> None:
    """Of four layers a mix goes over two vectors, of 93 over up to nine (AttnRes)."""
    made = make_replay()
    mixing = tuple(
        attrs.evolve(one, median=1e-4) if one.labels.get("part") == "mix" and one.unit == "s" else one
        for one in made.metrics
    )
    found = replay.for_target(record(attrs.evolve(made, metrics=mixing)), "bf16", 8192, 1)
    assert found is not None
    small = 2 * 2 * 4 - 1
    whole = sum(2 * (layer // 12 + 2) for layer in range(93)) - 8
    assert found.seconds["mix"] == pytest.approx(1e-4 * whole / small, rel=3e-3)


def test_a_deeper_miniature_and_a_batch_are_predicted_from_the_base_case(
    record: Any, make_replay: Make
) -> None:
    outcomes = (
        make_replay(),
        make_replay("deep", "deep", layers=8),
        make_replay("batch.4", "batch", batch=4, distinct=40.0),
        make_replay("trunk.q8_0", "trunk", trunk="q8_0"),
    )
    tests = replay.self_tests(record(*outcomes))
    assert [one.case.outcome.case for one in tests] == ["deep", "batch.4"]
    assert all(one.inside for one in tests)
    assert all(one.predicted.middle == pytest.approx(one.case.tokens_per_s, rel=0.01) for one in tests), (
        "all parts stream alike, so nothing is left to allowances"
    )


@pytest.mark.parametrize(("slower", "inside"), [(1.15, True), (1.25, False), (0.9, True), (0.8, False)])
def test_a_deeper_miniature_that_takes_another_time_falls_outside(
    record: Any, make_replay: Make, slower: float, inside: bool
) -> None:
    tests = replay.self_tests(record(make_replay(), make_replay("deep", "deep", layers=8, slower=slower)))
    assert [one.inside for one in tests] == [inside]


def test_skew_is_the_base_case_against_uniform_routing_with_both_scatters(
    record: Any, make_replay: Make
) -> None:
    uniform = make_replay("routing.uniform", "routing", routing="uniform", slower=0.8)
    found = replay.skew(record(make_replay(), uniform))
    assert found is not None
    assert found.ratio == pytest.approx(0.8)
    assert found.interval == pytest.approx((0.8 * 0.99**2, 0.8 / 0.99**2))
    assert replay.skew(record(make_replay())) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": 0},
        {"layers": 3},
        {"layers": 10**400},
        {"layers": None},
        {"layers": "4"},
        {"batch": 0},
        {"batch": True},
        {"context": -1},
        {"head_rows": 10**9},
        {"trunk": "fp4"},
        {"trunk": None},
    ],
)
def test_a_case_that_does_not_say_what_it_replayed_gives_no_prediction(
    record: Any, make_replay: Make, changed: dict[str, Any]
) -> None:
    """A bundle of a stranger may hold any label: nothing may break, and nothing follows from it."""
    made = make_replay()
    rows = tuple(attrs.evolve(one, labels={**one.labels, **changed}) for one in made.metrics)
    found = record(attrs.evolve(made, metrics=rows))
    assert replay.for_target(found, "bf16", 8192, 1) is None
    assert replay.self_tests(found) == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, 1e-300, 1e300, None])
@pytest.mark.parametrize("name", ["replay.miniature.rate", "replay.part.seconds", "replay.part.bytes"])
def test_a_figure_that_no_machine_has_gives_no_prediction(
    record: Any, make_replay: Make, name: str, value: float | None
) -> None:
    made = make_replay()
    rows = tuple(attrs.evolve(one, median=value) if one.name == name else one for one in made.metrics)
    assert replay.for_target(record(attrs.evolve(made, metrics=rows)), "bf16", 8192, 1) is None


def test_a_failed_case_is_no_evidence(record: Any, make_replay: Make) -> None:
    assert replay.for_target(record(make_replay(state=State.FAILED)), "bf16", 8192, 1) is None


# --- attention at other contexts and batches -------------------------------------------------------------


ROW = 2e-6
"""Seconds of a row of the caches, far more than its bytes take."""


def at_context(
    make_replay: Make, context: int, row: float = ROW, scatter: float = 0.01, **more: Any
) -> Outcome:
    """A case whose attention takes `row` seconds for each row of the caches, beside what its states take."""
    layers = more.get("layers", 4)
    mla, batch = layers // 4, more.get("batch", 1)
    factor = more.pop("factor", "base" if context == 8192 else "context")
    name = more.pop("name", "base" if factor == "base" else f"context.{context}")
    made = make_replay(name, factor, context=context, scatter=scatter, **more)
    share = {"bf16": 1.0, "q8_0": 17 / 32}[more.get("trunk", "bf16")]
    states = batch * (layers - mla) * 2 * 96 * 128 * 128 * 4
    core = (states + share * mla * 96 * 2 * 128 * 512 * 2) / STREAM + row * context * mla * batch
    old = next(
        one.median
        for one in made.metrics
        if one.unit == "s" and one.labels.get("part") == "attention_core" and one.median is not None
    )

    def bent(one: Metric) -> Metric:
        assert one.median is not None
        if one.unit == "s" and one.labels.get("part") == "attention_core":
            value = core
        elif one.name == "replay.miniature.rate":
            value = 1 / (1 / one.median + core - old)
        else:
            return one
        return attrs.evolve(one, median=value, interval=(value * (1 - scatter), value * (1 + scatter)))

    return attrs.evolve(made, metrics=tuple(map(bent, made.metrics)))


def core_of(found: replay.Prediction | None) -> float:
    assert found is not None
    return found.seconds["attention_core"]


def whole_core(context: int, row: float = ROW, share: float = 1.0) -> float:
    return (2 * STATE + share * 24 * 96 * 2 * 128 * 512 * 2) / STREAM + row * context * 24


@pytest.mark.parametrize(
    ("context", "between"),
    [(2048, "0 and 8,192"), (16_384, "8,192 and 32,768"), (131_072, "8,192 and 32,768")],
)
def test_the_pair_of_contexts_that_encloses_tells_what_a_row_takes(
    record: Any, make_replay: Make, context: int, between: str
) -> None:
    """Of three contexts, stored in any order."""
    later = at_context(make_replay, 32_768)
    cases = [at_context(make_replay, 0), at_context(make_replay, 8192), later]
    for order in (cases, cases[::-1]):
        found = replay.for_target(record(*order), "bf16", context, 1)
        assert core_of(found) == pytest.approx(whole_core(context), rel=1e-3)
        assert found is not None
        assert f"a row of the cache takes what it took between {between}" in found.assumptions


def test_what_a_row_takes_is_as_sure_as_both_times_and_the_rows_beyond_them(
    record: Any, make_replay: Make
) -> None:
    def width(context: int, scatter: float) -> float:
        cases = [at_context(make_replay, one, scatter=scatter) for one in (8192, 32_768)]
        found = replay.for_target(record(*cases), "bf16", context, 1)
        assert found is not None
        return (found.high / found.low) / (1.15 / (1 - scatter)) ** 2

    assert width(32_768, 0.05) < width(131_072, 0.05) < width(1_000_000, 0.05)
    assert width(131_072, 0.02) < width(131_072, 0.05)
    # Of 1.3 s a token takes, 122,880 rows are (4 x 5 % of 17 ms + 5 x 5 % of 66 ms) x 24 = 0.48 s.
    cases = [at_context(make_replay, one, scatter=0.05) for one in (8192, 32_768)]
    found = replay.for_target(record(*cases), "bf16", 131_072, 1)
    assert found is not None
    states = 3 * 2 * 96 * 128 * 128 * 4 / STREAM + 96 * 2 * 128 * 512 * 2 / STREAM
    off = 24 * 0.05 / 0.95 * (4 * (8192 * ROW + states) + 5 * (32_768 * ROW + states))
    wanted = (1 / found.middle + off) / 0.95 * 1.15
    assert 1 / found.low == pytest.approx(wanted, rel=0.02)


def test_rows_that_took_no_time_give_what_bytes_say_and_what_grows_row_by_row(
    record: Any, make_replay: Make
) -> None:
    cases = [at_context(make_replay, 8192, row=3e-6), at_context(make_replay, 32_768, row=1e-7)]
    found = replay.for_target(record(*cases), "bf16", 131_072, 1)
    assert found is not None
    told = [one for one in found.assumptions if "took no time between contexts 8,192 and 32,768" in one]
    assert told and "between what its bytes say and what it takes row by row" in told[0]
    now = whole_core(8192, 3e-6)
    assert 1 / found.low > 16 * now, "all of it may grow"
    assert found.high / found.low > 2, "nothing is known, and the interval shows it"


def test_the_rows_of_the_base_case_serve_another_trunk_and_that_is_told(
    record: Any, make_replay: Make
) -> None:
    other = at_context(make_replay, 8192, factor="trunk", name="trunk.q8_0", trunk="q8_0")
    cases = record(at_context(make_replay, 8192), at_context(make_replay, 32_768), other)
    found = replay.for_target(cases, "q8_0", 32_768, 1)
    assert found is not None
    assert found.base.outcome.case == "trunk.q8_0"
    assert core_of(found) == pytest.approx(whole_core(32_768, share=17 / 32), rel=0.01)
    told = "a row of the cache takes what it took between 8,192 and 32,768, with a trunk in bf16"
    assert told in found.assumptions


def test_of_a_batch_states_and_caches_grow_and_weights_per_head_need_not(
    record: Any, make_replay: Make
) -> None:
    both = record(at_context(make_replay, 8192), at_context(make_replay, 0))
    found = replay.for_target(both, "bf16", 8192, 8)
    heads = 24 * 96 * 2 * 128 * 512 * 2 / STREAM
    grown = 8 * (2 * STATE / STREAM + ROW * 8192 * 24)
    assert grown + heads < core_of(found) < grown + 8 * heads
    assert found is not None
    told = "products per head between as long and so many times as long"
    assert any(told in one for one in found.assumptions)
    # Without a second context rows and the rest are not told apart: most of it may be products per head.
    alone = replay.for_target(record(at_context(make_replay, 8192)), "bf16", 8192, 8)
    assert core_of(alone) < core_of(found)
    assert alone is not None
    assert alone.high / alone.low > 1.05 * found.high / found.low
    assert 1 / alone.low > 1 / found.middle


def test_a_context_is_predicted_from_the_others_and_held_against_what_was_measured(
    record: Any, make_replay: Make
) -> None:
    good = [at_context(make_replay, one) for one in (8192, 0, 32_768)]
    tests = replay.self_tests(record(*good))
    assert [one.case.outcome.case for one in tests] == ["context.0", "context.32768"]
    assert all(one.inside for one in tests)
    assert all(one.predicted.middle == pytest.approx(one.case.tokens_per_s, rel=0.01) for one in tests)
    bent = [*good[:2], at_context(make_replay, 32_768, row=3 * ROW)]
    wrong = {one.case.outcome.case: one.inside for one in replay.self_tests(record(*bent))}
    assert wrong["context.32768"] is False
    assert replay.self_tests(record(*good[:2])) == (), "one other context alone predicts none"


@pytest.mark.parametrize(
    ("factor", "changed"),
    [
        ("deep", {}),
        ("deep", {"layers": 8, "trunk": "q8_0"}),
        ("deep", {"layers": 8, "threads": 32}),
        ("batch", {}),
        ("batch", {"batch": 4, "distinct": 40.0, "context": 0}),
    ],
)
def test_a_case_that_is_not_what_its_factor_says_holds_nothing_to_account(
    record: Any, make_replay: Make, factor: str, changed: dict[str, Any]
) -> None:
    """A copy of the base case that calls itself deeper would always be predicted well."""
    assert replay.self_tests(record(make_replay(), make_replay("x", factor, **changed))) == ()


@pytest.mark.parametrize("part", ["shared", "attention_projections", "router", "head", "latent"])
def test_a_step_that_lacks_a_part_gives_no_prediction(record: Any, make_replay: Make, part: str) -> None:
    made = make_replay()
    rows = tuple(one for one in made.metrics if one.labels.get("part") != part)
    assert replay.for_target(record(attrs.evolve(made, metrics=rows)), "bf16", 8192, 1) is None


@pytest.mark.parametrize(("distinct", "batch"), [(1.0, 1), (40.0, 1), (600.0, 4)])
def test_experts_that_so_many_sequences_cannot_use_give_no_prediction(
    record: Any, make_replay: Make, distinct: float, batch: int
) -> None:
    """The whole is scaled by distinct experts: more of them in the miniature would make it seem faster."""
    made = record(make_replay(distinct=distinct, batch=batch))
    assert replay.for_target(made, "bf16", 8192, 1) is None


def test_skew_is_of_cases_that_differ_by_their_routing_alone(record: Any, make_replay: Make) -> None:
    for changed in ({"trunk": "q8_0"}, {"experts": 128}, {"threads": 8}, {"pages": "small"}):
        uniform = make_replay("routing.uniform", "routing", routing="uniform", **changed)
        assert replay.skew(record(make_replay(), uniform)) is None


def test_of_the_waiting_with_a_trunk_a_trunk_on_gpus_keeps_between_none_and_all(
    record: Any, make_replay: Make
) -> None:
    found = replay.for_target(record(make_replay(waiting=1e-3)), "gpu", 8192, 1)
    assert found is not None
    assert found.high == pytest.approx(STREAM / ROUTED * 1.15 / 0.99, rel=1e-3)
    assert 1 / found.low == pytest.approx((ROUTED / STREAM + 93e-3) * 1.15 / 0.99, rel=1e-3)


def test_what_of_a_trace_was_not_kept_is_among_the_assumptions_in_one_line(
    record: Any, make_replay: Make
) -> None:
    lost = "not kept within 5 points\nwith 16 of 32 experts\x1b[31m" + "x" * 1000
    found = replay.for_target(record(make_replay(not_kept=lost)), "bf16", 8192, 1)
    assert found is not None
    told = [
        one for one in found.assumptions if one.startswith("routing is that of the trace, though not kept")
    ]
    assert told and "\n" not in told[0] and "\x1b" not in told[0] and len(told[0]) < 300
