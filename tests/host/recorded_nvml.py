"""A recorded NVML: the functions of the module pynvml that are asked, answering from what `nvidia-smi -q -x` printed.

It stands for the library on machines without a GPU. It reads the recording by itself, and not by the reader of the
product, so that both can be compared.
"""

# ruff: noqa: N802  # the names are those of pynvml

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree


class NVMLError(Exception):
    """As pynvml raises it: `value` is the number of the library's error."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


NOT_SUPPORTED, LOST, MISMATCH, UNKNOWN = 3, 15, 18, 999
_ERRORS = {
    "n/a": NOT_SUPPORTED,
    "not supported": NOT_SUPPORTED,
    "unknown error": UNKNOWN,
    "gpu is lost": LOST,
}
_SCALES = {"MiB": 2**20, "W": 1000}
_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting"),
)


class RecordedNvml:
    """`broken`: the number of the error with which the library refuses to start; `lost`: of GPUs by their index.

    What nvidia-smi -q does not print is given: `nvlinks` (state, peer's address) of each GPU; `level` and
    `access` of pairs.
    """

    NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 185, 186, 90

    def __init__(
        self,
        xml: bytes,
        *,
        broken: int | None = None,
        lost: dict[int, int] | None = None,
        nvlinks: tuple[tuple[int, str], ...] = (),
        level: int | None = None,
        access: int | None = None,
    ) -> None:
        self._top = ElementTree.fromstring(xml)
        self._gpus = self._top.findall("gpu")
        self._broken, self._lost = broken, lost or {}
        self._nvlinks, self._level, self._access = nvlinks, level, access
        self.open = 0

    def nvmlInit(self) -> None:
        if self._broken is not None:
            raise NVMLError(self._broken)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetNVMLVersion(self) -> str:
        return f"12.{self._top.findtext('driver_version')}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self._top.findtext("driver_version"))

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12020

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        if index in self._lost:
            raise NVMLError(self._lost[index])
        return self._gpus[index]

    def nvmlDeviceGetName(self, gpu: Any) -> str:
        name = gpu.findtext("product_name")
        return str(name) if name else f"instance {gpu.findtext('gpu_instance_id')}"

    def nvmlDeviceGetPciInfo(self, gpu: Any) -> Any:
        return SimpleNamespace(busId=gpu.get("id").encode())

    def nvmlDeviceGetMemoryInfo(self, gpu: Any) -> Any:
        total, used = self._at(gpu, "fb_memory_usage/total"), self._at(gpu, "fb_memory_usage/used")
        return SimpleNamespace(total=total, used=used)

    def nvmlDeviceGetBAR1MemoryInfo(self, gpu: Any) -> Any:
        return SimpleNamespace(bar1Total=self._at(gpu, "bar1_memory_usage/total"))

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: Any) -> int:
        return self._link(gpu, "pcie_gen/current_link_gen")

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: Any) -> int:
        return self._link(gpu, "pcie_gen/max_link_gen")

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, gpu: Any) -> int:
        return self._link(gpu, "pcie_gen/max_device_link_gen")

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: Any) -> int:
        return self._link(gpu, "link_widths/current_link_width")

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: Any) -> int:
        return self._link(gpu, "link_widths/max_link_width")

    def nvmlDeviceGetPcieReplayCounter(self, gpu: Any) -> int:
        return self._at(gpu, "pci/replay_counter")

    def nvmlDeviceGetMemoryAffinity(self, gpu: Any, size: int, scope: int) -> list[int]:
        raise NVMLError(NOT_SUPPORTED)

    def nvmlDeviceGetClockInfo(self, gpu: Any, kind: int) -> int:
        return self._at(gpu, f"clocks/{('graphics', 'sm', 'mem')[kind]}_clock")

    def nvmlDeviceGetMaxClockInfo(self, gpu: Any, kind: int) -> int:
        return self._at(gpu, f"max_clocks/{('graphics', 'sm', 'mem')[kind]}_clock")

    def nvmlDeviceGetPowerUsage(self, gpu: Any) -> int:
        return self._power(gpu, "power_draw")

    def nvmlDeviceGetFieldValues(self, gpu: Any, numbers: list[int]) -> list[Any]:
        if numbers[0] == self.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
            return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))]
        name = {185: "average_power_draw", 186: "instant_power_draw"}.get(numbers[0], "none")
        try:
            return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self._power(gpu, name)))]
        except NVMLError as error:
            return [SimpleNamespace(nvmlReturn=error.value, value=None)]

    def nvmlDeviceGetPowerManagementLimit(self, gpu: Any) -> int:
        return self._power(gpu, "current_power_limit", "power_limit")

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: Any) -> int:
        return self._power(gpu, "default_power_limit")

    def nvmlDeviceGetPowerManagementLimitConstraints(self, gpu: Any) -> list[int]:
        return [0, self._power(gpu, "max_power_limit")]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Any) -> int:
        for group in (
            "clocks_event_reasons/clocks_event_reason",
            "clocks_throttle_reasons/clocks_throttle_reason",
        ):
            texts = [gpu.findtext(f"{group}_{name}") for name in _REASONS]
            if any(texts):
                return sum(1 << bit for bit, text in enumerate(texts) if text == "Active")
        raise NVMLError(NOT_SUPPORTED)

    def nvmlDeviceGetPerformanceState(self, gpu: Any) -> int:
        return int(gpu.findtext("performance_state").removeprefix("P"))

    def nvmlDeviceGetTemperature(self, gpu: Any, sensor: int) -> int:
        return self._at(gpu, "temperature/gpu_temp")

    def nvmlDeviceGetEccMode(self, gpu: Any) -> list[int]:
        return [self._at(gpu, "ecc_mode/current_ecc"), self._at(gpu, "ecc_mode/pending_ecc")]

    def nvmlDeviceGetTotalEccErrors(self, gpu: Any, kind: int, counter: int) -> int:
        place = gpu.find(f"ecc_errors/{('volatile', 'aggregate')[counter]}")
        if place is None:
            raise NVMLError(NOT_SUPPORTED)
        old = place.findtext(f"{('single', 'double')[kind]}_bit/total")
        if old is not None:
            return self._value(old)
        sign = ("_correctable", "_uncorrectable")[kind]
        return sum(self._value(one.text) for one in place if sign in one.tag)

    def nvmlDeviceGetRemappedRows(self, gpu: Any) -> list[int]:
        names = ("corr", "unc", "pending", "failure")
        return [self._at(gpu, f"remapped_rows/remapped_row_{name}") for name in names]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: Any) -> int:
        return self._at(gpu, "retired_pages/pending_retirement")

    def nvmlDeviceGetMigMode(self, gpu: Any) -> list[int]:
        return [self._at(gpu, "mig_mode/current_mig"), self._at(gpu, "mig_mode/pending_mig")]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Any, index: int) -> Any:
        parts = gpu.findall("mig_devices/mig_device")
        if index >= len(parts):
            raise NVMLError(6)
        return parts[index]

    def nvmlDeviceGetNvLinkState(self, gpu: Any, number: int) -> int:
        if number >= len(self._nvlinks):
            raise NVMLError(NOT_SUPPORTED)
        return self._nvlinks[number][0]

    def nvmlDeviceGetNvLinkVersion(self, gpu: Any, number: int) -> int:
        return 5

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: Any, number: int) -> Any:
        return SimpleNamespace(busId=self._nvlinks[number][1])

    def nvmlDeviceGetTopologyCommonAncestor(self, gpu: Any, other: Any) -> int:
        if self._level is None:
            raise NVMLError(NOT_SUPPORTED)
        return self._level

    def nvmlDeviceGetP2PStatus(self, gpu: Any, other: Any, index: int) -> int:
        if self._access is None:
            raise NVMLError(NOT_SUPPORTED)
        return self._access

    def _link(self, gpu: Any, path: str) -> int:
        return self._at(gpu, f"pci/pci_gpu_link_info/{path}")

    def _power(self, gpu: Any, *names: str) -> int:
        for name in names:
            for group in ("gpu_power_readings", "power_readings"):
                text = gpu.findtext(f"{group}/{name}")
                if text is not None:
                    return self._value(text)
        raise NVMLError(NOT_SUPPORTED)

    def _at(self, gpu: Any, path: str) -> int:
        return self._value(gpu.findtext(path))

    def _value(self, text: str | None) -> int:
        if text is None:
            raise NVMLError(13)
        plain = text.strip().strip("[]").lower()
        for sign, number in _ERRORS.items():
            if sign in plain:
                raise NVMLError(number)
        if plain in ("enabled", "yes", "disabled", "no"):
            return int(plain in ("enabled", "yes"))
        match = re.fullmatch(r"(-?[\d.]+)x?\s*(\S*)", text.strip().strip("[]"))
        assert match is not None, text
        return round(float(match[1]) * _SCALES.get(match[2], 1))
