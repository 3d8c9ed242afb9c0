"""Roofline, crossing and instruction sets on the page: what a reader sees of products."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate import metrics
from k3gate.records import LeftOut, Metric, Outcome, Sample, State

SHAPE = {"scope": "machine", "format": "mxfp4", "activations": "int8", "placement": "spread", "threads": 64}


def figure(name: str, value: float, labels: dict[str, Any], state: State = State.OK) -> Metric:
    declaration = metrics.find(name)
    assert declaration is not None
    samples = tuple(Sample(value, round_, 7, 1.0) for round_ in range(3))
    interval = (0.99 * value, 1.01 * value)
    return Metric(name, declaration.unit, declaration.better, labels, samples, value, interval, state)


def product(shape: str, *points: tuple[int, float], state: State = State.OK, **more: Any) -> Outcome:
    """An outcome with these (tokens, B/s of weights)."""
    rows = []
    name = "kernel.expert.rate" if shape == "expert" else "kernel.product.weight_rate"
    for tokens, rate in points:
        path = "avx512_vnni" if tokens < 16 else "amx_int8"
        labels = SHAPE | {"shape": shape, "tokens": tokens, "path": path} | more
        per_byte = 2 * tokens / (2.0 if labels["format"] == "bf16" else 17 / 32)
        rows.append(figure(name, rate, labels, state))
        rows.append(figure("kernel.product.flops", rate * per_byte, labels, state))
    case = "expert.machine" if shape == "expert" else f"product.{shape}.{rows[0].labels['format']}.machine"
    return Outcome("gemm", case, state, None, 1.0, 3, (), tuple(rows), title=case)


def peak(path: str, kind: str, rate: float, scope: str = "machine", cycle: float = 1.98) -> Outcome:
    labels = {"scope": scope, "path": path, "type": kind, "threads": 64 if scope == "machine" else 1}
    rows = (
        figure("kernel.peak.flops", rate, labels),
        figure("cpu.clock.achieved", 3.0e9, labels),
        figure("kernel.peak.per_cycle", cycle, labels),
    )
    return Outcome("gemm", f"peak.{scope}.{path}.{kind}", State.OK, None, 1.0, 3, (), rows)


def with_outcomes(sheet: Any, *more: Outcome) -> Any:
    record = attrs.evolve(sheet.record, outcomes=(*sheet.record.outcomes, *more))
    return attrs.evolve(sheet, record=record)


def read_rate(sheet: Any) -> float:
    return next(
        metric.median
        for outcome in sheet.record.outcomes
        for metric in outcome.metrics
        if metric.name == "memory.bandwidth.read" and metric.labels.get("scope") == "machine"
    )


def seen_of(page: str, anchor: str, tree: Any) -> str:
    rest = page[page.index(f'id="{anchor}"') :]
    return str(tree(rest[: rest.index("</figure>")]).text)


@pytest.fixture
def sheet(bare_metal: Any) -> Any:
    """Bound by memory up to 4 tokens, by arithmetic from 64 on: in between, both at 16."""
    made = bare_metal()
    read = read_rate(made)
    ridge = 16 * 2 / (17 / 32) * read  # operations a second at the full read rate with 16 tokens
    expert = product("expert", (1, 0.8 * read), (4, 0.8 * read), (16, 0.5 * read), (64, 0.125 * read))
    trunk = product("attention_in", (1, 0.9 * read), (16, 0.9 * read), format="bf16", activations="bf16")
    return with_outcomes(
        made, expert, trunk, peak("amx_int8", "int8", ridge), peak("amx_bf16", "bf16", ridge / 2)
    )


def test_the_roofline_says_what_one_token_uses(sheet: Any, tree: Any) -> None:
    page = sheet.page()
    seen = seen_of(page, "fig-roofline", tree)
    assert "At one token an expert uses 80 % of the read rate and 5.0 % of the arithmetic" in seen
    assert "Arithmetic on INT8" in seen and "AMX, INT8" in seen
    assert f"read rate {read_rate(sheet) / 1e9:.0f} GB/s" in seen
    assert page.count('<polyline class="c-roof"') == 2


def test_the_crossing_lies_where_both_shares_are_alike(sheet: Any, tree: Any) -> None:
    seen = seen_of(sheet.page(), "fig-crossing", tree)
    assert "An expert turns from memory to arithmetic at about 16 tokens" in seen
    assert "Trunk, to the heads, BF16" in seen and "bound by memory up to 16" in seen
    assert "16 tokens: 50 % of the read rate, 50 % of the peak" in seen


def test_without_a_roof_the_figures_say_what_is_missing(bare_metal: Any, tree: Any) -> None:
    made = with_outcomes(bare_metal(), product("expert", (1, 1e11)))
    seen = tree(made.page()).text
    assert (
        "Where products turn from memory to arithmetic: not known. Arithmetic on registers was not measured"
        in seen
    )
    assert 'id="fig-crossing"' not in made.page()


def test_an_unstable_figure_casts_doubt_on_its_title(bare_metal: Any, tree: Any) -> None:
    made = bare_metal()
    expert = product("expert", (1, 0.8 * read_rate(made)), state=State.UNSTABLE)
    seen = tree(with_outcomes(made, expert, peak("amx_int8", "int8", 1e14)).page()).text
    assert "of the arithmetic (unstable)" in seen


@pytest.mark.case("ISA-03")
@pytest.mark.case("ISA-06")
def test_isa_06_what_the_machine_can_and_what_a_runtime_uses_are_two_lines(
    bare_metal: Any, tree: Any
) -> None:
    lacking = "this CPU has no amx_int8"
    absent = Outcome("gemm", "peak.amx_int8", State.NOT_PRESENT, lacking, 0.1, 1)
    made = with_outcomes(
        bare_metal(),
        absent,
        peak("avx512_vnni", "int8", 7e11, "core"),
        product("expert_up", (1, 2e10), (256, 1e9), scope="isa", path="avx512_vnni"),
    )
    seen = seen_of(made.page(), "fig-isa", tree)
    assert "The best instruction set that this machine can use is AVX-512 VNNI" in seen
    assert "This machine can: what stands here. The runtime uses: not shown" in seen
    assert "AMX, INT8 – – – – – not present" in seen
    assert "AVX-512 VNNI on INT8 700 GFLOP/s 1.98 of 2 3.00 GHz" in seen


def test_a_library_of_a_runtime_stands_beside_ours_and_on_the_ladder(bare_metal: Any, tree: Any) -> None:
    made = bare_metal()
    labels = SHAPE | {"scope": "core", "shape": "expert_up", "tokens": 1, "engine": "ggml 0.25.3"}
    theirs = figure("kernel.peer.weight_rate", 4e9, labels)
    peer = Outcome("gemm", "peer.ggml.mxfp4", State.OK, None, 1.0, 3, (), (theirs,))
    made = with_outcomes(made, product("expert_up", (1, 1e10), (256, 1e9), scope="core"), peer)
    page = made.page()
    seen = seen_of(page, "fig-beside", tree)
    assert "With one token ggml 0.25.3 has 40 % of what this core can do" in seen
    assert "MXFP4, one token 10.0 4.00 40 %" in seen
    assert "256" not in seen.split("MXFP4, one token")[1].split("What a runtime")[0]
    assert "fig-beside" not in bare_metal().page()
    ladder = tree(page).text.split("From paper to token")[1]
    assert "ggml 0.25.3 has 40 % of our rate on one core" in ladder


def test_a_cycle_of_tiles_is_told_in_sixteen(bare_metal: Any, tree: Any) -> None:
    made = with_outcomes(bare_metal(), peak("amx_int8", "int8", 5.9e12, "core", cycle=0.99 / 16))
    assert "0.990 of 1 in 16" in seen_of(made.page(), "fig-isa", tree)


def test_a_run_without_products_says_why_and_one_of_old_says_nothing(bare_metal: Any, tree: Any) -> None:
    made = bare_metal()
    assert "Roofline" not in tree(made.page()).text.split("Measurements", 1)[1].split("Findings")[0]
    run = attrs.evolve(made.record.run, left_out=(LeftOut("gemm", "expert.machine", "no room"),))
    told = tree(attrs.evolve(made, record=attrs.evolve(made.record, run=run)).page()).text
    assert "Roofline: not run. No room." in told
