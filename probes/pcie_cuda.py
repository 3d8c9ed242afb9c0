"""CUDA's driver API behind the interface of `pcie_driver`, through NVIDIA's cuda-bindings (extra `cuda`).

Only functions that drivers have had since CUDA 11 are called, but for those whose name stands for a newer version in
newer bindings: a driver that lacks one of them is told with the bindings that fit it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from k3gate.errors import NotPermittedError, NotPresentError, ProbeError
from k3gate.probes.pcie_driver import Device, Gate, Handle, PinningRefusedError

INSTALL = "cuda-bindings is not installed: `pip install 'k3gate[cuda]'`"
_NOT_READY, _ALREADY_REACHED = 600, 704
_PORTABLE_AND_MAPPED = 0x01 | 0x02
_WAIT_GEQ = 0
_MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS = 36, 37
"""CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE and _GLOBAL_MEMORY_BUS_WIDTH."""
_FLAG_BYTES = 4096
_LARGEST_TICKET = 2**31 - 2
_WORDS = {
    2: "out of memory",
    100: "it is not shown: in a container pass it in, else look at CUDA_VISIBLE_DEVICES",
    304: "the operating system refused it",
    712: "this memory is locked already",
    800: "not permitted",
    801: "not supported",
    803: "the driver and its library are of different versions: start the machine again",
    804: "this GPU does not run with so old a driver: install a newer one",
}


def missing() -> str | None:
    """Why the bindings cannot be used, with the line that gets them; None where they are installed."""
    from importlib.util import find_spec

    try:
        return None if find_spec("cuda.bindings.driver") is not None else INSTALL
    except (ImportError, ValueError):
        return INSTALL


class CudaError(Exception):
    """A call of the driver that failed; `code`: its number."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {_WORDS.get(code, 'error')} (CUDA error {code})")
        self.code = code


def call(function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the bindings gives besides its error. Raises `CudaError`; `NotPresentError` where the driver
    has no such function, or no library."""
    name = getattr(function, "__name__", "a call")
    try:
        result, *rest = function(*given)
    except RuntimeError as error:
        raise NotPresentError(_lacking(" ".join(str(error).split())[:200])) from error
    if int(result) != 0:
        raise CudaError(name, int(result))
    return rest[0] if len(rest) == 1 else tuple(rest) or None


def _lacking(said: str) -> str:
    if "not found" in said and "unction" in said:
        return (
            f"the driver is older than the bindings ({said}): install a newer driver, or "
            "`pip install 'cuda-bindings<13'`"
        )
    return (
        "the driver's library libcuda.so.1 could not be loaded: install NVIDIA's driver, or in a container pass the "
        "GPUs in"
    )


def driver() -> CudaDriver:
    """The driver of this machine. Raises `NotPresentError` where the bindings, the driver or its GPUs are missing."""
    reason = missing()
    if reason is not None:
        raise NotPresentError(reason)
    from cuda.bindings import driver as cuda

    try:
        call(cuda.cuInit, 0)
    except CudaError as error:
        raise NotPresentError(f"CUDA does not start: {error}") from error
    return CudaDriver(cuda)


class CudaDriver:
    """See `pcie_driver.Driver`. `cuda`: the module of the bindings."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._devices: dict[str, CudaDevice] = {}
        self._gate: CudaGate | None = None

    def device(self, address: str) -> CudaDevice:
        """See the interface."""
        if address not in self._devices:
            try:
                number = call(self._cuda.cuDeviceGetByPCIBusId, address.encode("ascii"))
                context = call(self._cuda.cuDevicePrimaryCtxRetain, number)
            except CudaError as error:
                raise NotPresentError(
                    f"CUDA does not give GPU {address} ({error}): look whether another process holds it for itself"
                ) from error
            self._devices[address] = CudaDevice(self._cuda, address, number, context)
        return self._devices[address]

    def gate(self) -> CudaGate:
        """See the interface."""
        if self._gate is None:
            self._current()
            self._gate = CudaGate(self._cuda)
        return self._gate

    def pin(self, host: int, size: int) -> None:
        """See the interface. What is locked is so for all GPUs."""
        self._current()
        try:
            call(self._cuda.cuMemHostRegister, host, size, _PORTABLE_AND_MAPPED)
        except CudaError as error:
            raise PinningRefusedError(str(error)) from error

    def unpin(self, host: int) -> None:
        """See the interface."""
        self._current()
        call(self._cuda.cuMemHostUnregister, host)

    def _current(self) -> None:
        device = next(iter(self._devices.values()), None)
        if device is None:
            raise ProbeError("host memory is asked of a driver without a device")
        device.use()

    def close(self) -> None:
        """See the interface. What the primary contexts hold, streams and events too, goes with them."""
        if self._gate is not None:
            self._gate.end()
            self._gate = None
        for device in self._devices.values():
            with contextlib.suppress(CudaError):
                call(self._cuda.cuDevicePrimaryCtxRelease, device.number)
        self._devices.clear()


class CudaGate:
    """A number in mapped host memory. Each shutting draws the next ticket, and streams wait until it is reached, so
    that nothing has to be set back."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._host = int(call(cuda.cuMemHostAlloc, _FLAG_BYTES, _PORTABLE_AND_MAPPED))
        self._flag = ctypes.c_uint32.from_address(self._host)
        self._flag.value = self.ticket = 0

    def on_device(self) -> Any:
        """The flag's address as the device of the current context has it."""
        return call(self._cuda.cuMemHostGetDevicePointer, self._host, 0)

    def shut(self) -> None:
        """See the interface."""
        self.ticket += 1

    def open(self) -> None:
        """See the interface."""
        self._flag.value = self.ticket

    def end(self) -> None:
        """Nothing waits any more. The memory stays until the context goes: a stream may look at it yet."""
        self._flag.value = _LARGEST_TICKET


class CudaDevice:
    """See `pcie_driver.Device`."""

    def __init__(self, cuda: Any, address: str, number: Any, context: Any) -> None:
        self._cuda, self.address, self.number, self.context = cuda, address, number, context

    def use(self) -> None:
        """Make its context the current one of this thread."""
        call(self._cuda.cuCtxSetCurrent, self.context)

    def allocate(self, size: int) -> int:
        """See the interface."""
        self.use()
        try:
            return int(call(self._cuda.cuMemAlloc, size))
        except CudaError as error:
            raise ProbeError(
                f"GPU {self.address} gives no {size:,} bytes of its memory: {error}; end what else uses it"
            ) from error

    def free(self, memory: int) -> None:
        """See the interface."""
        self.use()
        call(self._cuda.cuMemFree, memory)

    def fill(self, memory: int, size: int, byte: int) -> None:
        """See the interface."""
        self._asked(self._cuda.cuMemsetD8, memory, byte, size)
        self._asked(self._cuda.cuCtxSynchronize)

    def stream(self) -> Handle:
        """See the interface. It waits for no other stream."""
        return self._asked(self._cuda.cuStreamCreate, 1)

    def event(self) -> Handle:
        """See the interface."""
        return self._asked(self._cuda.cuEventCreate, 0)

    def hold(self, stream: Handle, gate: Gate) -> None:
        """See the interface."""
        assert isinstance(gate, CudaGate)
        self.use()
        try:
            call(self._cuda.cuStreamWaitValue32, stream, gate.on_device(), gate.ticket, _WAIT_GEQ)
        except CudaError as error:
            if error.code in (800, 801):
                kind = NotPermittedError if error.code == 800 else NotPresentError
                raise kind(
                    f"streams of GPU {self.address} cannot wait on memory ({error}), so that copies would be timed "
                    "with their launch: use a newer driver"
                ) from error
            raise ProbeError(str(error)) from error

    def copy_in(self, to: int, host: int, size: int, stream: Handle) -> None:
        """See the interface."""
        self._asked(self._cuda.cuMemcpyHtoDAsync, to, host, size, stream)

    def copy_out(self, host: int, memory: int, size: int, stream: Handle) -> None:
        """See the interface."""
        self._asked(self._cuda.cuMemcpyDtoHAsync, host, memory, size, stream)

    def copy_within(self, to: int, memory: int, size: int, stream: Handle) -> None:
        """See the interface."""
        self._asked(self._cuda.cuMemcpyDtoDAsync, to, memory, size, stream)

    def copy_from(self, to: int, peer: Device, memory: int, size: int, stream: Handle) -> None:
        """See the interface."""
        assert isinstance(peer, CudaDevice)
        self._asked(self._cuda.cuMemcpyPeerAsync, to, self.context, memory, peer.context, size, stream)

    def reach(self, peer: Device) -> bool:
        """See the interface."""
        assert isinstance(peer, CudaDevice)
        if not self._asked(self._cuda.cuDeviceCanAccessPeer, self.number, peer.number):
            return False
        try:
            call(self._cuda.cuCtxEnablePeerAccess, peer.context, 0)
        except CudaError as error:
            return error.code == _ALREADY_REACHED
        return True

    def record(self, event: Handle, stream: Handle) -> None:
        """See the interface."""
        self._asked(self._cuda.cuEventRecord, event, stream)

    def passed(self, event: Handle) -> bool:
        """See the interface."""
        self.use()
        try:
            call(self._cuda.cuEventQuery, event)
        except CudaError as error:
            if error.code == _NOT_READY:
                return False
            raise ProbeError(f"GPU {self.address}: {error}") from error
        return True

    def seconds(self, start: Handle, end: Handle) -> float:
        """See the interface."""
        return float(self._asked(self._cuda.cuEventElapsedTime, start, end)) * 1e-3

    def wait(self, stream: Handle) -> None:
        """See the interface."""
        self._asked(self._cuda.cuStreamSynchronize, stream)

    def memory_limit(self) -> float | None:
        """See the interface. Memory moves data twice a clock."""
        kinds = self._cuda.CUdevice_attribute
        found = []
        for number in (_MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS):
            try:
                found.append(int(call(self._cuda.cuDeviceGetAttribute, kinds(number), self.number)))
            except (CudaError, ValueError):
                return None
        clock, width = found
        return 2.0 * clock * 1e3 * width / 8 if clock > 0 and width > 0 else None

    def _asked(self, function: Callable[..., Any], *given: Any) -> Any:
        self.use()
        try:
            return call(function, *given)
        except CudaError as error:
            raise ProbeError(f"GPU {self.address}: {error}") from error
