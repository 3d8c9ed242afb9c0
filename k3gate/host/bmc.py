"""The management controller (BMC) asked from within, by ipmitool: temperatures, fans, power.

A BMC takes seconds to answer and may never do so. Each question has a time limit, after which the tool is ended
with its children; an answer without values is none.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from k3gate.documents import decode, printable
from k3gate.host import sensors
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import Bmc, SensorReading, State

if TYPE_CHECKING:
    import subprocess

DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
SECONDS = 20.0
"""How long a question may take; a list of a hundred sensors takes some BMCs ten."""
_SENSORS = ("ipmitool", "sdr", "list", "full")
_POWER = ("ipmitool", "dcmi", "power", "reading")
_READ_BYTES = 2**20
_LINES = 4096
_LONGEST = 60
_VALUE = re.compile(r"(-?\d{1,9}(?:\.\d{1,6})?) (degrees C|RPM|Watts|Volts|Amps)", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,6})?", re.ASCII)
_UNITS = {
    "degrees C": ("temperature", "degC"),
    "RPM": ("fan", "rpm"),
    "Watts": ("power", "W"),
    "Volts": ("voltage", "V"),
    "Amps": ("current", "A"),
}
_GOOD = frozenset({"ok", "nc", "cr", "nr", "lnc", "lcr", "unc", "ucr"})
_CONSUMED = re.compile(r"Instantaneous power reading:\s{0,40}(\d{1,6}) Watts", re.ASCII)
_NO_DEVICE = re.compile(r"Could not open device at|No such file or directory", re.ASCII)


@frozen
class Answer:
    """What a tool printed and how it ended; `code` None: it was ended, since it took too long."""

    code: int | None
    output: str
    errors: str


Ask = Callable[[Sequence[str], float], Answer]


@frozen
class BmcReadings:
    """What the BMC told. `state` OK: `readings` hold values; `absent`: sensors that it names without a value."""

    state: State
    reason: str | None
    readings: tuple[SensorReading, ...] = ()
    absent: int = 0


def look(root: Root, notes: Notes) -> Bmc:
    """Whether a BMC may be asked from here; asks it nothing, and opens nothing."""
    field = "sensors.bmc"
    if not root.live:
        notes.unknown(field, State.NOT_RUN, None, "only the live machine can be asked")
        return Bmc(State.NOT_RUN, "only the live machine can be asked")
    there = next((path for path in DEVICES if root.exists(path)), None)
    if there is None:
        reason = (
            "the kernel shows no BMC; load ipmi_si and ipmi_devintf, or name its Redfish address with --bmc"
        )
        notes.absent(field, f"/{DEVICES[0]}", reason)
        return Bmc(State.NOT_PRESENT, reason)
    if not os.access(f"/{there}", os.R_OK | os.W_OK):
        reason = "not permitted; run as root, or name the Redfish address of the BMC with --bmc"
        notes.unknown(field, State.NOT_PERMITTED, f"/{there}", reason)
        return Bmc(State.NOT_PERMITTED, reason)
    import shutil

    if shutil.which(_SENSORS[0]) is None:
        reason = "ipmitool is not installed; install it, or name the Redfish address of the BMC with --bmc"
        notes.absent(field, f"/{there}", reason)
        return Bmc(State.NOT_PRESENT, reason)
    notes.seen(field, f"/{there}")
    return Bmc(State.OK, None, "ipmitool")


def read(ask: Ask | None = None, seconds: float = SECONDS) -> BmcReadings:
    """All sensors and the power of the machine, in at most two questions of so many `seconds`."""
    ask = ask or Tool().ask
    answer = ask(_SENSORS, seconds)
    failed = _failure(answer, seconds)
    if failed is not None:
        return failed
    readings, absent = parse(answer.output)
    if not readings and not absent:
        return BmcReadings(State.NOT_PRESENT, "ipmitool ended well and told no sensor")
    power = ask(_POWER, seconds)
    match = _CONSUMED.search(power.output) if power.code == 0 else None
    if match and int(match[1]) > 0:
        readings = (*readings, reading("ipmi", "power reading", "power", "W", float(match[1])))
    if not readings:
        return BmcReadings(
            State.NOT_PRESENT, f"none of {absent} sensors of the BMC has a reading", (), absent
        )
    return BmcReadings(State.OK, None, readings, absent)


def parse(text: str) -> tuple[tuple[SensorReading, ...], int]:
    """The sensors with a value in a list of ipmitool's (sdr, sdr elist or sensor), and how many have none."""
    found: dict[str, SensorReading] = {}
    absent = 0
    for line in text.splitlines()[:_LINES]:
        fields = [part.strip() for part in line.split("|")]
        if len(fields) < 3 or not fields[0]:
            continue  # a warning, or the head of a table
        known = _value(fields)
        if known is None:
            absent += _is_sensor(fields)
            continue
        number, word = known
        quantity, unit = _UNITS[word]
        one = reading("ipmi", printable(fields[0])[:_LONGEST], quantity, unit, number)
        found.setdefault(one.id, one)
    return tuple(found.values()), absent


def reading(
    chip: str,
    label: str,
    quantity: str,
    unit: str,
    value: float,
    *,
    maximum: float | None = None,
    critical: float | None = None,
) -> SensorReading:
    """A sensor of a BMC; a value that cannot be true is kept out and says why."""
    one = SensorReading(
        id=f"{chip} {label}",
        chip=chip,
        label=label,
        quantity=quantity,
        unit=unit,
        role="bmc",
        maximum=maximum,
        critical=critical,
    )
    try:
        return evolve(one, value=sensors.plausible(value, quantity, board=True))
    except ValueError as error:
        return evolve(one, state=State.FAILED, reason=f"implausible: {error}")


class Tool:
    """Runs tools, one at a time. Each has a session of its own, so that it can be ended with all its children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, arguments: Sequence[str], seconds: float) -> Answer:
        """Run one for so many seconds at most."""
        import subprocess

        with self._lock:
            if self._closed:
                return Answer(None, "", "")
            try:
                process = self._process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    env={**os.environ, "LC_ALL": "C"},
                )
            except OSError as error:
                return Answer(127, "", error.strerror or str(error))
        try:
            output, errors = process.communicate(timeout=seconds)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code, output, errors = None, b"", b""
        finally:
            with self._lock:
                self._process = None
                _kill(process)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        return Answer(code, decode(output[:_READ_BYTES]), decode(errors[:_READ_BYTES]))

    def close(self) -> None:
        """End the tool that runs, and run no more; from any thread."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                _kill(self._process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, unless it was reaped: its number may be another's by now."""
    import signal

    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _failure(answer: Answer, seconds: float) -> BmcReadings | None:
    if answer.code is None:
        return BmcReadings(State.FAILED, f"unavailable: the BMC took longer than {seconds:g} s")
    if answer.code == 0:
        return None
    told = " ".join(printable(answer.errors or answer.output).split())[:200]
    if _NO_DEVICE.search(told):
        return BmcReadings(State.NOT_PRESENT, "there is no BMC that the kernel could ask")
    return BmcReadings(
        State.FAILED, f"ipmitool failed with exit status {answer.code}: {told or 'without a word'}"
    )


def _value(fields: list[str]) -> tuple[float, str] | None:
    """Value and unit of a row, in whichever layout; None where it has none, or where its state is no good one."""
    for field in fields[1:]:
        match = _VALUE.fullmatch(field)
        if match:
            good = any(other.lower() in _GOOD for other in fields[1:])
            return (float(match[1]), match[2]) if good else None
    if (
        len(fields) >= 4
        and fields[2] in _UNITS
        and _NUMBER.fullmatch(fields[1])
        and fields[3].lower() in _GOOD
    ):
        return float(fields[1]), fields[2]
    return None


def _is_sensor(fields: list[str]) -> bool:
    """Whether a row is of a sensor without a value, and not of a switch, a count, or the head of a table."""
    rest = [field.lower() for field in fields[1:]]
    return any(field in ("ns", "na", "no reading", "disabled") for field in rest)
