"""The native module: kernels of every instruction set, page kinds, pinning, the pattern."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from k3gate.probes import _native, pools

BASE_PAGE = os.sysconf("SC_PAGESIZE")
MASK = (1 << 64) - 1


READERS = [
    (row["name"], row["isa"])
    for row in _native.kernels()
    if row["stores"] == "none" and row["isa"] in _native.supported_isas()
]


@pytest.mark.parametrize("name, isa", READERS)
def test_read_kernels_agree_with_numpy_on_odd_sizes_and_offsets(name: str, isa: str) -> None:
    import numpy as np

    data = np.random.default_rng(7).integers(0, 2**64, 10_000, dtype=np.uint64)
    dice = random.Random(11)
    sizes = [*range(20), 63, 64, 65, 127, 129, 1000, 4095, 4097, 8000, 8200]
    for words in sizes:
        for offset in (0, 1, 3, 7, 8, dice.randrange(900)):
            part = data[offset : offset + words]
            expected = int(part.sum(dtype=np.uint64)) if words else 0
            got = _native.checksum_at(name, isa, data.ctypes.data + 8 * offset, words)
            assert got == expected, (isa, words, offset)


def test_every_kernel_states_its_traffic_and_generic_is_always_there() -> None:
    rows = _native.kernels()
    assert {row["isa"] for row in rows if row["name"] == "read"} >= set(_native.supported_isas())
    assert _native.supported_isas()[-1] == "generic"
    for row in rows:
        if row["name"].startswith("read"):
            assert row["stores"] == "none"
            assert row["counted_bytes_per_word"] == row["bus_bytes_per_word"] == 8


def test_an_instruction_set_that_this_build_lacks_is_refused_not_executed() -> None:
    lacking = "neon" if "neon" not in _native.supported_isas() else "avx512"
    with pytest.raises(ValueError, match=lacking):
        _native.checksum_at("read", lacking, 64, 0)


def test_small_pages_stay_small_where_huge_ones_would_be_given() -> None:
    cpu = _native.allowed_cpus()[0]
    team = _native.Team([cpu])
    for pages, wanted in (("small", BASE_PAGE), ("transparent", pools.HUGE_PAGE)):
        filled = pools.build(32 << 20, pages, None, [cpu], team, lambda note: None)
        size, proof = pools.page_size([filled])
        filled.close()
        if pages == "transparent" and proof.ok is not True:
            pytest.skip(f"this kernel gave no huge pages: {proof.detail}")
        assert (size, proof.ok) == (wanted, True), proof


def test_placement_is_proven_and_a_wrong_node_is_seen() -> None:
    cpu = _native.allowed_cpus()[0]
    filled = pools.build(4 << 20, "small", 0, [cpu], _native.Team([cpu]), lambda note: None)
    if filled.bind_error:
        pytest.skip(f"mbind is refused here: {pools.error_text(filled.bind_error)}")
    proof = pools.placement([filled])
    assert proof.ok is True
    assert "node 0" in proof.detail
    filled.node = 1
    wrong = pools.placement([filled])
    assert wrong.ok is False
    assert "node 0" in wrong.detail and "wanted on node 1" in wrong.detail


def test_sampled_pages_of_untouched_memory_are_absent_not_on_a_node() -> None:
    refused, nodes = _native.Pool(4 << 20, "small").query_nodes(16)
    assert refused in (0, errno.EPERM, errno.ENOSYS)
    assert all(node == -errno.ENOENT for node in nodes)


def test_threads_are_pinned_and_an_absent_cpu_names_itself() -> None:
    cpus = _native.allowed_cpus()[:2]
    team = _native.Team(cpus)
    assert team.affinities() == [[cpu] for cpu in cpus]
    watch = pools.PinWatch(team)
    assert watch.proof().ok is True
    with pytest.raises(OSError, match="CPU 1535") as caught:
        _native.Team([1535])
    assert caught.value.errno == errno.EINVAL


def test_pattern_sum_is_what_the_kernels_read_and_a_flipped_bit_is_found() -> None:
    cpus = _native.allowed_cpus()[:2]
    team = _native.Team(cpus)
    filled = pools.build(6 << 20, "small", None, cpus, team, lambda note: None)
    parts = [[part] for part in filled.parts(len(cpus))]
    assert sum(part[0][2] for part in parts) == filled.bytes
    region = team.run("read", "generic", parts, 3)
    for thread, part in zip(region.threads, parts, strict=True):
        assert thread.value == 3 * pools.pattern_sum(part[0]) & MASK
        assert thread.bytes == 3 * part[0][2]
    first = min(thread.start for thread in region.threads)
    last = max(thread.end for thread in region.threads)
    assert region.seconds == pytest.approx(last - first)

    import ctypes

    word = ctypes.c_uint64.from_address(int(filled.pool.address) + 8 * 4321)
    word.value ^= 1 << 17
    _, right, wrong = pools.verify(team, [(filled, cpus)], lambda note: None)
    assert wrong == 1
    assert right < filled.bytes


def test_parts_outside_a_pool_and_impossible_sizes_are_refused() -> None:
    pool = _native.Pool(1 << 20, "small")
    team = _native.Team(_native.allowed_cpus()[:1])
    for offset, size in ((0, pool.bytes + 8), (pool.bytes, 8), (4, 8), (2**63, 8)):
        with pytest.raises((ValueError, IndexError)):
            team.run("read", "generic", [[(pool, offset, size, 0)]], 1)
    with pytest.raises(OSError):
        _native.Pool(1 << 60, "small")
    pool.close()
    with pytest.raises(IndexError):
        team.run("read", "generic", [[(pool, 0, 8, 0)]], 1)


def _compile(repository: Path, out: Path, compiler: str, *flags: str) -> None:
    native = repository / "probes" / "native"
    sources = [source for source in native.rglob("*.cpp") if source.name != "bindings.cpp"]
    sources.append(repository / "tests" / "native" / "check.cpp")
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", *flags]

    def compiled(source: Path) -> Path:
        made = out.with_name(f"{out.name}.{source.parent.name}.{source.stem}.o")
        done = subprocess.run([*command, "-c", str(source), "-o", str(made)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return made

    with ThreadPoolExecutor(os.cpu_count() or 1) as workers:
        objects = list(workers.map(compiled, sources))
    made = subprocess.run(
        [*command, *map(str, objects), "-pthread", "-o", str(out)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_native_code_is_clean_under_sanitizers(repository: Path, tmp_path: Path, sanitizer: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    out = tmp_path / "check"
    _compile(repository, out, "g++", "-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    ran = subprocess.run([str(out)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.long
def test_native_code_cross_compiles_and_holds_on_aarch64(repository: Path, tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
    if compiler is None or emulator is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64-static")
    out = tmp_path / "check"
    _compile(repository, out, compiler, "-O2", "-static")
    ran = subprocess.run([emulator, str(out)], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "ok neon\n"), ran.stdout + ran.stderr
