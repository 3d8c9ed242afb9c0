"""Files read as memory, for real and small: what is proven, what is left behind, and what happens when they change."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
from fakes import FakeContext
from planning import case_of, plan_of

from k3gate.errors import ProbeError
from k3gate.host import memory_files
from k3gate.probes import _native, file_memory, mapped_file, scatter
from k3gate.probes.memory import MemoryProbe
from k3gate.probing.execute import CaseDone, Executor, Heartbeat
from k3gate.probing.plan import Execution
from k3gate.records import Case, Inventory, Metric, NumaNode, Profile, Proof, State

SIZE = 40 << 20
"""Of two experts and a rest."""
CACHE = 1 << 20


def here(make_inventory: Any) -> Inventory:
    """A guest with the CPUs of this machine, all in node 0, and small caches."""
    cpus = tuple(_native.allowed_cpus()[:2])
    inventory = make_inventory("vm")
    caches = tuple(attrs.evolve(one, bytes=CACHE) for one in inventory.cpu.caches)
    cpu = attrs.evolve(inventory.cpu, online=cpus, allowed=cpus, siblings=(), caches=caches)
    memory = inventory.memory.total_bytes
    node = NumaNode(0, cpus, memory, memory // 2, "dram", {0: 10})
    return attrs.evolve(inventory, cpu=cpu, numa=attrs.evolve(inventory.numa, nodes=(node,)))


def planned(inventory: Inventory, path: Path, name: str) -> Case:
    """A case on a file or folder, of which at most `SIZE` bytes are taken."""
    file = memory_files.look(str(path))
    case = case_of(plan_of(inventory, Profile("quick", 180.0, memory_files=(file,))), f"file1.{name}")
    parameters = {**case.parameters, "window": min(case.parameters["window"], SIZE)}
    if "walked_bytes" in parameters:
        parameters["walked_bytes"] = min(parameters["walked_bytes"], SIZE)
    return attrs.evolve(case, parameters=parameters)


@pytest.fixture
def run(make_inventory: Any) -> Any:
    """`run(path, name)`: the metric of a case of the file or folder."""
    contexts = []

    def ran(path: Path, name: str, case: Case | None = None) -> Metric:
        inventory = here(make_inventory)
        contexts.append(FakeContext(inventory, 0.3))
        (metric,) = MemoryProbe().run(case or planned(inventory, path, name), contexts[-1])
        return metric

    yield ran
    for context in contexts:
        context.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(SIZE + 5000))
    return path


def proofs(metric: Metric) -> dict[str, Proof]:
    return {proof.name: proof for proof in metric.proofs}


@pytest.mark.parametrize("name", ["read", "experts", "latency.node0"])
def test_a_file_of_unknown_content_is_read_and_never_changed(run, file: Path, name: str) -> None:
    before = (file.read_bytes(), file.stat().st_mtime_ns)
    metric = run(file, name)
    assert (
        metric.name
        == {
            "read": "memory.file.read",
            "experts": "memory.file.expert_read",
            "latency.node0": "memory.file.latency",
        }[name]
    )
    assert metric.state is State.OK, metric.reason
    found = proofs(metric)
    assert set(found) == {"placement", "page_size", "pinned", "checksum", "working_set", "in_memory"}
    assert {name: proof.ok for name, proof in found.items() if name not in ("placement", "page_size")} == {
        "pinned": True,
        "checksum": True,
        "working_set": True,
        "in_memory": True,
    }
    assert "0 major faults" in found["in_memory"].detail
    labels = metric.labels
    assert labels["scope"] == "file" and labels["file"] == str(file) and labels["made"] is False
    assert labels["read_from"] in ("page cache", "tmpfs") and labels["dax"] in (False, None)
    assert labels["pool_bytes"] >= SIZE // 2 and "memory_node" not in labels and "placement" not in labels
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


@pytest.mark.parametrize("name", ["read", "experts", "latency.node0"])
@pytest.mark.parametrize("folder", ["tmp", "shm"])
def test_a_file_that_is_made_leaves_nothing_behind(run, tmp_path: Path, folder: str, name: str) -> None:
    where = tmp_path if folder == "tmp" else Path("/dev/shm")
    before = set(where.iterdir())
    metric = run(where, name)
    assert set(where.iterdir()) == before, "while it is mapped it has no name already"
    assert metric.state is State.OK, metric.reason
    assert metric.labels["made"] is True and metric.labels["file"] == str(where)
    assert proofs(metric)["checksum"].ok is True
    if folder == "shm":
        assert metric.labels["read_from"] == "tmpfs"


def test_a_file_system_without_nameless_files_gets_one_that_loses_its_name(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert run(tmp_path, "read").state is State.OK
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_changes_while_it_is_read_fails_its_sum(
    run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed = mapped_file._warm

    def meddled(mapped: Any, *more: Any) -> Any:
        sums = warmed(mapped, *more)
        with file.open("r+b") as out:
            out.seek(4096)
            out.write(b"another word")
        return sums

    monkeypatch.setattr(mapped_file, "_warm", meddled)
    metric = run(file, "read")
    assert metric.state is State.FAILED
    assert "another sum than before" in proofs(metric)["checksum"].detail


def test_zeros_prove_nothing_by_their_sum(run, tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(SIZE))
    for name in ("read", "latency.node0"):
        assert proofs(run(path, name))["checksum"].ok is None


def test_another_file_at_the_path_is_refused(run, make_inventory, file: Path) -> None:
    case = planned(here(make_inventory), file, "read")
    file.write_bytes(os.urandom(SIZE))
    with pytest.raises(ProbeError, match="is not what was planned"):
        run(file, "read", case)
    file.unlink()
    with pytest.raises(ProbeError, match="No such file"):
        run(file, "read", case)
    os.mkfifo(file)
    with pytest.raises(ProbeError, match="is not what was planned"):
        run(file, "read", case)


def test_a_file_that_is_cut_between_cases_is_named(make_inventory, file: Path) -> None:
    inventory = here(make_inventory)
    cases = [planned(inventory, file, name) for name in ("read", "experts")]
    context = FakeContext(inventory, 0.2)
    list(MemoryProbe().run(cases[0], context))
    os.truncate(file, 4096)
    with pytest.raises(ProbeError, match="was cut to 4096 bytes"):
        list(MemoryProbe().run(cases[1], context))
    context.close()


def test_a_file_that_is_cut_while_it_is_read_costs_its_case_alone(
    make_inventory, file: Path, tmp_path: Path
) -> None:
    """The worker dies of SIGBUS; the next case runs in a fresh one."""
    inventory = here(make_inventory)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(SIZE))
    cases = [
        attrs.evolve(planned(inventory, path, "read"), setup_seconds=0.0, seconds=20.0)
        for path in (file, other)
    ]
    cases[1] = attrs.evolve(cases[1], name="file2.read", seconds=0.3)
    done = {}
    with Executor(inventory, started=time.monotonic()) as executor:
        for event in executor.run(Execution(0, "memory", "file1", tuple(cases))):
            if isinstance(event, Heartbeat) and event.note == "walking memory" and not done:
                os.truncate(file, 4096)
            if isinstance(event, CaseDone):
                done[event.case.name] = event.round
    assert done["file1.read"].state is State.FAILED
    assert "SIGBUS" in (done["file1.read"].reason or "") and "was cut" in (done["file1.read"].reason or "")
    assert done["file2.read"].state is State.OK, done["file2.read"].reason


def test_drives_and_pages_that_come_back_are_no_figure_of_memory(
    run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter(range(0, 100, 7))
    usage = type("Usage", (), {"ru_majflt": property(lambda self: next(faults))})
    monkeypatch.setattr(file_memory.resource, "getrusage", lambda who: usage())
    metric = run(file, "read")
    assert metric.state is State.FAILED
    assert "7 major faults" in proofs(metric)["in_memory"].detail
    monkeypatch.undo()
    monkeypatch.setattr(mapped_file.MappedFile, "in_memory", lambda self: 0.5)
    metric = run(file, "read")
    assert metric.state is State.FAILED
    assert "50.0% at the end (mincore)" in proofs(metric)["in_memory"].detail


def test_a_cold_file_is_warmed_and_told_as_found(run, file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if memory_files.look(str(file)).file_system == "tmpfs":
        pytest.skip("a tmpfs is never cold")
    proof = proofs(run(file, "read"))["in_memory"]
    assert proof.ok is True
    assert "in memory: 0.0% before it was warmed, 100.0% at the end" in proof.detail


def test_mincore_is_not_believed_where_it_lies(run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To who neither owns a file nor may write to it, the kernel says that all of it is in memory."""
    monkeypatch.setattr(mapped_file.os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(mapped_file.os, "access", lambda *a, **b: False)
    proof = proofs(run(file, "read"))["in_memory"]
    assert proof.ok is True
    assert "told to the file's owner alone" in proof.detail


@pytest.mark.parametrize(
    ("answers", "ok", "told"),
    [
        ([[0, 0, 1, 1], [0, 0, 1, 1]], True, "50.0% on node 0, 50.0% on node 1"),
        ([[0, 0, 0, 0], [0, 0, 1, 1]], False, "pages moved"),
        ([[-2, -2, 0, 0], [-2, -2, 0, 0]], None, "no node for 2 of 4 pages (ENOENT"),
        ([1, 1], None, "move_pages refused, EPERM"),
    ],
)
def test_the_place_of_a_file_is_told_as_it_is(
    run, file: Path, monkeypatch: pytest.MonkeyPatch, answers: list[Any], ok: bool | None, told: str
) -> None:
    left = iter(answers)

    def nodes(mapped: Any) -> Any:
        answer = next(left)
        refused = (
            f"move_pages refused, {file_memory.pools.error_text(answer)}" if isinstance(answer, int) else ""
        )
        return refused or Counter(answer)

    monkeypatch.setattr(file_memory, "_nodes", nodes)
    metric = run(file, "read")
    proof = proofs(metric)["placement"]
    assert proof.ok is ok and told in proof.detail
    assert metric.state is (State.FAILED if ok is False else State.OK)


@pytest.mark.parametrize(
    ("fields", "size", "ok"),
    [
        ({"KernelPageSize": 4096}, 4096, True),
        ({"KernelPageSize": 2 << 20}, 2 << 20, True),
        ({"KernelPageSize": 4096, "ShmemPmdMapped": SIZE}, 2 << 20, True),
        ({"KernelPageSize": 4096, "FilePmdMapped": SIZE // 2}, None, None),
        ({}, None, None),
    ],
)
def test_the_page_size_is_that_of_the_mapping(
    run,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, int],
    size: int | None,
    ok: bool | None,
) -> None:
    monkeypatch.setattr(file_memory, "smaps_fields", lambda address: fields)
    metric = run(file, "read")
    assert metric.labels["page_size"] == size
    assert proofs(metric)["page_size"].ok is ok


def test_a_mapping_for_reading_is_never_written_to(file: Path) -> None:
    team = _native.Team(_native.allowed_cpus()[:1])
    descriptor = os.open(file, os.O_RDONLY)
    memory = _native.Pool.of_file(descriptor, SIZE, 4096)
    os.close(descriptor)
    part = (memory, 0, 4096, 1)
    for write in (
        lambda: team.touch([[part]]),
        lambda: team.prepare("read", [[part]]),
        lambda: team.run("write", "generic", [[part]], 1),
        lambda: team.build_cycle(0, part),
    ):
        with pytest.raises(ValueError, match="reading alone"):
            write()
    assert memory.count_resident() == (0, SIZE)
    memory.close()


def test_a_walk_that_loads_other_words_is_no_latency(file: Path) -> None:
    team = _native.Team(_native.allowed_cpus()[:1])
    descriptor = os.open(file, os.O_RDONLY)
    memory = _native.Pool.of_file(descriptor, SIZE, 4096)
    wanted = file_memory._first_words(descriptor, SIZE, lambda note: None)
    walk = scatter.Scatter(team, 0, (memory, 0, SIZE, 5), wanted)
    walk.walk(1000)
    assert walk.proof().ok is None
    walk.walk(walk.missing)
    assert walk.proof().ok is True
    with file.open("r+b") as out:
        out.seek(256 * 77)
        out.write(bytes(8))
    walk.walk(walk.blocks)
    assert walk.proof().ok is False
    os.close(descriptor)
    memory.close()


def test_the_words_of_all_blocks_are_summed_by_another_way(file: Path) -> None:
    data = file.read_bytes()[:SIZE]
    wanted = sum(int.from_bytes(data[at : at + 8], "little") for at in range(0, SIZE, 256)) % (1 << 64)
    with file.open("rb") as opened:
        assert file_memory._first_words(opened.fileno(), SIZE, lambda note: None) == wanted
