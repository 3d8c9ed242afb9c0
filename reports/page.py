"""The report of a run: one self-contained HTML file, no script, font, image or link outside itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jinja2
from attrs import frozen
from markupsafe import Markup, escape

from k3gate import metrics as registry
from k3gate import units
from k3gate.documents import printable
from k3gate.records import (
    CheckResult,
    GateResult,
    Metric,
    RunRecord,
    RunStatus,
    Severity,
    State,
    StepResult,
    Verdict,
)
from k3gate.reports import charts, machine, replay_figures, storage_figures, words
from k3gate.reports.evidence import Index, Link, SampleRow
from k3gate.reports.figures import Figure
from k3gate.reports.first import decision, first_page
from k3gate.reports.link_table import link_table
from k3gate.reports.machine import STATUS_WORDS
from k3gate.reports.measurements import Measurements
from k3gate.reports.modules import module_map
from k3gate.reports.readings import round_medians
from k3gate.reports.unseen import Gap, gaps
from k3gate.units import NBSP

if TYPE_CHECKING:
    from k3gate.analysis.expectation import Expectation
    from k3gate.analysis.ladder import Rung
    from k3gate.analysis.loading import Loading


GAP = f" {NBSP}"
"""Between the values of a list: wider than a space, and a place to break the line."""


class Judgement(Protocol):
    """An earlier or other judgement of the same run, as the store lists it."""

    @property
    def evaluated(self) -> str: ...
    @property
    def criteria(self) -> str: ...
    @property
    def criteria_hash(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def verdict(self) -> Verdict: ...


@frozen
class LadderRow:
    """A rung as it is drawn."""

    rung: Any
    chart: Markup
    measured: bool
    link: Link | None
    gbs: str
    of_above: str
    of_paper: str
    tokens: str


def render(
    record: RunRecord,
    gate: GateResult,
    rungs: Sequence[Rung],
    *,
    criteria_text: str,
    target_text: str,
    expected: Expectation | None = None,
    loading: Loading | None = None,
    earlier: Sequence[Judgement] = (),
) -> str:
    """The page as text. Everything from the record is escaped; an unknown value is a word.

    `expected`: what the decode replay lets one expect of the target's layout; None where the run says nothing of it.
    `loading`: how long a load of the target's weights takes; None where storage was not measured.
    `earlier`: the other judgements of this run, oldest first; `gate` itself may be among them.
    """
    index = Index(record, gate)
    found = gaps(record, gate, index)
    measured = Measurements(record, index, first=2, expected=expected, loading=loading)
    parts = replay_figures.fitting_link(expected, measured.items)
    context = {
        "record": record,
        "run": record.run,
        "inventory": record.inventory,
        "gate": gate,
        "index": index,
        "gaps": found,
        "first": first_page(record, gate, rungs, index, found, target_text, expected, parts),
        "decision": decision(gate),
        "complete": record.run.status is RunStatus.COMPLETE,
        "status": STATUS_WORDS[record.run.status],
        "ladder": ladder_rows(rungs, index),
        "ladder_title": ladder_title(rungs),
        "ladder_tokens": any(rung.tokens_per_s is not None for rung in rungs),
        "measurements": measured.items,
        "is_figure": lambda item: isinstance(item, Figure),
        "undrawn": undrawn(
            gate,
            index,
            replayed=measured.replayed,
            stored=storage_figures.known(record),
            copied=measured.copied,
        ),
        "others": [row for row in index.samples if not _drawn(row)],
        "findings": findings(record),
        "steps_lead": steps_lead(gate),
        "machine": machine,
        "module_map": module_map,
        "link_table": link_table,
        "provenance": machine.provenance(record, gate),
        "criteria_text": criteria_text,
        "target_text": target_text,
        "others_judged": [(Verdict(e.verdict), e) for e in earlier if e.evaluated != gate.evaluated],
        "footer": footer(f"k3gate report, run {record.run.id}, {words.date(record.run.started)}"),
        "sample_rounds": sample_rounds,
        "round_values": round_values,
        "alike": alike(index),
        "own_labels": own_labels,
        "metric_title": metric_title,
        "metric_divides": metric_divides,
        "observed": observed,
        "source": source,
        "notes": notes,
    }
    return environment().get_template("page.html.j2").render(context)


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The templates: escaping on, undefined names refused, control characters visible, None a word."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.globals.update(words=words, units=units, NBSP=NBSP, Verdict=Verdict, State=State)
    made.filters["coded"] = coded
    made.filters["tied"] = lambda text: words.tied(str(text))
    return made


def _finalize(value: Any) -> Any:
    if value is None:
        return "unknown"
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(value)
    return value


def coded(text: str | None) -> Markup:
    """Text in which `words in backquotes` become code; everything is escaped."""
    parts = printable(words.tied(text or "")).split("`")
    if len(parts) % 2 == 0:
        return Markup(escape("`".join(parts)))
    pieces = [
        Markup("<code>{}</code>").format(_options_whole(part)) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    ]
    return Markup("").join(pieces)


def _options_whole(command: str) -> Markup:
    """A command escaped, its options kept from being broken after their hyphens."""
    pieces = re.split(r"((?<!\S)-[\w-]+)", command)
    return Markup("").join(
        Markup('<span class="nw">{}</span>').format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )


def footer(text: str) -> str:
    """Text for a string in the style sheet: letters, digits and a little punctuation, nothing else."""
    return re.sub(r"[^A-Za-z0-9 .,:_-]", " ", text)[:120]


# --- ladder ----------------------------------------------------------------------------------------------


def ladder_title(rungs: Sequence[Rung]) -> str:
    """The result of the ladder as a heading."""
    by_key = {rung.key: rung for rung in rungs}
    read = by_key.get("read")
    if read is not None and read.value is not None and read.state is State.FAILED:
        return "The measured read cannot be right"
    if read is None or read.value is None or read.state not in (State.OK, State.UNSTABLE):
        return "The ladder has no measured rung yet"
    if read.of_paper is not None:
        return f"Memory delivers {words.share(read.of_paper, 2)} of its paper rate"
    return f"Memory reads at {words.value(read.value, 'B/s')}; its paper rate is not known"


def ladder_rows(rungs: Sequence[Rung], index: Index) -> list[LadderRow]:
    """The rungs with their bars: loss hatched, a dotted line down to the next rung."""
    usable = [r for r in rungs if r.value is not None and r.state in (State.OK, State.UNSTABLE)]
    top = max((r.value or 0.0 for r in usable), default=1.0) or 1.0
    place = charts.scale(0, top, end=88)
    rows, above = [], None
    for rung in rungs:
        parts: list[Markup] = []
        measured = rung in usable
        if above is not None:
            parts.append(charts.vertical(place(above), 0, 11 if measured else "100%", "cut"))
        if measured:
            value = rung.value or 0.0
            x = place(value)
            parts.append(charts.band(0, x, 11, 26, "f-grey" if rung.key == "paper" else "f-data"))
            if above is not None and above > value:
                parts.append(charts.band(x, place(above), 11, 26, "lost"))
                loss = f"{units.MINUS}{units.significant((above - value) / 1e9)}"
                parts.append(charts.text(place(above), 28, loss, dx=7))
            if rung.interval is not None:
                parts.append(charts.horizontal(place(rung.interval[0]), place(rung.interval[1]), 41, "wi"))
            if rung is not rungs[-1]:
                parts.append(charts.vertical(x, 37, "100%", "cut"))
            above = value
        rows.append(
            LadderRow(
                rung=rung,
                chart=charts.cell(parts),
                measured=measured,
                link=_first_link(rung, index),
                gbs=f"{(rung.value or 0) / 1e9:,.1f}" if rung.key == "paper" else words.rate(rung.value),
                of_above="–" if rung.key == "paper" else words.share(rung.of_above),
                of_paper=words.share(rung.of_paper)
                if rung.of_paper is not None
                else "–"
                if rung.key == "paper"
                else "unknown",
                tokens=units.significant(rung.tokens_per_s) if rung.tokens_per_s is not None else "unknown",
            )
        )
    return rows


def _first_link(rung: Rung, index: Index) -> Link | None:
    links = [index.resolve(name) for name in rung.evidence]
    links += [row for name in _RUNG_CHECKS.get(rung.key, ()) if (row := index.gaps.get(name))]
    return next((link for link in links if link.href), None)


_RUNG_CHECKS = {
    "expert_reads": ("roofline.replay", "roofline.skew"),
    "expert_kernels": ("roofline.gemm", "roofline.replay"),
    "replay": ("roofline.replay",),
    "runtime": ("prototype.decode", "runtime.loaded"),
}

# --- the other sections ----------------------------------------------------------------------------------

_DRAWN = tuple(
    declaration.name
    for declaration in (
        *(
            registry.MEMORY_READ,
            registry.EXPERT_READ,
            registry.MEMORY_WRITE,
            registry.MEMORY_COPY,
            registry.MEMORY_TRIAD,
        ),
        *(registry.LATENCY_IDLE, registry.LATENCY_LOADED, registry.UNDER_LOAD),
        *(registry.FILE_READ, registry.FILE_EXPERTS, registry.FILE_LATENCY),
        *(registry.RESIDENCY_BYTES, registry.RESIDENCY_RATE),
        *(registry.SUSTAINED_RATIO, registry.SUSTAINED_RATE),
        *(registry.KERNEL_EXPERT, registry.KERNEL_WEIGHTS, registry.KERNEL_FLOPS),
        *(registry.KERNEL_PEAK, registry.KERNEL_PER_CYCLE, registry.KERNEL_PEER),
        *(registry.REPLAY_RATE, registry.REPLAY_BANDWIDTH, registry.REPLAY_PART),
        *(registry.REPLAY_BYTES, registry.REPLAY_CROSSED),
        *(registry.STORAGE_READ, registry.STORAGE_CPU, registry.STORAGE_PEER, registry.STORAGE_LOADER),
        *(registry.STORAGE_CACHED, registry.STORAGE_HASH, registry.STORAGE_STEADY, registry.STORAGE_COURSE),
    )
)


def _drawn(row: SampleRow) -> bool:
    """Whether a figure shows it: the clock of a peak stands beside it, that of reading has no figure."""
    clock = row.metric.name == registry.CORE_CLOCK.name and row.outcome.probe == "gemm"
    return clock or row.metric.name in _DRAWN


# What this version draws no figure of, by the check that asks for it. The figures that it does draw say themselves
# where they are absent.
_FIGURES = {
    "roofline.replay": "time of a token",
    "roofline.skew": "placement of experts",
    "roofline.pcie_rate": "PCIe rates",
    "roofline.storage": "storage",
    "prototype.load_time": "load time",
}
_REPLAYED = ("roofline.replay", "roofline.skew")
_OF_STORAGE = ("roofline.storage", "prototype.load_time")
_COPIES = ("roofline.pcie_rate",)


def undrawn(
    gate: GateResult, index: Index, *, replayed: bool, stored: bool, copied: bool
) -> list[tuple[str, Link]]:
    """Figures that this run has no data for, with the gap that says why. `replayed`, `stored`, `copied`: those of the
    replay, of storage and of copies to GPUs say so themselves."""
    said = (_REPLAYED if replayed else ()) + (_OF_STORAGE if stored else ()) + (_COPIES if copied else ())
    unseen = {check.id for step in gate.steps for check in step.checks if check.observed is None}
    return [
        (title, index.gaps[name])
        for name, title in _FIGURES.items()
        if name in unseen & set(index.gaps) and name not in said
    ]


def steps_lead(gate: GateResult) -> str:
    """ "36 checks: 4 pass, 1 fails, 31 are unproven." """
    counts = dict.fromkeys(Verdict, 0)
    for step in gate.steps:
        for check in step.checks:
            counts[check.verdict] += 1
    verbs = {
        Verdict.PASS: ("passes", "pass"),
        Verdict.FAIL: ("fails", "fail"),
        Verdict.UNPROVEN: ("is unproven", "are unproven"),
        Verdict.WAIVED: ("is waived", "are waived"),
        Verdict.NOT_APPLICABLE: ("does not apply to this target", "do not apply to this target"),
    }
    parts = [f"{n} {verbs[verdict][n != 1]}" for verdict, n in counts.items() if n]
    return f"{sum(counts.values())} checks: {words.listed(parts)}." if parts else "No check was judged."


_WEIGHTS = {Severity.HIGH: 3, Severity.MEDIUM: 2, Severity.LOW: 1}


def findings(record: RunRecord) -> list[tuple[int, Any]]:
    """(bars, finding), the heaviest first."""
    ordered = sorted(record.inventory.findings, key=lambda finding: -_WEIGHTS[finding.severity])
    return [(_WEIGHTS[finding.severity], finding) for finding in ordered]


def observed(check: CheckResult) -> str:
    """What a check saw, in words."""
    if check.observed is None:
        return "nothing yet" if check.decided is Verdict.UNPROVEN else "no figure"
    if isinstance(check.observed, str):
        return check.observed
    return words.value(float(check.observed), check.unit)


def source(check: CheckResult) -> str:
    """The source of a bound where it is short, else its beginning; the whole stands in the notes."""
    if check.source is None:
        return "not stated"
    return (
        check.source if len(check.source) <= _SHORT else re.split(r"[;:(,]", check.source)[0][:_SHORT].strip()
    )


_SHORT = 30


def notes(step: StepResult, check: CheckResult) -> list[str]:
    """The sentences under a check: reason, remedy, full source. What an earlier check of the step already
    says is not said again; the gap in the evidence column holds it too."""
    before = step.checks[: step.checks.index(check)]
    lines = []
    again = any(c.reason == check.reason and c.verdict is check.verdict for c in before)
    if check.reason and not again:
        lines.append(words.ended(check.reason))
    if (
        check.verdict in _OPEN
        and check.remedy
        and not any(c.remedy == check.remedy and c.verdict in _OPEN for c in before)
    ):
        lines.append("To settle it: " + words.ended(check.remedy))
    if check.source and len(check.source) > _SHORT:
        lines.append("Source: " + words.bare(check.source) + ".")
    return lines


_OPEN = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.WAIVED)


def metric_title(metric: Metric) -> str:
    """The declared title of a metric, or its name."""
    declaration = registry.find(metric.name)
    return declaration.title if declaration else metric.name


def metric_divides(metric: Metric) -> str | None:
    """What is divided by what, where it is declared."""
    declaration = registry.find(metric.name)
    return declaration.divides if declaration else None


def sample_rounds(metric: Metric) -> str:
    """The medians of the rounds in the order of the rounds, in the unit of the row."""
    values = [value for _, value in round_medians(metric)]
    shown = [words.value(value, metric.unit, 4).split(NBSP)[0] for value in values]
    return GAP.join(shown) or "no sample"


def alike(index: Index) -> dict[str, SampleRow]:
    """For the anchor of a row the first of its case that has the same proofs and reason, where it is not that itself.

    A step of the replay has more than twenty metrics: what holds for all of them is told with the first.
    """
    first: dict[tuple[int, Any, str | None], SampleRow] = {}
    found = {}
    for row in index.samples:
        key = (id(row.outcome), row.metric.proofs, row.metric.reason)
        if first.setdefault(key, row) is not row:
            found[row.anchor] = first[key]
    return found


def own_labels(row: SampleRow, first: SampleRow | None) -> str:
    """The labels of a row in one line; of one like an earlier row what tells it apart from that."""
    labels = row.metric.labels
    if first is not None:
        labels = {key: item for key, item in labels.items() if first.metric.labels.get(key, ...) != item}
    return words.labels(labels)


@frozen
class RoundRow:
    """All samples of one round."""

    number: int
    processes: str
    started: str
    values: str


def round_values(row: SampleRow) -> list[RoundRow]:
    """Every sample of a metric, a row per round."""
    rounds: dict[int, list[Any]] = {}
    for sample in row.metric.samples:
        rounds.setdefault(sample.round, []).append(sample)
    return [
        RoundRow(
            number,
            ", ".join(str(process) for process in dict.fromkeys(s.process for s in samples)),
            GAP.join(f"{s.start_s:.3f}" for s in samples),
            GAP.join(words.value(s.value, row.metric.unit, 5) for s in samples),
        )
        for number, samples in sorted(rounds.items())
    ]


__all__ = ["Gap", "Judgement", "environment", "render"]
