"""The page of `k3gate routing`: what was read or drawn, how uneven it is, and what a hot set would catch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from k3gate.documents import printable
from k3gate.model.routing.description import Description
from k3gate.pages import WIDTH, page, row
from k3gate.units import count


def text(made: Description, by_layer: bool = False) -> str:
    """The whole page; `by_layer`: with a line for each layer."""
    sections = [("Routing", _routing(made)), ("Coverage", _coverage(made)), ("Hot set", _hot_set(made))]
    if by_layer:
        sections.append(("Layers", _layers(made)))
    return printable(page(sections))


def _routing(made: Description) -> Iterator[str]:
    found, uneven = made.statistics, made.imbalance
    yield row("source", made.trace.source)
    stated = ", of which nobody stated the number: the largest id tells it" if made.trace.counted else ""
    yield row(
        "shape",
        f"{count(found.tokens, 'token')} in {count(found.sequences, 'sequence')}, {count(found.layers, 'layer')}, "
        f"{found.used} of {count(found.experts, 'expert')} used{stated}",
    )
    if made.modelled is not None:
        yield row("model", _model(made))
    if made.fitted is not None:
        yield row("fit", _fit(made))
    yield row(
        "reuse",
        "not known: no token follows another"
        if found.reuse is None
        else f"{found.reuse:.1%} of the experts were used by the token before too "
        f"(chance gives {found.used / found.experts:.1%})",
    )
    low, high = (end(layer.skew for layer in found.by_layer) for end in (min, max))
    yield row(
        "skew",
        f"the busiest expert of a layer is used {found.skew:.1f} x as often as the mean ({low:.1f} to {high:.1f} by "
        f"layer, {found.experts / found.used:.4g} at most); {found.skew_of_slots:.1f} over all layers",
    )
    low, high = (end(layer.entropy for layer in found.by_layer) for end in (min, max))
    yield row(
        "entropy",
        f"{found.entropy:.2f} bits ({low:.2f} to {high:.2f} by layer); uniform use has {found.uniform_entropy:.2f}",
    )
    spread = f"{uneven.quantiles[0]:.2f} to {uneven.quantiles[-1]:.2f} in nine of ten steps"
    yield row(
        "imbalance",
        f"{uneven.mean:.2f} ({spread}) where {count(uneven.nodes, 'node')} own the experts in turn, batch "
        f"{made.batch}: what the busiest reads by the mean of all",
    )
    yield row(
        "distinct",
        f"{uneven.distinct:.4g} different experts of a layer are read a step at batch {made.batch}",
    )
    yield row("used", f"{found.distinct:,} of {count(found.slots, 'slot')}, pairs of layer and expert")


def _model(made: Description) -> str:
    assert made.modelled is not None
    drawn = made.modelled
    asked = "what chance gives" if drawn.reuse is None else f"{drawn.reuse:.1%}"
    return (
        f"asked for reuse {asked} and skew {drawn.skew:.4g}, seed {drawn.seed}; solved: log-normal weights of spread "
        f"{drawn.spread:.3g}, persistence {drawn.persistence:.3g}"
    )


def _fit(made: Description) -> str:
    assert made.fitted is not None
    fitted = made.fitted
    of = fitted.of
    if fitted.unchanged:
        return "the trace has that shape already"
    was = f"{count(of.layers, 'layer')}, {of.used} of {of.experts} experts"
    if fitted.reason is not None:
        return f"from {was}; {fitted.reason}"
    fractions = ", ".join(f"{one.fraction:.1%}" for one in of.coverage)
    reuse = "" if of.reuse is None else f"reuse {of.reuse:.1%} and "
    return f"from {was}, whose {reuse}coverage {fractions} are kept within 5 points"


def _coverage(made: Description) -> Iterator[str]:
    yield f"{'share of uses':<18}{'slots':>10}  of all slots"
    for one in made.statistics.coverage:
        yield f"{one.share:<18.0%}{one.slots:>10,}  {one.fraction:.1%}"


def _hot_set(made: Description) -> Iterator[str]:
    yield f"{'experts of each':<18}{'of all':>10}{'caught':>10}{'held out':>10}"
    for one in made.statistics.hot_set:
        held = "unknown" if one.held_out is None else f"{one.held_out:.1%}"
        part = one.experts / made.statistics.experts
        yield f"{one.experts:<18,}{part:>10.1%}{one.caught:>10.1%}{held:>10}"
    yield ""
    yield textwrap.fill(
        "caught: share of the uses that go to so many experts of each layer, the busiest of these very tokens. "
        "held out: the same of one half of the tokens, with the set that the other half chooses; it is the curve for "
        "plan.",
        WIDTH,
    )


def _layers(made: Description) -> Iterator[str]:
    yield f"{'layer':<8}{'reuse':>8}{'skew':>8}{'busiest':>10}{'bits':>8}{'experts':>10}{'imbalance':>12}"
    both = zip(made.statistics.by_layer, made.imbalance.by_layer, strict=True)
    for number, (layer, uneven) in enumerate(both):
        reuse = "unknown" if layer.reuse is None else f"{layer.reuse:.1%}"
        yield (
            f"{number:<8}{reuse:>8}{layer.skew:>8.1f}{layer.busiest:>10.1%}{layer.entropy:>8.2f}"
            f"{layer.distinct:>10,}{uneven:>12.2f}"
        )
    yield ""
    yield textwrap.fill(
        "skew: uses of the busiest expert by the mean. busiest: its share of the layer's uses. bits: entropy. experts: "
        "how many were used at all.",
        WIDTH,
    )
