"""SHA-256 of a checkpoint's files: right, on all cores, and held against every kind of list."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from k3gate.errors import UsageError
from k3gate.model.checkpoint import checksums, files
from k3gate.model.checkpoint.files import FileSet, Part
from tests.model.checkpoint.conftest import safetensors_bytes


@pytest.fixture
def found(tmp_path: Path) -> FileSet:
    for number in (1, 2, 3):
        raw = safetensors_bytes({f"t{number}": ("U8", (number * 3_000_000,))})
        (tmp_path / f"model-{number:05d}-of-00003.safetensors").write_bytes(raw)
    return files.find(tmp_path)


def taken(found: FileSet, threads: int = 2) -> dict[str, str]:
    return {one.name: one.sha256 for one in checksums.hash_files(found.parts, threads)}


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_digests_are_those_of_the_files_and_every_byte_is_told(found: FileSet, threads: int) -> None:
    done: list[int] = []
    sums = list(checksums.hash_files(found.parts, threads, done.append))
    assert {one.name: one.sha256 for one in sums} == {
        part.name: hashlib.sha256(part.path.read_bytes()).hexdigest() for part in found.parts
    }
    assert sum(done) == sum(part.size or 0 for part in found.parts) == sum(one.size for one in sums)


@pytest.mark.parametrize("line", ["{hex}  {name}", "{hex} *./{name}", "SHA256 ({name}) = {upper}"])
def test_lists_of_every_spelling_are_read(found: FileSet, line: str) -> None:
    sums = taken(found)
    text = "# a list\n" + "\n".join(
        line.format(hex=digest, upper=digest.upper(), name=name) for name, digest in sums.items()
    )
    (found.folder / "SHA256SUMS").write_text(text)
    wanted = checksums.manifest(found, None)
    assert wanted is not None and wanted.sums == sums and wanted.source == "SHA256SUMS"


def test_an_earlier_inspection_is_a_list(found: FileSet) -> None:
    path = found.folder / "earlier.json"
    sums = list(checksums.hash_files(found.parts, 2))
    told = checksums.document(sums, checksums.compare(sums, None))
    path.write_text(json.dumps({"checksums": told}))
    wanted = checksums.manifest(found, str(path))
    assert wanted is not None
    assert len(checksums.compare(sums, wanted).same) == 3


@pytest.mark.case("CKP-23")
def test_blobs_of_the_hubs_cache_are_called_by_their_digests(tmp_path: Path) -> None:
    raw = safetensors_bytes({"a": ("U8", (5,))})
    snapshot = tmp_path / "models--a--b" / "snapshots" / "r1"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / hashlib.sha256(raw).hexdigest()).write_bytes(raw)
    (snapshot / "model.safetensors").symlink_to(blobs / hashlib.sha256(raw).hexdigest())
    found = files.find(tmp_path / "models--a--b")
    wanted = checksums.manifest(found, None)
    sums = list(checksums.hash_files(found.parts, 1))
    assert checksums.compare(sums, wanted).same == ("model.safetensors",)


def test_what_differs_and_what_is_not_named_is_told(found: FileSet) -> None:
    sums = taken(found)
    first, second, third = sorted(sums)
    (found.folder / "SHA256SUMS").write_text(f"{sums[first]}  {first}\n{'0' * 64}  {second}\n")
    compared = checksums.compare(list(checksums.hash_files(found.parts, 2)), checksums.manifest(found, None))
    assert (compared.same, compared.differ, compared.unnamed) == ((first,), (second,), (third,))


def test_a_file_that_changed_is_not_known_by_its_earlier_digest(found: FileSet) -> None:
    sums = list(checksums.hash_files(found.parts, 2))
    assert len(checksums.known(found.parts, sums)) == 3
    os.utime(found.parts[0].path, ns=(1, 1))
    found.parts[1].path.write_bytes(b"shorter")
    assert list(checksums.known(found.parts, sums)) == [found.parts[2].name]


def test_a_copy_is_not_known_by_the_digest_of_its_original(tmp_path: Path) -> None:
    """Size and time can be those of another file; device, inode and the kernel's own time cannot."""
    path, copy = tmp_path / "a" / "x.safetensors", tmp_path / "b" / "x.safetensors"
    for one, content in ((path, b"a" * 100), (copy, b"b" * 100)):
        one.parent.mkdir()
        one.write_bytes(content)
        os.utime(one, ns=(1, 1))
    sums = list(checksums.hash_files([Part(path.name, path, 100)], 1))
    assert set(checksums.known([Part(path.name, path, 100)], sums)) == {path.name}
    assert not checksums.known([Part(copy.name, copy, 100)], sums)


def test_a_list_that_never_ends_is_not_waited_for(found: FileSet) -> None:
    os.mkfifo(found.folder / "fifo")
    with pytest.raises(UsageError, match="not a regular file"):
        checksums.manifest(found, str(found.folder / "fifo"))


@pytest.mark.parametrize("content", [b"", b"nothing here\n", b"{", b'{"checksums": 3}', b"\xff" * 100])
def test_a_list_that_is_none_is_refused_in_a_line(found: FileSet, content: bytes) -> None:
    path = found.folder / "list"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no SHA-256 of any file"):
        checksums.manifest(found, str(path))
    with pytest.raises(UsageError, match="no such file"):
        checksums.manifest(found, str(found.folder / "gone"))


def test_a_file_that_is_cut_while_it_is_hashed_ends_where_it_was_cut(tmp_path: Path) -> None:
    """A mapped page that is gone is SIGBUS, which would end the process."""
    path = tmp_path / "model.safetensors"
    size, left = checksums.WINDOW + checksums.BLOCK, checksums.BLOCK + 5
    path.write_bytes(os.urandom(size))
    part = Part(path.name, path, size)
    cuts = iter([left])

    def cut(_: int) -> None:
        for length in cuts:
            os.truncate(path, length)

    (found,) = checksums.hash_files([part], 1, cut)
    assert (found.size, found.sha256) == (left, hashlib.sha256(path.read_bytes()).hexdigest())
    assert not checksums.known([part], [attrs.evolve(found, size=size)])


def test_a_file_that_no_memory_can_map_is_read(found: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    wanted, done = taken(found), list[int]()
    monkeypatch.setattr(checksums, "mmap", refuse)
    assert {one.name: one.sha256 for one in checksums.hash_files(found.parts, 2, done.append)} == wanted
    assert sum(done) == sum(part.size or 0 for part in found.parts)


@pytest.mark.parametrize("fault", ["view[0]", "os.kill(os.getpid(), signal.SIGBUS)"])
def test_a_bus_error_elsewhere_ends_the_process_as_ever(tmp_path: Path, fault: str) -> None:
    code = f"""
import os, resource, signal
from mmap import mmap, MAP_SHARED
from k3gate.model.checkpoint import _mapped
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
with open({str(tmp_path / "file")!r}, "w+b") as file:
    file.truncate(8192)
    view, other = (mmap(file.fileno(), 8192, MAP_SHARED) for _ in range(2))
    number = _mapped.watch(other)
    file.truncate(0)
    assert other[5000] == 0 and not _mapped.unwatch(number)
    {fault}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS, done.stderr
