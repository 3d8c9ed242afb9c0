"""The page of `k3gate quant -o FILE.html`: mistakes first, then the error of each part against its bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from markupsafe import Markup

from k3gate import __version__
from k3gate.records import Verdict
from k3gate.reports import charts, words
from k3gate.reports.checkpoint import model_name, part_name
from k3gate.reports.page import environment, footer

_AXIS = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
_HEADINGS = {Verdict.PASS: "Pass", Verdict.FAIL: "Fail", Verdict.UNPROVEN: "Not proven"}
_ROUTED = "routed_experts"


@frozen
class PartRow:
    """A part of the model with its error drawn."""

    name: str
    codings: str
    chart: Markup
    nmse: str
    worst: str
    weight: str
    cosine: str
    exact: str


def render(document: Mapping[str, Any], bounds: Mapping[str, float], written: str) -> str:
    """The page as text, from the document of `k3gate quant --json`; everything in it is escaped.

    `bounds`: the largest NMSE of a weight for "routed_experts" and "trunk"; `written`: ISO 8601 stamp.
    """
    verdict = Verdict(document["verdict"])
    place = charts.scale(1e-9, 10, log=True, start=2, end=98)
    groups = document["groups"]
    context = {
        "kind": "conversion",
        "title": "Comparison of a conversion with its source",
        "places": [document["converted"]["place"], document["source"]["place"]],
        "heading": _HEADINGS[verdict],
        "decided": verdict,
        "lead": document["reason"],
        "version": f"k3gate {__version__}",
        "written": written,
        "source": _side(document["source"]),
        "converted": _side(document["converted"]),
        "mistakes": document["mistakes"],
        "parts": [_part(name, part, bounds, place) for name, part in groups.items()],
        "parts_title": _title(groups, lossless=document["lossless"]),
        "axis": _axis(place),
        "layers": [
            (part_name(name), [_layer(one) for one in part["layers"]])
            for name, part in groups.items()
            if part["exact"] < part["weights"]
        ],
        "scales": [row for name, part in groups.items() for row in _scales(name, part["scales"])],
        "unknown": list(_unknown(document)),
        "footer": footer(f"k3gate quant {document['converted']['digest'][:23]}"),
    }
    return environment().get_template("conversion.html.j2").render(context)


def _side(side: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    return [
        ("Place", side["place"], True),
        ("Model", words.capital(model_name(side["architecture"])), False),
        ("Format", side["format"], False),
        ("Digest", side["digest"], True),
    ]


def _title(groups: Mapping[str, Any], *, lossless: bool) -> str:
    if lossless:
        return "Every number is the source's"
    exact, whole = (sum(part[key] for part in groups.values()) for key in ("exact", "weights"))
    routed = groups.get(_ROUTED)
    among = ", among them all routed experts" if routed and routed["exact"] == routed["weights"] else ""
    return f"{exact:,} of {whole:,} weights are exact{among}"


def _part(name: str, part: Mapping[str, Any], bounds: Mapping[str, float], place: charts.Scale) -> PartRow:
    bound = bounds.get(_ROUTED if name == _ROUTED else "trunk")
    parts = [charts.vertical(place(mark), 0, "100%", "g") for mark in _AXIS]
    if bound:
        parts.append(charts.vertical(place(bound), 0, "100%", "target"))
    worst = part["worst"]
    exact = part["exact"] == part["weights"]
    nmse = part["nmse"]
    if not exact and nmse is not None:
        end = worst["nmse"] if worst and worst["nmse"] is not None else nmse
        parts.append(charts.horizontal(place(nmse), place(max(end, nmse)), "50%", "wh"))
        parts.append(charts.dot(place(nmse), "50%", "f-data", 4.6))
    codings = sorted(part["codings"], key=lambda one: -part["codings"][one])
    return PartRow(
        part_name(name),
        ", ".join(codings),
        charts.cell(parts),
        "0" if exact else error(nmse),
        "0" if exact or not worst else error(worst["nmse"]),
        worst["weight"] if worst and not exact else "",
        "1" if exact else "unknown" if part["cosine"] is None else f"{part['cosine']:.6f}",
        f"{part['exact']:,} of {part['weights']:,}",
    )


def error(value: float | None) -> str:
    """A relative error with two digits, as a power of ten below a thousandth; None is "without bound"."""
    if value is None or not math.isfinite(value):
        return "without bound"
    if value == 0 or value >= 1e-3:
        return f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits} × 10{_raised(int(power))}"


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _power(mark: float) -> str:
    power = round(math.log10(mark))
    return f"10{_raised(power)}" if power else "1"


def _axis(place: charts.Scale) -> Markup:
    parts = [charts.text(place(mark), 39, _power(mark), anchor="middle") for mark in _AXIS]
    parts += [charts.vertical(place(mark), 44, 50, "g") for mark in _AXIS]
    return charts.cell(parts)


def _layer(layer: Mapping[str, Any]) -> tuple[str, ...]:
    exact = layer["exact"] == layer["weights"]
    number = "in none" if layer["layer"] is None else str(layer["layer"])
    return (
        number,
        f"{layer['weights']:,}",
        f"{layer['exact']:,}",
        "0" if exact else error(layer["nmse"]),
        "0" if exact else f"{layer['max_error']:.3g}",
        "1" if exact else "unknown" if layer["cosine"] is None else f"{layer['cosine']:.6f}",
        "1" if exact else "unknown" if layer["gain"] is None else f"{layer['gain']:.4f}",
    )


def _scales(name: str, scales: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    return [
        (
            part_name(name),
            side,
            f"{told['number']:,}",
            "none" if told["least"] is None else f"{told['least']:.3g}",
            "none" if told["largest"] is None else f"{told['largest']:.3g}",
            f"{told['zeros']:,}",
            f"{told['not_finite']:,}",
        )
        for side, told in scales.items()
        if told is not None
    ]


def _unknown(document: Mapping[str, Any]) -> list[str]:
    told = [
        f"{part_name(name)} ({words.count(number, 'weight')}) is not in the converted file: "
        "images need another one."
        for name, number in document["left_out"].items()
    ]
    missing, added, open_ = document["missing"], document["added"], document["not_compared"]
    if missing["number"]:
        few = ", ".join(missing["weights"])
        told.append(
            f"{words.capital(words.count(missing['number'], 'weight'))} of the source missing: {few}."
        )
    if added["number"]:
        few = ", ".join(added["weights"])
        told.append(f"{words.capital(words.count(added['number'], 'weight'))} without a source: {few}.")
    told += [f"Not compared: {reason}." for reason in open_["reasons"]]
    told += [f"{words.capital(note)}." for note in document["notes"]]
    told.append(
        "Whether a runtime computes with these numbers as it should: that is `quantization.kernel_reference`, and "
        "step 5 of the gate."
    )
    return told
