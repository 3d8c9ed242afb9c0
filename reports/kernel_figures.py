"""Products of K3's matrices: against both roofs, where one gives way to the other, and by instruction set."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from k3gate import metrics, units
from k3gate.analysis.kernels import Point, Product, Roofs, products, roofs, tokens_of, turning, usable
from k3gate.records import MetricDeclaration, RunRecord, State
from k3gate.reports import charts, words
from k3gate.reports.evidence import Index, SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import doubted, ends, proof_line
from k3gate.units import NBSP

HEIGHT, FLOOR, TOP = 332, 296, 12
"""Of a plot in px: all of it, where its horizontal axis lies, and its upper edge."""
_TITLES = {
    "expert": "Whole expert",
    "expert_up": "Expert, gate or up",
    "expert_down": "Expert, down",
    "attention_in": "Trunk, to the heads",
    "attention_out": "Trunk, from the heads",
    "latent_in": "To the experts' width",
    "latent_out": "From the experts' width",
    "head": "Head",
}
PATHS = {
    "amx_int8": "AMX, INT8",
    "amx_bf16": "AMX, BF16",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "avx512": "AVX-512",
    "avx_vnni": "AVX VNNI",
    "avx2": "AVX2",
    "generic": "plain C++",
}


def lacking(record: RunRecord) -> str | None:
    """Which roof is missing over products that were measured; None where none is, or nothing was multiplied."""
    limits = roofs(record)
    if not products(record):
        return None
    if not limits.read:
        return "the read rate of the whole machine was not measured beside the products"
    return None if limits.peaks else "arithmetic on registers was not measured beside the products"


def roofline(record: RunRecord, index: Index, number: int) -> Figure | None:
    """Points of the whole machine below its two roofs; None where nothing was multiplied or a roof is missing."""
    limits, found = roofs(record), products(record)
    drawn = [one for one in found if one.shape in ("expert", "attention_in") and one.format != "int8"]
    if not drawn or not limits.read or not limits.peaks:
        return None
    rows = _rows_of(index, drawn)
    first = drawn[0].points[0]
    memory = (first.weights.median or 0.0) / limits.read
    arithmetic = (first.flops.median or 0.0) / (limits.peak(first) or 1.0)
    what = "an expert" if drawn[0].shape == "expert" else "a product"
    title = (
        f"At one token {what} uses {words.share(memory, 2)} of the read rate and {words.share(arithmetic, 2)} of "
        "the arithmetic"
        if first.tokens == 1
        else "Products below the roofs of memory and arithmetic"
    )
    return Figure(
        anchor="fig-roofline",
        number=number,
        title=doubted(title, rows),
        subtitle="Operations a second of all cores, both axes logarithmic. Discs: whole experts; rings: BF16 trunk; "
        "numbers: tokens of a matrix. Lines: the measured read rate, and arithmetic on registers alone",
        source=f"A point on a line uses all that the machine gives.{_beyond(drawn, limits)} {proof_line(rows)}",
        links=ends(rows),
        plot=_roofline_plot(drawn, limits),
        head=("Roof", "", "Rate", "By", "State"),
        bars=tuple(_roof_rows(index, limits)),
    )


def _roofline_plot(drawn: Sequence[Product], limits: Roofs) -> Markup:
    read = limits.read or 1.0
    points = [(one, point) for one in drawn for point in one.points]
    left = min(point.intensity for _, point in points) / 2
    right = max(point.intensity for _, point in points) * 2
    top = max(value for value, _ in limits.peaks.values()) * 1.4
    bottom = min(min(point.flops.median or top for _, point in points), read * left) / 1.4
    x = charts.scale(left, right, log=True)
    y = charts.scale(bottom, top, log=True, start=FLOOR, end=TOP)
    unit, scale = ("GFLOP/s", 1e9) if top < 1e14 else ("TFLOP/s", 1e12)
    parts = charts.levels(y, _powers(bottom, top), lambda value: f"{value / scale:,g}")
    parts += charts.axis(x, _powers(left, right), FLOOR, lambda value: units.significant(value, 1))
    parts.append(
        charts.text(100, HEIGHT - 4, "operations for each byte of weights", style="t2", anchor="end")
    )
    parts.append(charts.text(0, 4, unit, style="t2", anchor="end", dx=-8))
    ridge = top / 1.4 / read
    parts.append(charts.curve([(x(left), y(read * left)), (x(ridge), y(top / 1.4))], HEIGHT, "c-line"))
    middle = (left * min(ridge, right)) ** 0.5
    parts.append(
        charts.text(
            x(middle),
            round(y(read * middle)) - 12,
            f"read rate {words.value(read, 'B/s')}",
            style="halo",
            anchor="end",
        )
    )
    for kind, (value, _) in sorted(limits.peaks.items(), key=lambda item: -item[1][0]):
        parts.append(charts.curve([(x(value / read), y(value)), (100, y(value))], HEIGHT, "c-roof"))
        told = f"{kind.upper()} {words.value(value, 'FLOP/s')}"
        parts.append(charts.text(100, round(y(value)) - 6, told, style="halo", anchor="end"))
    for one, point in points:
        style = "f-data" if one.shape == "expert" else "o-data"
        at = x(point.intensity), y(point.flops.median or bottom)
        parts.append(charts.dot(at[0], f"{at[1]:.1f}", style, 4.6))
        parts.append(charts.text(at[0], round(at[1]) + 15, str(point.tokens), style="halo", dx=7))
    told = "; ".join(
        f"{_TITLES[one.shape]}, {one.format.upper()}: "
        + ", ".join(f"{p.tokens} tokens {words.value(p.flops.median, 'FLOP/s')}" for p in one.points)
        for one in drawn
    )
    return charts.svg(parts, height=HEIGHT, key="roofline", title="Roofline of the whole machine", desc=told)


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten within bounds; of two or four where there are too few of them."""
    for base in (10.0, 4.0, 2.0):
        first, last = math.ceil(math.log(low, base)), math.floor(math.log(high, base))
        if last - first >= 2 or base == 2.0:
            step = max(1, (last - first) // 5)
            return [base**n for n in range(first, last + 1, step)]
    return []


def _roof_rows(index: Index, limits: Roofs) -> list[BarRow]:
    rows = []
    for row in index.samples:
        metric = row.metric
        if metric.labels.get("scope") != "machine" or not usable(metric):
            continue
        if metric.name == metrics.MEMORY_READ.name:
            rows.append(_plain(row, "Memory, read", (words.value(metric.median, "B/s"), "loads alone")))
        elif metric.name == metrics.KERNEL_PEAK.name:
            kind, path = str(metric.labels.get("type")), str(metric.labels.get("path"))
            if limits.peaks.get(kind, ("", ""))[1] == path:
                told = words.value(metric.median, "FLOP/s")
                rows.append(_plain(row, f"Arithmetic on {kind.upper()}", (told, PATHS.get(path, path))))
    return rows


def _plain(row: SampleRow, title: str, figures: tuple[str, ...]) -> BarRow:
    return BarRow(title, "", charts.cell([]), figures, row.link, words.STATES[row.metric.state])


# --- crossing --------------------------------------------------------------------------------------------


def crossing(record: RunRecord, index: Index, number: int) -> Figure | None:
    """Both rates as shares of what the machine gives, and of each product where arithmetic takes over."""
    limits, found = roofs(record), products(record)
    if not found or not limits.read or not limits.peaks:
        return None
    expert = next((one for one in found if one.shape == "expert"), found[0])
    tokens, told = turning(expert.points, limits)
    rows = _rows_of(index, [expert])
    what = "An expert" if expert.shape == "expert" else "A product"
    title = (
        f"{what} turns from memory to arithmetic {told} tokens"
        if tokens is not None
        else f"{what} is {told} tokens"
        if told.startswith("bound")
        else f"{what}: {told}"
    )
    most = max(point.tokens for one in found for point in one.points)
    place = charts.scale(1, most, log=True, start=4, end=92)
    return Figure(
        anchor="fig-crossing",
        number=number,
        title=doubted(title, rows),
        subtitle=f"{_TITLES.get(expert.shape, expert.shape)}, {expert.format.upper()}, all cores. Blue: weights a "
        "second as a share of the read rate; brown: operations a second as a share of arithmetic on registers; the "
        "table says the same of each product",
        source=f"Where the lines cross, memory and arithmetic are used alike: with fewer tokens memory limits."
        f"{_beyond(found, limits)} {proof_line(rows)}",
        links=ends(rows),
        plot=_crossing_plot(expert, limits, tokens),
        head=(
            "Product",
            "Turns at so many tokens",
            "GB/s, least",
            "Of read",
            "FLOP/s, most",
            "Of peak",
            "Turns",
            "State",
        ),
        bars=tuple(_crossing_row(one, limits, place, index) for one in found),
    )


def _shares(point: Point, limits: Roofs) -> tuple[float, float]:
    memory = (point.weights.median or 0.0) / (limits.read or 1.0)
    return memory, (point.flops.median or 0.0) / (limits.peak(point) or 1.0)


def _beyond(found: Sequence[Product], limits: Roofs) -> str:
    """What a share of more than the whole read rate means; empty where there is none."""
    if all(_shares(point, limits)[0] <= 1 for one in found for point in one.points):
        return ""
    return (
        f" More than 100{NBSP}% of the read rate: loads alone were measured too low here, since a product cannot "
        "exceed memory."
    )


def _crossing_plot(one: Product, limits: Roofs, tokens: float | None) -> Markup:
    shares = [(point.tokens, *_shares(point, limits)) for point in one.points]
    top = max(1.0, *(max(pair[1:]) for pair in shares))
    x = charts.scale(shares[0][0], max(shares[-1][0], shares[0][0] + 1), log=True)
    y = charts.scale(0, top, start=FLOOR, end=TOP)
    parts = charts.levels(y, [0.25, 0.5, 0.75, 1.0], lambda value: f"{value:.0%}".replace("%", f"{NBSP}%"))
    parts += charts.axis(x, [pair[0] for pair in shares], FLOOR, lambda value: f"{value:.0f}")
    parts.append(charts.text(100, HEIGHT - 2, "tokens, logarithmic", style="t2", anchor="end"))
    if tokens is not None:
        parts.append(charts.vertical(x(tokens), TOP, FLOOR, "cut"))
        parts.append(charts.text(x(tokens), TOP + 4, f"{tokens:.0f}", style="tb halo", dx=6))
    for place, (style, dots) in enumerate((("c-line", "f-data"), ("c-line2", "f-warm"))):
        line = [(x(pair[0]), y(pair[1 + place])) for pair in shares]
        parts.append(charts.curve(line, HEIGHT, style))
        parts += [charts.dot(at, f"{height:.1f}", dots) for at, height in line]
    told = "; ".join(
        f"{count} tokens: {words.share(memory, 2)} of the read rate, {words.share(arithmetic, 2)} of the peak"
        for count, memory, arithmetic in shares
    )
    return charts.svg(
        parts, height=HEIGHT, key="crossing", title="Memory and arithmetic by tokens", desc=told
    )


def _crossing_row(one: Product, limits: Roofs, place: charts.Scale, index: Index) -> BarRow:
    few, many = one.points[0], one.points[-1]
    tokens, told = turning(one.points, limits)
    parts = [charts.horizontal(place(few.tokens), place(many.tokens), "50%", "g")]
    if tokens is not None:
        parts.append(charts.dot(place(tokens), "50%", "f-data"))
    states = [metric.state for point in one.points for metric in (point.weights, point.flops)]
    state = next((state for state in states if state is not State.OK), State.OK)
    return BarRow(
        title=f"{_TITLES.get(one.shape, one.shape)}, {one.format.upper()}",
        sub="",
        chart=charts.cell(parts),
        figures=(
            words.rate(few.weights.median),
            words.share(_shares(few, limits)[0], 2),
            words.value(many.flops.median, "FLOP/s"),
            words.share(_shares(many, limits)[1], 2),
            f"{tokens:.0f}" if tokens is not None else told,
        ),
        link=index.case_link(one.outcome.probe, one.outcome.case),
        state=words.STATES[state],
    )


# --- beside a runtime's own library ----------------------------------------------------------------------


def beside(record: RunRecord, index: Index, number: int) -> Figure | None:
    """Our product of a matrix and that of another library, one core each; None where no such library was there."""
    theirs = [row for row in rows_of_metric(index, metrics.KERNEL_PEER) if usable(row.metric)]
    ours: dict[tuple[str, int | None], Point] = {
        (one.format, point.tokens): point
        for one in products(record, "core")
        if one.shape == "expert_up"
        for point in one.points
    }
    pairs = [
        (row, point)
        for row in theirs
        if (point := ours.get((str(row.metric.labels.get("format")), tokens_of(row.metric)))) is not None
    ]
    if not pairs:
        return None
    first, point = pairs[0]
    engine = str(first.metric.labels.get("engine"))
    share = (first.metric.median or 0.0) / (point.weights.median or 1.0)
    place = charts.scale(
        0, max(max(row.metric.median or 0, p.weights.median or 0) for row, p in pairs), end=96
    )
    bars = []
    for row, mine in pairs:
        ratio = (row.metric.median or 0.0) / (mine.weights.median or 1.0)
        bars.append(
            BarRow(
                title=f"{str(row.metric.labels.get('format')).upper()}, {words.count(mine.tokens, 'token')}",
                sub="",
                chart=charts.cell(
                    [
                        charts.band(0, place(mine.weights.median or 0.0), "18%", "28%", "f-data"),
                        charts.band(0, place(row.metric.median or 0.0), "54%", "28%", "f-data2"),
                    ]
                ),
                figures=(
                    words.rate(mine.weights.median),
                    words.rate(row.metric.median),
                    words.share(ratio, 2),
                ),
                link=row.link,
                state=words.STATES[row.metric.state],
            )
        )
    return Figure(
        anchor="fig-beside",
        number=number,
        title=doubted(
            f"With one token {engine} has {words.share(share, 2)} of what this core can do"
            if point.tokens == 1
            else f"{engine} beside k3gate's own products",
            [row for row, _ in pairs],
        ),
        subtitle="Weights a second in GB/s from 0 of an expert's gate or up, one core; dark: k3gate's product, light: "
        f"{engine}",
        source="What a runtime with this library has today, against what the machine allows. Its results are not "
        f"compared with anything here. {proof_line([row for row, _ in pairs])}",
        links=ends([row for row, _ in pairs]),
        head=("Weights, tokens", "Both", "Ours, GB/s", "Theirs, GB/s", "Theirs of ours", "State"),
        bars=tuple(bars),
    )


def rows_of_metric(index: Index, declaration: MetricDeclaration) -> list[SampleRow]:
    return [row for row in index.samples if row.metric.name == declaration.name]


def _rows_of(index: Index, found: Sequence[Product]) -> list[SampleRow]:
    """Rows of operations a second of all cases of these products."""
    own = [outcome for one in found for outcome in one.outcomes]
    return [
        row
        for row in rows_of_metric(index, metrics.KERNEL_FLOPS)
        if any(row.outcome is outcome for outcome in own)
    ]
