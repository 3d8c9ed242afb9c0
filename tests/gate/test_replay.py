"""The checks that the decode replay settles, and what it says where no runtime was driven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from k3gate.errors import UsageError
from k3gate.gate import criteria as criteria_module
from k3gate.gate.targets import load
from k3gate.records import Inventory, LeftOut, Limits, Outcome, RunRecord, State, Verdict

Make = Callable[..., Outcome]
STREAM = 500e9
EXPECTED = STREAM / 138.1e9
"""tokens/s of the whole in BF16, about 3.6."""


@pytest.fixture(scope="session")
def target() -> Callable[..., Any]:
    """`target(3.0, trunk="bf16", context=8192, batch=1)`: asks for that rate."""
    hybrid = load("hybrid")

    def make(rate: float, trunk: str = "bf16", context: int = 8192, batch: int = 1) -> Any:
        return attrs.evolve(
            hybrid, decode_tokens_per_s=rate, trunk=trunk, context=context, decode_batch=batch
        )

    return make


@pytest.fixture(scope="session")
def tested(make_replay: Make) -> tuple[Outcome, ...]:
    """A base case and the two that hold it to account."""
    return (
        make_replay(stream=STREAM),
        make_replay("deep", "deep", layers=8, stream=STREAM),
        make_replay("batch.4", "batch", batch=4, distinct=40.0, stream=STREAM),
    )


def judged(check: Any, make_record: Any, outcomes: Any, wanted: Any, **more: Any) -> Any:
    return check(make_record(outcomes, **more), "roofline.replay", target=wanted)


def test_a_prediction_that_was_tested_and_lies_above_the_target_passes(
    check: Any, make_record: Any, target: Any, tested: Any
) -> None:
    found = judged(check, make_record, tested, target(0.8 * EXPECTED))
    assert found.verdict is Verdict.PASS
    assert found.observed == pytest.approx(EXPECTED, rel=1e-3)
    assert found.interval == pytest.approx((EXPECTED * 0.99 / 1.15, EXPECTED * 1.15 / 0.99), rel=1e-3)
    assert "The replay predicts 3.12 to 4.21 tokens/s a sequence, 2.90 are asked" in found.reason
    assert found.reason.endswith("it fell true for deep and batch.4 of the same run.")
    assert found.evidence == tuple(
        f"replay/{case}#replay.miniature.rate" for case in ("base", "deep", "batch.4")
    )


def test_a_prediction_wholly_below_the_target_fails_even_when_unstable(
    check: Any, make_record: Any, target: Any, tested: Any, make_replay: Make
) -> None:
    found = judged(check, make_record, tested, target(1.3 * EXPECTED))
    assert found.verdict is Verdict.FAIL
    assert "even the upper end is below that" in found.reason
    assert "See the ladder" in found.remedy
    shaky = (make_replay(stream=STREAM, state=State.UNSTABLE, reason="it scatters"),)
    assert judged(check, make_record, shaky, target(1.3 * EXPECTED)).verdict is Verdict.FAIL


def test_a_prediction_that_was_too_low_for_its_own_cases_fails_no_machine(
    check: Any, make_record: Any, target: Any, make_replay: Make, tested: Any
) -> None:
    faster = make_replay("deep", "deep", layers=8, stream=STREAM, slower=0.5)
    found = judged(check, make_record, (tested[0], faster), target(1.3 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert "the prediction failed its own test (deep: " in found.reason
    slower = make_replay("deep", "deep", layers=8, stream=STREAM, slower=2.0)
    assert judged(check, make_record, (tested[0], slower), target(1.3 * EXPECTED)).verdict is Verdict.FAIL


def test_an_interval_that_holds_the_target_is_unproven(
    check: Any, make_record: Any, target: Any, tested: Any
) -> None:
    found = judged(check, make_record, tested, target(EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert "the interval holds both" in found.reason


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"state": State.UNSTABLE, "reason": "it scatters"}, "its figures are unstable (it scatters)"),
        ({"scatter": 0.3}, "the interval is wider than a factor of 2"),
    ],
)
def test_unstable_and_wide_predictions_prove_nothing(
    check: Any, make_record: Any, target: Any, make_replay: Make, changed: dict[str, Any], why: str
) -> None:
    found = judged(check, make_record, (make_replay(stream=STREAM, **changed),), target(0.3 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert why in found.reason


def test_a_prediction_that_failed_its_own_test_proves_nothing(
    check: Any, make_record: Any, target: Any, make_replay: Make, tested: Any
) -> None:
    wrong = make_replay("deep", "deep", layers=8, stream=STREAM, slower=1.5)
    found = judged(check, make_record, (tested[0], wrong, tested[2]), target(0.5 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert "the prediction failed its own test (deep: 28.4 measured, 36.6 to 49" in found.reason
    assert "batch.4" not in found.reason


def test_a_prediction_that_was_never_tested_asks_for_the_longer_profile(
    check: Any, make_record: Any, target: Any, tested: Any
) -> None:
    found = judged(check, make_record, tested[:1], target(0.5 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert "the prediction was not held against itself in this run" in found.reason
    assert "k3gate run --profile standard" in found.remedy


def test_with_the_trunk_on_gpus_it_may_fail_and_never_pass(
    check: Any, make_record: Any, target: Any, tested: Any
) -> None:
    alone = STREAM / 25.83e9
    found = judged(check, make_record, tested, target(0.5 * alone, trunk="gpu"))
    assert found.verdict is Verdict.UNPROVEN
    assert "GPUs and their links, which hold the trunk, take time besides" in found.reason
    assert found.remedy == "Measure a running runtime."
    assert judged(check, make_record, tested, target(2 * alone, trunk="gpu")).verdict is Verdict.FAIL


def test_routed_experts_alone_prove_nothing_of_a_trunk(
    check: Any, make_record: Any, target: Any, make_replay: Make
) -> None:
    found = judged(check, make_record, (make_replay(trunk="gpu", stream=STREAM),), target(1.0))
    assert found.verdict is Verdict.UNPROVEN
    assert "The run replayed the trunk as gpu, and the target lays it out as bf16" in found.reason
    assert found.remedy == "Run `k3gate run --trunk bf16`."


def test_a_virtual_or_restricted_machine_is_no_evidence_of_the_hardware(
    check: Any, make_record: Any, target: Any, tested: Any, bare_metal: Inventory
) -> None:
    guest = attrs.evolve(bare_metal, machine=attrs.evolve(bare_metal.machine, virtual=True, hypervisor="kvm"))
    found = judged(check, make_record, tested, target(0.5 * EXPECTED), inventory=guest)
    assert found.verdict is Verdict.UNPROVEN
    assert found.reason.startswith("No evidence about the hardware")
    assert "3.12 to 4.21 tokens/s" in found.reason
    assert judged(check, make_record, tested, target(9.0), inventory=guest).verdict is Verdict.UNPROVEN
    part = attrs.evolve(bare_metal, limits=Limits(2, usable_memory_bytes=2**41, restricted=True))
    assert judged(check, make_record, tested, target(9.0), inventory=part).verdict is Verdict.UNPROVEN


def test_without_a_replay_the_reason_of_the_run_is_told(
    check: Any, make_record: Any, target: Any, make_replay: Make
) -> None:
    record: RunRecord = make_record(())
    left = attrs.evolve(record.run, left_out=(LeftOut("replay", "*", "no CPU has memory"),))
    found = check(attrs.evolve(record, run=left), "roofline.replay", target=target(1.0))
    assert found.verdict is Verdict.UNPROVEN
    assert found.reason == "Not replayed in this run (*: left out, no CPU has memory)."
    broken = make_replay(state=State.FAILED, reason="withheld: a row differs")
    found = judged(check, make_record, (broken,), target(1.0))
    assert found.reason == "Not replayed in this run (base: withheld: a row differs)."


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"decode_batch": 16}, "at most 4 sequences were replayed together, and 16 are asked"),
        ({"context": 131_072}, "contexts up to 8,192 were replayed, and 131,072 are asked"),
        ({"nodes": 4}, "the target is 4: the network between them is not in it"),
    ],
)
@pytest.mark.parametrize("rate", [1e-3, 1e3])
def test_beyond_what_was_replayed_nothing_is_decided(
    check: Any, make_record: Any, target: Any, tested: Any, changed: dict[str, Any], why: str, rate: float
) -> None:
    found = judged(check, make_record, tested, attrs.evolve(target(rate), **changed))
    assert found.verdict is Verdict.UNPROVEN
    assert why in found.reason


@pytest.mark.parametrize("shaky", ["deep", "batch.4"])
def test_a_pass_needs_stable_cases_of_both_kinds_that_it_was_held_against(
    check: Any, make_record: Any, target: Any, tested: Any, shaky: str
) -> None:
    outcomes = [
        attrs.evolve(
            one,
            metrics=tuple(
                attrs.evolve(metric, state=State.UNSTABLE, reason="it scatters") for metric in one.metrics
            ),
        )
        if one.case == shaky
        else one
        for one in tested
    ]
    found = judged(check, make_record, tuple(outcomes), target(0.5 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert "needs a deeper miniature and another batch, both stable" in found.reason


def test_a_prediction_of_another_trunk_than_the_tested_one_is_not_proven(
    check: Any, make_record: Any, target: Any, tested: Any, make_replay: Make
) -> None:
    other = make_replay("trunk.q8_0", "trunk", trunk="q8_0", stream=STREAM)
    found = judged(check, make_record, (*tested, other), target(0.5, trunk="q8_0"))
    assert found.verdict is Verdict.UNPROVEN
    assert "held against itself with a trunk in bf16 alone" in found.reason
    assert found.remedy == "Run `k3gate run --profile standard --trunk q8_0`."


def test_without_a_base_case_what_was_replayed_is_told_and_not_that_nothing_was(
    check: Any, make_record: Any, target: Any, make_replay: Make
) -> None:
    broken = make_replay(state=State.FAILED, reason="withheld: a row differs")
    others = (
        make_replay("trunk.bf16", "trunk", stream=STREAM),
        make_replay("batch.4", "batch", batch=4, distinct=40.0, stream=STREAM),
    )
    found = judged(check, make_record, (broken, *others), target(0.5 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert "The replay predicts 3.12 to 4.21 tokens/s a sequence" in found.reason
    assert (
        "there is no base case to hold it against itself by (base: withheld: a row differs)" in found.reason
    )
    assert found.evidence == ("replay/trunk.bf16#replay.miniature.rate",)
    low = judged(check, make_record, (broken, *others), target(2 * EXPECTED))
    assert low.verdict is Verdict.FAIL
    skew = check(make_record((broken, *others)), "roofline.skew", target=target(1.0))
    assert skew.reason == (
        "Uneven routing was not replayed against uniform routing in this run: no usable case base and "
        "routing.uniform (base: withheld: a row differs)."
    )


def test_a_replay_from_which_nothing_follows_says_so(
    check: Any, make_record: Any, target: Any, make_replay: Make
) -> None:
    made = make_replay()
    unsaid = tuple(attrs.evolve(one, labels={**one.labels, "head_rows": None}) for one in made.metrics)
    found = judged(check, make_record, (attrs.evolve(made, metrics=unsaid),), target(1.0))
    assert found.verdict is Verdict.UNPROVEN
    assert "Nothing follows from what was replayed: the parts of a case do not add up" in found.reason


@pytest.mark.parametrize("shaky", [True, False])
def test_an_unstable_case_that_was_missed_costs_no_pass_but_holds_off_a_fail(
    check: Any, make_record: Any, target: Any, make_replay: Make, tested: Any, shaky: bool
) -> None:
    state = {"state": State.UNSTABLE, "reason": "it scatters"} if shaky else {}
    wild = make_replay("batch.8", "batch", batch=8, distinct=70.0, stream=STREAM, slower=0.3, **state)
    found = judged(check, make_record, (*tested, wild), target(0.5 * EXPECTED))
    assert (found.verdict is Verdict.PASS) == shaky
    assert judged(check, make_record, (*tested, wild), target(2 * EXPECTED)).verdict is Verdict.UNPROVEN


def test_another_context_than_the_tested_one_needs_a_context_that_was_predicted(
    check: Any, make_record: Any, target: Any, make_replay: Make, tested: Any
) -> None:
    far = make_replay("context.32768", "context", context=32_768, stream=STREAM)
    none = make_replay("context.0", "context", context=0, stream=STREAM)
    wanted = target(0.5 * EXPECTED, context=32_768)
    found = judged(check, make_record, (*tested, far), wanted)
    assert found.verdict is Verdict.UNPROVEN
    assert "contexts beside 8,192 need another one, stable" in found.reason
    assert judged(check, make_record, (*tested, far, none), wanted).verdict is Verdict.PASS


def test_a_trace_that_was_replayed_otherwise_than_it_is_proves_nothing(
    check: Any, make_record: Any, target: Any, make_replay: Make, tested: Any
) -> None:
    lost = make_replay(stream=STREAM, not_kept="not kept within 5 points: reuse 60% instead of 30%")
    found = judged(check, make_record, (lost, *tested[1:]), target(0.5 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert "the trace was replayed otherwise than it is: not kept within 5 points: reuse 60%" in found.reason


# --- uneven routing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slower", "scatter", "verdict"),
    [
        (0.8, 0.01, Verdict.PASS),
        (0.6, 0.01, Verdict.FAIL),
        (0.71, 0.05, Verdict.UNPROVEN),
    ],
)
def test_skew_is_judged_by_its_interval(
    check: Any,
    make_record: Any,
    target: Any,
    make_replay: Make,
    slower: float,
    scatter: float,
    verdict: Verdict,
) -> None:
    uniform = make_replay("routing.uniform", "routing", routing="uniform", slower=slower, scatter=scatter)
    record = make_record((make_replay(scatter=scatter), uniform))
    found = check(record, "roofline.skew", target=target(1.0))
    assert found.verdict is verdict
    assert found.observed == pytest.approx(slower)
    assert "With skew 2.6 and reuse 0.295 the replay keeps" in found.reason
    assert ("too noisy" in found.reason) == (verdict is Verdict.UNPROVEN)


def test_skew_needs_both_routings_and_the_bare_machine(
    check: Any, make_record: Any, target: Any, make_replay: Make, bare_metal: Inventory
) -> None:
    alone = check(make_record((make_replay(),)), "roofline.skew", target=target(1.0))
    assert alone.verdict is Verdict.UNPROVEN
    guest = attrs.evolve(bare_metal, machine=attrs.evolve(bare_metal.machine, virtual=True, hypervisor="kvm"))
    both = (make_replay(), make_replay("routing.uniform", "routing", routing="uniform", slower=0.5))
    found = check(make_record(both, inventory=guest), "roofline.skew", target=target(1.0))
    assert found.verdict is Verdict.UNPROVEN
    assert "Measured: With skew 2.6" in found.reason


def test_skew_is_no_matter_of_one_sequence_on_one_node_or_of_unstable_figures(
    check: Any, make_record: Any, target: Any, make_replay: Make
) -> None:
    for more, why in (
        ({"placement": "single"}, "on one node one sequence cannot show what skew costs"),
        ({"state": State.UNSTABLE, "reason": "it scatters"}, "the figures are unstable"),
    ):
        both = (
            make_replay(**more),
            make_replay("routing.uniform", "routing", routing="uniform", **more),
        )
        found = check(make_record(both), "roofline.skew", target=target(1.0))
        assert found.verdict is Verdict.UNPROVEN
        assert why in found.reason


# --- where no runtime was driven -------------------------------------------------------------------------


def test_the_decode_check_tells_the_prediction_as_one_of_a_replay_and_stays_unproven(
    check: Any, make_record: Any, target: Any, tested: Any
) -> None:
    found = check(make_record(tested), "prototype.decode", target=target(0.5 * EXPECTED))
    assert found.verdict is Verdict.UNPROVEN
    assert found.observed is None
    assert (
        "Of a replay, not of a runtime: 3.12 to 4.21 tokens/s a sequence are to be expected" in found.reason
    )
    without = check(make_record(()), "prototype.decode", target=target(0.5 * EXPECTED))
    assert "replay" not in without.reason


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('instead = "replay"', 'instead = "guess"', r"\(prototype.decode\): instead 'guess' is unknown"),
        (
            'rule = "bare_metal"',
            'rule = "bare_metal"\ninstead = "replay"',
            r"instead has no meaning beside rule",
        ),
        ('instead = "replay"', "instead = 1", r"\(prototype.decode\): instead"),
    ],
)
def test_a_wrong_key_instead_is_refused(tmp_path: Any, old: str, new: str, said: str) -> None:
    text = criteria_module.SHIPPED.read_text()
    assert old in text
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=said):
        criteria_module.load(str(path))


def test_the_sentence_for_step_4_tells_what_is_not_in_it(
    check: Any, make_record: Any, target: Any, tested: Any, make_replay: Make
) -> None:
    gpu = check(make_record(tested), "prototype.decode", target=target(1.0, trunk="gpu"))
    assert "CPU memory alone allows" in gpu.reason and "GPUs and their links take not counted" in gpu.reason
    missed = (make_replay(stream=STREAM), make_replay("deep", "deep", layers=8, stream=STREAM, slower=2.0))
    told = check(make_record(missed), "prototype.decode", target=target(1.0)).reason
    assert "it failed its own test in deep" in told
    beyond = check(make_record(tested), "prototype.decode", target=target(1.0, context=131_072)).reason
    assert "contexts up to 8,192 were replayed, and 131,072 are asked" in beyond
    shaky = (make_replay(stream=STREAM, state=State.UNSTABLE, reason="it scatters"),)
    assert (
        "scatter too much to be relied on"
        in check(make_record(shaky), "prototype.decode", target=target(1.0)).reason
    )
    several = attrs.evolve(target(1.0), nodes=4)
    assert "replay" not in check(make_record(tested), "prototype.decode", target=several).reason
