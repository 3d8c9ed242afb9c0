"""Which paths a CPU has, and what a kernel permits."""

from __future__ import annotations

import errno

import pytest

from k3gate.errors import UsageError
from k3gate.probes import _native
from k3gate.probes.sharing import choose_isa

AVX512 = ["avx2", "avx512", "avx512_vnni", "avx512_bf16"]


def presence(flags: list[str], error: int = 0) -> dict[str, tuple[str, int]]:
    return {row["path"]: (row["presence"], row["error"]) for row in _native.gemm_paths_of(flags, error)}


@pytest.mark.case("ISA-01")
def test_a_cpu_without_avx512_has_avx2_and_what_it_lacks_is_refused() -> None:
    found = presence(["avx2"])
    assert {path for path, state in found.items() if state[0] == "ok"} == {"avx2", "generic"}
    lacking = [row["path"] for row in _native.gemm_paths() if row["presence"] != "ok"]
    for path in lacking:
        for row in _native.gemm_variants():
            if row["path"] == path:
                with pytest.raises(ValueError, match=path):
                    _native.gemm_prove(row["format"], path, 1, 16, 64, 2, 1)


@pytest.mark.case("ISA-02")
@pytest.mark.parametrize("error", [0, errno.EINVAL, errno.EPERM])
def test_tiles_that_the_kernel_refuses_are_not_permitted_and_say_why(error: int) -> None:
    found = presence([*AVX512, "amx_tile", "amx_int8", "amx_bf16"], error)
    wanted = ("not_permitted", error) if error else ("ok", 0)
    assert found["amx_int8"] == found["amx_bf16"] == wanted
    assert found["avx512_vnni"] == ("ok", 0)


@pytest.mark.case("ISA-03")
def test_tiles_that_the_cpu_lacks_are_not_present_whatever_a_request_would_say() -> None:
    found = presence(AVX512, errno.EINVAL)
    assert found["amx_int8"] == found["amx_bf16"] == ("not_present", 0)
    assert found["avx512_vnni"] == found["avx512_bf16"] == ("ok", 0)


def test_paths_come_best_first_and_end_with_what_every_cpu_has() -> None:
    rows = _native.gemm_paths()
    assert rows[0]["path"] == "amx_int8"
    assert (rows[-1]["path"], rows[-1]["presence"]) == ("generic", "ok")
    for row in rows:
        if row["presence"] == "ok":
            assert row["base"] in _native.supported_isas()


def test_a_forced_path_of_products_forces_the_loads_that_go_with_it() -> None:
    for row in _native.gemm_paths():
        if row["presence"] == "ok":
            assert choose_isa(row["path"], "read") == row["base"]
        else:
            with pytest.raises(UsageError, match=row["path"]):
                choose_isa(row["path"], "read", UsageError)
