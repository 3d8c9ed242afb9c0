"""The page of two runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from k3gate.analysis.comparison import compare
from k3gate.records import Better
from k3gate.reports import comparison


def experts(record: Any, *points: tuple[int, str]) -> Any:
    """`record` with an expert's rates of these (tokens, path)."""
    rows = tuple(
        attrs.evolve(
            record.outcomes[0].metrics[0],
            name="kernel.expert.rate",
            labels={"scope": "machine", "format": "mxfp4", "tokens": tokens, "path": path},
        )
        for tokens, path in points
    )
    more = attrs.evolve(record.outcomes[0], probe="gemm", case="expert.machine", metrics=rows)
    return attrs.evolve(record, outcomes=(*record.outcomes, more))


def test_figures_of_one_case_are_told_apart_on_the_page_and_in_text(
    bare_metal: Any, tree: Any, capsys: Any
) -> None:
    from k3gate.cli.diff import _print

    a = experts(bare_metal().record, (1, "avx512_vnni"), (16, "avx512_vnni"))
    b = experts(other(bare_metal()), (1, "avx512_vnni"), (16, "amx_int8"))
    found = compare(a, b)
    seen = tree(comparison.render(found)).text
    _print(found)
    printed = capsys.readouterr().out
    for name, text in (("Whole expert", seen), ("kernel.expert.rate", printed)):
        rest = text.split(name, 1)[1] if name in text else text
        assert ", path avx512_vnni, tokens 1 " in rest
        assert ", path avx512_vnni in A, path amx_int8 in B, tokens 16 " in rest
    assert "memory.bandwidth.read " in printed, "one figure of a case needs no more words"


def test_another_path_of_an_only_figure_is_told_too(bare_metal: Any, tree: Any) -> None:
    a = experts(bare_metal().record, (1, "avx512_vnni"))
    b = experts(other(bare_metal()), (1, "avx2"))
    seen = tree(comparison.render(compare(a, b))).text
    assert ", path avx512_vnni in A, path avx2 in B" in seen
    assert "tokens 1" not in seen
    assert "path" not in tree(comparison.render(compare(a, a))).text.split("Metric by metric")[1]


def scaled(record: Any, prefix: str, factor: float) -> Any:
    """`record` with the metrics of some cases multiplied."""

    def change(metric: Any) -> Any:
        low, high = metric.interval
        return attrs.evolve(
            metric,
            median=metric.median * factor,
            interval=(low * factor, high * factor),
            samples=tuple(attrs.evolve(s, value=s.value * factor) for s in metric.samples),
        )

    return attrs.evolve(
        record,
        outcomes=tuple(
            attrs.evolve(o, metrics=tuple(map(change, o.metrics))) if o.case.startswith(prefix) else o
            for o in record.outcomes
        ),
    )


def other(sheet: Any) -> Any:
    run = attrs.evolve(sheet.record.run, id="9c1d8x4t", fingerprint="sha256:other", machine_name="node s04")
    memory = attrs.evolve(sheet.record.inventory.memory, channels=12)
    return attrs.evolve(sheet.record, run=run, inventory=attrs.evolve(sheet.record.inventory, memory=memory))


def test_comparable_and_differences_come_before_any_figure(bare_metal: Any, tree: Any) -> None:
    a, b = bare_metal().record, scaled(other(bare_metal()), "read.machine", 0.6)
    text = comparison.render(compare(a, b))
    seen = tree(text)
    assert "B measures worse than A" in seen.text
    assert text.index("The runs may be compared") < text.index("memory.channels") < text.index("fig-ratio")
    assert "memory.channels 24 12" in seen.text
    assert "The whole machine, each node its own memory" in seen.text
    assert "0.600" in seen.text
    assert "worse" in seen.text
    assert [name for name, times in Counter(seen.ids).items() if times > 1] == []
    assert {link for link in seen.links if link[1:] not in seen.ids} == set()


def test_runs_that_may_not_be_compared_say_why_first(bare_metal: Any, small_vm: Any, tree: Any) -> None:
    seen = tree(comparison.render(compare(bare_metal().record, small_vm().record))).text
    assert "Not comparable" in seen
    assert seen.index("Profiles differ: standard against quick") < seen.index("Metric by metric")
    assert "not measured" in seen


def test_better_lies_on_the_right_where_less_is_better_too(bare_metal: Any) -> None:
    a = bare_metal().record
    found = compare(a, scaled(other(bare_metal()), "read.machine", 0.5))
    row = next(m for m in found.metrics if m.case == "read.machine")
    lower = attrs.evolve(row, better=Better.LOWER)
    place = {}
    for item in (row, lower):
        text = comparison.render(attrs.evolve(found, metrics=(item,)))
        drawing = text[text.rindex('<td class="bar">') :]
        place[item.better] = float(drawing.split('cx="')[1].split("%")[0])
        assert ("less is better; drawn as A ÷ B" in text) == (item.better is Better.LOWER)
    assert place[Better.HIGHER] < 50 < place[Better.LOWER]


def test_better_here_and_worse_there_is_the_heading(bare_metal: Any, tree: Any) -> None:
    b = scaled(scaled(other(bare_metal()), "read.machine", 0.6), "read.core", 1.3)
    assert (
        "B is better in some metrics, worse in others"
        in tree(comparison.render(compare(bare_metal().record, b))).text
    )
