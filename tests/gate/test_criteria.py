"""The criteria file: the shipped one says where its bounds come from, and a typo is named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3gate.errors import UsageError
from k3gate.gate.criteria import load
from k3gate.gate.steps import CHECKS


def test_shipped_criteria_declare_every_check_with_claim_source_and_way_to_settle(criteria: Any) -> None:
    assert {entry.id for entry in criteria.checks} == set(CHECKS)
    for entry in criteria.checks:
        assert entry.claim.endswith("."), entry.id
        assert entry.to_settle().endswith("."), entry.id
        assert entry.source, entry.id
        if entry.metric:
            assert entry.machines is not None
            assert entry.remedy, entry.id
    assert criteria.hash.startswith("sha256:")
    assert criteria.text.startswith("# What each check")


def test_bounds_without_a_foreign_source_say_ours(criteria: Any) -> None:
    for entry in criteria.checks:
        assert entry.source.startswith("ours"), entry.id
        if entry.machines == 0:
            assert "measured" not in entry.source


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "min = 0.65",
            "mim = 0.65",
            r"check \d+ \(roofline.local\): key 'mim' is unknown; did you mean 'min'",
        ),
        ("min = 0.65", 'min = "0.65"', r"\(roofline.local\): min must be a number"),
        ("min = 0.65", "min = nan", r"min must be a number"),
        ("min = 0.65", "min = 0.65\nmax = 0.5", r"min 0.65 is above max 0.5"),
        ("min = 0.65\n", "", r"min and max are both missing"),
        (
            'metric = "memory.bandwidth.read"',
            'metric = "memory.bandwith.read"',
            r"did you mean 'memory.bandwidth",
        ),
        ('id = "roofline.local"', 'id = "roofline.lokal"', r"id 'roofline.lokal' is unknown; did you mean"),
        ('id = "roofline.skew"\nstep = 6', 'id = "roofline.skew"\nstep = 5', r"belongs to step 6"),
        (
            'rule = "bare_metal"',
            'rule = "baremetal"',
            r"rule 'baremetal' is unknown; did you mean 'bare_metal'",
        ),
        ('rule = "bare_metal"', 'rule = "bare_metal"\nmin = 1', r"min has no meaning beside rule"),
        ('rule = "bare_metal"\n', "", r"give exactly one of the two"),
        ('relative_to = "theory"', 'relative_to = "paper"', r"relative_to 'paper' is unknown"),
        ("target decode_bytes_per_s", "target decode_bytes", r"did you mean 'decode_bytes_per_s'"),
        ('applies_if = "vision"', 'applies_if = "visoin"', r"did you mean 'vision'"),
        ('over = "worst of cpu_node"', 'over = "worst of node"', r"worst of LABEL"),
        ("hardware = true", 'hardware = "yes"', r"hardware must be true or false"),
        ('proofs = ["placement"', 'proofs = ["placment"', r"did you mean 'placement'"),
        ('subject = "checkpoint"', 'subject = "checkpiont"', r"did you mean 'checkpoint'"),
        ('date = "2026-11-30"', 'date = "yesterday"', r"date must be written"),
        ('name = "k3gate 2026-11"', "", r"name is missing"),
        ('name = "k3gate 2026-11"', 'name = "x"\nversion = 2', r"key 'version' is unknown"),
        ("[[check]]", "[[check]", r"not valid TOML"),
    ],
)
def test_a_typo_is_named_with_its_place(
    criteria: Any, tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in criteria.text
    path = tmp_path / "mine.toml"
    path.write_text(criteria.text.replace(old, new, 1))
    with pytest.raises(UsageError, match=message) as caught:
        load(str(path))
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_check_is_named(criteria: Any, tmp_path: Path) -> None:
    entries = criteria.text.split("[[check]]")
    path = tmp_path / "mine.toml"
    path.write_text("[[check]]".join(e for e in entries if 'id = "roofline.power"' not in e))
    with pytest.raises(UsageError, match=r"no entry for roofline\.power"):
        load(str(path))


def test_an_entry_given_twice_is_refused(criteria: Any, tmp_path: Path) -> None:
    entry = next(e for e in criteria.text.split("[[check]]") if 'id = "roofline.local"' in e)
    path = tmp_path / "mine.toml"
    path.write_text(f"{criteria.text}\n[[check]]{entry}")
    with pytest.raises(UsageError, match=r"check 52 \(roofline.local\) repeats check \d+"):
        load(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (2**20 + 1), "larger than 1 MiB"),
        (b"x = " + b"9" * 5000, "not valid TOML"),
        (b"x = " + b"[" * 5000, "not valid TOML"),
        (b'name = "x"\ncheck = 3\n', "must be a list"),
        (b'name = "x"\ncheck = [3]\n', "is not a table"),
    ],
)
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        load(str(path))
    assert len(str(caught.value)) < 400


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.toml: No such file"):
        load(str(tmp_path / "nothing.toml"))
    with pytest.raises(UsageError, match="Is a directory"):
        load(str(tmp_path))
