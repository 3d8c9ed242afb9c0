"""The ladder keeps every rung, and never shows a rate above the paper as good."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from k3gate.analysis.ladder import ladder
from k3gate.metrics import KERNEL_EXPERT, MEMORY_READ, SERVED_DECODE
from k3gate.records import Inventory, Metric, Outcome, Run, RunRecord, RunStatus, Sample, State

MakeInventory = Callable[..., Inventory]
PAPER = 16 * 5600e6 * 8


def record(inventory: Inventory, rate: float | None) -> RunRecord:
    run = Run("a", None, None, None, "quick", "0", "t", None, RunStatus.COMPLETE)
    if rate is None:
        return RunRecord(run, inventory)
    metric = Metric(
        MEMORY_READ.name,
        "B/s",
        MEMORY_READ.better,
        {"scope": "machine", "threads": 64},
        (Sample(rate, 0, 1, 0.0),),
        rate,
        (rate, rate),
        State.OK,
    )
    return RunRecord(
        run, inventory, (Outcome("memory", "read.machine", State.OK, None, 1, 3, (), (metric,)),)
    )


def test_shares_and_tokens_are_taken_of_the_rung_above(make_inventory: MakeInventory) -> None:
    rungs = ladder(record(make_inventory("bare_metal"), 0.8 * PAPER), 25.83e9)
    assert [r.key for r in rungs] == ["paper", "read", "expert_reads", "expert_kernels", "replay", "runtime"]
    paper, read = rungs[:2]
    assert paper.value == PAPER
    assert read.of_above == pytest.approx(0.8)
    assert read.tokens_per_s == pytest.approx(0.8 * PAPER / 25.83e9)
    assert read.evidence == ("memory/read.machine#memory.bandwidth.read",)


def test_expert_kernels_are_those_of_one_token(make_inventory: MakeInventory) -> None:
    made = record(make_inventory("bare_metal"), 0.8 * PAPER)
    rows = tuple(
        Metric(
            KERNEL_EXPERT.name,
            "B/s",
            KERNEL_EXPERT.better,
            {"scope": "machine", "threads": 64, "tokens": tokens},
            (Sample(rate, 0, 1, 0.0),),
            rate,
            (rate, rate),
            State.OK,
        )
        for tokens, rate in ((256, 1e9), (1, 0.6 * PAPER))
    )
    kernels = Outcome("gemm", "expert.machine", State.OK, None, 1, 3, (), rows)
    rung = ladder(RunRecord(made.run, made.inventory, (*made.outcomes, kernels)), 25.83e9)[3]
    assert rung.value == 0.6 * PAPER
    assert rung.of_above == pytest.approx(0.75)
    assert rung.detail.startswith("64 pinned threads, each multiplying whole MXFP4 experts")
    assert rung.evidence == ("gemm/expert.machine#kernel.expert.rate",)


def test_rungs_that_were_not_measured_stay_with_their_reason(make_inventory: MakeInventory) -> None:
    for rung in ladder(record(make_inventory("vm"), None), None):
        assert rung.value is None
        assert rung.reason
        assert rung.tokens_per_s is None


def test_a_rate_above_the_paper_is_a_fault_and_not_a_good_score(make_inventory: MakeInventory) -> None:
    read = ladder(record(make_inventory("bare_metal"), 1.1 * PAPER), 25.83e9)[1]
    assert read.state is State.FAILED
    assert read.reason is not None
    assert "110 % of the paper rate is above the physical limit" in read.reason
    assert read.of_above is None
    assert read.tokens_per_s is None


def served(rate: float, **labels: object) -> Outcome:
    own = {"architecture": "kimi-k3", "streams": 1, "prompt_tokens": 256, **labels}
    metric = Metric(
        *(SERVED_DECODE.name, SERVED_DECODE.unit, SERVED_DECODE.better, own),
        (Sample(rate, 0, 1, 0.0),),
        rate,
        (0.9 * rate, 1.1 * rate),
        State.OK,
    )
    return Outcome("prototype", "prompt.256", State.OK, None, 1, 3, (), (metric,))


def with_served(made: RunRecord, *outcomes: Outcome) -> RunRecord:
    return attrs.evolve(made, outcomes=(*made.outcomes, *outcomes))


def test_a_running_runtime_is_a_rung_by_the_bytes_of_its_tokens(make_inventory: MakeInventory) -> None:
    made = record(make_inventory("bare_metal"), 0.8 * PAPER)
    slower = served(3.0, prompt_tokens=4096)
    rung = ladder(with_served(made, served(4.0), slower, served(1.0, streams=4)), 25.83e9)[5]
    assert (rung.key, rung.state) == ("runtime", State.OK)
    assert rung.tokens_per_s == pytest.approx(3.0)
    assert rung.of_above == pytest.approx(3.0 * 25.83e9 / (0.8 * PAPER))
    assert "prompts of 4096 tokens" in rung.detail
    together = ladder(with_served(made, served(4.0), served(1.0, streams=4)), 25.83e9, 4)[5]
    assert together.tokens_per_s == pytest.approx(1.0)


def test_a_rate_above_what_memory_gives_is_an_error_or_another_model(make_inventory: MakeInventory) -> None:
    made = record(make_inventory("bare_metal"), 0.5 * PAPER)
    beyond = 0.6 * PAPER / 25.83e9
    rung = ladder(with_served(made, served(beyond)), 25.83e9)[5]
    assert rung.state is State.FAILED
    assert rung.reason is not None
    assert "120 % of what memory was measured to give" in rung.reason
    assert "a measuring error, or another model than the target's" in rung.reason
    assert rung.tokens_per_s is None


def test_what_is_not_proven_to_be_the_model_is_no_rung(make_inventory: MakeInventory) -> None:
    made = record(make_inventory("bare_metal"), 0.8 * PAPER)
    rung = ladder(with_served(made, served(4.0, architecture="unproven")), 25.83e9)[5]
    assert (rung.value, rung.state) == (None, State.NOT_RUN)
    assert rung.reason is not None
    assert "not proven to be Kimi K3 (unproven)" in rung.reason


def test_the_replay_is_a_rung_with_what_was_replayed(
    make_inventory: MakeInventory, make_replay: Callable[..., Outcome]
) -> None:
    made = record(make_inventory("bare_metal"), 0.8 * PAPER)
    replayed = make_replay(stream=0.5 * PAPER)
    rung = ladder(RunRecord(made.run, made.inventory, (*made.outcomes, replayed)), 138e9)[4]
    assert rung.value == pytest.approx(0.5 * PAPER)
    assert rung.of_above == pytest.approx(0.5 / 0.8)
    assert rung.detail.startswith(
        "64 pinned threads, a miniature K3, token by token: 4 layers of 64 experts, trunk in"
    )
    assert rung.evidence == ("replay/base#replay.bandwidth",)


def test_a_replay_without_its_bandwidth_is_told_in_bytes_too(
    make_inventory: MakeInventory, make_replay: Callable[..., Outcome]
) -> None:
    """Never its tokens a second, of which there are a thousand million fewer."""
    made = record(make_inventory("bare_metal"), 0.8 * PAPER)
    whole = make_replay(stream=0.5 * PAPER)
    less = attrs.evolve(whole, metrics=tuple(m for m in whole.metrics if m.name != "replay.bandwidth"))
    rung = ladder(RunRecord(made.run, made.inventory, (*made.outcomes, less)), 138e9)[4]
    assert rung.value == pytest.approx(0.5 * PAPER)


def test_a_replay_from_which_nothing_follows_is_a_failed_rung_with_its_reason(
    make_inventory: MakeInventory, make_replay: Callable[..., Outcome]
) -> None:
    made = make_replay()
    bent = tuple(
        attrs.evolve(one, median=(one.median or 0) * 3) if one.name == "replay.part.seconds" else one
        for one in made.metrics
    )
    whole = record(make_inventory("bare_metal"), 0.8 * PAPER)
    found = attrs.evolve(whole, outcomes=(*whole.outcomes, attrs.evolve(made, metrics=bent)))
    rung = next(one for one in ladder(found, 25.83e9) if one.key == "replay")
    assert (rung.value, rung.state) == (None, State.FAILED)
    assert "its parts do not add up to a step" in (rung.reason or "")
