"""Counters as sysfs describes them: the layouts of Intel's and AMD's drivers, drawn from their sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.host import perf_events
from k3gate.host.files import Root

IMC = {
    "type": "24\n",
    "cpumask": "0,32\n",
    "format/event": "config:0-7\n",
    "format/umask": "config:8-15\n",
    "events/clockticks": "event=0x01,umask=0x00\n",
    "events/cas_count_read": "event=0x05,umask=0xcf\n",
    "events/cas_count_read.scale": "6.103515625e-5\n",
    "events/cas_count_read.unit": "MiB\n",
    "events/cas_count_write": "event=0x05,umask=0xf0\n",
    "events/cas_count_write.scale": "6.103515625e-5\n",
    "events/cas_count_write.unit": "MiB\n",
}
"""uncore_imc of Sapphire Rapids (arch/x86/events/intel/uncore_snbep.c)."""
UMC = {
    "type": "17\n",
    "cpumask": "0\n",
    "format/event": "config:0-7\n",
    "format/rdwrmask": "config:8-9\n",
}
"""amd_umc of Zen 4 (arch/x86/events/amd/uncore.c), which names no events."""
POWER = {
    "type": "9\n",
    "cpumask": "0,32\n",
    "format/event": "config:0-7\n",
    "events/energy-pkg": "event=0x02\n",
    "events/energy-pkg.scale": "2.3283064365386962890625e-10\n",
    "events/energy-pkg.unit": "Joules\n",
    "events/energy-psys": "event=0x05\n",
    "events/energy-psys.scale": "2.3283064365386962890625e-10\n",
    "events/energy-psys.unit": "Joules\n",
}


def machine(folder: Path, **units: dict[str, str]) -> Root:
    for unit, files in units.items():
        for name, text in files.items():
            path = folder / perf_events.FOLDER / unit / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return Root(folder)


def test_intels_controllers_count_lines_read_and_written(tmp_path: Path) -> None:
    root = machine(tmp_path, uncore_imc_0=IMC, uncore_imc_1=IMC, uncore_cha_0=IMC)
    found = perf_events.events(root)
    assert [(one.unit, one.kind) for one in found] == [
        *(("uncore_imc_0", "read"), ("uncore_imc_0", "written")),
        *(("uncore_imc_1", "read"), ("uncore_imc_1", "written")),
    ]
    assert found[0].type == 24
    assert [one.config for one in found[:2]] == [(0xCF05, 0, 0), (0xF005, 0, 0)]
    assert found[0].scale == pytest.approx(64)
    assert found[0].cpus == (0, 32)


def test_amds_controllers_have_events_of_perfs_own_table(tmp_path: Path) -> None:
    found = perf_events.events(machine(tmp_path, amd_umc_3=UMC))
    assert [(one.kind, one.config[0], one.scale) for one in found] == [
        ("read", 0x10A, 64),
        ("written", 0x20A, 64),
    ]


def test_data_sent_between_sockets_has_nine_flits_a_line(tmp_path: Path) -> None:
    upi = {name: text for name, text in IMC.items() if not name.startswith("events")}
    (found,) = perf_events.events(machine(tmp_path, uncore_upi_0=upi))
    assert (found.kind, found.config[0], found.scale) == ("linked", 0x0F02, pytest.approx(64 / 9))


def test_energy_is_of_packages_and_memory_and_not_of_the_platform_which_holds_them(tmp_path: Path) -> None:
    (found,) = perf_events.events(machine(tmp_path, power=POWER))
    assert (found.name, found.kind, found.scale) == ("energy-pkg", "energy", pytest.approx(2.0**-32))


@pytest.mark.parametrize(
    "change",
    [
        {"type": ""},
        {"type": "-1"},
        {"cpumask": "zero"},
        {"format/event": "config:0-99"},
        {"format/event": "config:7-0"},
        {"format/umask": "config9:8-15"},
        {"events/cas_count_read": "event=0x500,umask=0xcf", "events/cas_count_write": "event=x"},
        {"events/cas_count_read.scale": "many", "events/cas_count_write.scale": "nan"},
        {"events/cas_count_read.unit": "pages", "events/cas_count_write.unit": ""},
    ],
)
def test_a_damaged_description_is_no_counter(change: dict[str, str], tmp_path: Path) -> None:
    assert perf_events.events(machine(tmp_path, uncore_imc_0={**IMC, **change})) == ()


def test_a_term_may_lie_in_pieces_and_in_other_words() -> None:
    format_ = {"event": "config:0-7,32-35", "inv": "config:23", "filter": "config1:0-31"}
    assert perf_events.encode("event=0x123,inv,filter=0x5", format_) == (0x1_0080_0023, 5, 0)
    assert perf_events.encode("config=0x7,config2=9", {}) == (7, 0, 9)


@given(st.text(max_size=60), st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=3))
def test_any_text_is_words_or_a_value_error(terms: str, format_: dict[str, str]) -> None:
    try:
        words = perf_events.encode(terms, format_)
    except ValueError:
        return
    assert all(0 <= word < 2**64 for word in words)


def test_how_paranoid_the_kernel_is_may_be_negative_or_unknown(tmp_path: Path) -> None:
    assert perf_events.paranoid(Root(tmp_path)) is None
    path = tmp_path / perf_events.PARANOID
    path.parent.mkdir(parents=True)
    path.write_text("-1\n")
    assert perf_events.paranoid(Root(tmp_path)) == -1
