"""`k3gate routing` as a user meets it: the page, the document, the files that it writes, and bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from k3gate.harness import planning, routing
from k3gate.model.routing.reading import read

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "routing" / "drawn-128-tokens.jsonl"
SYSTEM = Path(__file__).resolve().parents[2] / "examples" / "systems" / "hybrid-8x96.toml"


def test_the_example_is_described_and_says_what_it_is(cli) -> None:
    done = cli("routing", EXAMPLE, "--by-layer", "--nodes", "4", "--batch", "8")
    assert done.code == 0 and done.err == ""
    assert "a model with skew 8 and reuse 29.5%, seed 7" in done.out
    assert "128 tokens in 1 sequence, 4 layers, 4 of 64 experts used" in done.out
    assert "4 nodes own the experts in turn" in done.out and "batch 8" in " ".join(done.out.split())
    assert all(len(line) <= 100 for line in done.out.splitlines())
    layers = done.out.split("Layers\n------\n")[1].splitlines()
    assert [line.split()[0] for line in layers[1:5]] == ["0", "1", "2", "3"]


def test_the_document_has_the_figures_of_the_recorded_trace(cli, shared_machines: Path) -> None:
    trace = shared_machines / "trace-kimi-linear-300-tokens" / "trace_kimi_300.jsonl"
    told = cli("routing", trace, "--json").json()
    assert told["reuse"] == pytest.approx(0.3356, abs=5e-5)
    assert [one["slots"] for one in told["coverage"]] == [579, 1877, 3415]
    assert told["slots"] == {"total": 6656, "used": 5083} and told["uses"] == 62400
    assert told["experts_stated"] is False and told["fit"] is None and told["model"] is None
    assert len(told["by_layer"]) == 26 and told["by_layer"][0]["busiest_share"] == pytest.approx(
        0.099, abs=1e-3
    )
    assert all(one["caught_held_out"] <= one["caught"] + 1e-12 for one in told["hot_set"])


def test_without_a_file_the_model_of_kimi_k3_is_described(cli) -> None:
    told = cli("routing", "--tokens", "40", "--sequences", "2", "--json").json()
    assert (told["layers"], told["experts"], told["used"], told["sequences"]) == (92, 896, 16, 2)
    assert told["model"]["reuse_asked"] == 0.295 and told["model"]["skew_asked"] == pytest.approx(32.9)
    assert told["reuse"] == pytest.approx(0.295, abs=0.01)
    assert told["tokens"] == 80


def test_plan_takes_the_curve_that_is_written(cli, tmp_path: Path) -> None:
    told = cli("routing", EXAMPLE, "--shape", "k3", "--curve", "hot.toml", "--json").json()
    written = (tmp_path / "hot.toml").read_text()
    assert written.startswith("# Written by k3gate routing: drawn-128-tokens.jsonl (a model with")
    (tmp_path / "box.toml").write_text(SYSTEM.read_text() + written)
    system = planning.read_system(str(tmp_path / "box.toml"))
    held = [(one["experts"], math.floor(one["caught_held_out"] * 1e6) / 1e6) for one in told["hot_set"]]
    assert list(system.curve) == held and held[-1] == (896, 1.0)
    assert cli("plan", "box.toml", "--target", "residency-lab").code == 0
    change = next(c for c in planning.plan(str(tmp_path / "box.toml")).changes if c.key == "hot_experts")
    assert "the curve gives" in change.note


def test_a_curve_that_is_not_of_kimi_k3_or_not_measured(cli, tmp_path: Path) -> None:
    line = cli("routing", EXAMPLE, "--curve", "hot.toml").complaint()
    assert "4 of 64 experts used, and Kimi K3 16 of 896: add --shape k3" in line and "4x64x4" in line
    line = cli("routing", "--shape", "2x32x4", "--curve", "hot.toml").complaint()
    assert "give a recorded trace with --curve" in line
    assert not (tmp_path / "hot.toml").exists()
    for _ in range(2):  # its own file is replaced
        done = cli("routing", EXAMPLE, "--shape", "4x64x4", "--curve", "hot.toml")
        assert done.code == 0 and done.out.endswith("curve: hot.toml\n")


def test_what_is_saved_is_read_again(cli, tmp_path: Path) -> None:
    shape = ("--shape", "3x48x5", "--skew", "4", "--reuse", "0.4", "--tokens", "30", "--sequences", "2")
    drawn = cli("routing", *shape, "--save", "mine.jsonl", "--json").json()
    again = cli("routing", "mine.jsonl", "--json").json()
    for key in ("reuse", "coverage", "hot_set", "by_layer", "experts", "sequences", "imbalance"):
        assert again[key] == drawn[key], key
    assert again["model"] is None and again["experts_stated"] is True
    fitted = cli("routing", "mine.jsonl", "--shape", "2x24x3", "--save", "mine2.jsonl", "--json").json()
    assert fitted["fit"]["of"]["reuse"] == drawn["reuse"]
    assert read(str(tmp_path / "mine2.jsonl")).shape == (2, 24, 3)


def test_what_could_not_be_kept_is_told(cli) -> None:
    done = cli("routing", EXAMPLE, "--shape", "2x8x6")
    assert done.code == 0
    assert "not kept within 5 points with 6 of 8 experts" in " ".join(done.out.split())


def test_it_replaces_no_foreign_file(cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine\n")
    assert "did not make that file" in cli("routing", EXAMPLE, "--save", "notes.txt").complaint()
    assert (tmp_path / "notes.txt").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("none.jsonl",), "cannot read the trace none.jsonl: No such file"),
        ((EXAMPLE, "--experts", "32"), "states 64 experts of a layer, not 32"),
        ((EXAMPLE, "--tokens", "9"), "--tokens is of the model"),
        ((EXAMPLE, "--reuse", "0.3"), "--reuse is of the model"),
        ((EXAMPLE, "--shape", "4x64"), "'4x64' is no shape: write k3, or LAYERSxEXPERTSxUSED"),
        ((EXAMPLE, "--shape", "4x64x65"), "4 layers with 65 of 64 experts cannot be"),
        ((EXAMPLE, "--nodes", "65"), "65 nodes cannot share 64 experts"),
        ((EXAMPLE, "--batch", "129"), "too few for a batch of 129"),
        (("--experts", "64"), "--experts is of a trace in a file"),
        (("--reuse", "29.5"), "'29.5' is no share from 0 to 1"),
        (("--reuse", "nan"), "'nan' is no share from 0 to 1"),
        (("--shape", "2x32x16", "--skew", "3"), "a skew of 3 cannot be"),
        (("--skew", "nan", "--shape", "2x32x16"), "nan"),
    ],
)
def test_bad_input_gets_one_line(cli, arguments: tuple[str | Path, ...], told: str) -> None:
    assert told in cli("routing", *arguments).complaint()


def test_bad_traces_get_one_line(cli, tmp_path: Path) -> None:
    lines = EXAMPLE.read_text().splitlines(keepends=True)
    for change, told in (
        (lambda text: text.replace("[[", "[[64,", 1).replace(",64", "", 1), "line 3, layer 0"),
        (
            lambda text: json.dumps({"token": 1, "layers": json.loads(text)["layers"][:3]}) + "\n",
            "has 3 layers",
        ),
        (lambda text: text.replace("[[", "[[NaN,", 1), "line 3 holds not-a-number"),
    ):
        (tmp_path / "bad.jsonl").write_text("".join([*lines[:2], change(lines[2]), *lines[3:]]))
        line = cli("routing", "bad.jsonl").complaint()
        assert "bad.jsonl, line 3" in line and told in line


def test_shapes() -> None:
    assert routing.shape("K3") == routing.K3 == (92, 896, 16)
    assert routing.shape("26x256x8") == (26, 256, 8)
    assert routing.shape(None) is None
