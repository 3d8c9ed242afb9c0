"""That a proof passes where a kernel is right, and fails for each mistake that is planted."""

from __future__ import annotations

import ctypes
import math

import pytest

from k3gate.probes import _native

HERE = {row["path"] for row in _native.gemm_paths() if row["presence"] == "ok"}
VARIANTS = [(row["format"], row["path"]) for row in _native.gemm_variants() if row["path"] in HERE]
QUICK = [variant for variant in VARIANTS if variant[1] != "generic"] or VARIANTS


@pytest.mark.parametrize("kind, path", VARIANTS)
def test_a_right_kernel_is_proven(kind: str, path: str) -> None:
    for tokens, spread in ((1, 2), (16, 2), (5, 30)):
        found = _native.gemm_prove(kind, path, tokens, 48, 640, spread, 7)
        assert found.ok and found.checked == tokens * 48
        assert 0 <= found.worst <= 1
        assert found.error < 0.05


@pytest.mark.parametrize("kind, path", VARIANTS)
@pytest.mark.parametrize("fault", ["scale", "nibbles", "row", "gain", "tail"])
def test_a_planted_error_is_found(kind: str, path: str, fault: str) -> None:
    for seed in range(4):
        found = _native.gemm_prove(kind, path, 3, 48, 3584, 2, seed, fault)
        assert not found.ok
        assert (found.unwritten > 0) == (fault == "row")


@pytest.mark.parametrize("kind, path", VARIANTS)
def test_a_whole_expert_is_proven_and_a_planted_error_found(kind: str, path: str) -> None:
    assert _native.gemm_prove_expert(kind, path, 2, 256, 128, 5).ok
    for fault in ("scale", "nibbles", "row", "gain", "tail"):
        assert not _native.gemm_prove_expert(kind, path, 2, 256, 128, 5, fault).ok, fault


@pytest.mark.parametrize("expert", [False, True])
@pytest.mark.parametrize("kind, path", QUICK)
def test_timed_outputs_are_recomputed_and_one_wrong_row_is_found(kind: str, path: str, expert: bool) -> None:
    cpus = _native.allowed_cpus()[:2]
    team = _native.Team(cpus)
    trial = _native.GemmTrial(kind, path, expert, 64, 64, 1 << 20, "small", 3)
    region = trial.run(team, 3, 5)
    assert [thread.bytes for thread in region.threads] == [int(5 * trial.bytes_per_item)] * len(cpus)
    assert trial.check(64, 1).ok
    last = ctypes.c_float.from_address(trial.output_address(len(cpus) - 1) + 4 * (2 * trial.columns + 17))
    right = last.value
    last.value = right * 1.5 + 1
    wrong = trial.check(64, 1)
    assert (wrong.ok, wrong.wrong, wrong.first_row, wrong.first_token) == (False, 1, 17, 2)
    last.value = math.nan
    assert (trial.check(64, 1).wrong, trial.check(1, 5).unwritten) == (1, 1)
    last.value = right
    assert trial.check(64, 1).ok


@pytest.mark.parametrize("kind, path", VARIANTS)
@pytest.mark.parametrize("depth", [3584, 12288])
def test_right_kernels_lie_far_within_what_rounding_explains(kind: str, path: str, depth: int) -> None:
    """A hundredth too large everywhere is within the bound of each output of BF16, and a thousand times beyond this."""
    found = _native.gemm_prove(kind, path, 1, 48, depth, 2, 7)
    assert found.ok and found.drift < 0.3
    wrong = _native.gemm_prove(kind, path, 1, 48, depth, 2, 7, "gain")
    assert not wrong.ok and wrong.drift > 100


@pytest.mark.parametrize("kind, path", [variant for variant in VARIANTS if variant[1].startswith("amx")])
def test_tiles_leave_large_outputs_whole(kind: str, path: str) -> None:
    """More than a MiB of whole lines goes past the caches."""
    team = _native.Team(_native.allowed_cpus()[:1])
    trial = _native.GemmTrial(kind, path, False, 2624, 64, 1 << 20, "small", 3)
    trial.run(team, 101, 1)
    assert trial.check(2624, 1).ok
    last = ctypes.c_float.from_address(trial.output_address(0) + 4 * (100 * trial.columns + 2623))
    last.value += 100
    assert trial.check(2624, 1).wrong == 1


def test_threads_read_other_items_and_are_checked_at_other_rows() -> None:
    """Two that read the same weights at once would share them in a cache."""
    cpus = _native.allowed_cpus()[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    team = _native.Team(cpus)
    trial = _native.GemmTrial("int8", "generic", False, 64, 64, 1 << 20, "small", 3)
    trial.run(team, 1, 1)
    outputs = [list((ctypes.c_float * 64).from_address(trial.output_address(n))) for n in range(2)]
    assert sorted(outputs[0]) != sorted(outputs[1]) or outputs[0] != outputs[1]
    large = _native.GemmTrial("int8", "generic", False, 4096, 64, 1 << 20, "small", 3)
    large.run(team, 1, 1)
    # One wrong output in each thread's buffer: in the same rows both would be found or neither.
    seen = set()
    for row in range(0, 4096, 16):
        places = [ctypes.c_float.from_address(large.output_address(n) + 4 * row) for n in range(2)]
        for number, place in enumerate(places):
            right, place.value = place.value, place.value + 100
            if not large.check(32, 5).ok:
                seen.add((number, row))
            place.value = right
    rows = [{row for number, row in seen if number == n} for n in range(2)]
    assert rows[0] != rows[1]


def test_items_differ_so_that_a_wrong_one_is_found() -> None:
    team = _native.Team(_native.allowed_cpus()[:1])
    trial = _native.GemmTrial("int8", "generic", False, 64, 64, 1 << 20, "small", 3)
    assert trial.items > 2
    outputs = []
    for _ in range(2):
        trial.run(team, 1, 1)
        outputs.append(list((ctypes.c_float * 64).from_address(trial.output_address(0))))
    assert outputs[0] != outputs[1] and sorted(outputs[0]) == sorted(outputs[1])


def test_counts_are_those_of_the_format() -> None:
    product = _native.GemmTrial("mxfp4", "generic", False, 96, 64, 1 << 20, "small", 3)
    assert product.bytes_per_item == 96 * 64 * 17 / 32
    assert product.flops_per_item(7) == 2 * 7 * 96 * 64
    expert = _native.GemmTrial("mxfp4", "generic", True, 96, 64, 1 << 20, "small", 3)
    assert expert.bytes_per_item == 3 * 96 * 64 * 17 / 32
    assert expert.flops_per_item(7) == 6 * 7 * 96 * 64
    assert product.packed_bytes >= product.bytes_per_item
    assert (
        _native.GemmTrial("q8_0", "generic", False, 96, 64, 1 << 20, "small", 3).bytes_per_item
        == 96 * 64 * 34 / 32
    )


def test_impossible_trials_are_refused() -> None:
    team = _native.Team(_native.allowed_cpus()[:1])
    trial = _native.GemmTrial("int8", "generic", False, 64, 64, 1 << 20, "small", 3)
    for tokens, calls in ((0, 1), (513, 1), (1, 0)):
        with pytest.raises(ValueError):
            trial.run(team, tokens, calls)
    with pytest.raises(ValueError):
        _native.GemmTrial("int8", "generic", False, 1 << 12, 1 << 12, 1 << 20, "small", 3)
    with pytest.raises(OSError):
        _native.GemmTrial("int8", "generic", False, 64, 64, 1 << 60, "small", 3)


@pytest.mark.parametrize("row", _native.gemm_peaks(), ids=lambda row: f"{row['path']}-{row['type']}")
def test_a_peak_runs_where_its_path_is_and_is_refused_elsewhere(row: dict[str, object]) -> None:
    team = _native.Team(_native.allowed_cpus()[:1])
    path, kind = str(row["path"]), str(row["type"])
    if path in HERE:
        region = _native.gemm_peak(team, path, kind, 1000)
        assert region.seconds > 0 and region.threads[0].value == 1000
    else:
        with pytest.raises(ValueError, match=path):
            _native.gemm_peak(team, path, kind, 1000)
