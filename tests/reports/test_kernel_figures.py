"""Roofline, crossing and instruction sets on the page: what a reader sees of products."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate import metrics
from k3gate.analysis.kernels import Roofs, products, roofs, turning
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


def bare(sheet: Any) -> Any:
    """The record without what was multiplied."""
    outcomes = tuple(one for one in sheet.record.outcomes if one.probe != "gemm")
    return attrs.evolve(sheet.record, outcomes=outcomes)


def whole_of(sheet: Any, names: Any, value: float) -> Any:
    """The sheet with this median in all metrics of these names."""

    def change(metric: Metric) -> Metric:
        return attrs.evolve(metric, median=value) if metric.name in names else metric

    outcomes = tuple(
        attrs.evolve(one, metrics=tuple(map(change, one.metrics))) for one in sheet.record.outcomes
    )
    return attrs.evolve(sheet, record=attrs.evolve(sheet.record, outcomes=outcomes))


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


@pytest.mark.parametrize("tokens", [0, -1, 10**400, 513, True, None, "many"])
def test_a_product_of_a_number_of_tokens_that_none_has_is_not_drawn(
    sheet: Any, tree: Any, tokens: Any
) -> None:
    odd = product("expert", (16, read_rate(sheet)))
    odd = attrs.evolve(
        odd,
        metrics=tuple(attrs.evolve(one, labels={**one.labels, "tokens": tokens}) for one in odd.metrics),
    )
    labels = {**odd.metrics[0].labels, "scope": "core", "engine": "ggml"}
    peer = Outcome(
        "gemm", "peer", State.OK, None, 1.0, 3, (), (figure("kernel.peer.weight_rate", 1e9, labels),)
    )
    assert products(with_outcomes(sheet, odd).record) == products(sheet.record)
    seen = seen_of(with_outcomes(sheet, odd, peer).page(), "fig-crossing", tree)
    assert "An expert turns from memory to arithmetic at about 16 tokens" in seen
    assert "fig-crossing" not in with_outcomes(attrs.evolve(sheet, record=bare(sheet)), odd).page()


@pytest.mark.parametrize("value", [1e-300, 1e-320, 0.5, 1e21, 1e308, 10**21])
def test_a_rate_that_no_machine_has_is_as_if_not_measured(sheet: Any, tree: Any, value: float) -> None:
    """Of each figure in turn, and of all of them at once."""
    whole = with_outcomes(
        sheet,
        peak("avx2", "int8", 1e12, "core"),
        product("expert_up", (1, 2e10), (256, 1e9), scope="isa", path="avx2"),
        product("expert_up", (1, 2e10), (256, 1e9), scope="core"),
    )
    names = {one.name for outcome in whole.record.outcomes for one in outcome.metrics}
    for bad in ({name} for name in names if name.startswith(("kernel.", "cpu.clock"))):
        whole_of(whole, bad, value).page()
    changed = whole_of(whole, names, value)
    assert products(changed.record) == ()
    assert roofs(changed.record) == Roofs(None, {})
    kernels = whole_of(whole, {name for name in names if name.startswith("kernel.")}, value)
    assert "fig-roofline" not in kernels.page()
    few = whole_of(whole, {"kernel.peak.per_cycle"}, value)
    wanted = "0.500" if value == 0.5 else "unknown"
    assert f"AVX2 on INT8 1.00 TFLOP/s {wanted} 3.00 GHz" in seen_of(few.page(), "fig-isa", tree)
    clock = whole_of(whole, {"cpu.clock.achieved"}, value)
    assert "AVX2 on INT8 1.00 TFLOP/s 1.98 of 2 unknown" in seen_of(clock.page(), "fig-isa", tree)


@pytest.mark.parametrize("value", [1.0, 1e20])
def test_the_least_and_the_greatest_rates_are_drawn(sheet: Any, value: float) -> None:
    names = ("kernel.expert.rate", "kernel.product.flops", "kernel.peak.flops")
    for bad in names:
        changed = whole_of(sheet, {bad}, value)
        assert products(changed.record)
        page = changed.page()
        assert "fig-roofline" in page and "fig-crossing" in page


def test_cases_of_one_matrix_by_instruction_set_are_one_product(sheet: Any, tree: Any) -> None:
    """One case for vectors, one for tiles: one curve, the first figure of a number of tokens, all cases' doubts."""
    read = read_rate(sheet)
    tiles = product("expert", (256, 0.03 * read), (64, 0.01 * read), (2, 0.8 * read), state=State.UNSTABLE)
    tiles = attrs.evolve(tiles, case="expert.machine.amx_int8")
    made = with_outcomes(sheet, tiles)
    expert = next(one for one in products(made.record) if one.shape == "expert")
    assert [point.tokens for point in expert.points] == [1, 2, 4, 16, 64, 256]
    assert expert.points[4].weights.median == 0.125 * read
    assert expert.outcome.case == "expert.machine"
    assert [one.case for one in expert.outcomes] == ["expert.machine", "expert.machine.amx_int8"]
    page = made.page()
    assert "at about 16 tokens (unstable)" in seen_of(page, "fig-crossing", tree)
    assert "of the arithmetic (unstable)" in seen_of(page, "fig-roofline", tree)


def test_instruction_sets_timed_for_themselves_stay_apart(sheet: Any) -> None:
    both = (
        product("expert_up", (1, 2e10), scope="isa", path="avx2"),
        product("expert_up", (1, 3e10), scope="isa", path="avx512"),
    )
    found = products(with_outcomes(sheet, *both).record, "isa")
    assert [one.points[0].weights.labels["path"] for one in found] == ["avx2", "avx512"]


def test_the_dotted_line_meets_the_drawn_lines(bare_metal: Any) -> None:
    """Shares 0.9 and 0.1 at 1 token, 0.1 and 0.3 at 16: straight lines meet at 0.8 of the way, at 16**0.8."""
    made = bare_metal()
    read = read_rate(made)
    ops = 2 * 16 / (17 / 32) * 0.1 * read / 0.3
    rows = product("expert", (1, 0.9 * read), (16, 0.1 * read)).metrics
    first = attrs.evolve(rows[1], median=0.1 * ops)
    expert = attrs.evolve(product("expert", (1, 1.0)), metrics=(rows[0], first, *rows[2:]))
    made = with_outcomes(made, expert, peak("amx_int8", "int8", ops))
    tokens, told = turning(products(made.record)[0].points, roofs(made.record))
    assert tokens == pytest.approx(16**0.8)
    assert told == "at about 9"


def test_more_than_the_read_rate_is_laid_to_the_read_rate(bare_metal: Any, tree: Any) -> None:
    made = bare_metal()
    told = "loads alone were measured too low here, since a product cannot exceed memory"
    for share, said in ((1.2, True), (0.9, False)):
        expert = product("expert", (1, share * read_rate(made)))
        page = with_outcomes(made, expert, peak("amx_int8", "int8", 1e15)).page()
        assert ("120 % of the read rate" in tree(page).text) is said
        for anchor in ("fig-roofline", "fig-crossing"):
            assert (told in seen_of(page, anchor, tree)) is said


@pytest.mark.parametrize(
    ("path", "cycle", "told"),
    [
        ("amx_int8", 0.46 / 16, "0.460 of 1 in 16"),
        ("amx_bf16", 1.5 / 16, "1.50 of 2 in 16"),
        ("avx2", 1.5, "1.50 3.00"),
    ],
)
def test_tiles_are_told_in_sixteen_cycles_also_far_from_a_whole(
    bare_metal: Any, tree: Any, path: str, cycle: float, told: str
) -> None:
    made = with_outcomes(bare_metal(), peak(path, "int8", 1e12, "core", cycle=cycle))
    assert told in seen_of(made.page(), "fig-isa", tree)


def test_a_run_without_products_says_why_and_one_of_old_says_nothing(bare_metal: Any, tree: Any) -> None:
    made = bare_metal()
    assert "Roofline" not in tree(made.page()).text.split("Measurements", 1)[1].split("Findings")[0]
    run = attrs.evolve(made.record.run, left_out=(LeftOut("gemm", "expert.machine", "no room"),))
    told = tree(attrs.evolve(made, record=attrs.evolve(made.record, run=run)).page()).text
    assert "Roofline: not run. No room." in told
