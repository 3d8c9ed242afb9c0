"""Temperatures, fans, power and voltages as the kernel's hwmon drivers tell them.

A sensor is named by chip, place and label, since the numbers of hwmon folders change from start to start. Values
that cannot be true stay out of every figure and say why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from k3gate.host import parsing, pcie
from k3gate.host.files import Root, explain
from k3gate.host.notes import Notes
from k3gate.records import Cpu, SensorReading, State

CLASS = "sys/class/hwmon"
_CHIP = re.compile(r"hwmon\d{1,5}", re.ASCII)
_INPUT = re.compile(r"(temp|fan|in|curr|power|energy|freq)(\d{1,3})_(input|average)", re.ASCII)
_I2C = re.compile(r"\d{1,4}-[0-9a-f]{4}", re.ASCII)
_CONTROLLER = re.compile(r"nvme\d{1,5}", re.ASCII)
_CHIPS, _SENSORS = 1024, 512
_LONGEST = 60
# By the first part of the file's name: quantity, unit, and what one count is (Documentation/hwmon/sysfs-interface).
_QUANTITIES = {
    "temp": ("temperature", "degC", 1e-3),
    "fan": ("fan", "rpm", 1.0),
    "in": ("voltage", "V", 1e-3),
    "curr": ("current", "A", 1e-3),
    "power": ("power", "W", 1e-6),
    "energy": ("energy", "J", 1e-6),
    "freq": ("frequency", "Hz", 1.0),
}
_CPU_CHIPS = frozenset({"k10temp", "zenpower", "coretemp", "fam15h_power", "cpu_thermal"})
_MODULE_CHIPS = frozenset({"jc42", "spd5118"})
_DRIVE_CHIPS = frozenset({"nvme", "drivetemp"})
_GPU_CHIPS = frozenset({"amdgpu", "nouveau", "i915", "xe", "radeon"})
# Of these labels the first that a socket has is its temperature.
_CPU_LABELS = ("Package id", "Physical id", "Tdie", "Tctl", "temp1")
_OF_PACKAGE = re.compile(r"(?:Package|Physical) id (\d{1,4})", re.ASCII)
_COLDEST, _HOTTEST = -40.0, 150.0
_SENTINELS = (127.0, -128.0)
_FASTEST_FAN, _MOST_WATTS = 100_000.0, 100_000.0


@frozen
class Channel:
    """An input of a chip: its file, and how the number in it is to be taken. `board` chips have sentinels."""

    source: str
    quantity: str
    scale: float
    board: bool


def read(root: Root, notes: Notes, cpu: Cpu) -> tuple[SensorReading, ...]:
    """All sensors; empty with the reason in the notes where there are none."""
    found: dict[str, SensorReading] = {}
    for chip in sorted((n for n in root.names(CLASS) if _CHIP.fullmatch(n)), key=lambda n: int(n[5:]))[
        :_CHIPS
    ]:
        for sensor in _chip(root, f"{CLASS}/{chip}"):
            # Two inputs of one chip may bear one label.
            name = sensor.id if sensor.id not in found else f"{sensor.id} ({_input(sensor)})"
            found.setdefault(name, evolve(sensor, id=name))
    if not found:
        notes.absent(
            "sensors.readings",
            CLASS,
            "no hwmon driver tells a temperature; load k10temp or coretemp, and jc42 or spd5118 (a guest has none)",
        )
        return ()
    notes.seen("sensors.readings", f"{CLASS}/*")
    return with_packages(tuple(found[name] for name in sorted(found)), cpu)


def channel(sensor: SensorReading) -> Channel | None:
    """How to read a sensor again; None where it is no file."""
    if sensor.source is None or not sensor.source.startswith("sys/"):
        return None
    match = _INPUT.fullmatch(_input(sensor))
    if match is None:
        return None
    return Channel(sensor.source, sensor.quantity, _QUANTITIES[match[1]][2], sensor.role == "board")


def value(text: str, at: Channel) -> float:
    """The number in a sensor's file in the unit of its quantity; `ValueError` where it cannot be true."""
    return plausible(parsing.integer(text, -(2**63)) * at.scale, at.quantity, board=at.board)


def plausible(number: float, quantity: str, *, board: bool) -> float:
    """`number` again; `ValueError` with the reason where no such sensor tells it truly."""
    if quantity == "temperature":
        if not _COLDEST <= number <= _HOTTEST:
            raise ValueError(f"{number:g} degC is no temperature of a running machine")
        if board and number in _SENTINELS:
            raise ValueError(f"{number:g} degC stands for a sensor that is not connected")
        if number == 0:
            raise ValueError("exactly 0 degC is suspicious, and stands mostly for nothing connected")
    elif quantity == "fan" and not 0 <= number <= _FASTEST_FAN:
        raise ValueError(f"{number:g} rpm is no speed of a fan")
    elif quantity == "power" and not 0 <= number <= _MOST_WATTS:
        raise ValueError(f"{number:g} W is no power of a machine")
    return number


def cpu_temperatures(readings: Sequence[SensorReading]) -> Mapping[str, SensorReading]:
    """The one sensor that stands for each package, by the package: "Package id", Tdie, else Tctl or the first."""
    found: dict[str, SensorReading] = {}
    for start in _CPU_LABELS:
        for sensor in readings:
            fits = (
                sensor.role == "cpu" and sensor.quantity == "temperature" and sensor.label.startswith(start)
            )
            if fits and sensor.of is not None and sensor.state is State.OK:
                found.setdefault(sensor.of, sensor)
    return dict(sorted(found.items()))


def headroom(sensor: SensorReading) -> float | None:
    """Degrees to the lowest limit that the sensor itself tells; None where it tells none."""
    limits = [limit for limit in (sensor.maximum, sensor.critical) if limit is not None]
    return None if not limits or sensor.value is None else min(limits) - sensor.value


def _input(sensor: SensorReading) -> str:
    return (sensor.source or "").rpartition("/")[2]


def _chip(root: Root, base: str) -> Iterator[SensorReading]:
    names = root.names(base)
    if not any(_INPUT.fullmatch(name) for name in names) and root.folder(f"{base}/device"):
        # Before 3.13 the files lay in the folder of the device.
        inner = root.names(f"{base}/device")
        if any(_INPUT.fullmatch(name) for name in inner):
            base, names = f"{base}/device", inner
    inputs = [match for name in names if (match := _INPUT.fullmatch(name))]
    if not inputs:
        return
    device = root.real(f"{base}/device") or re.sub(r"/hwmon/hwmon\d+$", "", root.real(base) or base)
    chip = _words(root, f"{base}/name") or device.rpartition("/")[2]
    place, drive = _place(device), None
    if chip == "nvme":
        drive = next((part for part in device.split("/")[::-1] if _CONTROLLER.fullmatch(part)), None)
    elif chip == "drivetemp":
        drive = next(iter(root.names(f"{device}/block")), None)
        place = f"{place}/{device.rpartition('/')[2]}"
    role = _role(chip)
    seen: set[str] = set()
    for match in sorted(inputs, key=lambda m: (m[1], int(m[2]), m[3] != "input"))[:_SENSORS]:
        stem = f"{match[1]}{match[2]}"
        if stem in seen:
            continue
        seen.add(stem)
        yield _sensor(root, base, match, chip, place, role, drive)


def _role(chip: str) -> str:
    for role, chips in (
        ("cpu", _CPU_CHIPS),
        ("module", _MODULE_CHIPS),
        ("drive", _DRIVE_CHIPS),
        ("gpu", _GPU_CHIPS),
    ):
        if chip in chips:
            return role
    return "board"


def _place(device: str) -> str:
    """Where a chip hangs, as it is the same after each start: a PCI address, a place on a bus, a platform device."""
    for part in device.split("/")[::-1]:
        if pcie.ADDRESS.fullmatch(part) or _I2C.fullmatch(part):
            return part
    return device.rpartition("/")[2]


def _sensor(
    root: Root, base: str, match: re.Match[str], chip: str, place: str, role: str, drive: str | None
) -> SensorReading:
    stem = f"{match[1]}{match[2]}"
    quantity, unit, scale = _QUANTITIES[match[1]]
    label = _words(root, f"{base}/{stem}_label") or stem
    sensor = SensorReading(
        id=f"{chip} {place} {label}",
        chip=chip,
        label=label,
        quantity=quantity,
        unit=unit,
        role=role,
        of=drive,
        maximum=_limit(root, f"{base}/{stem}_max", quantity, scale),
        critical=_limit(root, f"{base}/{stem}_crit", quantity, scale),
        minimum=_limit(root, f"{base}/{stem}_min", quantity, scale),
        # AMD's control value may lie above the die's temperature by an offset (Documentation/hwmon/k10temp).
        offset=chip == "k10temp" and quantity == "temperature" and label in ("Tctl", stem),
        source=f"{base}/{match[0]}",
    )
    if root.line(f"{base}/{stem}_fault") == "1":
        return evolve(sensor, state=State.FAILED, reason="the chip reports a fault of this sensor")
    reading = root.read(f"{base}/{match[0]}")
    if reading.text is None:
        return evolve(sensor, state=reading.state, reason=reading.reason or "unreadable")
    try:
        return evolve(sensor, value=value(reading.text, Channel("", quantity, scale, role == "board")))
    except ValueError as error:
        return evolve(sensor, state=State.FAILED, reason=explain(error)[1])


def _limit(root: Root, path: str, quantity: str, scale: float) -> float | None:
    """A limit; None where the chip has none, which some write as a number that no machine reaches."""
    try:
        number = parsing.integer(root.line(path) or "", -(2**63)) * scale
        return plausible(number, quantity, board=True) or None
    except ValueError:
        return None


def with_packages(readings: Sequence[SensorReading], cpu: Cpu) -> tuple[SensorReading, ...]:
    """The sensors of processors with the package that each is of, as far as names or the order of chips tell."""
    packages = sorted(set(cpu.package_of.values()))
    chips = list(dict.fromkeys(_chip_key(one) for one in readings if one.role == "cpu"))
    named = {
        _chip_key(one): match[1]
        for one in readings
        if one.role == "cpu" and (match := _OF_PACKAGE.fullmatch(one.label))
    }
    if len(set(named.values())) < len(named):
        named = {}
    unnamed = sorted(chip for chip in chips if chip not in named)
    for place, chip in enumerate(unnamed):
        if packages and len(unnamed) % len(packages) == 0:
            # Sockets with several dies have a chip for each, in the order of their addresses.
            named[chip] = str(packages[place * len(packages) // len(unnamed)])
        elif not packages:
            named[chip] = str(place)
    return tuple(evolve(one, of=named.get(_chip_key(one))) if one.role == "cpu" else one for one in readings)


def _chip_key(sensor: SensorReading) -> str:
    """The id without the label."""
    return sensor.id[: sensor.id.rindex(sensor.label)]


def _words(root: Root, path: str) -> str | None:
    text = parsing.words(root.line(path))
    return text[:_LONGEST] if text else None
