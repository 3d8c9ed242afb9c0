"""Products on a CPU without AVX-512: the AVX2 path gives right results, and nothing ends by SIGILL."""

from __future__ import annotations

import pytest
from machine import Answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(800), pytest.mark.xdist_group("emulated")]


@pytest.mark.case("ISA-01")
def test_isa_01_without_avx512_avx2_is_taken_and_right(memory_without_cpus: Answers) -> None:
    document = memory_without_cpus.json("products")
    assert document["paths"]["avx2"] == "ok" and document["paths"]["generic"] == "ok"
    assert {document["paths"][name] for name in ("avx512", "avx512_vnni", "amx_int8", "amx_bf16")} == {
        "not_present"
    }
    proofs = document["proofs"]
    assert {kind for kind, path, _ in proofs if path == "avx2"} == {"mxfp4", "int8", "q8_0", "bf16"}
    assert all(ok for *_, ok in proofs), proofs


@pytest.mark.case("ISA-01")
def test_isa_01_a_run_says_of_each_missing_path_that_it_is_not_present(memory_without_cpus: Answers) -> None:
    document = memory_without_cpus.json("peaks")
    found = {one["case"]: one for one in document["outcomes"] if one["probe"] == "gemm"}
    assert found["peak.amx_int8"]["state"] == found["peak.avx512"]["state"] == "not_present"
    assert "this CPU has no avx512" in found["peak.avx512"]["reason"]
    assert found["peak.core.avx2.int8"]["state"] in ("ok", "unstable")
    assert not any("SIGILL" in (one["reason"] or "") for one in found.values())
