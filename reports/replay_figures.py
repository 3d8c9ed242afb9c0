"""Figures of the decode replay: a token's time by part, one factor at a time, the prediction against itself."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from markupsafe import Markup

from k3gate import units
from k3gate.analysis import replay, replayed
from k3gate.analysis.expectation import Expectation
from k3gate.analysis.replay import SelfTest
from k3gate.analysis.replayed import PARTS, Step
from k3gate.metrics import REPLAY_PART
from k3gate.model import k3
from k3gate.records import RunRecord, State
from k3gate.reports import charts, words
from k3gate.reports.evidence import Index, Link, SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import doubted, ends, proof_line
from k3gate.units import NBSP

PROBE = "replay"
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "attention_projections": "Attention projections",
        "attention_core": "Attention states and caches",
        "router": "Router",
        "latent": "To and from the experts' width",
        "routed": "Routed experts",
        "shared": "Shared experts",
        "dense": "Dense layer",
        "head": "Head",
        "mix": "Norms and mixes",
        "synchronisation": "Waiting of threads",
    }
)
_SHORT: Mapping[str, str] = MappingProxyType(
    {
        "attention_projections": "projections",
        "attention_core": "states",
        "router": "router",
        "latent": "latent",
        "routed": "routed",
        "shared": "shared",
        "dense": "dense",
        "head": "head",
        "mix": "mixes",
        "synchronisation": "waiting",
    }
)
_LETTER = 2.9
"""Width of a letter of a label in per cent of the narrowest plot, 240 px."""
_STACK = 62
_WHOLE = ("base", "placement", "trunk", "batch", "context", "routing", "pages", "deep")
"""Factors in the order in which they are shown."""
_MOST_CASES = 40
_MOST_LEFT_OUT = 6


# --- a token's time -------------------------------------------------------------------------------------


def token(found: Expectation | None, index: Index, number: int) -> Figure | None:
    """A predicted token by part, stacked, and a row for each part; None where nothing was predicted."""
    if found is None:
        return None
    prediction = found.prediction
    total = sum(prediction.seconds.values())
    shown = [part for part in PARTS if prediction.seconds.get(part, 0.0) > 0]
    rows = _rows_of(index, [prediction.base])
    by_part = {str(row.metric.labels.get("part")): row for row in rows if row.metric.name == REPLAY_PART.name}
    if not prediction.base.seconds.get("dense") and "shared" in by_part:
        by_part["dense"] = by_part["shared"]  # from which it was computed
    most = max(shown, key=lambda part: prediction.seconds[part])
    low, high = (words.value(1 / rate, "s", 2) for rate in reversed(prediction.interval))
    if low.split(NBSP)[-1] == high.split(NBSP)[-1]:
        low = low.split(NBSP)[0]
    share = words.share(prediction.seconds[most] / total, 2)
    who = "one sequence" if found.batch == 1 else f"each of {found.batch:,} sequences decoded together"
    trunk = (
        "without the trunk, which GPUs hold" if found.trunk == "gpu" else f"trunk in {found.trunk.upper()}"
    )
    unit, scale = ("ms", 1e-3) if total < 1 else ("s", 1.0)
    doubt = f" In doubt: {'; '.join(found.doubts)}." if found.doubts else ""
    starts = _running(prediction.seconds[part] / total for part in shown)
    place = charts.scale(0, 1, end=96)
    return Figure(
        anchor="fig-token",
        number=number,
        title=doubted(
            f"A token is predicted to take {low} to {high}, {share} of it {_lower(TITLES[most])}", rows[:1]
        ),
        subtitle=f"A step of all {k3.LAYERS} layers for {who}, context {found.context:,}, {trunk}: what each part took "
        "in the miniature, times its share in the whole; the middle of the interval",
        source=f"Assumed: {'; '.join(prediction.assumptions)}. The interval holds the scatter of the rounds and an "
        f"allowance of a factor of {replay.ALLOWANCE:g} either way ({replay.BATCH_ALLOWANCE:g} to another batch). "
        f"{found.held}{doubt}{_beyond(found)} {found.published} {_miniature(prediction.base)}. "
        f"{proof_line(rows[:1])}{_routers(rows[:1])}",
        links=ends(rows),
        plot=_stack(shown, prediction.seconds, total, unit, scale),
        head=("Part", "Of a token's time", unit, "Share", "GB", "GB/s", "Of the read rate", "State"),
        bars=tuple(
            BarRow(
                title=TITLES[part],
                sub="",
                chart=charts.cell(
                    [charts.band(place(start), place(start + share), "20%", "60%", f"seg seg-{part}")]
                ),
                figures=(
                    units.significant(prediction.seconds[part] / scale),
                    words.share(share, 2),
                    *_streamed(prediction.seconds[part], prediction.bytes.get(part, 0.0), found.read_rate),
                ),
                link=by_part[part].link if part in by_part else None,
                state=words.STATES[by_part[part].metric.state] if part in by_part else "computed",
            )
            for part, (start, share) in zip(shown, starts, strict=True)
        ),
    )


_ROUTER = re.compile(
    r"the router itself chooses (\d{1,6}) of the (\d{1,6}) experts .{1,40}? near ties in (\d{1,6}) of (\d{1,6})"
)


def _routers(rows: Sequence[SampleRow]) -> str:
    """How far the router agrees with float64, of the proof that these figures carry; empty where it does not say."""
    proofs = (proof for row in rows for proof in row.metric.proofs if proof.name == "model_reference")
    for proof in proofs:
        found = _ROUTER.search(proof.detail[:1000])
        if found:
            agreed, of, tied, choices = found.groups()
            return (
                f" Router of the reduced model: {agreed} of {of} experts as float64 chooses them, near ties in {tied} "
                f"of {choices} choices; what is timed has its experts forced."
            )
    return ""


def _streamed(seconds: float, size: float, read: float | None) -> tuple[str, str, str]:
    """(GB, GB/s, share of the read rate) of a part; a dash where it moves no weights, states or caches."""
    if size <= 0:
        return "–", "–", "–"
    rate = size / seconds
    return units.significant(size / 1e9), words.rate(rate), words.share(rate / read, 2) if read else "unknown"


def _beyond(found: Expectation) -> str:
    """What a share of more than the whole read rate means; empty where there is none."""
    seconds, read = found.prediction.seconds, found.read_rate
    rates = [size / seconds[part] for part, size in found.prediction.bytes.items() if seconds.get(part)]
    if not read or all(rate <= read for rate in rates):
        return ""
    return (
        f" More than 100{NBSP}% of the read rate: loads alone were measured too low here, or a cache held what the "
        "part reads."
    )


def _running(shares: Iterable[float]) -> list[tuple[float, float]]:
    """(start, width) of stacked shares."""
    found, start = [], 0.0
    for share in shares:
        found.append((start, share))
        start += share
    return found


def _stack(
    shown: Sequence[str], seconds: Mapping[str, float], total: float, unit: str, scale: float
) -> Markup:
    parts: list[Markup] = []
    starts = _running(seconds[part] / total for part in shown)
    for part, (start, share) in zip(shown, starts, strict=True):
        parts.append(charts.band(100 * start, 100 * (start + share), 20, 34, f"seg seg-{part}"))
        label = _SHORT[part]
        if 100 * share >= _LETTER * len(label):
            parts.append(charts.text(100 * (start + share / 2), 13, label, style="tb", anchor="middle"))
    parts.append(charts.horizontal(0, 100, 54, "ax"))
    for edge in (0.25, 0.5, 0.75):
        parts.append(charts.vertical(100 * edge, 54, 58, "ax"))
    parts.append(charts.text(0, 71, "0", style="t2"))
    parts.append(
        charts.text(
            100, 71, f"middle: {units.significant(total / scale, 2)}{NBSP}{unit}", style="t2", anchor="end"
        )
    )
    told = "; ".join(f"{TITLES[part]} {units.significant(seconds[part] / scale)} {unit}" for part in shown)
    return charts.svg(
        parts, height=_STACK + 14, key="token", title="The time of a predicted token by part", desc=told
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _miniature(step: Step) -> str:
    """What was replayed, in a sentence."""
    routing = {"model": "routing by a model", "uniform": "routing uniform", "trace": "routing by a trace"}
    parts = [
        f"{step.counted('layers')} layers of {step.counted('experts')} experts",
        routing.get(str(step.label("routing")), "routing not stated"),
    ]
    for name in ("skew", "reuse", "imbalance"):
        value = step.label(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e6:
            parts.append(f"{name} {value:g}")
    fitted = step.text("fitted_from")
    if fitted is not None:
        parts.append(f"fitted from {fitted}")
    return f"Replayed: {', '.join(parts)}"


# --- one factor at a time --------------------------------------------------------------------------------


def factors(record: RunRecord, index: Index, number: int) -> Figure | None:
    """The miniature's rate by case, each beside the base case; None where the base case gave none."""
    found = [one for one in replayed.steps(record) if one.measured]
    base = next((one for one in found if one.label("factor") == "base"), None)
    if base is None:
        return None
    cases = sorted(
        (one for one in found if one is not base and one.label("factor") in _WHOLE), key=_order_of_factor
    )
    shown = [base, *cases][:_MOST_CASES]
    rows = {one.outcome.case: row for one in shown if (row := _rate_row(index, one)) is not None}
    top = max(one.interval[1] if one.interval else one.tokens_per_s for one in shown)
    place = charts.scale(0, top, end=92)
    title, about = _finding(base, cases)
    more = len(cases) + 1 - len(shown)
    left = f" {words.count(more, 'more case')} under Samples." if more > 0 else ""
    sampled = [rows[one.outcome.case] for one in shown if one.outcome.case in rows]
    return Figure(
        anchor="fig-factors",
        number=number,
        title=doubted(title, [rows.get(one.outcome.case) for one in about]),
        subtitle="Decode rate of the miniature in tokens/s of each sequence, from 0; dark: the base case; whisker: "
        "95 % interval over rounds; of base: the ratio with its interval; crossing: MB of a step that threads copy "
        "from another node's memory",
        source=f"{_base_line(base)}{left}{_left_out(record)} {proof_line(sampled)}",
        links=ends(sorted(sampled, key=lambda row: row.number)),
        head=("Case", "Decode rate", "tokens/s", "Of base", "Its interval", "MB crossing", "State"),
        bars=tuple(_factor_row(one, base, place, rows.get(one.outcome.case), index) for one in shown),
    )


def _order_of_factor(step: Step) -> tuple[int, str, int]:
    factor = str(step.label("factor"))
    number = step.number("batch") if factor == "batch" else step.number("context")
    return _WHOLE.index(factor), factor, number


def _factor_row(one: Step, base: Step, place: charts.Scale, row: SampleRow | None, index: Index) -> BarRow:
    parts = [charts.band(0, place(one.tokens_per_s), "25%", "50%", "f-data" if one is base else "f-data2")]
    if one.interval is not None:
        parts.append(charts.whisker(place(one.interval[0]), place(one.interval[1]), "wi"))
    ratio, interval = replayed.against(one, base)
    return BarRow(
        title=_named(one),
        sub="",
        chart=charts.cell(parts),
        figures=(
            units.significant(one.tokens_per_s),
            "1" if one is base else units.significant(ratio),
            "–" if one is base else "–".join(units.significant(edge) for edge in interval),
            _crossing(one.crossed),
        ),
        link=row.link if row is not None else index.case_link(one.outcome.probe, one.outcome.case),
        state=words.STATES[one.rate.state],
    )


def _crossing(size: float | None) -> str:
    """Bytes of a step in MB, for a column; a word where no machine could have it."""
    return units.significant(size / 1e6) if size is not None and 0 <= size <= 1e15 else "unknown"


def _named(step: Step) -> str:
    """What a case changes, in words; its own name where its labels do not say."""
    factor, labels = step.label("factor"), step.rate.labels
    value = labels.get(str(factor))
    named = {
        "placement": {
            "owner": "Experts on the node that executes them",
            "interleaved": "Weights interleaved over the nodes",
            "replicated": "Every expert on every node",
            "single": "One node alone",
        },
        "trunk": {
            "bf16": "Trunk in BF16",
            "q8_0": "Trunk in Q8_0",
            "mxfp4": "Trunk in MXFP4",
            "gpu": "No trunk",
        },
        "routing": {
            "uniform": "Uniform routing",
            "model": "Routing by a model",
            "trace": "Routing by the trace",
        },
        "pages": {"small": f"Pages of 4{NBSP}KiB"},
        "deep": {},
    }
    if factor == "base":
        return "Base case"
    if factor == "deep":
        return f"{words.capital(step.counted('layers'))} layers"
    if factor == "batch":
        return f"{words.capital(step.counted('batch'))} sequences together"
    if factor == "context":
        return f"Context {step.counted('context')}"
    return named.get(str(factor), {}).get(str(value)) or str(step.outcome.case)


def _base_line(base: Step) -> str:
    """What the base case is."""
    where = {
        "owner": "experts on the node that executes them",
        "interleaved": "weights interleaved over the nodes",
        "replicated": "every expert on every node",
        "single": "one node",
    }.get(str(base.label("placement")), "placement not stated")
    trunk = "no trunk" if base.label("trunk") == "gpu" else f"trunk in {str(base.label('trunk')).upper()}"
    many = "one sequence" if base.number("batch") == 1 else f"{base.counted('batch')} sequences"
    return (
        f"Base case: {base.counted('threads')} threads, {base.counted('layers')} layers of "
        f"{base.counted('experts')} experts, {trunk}, {where}, {many}, context {base.counted('context')}."
    )


def _finding(base: Step, cases: Sequence[Step]) -> tuple[str, list[Step]]:
    """The title: whether the whole machine is faster than one node, else the case that changes most."""
    rate = f"{units.significant(base.tokens_per_s)} tokens/s"
    placed = [one for one in cases if one.label("factor") == "placement"]
    alone = next((one for one in placed if one.label("placement") == "single"), None)
    if alone is not None:
        whole = max((one for one in (base, *placed) if one is not alone), key=lambda one: one.tokens_per_s)
        ratio, interval = replayed.against(whole, alone)
        both = f"{units.significant(whole.tokens_per_s)} against {units.significant(alone.tokens_per_s)} tokens/s"
        if interval[1] < 1:
            return f"The whole machine decodes slower than one node alone: {both}", [whole, alone]
        if interval[0] <= 1:
            return f"The whole machine decodes no faster than one node alone: {both}", [whole, alone]
        return (
            f"The whole machine decodes {units.significant(ratio, 2)} times as fast as one node alone: {both}",
            [whole, alone],
        )
    same = [one for one in cases if one.label("factor") in ("trunk", "context", "routing", "pages")]
    if same:
        most = max(same, key=lambda one: abs(math.log(replayed.against(one, base)[0])))
        times = units.significant(replayed.against(most, base)[0], 2)
        return f"Changed most by “{_lower(_named(most))}”: {times} times the rate of the base case", [
            most,
            base,
        ]
    if cases:
        return f"The miniature decodes at {rate} a sequence", [base]
    return f"The miniature decodes at {rate}; no other case was replayed", [base]


def _left_out(record: RunRecord) -> str:
    """Cases without a rate, by their reason."""
    good = {one.outcome.case for one in replayed.steps(record) if one.measured}
    reasons: dict[str, list[str]] = {}
    for outcome in record.outcomes:
        if outcome.probe == PROBE and outcome.case not in good:
            reason = outcome.reason or next((one.reason for one in outcome.metrics if one.reason), None)
            told = words.STATES[outcome.state] if outcome.state is not State.OK else "no rate"
            reasons.setdefault(words.bare(reason or told), []).append(outcome.case)
    for one in record.run.left_out:
        if one.probe == PROBE:
            reasons.setdefault(words.bare(one.reason), []).append(one.case)
    if not reasons:
        return ""
    parts = [f"{words.listed(cases)} ({reason})" for reason, cases in reasons.items()]
    more = f"; and {words.small(len(parts) - _MOST_LEFT_OUT)} more" if len(parts) > _MOST_LEFT_OUT else ""
    return f" Not replayed: {'; '.join(parts[:_MOST_LEFT_OUT])}{more}."


# --- the prediction against itself -----------------------------------------------------------------------


def against_itself(record: RunRecord, index: Index, number: int) -> Figure | None:
    """Measured cases beside what the base case predicts for them; None where there are none."""
    tests = sorted(replay.self_tests(record), key=lambda one: _order_of_factor(one.case))[:_MOST_CASES]
    if not tests:
        return None
    title = _held([one for one in tests if one.counts])
    reach = max(max(_reach(one) for one in tests), 1.5)
    place = charts.scale(1 / reach, reach, log=True, start=4, end=96)
    rows = [row for one in tests if (row := _rate_row(index, one.case)) is not None]
    return Figure(
        anchor="fig-self",
        number=number,
        title=title,
        subtitle="Decode rate of the miniature by the middle of what the base case predicts for it, logarithmic; "
        "dashed: the predicted interval; disc: measured, with its 95 % interval over rounds",
        source="The whole of K3 is predicted in the same way, and the check of the replay passes where these cases "
        f"fell inside. {proof_line(rows)}",
        links=ends(sorted(rows, key=lambda row: row.number)),
        head=("Case", "Measured by predicted", "Measured", "Predicted", "Inside", "State"),
        axis=charts.cell(_ratio_axis(place, reach)),
        bars=tuple(_self_row(one, place, index) for one in tests),
    )


def _held(tests: Sequence[SelfTest]) -> str:
    """In how many of the cases that count the prediction held."""
    good = sum(one.inside for one in tests)
    if not tests:
        return (
            "The prediction was held against no case that counts: all are unstable, or predicted too widely"
        )
    if len(tests) == 1:
        return f"The prediction {'held' if good else 'failed'} in the one case that it was held against"
    which = "all" if good == len(tests) else words.small(good)
    return f"The prediction held in {which} of {words.count(len(tests), 'case')} that it was held against"


def _reach(test: SelfTest) -> float:
    """How far from 1 its ratios go, at most fourfold."""
    middle = test.predicted.middle
    ratios = (test.predicted.low / middle, test.predicted.high / middle, test.case.tokens_per_s / middle)
    return min(4.0, 1.1 * max(max(ratio, 1 / ratio) for ratio in ratios))


def _ratio_axis(place: charts.Scale, reach: float) -> list[Markup]:
    marks = [mark for mark in (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0) if 1 / reach <= mark <= reach]
    return [
        charts.text(place(mark), 18, f"{mark:g}", style="tb" if mark == 1 else "", anchor="middle")
        for mark in marks
    ]


def _self_row(test: SelfTest, place: charts.Scale, index: Index) -> BarRow:
    case, middle = test.case, test.predicted.middle
    low, high = (edge / middle for edge in test.predicted.interval)
    parts = [
        charts.vertical(place(1), 0, "100%", "one"),
        charts.band(place(low), place(high), "25%", "50%", "guess"),
    ]
    if case.interval is not None:
        first, last = (place(edge / middle) for edge in case.interval)
        parts.append(charts.horizontal(first, last, "50%", "wi"))
    parts.append(charts.dot(place(case.tokens_per_s / middle), "50%", "f-data"))
    told = "–".join(units.significant(edge, 2) for edge in test.predicted.interval)
    row = _rate_row(index, case)
    return BarRow(
        title=_named(case),
        sub="",
        chart=charts.cell(parts),
        figures=(units.significant(case.tokens_per_s), told, _verdict(test)),
        link=row.link if row is not None else index.case_link(case.outcome.probe, case.outcome.case),
        state=words.STATES[case.rate.state],
    )


def _verdict(test: SelfTest) -> str:
    where = "inside" if test.inside else "outside"
    return where if test.counts else f"{where}, not counted"


def _rows_of(index: Index, steps: Sequence[Step]) -> list[SampleRow]:
    return [row for row in index.samples if any(row.outcome is one.outcome for one in steps)]


def _rate_row(index: Index, step: Step) -> SampleRow | None:
    """The row of the miniature's rate in this case."""
    own = (row for row in index.samples if row.outcome is step.outcome)
    return next((row for row in own if row.metric.name == step.rate.name), None)


def fitting_link(found: Expectation | None, items: Sequence[object]) -> Link | None:
    """Where the parts of a predicted token are drawn."""
    for item in items:
        if isinstance(item, Figure) and item.anchor == "fig-token" and found is not None:
            return Link(f"Figure {item.number}", f"#{item.anchor}")
    return None
