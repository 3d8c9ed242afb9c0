"""The page of a plan: what falls short first, intervals, and nothing of the file that acts."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from k3gate.reports import plan as page
from tests.analysis.conftest import plan_of

SYSTEMS = Path(__file__).resolve().parents[2] / "examples" / "systems"


def rendered(name: str, **demand: Any) -> str:
    return page.render(plan_of((SYSTEMS / f"{name}.toml").read_text(), **demand))


@pytest.mark.parametrize("path", sorted(SYSTEMS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_has_a_page_that_needs_nothing_else(path: Path, tree: Any) -> None:
    text = page.render(plan_of(path.read_text(), context=32768, sequences=4, decode_tokens_per_s=5.0))
    seen = tree(text)
    assert [name for name, times in Counter(seen.ids).items() if times > 1] == []
    assert {link for link in seen.links if link[1:] not in seen.ids} == set()
    assert not re.search(r"<script|\b(?:src|href)=\"(?!#)|url\((?!#)|@import", text)
    assert "None" not in seen.text and "nan" not in seen.text.lower().split()
    assert text.startswith("<!doctype html>\n<html")
    assert "<title>k3gate plan: " in text[:600], "so that -o may replace it"
    assert len(text) < 300_000


def test_what_does_not_fit_is_the_heading_and_the_first_sentence(tree: Any) -> None:
    seen = tree(rendered("xeon8368-two-servers")).text
    assert "Does not fit" in seen
    assert seen.index("Do not order this for target one: DRAM is 495.5 GB short") < seen.index("not known")
    assert "Nothing is expected: 186 round trips between machines" in seen


def test_a_rate_is_an_interval_beside_its_target_and_its_hit_rate(tree: Any) -> None:
    seen = tree(rendered("hybrid-8x96", context=32768, sequences=4, decode_tokens_per_s=5.0)).text
    assert re.search(r"\d\.\d–1\d tokens/s of each sequence", seen)
    assert "target: at least 5" in seen
    assert "19 of 23 published results lie in such intervals" in seen
    assert "A plan is no evidence" in seen
    assert "Possible on paper" in seen


def test_claims_stand_with_their_verdict_and_every_reason(tree: Any) -> None:
    seen = tree(rendered("sp3-24x64")).text
    assert "false assumption" in seen and "above the ceiling" in seen and "untestable" in seen
    assert "82.3 GiB (88.4 GB) remain before the operating system" in seen.replace("\u00a0", " ")


def test_what_the_file_says_cannot_act(tree: Any) -> None:
    evil = '<script>alert(1)</script>" onload="x'
    text = page.render(
        plan_of(
            f"""name = '{evil}'
notes = ['{evil}']
[memory]
modules = 24
module_gib = 128
[[gpu]]
model = '{evil}'
memory_gb = 96
[claims.'{evil}']
kind = "decode"
value = 3
source = '{evil}'
[sources]
'{evil}' = '{evil}'
"""
        )
    )
    assert "<script>" not in text and 'onload="x' not in text
    assert "alert(1)" in tree(text).text
