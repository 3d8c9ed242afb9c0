"""What an inspection proves goes to the store by the checkpoint's digest, and the gate of a run takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from k3gate.harness import checkpoints
from k3gate.model.checkpoint.architecture import Architecture
from k3gate.records import Verdict
from tests.model.checkpoint.conftest import safetensors_bytes
from tests.model.checkpoint.test_other_models import MAIN, write_gguf


def made(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"lm_head.weight": ("BF16", (4, 4))}))
    (tmp_path / "LICENSE").write_text("the licence\n")
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    return path


def verdicts(found: Any) -> dict[str, Verdict]:
    return {one.check: one.verdict for one in checkpoints.evidence(found, "2026-11-30T00:00:00+00:00")}


def test_another_model_fails_the_identity_alone(tmp_path: Path) -> None:
    found = checkpoints.read(str(made(tmp_path).parent))[1]
    assert verdicts(found) == {
        "checkpoint.identity": Verdict.FAIL,
        "checkpoint.complete": Verdict.PASS,
        "checkpoint.licence": Verdict.PASS,
    }
    gathered = checkpoints.evidence(found, "now")
    assert {one.subject for one in gathered} == {found.digest}
    licence = next(one for one in gathered if one.check == "checkpoint.licence")
    assert licence.data["sha256"].startswith("sha256:")
    k3 = attrs.evolve(found, architecture=Architecture("kimi-k3", "it is"))
    assert verdicts(k3)["checkpoint.identity"] is Verdict.PASS


def test_damage_fails_completeness_and_a_missing_licence_is_unproven(tmp_path: Path) -> None:
    path = made(tmp_path)
    (tmp_path / "LICENSE").unlink()
    path.write_bytes(path.read_bytes()[:-1])
    found = checkpoints.read(str(tmp_path))[1]
    assert verdicts(found)["checkpoint.complete"] is Verdict.FAIL
    assert verdicts(found)["checkpoint.licence"] is Verdict.UNPROVEN


def test_a_gguf_file_is_a_conversion(tmp_path: Path) -> None:
    path = tmp_path / "kimi-k3.gguf"
    write_gguf(path, keys=MAIN)
    (one,) = checkpoints.evidence(checkpoints.read(str(path))[1], "now")
    assert (one.check, one.subject_kind, one.verdict) == ("quantization.layout", "converted", Verdict.PASS)
    write_gguf(path, keys=MAIN[:2])
    (one,) = checkpoints.evidence(checkpoints.read(str(path))[1], "now")
    assert one.verdict is Verdict.FAIL and "main branch cannot load" in one.detail
