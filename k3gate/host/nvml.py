"""What NVIDIA's library NVML tells of GPUs, as a document of plain answers; names of the one card are never asked.

`ask` takes the module pynvml, or what answers as it does. An answer that could not be had is {"error": why}. As a
program (`python -m k3gate.host.nvml`) this prints the document: a driver that hangs, or a library that crashes, costs
a process of its own and nobody else's.

document  {"version", "library", "driver", "cuda", "error" (the library itself failed), "count", "devices": [...]}
device    {"index", "error" (its handle could not be had), and by name what ANSWERS lists}; units are the library's
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

VERSION = 1
SECONDS = 90.0
"""A start of the driver takes a second a GPU without its persistence daemon; 16 of them and room."""
BYTES = 4 * 1024 * 1024
MOST = 64
_NVLINKS = 18
_PARTS = 16
_ALL_NODES = 16

Answer = Any
"""A number, a text, a list or mapping of them, or {"error": why}."""

_WORDS = {
    1: "the library was not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "not permitted",
    6: "not found",
    9: "the driver is not loaded",
    10: "the driver timed out",
    12: "the library is not installed",
    13: "the library is too old for it",
    14: "the GPU's own memory of settings is damaged",
    15: "the GPU is lost",
    16: "the GPU must be reset",
    17: "the operating system blocks it",
    18: "driver/library version mismatch",
    19: "in use",
    20: "out of memory",
    999: "unknown error",
}
MISMATCH, NOT_LOADED, NO_LIBRARY, LOST = _WORDS[18], _WORDS[9], _WORDS[12], _WORDS[15]


def ask(library: Any) -> dict[str, Any]:
    """The document. Never raises for what the library, the driver or a GPU answers."""
    told: dict[str, Any] = {"version": VERSION}
    try:
        library.nvmlInit()
    except Exception as error:  # a broken library raises what it likes
        return {**told, "error": word(error)}
    try:
        told["library"] = _try(lambda: _text(library.nvmlSystemGetNVMLVersion()))
        told["driver"] = _try(lambda: _text(library.nvmlSystemGetDriverVersion()))
        told["cuda"] = _try(lambda: int(library.nvmlSystemGetCudaDriverVersion()))
        told["count"] = _try(lambda: int(library.nvmlDeviceGetCount()))
        count = told["count"] if isinstance(told["count"], int) else 0
        handles = [_call(library, "nvmlDeviceGetHandleByIndex", index) for index in range(min(count, MOST))]
        told["devices"] = [
            {"index": index, **({"error": handle["error"]} if _failed(handle) else _device(library, handle))}
            for index, handle in enumerate(handles)
        ]
        _pairs(library, handles, told["devices"])
    finally:
        _call(library, "nvmlShutdown")
    return told


def word(error: BaseException) -> str:
    """What an error of the library says, in words."""
    value = getattr(error, "value", None)
    if isinstance(value, int):
        return _WORDS.get(value, f"error {value}")
    if isinstance(error, AttributeError):
        return _WORDS[13]
    return f"{type(error).__name__}: {error}"[:120]


def _call(library: Any, name: str, *given: Any) -> Answer:
    """What a function of the library answers, as older ones may not have it."""
    return _try(lambda: getattr(library, name)(*given))


def _failed(answer: Answer) -> bool:
    return isinstance(answer, dict) and set(answer) == {"error"}


def _try(ask_it: Callable[..., Any], *given: Any) -> Answer:
    try:
        return ask_it(*given)
    except Exception as error:  # each answer fails for itself
        return {"error": word(error)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def address_of(bus_id: str) -> str:
    """The kernel's way to write an address: "00000000:18:00.0" is "0000:18:00.0"."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain}:{rest}"


ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "name": lambda n, h: _text(n.nvmlDeviceGetName(h)),
    "address": lambda n, h: address_of(_text(n.nvmlDeviceGetPciInfo(h).busId)),
    "memory": lambda n, h: int(n.nvmlDeviceGetMemoryInfo(h).total),
    "memory_used": lambda n, h: int(n.nvmlDeviceGetMemoryInfo(h).used),
    "bar1": lambda n, h: int(n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total),
    "generation": lambda n, h: int(n.nvmlDeviceGetCurrPcieLinkGeneration(h)),
    "generation_max": lambda n, h: int(n.nvmlDeviceGetMaxPcieLinkGeneration(h)),
    "generation_device": lambda n, h: int(n.nvmlDeviceGetGpuMaxPcieLinkGeneration(h)),
    "width": lambda n, h: int(n.nvmlDeviceGetCurrPcieLinkWidth(h)),
    "width_max": lambda n, h: int(n.nvmlDeviceGetMaxPcieLinkWidth(h)),
    "replays": lambda n, h: int(n.nvmlDeviceGetPcieReplayCounter(h)),
    "nodes": lambda n, h: _nodes(n.nvmlDeviceGetMemoryAffinity(h, _ALL_NODES, 0)),
    "clock_graphics": lambda n, h: int(n.nvmlDeviceGetClockInfo(h, 0)),
    "clock_sm": lambda n, h: int(n.nvmlDeviceGetClockInfo(h, 1)),
    "clock_memory": lambda n, h: int(n.nvmlDeviceGetClockInfo(h, 2)),
    "clock_graphics_max": lambda n, h: int(n.nvmlDeviceGetMaxClockInfo(h, 0)),
    "clock_sm_max": lambda n, h: int(n.nvmlDeviceGetMaxClockInfo(h, 1)),
    "clock_memory_max": lambda n, h: int(n.nvmlDeviceGetMaxClockInfo(h, 2)),
    "power": lambda n, h: int(n.nvmlDeviceGetPowerUsage(h)),
    "power_average": lambda n, h: _field(n, h, n.NVML_FI_DEV_POWER_AVERAGE),
    "power_instant": lambda n, h: _field(n, h, n.NVML_FI_DEV_POWER_INSTANT),
    "power_limit": lambda n, h: int(n.nvmlDeviceGetPowerManagementLimit(h)),
    "power_default": lambda n, h: int(n.nvmlDeviceGetPowerManagementDefaultLimit(h)),
    "power_max": lambda n, h: int(n.nvmlDeviceGetPowerManagementLimitConstraints(h)[1]),
    "throttle": lambda n, h: int(n.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
    "performance_state": lambda n, h: int(n.nvmlDeviceGetPerformanceState(h)),
    "temperature": lambda n, h: int(n.nvmlDeviceGetTemperature(h, 0)),
    "ecc": lambda n, h: int(n.nvmlDeviceGetEccMode(h)[0]),
    "ecc_corrected": lambda n, h: int(n.nvmlDeviceGetTotalEccErrors(h, 0, 0)),
    "ecc_uncorrected": lambda n, h: int(n.nvmlDeviceGetTotalEccErrors(h, 1, 0)),
    "ecc_corrected_lifetime": lambda n, h: int(n.nvmlDeviceGetTotalEccErrors(h, 0, 1)),
    "ecc_uncorrected_lifetime": lambda n, h: int(n.nvmlDeviceGetTotalEccErrors(h, 1, 1)),
    "rows": lambda n, h: [int(value) for value in n.nvmlDeviceGetRemappedRows(h)],
    "retirement_pending": lambda n, h: int(n.nvmlDeviceGetRetiredPagesPendingStatus(h)),
    "mig": lambda n, h: int(n.nvmlDeviceGetMigMode(h)[0]),
    "parts": lambda n, h: list(_parts(n, h)),
}
"""What is asked of each GPU. Bytes, MHz, mW, degC; counts; `rows`: corrected, uncorrected, pending, failed."""


def _device(library: Any, handle: Any) -> dict[str, Any]:
    told = {name: _try(ask_it, library, handle) for name, ask_it in ANSWERS.items()}
    told["nvlinks"] = list(_nvlinks(library, handle))
    return told


def _nodes(mask: Any) -> list[int]:
    return [
        64 * place + bit for place, value in enumerate(mask) for bit in range(64) if int(value) >> bit & 1
    ]


def _field(library: Any, handle: Any, number: int) -> Any:
    (found,) = library.nvmlDeviceGetFieldValues(handle, [number])
    if int(found.nvmlReturn) != 0:
        return {"error": _WORDS.get(int(found.nvmlReturn), f"error {int(found.nvmlReturn)}")}
    return int(found.value.uiVal)


def _parts(library: Any, handle: Any) -> Iterator[dict[str, Any]]:
    for index in range(min(int(library.nvmlDeviceGetMaxMigDeviceCount(handle)), _PARTS)):
        part = _call(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if not _failed(part):
            yield {name: _try(ANSWERS[name], library, part) for name in ("name", "memory")}


def _nvlinks(library: Any, handle: Any) -> Iterator[dict[str, Any]]:
    for number in range(_NVLINKS):
        active = _call(library, "nvmlDeviceGetNvLinkState", handle, number)
        if _failed(active):
            # A GPU has its links by number without a gap.
            return
        yield {
            "number": number,
            "active": active,
            "version": _call(library, "nvmlDeviceGetNvLinkVersion", handle, number),
            "peer": _try(_nvlink_peer, library, handle, number),
            "megabytes_per_s": _try(_nvlink_speed, library, handle, number),
        }


def _nvlink_peer(library: Any, handle: Any, number: int) -> str:
    return address_of(_text(library.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId))


def _nvlink_speed(library: Any, handle: Any, number: int) -> Any:
    """MB/s in one direction, as the library tells it of one link, or of each alike."""
    name = f"NVML_FI_DEV_NVLINK_SPEED_MBPS_L{number}"
    return _field(library, handle, getattr(library, name, library.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON))


_P2P_READ = 0
_LEVELS = {
    0: "the same board",
    10: "one switch",
    20: "several switches",
    30: "one root complex",
    40: "the node",
    50: "the processors",
}
_ACCESS = {
    0: "ok",
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the link between root complexes does not support it",
    4: "disabled by the registry",
    5: "not supported",
    6: "unknown",
}


def _pairs(library: Any, handles: list[Any], devices: list[dict[str, Any]]) -> None:
    """Adds to each device what lies between it and the others, and whether they reach each other, by address."""
    whole = [(place, handle) for place, handle in enumerate(handles) if not _failed(handle)]
    for place, handle in whole:
        peers, access = {}, {}
        for other, theirs in whole:
            address = devices[other].get("address")
            if other == place or not isinstance(address, str):
                continue
            level = _call(library, "nvmlDeviceGetTopologyCommonAncestor", handle, theirs)
            status = _call(library, "nvmlDeviceGetP2PStatus", handle, theirs, _P2P_READ)
            if isinstance(level, int):
                peers[address] = _LEVELS.get(level, "unknown")
            if isinstance(status, int):
                access[address] = _ACCESS.get(status, "unknown")
        devices[place] |= {"peers": peers, "access": access}


def ask_apart() -> dict[str, Any]:
    """The document, asked by a process of its own; one that hangs or crashes is told as the library's error."""
    running = subprocess.Popen(
        [sys.executable, "-m", "k3gate.host.nvml"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        out, _ = running.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        # A process that hangs in the driver does not end even so: it is not waited for.
        running.kill()
        return {"version": VERSION, "error": f"no answer of the driver within {SECONDS:g} s"}
    found = parse(out)
    return found or {
        "version": VERSION,
        "error": f"the library ended the process that asked it ({running.returncode})",
    }


def parse(raw: bytes) -> dict[str, Any]:
    """A document that was written; empty where it is none."""
    try:
        found = json.loads(raw[:BYTES])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("version") == VERSION else {}


def write(document: dict[str, Any]) -> bytes:
    """The document as a capture keeps it."""
    return (json.dumps(document, indent=1) + "\n").encode("ascii")


def main() -> None:
    """Prints the document: of NVML where nvidia-ml-py is installed, else what nvidia-smi tells."""
    try:
        import pynvml
    except ImportError:
        from k3gate.host import nvidia_smi

        document = nvidia_smi.ask()
    else:
        document = ask(pynvml)
    sys.stdout.buffer.write(write(document))


if __name__ == "__main__":
    main()
