"""CUDA behind the driver's interface, over a recorded module of bindings: order of calls, errors, and what helps."""

from __future__ import annotations

import ctypes
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from k3gate.errors import NotPermittedError, NotPresentError, ProbeError
from k3gate.probes import pcie_cuda
from k3gate.probes.pcie_driver import PinningRefusedError

ADDRESS = "0000:41:00.0"


class RecordedCuda:
    """Stands in for `cuda.bindings.driver`: notes calls, answers as told, else with success."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._flag = ctypes.create_string_buffer(8192)
        self._answers = {
            "cuDeviceGetByPCIBusId": (0, 7),
            "cuDevicePrimaryCtxRetain": (0, "context"),
            "cuMemHostAlloc": (0, ctypes.addressof(self._flag)),
            "cuMemHostGetDevicePointer": (0, 0xF1A6),
            "cuMemAlloc": (0, 0xD00D),
            "cuStreamCreate": (0, "stream"),
            "cuEventCreate": (0, "event"),
            "cuEventElapsedTime": (0, 2.5),
            "cuDeviceCanAccessPeer": (0, 1),
            **answers,
        }

    def CUdevice_attribute(self, number: int) -> int:  # noqa: N802  # as the bindings call it
        return number

    def __getattr__(self, name: str) -> Any:
        def called(*given: Any) -> Any:
            self.calls.append((name, *given))
            answer = self._answers.get(name, (0,))
            if isinstance(answer, Exception):
                raise answer
            return answer

        called.__name__ = name
        return called

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

    @property
    def flag(self) -> int:
        return ctypes.c_uint32.from_buffer(self._flag).value


def opened(**answers: Any) -> tuple[RecordedCuda, pcie_cuda.CudaDriver, pcie_cuda.CudaDevice]:
    cuda = RecordedCuda(**answers)
    driver = pcie_cuda.CudaDriver(cuda)
    return cuda, driver, driver.device(ADDRESS)


def test_a_stream_waits_for_a_ticket_that_only_opening_reaches() -> None:
    cuda, driver, device = opened()
    gate = driver.gate()
    for ticket in (1, 2):
        gate.shut()
        device.hold("stream", gate)
        assert cuda.named("cuStreamWaitValue32")[-1] == (
            "stream",
            0xF1A6,
            ticket,
            0,
        )  # until it is at least that
        assert cuda.flag == ticket - 1
        gate.open()
        assert cuda.flag == ticket
    gate.shut()
    driver.close()
    assert cuda.flag > 2  # whatever waits at the end goes on
    assert cuda.named("cuDevicePrimaryCtxRelease") == [(7,)]


def test_each_call_is_made_in_the_context_of_its_device() -> None:
    cuda, _, device = opened()
    device.copy_in(0xD, 0xA, 64, "stream")
    device.copy_out(0xA, 0xD, 64, "stream")
    names = [call[0] for call in cuda.calls]
    for name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
        assert names[names.index(name) - 1] == "cuCtxSetCurrent"
    assert cuda.named("cuMemcpyHtoDAsync") == [(0xD, 0xA, 64, "stream")]
    assert device.seconds("a", "b") == pytest.approx(2.5e-3)


def test_memory_is_locked_for_all_gpus_and_a_refusal_is_its_own_error() -> None:
    cuda, driver, _ = opened()
    driver.pin(0x1000, 4096)
    assert cuda.named("cuMemHostRegister") == [(0x1000, 4096, 3)]
    _, driver, _ = opened(cuMemHostRegister=(2,))
    with pytest.raises(PinningRefusedError, match="out of memory"):
        driver.pin(0x1000, 4096)


def test_events_that_have_not_passed_are_no_error_and_a_broken_device_is() -> None:
    _, _, device = opened(cuEventQuery=(600,))
    assert device.passed("event") is False
    _, _, device = opened()
    assert device.passed("event") is True
    _, _, device = opened(cuEventQuery=(719,))
    with pytest.raises(ProbeError, match="719"):
        device.passed("event")


@pytest.mark.parametrize(("code", "kind"), [(800, NotPermittedError), (801, NotPresentError)])
def test_streams_that_cannot_wait_say_so(code: int, kind: type[Exception]) -> None:
    _, driver, device = opened(cuStreamWaitValue32=(code,))
    with pytest.raises(kind, match="cannot wait on memory"):
        device.hold("stream", driver.gate())


def test_peers_are_reached_once_and_again() -> None:
    _, driver, device = opened()
    assert device.reach(driver.device("0000:81:00.0"))
    _, driver, device = opened(cuCtxEnablePeerAccess=(704,))
    assert device.reach(driver.device("0000:81:00.0"))
    _, driver, device = opened(cuDeviceCanAccessPeer=(0, 0))
    assert not device.reach(driver.device("0000:81:00.0"))


def test_a_gpu_that_cuda_does_not_give_is_told_with_what_may_hide_it() -> None:
    with pytest.raises(NotPresentError, match="CUDA_VISIBLE_DEVICES"):
        opened(cuDeviceGetByPCIBusId=(100, None))


def test_memory_that_others_use_is_told() -> None:
    _, _, device = opened(cuMemAlloc=(2, 0))
    with pytest.raises(ProbeError, match="end what else uses it"):
        device.allocate(1 << 30)


def test_the_paper_rate_of_memory_counts_two_transfers_a_clock() -> None:
    cuda, _, device = opened()
    cuda._answers["cuDeviceGetAttribute"] = (0, 1000)
    assert device.memory_limit() == pytest.approx(2 * 1000e3 * 1000 / 8)
    cuda._answers["cuDeviceGetAttribute"] = (0, 0)
    assert device.memory_limit() is None


def test_a_driver_that_is_older_than_the_bindings_is_told_with_those_that_fit() -> None:
    error = RuntimeError('Function "cuEventElapsedTime_v2" not found')
    _, _, device = opened(cuEventElapsedTime=error)
    with pytest.raises(NotPresentError, match="cuda-bindings<13"):
        device.seconds("a", "b")


def test_without_a_driver_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = RecordedCuda(cuInit=RuntimeError("Failed to dlopen libcuda.so.1"))
    monkeypatch.setattr(pcie_cuda, "missing", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", SimpleNamespace(driver=failing))
    monkeypatch.setitem(__import__("sys").modules, "cuda", SimpleNamespace(bindings=None))
    with pytest.raises(NotPresentError, match=r"libcuda\.so\.1 could not be loaded.*install NVIDIA's driver"):
        pcie_cuda.driver()


def test_whether_the_bindings_are_there_is_seen_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", absent)
    assert pcie_cuda.missing() == pcie_cuda.INSTALL
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    assert pcie_cuda.missing() is None
