"""Whether the rates of a lasting load held: the last part of it against the first minute after warm-up. Pure.

Rates come a point a second, and neighbours are alike: a machine drifts. So each part of the load is cut into blocks,
whose means stand for it, and where they still follow each other (their correlation with the next, at lag 1) so many
fewer of them count: n (1 - r) / (1 + r), the usual effective number of a process with memory of one step (Zieba,
Metrol. Meas. Syst. 17, 2010). The interval of the ratio is Welch's over the logarithms, 95 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from attrs import frozen

from k3gate import series as names
from k3gate import topology
from k3gate.analysis import throttling
from k3gate.analysis.throttling import Throttling
from k3gate.records import Case, Interval, Inventory, Outcome, Phase, RunRecord, Scalar, Series, State

PROBE, CASE = "thermal", "soak"
BLOCK_S = 5.0
BLOCKS = 12
"""So many in each part, where it is long enough for more than `BLOCK_S` each."""
LEAST_BLOCKS = 3
HELD = 0.95
"""Of the rate of the first minute: below it a rate has fallen. The criterion has its own bound; this one tells when."""
MOST_CORRELATED = 0.9
CONFIDENCE = 0.95
LEAST_COOLING_S = 3.0
OTHERS_ROSE = 0.01
"""Of all CPU time: what others took more of is less than that where it is noise."""
OTHERS_RULE = 0.25
"""A machine that is so busy with others tells nothing of itself."""
OTHERS_EXPLAIN = 0.25
"""Others explain a fall where what they took more is so much of it: a load of threads that wait for each other loses
more than is taken, as does memory that two use."""


@frozen
class Spans:
    """When the parts of a load began and ended, in seconds of the run; `cooled`: the end of cooling."""

    start: float
    warm: float
    first_end: float
    last: float
    end: float
    cooled: float

    @property
    def seconds(self) -> float:
        """How long the load lasted."""
        return self.end - self.start


@frozen
class Lasting:
    """One part of the load. Rates in B/s; `fell_s`: from when on the rate stayed below `HELD`, None: it did not."""

    part: str
    node: int | None
    place: str | None
    """Of storage: the path."""
    series: Series
    first: float
    last: float
    ratio: float
    interval: Interval | None
    blocks: tuple[float, float]
    """How many blocks count in the first minute and in the last part."""
    fell_s: float | None

    @property
    def name(self) -> str:
        """ "memory of node 0", "kernels of node 1", "storage at /srv/k3"."""
        if self.place is not None:
            return f"{self.part} at {self.place}"
        return self.part if self.node is None else f"{self.part} of node {self.node}"


@frozen
class Soak:
    """A lasting load as it was recorded. `others`: shares of CPU time that others and a hypervisor took, in the first
    minute and in the last part; None: not known."""

    case: Case
    outcome: Outcome
    spans: Spans
    parts: tuple[Lasting, ...]
    others: tuple[float, float] | None
    watched: tuple[Series, ...]
    """Temperatures, power, clocks and fans that were read while it went on."""


def outcome_of(record: RunRecord) -> Outcome | None:
    """What became of the load; None where the run has none."""
    return next((one for one in record.outcomes if (one.probe, one.case) == (PROBE, CASE)), None)


def soak(record: RunRecord) -> Soak | None:
    """The load that a run ended with; None where it has none that ended, or told no rates."""
    outcome = outcome_of(record)
    case = next((one for one in record.run.plan if (one.probe, one.name) == (PROBE, CASE)), None)
    phase = _phase(record.phases)
    if outcome is None or case is None or phase is None:
        return None
    rates = [_cut(one, phase) for one in record.series if one.name == names.RATE]
    rates = [one for one in rates if _known(one)]
    spans = _spans(case, phase, rates)
    if spans is None:
        return None
    parts = [found for one in rates if (found := _lasting(one, spans)) is not None]
    kinds = (names.TEMPERATURE, names.POWER, names.CLOCK, names.FAN)
    watched = [
        one
        for one in record.series
        if one.name in kinds and throttling.within(one, phase.start_s, phase.end_s)
    ]
    return Soak(case, outcome, spans, tuple(parts), _others(record, spans), tuple(watched))


def _phase(phases: Sequence[Phase]) -> Phase | None:
    """The last one: an earlier one was interrupted, and the load began anew."""
    return next((one for one in reversed(phases) if (one.probe, one.case) == (PROBE, CASE)), None)


def _cut(series: Series, phase: Phase) -> Series:
    """The part of a series that lies in a phase."""
    pairs = [
        (at, value)
        for at, value in zip(series.times, series.values, strict=True)
        if phase.start_s <= at <= phase.end_s
    ]
    return Series(
        series.name, series.unit, series.labels, tuple(at for at, _ in pairs), tuple(v for _, v in pairs)
    )


def _known(series: Series) -> list[float]:
    return [value for value in series.values if value is not None]


def _spans(case: Case, phase: Phase, rates: Sequence[Series]) -> Spans | None:
    """Where the planned parts lie in what was recorded: a load that ended early has its last part before that end."""
    times = [at for one in rates for at in one.times]
    wanted = [_number(case.parameters.get(key)) for key in ("warm_up_s", "first_s", "last_s")]
    if not times or None in wanted:
        return None
    warm_up, first, last = (value or 0.0 for value in wanted)
    start, end = min(times), max(times)
    warm = start + warm_up
    return Spans(start, warm, warm + first, max(start, end - last), end, phase.end_s)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _lasting(series: Series, spans: Spans) -> Lasting | None:
    early = _blocks(series, spans.warm, min(spans.first_end, spans.end))
    late = _blocks(series, spans.last, spans.end)
    if not early or not late or min(early) <= 0:
        return None
    first, last = statistics.fmean(early), statistics.fmean(late)
    interval, counted = _interval(early, late)
    node = series.labels.get("memory_node")
    return Lasting(
        part=str(series.labels.get("part")),
        node=node if isinstance(node, int) else None,
        place=None if (place := series.labels.get("place")) is None else str(place),
        series=series,
        first=first,
        last=last,
        ratio=last / first,
        interval=interval,
        blocks=counted,
        fell_s=_fell(series, spans, first),
    )


def _blocks(series: Series, start: float, end: float) -> list[float]:
    """Means of neighbouring blocks of a span, all of one length."""
    number = max(1, min(BLOCKS, int((end - start) / BLOCK_S))) if end > start else 0
    if number < LEAST_BLOCKS and end > start:
        # A load that is short for its purpose gets its interval all the same.
        number = LEAST_BLOCKS
    width = (end - start) / max(1, number)
    means = [
        names.mean_within(series, [(start + width * place, start + width * (place + 1))])
        for place in range(number)
    ]
    return [mean for mean in means if mean is not None]


def _interval(early: Sequence[float], late: Sequence[float]) -> tuple[Interval | None, tuple[float, float]]:
    """(95 % interval of the ratio of the means, how many blocks count in each); None where a rate fell to nothing."""
    if min(len(early), len(late)) < LEAST_BLOCKS or min(*early, *late) <= 0:
        return None, (float(len(early)), float(len(late)))
    logs = [[math.log(value) for value in values] for values in (early, late)]
    numbers = [_effective(values) for values in logs]
    variances = [statistics.variance(values) / number for values, number in zip(logs, numbers, strict=True)]
    middle = math.log(statistics.fmean(late) / statistics.fmean(early))
    error = math.sqrt(sum(variances))
    half = 0.0
    if error > 0:
        from scipy.special import stdtrit

        freedom = sum(variances) ** 2 / sum(
            variance**2 / (number - 1) for variance, number in zip(variances, numbers, strict=True)
        )
        half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    low, high = middle - half, middle + half
    return (math.exp(low), math.exp(min(high, 700.0))), (numbers[0], numbers[1])


def _effective(values: Sequence[float]) -> float:
    """How many independent values tell as much: at least two, and never more than there are."""
    mean = statistics.fmean(values)
    whole = math.fsum((value - mean) ** 2 for value in values)
    if whole <= 0:
        return float(len(values))
    beside = math.fsum((early - mean) * (late - mean) for early, late in pairwise(values))
    r = min(MOST_CORRELATED, max(0.0, beside / whole))
    return max(2.0, len(values) * (1 - r) / (1 + r))


def _fell(series: Series, spans: Spans, first: float) -> float | None:
    """When the rate fell below `HELD` to stay there, by blocks."""
    found: float | None = None
    number = int((spans.end - spans.first_end) / BLOCK_S)
    for place in reversed(range(max(0, number))):
        start = spans.first_end + BLOCK_S * place
        mean = names.mean_within(series, [(start, start + BLOCK_S)])
        if mean is None:
            continue
        if mean >= HELD * first:
            break
        found = start
    return found


def _others(record: RunRecord, spans: Spans) -> tuple[float, float] | None:
    """What others and a hypervisor took of all CPU time, in the first minute and in the last part."""
    found = []
    for start, end in ((spans.warm, spans.first_end), (spans.last, spans.end)):
        shares = [
            mean
            for one in record.series
            if one.name in (names.OTHERS, names.STOLEN)
            and (mean := names.mean_within(one, [(start, end)])) is not None
        ]
        if not shares:
            return None
        found.append(sum(shares))
    return found[0], found[1]


def explained_by_others(found: Soak, part: Lasting) -> bool:
    """Whether others took more CPU time as the rate fell, and enough to have made it fall; or so much all the time that
    where they took it decides what falls."""
    if found.others is None:
        return False
    if max(found.others) >= OTHERS_RULE:
        return True
    more = found.others[1] - found.others[0]
    return more >= max(OTHERS_ROSE, OTHERS_EXPLAIN * (1 - part.ratio))


def evidence(record: RunRecord, found: Soak, part: Lasting) -> tuple[Throttling, ...]:
    """What shows that something throttled during the load, what bears on this part first.

    A drive's heat says nothing of memory and kernels, nor that of another drive of storage; another package's heat says
    less than that of the part's own.
    """
    zones = record.inventory.sensors.power_zones if record.inventory.sensors else ()
    told = throttling.evidence(record.series, found.spans.warm, found.spans.end, zones)
    own = packages_of(record.inventory, part.node)
    drives = _drives_of(found.case, part)
    kept = [one for one in told if _bears(one, part, drives)]
    return tuple(
        sorted(
            kept,
            key=lambda one: (
                throttling.SIGNS.index(one.sign),
                one.role == "cpu" and one.of not in own,
                one.at_s,
            ),
        )
    )


def _bears(sign: Throttling, part: Lasting, drives: Sequence[str]) -> bool:
    """Whether what throttled can have slowed this part."""
    if not sign.domain.startswith("drive "):
        return part.part != "storage" or sign.role in ("board", "bmc")
    # A sensor names the controller (nvme0), a counter the drive (nvme0n1).
    name = sign.domain.removeprefix("drive ")
    return part.part == "storage" and (
        not drives or name in drives or any(drive.startswith(f"{name}n") for drive in drives)
    )


def _drives_of(case: Case, part: Lasting) -> tuple[str, ...]:
    """The drives below a place, as the plan knew them."""
    for entry in case.parameters.get("drives") or ():
        if entry["source"]["path"] == part.place:
            return tuple(entry["drives"])
    return ()


def packages_of(inventory: Inventory, node: int | None) -> tuple[str, ...]:
    """The sockets of a memory node, as sensors name them."""
    found = topology.nodes_of_packages(inventory.cpu, inventory.numa)
    return tuple(str(package) for package, nodes in found.items() if node in nodes)


@frozen
class Headroom:
    """A sensor that tells its limit: its highest value during the load, and how it rose over the last part."""

    sensor: str
    domain: str
    limit: float
    highest: float
    rising: float

    @property
    def left(self) -> float:
        """Degrees up to the limit."""
        return self.limit - self.highest


def headroom(found: Soak) -> tuple[Headroom, ...]:
    """Of each sensor with a limit, the nearest to it first."""
    rooms = []
    spans = found.spans
    for one in found.watched:
        limit = _number(one.labels.get("limit"))
        steps = throttling.within(one, spans.warm, spans.end)
        if one.name != names.TEMPERATURE or limit is None or not steps:
            continue
        half = (spans.last + spans.end) / 2
        early = names.mean_within(one, [(spans.last, half)])
        late = names.mean_within(one, [(half, spans.end)])
        rising = 0.0 if early is None or late is None else late - early
        highest = max(value for _, value in steps)
        rooms.append(
            Headroom(str(one.labels.get("sensor")), throttling.domain_of(one), limit, highest, rising)
        )
    return tuple(sorted(rooms, key=lambda room: room.left))


@frozen
class Cooling:
    """The sensor that cooled most after the end: by how many degrees, and in how many seconds that were watched."""

    domain: str
    fell: float
    seconds: float


def cooling(found: Soak) -> Cooling | None:
    """None where nothing was watched after the end, or nothing cooled."""
    seconds = found.spans.cooled - found.spans.end
    best: Cooling | None = None
    for one in found.watched:
        if one.name != names.TEMPERATURE or seconds < LEAST_COOLING_S:
            continue
        at_end = names.mean_within(one, [(found.spans.end - LEAST_COOLING_S, found.spans.end)])
        after = throttling.within(one, found.spans.end, found.spans.cooled)
        if at_end is None or not after:
            continue
        fell = at_end - min(value for _, value in after)
        if fell > 0 and (best is None or fell > best.fell):
            best = Cooling(throttling.domain_of(one), fell, seconds)
    return best


@frozen
class Energy:
    """What a load drew: mean power in W over its last part, by what was read; J for each byte that was read from
    memory meanwhile; J for each token of the replay's miniature, None where that was not replayed."""

    watts: float
    source: str
    per_byte: float | None
    per_token: float | None


def energy(record: RunRecord, found: Soak) -> Energy | None:
    """None where no power was read."""
    spans = [(found.spans.last, found.spans.end)]
    told = watts(record.series, spans)
    if told is None:
        return None
    read = sum(part.last for part in found.parts if part.part == "memory")
    return Energy(told[0], told[1], told[0] / read if read else None, _per_token(record))


def watts(series: Sequence[Series], spans: Sequence[tuple[float, float]]) -> tuple[float, str] | None:
    """(mean power within spans, what it is of): of the whole machine where a BMC tells it, else the platform's zone,
    else the sum of the packages. Zones lie within one another, and supplies beside the whole."""
    for role, domain, words in (
        ("bmc", "", "the machine, by its BMC"),
        ("cpu", "psys", "the platform"),
        ("cpu", "package", "the CPU packages"),
    ):
        means = [
            mean
            for one in series
            if one.name == names.POWER
            and one.labels.get("role") == role
            and _named(one.labels.get("domain")).startswith(domain)
            and (mean := names.mean_within(one, spans)) is not None
        ]
        if means:
            return (sum(means) if domain == "package" else max(means)), words
    return None


def _named(value: Scalar) -> str:
    return "" if value is None else str(value)


def _per_token(record: RunRecord) -> float | None:
    """J for each token that the base case of the replay decoded, between its first and last sample of a round."""
    from k3gate.metrics import REPLAY_RATE

    outcome = next((one for one in record.outcomes if (one.probe, one.case) == ("replay", "base")), None)
    metric = next((one for one in outcome.metrics if one.name == REPLAY_RATE.name), None) if outcome else None
    if metric is None or metric.state is not State.OK or not metric.median:
        return None
    rounds: dict[int, list[float]] = {}
    for sample in metric.samples:
        rounds.setdefault(sample.round, []).append(sample.start_s)
    told = watts(record.series, [(min(at), max(at)) for at in rounds.values()])
    batch = _number(metric.labels.get("batch")) or 1.0
    return None if told is None else told[0] / (metric.median * batch)
