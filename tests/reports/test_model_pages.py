"""The pages of an inspection and of a conversion: what they say, that they stand alone, that names in them are text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.harness import checkpoints
from k3gate.model.checkpoint.inspection import Inspection
from k3gate.records import Finding, Severity, Verdict
from k3gate.reports import checkpoint, conversion
from tests.model.conversion import miniature

WHEN = "2026-11-30T15:00:00+00:00"
BOUNDS = {"routed_experts": 1e-4, "trunk": 1e-3}
PAYLOAD = "<script>alert(1)</script>\u202e'\"><img src=x onerror=alert(2)>"


@pytest.fixture
def inspected(tmp_path: Path) -> Inspection:
    folder = miniature.write_checkpoint(tmp_path / "k3", miniature.weights())
    (folder / "LICENSE").write_text("the licence\n")
    return checkpoints.read(str(folder))[1]


def part(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "weights": 10,
        "exact": 10,
        "nmse": 0.0,
        "max_error": 0.0,
        "cosine": None,
        "gain": None,
        "not_finite": 0,
        "worst": None,
        "codings": {"MXFP4 to MXFP4": 10},
        "scales": {
            "source": {"number": 4, "zeros": 0, "not_finite": 0, "least": 0.5, "largest": 2.0},
            "converted": None,
        },
        "layers": [],
    }
    return {**made, **changes}


def compared(**changes: Any) -> dict[str, Any]:
    side = {"place": "k3", "digest": "sha256:" + "0" * 64, "architecture": "kimi-k3", "format": "gguf"}
    lossy = {"nmse": 2.9e-5, "max_error": 0.001, "cosine": 0.99998, "gain": 1.0, "exact": 2}
    layers = [{"layer": layer, **part(**lossy)} for layer in (None, 0, 1)]
    trunk = part(**lossy, worst={"nmse": 3.1e-5, "weight": "layer 1 attn_q"}, layers=layers)
    made: dict[str, Any] = {
        "verdict": "pass",
        "reason": "20 weights compared.",
        "source": side,
        "converted": side,
        "lossless": False,
        "mistakes": [],
        "groups": {"routed_experts": part(), "kda_attention": trunk},
        "left_out": {"vision_tower": 165},
        "missing": {"number": 0, "weights": []},
        "added": {"number": 0, "weights": []},
        "not_compared": {"number": 0, "reasons": []},
        "notes": [],
    }
    return {**made, **changes}


def sound(page: str, tree: Any) -> Any:
    """A page that stands alone: no id twice, no link to nowhere, nothing from outside."""
    found = tree(page)
    assert len(found.ids) == len(set(found.ids))
    assert {link.removeprefix("#") for link in found.links if link.startswith("#")} <= set(found.ids)
    assert all(link.startswith("#") for link in found.links)
    assert not {tag for tag, _ in found.elements} & {"script", "img", "iframe", "link", "object"}
    return found


def test_an_inspection_says_what_it_is_and_what_a_token_reads(inspected: Inspection, tree: Any) -> None:
    found = sound(checkpoint.render(inspected, WHEN), tree)
    told = inspected.bytes_per_token["native"]
    assert told is not None
    assert f"{inspected.content.parameters:,}" in found.text and f"{told:,} bytes" in found.text
    assert "KDA attention" in found.text and "Routed experts codes" in found.text
    assert inspected.digest in found.text and inspected.licences[0][1] in found.text
    assert "only headers were read" in found.text
    with_sums = checkpoint.render(inspected, WHEN, (Verdict.PASS, "3 files, all as in SHA256SUMS."))
    assert "Pass: 3 files, all as in SHA256SUMS." in tree(with_sums).text
    assert "only headers were read" not in tree(with_sums).text


def test_damage_is_the_heading_and_findings_come_before_figures(inspected: Inspection, tree: Any) -> None:
    finding = Finding("x", Severity.HIGH, "Files that end too early", PAYLOAD, "whole", "why", "do")
    found = sound(checkpoint.render(attrs.evolve(inspected, findings=(finding,)), WHEN), tree)
    assert ", damaged" in found.text
    assert found.text.index("Files that end too early") < found.text.index("Bytes by part of the model")
    assert "<script>alert(1)" in found.text


def test_a_conversion_shows_errors_against_their_bound(tree: Any) -> None:
    found = sound(conversion.render(compared(), BOUNDS, WHEN), tree)
    assert "Pass" in found.text and "12 of 20 weights are exact, among them all routed experts" in found.text
    assert "2.9 × 10⁻⁵" in found.text and "3.1 × 10⁻⁵ layer 1 attn_q" in found.text
    assert "Vision tower (165 weights) is not in the converted file" in found.text
    assert (
        "KDA attention, layer by layer" in found.text and "Routed experts, layer by layer" not in found.text
    )
    assert "No known mistake" in found.text


def test_mistakes_stand_before_figures_and_names_are_text(tree: Any) -> None:
    mistake = {
        "mistake": "nibbles_swapped",
        "words": "the two codes of each byte stand in the wrong order",
        "part": "routed_experts",
        "number": 12,
        "weights": [PAYLOAD],
        "detail": PAYLOAD,
    }
    document = compared(
        verdict="fail",
        mistakes=[mistake],
        reason=PAYLOAD,
        missing={"number": 7, "weights": [PAYLOAD]},
        added={"number": 1, "weights": [PAYLOAD]},
        not_compared={"number": 1, "reasons": [PAYLOAD]},
        groups={"routed_experts": part(exact=3, nmse=None, worst={"nmse": None, "weight": PAYLOAD})},
    )
    found = sound(conversion.render(document, BOUNDS, WHEN), tree)
    assert found.text.index("The two codes of each byte") < found.text.index("Error by part")
    assert "without bound" in found.text and "seven weights of the source missing" in found.text.lower()
    assert "\u202e" not in found.text


def test_the_real_documents_make_pages(cli_page: Any, tree: Any) -> None:
    for page in cli_page:
        sound(page, tree)


@pytest.fixture
def cli_page(tmp_path: Path) -> list[str]:
    """Both pages by the commands, as files that they may replace afterwards."""
    source = miniature.write_checkpoint(tmp_path / "k3", miniature.weights())
    gguf = miniature.write_gguf(tmp_path / "k3.gguf", miniature.convert(miniature.weights()))
    pages = []
    for arguments in (["inspect", source], ["quant", source, gguf]):
        for _ in range(2):
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "k3gate",
                    *arguments,
                    "--no-store",
                    "--json",
                    "-o",
                    tmp_path / "page.html",
                ],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["groups"]
        pages.append((tmp_path / "page.html").read_text())
    return pages
