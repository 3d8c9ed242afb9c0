"""The page of a plan: what falls short first, intervals, and nothing of the file that acts."""

from __future__ import annotations

import re
import shutil
import subprocess
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
    assert "11 of 13 published results of 6 machines lie in such intervals, 10 of 13 where the fit" in seen
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


@pytest.mark.browser
def test_the_printed_plan_holds_every_word(tmp_path: Path) -> None:
    """Printed by Chromium to A4: every word inside the margins, page one alone, no page but the last nearly empty."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or shutil.which("pdftotext") is None:
        pytest.skip("needs chromium and pdftotext: apt-get install chromium poppler-utils")
    source, pdf = tmp_path / "plan.html", tmp_path / "plan.pdf"
    source.write_text(
        rendered("sp3-24x64", context=32768, sequences=4, decode_tokens_per_s=5.0), encoding="utf-8"
    )
    subprocess.run(
        [
            *(
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path / 'profile'}",
            ),
            *("--no-pdf-header-footer", f"--print-to-pdf={pdf}", source.as_uri()),
        ],
        check=True,
        capture_output=True,
        timeout=100,
    )
    boxes = subprocess.run(
        ["pdftotext", "-bbox", str(pdf), "-"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    width = float(re.search(r'<page width="([\d.]+)"', boxes).group(1))  # type: ignore[union-attr]
    found = re.findall(r'<word xMin="(-?[\d.]+)" yMin="[^"]*" xMax="(-?[\d.]+)" yMax="[^"]*">([^<]*)<', boxes)
    margin = 15 / 25.4 * 72
    assert [
        w for left, right, w in found if float(left) < margin - 3 or float(right) > width - margin + 3
    ] == []
    pages = boxes.split("<page ")[1:]
    assert "LACKS" in pages[0] and "LIMITS" in pages[0]
    for number, content in enumerate(pages[:-1], 1):
        low = max(
            float(y) for y in re.findall(r'yMax="([\d.]+)">', content) if float(y) < 842 - 18 / 25.4 * 72
        )
        assert low > 842 / 3, f"page {number} is under a third full"


def test_an_option_is_not_broken_after_its_hyphens() -> None:
    from k3gate.reports.page import coded

    told = coded("call `k3gate run --profile quick` <now>")
    assert 'k3gate run <span class="nw">--profile</span> quick</code>' in told and "<now>" not in told
