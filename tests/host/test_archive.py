"""Archives of a machine, read without being unpacked; what a stranger may put into one stays bounded."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate import documents, host
from k3gate.errors import UsageError
from k3gate.host import archive, decompression, text
from k3gate.host.archive import ArchiveRoot
from k3gate.host.files import Root, open_root
from k3gate.records import State

Member = tuple[str, bytes | str]
MACHINES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "machines"
ONE_CPU: list[Member] = [("sys/devices/system/cpu/online", b"0\n"), ("proc/cpuinfo", b"processor\t: 0\n")]
BOUNDED = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def tar(members: Sequence[Member], kind: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar of files (bytes), symbolic links ("->target"), hard links ("=target") and others ("folder", "pipe")."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
                continue
            if content.startswith(("->", "=")):
                member.type = tarfile.SYMTYPE if content.startswith("->") else tarfile.LNKTYPE
                member.linkname = content.removeprefix("->").removeprefix("=")
            else:
                member.type = {"folder": tarfile.DIRTYPE, "pipe": tarfile.FIFOTYPE}[content]
            made.addfile(member)
    return buffer.getvalue()


def put(folder: Path, raw: bytes, name: str = "box.tar") -> Path:
    (folder / name).write_bytes(raw)
    return folder / name


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as refused:
        host.read(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        bz2.compress,
        lzma.compress,
        lambda raw: bz2.compress(raw[:700]) + bz2.compress(raw[700:]),
    ],
)
def test_every_compression_gives_the_same_machine(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    root = open_root(put(tmp_path, pack(tar([*ONE_CPU, ("sys/large", b"x" * 300_000)]))))
    assert root.read("sys/devices/system/cpu/online").text == "0"
    assert len(root.raw("sys/large", 400_000)) == 300_000
    assert host.read(tmp_path / "box.tar").cpu.online == (0,)


def test_a_folder_and_an_archive_of_it_read_the_same(make_root, tmp_path: Path) -> None:
    folder = make_root({"etc/machine-id": "0123456789abcdef" * 2})
    with tarfile.open(tmp_path / "box.tar.xz", "w:xz") as made:
        made.add(folder, arcname=".")
    assert host.stable(host.read(tmp_path / "box.tar.xz")) == host.stable(host.read(folder))


def test_links_are_followed_as_if_the_archive_were_the_top(tmp_path: Path) -> None:
    root = ArchiveRoot(
        put(
            tmp_path,
            tar(
                [
                    ("./sys/devices/virtual/dmi/id/board_name", b"X13DEI\n"),
                    ("sys/class/dmi/id", "->/sys/devices/virtual/dmi/id"),
                    ("/sys/relative", "->class/dmi/../dmi/id"),
                    ("sys/outside", "->../../../../../etc/passwd"),
                    ("sys/hard", "=sys/devices/virtual/dmi/id/board_name"),
                    ("sys/loop", "->loop"),
                    ("sys/pipe", "pipe"),
                    ("usr/bin/thing", b"not kept"),
                ]
            ),
        )
    )
    assert root.read("sys/class/dmi/id/board_name").text == "X13DEI"
    assert root.read("sys/relative/board_name").text == "X13DEI"
    assert root.read("sys/hard").text == "X13DEI"
    assert root.read("sys/outside").state is State.NOT_PRESENT
    assert root.read("sys/loop").reason == "could not be read: Too many levels of symbolic links"
    assert root.read("sys/pipe").state is State.NOT_PRESENT
    assert root.names("sys/class/dmi") == ("id",)
    assert root.names("") == ("sys",)
    assert root.folder("sys/class/dmi/id")
    assert not root.exists("sys/loop")
    assert not root.exists("sys/hard/below")


def test_of_a_name_that_stands_twice_the_last_counts(tmp_path: Path) -> None:
    members: list[Member] = [
        ("sys/a", b"1"),
        ("sys/b/c", b"1"),
        ("sys/a", b"2"),
        ("sys/b", b"file"),
        ("sys", "folder"),
    ]
    root = ArchiveRoot(put(tmp_path, tar(members)))
    assert root.raw("sys/a") == b"2"
    assert root.raw("sys/b") == b"file"


def test_sizes_are_those_of_a_folder(tmp_path: Path) -> None:
    root = ArchiveRoot(put(tmp_path, tar([("proc/large", b"1" * 100_000), ("proc/huge", bytes(17 * 2**20))])))
    assert root.read("proc/large").state is State.FAILED
    assert root.read("proc/large", 1000, head=True).text == "1" * 1000
    assert root.read("proc/huge", 2**24).state is State.FAILED


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not a tar archive"),
        (b"hello\n" * 500, "not a tar archive"),
        (b"\x1f\x8b" + bytes(100), "not a tar archive"),
        (gzip.compress(tar(ONE_CPU), mtime=0)[:-90], "cut off"),
        (tar(ONE_CPU)[:1024], "damaged"),
        (tar(ONE_CPU)[:700], "cut off"),
        (tar([("sys/../../etc/x", b"")]), "leads out"),
        (tar([("sys/a\nb", b"")]), "line break"),
        (tar([("sys/" + "d/" * 70 + "x", b"")]), "deep"),
        (tar([("sys/" + "n" * 5000, b"")]), "characters"),
        (tar([("sys/x", b"")] * 30), "holds more than 20 files"),
        (tar([("sys/" + "n" * 70_000, b"")]), "a header without end"),
        (tar([("usr/bin/sh", b"")]), "not a machine"),
        (gzip.compress(bytes(2**20), mtime=0), "not a machine"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_is_no_capture_is_refused_in_one_line(
    raw: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MEMBERS", 20)
    assert said in refusal(put(tmp_path, raw))


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompression, "TOTAL_BYTES", 2**22)
    monkeypatch.setattr(archive, "KEPT_BYTES", 2**20)
    unpacked = tar([*ONE_CPU, ("usr/x", bytes(2**23))])
    assert "unpacks to more than" in refusal(put(tmp_path, bz2.compress(unpacked)))
    kept = tar([*ONE_CPU, *((f"sys/{n}", os.urandom(60_000)) for n in range(20))])
    assert "MiB of files" in refusal(put(tmp_path, kept))
    folders = tar([(f"sys/{n}/" + "d/" * 60 + "x", b"") for n in range(80)])
    assert "MiB of files" in refusal(put(tmp_path, gzip.compress(folders)))
    monkeypatch.setattr(archive, "EXTRA_BYTES", 5000)
    assert "MiB of headers" in refusal(put(tmp_path, tar([("sys/" + "n" * 2000, b"")] * 5)))
    monkeypatch.setattr(archive, "DISK_BYTES", 1000)
    assert "larger than a capture may be" in refusal(put(tmp_path, unpacked))


def test_headers_without_end_are_refused(tmp_path: Path) -> None:
    """Sparse maps and long names that go on and on would be put together in memory."""
    header = bytearray(tarfile.TarInfo("sys/x").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[482] = 1  # more of the map follows
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:512]))
    more = (b"00000000001\0" * 42)[:504] + b"\1" + bytes(7)
    assert "a header without end" in refusal(put(tmp_path, bytes(header) + more * 500))
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 1
    chain = (long_name.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")) * 500
    assert "without end" in refusal(put(tmp_path, chain))


def test_devices_and_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "neither a folder nor a file" in refusal(tmp_path / "pipe")


def test_long_names_of_both_kinds_are_read(tmp_path: Path) -> None:
    name = "sys/" + "/".join(["a" * 60] * 3)
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        assert ArchiveRoot(put(tmp_path, tar([(name, b"1")], kind))).raw(name) == b"1"


@BOUNDED
@given(st.binary(max_size=3000), st.sampled_from([b"", b"\x1f\x8b\x08\0", b"BZh9", b"\xfd7zXZ\0"]))
def test_random_bytes_are_refused(tmp_path: Path, raw: bytes, magic: bytes) -> None:
    refusal(put(tmp_path, magic + raw))


@BOUNDED
@given(st.data())
def test_damaged_archives_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(tar([*ONE_CPU, ("sys/" + "long/" * 30, b"x"), ("sys/l", "->long")], tarfile.PAX_FORMAT))
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        page = text.page(host.read(put(tmp_path, bytes(whole))))
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert all(character.isprintable() or character == "\n" for character in page)


PART = st.sampled_from(["sys", "proc", "a", "b", "cpu0", "devices", "system", "cpu", "online"])
PATH = st.lists(PART, min_size=1, max_size=5).map(lambda parts: "/".join(["sys", *parts]))
TARGET = st.tuples(st.sampled_from(["->./", "->/", "->../", "->../../", "="]), PATH).map("".join)
TREE = st.lists(st.tuples(PATH, st.one_of(st.binary(max_size=9), TARGET, st.just("folder"))), max_size=25)


@BOUNDED
@given(TREE, PATH)
def test_any_tree_with_any_links_can_be_read(tmp_path: Path, tree: list[Member], asked: str) -> None:
    root = ArchiveRoot(put(tmp_path, tar(tree)))
    for path in (asked, *(name for name, _ in tree)):
        reading = root.read(path)
        assert reading.text is not None or reading.reason
        assert isinstance(root.names(path), tuple)
        assert root.exists(path) or reading.text is None


@BOUNDED
@given(
    st.lists(
        st.tuples(PATH, st.one_of(st.binary(max_size=9), st.just("->a"), st.just("->/sys/b"))), max_size=12
    )
)
def test_an_archive_reads_like_the_folder_that_it_was_made_of(
    tmp_path_factory: pytest.TempPathFactory, tree: list[Member]
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for name, content in tree:
        path = folder / Path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.symlink_to(content[2:])
            elif not path.is_symlink() and folder in path.parent.resolve().parents:
                path.write_bytes(content)
        except OSError:
            continue
    with tarfile.open(folder / "box.tar", "w") as made:
        if (folder / "sys").exists():
            made.add(folder / "sys", arcname="sys")
    plain, packed = Root(folder), ArchiveRoot(folder / "box.tar")
    for name, _ in tree:
        assert packed.read(name) == plain.read(name)
        assert packed.names(name) == plain.names(name)
        assert packed.exists(name) == plain.exists(name)


@pytest.mark.skipif(not MACHINES.is_dir(), reason="the captured machines are not beside the checkout")
@pytest.mark.parametrize(
    "path", sorted(MACHINES.glob("*/sysroot.tar.bz2")), ids=lambda path: path.parent.name
)
def test_captured_machines_are_read_as_they_were_packed(path: Path) -> None:
    inventory = host.read(path)
    assert inventory.root == str(path)
    assert documents.structure(host.document(inventory), type(inventory)) is not None
