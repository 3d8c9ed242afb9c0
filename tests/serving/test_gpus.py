"""GPUs beside a server: a stand-in for NVML, with the answers that its documentation promises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from k3gate.serving.gpus import Gpus, GpuUse


class StandInNvml:
    """Two GPUs; of the second one neither processes nor throughput are told."""

    def __init__(self) -> None:
        self.ended = False

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's names
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=[b"00000000:18:00.0", "00000000:3B:00.0"][handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        if handle == 1:
            return [SimpleNamespace(pid=7, usedGpuMemory=None)]
        return [
            SimpleNamespace(pid=7, usedGpuMemory=100),
            SimpleNamespace(pid=8, usedGpuMemory=20),
            SimpleNamespace(pid=9, usedGpuMemory=3),
        ]

    def nvmlDeviceGetPcieThroughput(self, handle: int, way: int) -> int:  # noqa: N802
        if handle == 1:
            raise RuntimeError("not supported")
        return {0: 5, 1: 7}[way]


def test_memory_is_of_the_servers_own_processes_and_traffic_of_both_ways() -> None:
    library = StandInNvml()
    gpus = Gpus(library)
    assert gpus.read({7, 8}) == [
        GpuUse("0000:18:00.0", 120, to_gpu=7 * 1024.0, from_gpu=5 * 1024.0),
        GpuUse("0000:3b:00.0", None, None, None),
    ]
    gpus.close()
    assert library.ended


def test_without_a_driver_there_is_nothing_to_tell() -> None:
    class Broken:
        def nvmlInit(self) -> None:  # noqa: N802
            raise RuntimeError("the driver is not loaded")

    assert Gpus(Broken()).read({1}) == []
