"""The SMART log of NVMe drives, and drives that are none."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate import host
from k3gate.host import capture, smart
from k3gate.host.files import Root
from k3gate.records import State

MakeRoot = Any


def log(
    *,
    composite: int = 50,
    sensors: tuple[int, ...] = (50, 90),
    warning: int = 0,
    critical: int = 0,
    **counts: int,
) -> bytes:
    """A SMART log; temperatures in degC, times in minutes."""
    raw = bytearray(512)
    raw[0], raw[3], raw[5] = counts.get("flags", 0), 100, counts.get("used", 3)
    struct.pack_into("<H", raw, 1, composite + 273)
    raw[160:176] = counts.get("media", 0).to_bytes(16, "little")
    struct.pack_into("<II", raw, 192, warning, critical)
    for place, sensor in enumerate(sensors):
        struct.pack_into("<H", raw, 200 + 2 * place, sensor + 273)
    throttles = [counts.get(name, 0) for name in ("light", "heavy", "light_s", "heavy_s")]
    struct.pack_into("<IIII", raw, 216, *throttles)
    return bytes(raw)


def machine(make_root: MakeRoot, content: bytes | None) -> Path:
    files: dict[str, Any] = {
        "sys/class/nvme/nvme0/nvme0n1/size": "2048\n",
        "sys/class/nvme/nvme0/model": "Disk\n",
    }
    if content is not None:
        files["smart-logs/nvme0"] = content
    folder: Path = make_root(files)
    return folder


@pytest.mark.case("NVM-07")
def test_a_hot_sensor_is_shown_beside_a_cool_one_and_counters_decide(make_root: MakeRoot) -> None:
    before = smart.parse(log(composite=50, sensors=(50, 90), warning=0))
    after = smart.parse(log(composite=50, sensors=(50, 90), warning=3))
    assert (before.temperature, before.sensors) == (50.0, {"1": 50.0, "2": 90.0})
    assert (before.warning_seconds, after.warning_seconds) == (0, 180)
    found = host.read(machine(make_root, log(warning=3, heavy=2, heavy_s=70)))
    assert found.storage is not None and found.storage.drives[0].health is not None
    assert found.storage.drives[0].health.heavy_throttles == 2
    (finding,) = [one for one in found.findings if one.code == "drive_throttled"]
    assert finding.observed == "nvme0n1: 180 s above its warning temperature, 70 s heavily throttled"


def test_a_sound_drive_is_no_finding_and_a_worn_one_is(make_root: MakeRoot) -> None:
    def codes(content: bytes) -> set[str]:
        return {finding.code for finding in host.read(machine(make_root, content)).findings}

    assert not codes(log()) & {"drive_throttled", "drive_unwell"}
    for bad in (log(media=1), log(flags=4), log(used=97)):
        assert "drive_unwell" in codes(bad)


def test_who_may_not_ask_gets_no_zero(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Root, controller: str) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Root, "smart_log", refuse)
    found = host.read(machine(make_root, None))
    assert found.storage is not None and found.storage.drives[0].health is None
    note = found.provenance["storage.drives.nvme0n1.health"]
    assert note.state is State.NOT_PERMITTED and "run as root" in (note.reason or "")


def test_a_capture_keeps_the_log_and_the_refusal(
    make_root: MakeRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = machine(make_root, log(warning=2))
    assert capture.write(tmp_path / "a", folder).differs == ()
    read = host.read(tmp_path / "a").storage
    assert read is not None and read.drives[0].health is not None
    assert read.drives[0].health.warning_seconds == 120

    def refuse(self: Root, controller: str) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Root, "smart_log", refuse)
        capture.write(tmp_path / "b", folder)
    note = host.read(tmp_path / "b").provenance["storage.drives.nvme0n1.health"]
    assert note.state is State.NOT_PERMITTED


@given(st.binary(max_size=600))
def test_any_bytes_are_a_log_or_are_refused(raw: bytes) -> None:
    try:
        found = smart.parse(raw)
    except ValueError:
        assert len(raw) < smart.BYTES
        return
    assert all(-273 < value <= 227 for value in found.sensors.values())
    assert found.spare_percent is None or 0 <= found.spare_percent <= 100


def test_devices_without_a_medium_or_made_of_others_are_no_drives(make_root: MakeRoot) -> None:
    files: dict[str, str] = {}
    for name, size, more in (
        ("sda", "488397168", {"device/vendor": "ATA\n", "device/model": "ST9250610NS\n"}),
        ("sdb", "0", {"removable": "1\n"}),
        ("sr0", "2048", {}),
        ("loop0", "2048", {}),
        ("zram0", "2048", {}),
        ("nvme0c0n1", "2048", {"hidden": "1\n"}),
        ("md0", "2048", {"slaves/sda": None}),
        ("vda", "2048", {}),
    ):
        files[f"sys/block/{name}/size"] = f"{size}\n"
        files |= {f"sys/block/{name}/{key}": value or "" for key, value in more.items()}
    found = host.read(make_root(files)).storage
    assert found is not None
    assert [(drive.name, drive.kind) for drive in found.drives] == [("sda", "sata"), ("vda", "virtio")]


def test_a_machine_without_block_devices_in_its_files_tells_why(make_root: MakeRoot) -> None:
    found = host.read(make_root())
    assert found.storage is None
    assert found.provenance["storage.drives"].state is State.NOT_PRESENT
