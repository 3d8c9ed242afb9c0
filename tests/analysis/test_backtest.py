"""The predictor against published measurements: what tests it, what does not and why, and that nothing is fitted."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from k3gate.analysis import backtest, prediction, published, quantizations
from k3gate.errors import UsageError
from k3gate.model.known import sizes_of

SHARED = Path(__file__).resolve().parents[3] / "shared" / "k3" / "published-results.csv"
DOCS = Path(__file__).resolve().parents[2] / "docs"
HEAD = ",".join(published.COLUMNS)


@pytest.fixture(scope="module")
def made() -> backtest.Backtest:
    return backtest.run(published.parse(published.SHIPPED.read_text(), "shipped"))


def row(made: backtest.Backtest, number: int) -> backtest.Tested:
    return next(one for one in made.rows if one.row.number == number)


def test_four_of_five_results_lie_inside_and_intervals_are_no_wider_than_three(
    made: backtest.Backtest,
) -> None:
    assert len(made.testable) == 23
    assert made.hit_rate >= 0.8
    assert made.median_width <= 3
    assert made.good is True
    widths = [one.predicted[1] / one.predicted[0] for one in made.testable]
    assert made.median_width == statistics.median(widths)
    for engine, machines in prediction.MACHINES.items():
        rows = [one for one in made.testable if one.engine == engine]
        assert machines == len({one.row.machine for one in rows})
        assert (*prediction.TESTED[engine], prediction.LEFT_OUT[engine]) == made.classes[engine]
        assert made.classes[engine][:2] == (sum(one.inside for one in rows), len(rows))
    assert made.inside == sum(inside for inside, _ in prediction.TESTED.values()) == 19
    told = backtest.text(made)
    assert "by class: general 11 of 13, 10 where their machine is left out; tuned 8 of 10, 6 where" in told
    assert "the class of each runtime was chosen knowing these rows" in told


def test_there_are_six_free_numbers_and_the_bands_are_the_fit_of_all_rows(made: backtest.Backtest) -> None:
    assert len(prediction.FREE_NUMBERS) == 6
    for engine, band in prediction.BANDS.items():
        shares = sorted(one.share for one in made.testable if one.engine == engine)
        cut = len(shares) // 10
        low, high = shares[cut], shares[-1 - cut]
        assert made.fitted[engine] == pytest.approx(band)
        assert band[0] <= low < band[0] + 0.05 and band[1] - 0.05 < high <= band[1]


def test_a_fit_of_few_rows_holds_four_of_five_of_them(made: backtest.Backtest) -> None:
    tuned = [one for one in made.testable if one.engine == "tuned"]
    low, high = backtest.fit(tuned, "tuned")
    assert sum(low <= one.share <= high for one in tuned) >= 0.8 * len(tuned)


def test_no_number_but_the_six_decides_what_a_row_is_predicted() -> None:
    """Numbers that are ours would be free ones: no rate of an unnamed GPU, no bits of a trunk, no half window."""
    for module, stated in ((published, []), (quantizations, ["_UD_Q2_K_XL"])):
        assert [name for name, value in vars(module).items() if isinstance(value, float)] == stated
        assert "(ours)" not in Path(module.__file__).read_text()
    window = backtest.run(published.parse(f"{HEAD}\n{line(context=131072)}\n", "own.csv")).rows[0]
    assert window.bytes_per_token == 136_990_303_232 + 2 * 434_110_464 + 27_648 * 131_072


def test_each_machine_is_also_predicted_by_the_others_alone(made: backtest.Backtest) -> None:
    assert 0 < made.hit_rate_without < 1
    one = next(tested for tested in made.testable if "6454S" in tested.row.machine)
    others = [t for t in made.testable if t.engine == "general" and "6454S" not in t.row.machine]
    band = backtest.fit(others, "general")
    assert one.without == pytest.approx(tuple(one.times.rate(share) for share in band))
    assert "leaving each machine out" in backtest.text(made)
    assert (
        "0.725 of two sockets, which is of one machine of these rows (Xeon Gold 6454S), is not"
        in " ".join(backtest.text(made).split())
    )
    lines = [row(made, 12).row, row(made, 13).row]
    alone = backtest.run(lines).testable[0]
    assert alone.without is None and alone.inside_without is False, "no other machine of its class"


def test_every_row_is_testable_or_has_its_reason(made: backtest.Backtest) -> None:
    assert len(made.rows) == 65
    reasons = {one.reason for one in made.rows} - {None}
    assert reasons == {
        "no decode rate",
        "aggregate over several requests",
        "speculative decoding: several tokens a step",
        "storage-bound: experts come from drives",
        "dominated by communication, as its notes say",
        "the CPU is not stated",
        "neither channels and speed nor a measured bandwidth are stated",
    }
    for one in made.testable:
        assert one.row.decode and one.row.batch == 1 and one.row.cpu
        assert one.row.theoretical or one.row.measured


def test_rows_of_several_machines_are_predicted_by_the_bandwidth_of_all(made: backtest.Backtest) -> None:
    """5803 ms a token, 86 % of them communication, is what rules line 17 out; lines 8 to 11 say nothing like it."""
    assert "communication" in row(made, 17).reason
    read = 136_990_303_232 + 2 * 434_110_464
    for number, rate in ((8, 5734.4e9), (9, 5734.4e9), (10, 11_468.8e9), (11, 5734.4e9)):
        found = row(made, number)
        assert found.engine == "tuned"
        assert found.share == pytest.approx(found.row.decode * read / (0.8 * rate), rel=1e-6)
        assert any(
            "states no latency, so that the network is in the band" in one for one in found.assumptions
        )
        assert found.share < 1, "even all of it read at paper takes less than a token did"
    assert [round(row(made, number).share, 2) for number in (8, 9, 10, 11)] == [0.54, 0.54, 0.32, 0.51]


def test_the_recipe_of_a_file_sums_to_the_size_that_its_loader_prints() -> None:
    """345.687 GiB, 344.166 of them repeating layers, 1.027 T parameters (ikawrakow/ik_llama.cpp pull 612)."""
    tensors = quantizations.iq2_kl_of_kimi_k2()
    size = sum(one.bytes for one in tensors)
    assert size / 2**30 == pytest.approx(345.687, rel=1e-4)
    ends = sum(one.bytes for one in tensors if one.what in ("output", "token_embd"))
    assert (size - ends) / 2**30 == pytest.approx(344.166, rel=1e-4)
    twice = next(one for one in tensors if one.what == "attn_kv_b")
    assert not twice.read, "for prefill alone"
    parameters = sum(one.parameters for one in tensors) - twice.parameters
    assert parameters == pytest.approx(sizes_of("Kimi-K2-Instruct").parameters, abs=100)


def test_a_file_of_several_types_is_read_by_its_recipe(made: backtest.Backtest) -> None:
    experts = 60 * 8 * 2048 * 7168 * (2 * 2.6875 + 3.1875) / 8
    keys, layers = 512 * 64 * 128, 61
    attention = 1536 * 7168 + 64 * 192 * 1536 + 576 * 7168 + 128 * 64 * 512 + 7168 * 8192
    trunk = layers * (keys * 5.5 + attention * 5.25) / 8
    trunk += (18432 + 60 * 2048) * 7168 * (2 * 4.25 + 5.25) / 8
    trunk += 163840 * 7168 * 6.625 / 8 + 60 * 384 * 7168 * 4
    cache = 61 * 576 * 2 * 8.5 / 16
    for number, context in ((35, 0), (36, 8192), (37, 0)):
        found = row(made, number)
        # Scales of rows and norms, under 0.2 %, are left out here.
        assert found.bytes_per_token == pytest.approx(experts + trunk + context * cache, rel=0.002)
        assert found.share == pytest.approx(
            found.row.decode * found.bytes_per_token / (256 * 2**30), rel=1e-9
        )
    assert "by the recipe and the command that the file's author printed" in row(made, 35).assumptions[0]


def test_the_gpu_that_a_runtime_needs_and_a_row_does_not_name_is_left_out(made: backtest.Backtest) -> None:
    found = row(made, 61)
    assert found.bytes_per_token == pytest.approx(58 * 8 * 3 * 2048 * 7168 * 4.85 / 8, rel=0.001)
    assert found.times.fixed == {}, "no rate of ours for it"
    assert any("the time of the GPU is left out" in line for line in found.assumptions)


@pytest.mark.skipif(not SHARED.exists(), reason="the collected results are not beside the checkout")
def test_the_shipped_rows_are_those_that_were_collected() -> None:
    ours, theirs = (
        list(csv.DictReader(path.read_text().splitlines())) for path in (published.SHIPPED, SHARED)
    )
    assert ours == [{key: row.get(key) for key in ours[0]} for row in theirs], "notes and assumptions too"


def test_a_reason_is_of_the_rows_own_figure(made: backtest.Backtest) -> None:
    """Line 34 tells of 280 tokens/s with a draft beside its own 73; of line 31, 99.6 % came from a cache."""
    assert row(made, 34).reason == "the CPU is not stated"
    assert "neither channels and speed nor" in row(made, 31).reason
    assert "storage-bound" in row(made, 30).reason and "storage-bound" in row(made, 22).reason
    assert "6 channels per socket assumed" in row(made, 3).row.notes


def test_a_prediction_can_be_computed_by_hand(made: backtest.Backtest) -> None:
    text = line(context=8192, runtime="libxsmm", decode_tps=1.2)
    native = backtest.run(published.parse(f"{HEAD}\n{text}\n", "own.csv")).rows[0]
    read = 136_990_303_232 + 2 * 434_110_464 + 27_648 * 8192
    seconds = read / (0.8 * 307.2e9)
    assert native.predicted == pytest.approx((0.45 / seconds, 0.75 / seconds))
    assert native.share == pytest.approx(1.2 * seconds)
    hybrid = row(made, 2)
    experts = 92 * 16 * 17_547_264 / (0.8 * 0.725 * 12 * 2666e6 * 8)
    on_gpu = (59_042_320_560 + 2 * 434_110_464 + 27_648 * 131_072) / (0.8 * 960e9)
    assert hybrid.predicted == pytest.approx(
        tuple(1 / (experts / share + on_gpu) for share in (0.25, 0.70)), rel=1e-3
    ), "and the experts' way over PCIe, which no row states"


def test_what_is_assumed_stands_with_the_row(made: backtest.Backtest) -> None:
    told = [json.dumps(one.assumptions) for one in made.testable]
    assert any("KTransformers keeps all but the routed experts on a GPU" in text for text in told)
    assert any("could not place single tensors before April 2025" in text for text in told)
    assert row(made, 35).row.measured == 256 * 2**30
    assert row(made, 36).row.measured == 256 * 2**30, "the same machine"


def test_models_of_the_rows_are_known_and_their_relatives_are_not() -> None:
    assert sizes_of("Kimi-K3").bytes == 1_560_860_324_864
    assert sizes_of("Kimi-K2-Thinking").parameters == pytest.approx(1026.4e9, rel=1e-3)
    assert sizes_of("DeepSeek-R1").parameters == pytest.approx(671.03e9, rel=1e-3)
    assert sizes_of("Kimi-K3.1-Pro") is None and sizes_of("Llama-4") is None


def line(**cells: Any) -> str:
    default = {"model": "Kimi-K3", "quant": "native", "runtime": "x", "cpu": "y", "decode_tps": 3, "batch": 1}
    default |= {"channels": 8, "mem_speed_mts": 4800, "theoretical_gbs": 307.2}
    default |= cells
    return ",".join(f'"{default.get(column, "")}"' for column in published.COLUMNS)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({}, None),
        ({"decode_tps": ""}, "no decode rate"),
        ({"batch": 8}, "aggregate"),
        ({"batch": ""}, "the batch is not stated"),
        ({"cpu": ""}, "the CPU is not stated"),
        ({"theoretical_gbs": ""}, "neither channels"),
        ({"theoretical_gbs": "", "notes": "read 300 GB/s measured"}, None),
        ({"model": "Some-Model"}, "the shapes of 'Some-Model' are not known here"),
        ({"quant": "Q7_X"}, "what a token reads under 'Q7_X' is not known here"),
        ({"notes": "speculative"}, "speculative"),
        ({"notes": "MTP draft of the model, n=4"}, "speculative"),
        ({"notes": "not speculative; not storage-bound; no MTP"}, None),
        ({"notes": "9 with a draft"}, None),
        ({"notes": "streamed; 99.6% cache hit"}, None),
        ({"notes": "streamed; 40% cache hit"}, "storage-bound"),
        ({"notes": "first draft of the table"}, None),
        ({"notes": "with a draft model"}, "speculative"),
        ({"notes": "86% in communication"}, "communication"),
        ({"quant": "IQ2_KL (300 GiB, 2.9 bpw)"}, "is not known here"),
        ({"quant": "IQ2_KL (345.7 GiB, 2.892 bpw)", "model": "DeepSeek-V3"}, "is not known here"),
        ({"gpu": "a card", "gpu_count": 1}, "the memory rate of 'a card', on which the trunk lies"),
        ({"runtime": "KTransformers"}, None),
        ({"gpu": "RTX 4090", "gpu_count": 1}, None),
    ],
)
def test_rows_of_ones_own_are_tested_by_the_same_rules(cells: dict[str, Any], reason: str | None) -> None:
    (tested,) = backtest.run(published.parse(f"{HEAD}\n{line(**cells)}\n", "own.csv")).rows
    assert tested.reason is None if reason is None else reason in tested.reason


@pytest.mark.parametrize(
    ("cells", "several"),
    [
        ({"notes": "8 nodes x 2 sockets"}, True),
        ({"notes": "two ranks over InfiniBand"}, True),
        ({"sockets": 16}, True),
        ({"notes": "no InfiniBand used"}, False),
        ({"notes": "one machine; NPS2: 4 nodes"}, False),
        ({"notes": "weights on 2 NUMA nodes"}, False),
        ({"sockets": 4}, False),
    ],
)
def test_several_machines_are_not_nodes_of_one(cells: dict[str, Any], several: bool) -> None:
    (tested,) = backtest.run(published.parse(f"{HEAD}\n{line(**cells)}\n", "own.csv")).rows
    assert tested.reason is None
    assert any("several machines" in one for one in tested.assumptions) is several


def test_a_class_is_that_of_its_definition_and_a_roof_that_of_its_machine() -> None:
    """ik_llama.cpp is made for one socket; what was measured of a machine holds whatever model ran on it."""
    one, two = (
        backtest.run(published.parse(f"{HEAD}\n{text}\n", "own.csv")).rows[0]
        for text in (line(runtime="ik_llama.cpp", sockets=1), line(runtime="ik_llama.cpp", sockets=2))
    )
    assert (one.engine, two.engine) == ("tuned", "general")
    rows = f"{line(notes='read roof 300 GB/s measured', sockets=2)}\n{line(model='Kimi-K2.5', sockets=2)}\n"
    assert [row.measured for row in published.parse(f"{HEAD}\n{rows}", "own.csv")] == [300e9, 300e9]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the column 'model' is missing"),
        ("model,quant\nx,y\n", "the column 'runtime' is missing"),
        (f"{HEAD}\n{line(decode_tps='fast')}", "line 2: decode_tps is 'fast'"),
        (f"{HEAD}\n{line(channels=-3)}", "line 2: channels is '-3'"),
        (f"{HEAD}\n{line(theoretical_gbs=0.0001)}", "theoretical_gbs is 0.0001; no memory is so slow"),
        (f"{HEAD}\n{line(decode_tps='nan')}", "line 2: decode_tps is 'nan'"),
        (f"{HEAD}\n{line(batch=1.9)}", "line 2: batch is 1.9; write a whole number"),
        (f"{HEAD}\n{line(model='m' * 3000)}", "longer than 2000 characters"),
        (f'{HEAD}\n"open', "correct the quoting"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        published.parse(text, "own.csv")
    assert told in str(error.value) and "\n" not in str(error.value)


def test_without_a_testable_row_nothing_is_claimed() -> None:
    empty = backtest.run(())
    assert empty.hit_rate is None and empty.good is None
    assert "No row tests the predictor" in backtest.text(empty)


def test_a_rate_that_no_share_explains_lies_outside_and_gives_no_band() -> None:
    text = line(decode_tps=1e9, gpu="RTX 4090", gpu_count=1)
    found = backtest.run(published.parse(f"{HEAD}\n{text}\n", "own.csv"))
    assert found.good is False and not found.fitted
    json.dumps(backtest.document(found), allow_nan=False)
    assert "!" in backtest.text(found)
