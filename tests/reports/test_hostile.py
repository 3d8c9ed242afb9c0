"""Names from strangers on the page and on the comparison: text, never markup."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from k3gate.analysis.comparison import compare
from k3gate.analysis.ladder import ladder
from k3gate.reports import comparison, page

PAYLOADS = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "</style><style>*{display:none}</style>",
    "\"'&<>",
    '\'" onmouseover="alert(1)',
    "</title></svg></pre><b>",
    "{{ 7*7 }}{% raw %}",
)
KEEP = {"name", "unit", "probe", "case", "id", "check", "scope", "placement"}


def spoil(item: Any, change: Callable[[str], str], key: str = "") -> Any:
    """`item` with `change` applied to every string in it, keys of mappings too, but for names that pages
    look up (the others would only make the page shorter)."""
    if isinstance(item, enum.Enum) or item is None or isinstance(item, bool | int | float):
        return item
    if isinstance(item, str):
        return item if key in KEEP else change(item)
    if attrs.has(type(item)):
        return attrs.evolve(
            item,
            **{f.name: spoil(getattr(item, f.name), change, f.name) for f in attrs.fields(type(item))},
        )
    if isinstance(item, Mapping):
        return {
            (change(k) if isinstance(k, str) and key != "labels" else k): spoil(
                v, change, k if isinstance(k, str) and key == "labels" else ""
            )
            for k, v in item.items()
        }
    if isinstance(item, tuple | list):
        return tuple(spoil(entry, change, key if key == "evidence" else "") for entry in item)
    return item


def spoil_all(item: Any, payload: str) -> Any:
    """`item` with the payload behind every string, ids and names as well."""
    saved = set(KEEP)
    KEEP.clear()
    try:
        return spoil(item, lambda text: text + payload)
    finally:
        KEEP.update(saved)


def shape(seen: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(tag, tuple(sorted(attributes))) for tag, attributes in seen.elements]


def rendered(sheet: Any, payload: str, *, everything: bool = False) -> str:
    if everything:
        record, gate = spoil_all(sheet.record, payload), spoil_all(sheet.gate, payload)
    else:
        record = spoil(sheet.record, lambda text: text + payload)
        gate = spoil(sheet.gate, lambda text: text + payload)
    before = attrs.evolve(gate, evaluated="2026-12-01" + payload)
    return page.render(
        record, gate, ladder(record, 25e9), criteria_text=payload, target_text=payload, earlier=(before, gate)
    )


@pytest.mark.case("REP-01")
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("everything", [False, True])
def test_rep_01_markup_in_names_is_text(bare_metal: Any, tree: Any, payload: str, everything: bool) -> None:
    """REP-01: every string of the record carries markup; the page has the elements of a harmless one."""
    hostile = tree(rendered(bare_metal(2), payload, everything=everything))
    harmless = tree(rendered(bare_metal(2), "x" * len(payload), everything=everything))
    assert shape(hostile) == shape(harmless)
    assert "".join(hostile.pieces).count(payload) > 100


@pytest.mark.case("REP-01")
def test_rep_01_backquotes_make_code_and_nothing_else(small_vm: Any, tree: Any) -> None:
    """REP-01: a backquote never opens more than a code element, whose content is text."""
    seen = tree(rendered(small_vm(), "`<img src=x onerror=alert(1)>`", everything=True))
    assert "img" not in {tag for tag, _ in seen.elements}
    assert not any(name.startswith("on") for _, attributes in seen.elements for name in attributes)
    assert all((a.get("href") or "#").startswith("#") for _, a in seen.elements)


@pytest.mark.case("REP-01")
def test_rep_01_names_reach_no_style_sheet(small_vm: Any) -> None:
    """REP-01: the run's id stands in the print footer, where HTML escaping does not help."""
    text = rendered(small_vm(), '";} </style><script>', everything=True)
    style = text[text.index("<style>") : text.index("</style>")]
    footer = style[style.index("@bottom-left") :]
    assert footer[: footer.index(";font")].count('"') == 2
    assert "script>" not in style


@pytest.mark.case("REP-01")
@pytest.mark.parametrize("payload", PAYLOADS)
def test_rep_01_markup_in_a_comparison_is_text(bare_metal: Any, tree: Any, payload: str) -> None:
    """REP-01: the same for the page of two runs."""
    a, b = bare_metal(2).record, bare_metal(2, run="9c1d8x4t").record

    def both(ending: str) -> Any:
        return compare(spoil(a, lambda text: text + ending), spoil(b, lambda text: text + ending + "2"))

    hostile = tree(comparison.render(both(payload)))
    assert shape(hostile) == shape(tree(comparison.render(both("x" * len(payload)))))
    assert payload in "".join(hostile.pieces)


@pytest.mark.parametrize("median", [1.0, 1e-300, 1e-320, 1e300])
def test_a_median_that_its_samples_never_had_makes_a_page_too(bare_metal: Any, median: float) -> None:
    """A bundle of a stranger may say so; the scatter of its rounds is then held at the edges of the figure."""
    sheet = bare_metal()
    outcomes = tuple(
        attrs.evolve(
            outcome,
            metrics=tuple(
                attrs.evolve(one, median=median) if one.name == "memory.bandwidth.read" else one
                for one in outcome.metrics
            ),
        )
        for outcome in sheet.record.outcomes
    )
    record = attrs.evolve(sheet.record, outcomes=outcomes)
    text = attrs.evolve(sheet, record=record).page()
    assert text.count("<line") < 20_000
    assert 'id="fig-rounds"' in text
