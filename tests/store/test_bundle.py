"""A run in one file: it arrives whole, and nothing that a stranger puts into such a file does harm."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.errors import StorageError, UsageError
from k3gate.records import Evidence, RunStatus, Verdict
from k3gate.store import Store, bundle, open_store
from k3gate.store.bundle import export_run, import_bundle
from tests.store.test_watched import PHASES, SERIES


@pytest.fixture
def full(store: Store, make_run, make_inventory, make_outcome, make_waiver, make_result) -> Store:
    """A store with a run that has one of everything."""
    store.begin_run(make_run(), make_inventory())
    store.save_outcome("abcd2345", make_outcome())
    store.save_outcome("abcd2345", make_outcome("read.core.node0", rounds=2))
    store.add_watched("abcd2345", SERIES, PHASES)
    store.add_subject("abcd2345", "sha256:checkpoint", "checkpoint")
    store.add_evidence(
        Evidence(
            "checkpoint.complete",
            "sha256:checkpoint",
            "checkpoint",
            Verdict.PASS,
            "96 of 96",
            "2026-11-01",
            {},
        )
    )
    store.add_evaluation(make_result(), "criteria text", "target text")
    store.add_evaluation(make_result(criteria_hash="sha256:c2"), "other criteria", "target text")
    store.add_waiver(make_waiver())
    store.add_artifact("abcd2345", ("memory", "read.machine"), "stderr", b"\x00\xff\n")
    store.add_artifact("abcd2345", None, "stdout", b"")
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


def all_of(store: Store) -> list[Any]:
    record = store.load("abcd2345")
    listed = store.evaluations("abcd2345")
    return [
        attrs.evolve(record, waivers=tuple(attrs.evolve(one, id=None) for one in record.waivers)),
        [store.stored_evaluation(one.id) for one in listed],
        store.artifacts("abcd2345"),
        store.subjects("abcd2345"),
    ]


def test_a_run_travels_whole_and_twice_is_once(full: Store, other: Store, file: Path) -> None:
    assert import_bundle(other, file) == "abcd2345"
    assert all_of(other) == all_of(full)
    assert import_bundle(other, file) == "abcd2345"
    assert all_of(other) == all_of(full)
    assert len(other.runs()) == 1


def test_a_later_bundle_of_the_same_run_adds_its_judgements(
    full: Store, other: Store, file: Path, tmp_path: Path, make_result, make_waiver
) -> None:
    import_bundle(other, file)
    full.add_evaluation(make_result(criteria_hash="sha256:c3"), "third", "target text")
    full.add_waiver(make_waiver(why="later"))
    export_run(full, "abcd2345", tmp_path / "later.k3run")
    import_bundle(other, tmp_path / "later.k3run")
    assert all_of(other) == all_of(full)


def test_the_same_run_gives_the_same_bytes(full: Store, file: Path, tmp_path: Path) -> None:
    export_run(full, "abcd2345", tmp_path / "again.k3run")
    assert (tmp_path / "again.k3run").read_bytes() == file.read_bytes()


def test_another_run_of_the_same_id_is_refused(other: Store, file: Path, make_run, make_inventory) -> None:
    other.begin_run(make_run(machine_name="mine"), make_inventory())
    assert "another run" in refusal(other, file)
    assert other.load("abcd2345").run.machine_name == "mine"
    assert other.load("abcd2345").outcomes == ()


def test_a_run_that_was_still_going_on_arrives_as_abandoned(
    store: Store, other: Store, tmp_path: Path, make_run, make_inventory
) -> None:
    store.begin_run(make_run(status=RunStatus.RUNNING), make_inventory())
    export_run(store, "abcd2345", tmp_path / "x.k3run")
    import_bundle(other, tmp_path / "x.k3run")
    assert other.load("abcd2345").run.status is RunStatus.ABANDONED
    import_bundle(other, tmp_path / "x.k3run")
    assert len(other.runs()) == 1


# --- writing ---------------------------------------------------------------------------------------------


def test_a_bundle_may_be_written_over_a_bundle_and_over_nothing_else(
    full: Store, file: Path, tmp_path: Path
) -> None:
    export_run(full, "abcd2345", file)
    precious = tmp_path / "thesis.docx"
    with zipfile.ZipFile(precious, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    for path in (precious, text, tmp_path):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(UsageError) as caught:
            export_run(full, "abcd2345", path)
        assert str(path) in str(caught.value)
        assert not path.is_file() or path.read_bytes() == before
    with pytest.raises(UsageError, match="nowhere"):
        export_run(full, "abcd2345", tmp_path / "nowhere" / "x.k3run")
    with pytest.raises(UsageError, match="zzzz"):
        export_run(full, "zzzz2345", tmp_path / "y.k3run")
    assert not (tmp_path / "y.k3run").exists()


def test_a_full_disk_leaves_no_half_a_bundle(
    full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError, match="No space left"):
        export_run(full, "abcd2345", tmp_path / "x.k3run")
    assert sorted(tmp_path.iterdir()) == before


# --- strangers -------------------------------------------------------------------------------------------


def refusal(store: Store, path: Path) -> str:
    before = store.runs()
    with pytest.raises(UsageError) as caught:
        import_bundle(store, path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    assert store.runs() == before
    return line


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, content: dict[str, bytes], *, sums: bool = True) -> Path:
    """A bundle of `content`; with `sums` its manifest is made right, as a careful stranger would."""
    if sums:
        manifest = json.loads(content["manifest.json"])
        manifest["members"] = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in content.items()
            if name != "manifest.json"
        }
        content = {**content, "manifest.json": json.dumps(manifest).encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def changed(file: Path, tmp_path: Path) -> Callable[..., Path]:
    """The bundle with its run.json changed by a function, and right sums."""

    def make(change: Callable[[Any], Any]) -> Path:
        content = members(file)
        document = json.loads(content["run.json"])
        changed = change(document)
        document = changed if isinstance(changed, bytes) else document
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        return pack(tmp_path / "changed.k3run", {**content, "run.json": data})

    return make


def test_what_is_no_bundle(other: Store, file: Path, tmp_path: Path) -> None:
    assert "no such file" in refusal(other, tmp_path / "none.k3run")
    refusal(other, tmp_path)
    for number, data in enumerate((b"", b"hello" * 1000, file.read_bytes()[:-30], file.read_bytes()[40:])):
        bad = tmp_path / f"bad{number}.k3run"
        bad.write_bytes(data)
        refusal(other, bad)
    with zipfile.ZipFile(tmp_path / "empty.k3run", "w"):
        pass
    assert "manifest" in refusal(other, tmp_path / "empty.k3run")


def test_every_byte_counts(full: Store, file: Path, tmp_path: Path) -> None:
    """A flipped byte anywhere is refused, or lies where it changes nothing of what arrives."""
    whole = file.read_bytes()
    bad = tmp_path / "flipped.k3run"
    refused = 0
    with open_store(str(tmp_path / "flips.sqlite")) as store:
        for place in range(0, len(whole), max(1, len(whole) // 80)):
            bad.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
            try:
                import_bundle(store, bad)
            except UsageError as error:
                assert "\n" not in str(error)
                refused += 1
            else:
                assert all_of(store) == all_of(full)
    assert refused > 40


def test_a_wrong_checksum_size_or_list(other: Store, file: Path, tmp_path: Path) -> None:
    content = members(file)
    swapped = {**content, "run.json": content["run.json"].replace(b"box", b"bot")}
    assert "run.json" in refusal(other, pack(tmp_path / "a", swapped, sums=False))
    extra = {**content, "artifacts/0099": b"not listed"}
    assert "artifacts/0099" in refusal(other, pack(tmp_path / "b", extra, sums=False))
    missing = {name: data for name, data in content.items() if name != "artifacts/0000"}
    assert "artifacts/0000" in refusal(other, pack(tmp_path / "c", missing, sums=False))


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/cron.d/x",
        "/etc/passwd",
        "artifacts/../../x",
        "C:\\x",
        "run.json/",
        "pickle.pkl",
        "artifacts/00000",
    ],
)
def test_a_member_that_is_no_part_of_a_bundle(other: Store, file: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    assert "no part of a bundle" in refusal(other, pack(folder / "x.k3run", {**members(file), name: b"x"}))
    assert [path.name for path in folder.iterdir()] == ["x.k3run"]


def test_a_member_that_comes_twice(other: Store, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "twice.k3run"
    path.write_bytes(file.read_bytes())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("run.json", b"{}")
    assert "two of one name" in refusal(other, path)


def test_bombs_are_seen_before_they_are_unpacked(
    other: Store, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MEMBER_BYTES", 1_000_000)
    monkeypatch.setattr(bundle, "TOTAL_BYTES", 3_000_000)
    zeros = bytes(1_000_001)
    assert "more than 1000000" in refusal(
        other, pack(tmp_path / "a", {**members(file), "artifacts/0000": zeros})
    )
    many = {f"artifacts/{number:04d}": bytes(999_999) for number in range(4)}
    assert "more than 3000000" in refusal(other, pack(tmp_path / "b", {**members(file), **many}))
    # A size that lies: the header says 10 bytes, the stream holds a million.
    path = pack(tmp_path / "c", {**members(file), "artifacts/0000": bytes(999_999)})
    data = path.read_bytes().replace((999_999).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(data)
    refusal(other, path)
    monkeypatch.setattr(bundle, "BUNDLE_BYTES", 100)
    assert "larger than 100" in refusal(other, file)


def test_a_directory_of_a_million_members_is_not_read(other: Store, tmp_path: Path) -> None:
    path = tmp_path / "many.k3run"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(bundle.MEMBERS + 50):
            archive.writestr(f"artifacts/{number:05d}", b"")
    assert "too many members" in refusal(other, path)


def test_an_artifact_longer_than_any_of_ours(other: Store, file: Path, tmp_path: Path) -> None:
    long = {**members(file), "artifacts/0000": bytes(2**20 + 1)}
    assert "artifact" in refusal(other, pack(tmp_path / "x", long))


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 100_000, b'{"record": ' + b"9" * 5000 + b"}"],
    ids=["empty", "text", "bytes", "list", "null", "no keys", "deep", "long number"],
)
def test_a_run_that_is_no_document(other: Store, changed, data: bytes) -> None:
    assert "no run" in refusal(other, changed(lambda _: data))


def test_a_manifest_that_is_none(other: Store, file: Path, tmp_path: Path) -> None:
    for data in (
        b"",
        b"[]",
        b'{"format": 1, "members": 7}',
        b'{"format": 1, "members": {"run.json": []}}',
        b"[" * 99999,
    ):
        content = {**members(file), "manifest.json": data}
        assert "manifest" in refusal(other, pack(tmp_path / "x", content, sums=False))
    newer = {**members(file), "manifest.json": b'{"format": 2, "members": {}}'}
    assert "upgrade k3gate" in refusal(other, pack(tmp_path / "x", newer, sums=False))


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def first_metric(document: Any) -> Any:
    return document["record"]["outcomes"][0]["metrics"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: first_metric(d)["samples"][0].update(value=float("nan")),
        lambda d: first_metric(d)["samples"][0].update(start_s=float("inf")),
        lambda d: first_metric(d)["samples"][0].update(process=2**70),
        lambda d: first_metric(d)["labels"].update(x=[1, 2]),
        lambda d: first_metric(d)["labels"].update(x={"y": 1}),
        lambda d: first_metric(d).update(state="splendid"),
        lambda d: first_metric(d).update(interval=[1.0]),
        lambda d: d["record"]["outcomes"][0]["metrics"].append(first_metric(d)),
        lambda d: d["record"]["outcomes"].append(d["record"]["outcomes"][0]),
        lambda d: d["record"]["outcomes"][0].update(rounds_planned=2**70),
        lambda d: d["record"]["run"].update(id="../../x"),
        lambda d: d["record"]["run"].update(status="dancing"),
        lambda d: d["record"]["waivers"][0].update(run="zzzz2345"),
        lambda d: d["record"]["evidence"][0].update(data={"x": deep(900)}),
        lambda d: d["record"]["evidence"][0].update(data=7),
        lambda d: d["artifacts"][0].update(member="../../etc/passwd"),
        lambda d: d["artifacts"][0].update(size="large"),
        lambda d: d["artifacts"][0].update(size=2**70),
        lambda d: d.update(artifacts=7),
        lambda d: d.update(subjects=[7]),
        lambda d: d.pop("record"),
        lambda d: json.dumps(d).replace("180.25", "1e999").encode(),
        lambda d: json.dumps(d).replace("180.25", "Infinity").encode(),
    ],
)
def test_a_run_that_cannot_be_ours(other: Store, changed, change: Callable[[Any], Any]) -> None:
    refusal(other, changed(change))


def test_a_document_that_is_nested_too_deep(other: Store, changed) -> None:
    path = changed(lambda document: document["record"]["evidence"][0].update(data={"x": deep(100)}))
    assert "nested more than 64 deep" in refusal(other, path)


def test_names_that_no_database_takes_become_visible_escapes(other: Store, changed) -> None:
    def change(document: Any) -> None:
        document["record"]["run"]["machine_name"] = "a\ud800b\x00c"
        first_metric(document)["labels"]["isa"] = "\udfff"
        document["artifacts"][0]["name"] = "err\x1b[31m\ud800"

    import_bundle(other, changed(change))
    record = other.load("abcd2345")
    assert record.run.machine_name == "a\\ud800b\\x00c"
    assert record.outcomes[0].metrics[0].labels["isa"] == "\\udfff"
    assert other.artifacts("abcd2345")[0].name == "err\\x1b[31m\\ud800"
    import_bundle(other, changed(change))


def test_an_import_that_fails_half_way_leaves_nothing(
    other: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle, "_add_judgements", fail)
    with pytest.raises(StorageError):
        import_bundle(other, file)
    assert other.runs() == []


def test_a_password_is_not_asked_for(other: Store, file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    start = data.index(b"PK\x01\x02")
    data[start + 8] |= 1
    (tmp_path / "locked.k3run").write_bytes(data)
    refusal(other, tmp_path / "locked.k3run")


def test_bytes_before_and_after_the_archive_are_refused(other: Store, file: Path, tmp_path: Path) -> None:
    for number, data in enumerate((b"#!/bin/sh\n" + file.read_bytes(), file.read_bytes() + b"more")):
        path = tmp_path / f"{number}.k3run"
        path.write_bytes(data)
        assert "damaged" in refusal(other, path)


def test_criteria_and_target_arrive_to_the_byte(
    full: Store, other: Store, tmp_path: Path, make_result
) -> None:
    text = "# Kriterien für Änne\r\n[[check]]\r\n\tid = 'x'\n"
    key = full.add_evaluation(make_result(criteria_hash="sha256:c9"), text, text)
    export_run(full, "abcd2345", tmp_path / "x.k3run")
    import_bundle(other, tmp_path / "x.k3run")
    assert full.stored_evaluation(key).criteria_text == text
    assert other.stored_evaluation(other.evaluations("abcd2345")[-1].id).target_text == text
