"""Copies on the page: the matrix of nodes and GPUs, what far memory costs, and the rest as bars."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate import metrics
from k3gate.records import Case, Labels, LeftOut, Metric, Outcome, Proof, Sample, State

FIRST, SECOND = "0000:41:00.0", "0000:81:00.0"
IN, OUT = "host_to_device", "device_to_host"


def metric(name: str, value: float, labels: Labels, state: State = State.OK) -> Metric:
    declaration = metrics.find(name)
    assert declaration is not None
    samples = tuple(Sample(value, number, 7, 1.0) for number in range(3))
    proofs = (Proof("checksum", True, "all 5 words"), Proof("gated", True, "4 batches"))
    return Metric(
        name,
        declaration.unit,
        declaration.better,
        labels,
        samples,
        value,
        (0.99 * value, 1.01 * value),
        state,
        None,
        proofs,
    )


def copied(device: str, node: int, into: float, out: float, near: bool) -> Outcome:
    placement = "near" if near else "far"
    found = []
    for direction, rate in ((IN, into), (OUT, out)):
        labels = {"scope": "cell", "device": device, "memory_node": node, "placement": placement}
        labels |= {"direction": direction, "together": False, "memory": "pinned", "bytes": 256 << 20}
        found.append(metric("pcie.copy.rate", rate, labels))
    return outcome(f"copy.node{node}.{device[5:10]}", *found)


def outcome(case: str, *found: Metric) -> Outcome:
    return Outcome("pcie", case, State.OK, None, 1.0, 3, (), found, title=case)


def page(sheet: Any, *outcomes: Outcome, **run: Any) -> str:
    record = attrs.evolve(sheet.record, outcomes=(*sheet.record.outcomes, *outcomes))
    if run:
        record = attrs.evolve(record, run=attrs.evolve(record.run, **run))
    return str(attrs.evolve(sheet, record=record).page())


def shown(tree: Any, text: str) -> str:
    return str(tree(text).text).replace("\u00a0", " ")


@pytest.mark.case("PCI-13")
def test_pci_13_each_way_by_node_and_gpu_and_where_memory_must_lie(bare_metal: Any, tree: Any) -> None:
    """H2D 12,150 and 3,783 MB/s, D2H 12,890 and 2,539 MB/s."""
    near = copied(FIRST, 0, 12.15e9, 12.89e9, near=True)
    far = copied(FIRST, 1, 3.783e9, 2.539e9, near=False)
    text = shown(tree, page(bare_metal(), near, far))
    assert (
        "GPU 41:00 copies memory of node 1 at 0.20 of the rate of node 0: what it reads must lie on node 0"
        in text
    )
    assert "Host to device, GB/s" in text and "Device to host, GB/s" in text
    for value in ("12.2", "3.78", "12.9", "2.54"):
        assert value in text


def test_a_machine_of_one_node_tells_the_rate_of_the_slowest_gpu(bare_metal: Any, tree: Any) -> None:
    one, other = copied(FIRST, 0, 55e9, 56e9, near=True), copied(SECOND, 0, 54e9, 53e9, near=True)
    text = shown(tree, page(bare_metal(), one, other))
    assert "Every GPU copies 53.0 GB/s or more each way" in text


def test_a_cell_that_failed_is_no_zero(bare_metal: Any, tree: Any) -> None:
    good = copied(FIRST, 0, 55e9, 56e9, near=True)
    bad = copied(FIRST, 1, 55e9, 56e9, near=False)
    failed = tuple(attrs.evolve(one, state=State.FAILED, median=None, interval=None) for one in bad.metrics)
    text = page(bare_metal(), good, attrs.evolve(bad, metrics=failed, state=State.FAILED))
    figure = text[text.index('id="fig-pcie"') :]
    assert "failed" in figure[: figure.index("</figure>")]


def test_what_the_matrix_does_not_hold_stands_in_bars(bare_metal: Any, tree: Any) -> None:
    trip = {"scope": "trip", "device": FIRST, "memory_node": 0, "way": "queued", "bytes": 7168}
    whole = {"scope": "all", "direction": IN, "gpus": 2, "bytes": 64 << 20}
    loose = {"scope": "pageable", "device": FIRST, "memory_node": 0, "direction": IN, "memory": "pageable"}
    text = shown(
        tree,
        page(
            bare_metal(),
            outcome(
                "trip.node0.41:00",
                metric("pcie.trip", 5.1e-6, trip),
                metric("pcie.trip.token", 469e-6, {**trip, "trips": 92}),
            ),
            outcome(
                "together",
                metric("pcie.copy.rate", 88e9, whole),
                metric("pcie.copy.link_share", 0.7, whole),
            ),
            outcome("pageable.node0.41:00", metric("pcie.copy.rate", 9e9, {**loose, "bytes": 1 << 20})),
            outcome("device.41:00", metric("pcie.device.bandwidth", 4.3e12, {"device": FIRST})),
            outcome(
                "peer.41:00.81:00",
                metric("pcie.peer.rate", 380e9, {"device": FIRST, "peer": SECOND, "access": "direct"}),
            ),
            outcome(
                "nvbandwidth", metric("pcie.nvbandwidth.rate", 55.7e9, {"device": FIRST, "direction": IN})
            ),
        ),
    )
    assert "A token's activations need 469 µs to go to memory and back 92 times" in text
    assert "To all 2 GPUs at once" in text and "70.0 %" in text
    assert "To GPU 41:00, memory of node 0, not locked, 1 MiB at a time" in text
    assert "From GPU 41:00 to GPU 81:00, direct" in text
    assert "To GPU 41:00, by nvbandwidth" in text and "GPU 41:00, its own memory" in text


def test_copies_that_were_planned_and_not_made_say_why(bare_metal: Any, tree: Any) -> None:
    case = Case("pcie", "copy.node0.41:00", "copies", "node0", {}, 1.0, 0)
    refused = Outcome("pcie", case.name, State.NOT_PERMITTED, "no memory could be locked", 0.1, 3)
    text = shown(tree, page(bare_metal(), refused, plan=(case,)))
    assert "Copies between memory and GPUs: not permitted. No memory could be locked." in text
    assert text.count("not permitted. No memory could be locked") == 1  # and of no figure of memory


def test_without_gpus_there_is_no_figure(bare_metal: Any) -> None:
    left = LeftOut("pcie", "*", "the shortest profile measures memory alone")
    assert 'id="fig-pcie' not in page(bare_metal(), left_out=(left,))
