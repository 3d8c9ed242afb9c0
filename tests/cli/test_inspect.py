"""`k3gate inspect` as a user meets it, and what it proves in the gate of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.model.checkpoint.conftest import safetensors_bytes
from tests.model.checkpoint.test_other_models import MAIN, write_gguf


def checks(cli: Any, run: str) -> dict[str, Any]:
    told = cli("gate", run, "--json").json()
    return {check["id"]: check for step in told["steps"] for check in step["checks"]}


def test_what_was_inspected_joins_the_gate_of_the_run_that_is_named(
    cli: Any, selftest: str, tmp_path: Path
) -> None:
    """A subject is of one kind: a release for step 1, a GGUF file, which is a conversion, for step 3."""
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"lm_head.weight": ("BF16", (4, 4))}))
    write_gguf(tmp_path / "kimi-k3.gguf", keys=MAIN)
    assert checks(cli, selftest)["checkpoint.identity"]["verdict"] == "unproven"
    told = cli("inspect", folder, "--run", selftest, "--json").json()
    assert cli("inspect", tmp_path / "kimi-k3.gguf", "--run", selftest).code == 0
    found = checks(cli, selftest)
    assert found["checkpoint.identity"]["verdict"] == "fail"
    assert found["checkpoint.identity"]["observed"] == told["digest"]
    assert found["checkpoint.complete"]["verdict"] == "pass"
    assert found["quantization.layout"]["verdict"] == "pass"
    assert "in the layout of llama.cpp's main branch" in found["quantization.layout"]["reason"]


def test_nothing_is_kept_where_the_run_is_not_known_or_nothing_is_to_be_kept(
    cli: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("U8", (1,))}))
    assert "nosuch" in cli("inspect", path, "--run", "nosuch").complaint()
    assert "give one of them" in cli("inspect", path, "--run", "latest", "--no-store").complaint()
    (tmp_path / "runs.sqlite").unlink(missing_ok=True)
    assert cli("inspect", path, "--no-store").code == 0
    assert not (tmp_path / "runs.sqlite").exists()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: os.mkfifo(path / "model.safetensors"), 1),
        (lambda path: (path / "model.safetensors").mkdir(), 1),
        (lambda path: (path / "model.gguf").write_bytes(b""), 1),
        (lambda path: (path / "model.safetensors").write_bytes(b"\0" * 100), 1),
        (lambda path: (path / "notes.txt").touch(), 2),
    ],
)
def test_damage_is_1_and_no_checkpoint_is_2(cli: Any, tmp_path: Path, make: Any, code: int) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    make(folder)
    done = cli("inspect", folder, "--no-store")
    assert done.code == code
    assert "Traceback" not in done.err


def test_checksums_pass_fail_or_are_unproven(cli: Any, selftest: str, tmp_path: Path) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    path = folder / "model.safetensors"
    path.write_bytes(safetensors_bytes({"lm_head.weight": ("BF16", (400, 400))}))
    assert cli("inspect", folder, "--checksums", "--run", selftest).code == 3
    assert checks(cli, selftest)["checkpoint.checksums"]["verdict"] == "unproven"
    done = cli("inspect", folder, "--checksums", "--json")
    told = done.json()["checksums"]
    assert (done.code, told["source"], told["verdict"]) == (3, None, "unproven")
    (folder / "SHA256SUMS").write_text(f"{told['files'][path.name].removeprefix('sha256:')}  {path.name}\n")
    assert cli("inspect", folder, "--checksums").code == 0
    # A byte that rots changes neither size nor, on the drive, the time of change: a new pass reads it.
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = cli("inspect", folder, "--checksums")
    assert done.code == 1
    assert "1 file not as in SHA256SUMS: model.safetensors" in done.out
    assert "add it" in cli("inspect", folder, "--manifest", "x").complaint()


def test_a_pass_that_was_interrupted_goes_on(cli: Any, tmp_path: Path) -> None:
    from k3gate.harness import checkpoints
    from k3gate.model.checkpoint import checksums
    from k3gate.store import open_store

    for number in (1, 2):
        raw = safetensors_bytes({f"t{number}": ("U8", (1000,))})
        (tmp_path / f"model-{number:05d}-of-00002.safetensors").write_bytes(raw)
    files, found = checkpoints.read(str(tmp_path))
    with open_store(str(tmp_path / "runs.sqlite")) as store:
        whole = checkpoints.sum_files(store, files, found.digest, lambda pace: None)
        read: list[int] = []
        again = checkpoints.sum_files(store, files, found.digest, lambda pace: read.append(pace.done))
        assert again == whole and read == []
        store.add_evidence(checkpoints.checksum_evidence(files, found.digest, checksums.compare(whole, None)))
        checkpoints.sum_files(store, files, found.digest, lambda pace: read.append(pace.done))
        assert read != []
