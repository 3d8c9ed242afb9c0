"""The check `roofline.network`: needed by targets of several nodes alone, and never passed without a peer."""

from __future__ import annotations

import attrs
import pytest

from k3gate.gate.targets import load
from k3gate.probes import network_plan
from k3gate.records import LeftOut, Outcome, State, Verdict

CHECK = "roofline.network"


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory):
    """The shipped target, over two machines."""
    from k3gate.gate import targets

    text = (targets.FOLDER / "residency-lab.toml").read_text()
    path = tmp_path_factory.mktemp("target") / "two.toml"
    path.write_text(text.replace("nodes = 1", "nodes = 2"))
    target = load(str(path))
    assert target.nodes == 2
    return target


def measured(build, direction: str, share: float | None, **changes: object) -> Outcome:
    metric = build.metric(
        "network.link_share", share, labels={"direction": direction, "streams": 8}, **changes
    )
    return Outcome("network", f"{direction}.s8", metric.state, metric.reason, 1.0, 3, (), (metric,))


def test_a_target_of_one_node_needs_no_network(check, make_record) -> None:
    assert check(make_record(), CHECK).verdict is Verdict.NOT_APPLICABLE


def test_without_a_peer_it_is_unproven_with_the_command_that_settles_it(
    check, make_record, two_nodes
) -> None:
    record = make_record()
    left = LeftOut("network", "all", network_plan.WITHOUT)
    record = attrs.evolve(record, run=attrs.evolve(record.run, left_out=(left,)))
    found = check(record, CHECK, target=two_nodes)
    assert found.verdict is Verdict.UNPROVEN
    assert "no peer was named" in found.reason
    assert found.remedy == "Run `k3gate run --peer HOST`."


@pytest.mark.parametrize(
    ("to_peer", "from_peer", "verdict"),
    [(0.93, 0.92, Verdict.PASS), (0.93, 0.5, Verdict.FAIL), (0.5, 0.93, Verdict.FAIL)],
)
def test_each_direction_is_held_against_the_line(
    to_peer: float, from_peer: float, verdict: Verdict, check, make_record, build, two_nodes
) -> None:
    outcomes = (*build.sound(), measured(build, "to_peer", to_peer), measured(build, "from_peer", from_peer))
    found = check(make_record(outcomes), CHECK, target=two_nodes)
    assert found.verdict is verdict
    assert found.observed == min(to_peer, from_peer) or verdict is Verdict.PASS


def test_one_direction_alone_proves_nothing(check, make_record, build, two_nodes) -> None:
    failed = Outcome("network", "from_peer.s8", State.FAILED, "the peer box-b:20263 is gone", 1.0, 3)
    outcomes = (*build.sound(), measured(build, "to_peer", 0.93), failed)
    found = check(make_record(outcomes), CHECK, target=two_nodes)
    assert found.verdict is Verdict.UNPROVEN
    assert "is gone" in found.reason


def test_an_interface_without_a_line_rate_leaves_it_unproven_with_the_reason(
    check, make_record, build, two_nodes
) -> None:
    reason = "interface bond0 of the peer tells no line rate, as virtual ones do not"
    line = Outcome("network", "line", State.NOT_PRESENT, reason, 0.1, 3)
    found = check(make_record((*build.sound(), line)), CHECK, target=two_nodes)
    assert found.verdict is Verdict.UNPROVEN and reason in found.reason
