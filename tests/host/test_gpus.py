"""GPUs from recordings of NVIDIA's library and from the files of amdgpu: facts, findings, and what cannot be asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate import host
from k3gate.host import capture, gpus, nvidia_smi, nvml, text
from k3gate.records import Gpu, Inventory, State
from tests.host.pci_drawings import AMD, GPU, NVIDIA, put_device
from tests.host.recorded_nvml import LOST, MISMATCH, UNKNOWN, RecordedNvml

MakeRoot = Any
RECORDING = Path(__file__).parent / "recordings" / "three-gpus.xml"
PLACES = ("0000:01:00.0", "0000:41:00.0", "0000:81:00.0")
GIB, MIB = 2**30, 2**20


def on_pci(root: Path, *addresses: str, node: int = 0, vendor: int = NVIDIA) -> Path:
    for address in addresses:
        bus = address.split(":")[1]
        put_device(
            root,
            f"pci0000:{bus}/{address}",
            code=GPU,
            vendor=vendor,
            node=node,
            driver="nvidia" if vendor == NVIDIA else None,
        )
    return root


def answered(root: Path, library: RecordedNvml) -> Inventory:
    """The inventory of a machine whose library answered so."""
    (root / "nvml.json").write_bytes(nvml.write(nvml.ask(library)))
    assert library.open == 0, "what was opened is closed"
    return host.read(root)


def by_address(inventory: Inventory) -> dict[str | None, Gpu]:
    return {one.address: one for one in inventory.gpus or ()}


def codes(inventory: Inventory) -> set[str]:
    return {finding.code for finding in inventory.findings}


def finding(inventory: Inventory, code: str) -> Any:
    (found,) = [one for one in inventory.findings if one.code == code]
    return found


def test_the_facts_of_each_gpu(make_root: MakeRoot) -> None:
    inventory = answered(on_pci(make_root(), *PLACES), RecordedNvml(RECORDING.read_bytes()))
    one = by_address(inventory)["0000:01:00.0"]
    assert (one.name, one.vendor, one.source, one.driver, one.node) == (
        "NVIDIA Example 48GB",
        "nvidia",
        "nvml",
        "550.00",
        0,
    )
    assert (one.memory_bytes, one.bar_bytes, one.shared_memory) == (49140 * MIB, 64 * GIB, False)
    assert (
        one.clocks == {"graphics": 210e6, "sm": 210e6, "memory": 405e6} and one.max_clocks["memory"] == 8001e6
    )
    assert (one.power_w, one.power_limit_w, one.power_default_w) == (22.5, 300.0, 300.0)
    assert (one.ecc, one.ecc_corrected, one.ecc_uncorrected, one.repair_failed) == (True, 0, 0, False)
    assert (one.temperature, one.performance_state, one.throttle) == (31.0, "P8", ("idle",))
    assert one.link is not None and (one.link.gt_per_s, one.link.best_gt_per_s) == (2.5, 16.0)
    page = text.page(inventory)
    assert "NVIDIA Example 48GB; 48.0 GiB (64.0 GiB within reach of the CPU); node 0" in " ".join(
        page.split()
    )


def test_findings_name_the_gpu_and_what_to_do(make_root: MakeRoot) -> None:
    inventory = answered(on_pci(make_root(), *PLACES), RecordedNvml(RECORDING.read_bytes()))
    assert finding(inventory, "gpu_power_limited").observed == "0000:41:00.0: 200 W of 300 W"
    assert finding(inventory, "gpu_bar_small").observed == "0000:41:00.0: 0.250 GiB of 48.0 GiB"
    assert finding(inventory, "gpu_memory_errors").observed == "0000:41:00.0: 1 uncorrected errors"
    assert finding(inventory, "gpu_memory_errors_before").observed == "0000:41:00.0: 12 corrected"
    narrow = finding(inventory, "link_narrow")
    assert narrow.observed == "GPU 0000:41:00.0 uses 8 of 16 lanes (node 0)"
    assert "gpu_slowed" not in codes(inventory) and "gpu_node_unknown" not in codes(inventory)


@pytest.mark.case("PCI-08")
def test_pci_08_a_partitioned_gpu_is_not_representative(make_root: MakeRoot) -> None:
    inventory = answered(on_pci(make_root(), *PLACES), RecordedNvml(RECORDING.read_bytes()))
    one = by_address(inventory)["0000:81:00.0"]
    assert one.partitioned and [part.memory_bytes for part in one.parts] == [12032 * MIB] * 3
    told = finding(inventory, "gpu_partitioned")
    assert told.title == "1 GPU is partitioned, not representative"
    assert "3 parts" in told.observed and "share one link" in told.why and "never changes" in told.remedy
    assert not by_address(inventory)["0000:01:00.0"].partitioned


@pytest.mark.case("PCI-09")
def test_pci_09_a_driver_of_another_version_is_not_no_gpu(make_root: MakeRoot) -> None:
    """Both NVML's error and the words of nvidia-smi; the GPUs are counted from PCI, and everything else is read."""
    words = b"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124\n"
    assert nvidia_smi.parse(words)["error"] == nvml.MISMATCH
    root = on_pci(make_root(), *PLACES)
    inventory = answered(root, RecordedNvml(RECORDING.read_bytes(), broken=MISMATCH))
    assert [one.state for one in inventory.gpus or ()] == [State.FAILED] * 3
    note = inventory.provenance["gpus"]
    assert note.state is State.FAILED and (note.reason or "").startswith(
        "3 GPUs on PCI, driver/library version mismatch: start the machine again"
    )
    told = finding(inventory, "gpu_unreachable")
    assert told.title == "3 GPUs cannot be asked" and told.remedy.startswith("Start the machine again")
    assert inventory.cpu.cores == 4
    (root / "nvml.json").write_bytes(nvml.write(nvidia_smi.parse(words)))
    assert host.read(root).gpus == inventory.gpus


@pytest.mark.case("PCI-10")
def test_pci_10_a_lost_gpu_is_counted_and_named(make_root: MakeRoot) -> None:
    library = RecordedNvml(RECORDING.read_bytes(), lost={1: UNKNOWN})
    inventory = answered(on_pci(make_root(), *PLACES), library)
    states = {one.address: one.state for one in inventory.gpus or ()}
    assert states == dict(zip(PLACES, (State.OK, State.FAILED, State.OK), strict=True))
    told = finding(inventory, "gpu_lost")
    assert told.title == "1 of 3 GPUs is lost"
    assert told.observed.startswith("0000:41:00.0: lost") and told.observed.endswith("2 of 3 answer")
    assert "3 on PCI, 2 answer" in (inventory.provenance["gpus"].reason or "")


def test_a_lost_gpu_that_pci_does_not_show_either_is_listed(make_root: MakeRoot) -> None:
    library = RecordedNvml(RECORDING.read_bytes(), lost={2: LOST})
    inventory = answered(on_pci(make_root(), *PLACES[:2]), library)
    lost = [one for one in inventory.gpus or () if one.state is State.FAILED]
    assert [(one.address, one.reason) for one in lost] == [(None, "lost: the GPU is lost")]


@pytest.mark.case("PCI-06")
def test_pci_06_text_in_place_of_a_number_is_a_reason_and_no_zero(make_root: MakeRoot) -> None:
    fields = (
        "NVIDIA X",
        "81920",
        "[N/A]",
        "44",
        "[Not Supported]",
        "[Unknown Error]",
        "P0",
        "0x0000000000000001",
    )
    assert [nvidia_smi.value(field) for field in fields[1:]] == [
        81920,
        {"error": "not applicable (N/A)"},
        44,
        {"error": "not supported"},
        {"error": "unknown error"},
        0,
        1,
    ]
    assert (nvidia_smi.value("81920 MiB"), nvidia_smi.value("97.31 W")) == (81920 * MIB, 97310)
    xml = RECORDING.read_text().replace("31 C", "[N/A]").replace("22.50 W", "[Not Supported]")
    xml = xml.replace("49140 MiB", "[Unknown Error]")
    root = on_pci(make_root(), *PLACES)
    (root / "nvidia-smi-q.xml").write_text(xml)
    one = (host.read(root).gpus or ())[0]
    assert (one.temperature, one.power_w, one.memory_bytes, one.power_limit_w) == (None, None, None, 300.0)
    assert {name: one.unknown[name] for name in ("temperature", "power_w", "memory_bytes")} == {
        "temperature": "not applicable (N/A)",
        "power_w": "not supported",
        "memory_bytes": "unknown error",
    }
    assert "memory unknown: unknown error" in " ".join(text.page(host.read(root)).split())


@pytest.mark.case("PCI-07")
def test_pci_07_a_gpu_with_the_machines_memory_is_counted_once(make_root: MakeRoot) -> None:
    xml = b"""<nvidia_smi_log><driver_version>580.00</driver_version><gpu id="0000000F:01:00.0">
    <product_name>NVIDIA GB10</product_name><fb_memory_usage><total>N/A</total><used>N/A</used></fb_memory_usage>
    <pci><pci_gpu_link_info><pcie_gen><max_link_gen>N/A</max_link_gen><current_link_gen>N/A</current_link_gen></pcie_gen>
    <link_widths><max_link_width>N/A</max_link_width><current_link_width>N/A</current_link_width></link_widths>
    </pci_gpu_link_info></pci><performance_state>P0</performance_state>
    <gpu_power_readings><power_draw>11.17 W</power_draw></gpu_power_readings></gpu></nvidia_smi_log>"""
    for write in (
        lambda root: (root / "nvidia-smi-q.xml").write_bytes(xml),
        lambda root: (root / "nvml.json").write_bytes(nvml.write(nvml.ask(RecordedNvml(xml)))),
    ):
        root = make_root({"proc/meminfo": "MemTotal: 127600748 kB\nMemAvailable: 118566368 kB\n"})
        write(root)
        inventory = host.read(root)
        (one,) = inventory.gpus or ()
        assert (one.shared_memory, one.memory_bytes, one.link, one.power_w) == (True, None, None, 11.17)
        assert inventory.memory.total_bytes == 127600748 * 1024
        assert "integrated interconnect, not evaluated" in " ".join(text.page(inventory).split())
        assert not codes(inventory) & {"gpu_bar_small", "gpu_node_unknown", "link_narrow"}


@pytest.mark.case("PCI-16")
@pytest.mark.parametrize(
    ("mask", "verdict", "word"),
    [
        (0x0, "pass", "nothing held"),
        (0x2, "note", "clocks set by an application"),
        (0x1, "idle", "the GPU was not busy"),
        (0x4, "note", "power limit"),
        (0x8, "fail", "hardware slowdown"),
        (0x20, "fail", "too hot, by the driver"),
        (0x40, "fail", "too hot, by the hardware"),
        (0x80, "fail", "power brake"),
        (0x44, "fail", "too hot, by the hardware"),
        (0x4000, "note", "reason 0x4000"),
    ],
)
def test_pci_16_reasons_for_lower_clocks_are_told_apart(mask: int, verdict: str, word: str) -> None:
    found = gpus.under_load(mask)
    assert found[0] == verdict and word in found[1]


@pytest.mark.case("PCI-20")
@pytest.mark.parametrize(
    ("readings", "watts", "source"),
    [
        (
            "<power_readings><power_draw>97.31 W</power_draw></power_readings>",
            97.31,
            "power_readings/power_draw",
        ),
        (
            "<gpu_power_readings><power_draw>97.31 W</power_draw></gpu_power_readings>"
            "<module_power_readings><power_draw>150 W</power_draw></module_power_readings>",
            97.31,
            "gpu_power_readings/power_draw",
        ),
        (
            "<gpu_power_readings><power_draw>N/A</power_draw><instant_power_draw>88.5 W</instant_power_draw>"
            "</gpu_power_readings>",
            88.5,
            "gpu_power_readings/instant_power_draw",
        ),
        ("<gpu_power_readings><power_draw>N/A</power_draw></gpu_power_readings>", None, None),
        ("", None, None),
    ],
)
def test_pci_20_watts_are_found_wherever_the_driver_tells_them(
    make_root: MakeRoot, readings: str, watts: float | None, source: str | None
) -> None:
    xml = f'<nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>X</product_name>{readings}</gpu></nvidia_smi_log>'
    root = make_root()
    (root / "nvidia-smi-q.xml").write_text(xml)
    (one,) = host.read(root).gpus or ()
    assert (one.power_w, one.power_source) == (watts, source)
    assert ("power_w" in one.unknown) == (watts is None)


@pytest.mark.case("PCI-22")
def test_pci_22_gpus_in_wsl_are_listed_and_their_links_are_not(make_root: MakeRoot) -> None:
    root = make_root(
        {
            "proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n",
            "sys/class/drm/version": "drm 1.1.0\n",
        }
    )
    inventory = answered(root, RecordedNvml(RECORDING.read_bytes()))
    assert inventory.machine.wsl is True
    assert len(inventory.gpus or ()) == 3 and inventory.pci is None
    page = text.page(inventory)
    assert "WSL" in page and page.count("NVIDIA Example 48GB") == 3


def test_nvlinks_and_what_lies_between_gpus(make_root: MakeRoot) -> None:
    links = ((1, "00000000:41:00.0"), (1, "00000000:41:00.0"), (0, "00000000:FF:FF.0"))
    root = on_pci(make_root(), *PLACES)
    inventory = answered(root, RecordedNvml(RECORDING.read_bytes(), nvlinks=links, level=40, access=0))
    one = by_address(inventory)[PLACES[0]]
    two = [(True, "0000:41:00.0", 26.562e9)] * 2
    assert [(link.active, link.peer, link.bytes_per_s) for link in one.nvlinks[:2]] == two
    assert one.peers == dict.fromkeys(PLACES[1:], "the node") and set(one.peer_access.values()) == {"ok"}
    assert "1 of 3" in finding(inventory, "nvlink_down").observed
    refused = answered(root, RecordedNvml(RECORDING.read_bytes(), level=50, access=1))
    told = finding(refused, "peer_copies_refused").observed
    assert (
        told.startswith("0000:01:00.0 to 0000:41:00.0: the chipset does not support it")
        and "and 3 more" in told
    )


def test_without_the_library_a_gpu_is_there_and_the_cure_is_told(make_root: MakeRoot) -> None:
    root = on_pci(make_root(), "0000:01:00.0")
    (root / "nvml.json").write_bytes(nvml.write({"version": 1, "error": nvml.NO_LIBRARY}))
    inventory = host.read(root)
    (one,) = inventory.gpus or ()
    assert one.state is State.NOT_PRESENT and "nvidia-ml-py" in (one.reason or "")
    assert inventory.provenance["gpus"].state is State.NOT_PRESENT


def test_answers_that_a_capture_lacks_are_told(make_root: MakeRoot) -> None:
    inventory = host.read(on_pci(make_root(), "0000:01:00.0"))
    (one,) = inventory.gpus or ()
    assert one.state is State.NOT_RUN and one.node == 0


def test_a_capture_keeps_the_answers_without_serial_numbers(make_root: MakeRoot, tmp_path: Path) -> None:
    root = on_pci(make_root(), *PLACES)
    (root / "nvidia-smi-q.xml").write_bytes(RECORDING.read_bytes())
    done = capture.write(tmp_path / "a", root)
    assert done.differs == ()
    assert host.read(tmp_path / "a").gpus == host.read(root).gpus
    import gzip

    written = gzip.decompress((tmp_path / "a").read_bytes()).lower()
    assert b"example 48gb" in written
    assert b"secret" not in written and b"5ec4e700" not in written


def test_a_library_that_hangs_or_crashes_costs_its_own_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(code: str) -> Callable[..., Any]:
        start = nvml.subprocess.Popen
        return lambda command, **given: start([command[0], "-c", code], **given)

    with monkeypatch.context() as patch:
        patch.setattr(nvml.subprocess, "Popen", instead("import os; os.abort()"))
        assert "ended the process" in nvml.ask_apart()["error"]
    with monkeypatch.context() as patch:
        patch.setattr(nvml.subprocess, "Popen", instead("import time; time.sleep(60)"))
        patch.setattr(nvml, "SECONDS", 0.2)
        assert "no answer" in nvml.ask_apart()["error"]


def test_the_library_of_this_machine_is_asked_in_the_real_way() -> None:
    """Where there is no driver, which is so wherever this runs without a GPU, that is what comes back."""
    found = nvml.ask_apart()
    assert found["version"] == nvml.VERSION
    assert "devices" in found or isinstance(found["error"], str)
    assert nvml.parse(nvml.write(found)) == found


NAMES = (
    "devices",
    "error",
    "version",
    "name",
    "address",
    "memory",
    "rows",
    "parts",
    "mig",
    "nvlinks",
    "peers",
)
ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda each: st.lists(each) | st.dictionaries(st.sampled_from(NAMES), each),
    max_leaves=15,
)


@given(ANYTHING)
def test_any_document_is_survived(found: Any) -> None:
    told = {"version": 1, "devices": found if isinstance(found, list) else [found]}
    for one in gpus._nvidia([], told):
        assert one.memory_bytes is None or one.memory_bytes > 0


def test_a_gpu_of_amd_by_the_files_of_its_driver(make_root: MakeRoot) -> None:
    root = make_root()
    more = {
        "mem_info_vram_total": f"{192 * GIB}\n",
        "mem_info_vram_used": "1048576\n",
        "mem_info_vis_vram_total": f"{192 * GIB}\n",
        "current_compute_partition": "CPX\n",
        "current_memory_partition": "NPS4\n",
        "pp_dpm_sclk": "0: 132Mhz *\n1: 2100Mhz\n",
        "pcie_replay_count": "7\n",
        "product_name": "AMD Instinct MI300X\n",
        "hwmon/hwmon3/power1_average": "141000000\n",
        "hwmon/hwmon3/power1_cap": "500000000\n",
        "hwmon/hwmon3/power1_cap_default": "750000000\n",
        "hwmon/hwmon3/temp1_input": "44000\n",
        "ras/umc_err_count": "ue: 2\nce: 5\n",
        "unique_id": "SECRET\n",
    }
    put_device(
        root,
        "pci0000:05/0000:05:00.0",
        code=0x120000,
        vendor=AMD,
        driver="amdgpu",
        node=1,
        now=(32.0, 16),
        best=(32.0, 16),
        more=more,
    )
    inventory = host.read(root)
    (one,) = inventory.gpus or ()
    assert (one.name, one.vendor, one.source, one.node) == ("AMD Instinct MI300X", "amd", "amdgpu", 1)
    assert (one.memory_bytes, one.bar_bytes, one.power_w, one.temperature) == (
        192 * GIB,
        192 * GIB,
        141.0,
        44.0,
    )
    assert (one.clocks, one.max_clocks) == ({"graphics": 132e6}, {"graphics": 2100e6})
    assert (one.partitioned, one.partition_mode, one.replays) == (True, "CPX/NPS4", 7)
    assert (one.ecc_corrected, one.ecc_uncorrected) == (5, 2)
    assert {"gpu_partitioned", "gpu_power_limited", "gpu_memory_errors"} <= codes(inventory)
    assert "SECRET" not in str(host.document(inventory))


def test_a_gpu_without_its_driver_says_so(make_root: MakeRoot) -> None:
    root = on_pci(make_root(), "0000:05:00.0", vendor=AMD)
    (one,) = host.read(root).gpus or ()
    assert one.state is State.NOT_PRESENT and "modprobe amdgpu" in (one.reason or "")


def test_a_machine_without_a_gpu_has_none(make_root: MakeRoot) -> None:
    root = make_root()
    put_device(root, "pci0000:00/0000:00:1f.0", code=0x060100)
    inventory = host.read(root)
    assert inventory.gpus == () and inventory.provenance["gpus"].state is State.OK
