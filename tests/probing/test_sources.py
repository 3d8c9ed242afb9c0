"""What the monitor reads of a machine, drawn as a folder of files, and who else used it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3gate.host.bmc import BmcReadings, reading
from k3gate.probing import bystanders, sources
from k3gate.probing.monitor import Source
from k3gate.records import (
    Drive,
    DriveHealth,
    Inventory,
    PowerZone,
    SensorReading,
    Sensors,
    State,
    Storage,
)
from tests.host.test_drives import log

RAPL = "sys/class/powercap/intel-rapl:0/energy_uj"
TEMPERATURE = "sys/class/hwmon/hwmon0/temp1_input"


def put(root: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def machine(make_inventory: Any) -> Inventory:
    package = SensorReading(
        id="coretemp coretemp.0 Package id 0",
        chip="coretemp",
        label="Package id 0",
        quantity="temperature",
        unit="degC",
        role="cpu",
        of="0",
        value=50.0,
        maximum=82.0,
        critical=92.0,
        source=TEMPERATURE,
    )
    zone = PowerZone("rapl package-0", "package-0", 0, 262143.32885, source=RAPL)
    drive = Drive("0000:41:00.0 namespace 1", "nvme0n1", controller="nvme0", health=DriveHealth())
    made: Inventory = make_inventory(
        "vm", sensors=Sensors(readings=(package,), power_zones=(zone,)), storage=Storage(drives=(drive,))
    )
    return made


def built(inventory: Inventory, root: Path, **more: Any) -> dict[str, Source]:
    return {source.name: source for source in sources.build(inventory, root=str(root), **more)}


def told(source: Source, now: float) -> dict[str, float | None]:
    return {quantity.name: value for quantity, value in source.read(now).items()}


@pytest.mark.case("THM-01")
def test_power_comes_of_energy_also_where_the_counter_wraps(machine: Inventory, tmp_path: Path) -> None:
    put(tmp_path, **{RAPL: "262143000000\n"})
    source = built(machine, tmp_path)["energy counters"]
    assert told(source, 10.0) == {}
    put(tmp_path, **{RAPL: "1000000\n"})
    assert told(source, 11.0)["power"] == pytest.approx(1.32885)
    put(tmp_path, **{RAPL: "301000000\n"})
    (quantity,) = source.read(13.0)
    assert quantity.labels == {"sensor": "rapl package-0", "role": "cpu", "of": "0", "domain": "package-0"}


@pytest.mark.case("THM-02")
def test_a_counter_that_may_not_be_read_is_no_source(
    machine: Inventory, make_inventory: Any, tmp_path: Path
) -> None:
    refused = PowerZone(
        "rapl package-0", "package-0", 0, state=State.NOT_PERMITTED, reason="needs root", source=RAPL
    )
    bare = make_inventory("vm", sensors=Sensors(power_zones=(refused,)))
    assert "energy counters" not in built(bare, tmp_path)


@pytest.mark.case("THM-07")
def test_a_temperature_that_cannot_be_true_is_a_gap(machine: Inventory, tmp_path: Path) -> None:
    put(tmp_path, **{TEMPERATURE: "61000\n"})
    source = built(machine, tmp_path)["processors' heat"]
    (quantity,) = source.read(0.0)
    assert (quantity.name, quantity.unit, quantity.labels["limit"]) == ("temperature", "degC", 82.0)
    assert source.read(0.0) == {quantity: 61.0}
    for bad in ("4294948300\n", "hot\n"):
        put(tmp_path, **{TEMPERATURE: bad})
        assert source.read(0.0) == {quantity: None}
    (tmp_path / TEMPERATURE).unlink()
    put(tmp_path, **{TEMPERATURE: "1\n"})
    source.close()
    assert source.read(0.0) == {quantity: 0.001}


@pytest.mark.case("NVM-07")
def test_a_drive_that_throttles_counts(machine: Inventory, tmp_path: Path) -> None:
    put(tmp_path, **{"smart-logs/nvme0": log(warning=0)})
    source = built(machine, tmp_path)["drives' logs"]
    assert source.ends
    before = {quantity.labels["kind"]: value for quantity, value in source.read(0.0).items()}
    put(tmp_path, **{"smart-logs/nvme0": log(warning=3, light=1, light_s=20)})
    after = {quantity.labels["kind"]: value for quantity, value in source.read(0.0).items()}
    assert before == {"throttle": 0, "uncorrected": 0}
    assert after == {"throttle": 180 + 1 + 20, "uncorrected": 0}


def test_a_drive_that_is_gone_has_no_more_points(machine: Inventory, tmp_path: Path) -> None:
    put(tmp_path, **{"smart-logs/nvme0": log()})
    source = built(machine, tmp_path)["drives' logs"]
    (tmp_path / "smart-logs/nvme0").unlink()
    assert source.read(0.0) == {}


@pytest.mark.case("NVM-11")
def test_busy_processors_and_busy_drives_are_told_apart(machine: Inventory, tmp_path: Path) -> None:
    disks = " 259 0 nvme0n1 10 0 {} 5 20 0 {} 9 0 0 0 0 0 0 0\n   7 0 loop0 9 0 9 9 9 0 9 9 0 0 0\n"
    put(tmp_path, **{"proc/stat": "cpu 0 0 0 100 0 0 0 0 0 0\n", "proc/diskstats": disks.format(0, 0)})
    found = built(machine, tmp_path)
    assert told(found["processors"], 0.0) == told(found["drives' traffic"], 0.0) == {}
    put(
        tmp_path,
        **{"proc/stat": "cpu 70 0 10 110 0 0 0 10 0 0\n", "proc/diskstats": disks.format(8000, 2000)},
    )
    assert told(found["processors"], 1.0) == {"cpu.busy": 0.8, "cpu.stolen": 0.1}
    assert told(found["drives' traffic"], 2.0) == {
        "disk.read": 8000 * 512 / 2,
        "disk.written": 2000 * 512 / 2,
    }


def test_errors_of_memory_and_links_are_counted(machine: Inventory, tmp_path: Path) -> None:
    put(
        tmp_path,
        **{
            "sys/devices/system/edac/mc/mc0/ce_count": "4\n",
            "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
            "sys/bus/pci/devices/0000:41:00.0/aer_dev_correctable": "TOTAL_ERR_COR 2\n",
        },
    )
    source = built(machine, tmp_path)["errors"]
    assert {str(quantity.labels["counter"]): value for quantity, value in source.read(0.0).items()} == {
        "edac mc0 corrected": 4,
        "edac mc0 uncorrected": 0,
        "aer 0000:41:00.0 correctable": 2,
    }


@pytest.mark.case("THM-14")
def test_a_bmc_over_the_network_is_a_source_with_a_slow_grid(machine: Inventory, tmp_path: Path) -> None:
    class Remote:
        closed = False
        told = BmcReadings(State.OK, None, (reading("redfish", "System", "power", "W", 464.0),))

        def read(self) -> BmcReadings:
            return self.told

        def close(self) -> None:
            self.closed = True

    remote = Remote()
    source = built(machine, tmp_path, bmc=remote)["BMC"]
    assert source.period_s == 10.0
    assert list(source.read(0.0).values()) == [464.0]
    remote.told = BmcReadings(State.FAILED, "unavailable: the BMC took longer than 20 s")
    with pytest.raises(OSError, match="took longer"):
        source.read(0.0)
    source.interrupt()
    assert remote.closed


def test_a_machine_that_shows_nothing_has_no_source(make_inventory: Any, tmp_path: Path) -> None:
    assert sources.build(make_inventory("vm"), root=str(tmp_path)) == ()


def process(root: Path, number: int, name: str, ticks: int, start: int = 7) -> None:
    words = ["S", "1", *["0"] * 9, str(ticks), "0", *["0"] * 6, str(start), "0"]
    put(root, **{f"proc/{number}/stat": f"{number} ({name}) {' '.join(words)}\n"})


def test_others_are_named_by_what_they_used(tmp_path: Path) -> None:
    disks = " 259 0 nvme0n1 10 0 {} 5 20 0 0 9 0 0 0 0 0 0 0\n"
    io = "rchar: 5\nread_bytes: {}\nwrite_bytes: 0\ncancelled_write_bytes: 0\n"
    put(
        tmp_path,
        **{
            "proc/diskstats": disks.format(0),
            "proc/self/io": io.format(0),
            "proc/loadavg": "0.50 0.1 0.2 3/99 1\n",
        },
    )
    process(tmp_path, 10, "own", 0)
    process(tmp_path, 11, "a) (b", 100)
    process(tmp_path, 12, "reused", 900, start=1)
    before = bystanders.look(["nvme0n1"], str(tmp_path))
    assert before.load == 0.5
    put(tmp_path, **{"proc/diskstats": disks.format(100_000), "proc/self/io": io.format(11_200_000)})
    process(tmp_path, 10, "own", 5000)
    process(tmp_path, 11, "a) (b", 400)
    process(tmp_path, 12, "reused", 50, start=99)
    found = bystanders.between(before, bystanders.look(["nvme0n1"], str(tmp_path)), own=10, hertz=100)
    assert found.names == (("a) (b", 3.0), ("reused", 0.5))
    assert found.disk_bytes == 100_000 * 512 - 11_200_000
    assert found.loads == (0.5, 0.5)


def test_a_system_that_shows_no_processes_is_no_error(tmp_path: Path) -> None:
    look = bystanders.look(None, str(tmp_path))
    assert bystanders.between(look, look, own=1).names == () and look.moved is None
