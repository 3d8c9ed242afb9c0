"""Targets: the shipped figures, what follows from them, and a strict reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3gate.errors import UsageError
from k3gate.gate.targets import load, names


def test_shipped_targets_hold_what_they_promise() -> None:
    lab, hybrid, production = (load(name) for name in names())
    assert (lab.context, lab.sequences, lab.trunk, lab.decode_tokens_per_s) == (8192, 1, "bf16", None)
    assert (hybrid.context, hybrid.sequences, hybrid.decode_tokens_per_s, hybrid.decode_batch) == (
        32768,
        4,
        5,
        1,
    )
    assert (hybrid.prefill_tokens_per_s, hybrid.load_seconds) == (50, 1800)
    assert (production.context, production.sequences) == (131072, 16)
    assert (production.decode_tokens_per_s, production.load_seconds) == (20, 900)
    assert all(target.sources for target in (lab, hybrid, production))


def test_derived_figures() -> None:
    lab, hybrid, production = (load(name) for name in names())
    assert lab.image().bytes == 1_560_656_733_184
    assert lab.value("decode_bytes_per_s") is None
    assert lab.cpu_bytes_per_token() == 136_990_303_232 + 2 * 434_110_464 + 27_648 * 8192
    assert hybrid.image().bytes == 1_446_456_066_048
    assert hybrid.value("decode_bytes_per_s") == 5 * 25_829_572_608
    assert hybrid.value("load_bytes_per_s") == pytest.approx(1_559_965_606_912 / 1800)
    assert production.value("load_bytes_per_s") == pytest.approx(1_560_860_324_864 / 900)
    assert production.value("vision") == 1.0
    assert hybrid.value("vision") == 0.0


def test_hash_follows_content_and_not_comments(tmp_path: Path) -> None:
    lab = load("residency-lab")
    path = tmp_path / "lab.toml"
    path.write_text("# mine\n" + lab.text)
    assert load(str(path)).hash == lab.hash
    path.write_text(lab.text.replace("context = 8192", "context = 4096"))
    assert load(str(path)).hash != lab.hash


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("context = 32768", "contxt = 32768", "key 'contxt' is unknown; did you mean 'context'"),
        ("context = 32768", "context = 0", "context must be a whole number from 1 to 1048576"),
        ("context = 32768", "context = 32768.5", "must be a whole number"),
        ('trunk = "gpu"', 'trunk = "fp8"', "trunk 'fp8' is unknown"),
        ('tier = "hybrid"', 'tier = "hybird"', "did you mean 'hybrid'"),
        ('modalities = ["text"]', 'modalities = ["vision"]', 'must hold "text"'),
        ("decode_tokens_per_s = 5.0", "decode_tokens_per_s = 0", "must be above 0"),
        ("decode_batch = 1", "decode_batch = 5", "decode_batch must be a whole number from 1 to 4"),
        ('context = "ours"\n', "", "sources: context is missing"),
        ("[sources]", '[sources]\nreplicate_per_node = "x"', "has a source but the target does not give it"),
        ("[sources]", "[prices]\nmachine_usd = -1\n[sources]", "must be above 0"),
        ("[sources]", '[licence_accepted]\nby="x"\non="y"\nsha256="zz"\n[sources]', "64 hex digits"),
        ("[sources]", '[subjects]\nmodel = "x"\n[sources]', "key 'model' is unknown"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = load("hybrid").text
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=r"mine\.toml") as caught:
        load(str(path))
    assert message in str(caught.value)


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'hybrid'"):
        load("hybird")
    with pytest.raises(UsageError, match="cannot read the target file"):
        load("nowhere/mine.toml")
