"""The network on the page: what a reader sees of a peer, and nothing where none was named."""

from __future__ import annotations

from typing import Any

import attrs

from k3gate import metrics
from k3gate.records import Labels, Metric, Outcome, Proof, Sample, State


def measured(case: str, *rows: tuple[str, float, Labels]) -> Outcome:
    path = Proof("path", True, "from ens1 (mlx5_core, up, 12.5 GB/s, MTU 9000) to <b>ens2</b>")
    found = []
    for name, value, labels in rows:
        declaration = metrics.find(name)
        assert declaration is not None
        samples = tuple(Sample(value, number, 7, 1.0) for number in range(3))
        interval = (0.99 * value, 1.01 * value)
        found.append(
            Metric(
                name,
                declaration.unit,
                declaration.better,
                labels,
                samples,
                value,
                interval,
                State.OK,
                None,
                (path,),
            )
        )
    return Outcome("network", case, State.OK, None, 1.0, 3, (), tuple(found), title=case)


def page(sheet: Any, *outcomes: Outcome) -> str:
    record = attrs.evolve(sheet.record, outcomes=(*sheet.record.outcomes, *outcomes))
    return str(attrs.evolve(sheet, record=record).page())


def flow(direction: str, rate: float) -> Outcome:
    labels = {"direction": direction, "streams": 8, "together": False}
    share = ("network.link_share", rate / 12.5e9, labels)
    return measured(f"{direction}.s8", ("network.bandwidth", rate, labels), share)


def test_rates_each_way_and_round_trips_are_shown_with_their_share_of_the_line(bare_metal, tree) -> None:
    size = {"message_bytes": 7168}
    trip = measured("latency.7k", ("network.latency", 31.4e-6, size), ("network.latency.p99", 52e-6, size))
    text = page(bare_metal(), flow("to_peer", 11.7e9), flow("from_peer", 11.2e9), trip)
    shown = tree(text).text.replace("\u00a0", " ")
    assert (
        "The network carries 11.2 GB/s or more each way, a message of 7 KiB there and back in 31.4 µs"
        in shown
    )
    assert "Eight streams to the peer" in shown and "93.6 %" in shown
    assert "7 KiB there and back, 99th percentile" in shown
    assert "From ens1 (mlx5_core" in shown
    assert "<b>ens2</b>" not in text  # what a peer says is text


def test_without_a_peer_there_is_no_figure(bare_metal) -> None:
    assert 'id="fig-network"' not in page(bare_metal())
