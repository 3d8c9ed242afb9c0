"""The sources that a monitor reads on this machine: which there are, how often each is worth it, and how it is read.

Reading disturbs: a core's sensor interrupts that core, a module's or a drive's takes a bus. So a package is read by
one sensor, and what is slow or dear has a longer period.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from k3gate import series
from k3gate.documents import decode
from k3gate.host import bmc as ipmi
from k3gate.host import counters, edac, power, sensors, smart
from k3gate.host.bmc import BmcReadings
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.probing import idle
from k3gate.probing.monitor import PERIOD_S, Quantity, Source, Told
from k3gate.records import EventCounter, Inventory, SensorReading, State

_QUANTITIES = {"temperature": series.TEMPERATURE, "fan": series.FAN, "power": series.POWER}
_SLOW_S, _ERRORS_S, _LOGS_S, _BMC_S = 2.0, 30.0, 10.0, 10.0
_READ_BYTES = 4096
_TABLE_BYTES = 2**20
_MOST_SENSORS = 64
_SECTOR = 512


class Remote(Protocol):
    """A BMC that is asked over the network. `close` ends an answer that is awaited."""

    def read(self) -> BmcReadings:
        """What it tells."""

    def close(self) -> None:
        """Ask no more."""


class Files:
    """Small files that stay open: reading one again is one system call. A file that fails gives None."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._open: dict[str, int | None] = {}

    def read(self, path: str, limit: int = _READ_BYTES) -> str | None:
        """The text of a file relative to the root."""
        if path not in self._open:
            try:
                self._open[path] = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                self._open[path] = None
        descriptor = self._open[path]
        if descriptor is None:
            return None
        try:
            return decode(os.pread(descriptor, limit, 0)).strip()
        except OSError:
            return None

    def close(self) -> None:
        """Let go of all."""
        for descriptor in self._open.values():
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)
        self._open = {}


def build(
    inventory: Inventory,
    *,
    root: str = "/",
    bmc: Remote | None = None,
    period_s: float = PERIOD_S,
) -> tuple[Source, ...]:
    """All sources that this machine has. `bmc`: asks a BMC over the network, in place of the one within."""
    found: list[Source | None] = [
        *_readings(inventory, root, period_s),
        _energy(inventory, root, period_s),
        _throttling(inventory, root),
        _clocks(inventory, root),
        _processors(root),
        _disks(inventory, root),
        _errors(root),
        _logs(inventory, root),
        _bmc(inventory, bmc),
    ]
    return tuple(source for source in found if source is not None)


def _readings(inventory: Inventory, root: str, period_s: float) -> Iterator[Source]:
    told = inventory.sensors.readings if inventory.sensors else ()
    packages = list(sensors.cpu_temperatures(told).values())
    groups: dict[str, tuple[float, list[SensorReading]]] = {"processors' heat": (period_s, packages)}
    for role, name, period in (
        ("module", "modules' heat", _SLOW_S),
        ("drive", "drives' heat", _SLOW_S),
        ("gpu", "GPUs", 2 * period_s),
        ("board", "board", _SLOW_S),
    ):
        own = [one for one in told if one.role == role and one.quantity in _QUANTITIES]
        # A sensor that told nothing true at first tells nothing later.
        groups[name] = (period, [one for one in own if one.state is State.OK][:_MOST_SENSORS])
    for name, (period, readings) in groups.items():
        if readings:
            yield _of_sensors(name, period, readings, root)


def quantity_of(sensor: SensorReading) -> Quantity:
    """The series of a sensor; `limit` is the lowest that the sensor itself tells."""
    limits = [limit for limit in (sensor.maximum, sensor.critical) if limit is not None]
    pairs: list[tuple[str, str | float | None]] = [
        ("sensor", sensor.id),
        ("role", sensor.role),
        ("of", sensor.of),
    ]
    if sensor.quantity == "temperature":
        pairs.append(("limit", min(limits) if limits else None))
    return Quantity(_QUANTITIES[sensor.quantity], sensor.unit, tuple(pairs))


def _of_sensors(name: str, period_s: float, readings: Sequence[SensorReading], root: str) -> Source:
    channels = [
        (quantity_of(one), channel) for one in readings if (channel := sensors.channel(one)) is not None
    ]
    files = Files(root)

    def read(now: float) -> Told:
        found: dict[Quantity, float | None] = {}
        for quantity, channel in channels:
            text = files.read(channel.source)
            found[quantity] = None
            if text is not None:
                with suppress(ValueError):
                    found[quantity] = sensors.value(text, channel)
        return found

    return Source(name, period_s, read, close=files.close)


def _energy(inventory: Inventory, root: str, period_s: float) -> Source | None:
    zones = [
        zone
        for zone in (inventory.sensors.power_zones if inventory.sensors else ())
        if zone.state is State.OK
    ]
    if not zones:
        return None
    files = Files(root)
    before: dict[str, tuple[float, float]] = {}

    def read(now: float) -> Told:
        found: dict[Quantity, float | None] = {}
        for zone in zones:
            text = files.read(zone.source or "")
            if text is None or not text.isdigit():
                before.pop(zone.id, None)
                continue
            joules = int(text) * 1e-6
            last = before.get(zone.id)
            before[zone.id] = (joules, now)
            if last is None or now <= last[1]:
                continue
            used = power.joules(last[0], joules, zone.range_j)
            pairs = (
                ("sensor", zone.id),
                ("role", "cpu"),
                ("of", None if zone.package is None else str(zone.package)),
            )
            found[Quantity(series.POWER, "W", (*pairs, ("domain", zone.domain)))] = (
                None if used is None else used / (now - last[1])
            )
        return found

    return Source("energy counters", period_s, read, close=files.close)


def _throttling(inventory: Inventory, root: str) -> Source | None:
    base, cpu = Root(root), inventory.cpu
    if not list(counters.throttling(base, cpu)):
        return None
    return Source("throttling", _SLOW_S, lambda now: _events(counters.throttling(base, cpu)), ends=True)


def _clocks(inventory: Inventory, root: str) -> Source | None:
    files = Files(root)
    first: dict[int, int] = {}
    for cpu in inventory.cpu.online or ():
        first.setdefault(inventory.cpu.package_of.get(cpu, 0), cpu)
    paths = {
        Quantity(
            series.CLOCK, "Hz", (("cpu", cpu), ("of", str(package)))
        ): f"{counters.CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq"
        for package, cpu in first.items()
    }
    if not any((files.read(path) or "").isdigit() for path in paths.values()):
        files.close()
        return None

    def read(now: float) -> Told:
        texts = {quantity: files.read(path) for quantity, path in paths.items()}
        return {
            quantity: int(text) * 1e3 if text and text.isdigit() else None for quantity, text in texts.items()
        }

    return Source("clocks", 2 * PERIOD_S, read, close=files.close)


def _processors(root: str) -> Source | None:
    files = Files(root)
    if idle.parse(files.read("proc/stat") or "") is None:
        files.close()
        return None
    before: list[tuple[int, ...]] = []
    busy, stolen = Quantity(series.BUSY, "1"), Quantity(series.STOLEN, "1")

    def read(now: float) -> Told:
        ticks = idle.parse(files.read("proc/stat") or "")
        last = before.pop() if before else None
        if ticks is None:
            return {}
        before.append(ticks)
        if last is None:
            return {}
        used = idle.busy_shares(last, ticks)
        return {} if used is None else {busy: used[0], stolen: used[1]}

    return Source("processors", 2 * PERIOD_S, read, close=files.close)


def _disks(inventory: Inventory, root: str) -> Source | None:
    names = {drive.name for drive in inventory.storage.drives} if inventory.storage else set()
    files = Files(root)
    if not names or not disk_bytes(files.read("proc/diskstats", _TABLE_BYTES) or "", names):
        files.close()
        return None
    before: dict[str, tuple[int, int]] = {}
    times: list[float] = []

    def read(now: float) -> Told:
        found: dict[Quantity, float | None] = {}
        counts = disk_bytes(files.read("proc/diskstats", _TABLE_BYTES) or "", names)
        span = now - times.pop() if times else 0.0
        times.append(now)
        for name, moved in counts.items():
            last = before.get(name)
            before[name] = moved
            if last is not None and span > 0:
                for name_of, early, late in zip(
                    (series.DISK_READ, series.DISK_WRITTEN), last, moved, strict=True
                ):
                    found[Quantity(name_of, "B/s", (("drive", name),))] = max(0, late - early) / span
        return found

    return Source("drives' traffic", 2 * PERIOD_S, read, close=files.close)


def disk_bytes(text: str, names: Iterable[str]) -> Mapping[str, tuple[int, int]]:
    """Bytes read and written of each drive since the start, from /proc/diskstats (iostats.rst)."""
    found: dict[str, tuple[int, int]] = {}
    wanted = set(names)
    for line in text.splitlines():
        words = line.split()
        if (
            len(words) >= 10
            and words[2] in wanted
            and re.fullmatch(r"\d{1,20} \d{1,20}", f"{words[5]} {words[9]}")
        ):
            found[words[2]] = (int(words[5]) * _SECTOR, int(words[9]) * _SECTOR)
    return found


def _errors(root: str) -> Source | None:
    base = Root(root)

    def read(now: float) -> Told:
        memory = counters.memory(edac.read(base, Notes()))
        return _events([*memory, *counters.links(base), *counters.machine_checks(base)])

    return Source("errors", _ERRORS_S, read, ends=True) if read(0.0) else None


def _logs(inventory: Inventory, root: str) -> Source | None:
    drives = [
        drive
        for drive in (inventory.storage.drives if inventory.storage else ())
        if drive.health and drive.controller
    ]
    if not drives:
        return None
    base = Root(root)

    def read(now: float) -> Told:
        found: dict[Quantity, float | None] = {}
        for drive in drives:
            assert drive.controller is not None
            try:
                log = smart.parse(base.smart_log(drive.controller))
            except (OSError, ValueError):
                continue  # a drive that is gone has no more points; its last stay
            throttled = [
                log.light_throttle_seconds,
                log.heavy_throttle_seconds,
                log.light_throttles,
                log.heavy_throttles,
                log.warning_seconds,
                log.critical_seconds,
            ]
            domain = f"drive {drive.name}"
            for counter in (
                EventCounter(
                    f"smart {drive.name} throttling", "throttle", domain, sum(filter(None, throttled))
                ),
                EventCounter(f"smart {drive.name} media", "uncorrected", domain, log.media_errors),
            ):
                found.update(_events([counter]))
        return found

    return Source("drives' logs", _LOGS_S, read, ends=True)


def _bmc(inventory: Inventory, bmc: Remote | None) -> Source | None:
    within = inventory.sensors.bmc if inventory.sensors else None
    if bmc is not None:
        ask, end = bmc.read, bmc.close
    elif within is not None and within.state is State.OK and within.interface == "ipmitool":
        tool = ipmi.Tool()
        ask, end = partial(ipmi.read, tool.ask), tool.close
    else:
        return None

    def read(now: float) -> Told:
        told = ask()
        if told.state is not State.OK:
            raise OSError(told.reason or "the BMC did not answer")
        return {quantity_of(one): one.value for one in told.readings if one.quantity in _QUANTITIES}

    return Source("BMC", _BMC_S, read, interrupt=end)


def _events(found: Iterable[EventCounter]) -> dict[Quantity, float | None]:
    return {
        Quantity(
            series.EVENTS, "1", (("counter", one.id), ("kind", one.kind), ("domain", one.domain))
        ): one.value
        for one in found
    }
