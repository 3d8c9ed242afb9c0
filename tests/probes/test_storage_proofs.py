"""Page cache, holes, memory and content that can be made smaller give no figure of storage: each is tried."""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from fakes import FakeContext

from k3gate.errors import NotPermittedError, NotPresentError, ProbeError
from k3gate.host import load_paths
from k3gate.probes import storage_direct, storage_files, storage_plan, storage_proofs, storage_ways
from k3gate.probes.storage import StorageProbe
from k3gate.probes.storage_files import OpenFile, OpenFiles
from k3gate.records import Drive, Metric, PcieLink, Profile, State, Storage, StoragePath

MIB = 1 << 20
SIZE = 16 * MIB
SHAPE = storage_plan.Shape(128 << 10, 1, 8)
Run = Callable[..., list[Metric]]


def kept(folder: Path) -> bool:
    """Whether this is a file system that a drive may lie below: of memory nothing can be cold."""
    with Path("/proc/self/mountinfo").open() as file:
        points = [(line.split()[4], line.partition(" - ")[2].split()[0]) for line in file]
    real = str(folder.resolve())
    inside = [(len(point), kind) for point, kind in points if f"{real}/".startswith(point.rstrip("/") + "/")]
    return max(inside)[1] not in ("tmpfs", "ramfs", "overlay", "zfs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not kept(tmp_path):
        pytest.skip("the temporary folder lies in memory or on a file system without direct reads")
    return tmp_path


@pytest.fixture
def run(make_inventory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`run(path)`: the metrics of a direct case over the shards there; `case` chooses another one of the plan."""
    monkeypatch.setattr(storage_plan, "SHORT", (SHAPE,))
    monkeypatch.setattr(storage_plan, "LEAST_SHARDS", SIZE)
    monkeypatch.setattr(storage_direct, "REGION_SECONDS", 0.01)
    monkeypatch.setattr(storage_direct, "WARM_UP_SECONDS", 0.005)
    contexts = []

    def measured(
        path: Path, case: str = f"direct.{SHAPE.name}", storage: Storage | None = None
    ) -> list[Metric]:
        named = load_paths.look(str(path))
        lying = StoragePath(str(path), "block", "ext4", None, "ext4")
        inventory = attrs.evolve(make_inventory(), storage=storage or Storage((), (lying,)))
        profile = Profile("quick", 180.0, load_paths=(named,))
        planned = storage_plan.plan("storage", inventory, profile, peer=False)
        [chosen] = [one for one in planned.cases if one.name == f"path1.{case}"]
        context = FakeContext(inventory, 0.05)
        contexts.append(context)
        return list(StorageProbe().run(chosen, context))

    yield measured
    for context in contexts:
        context.close()


def shard(folder: Path, content: bytes | None = None, name: str = "model.safetensors") -> Path:
    path = folder / name
    with path.open("wb") as file:
        file.write(os.urandom(SIZE) if content is None else content)
        os.fsync(file.fileno())
    return path


def tensors(number: int = 8) -> bytes:
    """A safetensors file of tensors of 2 MiB, whose header names them in another order than they lie in."""
    size = 2 * MIB
    header = {
        f"t{n}": {"dtype": "U8", "shape": [size], "data_offsets": [n * size, (n + 1) * size]}
        for n in reversed(range(number))
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + os.urandom(number * size)


def proofs(metric: Metric) -> dict[str, Any]:
    return {proof.name: proof for proof in metric.proofs}


def test_bytes_on_a_drive_give_a_figure_and_their_proofs(run: Run, folder: Path) -> None:
    path = shard(folder)
    before = (path.stat(), path.read_bytes())
    rate, cpu = run(folder)
    assert (rate.name, rate.state, cpu.name) == ("storage.read.rate", State.OK, "storage.read.cpu")
    assert all(sample.value > 0 for sample in (*rate.samples, *cpu.samples))
    assert {name: proof.ok for name, proof in proofs(rate).items()} == {
        "uncached": True,
        "written": True,
        "incompressible": True,
        "from_drives": None,
        "ceiling": None,
    }
    assert rate.labels["direct"] is True and rate.labels["engine"] == "io_submit"
    after = (path.stat(), path.read_bytes())
    assert (after[0].st_mtime_ns, after[0].st_ino, after[1]) == (
        before[0].st_mtime_ns,
        before[0].st_ino,
        before[1],
    )


@pytest.mark.case("NVM-01")
def test_pages_that_stay_in_memory_withhold_the_figure(run: Run, folder: Path) -> None:
    """A page that somebody maps is not dropped."""
    path = shard(folder)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[at] for at in range(0, SIZE, 4096)) >= 0
        rate, _ = run(folder)
    assert (rate.state, rate.samples) == (State.FAILED, ())
    assert "uncached" in (rate.reason or "") and "could not be dropped" in (rate.reason or "")


def test_direct_reads_that_fill_the_page_cache_are_none() -> None:
    assert storage_proofs.uncached(0.0, 0.5, direct=True).ok is False
    assert storage_proofs.uncached(0.0, 0.5, direct=False).ok is True
    assert storage_proofs.uncached("not told", 0.0, direct=True).ok is None


def test_holes_withhold_the_figure(run: Run, folder: Path) -> None:
    path = folder / "model.gguf"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE // 2))
        file.truncate(SIZE)
        os.fsync(file.fileno())
    rate, _ = run(folder)
    assert (rate.state, rate.samples) == (State.FAILED, ())
    assert "8,388,608 bytes are holes" in (rate.reason or "")


def test_content_that_can_be_made_smaller_withholds_the_figure(run: Run, folder: Path) -> None:
    shard(folder, bytes(SIZE))
    rate, _ = run(folder)
    assert (rate.state, rate.samples) == (State.FAILED, ())
    assert "incompressible" in (rate.reason or "")


def test_memory_that_is_called_storage_withholds_the_figure(run: Run, tmp_path: Path) -> None:
    """Were a tmpfs not refused by its name, its pages would tell."""
    shared = Path("/dev/shm")
    if kept(shared) or not os.access(shared, os.W_OK):
        pytest.skip("there is no tmpfs at /dev/shm")
    path = shared / f"k3gate-test-{os.getpid()}.safetensors"
    try:
        path.write_bytes(os.urandom(SIZE))
        for metric in run(path):
            assert metric.name != "storage.read.rate" or (metric.state, metric.samples) == (State.FAILED, ())
    finally:
        path.unlink()


@pytest.mark.case("NVM-02")
def test_without_direct_reads_a_cold_page_cache_is_read_and_named(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard(folder, os.urandom(8 * SIZE))
    really = os.open

    def refusing(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really(path, flags, *more, **others)

    monkeypatch.setattr(storage_files.os, "open", refusing)
    (metric,) = run(folder)
    assert metric.name == "storage.loader.rate"
    assert (metric.labels["way"], metric.labels["direct"]) == ("buffered", False)
    assert "O_DIRECT: EINVAL" in (metric.reason or "") and "not device speed" in (metric.reason or "")


@pytest.mark.parametrize("way", ["read", "mmap", "safetensors"])
def test_the_ways_of_loaders_begin_cold_and_are_no_figure_of_the_drive(
    run: Run, folder: Path, way: str
) -> None:
    path = shard(folder, tensors())
    path.read_bytes()  # warm, until the case drops it
    (metric,) = run(folder, f"cold.{way}")
    assert (metric.name, metric.state) == ("storage.loader.rate", State.OK), metric.reason
    assert proofs(metric)["uncached"].ok is True


def test_tensors_are_taken_in_the_order_of_their_file(folder: Path) -> None:
    path = shard(folder, tensors(3))
    descriptor = os.open(path, os.O_RDONLY)
    one = OpenFile(str(path), path.stat().st_size, descriptor, None)
    files = OpenFiles(str(folder), [one], own=False)
    pieces = storage_ways._tensors(files)
    files.close()
    start = one.bytes - 6 * MIB
    assert [(at, size) for _, at, size in pieces] == [(start + n * 2 * MIB, 2 * MIB) for n in range(3)]


@pytest.fixture
def open_shard(folder: Path) -> Iterator[OpenFiles]:
    path = shard(folder)
    descriptor = os.open(path, os.O_RDONLY)
    files = OpenFiles(str(folder), [OpenFile(str(path), SIZE, descriptor, None)], own=False)
    yield files
    files.close()


@pytest.mark.parametrize(
    ("flags", "ok", "said"),
    [
        (0x1, True, "all of"),
        (0x1 | 0x8, False, "made smaller by the file system"),
        (0x1 | 0x8 | 0x80, True, "all of"),
        (0x1 | 0x200, False, "inline in metadata"),
        (0x1 | 0x800, False, "never written"),
        (0x1 | 0x4, False, "never written"),
    ],
    ids=["data", "compressed", "encrypted", "inline", "unwritten", "delayed"],
)
def test_what_the_file_system_says_of_extents_decides(
    open_shard: OpenFiles, monkeypatch: pytest.MonkeyPatch, flags: int, ok: bool, said: str
) -> None:
    """FIEMAP's flags as linux/fiemap.h has them."""

    def answer(descriptor: int, request: int, buffer: bytearray) -> int:
        struct.pack_into("=QQLLLL", buffer, 0, 0, SIZE, 1, 1, 512, 0)
        struct.pack_into("=QQQQQLLLL", buffer, 32, 0, 1 << 30, SIZE, 0, 0, flags, 0, 0, 0)
        return 0

    monkeypatch.setattr(storage_proofs.fcntl, "ioctl", answer)
    proof = storage_proofs.written(open_shard)
    assert proof.ok is ok and said in proof.detail


def test_without_a_map_of_extents_holes_are_seen_and_compression_is_not(
    open_shard: OpenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(storage_proofs.fcntl, "ioctl", refuse)
    proof = storage_proofs.written(open_shard)
    assert proof.ok is None and "compression is not seen" in proof.detail


# --- what the drives count ---------------------------------------------------------------------------------


def counters(folder: Path, name: str, sectors: int, iostats: str = "1") -> None:
    (folder / name / "queue").mkdir(parents=True, exist_ok=True)
    (folder / name / "queue/iostats").write_text(f"{iostats}\n")
    (folder / name / "stat").write_text(f"  10 0 {sectors} 5 0 0 0 0 0 0 0\n")


def test_what_the_drives_did_not_deliver_came_from_elsewhere(tmp_path: Path) -> None:
    """Holes, compression and caches of any kind show here: the drive was not asked for all of it."""
    counters(tmp_path, "sda", 1000)
    before = storage_proofs.delivered(["sda"], tmp_path)
    counters(tmp_path, "sda", 1000 + 2000)
    after = storage_proofs.delivered(["sda"], tmp_path)
    assert storage_proofs.from_drives(before, after, 2000 * 512).ok is True
    proof = storage_proofs.from_drives(before, after, 4000 * 512)
    assert proof.ok is False and "50.0%" in proof.detail


def test_counters_that_are_off_or_missing_prove_nothing(tmp_path: Path) -> None:
    counters(tmp_path, "sda", 1000, iostats="0")
    for names in (["sda"], ["sdb"], []):
        told = storage_proofs.delivered(names, tmp_path)
        assert told.bytes is None and told.reason
        assert storage_proofs.from_drives(told, told, 1 << 20).ok is None


def test_a_drive_with_several_paths_is_counted_in_its_paths(tmp_path: Path) -> None:
    counters(tmp_path, "nvme0n1", 0)
    for path, sectors in (("nvme0c0n1", 300), ("nvme0c1n1", 200), ("nvme0c0n2", 7000)):
        (tmp_path / path).mkdir()
        (tmp_path / path / "stat").write_text(f"1 0 {sectors} 0\n")
    assert storage_proofs.delivered(["nvme0n1"], tmp_path).bytes == 500 * 512


@pytest.mark.case("NVM-01")
def test_a_rate_above_the_link_withholds_the_figure(run: Run, folder: Path) -> None:
    """A Gen3 x4 link carries 3.94 GB/s; here one that carries a byte a second stands for any that is too slow."""
    shard(folder)
    link = PcieLink("0000:01:00.0", best_bytes_per_s=1.0)
    lying = StoragePath(str(folder), "block", "ext4 on 1 NVMe drive", drives=("nvme9n9",))
    rate, cpu = run(folder, storage=Storage((Drive("x", "nvme9n9", link=link),), (lying,)))
    assert (rate.state, rate.samples, cpu.samples) == (State.FAILED, (), ())
    assert "ceiling" in (rate.reason or "") and "no drive delivered that" in (rate.reason or "")
    fast = Drive("y", "nvme0n1", link=PcieLink("0000:02:00.0", best_bytes_per_s=3.94e9))
    place = StoragePath("/m", "block", "", drives=("nvme0n1",))
    assert storage_proofs.ceiling(3.5e9, [fast], [place]).ok is True
    assert storage_proofs.ceiling(4.0e9, [fast], [place]).ok is False


# --- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.EIO, ProbeError, "gone or damaged"),
        (errno.ENODEV, ProbeError, "gone or damaged"),
        (errno.EACCES, NotPermittedError, "run as a user who may read it"),
        (errno.ENOSPC, ProbeError, "--storage"),
    ],
)
def test_an_error_of_the_kernel_names_file_error_and_what_to_do(number: int, kind: type, said: str) -> None:
    error = storage_files.trouble(OSError(number, os.strerror(number)), "/models/x")
    assert type(error) is kind
    assert f"/models/x: {os.strerror(number)} ({errno.errorcode[number]})" in str(error) and said in str(
        error
    )


def test_a_shard_that_was_replaced_or_is_gone_fails_its_case(run: Run, folder: Path, make_inventory) -> None:
    path = shard(folder)
    named = load_paths.look(str(folder))
    source = {"path": str(folder), "scratch": None, "bytes": SIZE, "files": [attrs.asdict(named.files[0])]}
    path.unlink()
    with pytest.raises(ProbeError, match="No such file or directory"):
        storage_files.shared(FakeContext(make_inventory()), source)
    shard(folder, os.urandom(SIZE + 1))
    with pytest.raises(ProbeError, match="is not what was planned"):
        storage_files.shared(FakeContext(make_inventory()), source)


def test_a_shard_that_is_cut_while_it_is_read_is_named_with_the_place(
    folder: Path, open_shard: OpenFiles
) -> None:
    from k3gate.probes.direct_reads import Stream

    stream = Stream([open_shard], 1 << 20, 2, 1, direct=False)
    assert stream.read(0.01).bytes > 0
    os.truncate(folder / "model.safetensors", MIB)
    with pytest.raises(ProbeError, match=r"model.safetensors ended at byte [\d,]+: it was cut"):
        stream.read(0.05)


def test_a_file_of_our_own_has_no_name_and_random_content(make_inventory, folder: Path) -> None:
    from k3gate.harness.scratch import Scratch

    case = SimpleNamespace(parameters={"scratch": [str(folder)]})
    context = FakeContext(make_inventory())
    source = {"path": str(folder), "scratch": str(folder), "bytes": SIZE, "files": []}
    with Scratch([case]) as scratch:  # type: ignore[list-item]
        context.files = scratch.files
        files = storage_files.shared(context, source)
        assert list(folder.iterdir()) == [] and files.bytes == SIZE
        assert storage_proofs.written(files).ok in (True, None)
        assert storage_proofs.incompressible(files).ok is True
        first = os.pread(files.files[0].buffered, MIB, 0)
        assert storage_files.fill(context, source) == SIZE
        assert os.pread(files.files[0].buffered, MIB, 0) == first, "what is there is not written again"
        assert first not in (bytes(MIB), os.pread(files.files[0].buffered, MIB, MIB))
        context.close()
    assert list(folder.iterdir()) == []


def test_a_file_system_without_unnamed_files_keeps_no_name_either(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from k3gate.harness import scratch

    really = os.open

    def refusing(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return really(path, flags, *more, **others)

    monkeypatch.setattr(scratch.os, "open", refusing)
    # What a kill just between making and taking the name away left; and what is not that.
    left, young, full = (folder / f".k3gate-scratch-{name}" for name in ("left", "young", "full"))
    left.touch()
    young.touch()
    full.write_bytes(b"of someone")
    link = folder / ".k3gate-scratch-link"
    link.symlink_to(young)
    for path in (left, full):
        os.utime(path, (1e9, 1e9))
    case = SimpleNamespace(parameters={"scratch": [str(folder)]})
    with scratch.Scratch([case]) as made:  # type: ignore[list-item]
        assert made.files[str(folder)] >= 0
        assert sorted(folder.iterdir()) == sorted([young, full, link])


def test_no_room_for_a_file_is_told_with_the_sum(
    make_inventory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = FakeContext(make_inventory())
    source = {"path": str(folder), "scratch": str(folder), "bytes": 1 << 30, "files": []}
    with (folder / "own").open("w+b") as file:
        context.files = {str(folder): file.fileno()}
        full = SimpleNamespace(f_bavail=100, f_frsize=1 << 20)
        monkeypatch.setattr(storage_files.os, "statvfs", lambda path: full)
        with pytest.raises(NotPresentError, match=r"1\.1 GB has no room in .*, where 0\.1 GB are free"):
            storage_files.fill(context, source)
    context.files = {str(folder): -errno.EROFS}
    with pytest.raises(ProbeError, match=r"Read-only file system \(EROFS\)"):
        storage_files.fill(context, source)
