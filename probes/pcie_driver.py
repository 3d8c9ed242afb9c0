"""What the copies of the PCIe probe ask of a GPU's driver: a small interface, so that their logic can be tested apart.

`pcie_cuda` has the one implementation, by CUDA's driver API. Addresses of memory are whole numbers, of the host as the
process sees them, of a device as its driver gives them; sizes in bytes.
"""

from __future__ import annotations

from typing import Any, Protocol

Handle = Any
"""A stream or an event of a driver."""


class PinningRefusedError(Exception):
    """The driver does not lock so much host memory; the message says why."""


class Gate(Protocol):
    """A flag in host memory at which streams wait on the GPU."""

    def shut(self) -> None:
        """What is held from now on waits."""
        ...

    def open(self) -> None:
        """Let all go that is held."""
        ...


class Device(Protocol):
    """A GPU. Copies, records and holds are queued in a stream, in order; all else is done when it returns."""

    address: str
    """On PCI, as 0000:41:00.0."""

    def allocate(self, size: int) -> int:
        """Memory of the device; raises `ProbeError` where there is none."""
        ...

    def free(self, memory: int) -> None:
        """Give it back."""
        ...

    def fill(self, memory: int, size: int, byte: int) -> None:
        """Set every byte."""
        ...

    def stream(self) -> Handle:
        """A new stream."""
        ...

    def event(self) -> Handle:
        """A new event that takes the time."""
        ...

    def hold(self, stream: Handle, gate: Gate) -> None:
        """What follows in the stream waits until the gate is open."""
        ...

    def copy_in(self, to: int, host: int, size: int, stream: Handle) -> None:
        """Host to device."""
        ...

    def copy_out(self, host: int, memory: int, size: int, stream: Handle) -> None:
        """Device to host."""
        ...

    def copy_within(self, to: int, memory: int, size: int, stream: Handle) -> None:
        """Within the device's memory."""
        ...

    def copy_from(self, to: int, peer: Device, memory: int, size: int, stream: Handle) -> None:
        """From the memory of another GPU into this one's."""
        ...

    def reach(self, peer: Device) -> bool:
        """Whether copies from this peer go directly, without host memory between; lets them from now on."""
        ...

    def record(self, event: Handle, stream: Handle) -> None:
        """The event passes when the stream has come to it."""
        ...

    def passed(self, event: Handle) -> bool:
        """Whether it has; raises `ProbeError` where work of the device failed."""
        ...

    def seconds(self, start: Handle, end: Handle) -> float:
        """Between two events that have passed, by the device's clock; below 0 where `end` came first."""
        ...

    def wait(self, stream: Handle) -> None:
        """Until all that is queued is done."""
        ...

    def memory_limit(self) -> float | None:
        """B/s of its own memory on paper; None where the driver does not tell clock and width."""
        ...


class Driver(Protocol):
    """The driver of all GPUs."""

    def device(self, address: str) -> Device:
        """The GPU at this address; raises `NotPresentError` where the driver does not show it."""
        ...

    def gate(self) -> Gate:
        """The gate, open."""
        ...

    def pin(self, host: int, size: int) -> None:
        """Lock host memory so that GPUs copy to and from it by themselves. Raises `PinningRefusedError`."""
        ...

    def unpin(self, host: int) -> None:
        """Undo that."""
        ...

    def close(self) -> None:
        """Give all back; whatever waits at the gate goes on first."""
        ...
