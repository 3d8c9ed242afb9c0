"""The network to a peer: bandwidth each way, by one stream and several, and round trips of messages."""

from __future__ import annotations

from collections.abc import Sequence

from k3gate.metrics import (
    NETWORK_IPERF3,
    NETWORK_RATE,
    NETWORK_RDMA,
    NETWORK_SHARE,
    NETWORK_TRIP,
    NETWORK_TRIP_99,
)
from k3gate.records import Metric
from k3gate.reports import charts, thread_figures, words
from k3gate.reports.evidence import Index, SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import doubted, ends, highest, microseconds_of, proof_line, range_of, usable
from k3gate.units import NBSP

PROBE = "network"
_RATES = (NETWORK_RATE.name, NETWORK_IPERF3.name, NETWORK_RDMA.name)
_TRIPS = (NETWORK_TRIP.name, NETWORK_TRIP_99.name)
_DIRECTIONS = {"to_peer": "to the peer", "from_peer": "from the peer"}


def network(index: Index, number: int) -> Figure | None:
    """A bar for each rate and each round trip; None where none was measured."""
    own = [row for row in index.samples if row.outcome.probe == PROBE and usable(row.metric)]
    rates = [row for row in own if row.metric.name in _RATES]
    trips = [row for row in own if row.metric.name in _TRIPS]
    if not rates and not trips:
        return None
    shares = {row.outcome.case: row.metric for row in own if row.metric.name == NETWORK_SHARE.name}
    bars = []
    for rows, style in ((rates, "f-data"), (trips, "f-warm")):
        if rows:
            place = charts.scale(0, max(highest(row.metric) for row in rows), end=92)
            bars += [_bar(row, place, style, shares) for row in rows]
    return Figure(
        anchor="fig-network",
        number=number,
        title=_title(rates, trips),
        subtitle="Bandwidth in GB/s and round trips in µs, each from 0; bar: median; whisker: "
        "95 % interval over rounds",
        source=f"{_path(own)}{proof_line([row for row in own if row.metric.name in (NETWORK_RATE.name, *_TRIPS)])}",
        links=ends([*rates, *trips]),
        head=("What travels", "Reading", "GB/s or µs", "95 % interval", "Of the line rate", "State"),
        bars=tuple(bars),
    )


def _title(rates: Sequence[SampleRow], trips: Sequence[SampleRow]) -> str:
    """The slower direction of several streams, and the round trip of the smaller message."""
    several = [
        row for row in rates if row.metric.name == NETWORK_RATE.name and not row.metric.labels.get("together")
    ]
    best: dict[object, SampleRow] = {}
    for row in several:
        direction = row.metric.labels.get("direction")
        if direction not in best or (row.metric.median or 0) > (best[direction].metric.median or 0):
            best[direction] = row
    parts, rest = [], []
    if len(best) == len(_DIRECTIONS):
        slower = min(best.values(), key=lambda row: row.metric.median or 0)
        parts.append(f"{words.value(slower.metric.median, 'B/s')} or more each way")
        rest.append(slower)
    first = next((row for row in trips if row.metric.name == NETWORK_TRIP.name), None)
    if first is not None:
        parts.append(
            f"a message of {_size(first.metric)} there and back in {words.microseconds(first.metric.median)}{NBSP}µs"
        )
        rest.append(first)
    return doubted(f"The network carries {', '.join(parts)}" if parts else "The network to the peer", rest)


def _bar(row: SampleRow, place: charts.Scale, style: str, shares: dict[str, Metric]) -> BarRow:
    metric = row.metric
    slow = style == "f-warm"
    figure, spread = microseconds_of(metric) if slow else (words.rate(metric.median), range_of(metric))
    share = shares.get(row.outcome.case) if metric.name == NETWORK_RATE.name else None
    return BarRow(
        title=words.capital(_what(metric)),
        sub="",
        chart=charts.cell(thread_figures.rate_bar(metric, place, style)),
        figures=(
            figure,
            spread,
            words.share(share.median) if share is not None else "" if slow else "not known",
        ),
        link=row.link,
        state=words.STATES[metric.state],
    )


def _what(metric: Metric) -> str:
    labels = metric.labels
    if metric.name in _TRIPS:
        tail = ", 99th percentile" if metric.name == NETWORK_TRIP_99.name else ""
        return f"{_size(metric)} there and back{tail}"
    if metric.name == NETWORK_RDMA.name:
        return "RDMA writes to the peer, by perftest"
    streams, direction = labels.get("streams"), _DIRECTIONS.get(str(labels.get("direction")), "")
    many = words.count(streams, "stream") if isinstance(streams, int) else "streams"
    if labels.get("together"):
        return f"half of {many} {direction}, the others back"
    return f"{many} {direction}" + (", by iperf3" if metric.name == NETWORK_IPERF3.name else "")


def _size(metric: Metric) -> str:
    size = metric.labels.get("message_bytes")
    return f"{size >> 10}{NBSP}KiB" if isinstance(size, int) else "unknown size"


def _path(rows: Sequence[SampleRow]) -> str:
    """Both ends of the path, as the first figure's proof has them."""
    proofs = (proof for row in rows for proof in row.metric.proofs if proof.name == "path")
    first = next(proofs, None)
    return f"{words.capital(first.detail)}. " if first is not None else ""
