"""What `nvidia-smi -q -x` prints, as the document of nvml.py: for machines without nvidia-ml-py, and saved answers.

Names of elements changed from version to version of the driver; each value is looked for under all of them. Text
instead of a number is a reason, and never zero. Serial numbers and UUIDs stay unread.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from k3gate.host import nvml

BYTES = 16 * 1024 * 1024
_PROGRAM = "nvidia-smi"
_SECONDS = 60.0
_NUMBER = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z%/]{0,8})", re.ASCII)
_SCALES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "W": 1000.0}
"""To the units of the document: bytes, mW."""
_REASONS = {
    "n/a": "not applicable (N/A)",
    "not supported": "not supported",
    "unknown error": "unknown error",
    "gpu is lost": nvml.LOST,
    "requested functionality has been deprecated": "deprecated",
    "insufficient permissions": "not permitted",
}
_SWITCHES = {"enabled": 1, "disabled": 0, "yes": 1, "no": 0, "active": 1, "not active": 0}
_THROTTLES = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}
_PATHS: dict[str, tuple[str, ...]] = {
    "memory": ("fb_memory_usage/total",),
    "memory_used": ("fb_memory_usage/used",),
    "bar1": ("bar1_memory_usage/total",),
    "generation": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "generation_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "generation_device": ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",),
    "width": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "replays": ("pci/replay_counter",),
    "clock_graphics": ("clocks/graphics_clock",),
    "clock_sm": ("clocks/sm_clock",),
    "clock_memory": ("clocks/mem_clock",),
    "clock_graphics_max": ("max_clocks/graphics_clock",),
    "clock_sm_max": ("max_clocks/sm_clock",),
    "clock_memory_max": ("max_clocks/mem_clock",),
    "power": (
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/instant_power_draw",
        "power_readings/instant_power_draw",
        "module_power_readings/power_draw",
    ),
    "power_limit": (
        "gpu_power_readings/current_power_limit",
        "power_readings/power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/enforced_power_limit",
    ),
    "power_default": ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
    "power_max": ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
    "performance_state": ("performance_state",),
    "temperature": ("temperature/gpu_temp",),
    "ecc": ("ecc_mode/current_ecc",),
    "retirement_pending": ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    "mig": ("mig_mode/current_mig",),
}
_ECC = {
    ("corrected", "volatile"): (("sram_correctable", "dram_correctable"), ("single_bit/total",)),
    ("uncorrected", "volatile"): (
        (
            "sram_uncorrectable",
            "sram_uncorrectable_parity",
            "sram_uncorrectable_secded",
            "dram_uncorrectable",
        ),
        ("double_bit/total",),
    ),
}
_ROWS = ("remapped_row_corr", "remapped_row_unc", "remapped_row_pending", "remapped_row_failure")
_PARTS = 64


def value(text: str | None) -> Any:
    """The number in a field, in the document's units, or {"error": why}; units are left out where there are none."""
    if text is None:
        return {"error": "not in this answer"}
    plain = text.strip().strip("[]").strip()
    word = plain.lower()
    if word in _SWITCHES:
        return _SWITCHES[word]
    match = _NUMBER.fullmatch(plain[1:] if re.fullmatch(r"P\d{1,2}", plain) else plain)
    if match:
        number = float(match[1]) * _SCALES.get(match[2], 1)
        return int(number) if number.is_integer() else number
    mask = re.fullmatch(r"0x([0-9a-fA-F]{1,16})", plain)
    if mask:
        return int(mask[1], 16)
    return {
        "error": next((why for sign, why in _REASONS.items() if sign in word), f"no number: {plain[:40]!r}")
    }


def parse(raw: bytes) -> dict[str, Any]:
    """The document of what was printed; its "error" where the driver could not be asked, or it is no such answer."""
    text = raw[:BYTES]
    told: dict[str, Any] = {"version": nvml.VERSION}
    if b"<!ENTITY" in text:
        return {**told, "error": "its answer defines entities, which nvidia-smi never does"}
    try:
        top = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError):
        return {**told, "error": failure(text.decode("utf-8", "replace"))}
    if top.tag != "nvidia_smi_log":
        return {**told, "error": "not an answer of nvidia-smi -q -x"}
    gpus = top.findall("gpu")[: nvml.MOST]
    told |= {"driver": _text(top, "driver_version"), "cuda": _text(top, "cuda_version")}
    count = value(top.findtext("attached_gpus"))
    told["count"] = count if isinstance(count, int) else len(gpus)
    told["source"] = _PROGRAM
    told["devices"] = [{"index": place, **_device(gpu)} for place, gpu in enumerate(gpus)]
    return told


def failure(text: str) -> str:
    """Why nvidia-smi printed no document, in the words of nvml.py."""
    plain = " ".join(text.split())
    for sign, why in (
        ("Driver/library version mismatch", nvml.MISMATCH),
        ("couldn't communicate with the NVIDIA driver", nvml.NOT_LOADED),
        ("Driver Not Loaded", nvml.NOT_LOADED),
        ("is lost", nvml.LOST),
        ("Unknown Error", "unknown error"),
    ):
        if sign in plain:
            return why
    return f"nvidia-smi said: {plain[:120]}" if plain else "nvidia-smi printed nothing"


def ask() -> dict[str, Any]:
    """What the program tells on this machine."""
    path = shutil.which(_PROGRAM)
    if path is None:
        return {"version": nvml.VERSION, "error": nvml.NO_LIBRARY}
    try:
        done = subprocess.run(
            [path, "-q", "-x"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"version": nvml.VERSION, "error": f"nvidia-smi gave no answer: {type(error).__name__}"}
    return parse(done.stdout or done.stderr)


def _text(node: ElementTree.Element, path: str) -> Any:
    text = node.findtext(path)
    told = " ".join((text or "").split())[:80]
    return told or {"error": "not in this answer"}


def _device(gpu: ElementTree.Element) -> dict[str, Any]:
    told: dict[str, Any] = {"name": _text(gpu, "product_name")}
    address = gpu.get("id") or gpu.findtext("pci/pci_bus_id") or ""
    told["address"] = nvml.address_of(address) if address else {"error": "not in this answer"}
    for name, paths in _PATHS.items():
        told[name], source = _first(gpu, paths)
        if name == "power" and source is not None:
            told["power_source"] = source
    for (kind, when), ways in _ECC.items():
        told[f"ecc_{kind}"] = _sum(gpu, f"ecc_errors/{when}", ways)
        told[f"ecc_{kind}_lifetime"] = _sum(gpu, "ecc_errors/aggregate", ways)
    told["throttle"] = _throttle(gpu)
    rows = [value(gpu.findtext(f"remapped_rows/{name}")) for name in _ROWS]
    told["rows"] = (
        rows if all(isinstance(row, int) for row in rows) else next(r for r in rows if isinstance(r, dict))
    )
    told["parts"] = list(_parts(gpu))
    return told


def _first(gpu: ElementTree.Element, paths: tuple[str, ...]) -> tuple[Any, str | None]:
    """The first of these fields that holds a number, with its name; else the reason of the first that is there."""
    reasons = []
    for path in paths:
        text = gpu.findtext(path)
        # "16x" lanes.
        found = value(text.strip().removesuffix("x") if text is not None and "width" in path else text)
        if not isinstance(found, dict):
            return found, path
        if text is not None:
            reasons.append(found)
    return (reasons or [{"error": "not in this answer"}])[0], None


def _sum(gpu: ElementTree.Element, place: str, ways: tuple[tuple[str, ...], ...]) -> Any:
    """Of counts that lie in several memories; a way is one version's names, and what of them is not there is none."""
    for names in ways:
        texts = [text for name in names if (text := gpu.findtext(f"{place}/{name}")) is not None]
        numbers = [value(text) for text in texts]
        if numbers and all(isinstance(number, int) for number in numbers):
            return sum(numbers)
        if numbers:
            return next(number for number in numbers if isinstance(number, dict))
    return {"error": "not in this answer"}


def _throttle(gpu: ElementTree.Element) -> Any:
    for group, start in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        node = gpu.find(group)
        if node is None:
            continue
        found = {one.tag.removeprefix(start): value(one.text) for one in node}
        told = [bit for name, bit in _THROTTLES.items() if found.get(name) == 1]
        if any(isinstance(found.get(name), int) for name in _THROTTLES):
            return sum(told)
    return {"error": "not in this answer"}


def _parts(gpu: ElementTree.Element) -> Iterator[dict[str, Any]]:
    for part in gpu.findall("mig_devices/mig_device")[:_PARTS]:
        number = value(part.findtext("gpu_instance_id"))
        yield {
            "name": f"instance {number}" if isinstance(number, int) else {"error": "not in this answer"},
            "memory": value(part.findtext("fb_memory_usage/total")),
        }
