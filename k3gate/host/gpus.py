"""GPUs: NVIDIA's by what their library tells, AMD's by the files of amdgpu, others by what PCI shows.

Each function on PCI that is a GPU is listed, also where its driver cannot be asked; what only the library tells (as in
WSL, which shows no PCI) is listed too. So neither a broken driver nor a lost card reads as "no GPU".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from k3gate.documents import printable
from k3gate.host import amdgpu, nvml, pcie
from k3gate.host.files import Root, explain
from k3gate.host.notes import Notes
from k3gate.records import Gpu, GpuPart, NvLink, PciDevice, PcieLink, State
from k3gate.units import count

_NVIDIA, _AMD, _INTEL = 0x10DE, 0x1002, 0x8086
_VENDORS = {_NVIDIA: "nvidia", _AMD: "amd", _INTEL: "intel"}
_DRIVER = "proc/driver/nvidia/version"
_RATES = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
_LONGEST = 200
THROTTLES = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "clocks kept alike with other GPUs",
    0x20: "too hot, by the driver",
    0x40: "too hot, by the hardware",
    0x80: "power brake",
    0x100: "clocks set for a display",
}
"""Why NVML says that clocks are not higher, by bit (nvmlClocksEventReasons)."""
HARMFUL = frozenset({THROTTLES[bit] for bit in (0x8, 0x20, 0x40, 0x80)})
_CURES = {
    nvml.MISMATCH: "start the machine again, or unload and load the driver: it is of another version than its library",
    nvml.NOT_LOADED: "load it with `sudo modprobe nvidia`, or install NVIDIA's driver",
    nvml.NO_LIBRARY: "install NVIDIA's driver with its library libnvidia-ml.so.1, and `pip install nvidia-ml-py`",
    nvml.LOST: "look for Xid messages in the kernel's log, and reseat the card",
}


def read(
    root: Root, notes: Notes, devices: tuple[PciDevice, ...] | None, *, wsl: bool
) -> tuple[Gpu, ...] | None:
    """All GPUs; empty where there is none, None where neither PCI nor a library tells."""
    shown = [one for one in devices or () if one.kind == "gpu" and one.virtual_of is None]
    own = [one for one in shown if one.vendor_id == _NVIDIA]
    told = _told(root, notes, bool(own) or wsl)
    found = [*_nvidia(own, told)]
    found += [
        amdgpu.read(root, one, _bare(one)) if one.vendor_id == _AMD else _bare(one)
        for one in shown
        if one.vendor_id != _NVIDIA
    ]
    found.sort(key=lambda one: (one.address is None, one.address or ""))
    if not found and devices is None:
        if "gpus" not in notes.entries:
            notes.absent("gpus", pcie.DEVICES, "absent: neither PCI nor NVIDIA's library tells of devices")
        return None
    _note(notes, found, told)
    return tuple(found)


def throttle_words(mask: int) -> tuple[str, ...]:
    """Why clocks are not higher, in words; bits that this version does not know are told by their number."""
    known = [name for bit, name in THROTTLES.items() if mask & bit]
    rest = mask & ~sum(THROTTLES)
    return (*known, *([f"reason {rest:#x}"] if rest else []))


def under_load(mask: int) -> tuple[str, str]:
    """What a mask that was read under load says: "fail", "note", "idle" or "pass", and why (no full stop)."""
    reasons = throttle_words(mask)
    harmful = [name for name in reasons if name in HARMFUL]
    if harmful:
        return "fail", f"the GPU was slowed down: {', '.join(harmful)}"
    if THROTTLES[0x1] in reasons:
        return "idle", "the GPU was not busy"
    if reasons:
        return "note", f"clocks were held by {', '.join(reasons)}"
    return "pass", "nothing held its clocks down"


def _told(root: Root, notes: Notes, expected: bool) -> dict[str, Any]:
    """The library's document; of this machine it is asked only where something speaks for a GPU of NVIDIA's."""
    if root.live and not (expected or root.exists(_DRIVER)):
        return {}
    try:
        found = nvml.parse(root.gpu_answers())
    except (OSError, ValueError) as error:
        state, reason = explain(error)
        if expected:
            notes.unknown("gpus", state, "nvml", f"the answers of NVIDIA's library were not kept ({reason})")
        return {}
    return found


def _nvidia(shown: Sequence[PciDevice], told: Mapping[str, Any]) -> Iterator[Gpu]:
    """The GPUs of one maker: by what the library tells, matched to PCI by address; the rest with the reason."""
    by_address = {one.address: one for one in shown}
    broken = _error(told)
    listed = told.get("devices")
    devices = [
        one for one in (listed if isinstance(listed, list) else [])[: nvml.MOST] if isinstance(one, dict)
    ]
    answered: set[str] = set()
    lost: list[str] = []
    for one in devices:
        if isinstance(one.get("error"), str):
            lost.append(one["error"])
            continue
        gpu = _gpu(one, told)
        if gpu.address is not None:
            answered.add(gpu.address)
        yield _placed(gpu, by_address.get(gpu.address or ""))
    missing = [one for address, one in by_address.items() if address not in answered]
    for place, device in enumerate(missing):
        if broken is not None:
            state, why = _state(broken)
        elif not told:
            state, why = State.NOT_RUN, "NVIDIA's library was not asked"
        else:
            state = State.FAILED
            why = f"lost: on PCI and not in the driver's list ({lost[place] if place < len(lost) else 'not counted'})"
        yield evolve(_bare(device), state=state, reason=why)
    # A handle that failed, and no function on PCI that could be it.
    for why in lost[len(missing) :]:
        yield Gpu(vendor="nvidia", state=State.FAILED, reason=f"lost: {_words(why)}", source=_source(told))


def _state(why: str) -> tuple[State, str]:
    cure = _CURES.get(why)
    state = State.NOT_PRESENT if why in (nvml.NOT_LOADED, nvml.NO_LIBRARY) else State.FAILED
    return state, f"{why}: {cure}" if cure else why


def _error(told: Mapping[str, Any]) -> str | None:
    found = told.get("error")
    return _words(found) if isinstance(found, str) else None


def _source(told: Mapping[str, Any]) -> str:
    return "nvidia-smi" if told.get("source") == "nvidia-smi" else "nvml"


def _words(text: Any) -> str:
    return printable(" ".join(str(text).split()))[:_LONGEST]


class _Answers:
    """The answers about one GPU; what is no answer is kept with its reason."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = told
        self.unknown: dict[str, str] = {}

    def number(
        self, name: str, field: str | None = None, scale: float = 1.0, most: float = 2.0**53
    ) -> float | None:
        found = self._told.get(name)
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= most:
            return found * scale
        self._why(field or name, found)
        return None

    def whole(self, name: str, field: str | None = None, most: int = 2**53) -> int | None:
        found = self.number(name, field, most=most)
        return None if found is None else int(found)

    def text(self, name: str, field: str | None = None) -> str | None:
        found = self._told.get(name)
        if isinstance(found, str) and found.strip():
            return _words(found)
        self._why(field or name, found)
        return None

    def rows(self, name: str) -> list[Any]:
        found = self._told.get(name)
        return list(found)[:64] if isinstance(found, list) else []

    def mapping(self, name: str) -> dict[str, str]:
        found = self._told.get(name)
        told = found if isinstance(found, dict) else {}
        return {
            key: _words(value)
            for key, value in list(told.items())[: nvml.MOST]
            if pcie.ADDRESS.fullmatch(str(key))
        }

    def _why(self, field: str, found: Any) -> None:
        why = found.get("error") if isinstance(found, dict) else None
        self.unknown[field] = (
            _words(why) if isinstance(why, str) else "not told" if found is None else "implausible"
        )


def _gpu(one: Mapping[str, Any], told: Mapping[str, Any]) -> Gpu:
    answers = _Answers(one)
    address = answers.text("address")
    address = address if address is not None and pcie.ADDRESS.fullmatch(address) else None
    mask = answers.whole("throttle", most=2**32)
    pending, failed = _repair(answers)
    memory = answers.whole("memory", "memory_bytes") or None
    power, source = _power(one, answers)
    mig = answers.whole("mig", "partitioned", most=1)
    pstate = answers.whole("performance_state", most=15)
    nodes = answers.rows("nodes")
    driver = told.get("driver")
    return Gpu(
        name=answers.text("name"),
        vendor="nvidia",
        address=address,
        source=_source(told),
        driver=_words(driver) if isinstance(driver, str) else None,
        memory_bytes=memory,
        memory_used_bytes=answers.whole("memory_used", "memory_used_bytes"),
        shared_memory=_shared(one, memory),
        bar_bytes=answers.whole("bar1", "bar_bytes") or None,
        node=nodes[0] if len(nodes) == 1 and isinstance(nodes[0], int) else None,
        link=_link(address, answers),
        clocks=_clocks(answers, ""),
        max_clocks=_clocks(answers, "_max"),
        power_w=power,
        power_source=source,
        power_limit_w=answers.number("power_limit", "power_limit_w", 1e-3),
        power_default_w=answers.number("power_default", "power_default_w", 1e-3),
        power_max_w=answers.number("power_max", "power_max_w", 1e-3),
        temperature=answers.number("temperature", most=200),
        performance_state=None if pstate is None else f"P{pstate}",
        throttle=None if mask is None else throttle_words(mask),
        ecc=_flag(answers.whole("ecc", most=1)),
        ecc_corrected=answers.whole("ecc_corrected"),
        ecc_uncorrected=answers.whole("ecc_uncorrected"),
        ecc_corrected_lifetime=answers.whole("ecc_corrected_lifetime"),
        ecc_uncorrected_lifetime=answers.whole("ecc_uncorrected_lifetime"),
        repair_pending=pending,
        repair_failed=failed,
        partitioned=_flag(mig),
        parts=tuple(_part(part) for part in answers.rows("parts") if isinstance(part, dict)) if mig else (),
        replays=answers.whole("replays"),
        nvlinks=tuple(_nvlink(link) for link in answers.rows("nvlinks") if isinstance(link, dict)),
        peers=answers.mapping("peers"),
        peer_access=answers.mapping("access"),
        unknown=dict(sorted(answers.unknown.items())),
    )


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _shared(one: Mapping[str, Any], memory: int | None) -> bool | None:
    """A GPU that has neither memory of its own nor a link, and says so, uses the machine's."""
    if memory is not None:
        return False
    refused = [one.get(name) for name in ("memory", "width_max")]
    none = all(
        isinstance(found, dict) and any(sign in str(found.get("error")) for sign in ("not supported", "N/A"))
        for found in refused
    )
    return True if none else None


def _link(address: str | None, answers: _Answers) -> PcieLink | None:
    generation, best = answers.whole("generation", "link", 9), answers.whole("generation_max", "link", 9)
    width, widest = answers.whole("width", "link", 32), answers.whole("width_max", "link", 32)
    if address is None or not (generation or best or width or widest):
        return None
    now = (_RATES.get(generation or 0), width or None)
    able = (_RATES.get(best or 0), widest or None)
    # What is told at most is of card and machine together; newer drivers also tell what the card could do elsewhere.
    device = _RATES.get(answers.whole("generation_device", "link", 9) or 0)
    if device is None or able[0] is None or device <= able[0]:
        return pcie.made(address, now, able)
    return pcie.made(address, now, (device, able[1]), None, able)


def _clocks(answers: _Answers, end: str) -> dict[str, float]:
    told = {
        name: answers.number(f"clock_{name}{end}", scale=1e6, most=20_000)
        for name in ("graphics", "sm", "memory")
    }
    return {name: value for name, value in told.items() if value is not None}


_POWER = (
    ("power", "nvmlDeviceGetPowerUsage"),
    ("power_average", "NVML_FI_DEV_POWER_AVERAGE"),
    ("power_instant", "NVML_FI_DEV_POWER_INSTANT"),
)


def _power(one: Mapping[str, Any], answers: _Answers) -> tuple[float | None, str | None]:
    """Watts, and what told them: drivers moved the figure more than once."""
    for name, source in _POWER:
        found = one.get(name)
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 10_000_000:
            named = one.get("power_source")
            return found * 1e-3, _words(named) if name == "power" and isinstance(named, str) else source
    answers.number("power", "power_w")
    return None, None


def _repair(answers: _Answers) -> tuple[bool | None, bool | None]:
    """Whether memory waits to be replaced by spare rows, or could not be."""
    rows = answers.rows("rows")
    if len(rows) == 4 and all(isinstance(row, int) for row in rows):
        return bool(rows[2]), bool(rows[3])
    pending = answers.whole("retirement_pending", "repair_pending", most=1)
    answers.unknown["repair_failed"] = answers.unknown.get("repair_pending", "told of newer GPUs only")
    return _flag(pending), None


def _part(part: Mapping[str, Any]) -> GpuPart:
    answers = _Answers(part)
    return GpuPart(answers.text("name"), answers.whole("memory"))


def _nvlink(link: Mapping[str, Any]) -> NvLink:
    answers = _Answers(link)
    peer = answers.text("peer")
    speed = answers.number("megabytes_per_s", scale=1e6)
    return NvLink(
        number=answers.whole("number", most=64) or 0,
        active=_flag(answers.whole("active", most=1)),
        version=answers.whole("version", most=64),
        bytes_per_s=speed or None,
        peer=peer if peer is not None and pcie.ADDRESS.fullmatch(peer) else None,
    )


def _placed(gpu: Gpu, device: PciDevice | None) -> Gpu:
    """With what PCI tells: there both ends of the link are seen, and the node is that of the slot."""
    if device is None:
        return gpu
    link = gpu.link
    if device.link is not None and device.link.best_width:
        link = device.link
    return evolve(gpu, node=device.node if device.node is not None else gpu.node, link=link)


def _bare(device: PciDevice) -> Gpu:
    return Gpu(
        name=device.device,
        vendor=_VENDORS.get(device.vendor_id or 0, "other"),
        address=device.address,
        source="sysfs",
        driver=device.driver,
        bar_bytes=device.bar_bytes,
        node=device.node,
        link=device.link,
    )


def _note(notes: Notes, found: Sequence[Gpu], told: Mapping[str, Any]) -> None:
    broken = _error(told)
    source = ", ".join(sorted({one.source or "" for one in found} - {""})) or pcie.DEVICES
    bad = [one for one in found if one.state is not State.OK]
    if broken is not None:
        state, why = _state(broken)
        notes.unknown("gpus", state, _source(told), f"{count(len(bad), 'GPU')} on PCI, {why}")
    elif bad:
        notes.unknown(
            "gpus",
            bad[0].state,
            source,
            f"{len(found)} on PCI, {len(found) - len(bad)} answer; {bad[0].address or 'one'}: {bad[0].reason}",
        )
    else:
        notes.seen("gpus", source)
