"""Bundles from strangers: places that are no file, cut files, and content that our own export never writes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k3gate.errors import UsageError
from k3gate.records import Evidence, Verdict
from k3gate.store import Store, open_store
from k3gate.store.bundle import export_run, import_bundle


@pytest.fixture
def full(store: Store, make_run, make_inventory, make_outcome, make_result) -> Store:
    """A store with a run, a judgement, a subject with evidence, and what a worker printed."""
    store.begin_run(make_run(), make_inventory())
    store.save_outcome("abcd2345", make_outcome())
    store.add_evaluation(make_result(), "criteria", "target")
    store.add_subject("abcd2345", "sha256:checkpoint", "checkpoint")
    store.add_evidence(evidence("sha256:checkpoint", "checkpoint"))
    store.add_evidence(evidence("sha256:f00d", "machine"))
    store.add_artifact("abcd2345", ("memory", "read.machine"), "stderr", b"warning\n")
    return store


@pytest.fixture
def other(tmp_path: Path, empty: Path) -> Iterator[Store]:
    shutil.copyfile(empty, tmp_path / "other.sqlite")
    with open_store(str(tmp_path / "other.sqlite")) as opened:
        yield opened


@pytest.fixture
def file(full: Store, tmp_path: Path) -> Path:
    path = tmp_path / "run.k3run"
    export_run(full, "abcd2345", path)
    return path


def evidence(subject: str, kind: str) -> Evidence:
    return Evidence("checkpoint.complete", subject, kind, Verdict.PASS, "96 of 96", "2026-11-01", {"n": 96})


def refusal(store: Store, path: Path) -> str:
    """The one line that refuses `path`; the store is as empty as before."""
    with pytest.raises(UsageError) as caught:
        import_bundle(store, path)
    line = str(caught.value)
    assert line.isprintable(), line
    assert str(path) in line
    for table in ("run", "evaluation", "waiver", "evidence", "subject", "artifact", "machine"):
        assert store.transaction(lambda at, t=table: at.rows(f"SELECT * FROM {t}")) == [], table
    return line


def repack(file: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """`file` with the JSON document `name` changed, and right sums, as a careful stranger would."""
    with zipfile.ZipFile(file) as archive:
        content = {one: archive.read(one) for one in archive.namelist()}
    document = json.loads(content[name])
    change(document)
    content[name] = json.dumps(document).encode()
    if name != "manifest.json":
        manifest = json.loads(content["manifest.json"])
        manifest["members"][name] = {
            "bytes": len(content[name]),
            "sha256": hashlib.sha256(content[name]).hexdigest(),
        }
        content["manifest.json"] = json.dumps(manifest).encode()
    changed = file.with_name("changed.k3run")
    with zipfile.ZipFile(changed, "w") as archive:
        for one, data in content.items():
            archive.writestr(one, data)
    return changed


def test_a_bundle_cut_at_every_twentieth_of_its_length(other: Store, file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for part in range(20):
        cut = tmp_path / f"cut{part}.k3run"
        cut.write_bytes(whole[: len(whole) * part // 20])
        assert "no bundle, or is damaged" in refusal(other, cut)
    cut.write_bytes(whole[:-1])
    refusal(other, cut)


def test_a_place_that_is_no_file_is_refused_without_waiting_for_it(other: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no file" in refusal(other, tmp_path / "pipe")
    assert "no file" in refusal(other, tmp_path)
    assert "no file" in refusal(other, Path("/dev/zero"))
    (tmp_path / "text").touch()
    refusal(other, tmp_path / "text" / "x.k3run")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refusal(other, tmp_path / "loop")


def test_evidence_on_what_the_run_is_not_about_is_refused(other: Store, file: Path) -> None:
    def change(document: Any) -> None:
        document["record"]["evidence"][0]["subject"] = "sha256:somebody else's checkpoint"

    assert "not about" in refusal(other, repack(file, "run.json", change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("manifest.json", lambda d: d["members"].update({"a\nb\x1b[31m": {"bytes": 1, "sha256": "0"}})),
        ("manifest.json", lambda d: d.update(format="\x1b[31m\n")),
        ("manifest.json", lambda d: d["members"]["run.json"].update(sha256="0" * 64)),
        ("manifest.json", lambda d: d["members"].pop("evaluations.json")),
        (
            "evaluations.json",
            lambda d: d[0]["result"]["steps"][1]["checks"][0].update(observed=[1, {"x": 2}]),
        ),
        ("evaluations.json", lambda d: d[0]["result"].update(run="zzzz2345")),
        ("evaluations.json", lambda d: d[0]["result"].update(verdict="\x1b[31mpass\n")),
        ("evaluations.json", lambda d: d[0]["result"].update(waivers=2**70)),
        ("evaluations.json", lambda d: d[0]["result"].update(target_hash="\ud800")),
        ("evaluations.json", lambda d: d[0].update(criteria_text="a\0b")),
        ("evaluations.json", lambda d: d[0].pop("target_text")),
        ("evaluations.json", lambda d: d.append(7)),
        ("run.json", lambda d: d["record"].pop("inventory")),
        ("run.json", lambda d: d["record"]["inventory"].update(cpu=7)),
        ("run.json", lambda d: d["record"]["run"].update(seconds="\x1b]0;title\x07")),
        ("run.json", lambda d: d["record"]["run"].update(plan={"a": 1})),
        ("run.json", lambda d: d["record"]["outcomes"][0]["rounds"][0].update(process=2**63)),
        ("run.json", lambda d: d["artifacts"][0].update(member="run.json")),
        ("run.json", lambda d: d["artifacts"][0].update(name=None)),
        ("run.json", lambda d: d["artifacts"][0].update(case={"a": 1})),
    ],
)
def test_content_that_our_export_never_writes(
    other: Store, file: Path, name: str, change: Callable[[Any], Any]
) -> None:
    refusal(other, repack(file, name, change))


def test_a_bundle_goes_back_into_the_store_that_wrote_it_and_changes_nothing(
    full: Store, file: Path, path: Path
) -> None:
    def everything() -> list[Any]:
        names = [
            name
            for (name,) in full.transaction(
                lambda at: at.rows("SELECT name FROM sqlite_master WHERE type='table'")
            )
        ]
        return [full.transaction(lambda at, t=name: at.rows(f"SELECT * FROM {t}")) for name in names]

    before = everything()
    assert import_bundle(full, file) == "abcd2345"
    assert import_bundle(full, file) == "abcd2345"
    assert everything() == before


def test_a_later_bundle_brings_its_subjects_and_their_evidence(
    full: Store, other: Store, file: Path, tmp_path: Path
) -> None:
    import_bundle(other, file)
    full.add_subject("abcd2345", "sha256:runtime", "runtime")
    full.add_evidence(evidence("sha256:runtime", "runtime"))
    export_run(full, "abcd2345", tmp_path / "later.k3run")
    import_bundle(other, tmp_path / "later.k3run")
    assert other.load("abcd2345").evidence == full.load("abcd2345").evidence
    assert other.subjects("abcd2345") == full.subjects("abcd2345")
    assert len(other.artifacts("abcd2345")) == 1
