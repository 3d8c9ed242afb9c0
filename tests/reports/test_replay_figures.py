"""What a reader sees of the decode replay: the predicted rate, what limits it, a token's time, factors, its tests."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest

from k3gate.analysis.expectation import expected
from k3gate.analysis.ladder import ladder
from k3gate.records import LeftOut, Metric, Outcome, Proof, RunRecord, State
from k3gate.reports import page

from .test_hostile import PAYLOADS, rendered, shape

Make = Callable[..., Outcome]
OK = (Proof("placement", True, "seen"),)
TARGET = 'name = "own"\ncontext = 8192\nsequences = 1\ntrunk = "{}"\n{}'


def replayed(sheet: Any, *outcomes: Outcome, left_out: tuple[LeftOut, ...] = ()) -> RunRecord:
    """The record of a sheet with these cases of the replay besides."""
    run = attrs.evolve(sheet.record.run, left_out=(*sheet.record.run.left_out, *left_out))
    return attrs.evolve(sheet.record, run=run, outcomes=(*sheet.record.outcomes, *outcomes))


def rendered_page(
    sheet: Any, record: RunRecord, *, trunk: str = "bf16", rate: float | None = None, batch: int = 1
) -> str:
    text = TARGET.format(trunk, f"decode_tokens_per_s = {rate}\n" if rate else "")
    return page.render(
        record,
        sheet.gate,
        ladder(record, 138.1e9 if trunk == "bf16" else 25.83e9),
        criteria_text="",
        target_text=text,
        expected=expected(record, trunk, 8192, batch),
    )


def all_cases(make: Make) -> tuple[Outcome, ...]:
    """A machine of several nodes: every factor."""
    more: dict[str, Any] = {"stream": 580e9, "waiting": 4e-5, "proofs": OK}
    return (
        make(crossed=3.2e6, **more),
        make("deep", "deep", layers=8, crossed=6.4e6, **more),
        make("routing.uniform", "routing", routing="uniform", slower=0.93, **more),
        make("batch.4", "batch", batch=4, distinct=40.0, crossed=12.8e6, **more),
        make("placement.interleaved", "placement", placement="interleaved", slower=1.6, **more),
        make("placement.single", "placement", placement="single", slower=3.3, **more),
        make("trunk.q8_0", "trunk", trunk="q8_0", **more),
        make("context.32768", "context", context=32768, **more),
        make("pages.small", "pages", pages="small", slower=1.2, **more),
    )


def figure(text: str, anchor: str) -> str:
    start = text.index(f'<figure id="{anchor}"')
    return text[start : text.index("</figure>", start)]


def first(tree: Any, text: str) -> str:
    seen: str = tree(text).text
    return seen[: seen.index("Evidence for the engineer")]


# --- the first page --------------------------------------------------------------------------------------


def test_the_expected_rate_is_the_interval_beside_target_and_ceiling(
    bare_metal: Any, tree: Any, make_replay: Make
) -> None:
    sheet = bare_metal()
    text = rendered_page(sheet, replayed(sheet, *all_cases(make_replay)), rate=4.5)
    seen = first(tree, text)
    assert re.search(r"3\.\d to 4\.\d tokens/s for one sequence, predicted from the replay", seen)
    assert "Solid: meets the target. Hatched: misses it." in seen
    assert "Predicted from a miniature of 4 layers that was replayed here, part by part" in seen
    assert "held against itself in 2 cases of this run (deep and batch.4), it held in all." in seen
    assert "Memory allows at most 6.8." in seen
    chart = text[text.index('aria-labelledby="c-expected') :]
    chart = chart[: chart.index("</svg>")]
    assert "The target of at least 4.5 lies inside the interval. Memory allows at most 6.8." in chart
    assert 'class="miss"' in chart and 'class="f-data"' in chart
    assert ">target: at least 4.5<" in chart and ">memory: at most 6.8<" in chart
    number = re.search(r'<a href="#fig-token">(Figure \d+)</a>', text)
    assert number and f'<span class="fn">{number[1]}</span>' in figure(text, "fig-token")


def test_without_a_target_the_interval_is_one_bar(bare_metal: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    text = rendered_page(sheet, replayed(sheet, make_replay(stream=580e9)))
    chart = text[text.index('aria-labelledby="c-expected') :]
    assert 'class="miss"' not in chart[: chart.index("</svg>")]
    assert "Solid: meets the target" not in text


def test_a_model_that_does_not_fit_is_limited_by_capacity_whatever_was_replayed(
    small_vm: Any, tree: Any, make_replay: Make
) -> None:
    sheet = small_vm()
    seen = first(tree, rendered_page(sheet, replayed(sheet, make_replay(stream=20e9))))
    assert "0.12 to 0.17 tokens/s for one sequence, predicted from the replay" in seen
    assert "It holds only if the model fitted, and it does not." in seen
    assert "Capacity. The image needs 1,447.4 GB" in seen
    assert "it was not held against itself in this run; profile standard does so." in seen


def test_an_unstable_or_wide_prediction_and_one_that_failed_itself_say_so(
    bare_metal: Any, tree: Any, make_replay: Make
) -> None:
    sheet = bare_metal()
    shaky = make_replay(stream=580e9, state=State.UNSTABLE, scatter=0.4, reason="it scatters")
    missed = make_replay("deep", "deep", layers=8, stream=580e9, slower=4.0)
    seen = first(tree, rendered_page(sheet, replayed(sheet, shaky, missed)))
    assert "In doubt: the replay was unstable; it is too wide: its upper end is 3.7 times its lower" in seen
    assert "it failed its own test in deep" in seen
    assert "The replay was unstable." in seen[seen.index("What limits it") :]


def test_a_prediction_above_the_ceiling_says_that_one_of_the_two_is_wrong(
    bare_metal: Any, tree: Any, make_replay: Make
) -> None:
    sheet = bare_metal()
    seen = first(tree, rendered_page(sheet, replayed(sheet, make_replay(stream=5e12))))
    assert "It lies above the 6.8 that the measured read rate allows: one of the two is wrong." in seen
    near = first(tree, rendered_page(sheet, replayed(sheet, make_replay(stream=930e9))))
    assert "Its upper end lies above the 6.8 that the measured read rate allows." in near


@pytest.mark.parametrize(
    ("stream", "waiting", "words"),
    [
        (900e9, 0.0, "Bandwidth-bound. Of a predicted token's time memory bandwidth takes 96 %"),
        (200e9, 0.0, "Compute-bound. Of a predicted token's time arithmetic and latency takes 79 %"),
        (
            900e9,
            0.004,
            "Bound by threads that wait. Of a predicted token's time waiting of threads takes 71 %",
        ),
    ],
)
def test_the_limiting_tier_is_named_with_the_shares(
    bare_metal: Any, tree: Any, make_replay: Make, stream: float, waiting: float, words: str
) -> None:
    sheet = bare_metal()
    seen = first(tree, rendered_page(sheet, replayed(sheet, make_replay(stream=stream, waiting=waiting))))
    assert words in seen


def test_two_tiers_within_a_fifth_are_both_named(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    seen = first(tree, rendered_page(sheet, replayed(sheet, make_replay(stream=490e9))))
    assert "Bandwidth-bound and compute-bound." in seen
    assert "They lie within 20 % of each other." in seen


def test_of_a_trunk_on_gpus_the_limit_is_not_known(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    seen = first(tree, rendered_page(sheet, replayed(sheet, make_replay(stream=580e9)), trunk="gpu"))
    assert "Not known. GPUs and the links to them were not measured." in seen
    assert "Of what CPU memory does alone: GPUs and the links to them take time besides." in seen


def test_several_sequences_are_told_of_each(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    record = replayed(sheet, *all_cases(make_replay))
    text = rendered_page(sheet, record, batch=4)
    assert "tokens/s for each of 4 sequences, predicted from the replay" in first(tree, text)


# --- a token's time --------------------------------------------------------------------------------------


def test_a_tokens_time_is_stacked_and_told_by_part(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    text = figure(rendered_page(sheet, replayed(sheet, *all_cases(make_replay))), "fig-token")
    seen = tree(text).text
    assert re.search(r"A token is predicted to take 210 to 280 ms, 51 % of it attention projections", seen)
    assert "A step of all 93 layers for one sequence, context 8,192, trunk in BF16" in seen
    assert "Routed experts 44.5 18 % 25.8 580 62 % ok" in seen
    assert "Waiting of threads 3.72 1.5 % – – – ok" in seen
    assert "Assumed: 93 layers take what 4 took, part by part" in seen
    assert "Held against itself in 2 cases" in seen
    plot = text[text.index('<svg height="') : text.index("</svg>")]
    widths = [float(one) for one in re.findall(r'class="seg seg-\w+" x="[\d.]+%" width="([\d.]+)%"', plot)]
    assert len(widths) == 9
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert "More than 100" not in seen


def test_a_part_above_the_read_rate_is_explained(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    text = figure(rendered_page(sheet, replayed(sheet, make_replay(stream=2e12))), "fig-token")
    assert "More than 100 % of the read rate: loads alone were measured too low here" in tree(text).text


def test_what_holds_for_all_metrics_of_a_step_is_told_with_its_first(
    bare_metal: Any, tree: Any, make_replay: Make
) -> None:
    sheet = bare_metal()
    text = rendered_page(sheet, replayed(sheet, make_replay(proofs=OK)))
    rows = re.findall(r'<tr id="s-\d+">.*?</tr>', text, re.S)
    own = [tree(row).text for row in rows if "S-00" in row and ("Decode: base" in row or ">base<" in row)]
    assert len(own) == 23
    assert "trunk bf16" in own[0] and "placement: holds, seen" in own[0]
    number = own[0].split()[0]
    router = next(row for row in own if "Time of a step by part" in row and "part router" in row)
    assert router.endswith(f"as {number}") and "trunk" not in router


# --- factors ---------------------------------------------------------------------------------------------


def test_factors_stand_beside_the_base_case_placements_first(
    bare_metal: Any, tree: Any, make_replay: Make
) -> None:
    sheet = bare_metal()
    left = (
        LeftOut("replay", "batch.16", "no room for it"),
        LeftOut("replay", "batch.32", "no room for it"),
    )
    record = replayed(sheet, *all_cases(make_replay), left_out=left)
    text = figure(rendered_page(sheet, record), "fig-factors")
    seen = tree(text).text
    titles = re.findall(r'<th scope="row"><a[^>]*>([^<]*)<', text)
    assert titles == [
        "Base case",
        "Weights interleaved over the nodes",
        "One node alone",
        "Trunk in Q8_0",
        "4 sequences together",
        "Context 32,768",
        "Uniform routing",
        "Pages of 4\u00a0KiB",
        "8 layers",
    ]
    assert "The whole machine decodes 3.3 times as fast as one node alone: 96.2 against 29.2 tokens/s" in seen
    assert "One node alone 29.2 0.303 0.297–0.309 0 ok" in seen
    assert "4 sequences together 73.8 0.767 0.752–0.783 12.8 ok" in seen
    assert "Not replayed: batch.16 and batch.32 (no room for it)." in seen
    assert "Base case: 64 threads, 4 layers of 64 experts, trunk in BF16" in seen


@pytest.mark.parametrize(("slower", "words"), [(0.7, "slower than"), (1.0, "no faster than")])
def test_a_machine_that_is_no_faster_than_one_node_says_so_with_the_figures(
    bare_metal: Any, tree: Any, make_replay: Make, slower: float, words: str
) -> None:
    sheet = bare_metal()
    alone = make_replay("placement.single", "placement", placement="single", slower=slower)
    seen = tree(rendered_page(sheet, replayed(sheet, make_replay(), alone))).text
    assert re.search(
        rf"The whole machine decodes {words} one node alone: [\d.]+ against [\d.]+ tokens/s", seen
    )


def test_a_short_run_has_its_base_case_and_says_why_no_other(
    small_vm: Any, tree: Any, make_replay: Make
) -> None:
    sheet = small_vm()
    why = "a short profile replays the base case alone; --profile standard changes one factor at a time"
    left = tuple(LeftOut("replay", name, why) for name in ("trunk.*", "deep"))
    text = rendered_page(sheet, replayed(sheet, make_replay(), left_out=left))
    seen = tree(text).text
    assert "tokens/s; no other case was replayed" in seen
    assert f"Not replayed: trunk.* and deep ({why})." in seen
    assert f"The prediction held against itself: not run. A{why[1:]}." in seen


def test_a_case_that_was_withheld_is_left_out_with_its_reason(
    bare_metal: Any, tree: Any, make_replay: Make
) -> None:
    sheet = bare_metal()
    wrong = make_replay(
        "trunk.mxfp4", "trunk", trunk="mxfp4", state=State.FAILED, reason="withheld: 2 rows differ"
    )
    text = figure(rendered_page(sheet, replayed(sheet, make_replay(), wrong)), "fig-factors")
    assert "Trunk in MXFP4" not in text
    assert "Not replayed: trunk.mxfp4 (withheld: 2 rows differ)." in tree(text).text


# --- against itself --------------------------------------------------------------------------------------


def test_the_prediction_is_shown_against_itself(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    bad = make_replay("batch.8", "batch", batch=8, distinct=60.0, stream=580e9, waiting=4e-5, slower=2.0)
    record = replayed(sheet, *all_cases(make_replay), bad)
    seen = tree(figure(rendered_page(sheet, record), "fig-self")).text
    assert "The prediction held in two of three cases that it was held against" in seen
    assert re.search(r"8 layers 48\.6 42–56 inside ok", seen)
    assert re.search(r"8 sequences together [\d.]+ \d+–\d+ outside ok", seen)
    alone = tree(rendered_page(sheet, replayed(sheet, *all_cases(make_replay)[:2]))).text
    assert "The prediction held in the one case that it was held against" in alone


def test_an_unstable_case_is_shown_and_not_counted(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    shaky = make_replay(
        "batch.8", "batch", batch=8, distinct=60.0, stream=580e9, slower=2.0, state=State.UNSTABLE
    )
    text = rendered_page(sheet, replayed(sheet, *all_cases(make_replay), shaky))
    seen = tree(figure(text, "fig-self")).text
    assert "The prediction held in all of two cases that it was held against" in seen
    assert re.search(r"8 sequences together [\d.]+ \d+–\d+ outside, not counted unstable", seen)
    assert "it held in all. Counted as nothing: batch.8 (unstable)." in first(tree, text)


def test_the_router_and_the_hit_rate_stand_beside_the_prediction(
    bare_metal: Any, tree: Any, make_replay: Make
) -> None:
    sheet = bare_metal()
    detail = (
        "all steps: 1 %; the router itself chooses 47 of the 48 experts that float64 does, with near ties in 2 of 12 "
        "choices; every row within its bounds"
    )
    made = make_replay(stream=580e9, proofs=(Proof("model_reference", True, detail),))
    seen = tree(figure(rendered_page(sheet, replayed(sheet, made)), "fig-token")).text
    assert "47 of 48 experts as float64 chooses them, near ties in 2 of 12 choices" in seen
    assert re.search(
        r"Predictions of k3gate plan, which rest on paper rates .* hold \d+ of \d+ published", seen
    )
    without = tree(figure(rendered_page(sheet, replayed(sheet, make_replay(stream=580e9))), "fig-token")).text
    assert "as float64 chooses them" not in without


# --- what is absent, and strangers -----------------------------------------------------------------------


def test_a_run_without_a_replay_has_no_such_figures(bare_metal: Any) -> None:
    text = bare_metal().page()
    assert "fig-token" not in text
    assert "A token's time" not in text


def test_a_replay_that_was_left_out_is_told_in_one_line_each(small_vm: Any, tree: Any) -> None:
    sheet = small_vm()
    record = replayed(sheet, left_out=(LeftOut("replay", "*", "no CPU has memory"),))
    seen = tree(rendered_page(sheet, record)).text
    for title in ("A token's time", "One factor at a time", "The prediction held against itself"):
        assert f"{title}: not run. No CPU has memory." in seen


def test_a_failed_base_case_gives_its_reason(small_vm: Any, tree: Any, make_replay: Make) -> None:
    sheet = small_vm()
    broken = make_replay(state=State.FAILED, reason="withheld: a row differs")
    text = rendered_page(sheet, replayed(sheet, broken))
    assert "A token's time: failed. Withheld: a row differs." in tree(text).text
    assert "fig-token" not in text


def test_ids_are_unique_and_links_lead_somewhere(bare_metal: Any, tree: Any, make_replay: Make) -> None:
    sheet = bare_metal()
    seen = tree(rendered_page(sheet, replayed(sheet, *all_cases(make_replay)), rate=5.0))
    assert [name for name, times in Counter(seen.ids).items() if times > 1] == []
    assert {link for link in seen.links if link[1:] not in seen.ids} == set()


def slow(*values: object) -> Any:
    """A parameter of a test that draws a whole page, one of many alike."""
    return pytest.param(*values, marks=pytest.mark.long)


STRANGE: tuple[object, ...] = (float("nan"), float("inf"), -1.0, 0.0, 1e-320, 1e300, None)
STRANGE_FIGURES = [
    (field, value) if number % 4 == 0 else slow(field, value)
    for number, (field, value) in enumerate(itertools.product(("median", "low", "high"), STRANGE))
]


def bent(outcomes: Iterable[Outcome], change: Callable[[Metric], Metric]) -> tuple[Outcome, ...]:
    return tuple(attrs.evolve(one, metrics=tuple(change(m) for m in one.metrics)) for one in outcomes)


@pytest.mark.case("REP-01")
@pytest.mark.parametrize(("field", "value"), STRANGE_FIGURES)
def test_rep_01_no_figure_of_a_stranger_breaks_or_distorts_the_page(
    small_vm: Any, make_replay: Make, field: str, value: Any
) -> None:
    """REP-01: any median and any interval, of each metric of the replay in turn and of all together."""
    sheet = small_vm()
    cases = [one for one in all_cases(make_replay) if one.case in ("base", "deep", "placement.single")]
    for name in (None, "replay.miniature.rate", "replay.part.seconds", "replay.part.bytes"):

        def change(one: Metric, name: str | None = name) -> Metric:
            if name not in (None, one.name):
                return one
            if field == "median":
                return attrs.evolve(one, median=value)
            low, high = one.interval or (1.0, 1.0)
            if value is None:
                return attrs.evolve(one, interval=None)
            return attrs.evolve(one, interval=(value, high) if field == "low" else (low, value))

        record = replayed(sheet, *bent(cases, change))
        text = rendered_page(sheet, record, rate=5.0)
        for place in re.findall(r'(?:x|x1|x2|cx|width)="(-?[\w.]+)%"', text):
            assert -0.01 <= float(place) <= 100.01
        ours = "".join(figure(text, anchor) for anchor in ANCHORS if f'<figure id="{anchor}"' in text)
        assert not re.search(r"\d{3}(,\d{3}){4}|0\.0{8}|\bnan\b|\binf\b", ours)


ANCHORS = ("fig-token", "fig-factors", "fig-self")
LABELS = (
    "factor",
    "trunk",
    "placement",
    "batch",
    "context",
    "layers",
    "experts",
    "head_rows",
    "routing",
    "threads",
    "part",
)


@pytest.mark.case("REP-01")
@pytest.mark.parametrize(
    "value", [None, 10**400, *(slow(one) for one in (-1, 0, 1e300, float("nan"), True, "", "x" * 5000))]
)
def test_rep_01_no_label_of_a_stranger_breaks_the_page(small_vm: Any, make_replay: Make, value: Any) -> None:
    """REP-01: labels that are missing, of another kind, or of no sense."""
    sheet = small_vm()
    for key in LABELS:
        outcomes = bent(
            all_cases(make_replay), lambda one, key=key: attrs.evolve(one, labels={**one.labels, key: value})
        )
        assert "</html>" in rendered_page(sheet, replayed(sheet, *outcomes), rate=5.0)
    bare = bent(all_cases(make_replay), lambda one: attrs.evolve(one, labels={}))
    assert "</html>" in rendered_page(sheet, replayed(sheet, *bare))


@pytest.mark.case("REP-01")
@pytest.mark.parametrize("payload", [*PAYLOADS[:2], *map(slow, PAYLOADS[2:])])
def test_rep_01_markup_in_a_replay_is_text(
    bare_metal: Any, tree: Any, make_replay: Make, payload: str
) -> None:
    """REP-01: names and labels with markup, in a replay whose figures are drawn and in one where nothing fits."""
    sheet = bare_metal(2)
    left = (LeftOut("replay", "batch.16", "no room"),)
    record = replayed(sheet, *all_cases(make_replay), left_out=left)

    def drawn(ending: str) -> str:
        bad = attrs.evolve(
            record,
            outcomes=tuple(
                attrs.evolve(
                    one,
                    case=one.case + ending,
                    reason="it " + ending,
                    title=ending,
                    metrics=tuple(
                        attrs.evolve(m, reason=ending, labels={**m.labels, "path": ending, "note": ending})
                        for m in one.metrics
                    ),
                )
                for one in record.outcomes
            ),
            run=attrs.evolve(record.run, left_out=(LeftOut("replay", "x" + ending, ending),)),
        )
        return rendered_page(sheet, bad, rate=5.0)

    hostile, harmless = tree(drawn(payload)), tree(drawn("x" * len(payload)))
    assert "fig-token" in hostile.ids
    assert shape(hostile) == shape(harmless)
    spoiled = attrs.evolve(sheet, record=record)
    assert shape(tree(rendered(spoiled, payload))) == shape(tree(rendered(spoiled, "x" * len(payload))))
