"""Paper: nothing clipped, heads repeat, verdicts are words."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.records import Gpu, PciDevice, Provenance, State

MARGIN_PT = 15 / 25.4 * 72


def wide(sheet: Any) -> Any:
    """A machine with GPUs of 40 clocks and 300 drives on PCI."""
    gpus = tuple(
        Gpu(
            f"Example {gpu}",
            max_clocks={f"clock_{n:02d}_{'x' * (n % 9)}": (gpu * 100 + n) * 1e6 for n in range(40)},
        )
        for gpu in range(4)
    )
    pci = tuple(PciDevice(f"{n:04x}:00:00.0", "nvme", device=f"Example device {n:03d}") for n in range(300))
    inventory = attrs.evolve(
        sheet.record.inventory,
        gpus=gpus,
        pci=pci,
        provenance={
            **sheet.record.inventory.provenance,
            "machine.board": Provenance(State.OK, "/sys/" + "very_long_name_without_a_break_" * 12),
        },
    )
    return attrs.evolve(sheet, record=attrs.evolve(sheet.record, inventory=inventory))


class Tables(HTMLParser):
    """For each table: whether it has a head, a caption, and its rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[dict[str, int]] = []
        self.open: list[dict[str, int]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.open.append({"kv": int("kv" in (dict(attributes).get("class") or "").split())})
            self.found.append(self.open[-1])
        elif self.open:
            self.open[-1][tag] = self.open[-1].get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.open.pop()


@pytest.mark.case("REP-03")
def test_rep_03_no_box_clips_or_scrolls_and_tables_have_heads(bare_metal: Any) -> None:
    """REP-03: the style sheet hides overflow only where the content is for screen readers alone."""
    text = wide(bare_metal(9)).page()
    style = text[text.index("<style>") : text.index("</style>")]
    rules = re.findall(r"([^{}]+)\{([^{}]*overflow(?:-[xy])?:\s*(?:hidden|auto|scroll|clip)[^{}]*)\}", style)
    assert rules
    assert all("clip-path:inset(50%)" in body for _, body in rules)
    assert "overflow" not in re.sub(r"<style>.*</style>", "", text, flags=re.S)
    assert "thead{display:table-header-group}" in style
    tables = Tables(text).found
    assert len(tables) > 20
    assert all(table.get("caption") for table in tables)
    assert all(table.get("thead") for table in tables if not table["kv"])
    assert max(table.get("th", 0) + table.get("td", 0) for table in tables) > 900, "the 300 rows are there"


@pytest.mark.case("REP-03")
def test_rep_03_no_table_is_wider_than_a_page_can_hold(bare_metal: Any) -> None:
    """REP-03: forty properties are one cell of words, nine nodes are split: no row has more than 9 cells."""
    text = wide(bare_metal(9)).page()
    rows = re.findall(r"<tr\b.*?</tr>", text, re.S)
    assert max(len(re.findall(r"<t[hd]\b", row)) for row in rows) <= 9
    for n in range(40):
        assert f"clock_{n:02d}_{'x' * (n % 9)} {300 + n}" in text


@pytest.mark.browser
@pytest.mark.case("REP-03")
def test_rep_03_the_printed_page_holds_every_word(bare_metal: Any, tmp_path: Path) -> None:
    """REP-03: printed by Chromium to A4, every word inside the margins, heads of long tables repeated."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or shutil.which("pdftotext") is None:
        pytest.skip("needs chromium and pdftotext: apt-get install chromium poppler-utils")
    page, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(wide(bare_metal(9)).page(), encoding="utf-8")
    subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--no-pdf-header-footer",
            f"--print-to-pdf={pdf}",
            page.as_uri(),
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
    assert len(found) > 5000
    clipped = [
        word
        for left, right, word in found
        if float(left) < MARGIN_PT - 3 or float(right) > width - MARGIN_PT + 3
    ]
    assert clipped == []
    text = " ".join(word for _, _, word in found)
    for n in range(300):
        assert f"device {n:03d}" in text
    assert text.count("Place and device") > 5, "the head of the long table repeats on every page"
    pages = boxes.split("<page ")[1:]
    assert "approver" in pages[0]
    for number, content in enumerate(pages[:-1], 1):
        body = [
            float(y)
            for y, word in re.findall(r'yMax="([\d.]+)">([^<]*)<', content)
            if float(y) < 842 - 18 / 25.4 * 72
        ]
        assert max(body) > 842 / 3, f"page {number} is under a third full"
