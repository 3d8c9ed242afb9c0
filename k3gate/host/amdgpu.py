"""A GPU of AMD's by the files that its driver amdgpu shows beside those of PCI. Its serial number stays unread."""

from __future__ import annotations

import re

from attrs import evolve

from k3gate.host import parsing, pcie
from k3gate.host.files import Root
from k3gate.records import Gpu, PciDevice, State

_CLOCK = re.compile(r"(?m)^\d{1,2}: (\d{1,6})Mhz( \*)?\s*$", re.ASCII | re.I)
_CLOCKS = {"graphics": "pp_dpm_sclk", "memory": "pp_dpm_mclk"}
_MODE = re.compile(r"[A-Z0-9]{2,8}", re.ASCII)
_DRIVER = "sys/module/amdgpu/version"


def read(root: Root, device: PciDevice, bare: Gpu) -> Gpu:
    """What it tells beside what PCI shows, which is `bare`; without the driver that alone, with the reason."""
    folder = root.real(f"{pcie.DEVICES}/{device.address}") or f"{pcie.DEVICES}/{device.address}"
    memory = pcie.number(root, f"{folder}/mem_info_vram_total")
    if memory is None:
        why = (
            "its driver amdgpu does not show its memory"
            if device.driver == "amdgpu"
            else "its driver is not loaded"
        )
        cure = "load it with `sudo modprobe amdgpu`"
        return evolve(bare, state=State.NOT_PRESENT, reason=f"{why}: {cure}")
    sensors = next((f"{folder}/hwmon/{name}" for name in root.names(f"{folder}/hwmon")), None)
    compute, banks = (
        _mode(root, f"{folder}/current_compute_partition"),
        _mode(root, f"{folder}/current_memory_partition"),
    )
    power, source = None, None
    for name in ("power1_average", "power1_input"):
        found = _scaled(root, sensors, name, 1e-6)
        if found is not None:
            power, source = found, name
            break
    return evolve(
        bare,
        name=parsing.words(root.line(f"{folder}/product_name")) or device.device,
        source="amdgpu",
        driver=parsing.words(root.line(_DRIVER)) or device.driver,
        memory_bytes=memory or None,
        memory_used_bytes=pcie.number(root, f"{folder}/mem_info_vram_used"),
        # An APU keeps a small part of the machine's memory for itself and uses the rest of it too.
        shared_memory=False,
        bar_bytes=pcie.number(root, f"{folder}/mem_info_vis_vram_total") or device.bar_bytes,
        clocks={
            name: value
            for name, file in _CLOCKS.items()
            if (value := _clock(root, f"{folder}/{file}", now=True))
        },
        max_clocks={
            name: value
            for name, file in _CLOCKS.items()
            if (value := _clock(root, f"{folder}/{file}", now=False))
        },
        power_w=power,
        power_source=source,
        power_limit_w=_scaled(root, sensors, "power1_cap", 1e-6),
        power_default_w=_scaled(root, sensors, "power1_cap_default", 1e-6),
        power_max_w=_scaled(root, sensors, "power1_cap_max", 1e-6),
        temperature=_scaled(root, sensors, "temp1_input", 1e-3),
        ecc_corrected=_errors(root, folder, "ce"),
        ecc_uncorrected=_errors(root, folder, "ue"),
        partitioned=None if compute is None else compute != "SPX",
        partition_mode=None if compute is None else "/".join(mode for mode in (compute, banks) if mode),
        replays=pcie.number(root, f"{folder}/pcie_replay_count"),
    )


def _mode(root: Root, path: str) -> str | None:
    text = root.line(path) or ""
    return text if _MODE.fullmatch(text) else None


def _scaled(root: Root, folder: str | None, name: str, scale: float) -> float | None:
    found = None if folder is None else pcie.number(root, f"{folder}/{name}")
    return None if found is None else found * scale


def _clock(root: Root, path: str, *, now: bool) -> float | None:
    """Hz: that marked with a star, or the highest."""
    levels = [(float(value) * 1e6, bool(star)) for value, star in _CLOCK.findall(root.line(path) or "")]
    chosen = [value for value, star in levels if star or not now]
    return max(chosen, default=None)


def _errors(root: Root, folder: str, kind: str) -> int | None:
    """Counts of all blocks (ras/umc_err_count and others have lines "ue: 0", "ce: 0")."""
    found = None
    for name in root.names(f"{folder}/ras"):
        match = re.search(rf"(?m)^{kind}: (\d{{1,15}})$", root.line(f"{folder}/ras/{name}") or "", re.ASCII)
        if name.endswith("_err_count") and match:
            found = (found or 0) + int(match[1])
    return found
