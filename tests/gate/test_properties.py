"""What must hold for any record: without evidence nothing passes, and what is missing never helps."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate import metrics
from k3gate.gate.judgement import badness
from k3gate.gate.targets import load as load_target
from k3gate.gate.targets import names as target_names
from k3gate.records import (
    Cpu,
    Inventory,
    Kernel,
    Limits,
    Machine,
    Memory,
    Metric,
    Numa,
    NumaNode,
    Outcome,
    RunStatus,
    State,
    Verdict,
)

QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NOT_MEASURED = [State.FAILED, State.NOT_RUN, State.NOT_PERMITTED, State.NOT_PRESENT]
LABELS = st.fixed_dictionaries(
    {
        "cpu_node": st.sampled_from([None, 0, 1, 7]),
        "memory_node": st.sampled_from([None, 0, 1, 7]),
        "scope": st.sampled_from(["core", "node", "machine"]),
        "placement": st.sampled_from(["local", "remote", "spread"]),
        "memory": st.sampled_from(["image", "pool"]),
        "architecture": st.just("kimi-k3"),
    }
)
UNKNOWN_MACHINES = st.builds(
    Inventory,
    machine=st.builds(
        Machine, virtual=st.sampled_from([None, True]), wsl=st.sampled_from([None, True, False])
    ),
    cpu=st.builds(Cpu, online=st.sampled_from([None, (0, 1)]), allowed=st.sampled_from([None, (0,)])),
    numa=st.builds(
        Numa,
        available=st.booleans(),
        nodes=st.sampled_from([(), (NumaNode(0, (0, 1), None),), (NumaNode(0, (), 1), NumaNode(4, (0,), 0))]),
    ),
    memory=st.builds(Memory, total_bytes=st.sampled_from([None, 0, 10**9, 10**13])),
    kernel=st.just(Kernel()),
    limits=st.builds(Limits, cgroup_memory_bytes=st.sampled_from([None, 10**9])),
)


@st.composite
def unmeasured(draw: Any) -> Outcome:
    declaration = metrics.find(draw(st.sampled_from(metrics.names())))
    assert declaration is not None
    state = draw(st.sampled_from(NOT_MEASURED))
    metric = Metric(
        declaration.name, declaration.unit, declaration.better, draw(LABELS), (), None, None, state, "gone"
    )
    probe = declaration.name.partition(".")[0]
    return Outcome(probe, "x", state, "gone", 0.0, 3, (), (metric,))


@QUIET
@given(
    inventory=UNKNOWN_MACHINES,
    outcomes=st.lists(unmeasured(), max_size=4),
    target=st.sampled_from(target_names()),
    status=st.sampled_from(list(RunStatus)),
)
def test_no_record_without_evidence_ever_yields_a_pass(
    judge: Any,
    make_record: Any,
    inventory: Inventory,
    outcomes: list[Outcome],
    target: str,
    status: RunStatus,
) -> None:
    result = judge(make_record(outcomes, inventory, status), target=load_target(target))
    verdicts = {c.verdict for step in result.steps for c in step.checks}
    assert verdicts <= {Verdict.FAIL, Verdict.UNPROVEN, Verdict.NOT_APPLICABLE}
    assert result.verdict in (Verdict.FAIL, Verdict.UNPROVEN)


@QUIET
@given(
    more=st.lists(unmeasured(), min_size=1, max_size=5),
    rate=st.sampled_from([20e9, 150e9, 268e9, 400e9]),
    target=st.sampled_from(target_names()),
)
def test_adding_what_was_not_measured_never_improves_a_verdict(
    judge: Any, make_record: Any, build: Any, more: list[Outcome], rate: float, target: str
) -> None:
    outcomes = [build.read(1, 0, rate) if o.case == "read.node1.node0" else o for o in build.sound()]
    record = make_record(outcomes)
    wanted = load_target(target)
    before = judge(record, target=wanted)
    after = judge(attrs.evolve(record, outcomes=(*record.outcomes, *more)), target=wanted)
    for old, new in zip(_checks(before), _checks(after), strict=True):
        assert badness(new.verdict) <= badness(old.verdict), (old, new)
    assert badness(after.verdict) <= badness(before.verdict)


@QUIET
@given(value=st.floats(0, 1e12), low=st.floats(0, 1.5), high=st.floats(0, 1.5))
def test_a_pass_has_its_whole_interval_inside_the_bound(
    judge: Any, make_record: Any, build: Any, value: float, low: float, high: float
) -> None:
    bent = build.read(1, 1, value, interval=(value * low, value * high))
    outcomes = [bent if o.case == "read.node1.node1" else o for o in build.sound()]
    found = build.check_of(judge(make_record(outcomes)), "roofline.local")
    if found.verdict is Verdict.PASS:
        assert value * low / 358.4e9 >= 0.65
        assert low <= 1 <= high
    if found.verdict is Verdict.FAIL:
        assert value * high / 358.4e9 < 0.65


def _checks(result: Any) -> list[Any]:
    return [check for step in result.steps for check in step.checks]
