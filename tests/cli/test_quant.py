"""`k3gate quant` as a user meets it, and what it proves in the gate of a run."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.model.conversion import miniature, test_mistakes


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return miniature.write_checkpoint(tmp_path / "source", miniature.weights())


def converted(folder: Path, trunk: str, plant: test_mistakes.Plant | None = None) -> Path:
    weights = miniature.weights()
    made = miniature.convert(weights, trunk)
    if plant is not None:
        plant(weights, made)
    return miniature.write_gguf(folder / f"{trunk}.gguf", made)


def test_a_repack_passes_and_says_so(cli: Any, tmp_path: Path, source: Path) -> None:
    done = cli("quant", source, converted(tmp_path, "BF16"))
    assert done.code == 0, done.err
    assert "every number as in the source; left out: mm_projector, vision_tower" in " ".join(done.out.split())
    assert "None of those that are known." in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    told = cli("quant", source, tmp_path / "BF16.gguf", "--json").json()
    assert (told["verdict"], told["lossless"], told["mistakes"]) == ("pass", True, [])
    assert told["groups"]["routed_experts"]["nmse"] == 0


def test_eight_bits_pass_and_four_bits_fail_by_their_bound(cli: Any, tmp_path: Path, source: Path) -> None:
    assert cli("quant", source, converted(tmp_path, "Q8_0")).code == 0
    four = cli("quant", source, converted(tmp_path, "Q4_0"), "--json")
    assert four.code == 1
    assert "0.001 is allowed" in four.json()["reason"] and four.json()["mistakes"] == []
    text = (Path(miniature.__file__).parents[3] / "k3gate/gate/data/criteria.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace("max = 1e-3", "max = 1e-2"))
    assert cli("quant", source, tmp_path / "Q4_0.gguf", "--criteria", "mine.toml").code == 0


def test_a_mistake_fails_by_its_name(cli: Any, tmp_path: Path, source: Path) -> None:
    done = cli("quant", source, converted(tmp_path, "Q8_0", test_mistakes.nibbles), "--json")
    assert done.code == 1
    (mistake,) = done.json()["mistakes"]
    assert (mistake["mistake"], mistake["part"], mistake["number"]) == (
        "nibbles_swapped",
        "routed_experts",
        12,
    )
    assert mistake["weights"][0] == "layer 1 ffn_gate_exps of expert 0"


def test_what_cannot_be_compared_is_unproven(cli: Any, tmp_path: Path) -> None:
    file = converted(tmp_path, "BF16")
    weights = miniature.weights()
    del weights["language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight_scale"]
    source = miniature.write_checkpoint(tmp_path / "source", weights)
    done = cli("quant", source, file)
    assert done.code == 3, done.out
    assert "codes without a scale" in " ".join(done.out.split())


def test_a_cut_file_fails(cli: Any, tmp_path: Path, source: Path) -> None:
    file = converted(tmp_path, "BF16")
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 4096)
    done = cli("quant", source, file)
    assert done.code == 1
    assert "Files that end too early" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "BF16.gguf"), "nowhere: it is not there"),
        (("source", "nowhere"), "nowhere: it is not there"),
        (("BF16.gguf", "source"), "as SOURCE"),
        (("source", "BF16.gguf", "--criteria", "nosuch.toml"), "nosuch.toml"),
        (("source", "BF16.gguf", "--run", "nosuch"), "nosuch"),
        (("source", "BF16.gguf", "--run", "latest", "--no-store"), "give one of them"),
        (("source", "BF16.gguf", "-o", "nosuch/page.txt"), "nosuch"),
        (("source",), "CONVERTED"),
    ],
)
def test_bad_input_is_one_line(
    cli: Any, tmp_path: Path, source: Path, arguments: tuple[str, ...], words: str
) -> None:
    converted(tmp_path, "BF16")
    assert words in cli("quant", *arguments).complaint()


def test_it_joins_the_gate_of_the_run_and_another_model_does_not(
    cli: Any, selftest: str, tmp_path: Path, source: Path
) -> None:
    """The miniature is no Kimi K3, and so it proves nothing about the target."""
    assert cli("quant", source, converted(tmp_path, "BF16"), "--run", selftest).code == 0

    def check() -> Any:
        told = cli("gate", selftest, "--json").json()
        checks = {one["id"]: one for step in told["steps"] for one in step["checks"]}
        return checks["quantization.lossless_or_bounded"]

    found = check()
    assert found["verdict"] == "unproven" and "another model than Kimi K3" in found["reason"]
    digest = cli("inspect", source, "--json", "--no-store").json()["digest"]
    with sqlite3.connect(tmp_path / "runs.sqlite") as store:
        rows = store.execute("SELECT id, data FROM evidence WHERE check_id LIKE '%bounded'").fetchall()
        for number, data in rows:
            told = {**json.loads(data), "architecture": "kimi-k3"}
            assert told["source"] == digest and len(told["place"]) == 23
            store.execute("UPDATE evidence SET data = ? WHERE id = ?", (json.dumps(told), number))
    found = check()
    assert found["verdict"] == "pass", found
    assert "96 weights compared" in found["reason"]


def test_a_safetensors_conversion_is_a_subject_of_its_own(cli: Any, tmp_path: Path, source: Path) -> None:
    """A digest is of one kind: what was inspected as a checkpoint can still be somebody's conversion."""
    inspected = cli("inspect", source, "--json").json()["digest"]
    told = cli("quant", source, source, "--json").json()
    assert told["lossless"] and told["source"]["digest"] == inspected
    assert told["converted"]["digest"] not in ("", inspected)
