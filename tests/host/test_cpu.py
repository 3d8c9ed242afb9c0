"""Processors: ids, cores from sibling lists, caches, instruction sets, frequency settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate import host
from k3gate.records import State

MakeRoot = Any
CPU = "sys/devices/system/cpu"
STUB = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/types.h>
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *mask) {
    (void)pid;
    if (size < 192) { errno = EINVAL; return -1; }
    memset(mask, 0, size);
    memset(mask, 0xff, 192);
    return 0;
}
"""


def test_identity_comes_from_cpuinfo(make_root: MakeRoot) -> None:
    inventory = host.read(make_root())
    cpu = inventory.cpu
    assert (cpu.vendor, cpu.model) == ("GenuineIntel", "Intel(R) Xeon(R) Platinum 8480+")
    assert (cpu.architecture, cpu.family, cpu.model_number, cpu.stepping) == ("x86_64", 6, 143, 8)
    assert cpu.microcode == "0x2b0005c0"
    assert {"avx2", "avx512f", "avx512_vnni", "sse3"} <= set(cpu.isa)
    assert (cpu.amx.tile, cpu.amx.int8, cpu.amx.bf16) == (True, True, True)
    assert inventory.provenance["cpu.model"].source == "proc/cpuinfo"


def test_the_grant_of_amx_is_asked_on_the_live_machine_only(make_root: MakeRoot) -> None:
    inventory = host.read(make_root())
    assert inventory.cpu.amx.granted is None
    assert inventory.provenance["cpu.amx.granted"].state is State.NOT_RUN


def test_a_cpu_without_amx_is_known_to_have_none(make_root: MakeRoot) -> None:
    cpu = host.read(make_root({"proc/cpuinfo": make_root.cpuinfo(range(8), "lm avx2")})).cpu
    assert (cpu.amx.tile, cpu.amx.int8, cpu.amx.bf16, cpu.amx.granted) == (False, False, False, None)


def test_caches_are_counted_by_the_cpus_that_share_them(make_root: MakeRoot) -> None:
    caches = {(c.level, c.kind): c for c in host.read(make_root()).cpu.caches}
    assert caches[1, "data"].instances == 4
    assert caches[1, "data"].bytes == 48 * 1024
    last = caches[3, "unified"]
    assert (last.instances, last.shared_by, last.bytes) == (2, 4, 107_520 * 1024)
    assert last.cpus == ((0, 1, 4, 5), (2, 3, 6, 7))


@pytest.mark.parametrize("size", ["0K", "-32K", "", "lots", "99999999G"])
def test_a_cache_size_that_cannot_be_true_is_unknown(make_root: MakeRoot, size: str) -> None:
    root = make_root({f"{CPU}/cpu{n}/cache/index0/size": f"{size}\n" for n in range(8)})
    inventory = host.read(root)
    assert {cache.level for cache in inventory.cpu.caches} == {2, 3}
    assert "index0" in (inventory.provenance["cpu.caches"].reason or "")


@pytest.mark.case("TOP-05")
@pytest.mark.parametrize("named", [False, True])
def test_top_05_a_cpu_in_the_middle_is_offline(make_root: MakeRoot, named: bool) -> None:
    """TOP-05: present 0-111, online 0-109,111; also where a node still names the offline CPU."""
    files = make_root.processors([[cpu] for cpu in range(112)], described=False)
    files |= {f"{CPU}/online": "0-109,111\n", f"{CPU}/cpu110/topology/thread_siblings_list": "\n"}
    node = "0-111" if named else "0-109,111"
    files |= {"sys/devices/system/node/node0/cpulist": f"{node}\n"}
    inventory = host.read(make_root(files, {"proc/self/status": "Cpus_allowed_list:\t0-111\n"}, bare=True))
    assert inventory.cpu.offline == (110,)
    assert inventory.cpu.threads == inventory.cpu.cores == 111
    assert 110 not in inventory.numa.nodes[0].cpus
    found = {finding.code: finding for finding in inventory.findings}
    assert "110" in found["offline_cpus"].observed
    assert bool(inventory.numa.contradictions) is named
    assert ("node_names_offline_cpus" in found) is named
    assert "restricted_cpus" not in found


@pytest.mark.case("TOP-06")
@pytest.mark.parametrize("how", ["offline", "not allowed"])
def test_top_06_facts_come_from_the_first_usable_cpu(make_root: MakeRoot, how: str) -> None:
    """TOP-06: CPU 0 is off, or outside the allowed set; the facts are those of the whole machine."""
    groups = [[cpu] for cpu in range(16)]
    files = make_root.processors(groups)
    files |= {f"{CPU}/cpu{n}/cpufreq/cpuinfo_max_freq": "3800000\n" for n in range(1, 16)}
    files |= {f"{CPU}/cpu{n}/cpufreq/scaling_governor": "performance\n" for n in range(1, 16)}
    root = make_root(files, bare=True)
    if how == "offline":
        shutil.rmtree(root / CPU / "cpu0/topology")
        shutil.rmtree(root / CPU / "cpu0/cache")
        make_root.put(
            root,
            {
                f"{CPU}/online": "1-15\n",
                f"{CPU}/cpu0/online": "0\n",
                "proc/cpuinfo": make_root.cpuinfo(range(1, 16)),
            },
        )
    else:
        make_root.put(root, {"proc/self/status": "Cpus_allowed_list:\t1-15\n"})
    seen = host.read(root).cpu
    assert seen.model == "Intel(R) Xeon(R) Platinum 8480+"
    assert seen.max_hz == 3.8e9
    assert seen.governor == "performance"
    assert [(c.level, c.bytes) for c in seen.caches] == [(1, 49_152), (2, 2_097_152), (3, 110_100_480)]
    assert seen.sockets == 1
    assert seen.cores == (15 if how == "offline" else 16)


@pytest.mark.case("TOP-07")
def test_top_07_a_restricted_cpu_list_keeps_its_ids(make_root: MakeRoot) -> None:
    """TOP-07: allowed CPUs 3-4 stay 3 and 4, and the machine is marked restricted to 2 of 8."""
    inventory = host.read(make_root({"proc/self/status": "Name:\tx\nCpus_allowed_list:\t3-4\n"}))
    assert inventory.cpu.allowed == (3, 4)
    assert inventory.cpu.threads == 8
    assert inventory.limits.restricted is True
    finding = next(f for f in inventory.findings if f.code == "restricted_cpus")
    assert finding.title == "Restricted to 2 of 8 CPUs"
    assert "3-4" in finding.observed
    assert inventory.findings[0].severity == "high"


@pytest.mark.case("TOP-07")
def test_top_07_live_affinity_is_read(tmp_path: Path) -> None:
    """TOP-07: under a mask of one CPU the live machine shows that CPU alone."""
    cpu = max(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{cpu}}}); from k3gate import host; i = host.read(); "
        "print(i.cpu.allowed, i.limits.restricted, len(i.cpu.online))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    online = int(out.split()[-1])
    assert out == f"({cpu},) {online > 1} {online}\n"


@pytest.mark.case("TOP-08")
def test_top_08_ids_up_to_1535(make_root: MakeRoot) -> None:
    """TOP-08: 1536 CPUs in four nodes of 384."""
    files = make_root.processors([[cpu] for cpu in range(1536)], lambda cpu: cpu // 384, described=False)
    for node in range(4):
        files[f"sys/devices/system/node/node{node}/cpulist"] = f"{node * 384}-{node * 384 + 383}\n"
    files["proc/self/status"] = "Cpus_allowed_list:\t0-1535\n"
    inventory = host.read(make_root(files, bare=True))
    assert inventory.cpu.threads == inventory.cpu.cores == 1536
    assert inventory.cpu.allowed == tuple(range(1536))
    assert inventory.numa.nodes[3].cpus[-1] == 1535
    assert inventory.limits.restricted is False


@pytest.mark.case("TOP-08")
def test_top_08_the_affinity_mask_grows_until_the_kernel_takes_it(tmp_path: Path) -> None:
    """TOP-08: an affinity call that refuses masks below 192 bytes still gives all 1536 CPUs."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stub of sched_getaffinity")
    (tmp_path / "stub.c").write_text(STUB)
    stub = tmp_path / "stub.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", stub, tmp_path / "stub.c"], check=True)
    code = "from k3gate import host; a = host.read().cpu.allowed; print(len(a), a[-1])"
    out = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(stub)},
    ).stdout
    assert out == "1536 1535\n"


@pytest.mark.case("TOP-09")
@pytest.mark.parametrize(
    ("siblings", "cores", "smt"),
    [
        ([[n, n + 64] for n in range(64)], 64, True),
        ([[n, n + 1] for n in range(0, 32, 2)], 16, True),
        ([[n, n + 8] for n in range(8)], 8, True),
        ([[n] for n in range(12)], 12, False),
    ],
    ids=["far apart", "neighbours", "eight apart", "off"],
)
def test_top_09_cores_come_from_the_sibling_lists(
    make_root: MakeRoot, siblings: list[list[int]], cores: int, smt: bool
) -> None:
    """TOP-09: SMT numbering is read, never guessed."""
    cpu = host.read(make_root(make_root.processors(siblings, described=False), bare=True)).cpu
    assert cpu.cores == cores
    assert cpu.smt is smt
    assert cpu.siblings == tuple(tuple(group) for group in siblings)


@pytest.mark.case("TOP-09")
def test_top_09_without_sibling_lists_nothing_is_guessed(make_root: MakeRoot) -> None:
    """TOP-09: no list, no core count, and the reason is told."""
    inventory = host.read(make_root({"proc/cpuinfo": make_root.cpuinfo(range(8))}, bare=True))
    assert inventory.cpu.threads == 8
    assert (inventory.cpu.cores, inventory.cpu.smt) == (None, None)
    assert inventory.provenance["cpu.smt"].state is State.NOT_PRESENT


def frequency(driver: str, governor: str) -> dict[str, str | bytes | None]:
    files: dict[str, str | bytes | None] = {}
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/cpufreq/scaling_driver"] = f"{driver}\n"
        files[f"{CPU}/cpu{cpu}/cpufreq/scaling_governor"] = f"{governor}\n"
    return files


@pytest.mark.case("BW-07")
@pytest.mark.parametrize(
    ("driver", "governor", "code", "severity"),
    [
        ("acpi-cpufreq", "ondemand", "governor_slow", "medium"),
        ("acpi-cpufreq", "powersave", "governor_slow", "medium"),
        ("intel_pstate", "powersave", "governor_powersave", "low"),
        ("acpi-cpufreq", "performance", None, None),
    ],
)
def test_bw_07_governor(
    make_root: MakeRoot, driver: str, governor: str, code: str | None, severity: str | None
) -> None:
    """BW-07: a slow governor is a finding, intel_pstate's powersave a note; both are stored."""
    inventory = host.read(make_root(frequency(driver, governor)))
    assert (inventory.cpu.scaling_driver, inventory.cpu.governor) == (driver, governor)
    found = [(f.code, f.severity.value) for f in inventory.findings if f.code.startswith("governor")]
    assert found == ([(code, severity)] if code else [])


@pytest.mark.case("BW-07")
def test_bw_07_no_frequency_control_is_unknown_and_no_finding(make_root: MakeRoot) -> None:
    """BW-07: a VM without a cpufreq folder."""
    inventory = host.read(make_root())
    assert inventory.cpu.governor is None
    assert inventory.provenance["cpu.governor"].state is State.NOT_PRESENT
    assert not [f for f in inventory.findings if f.code.startswith("governor")]


@pytest.mark.case("STO-07")
def test_sto_07_a_decimal_comma_is_accepted(make_root: MakeRoot) -> None:
    """STO-07: 4600,0000 kHz-wise and load averages with commas are the same numbers."""
    point = {
        f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "4600000.000\n",
        "proc/loadavg": "0.15 0.10 0.05 1/80 9\n",
    }
    comma = {
        f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "4600000,000\n",
        "proc/loadavg": "0,15 0,10 0,05 1/80 9\n",
    }
    root = make_root(point)
    first = host.read(root)
    make_root.put(root, comma)
    assert host.read(root) == first
    assert first.cpu.max_hz == 4.6e9
    assert first.kernel.load_average == (0.15, 0.10, 0.05)


@pytest.mark.parametrize(("text", "boost"), [("1", True), ("0", False), ("maybe", None)])
def test_boost(make_root: MakeRoot, text: str, boost: bool | None) -> None:
    assert host.read(make_root({f"{CPU}/cpufreq/boost": f"{text}\n"})).cpu.boost is boost


def test_boost_of_intel_is_told_the_other_way_round(make_root: MakeRoot) -> None:
    inventory = host.read(make_root({f"{CPU}/intel_pstate/no_turbo": "1\n", f"{CPU}/cpufreq/boost": "1\n"}))
    assert inventory.cpu.boost is False
    assert inventory.provenance["cpu.boost"].source == f"{CPU}/intel_pstate/no_turbo"


@pytest.mark.parametrize("name", ["boost", "cpb"])
def test_boost_of_the_first_cpu_where_there_is_no_common_switch(make_root: MakeRoot, name: str) -> None:
    assert host.read(make_root({f"{CPU}/cpu0/cpufreq/{name}": "0\n"})).cpu.boost is False


def test_without_a_switch_boost_is_unknown_with_a_reason(make_root: MakeRoot) -> None:
    inventory = host.read(make_root())
    assert inventory.cpu.boost is None
    assert "neither intel_pstate nor cpufreq" in (inventory.provenance["cpu.boost"].reason or "")


def test_microcode_of_kernels_that_leave_it_out_of_cpuinfo(make_root: MakeRoot) -> None:
    without = make_root.cpuinfo(range(8)).replace("microcode\t: 0x2b0005c0\n", "")
    root = make_root({"proc/cpuinfo": without})
    first = host.read(root)
    assert first.cpu.microcode is None
    assert first.provenance["cpu.microcode"].state is State.NOT_PRESENT
    make_root.put(root, {f"{CPU}/cpu0/microcode/version": "0x710\n"})
    again = host.read(root)
    assert again.cpu.microcode == "0x710"
    assert again.provenance["cpu.microcode"].state is State.OK


def test_instruction_sets_of_x86(make_root: MakeRoot) -> None:
    """The names of AMX and AVX stay; SME of AMD is encrypted memory and no instruction set."""
    names = (
        "avx avx2 avx_vnni avx_vnni_int8 avx_ne_convert avx_ifma avx512f avx512bw avx512cd avx512dq avx512vl "
        "avx512_vnni avx512_bf16 avx512_fp16 avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512_vp2intersect "
        "amx_tile amx_int8 amx_bf16 amx_fp16 amx_complex fma f16c"
    )
    flags = f"lm pni abm avx512vbmi avx512ifma sme sev fp bf16 constant_tsc {names}"
    cpu = host.read(make_root({"proc/cpuinfo": make_root.cpuinfo(range(8), flags)})).cpu
    assert set(cpu.isa) == {*names.split(), "sse3", "lzcnt", "avx512_vbmi", "avx512_ifma"}


def test_instruction_sets_of_arm(make_root: MakeRoot) -> None:
    features = (
        "fp asimd evtstrm aes pmull crc32 atomics fphp asimdhp asimddp asimdfhm cpuid sve sve2 svei8mm svebf16 "
        "i8mm bf16 paca sme sme2"
    )
    text = (
        f"processor\t: 0\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        "CPU part\t: 0xd4f\n"
    )
    cpu = host.read(make_root({"proc/cpuinfo": text})).cpu
    assert {"asimd", "fp16", "fp16fml", "dotprod", "sve", "sve2", "i8mm", "bf16", "sme", "sme2"} <= set(
        cpu.isa
    )
    assert not {"asimddp", "evtstrm", "cpuid", "paca"} & set(cpu.isa)
    assert cpu.model == "Arm Neoverse-V2 (implementer 0x41, part 0xd4f)"


SETTINGS = (
    *("proc/cpuinfo", f"{CPU}/intel_pstate/no_turbo", f"{CPU}/cpufreq/boost", f"{CPU}/cpu0/cpufreq/cpb"),
    *(f"{CPU}/cpu0/microcode/version", f"{CPU}/cpu0/cpufreq/scaling_governor"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({name: st.text(max_size=200) | st.binary(max_size=200) for name in SETTINGS}))
def test_no_text_in_these_files_is_an_error(make_root: MakeRoot, files: dict[str, str | bytes]) -> None:
    encoded = {
        name: text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        for name, text in files.items()
    }
    host.document(host.read(make_root(encoded)))


def test_reading_twice_gives_the_same(make_root: MakeRoot) -> None:
    root = make_root()
    assert host.read(root) == host.read(root)
