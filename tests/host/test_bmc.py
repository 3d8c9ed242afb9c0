"""A BMC asked from within: layouts without readings, tools that hang, and answers that are none."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from k3gate.host import bmc
from k3gate.host.bmc import Answer
from k3gate.records import State


def answering(text: str, power: str = "", code: int | None = 0, errors: str = "") -> bmc.Ask:
    def ask(arguments: Sequence[str], seconds: float) -> Answer:
        if "dcmi" in arguments:
            return Answer(0 if power else 1, power, "")
        return Answer(code, text, errors)

    return ask


@pytest.mark.case("THM-12")
def test_rows_without_a_reading_are_counted_and_no_zero() -> None:
    text = (
        "Could not open file /usr/share/misc/enterprise-numbers: registry not found\n"
        "CPU_0_DTS_TEMP   | no reading        | ns\n"
        "CPU2 Vcore       | 05h | ns  |  3.2 | No Reading\n"
        "MB_Inlet_TEMP    | 21 degrees C      | ok\n"
        "Fan1             | 41h | ok  | 29.1 | 5280 RPM\n"
        "CPU1 Temp        | 45.000     | degrees C  | ok    | na        | na        | na        | 95.0\n"
        "Chassis Intru    | 0x0        | discrete   | 0x0000| na        | na\n"
        "PSU2             | 00h | ok  | 10.2 | Presence detected\n"
    )
    found = bmc.read(answering(text, "    Instantaneous power reading:                   317 Watts\n"))
    assert found.state is State.OK
    assert {one.label: (one.value, one.unit) for one in found.readings} == {
        "MB_Inlet_TEMP": (21.0, "degC"),
        "Fan1": (5280.0, "rpm"),
        "CPU1 Temp": (45.0, "degC"),
        "power reading": (317.0, "W"),
    }
    assert found.absent == 3
    assert all(one.role == "bmc" for one in found.readings)


@pytest.mark.case("THM-15")
@pytest.mark.parametrize("text", ["", "\n", "Sensor | Reading | Status\n", "SDR repository\n"])
def test_exit_0_without_a_row_is_no_data(text: str) -> None:
    found = bmc.read(answering(text))
    assert found.state is State.NOT_PRESENT and found.readings == ()
    assert found.reason == "ipmitool ended well and told no sensor"


@pytest.mark.case("THM-16")
def test_no_bmc_is_no_zero() -> None:
    told = "Could not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0: No such file or directory"
    found = bmc.read(answering("", code=1, errors=told))
    assert found.state is State.NOT_PRESENT and found.readings == ()
    assert found.reason == "there is no BMC that the kernel could ask"


@pytest.mark.case("THM-14")
def test_a_tool_that_fails_late_says_what_it_said() -> None:
    found = bmc.read(answering("", code=1, errors="Get SDR 0000 command failed:  internal error"))
    assert found.state is State.FAILED
    assert found.reason == "ipmitool failed with exit status 1: Get SDR 0000 command failed: internal error"


@pytest.mark.case("THM-14")
def test_a_tool_that_never_returns_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "ipmitool"
    tool.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\necho $$ > {tmp_path}/own\nwait\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    begun = time.monotonic()
    found = bmc.read(seconds=0.5)
    assert time.monotonic() - begun < 30
    assert found.state is State.FAILED and "took longer than 0.5 s" in (found.reason or "")
    for name in ("own", "child"):
        number = (tmp_path / name).read_text().strip()
        status = Path(f"/proc/{number}/stat")
        # Gone, or dead and not yet reaped by whoever inherited it.
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_tool_that_is_not_there_is_one_line() -> None:
    answer = bmc.Tool().ask(["k3gate-no-such-tool"], 1.0)
    assert (answer.code, answer.errors) == (127, "No such file or directory")
