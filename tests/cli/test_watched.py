"""`--storage` and `--bmc` of host and run, from the options to what is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.test_redfish import CHASSIS, TREE, Bmc


@pytest.fixture
def bmc() -> Iterator[Bmc]:
    thermal = {"Temperatures": [{"Name": "Inlet", "ReadingCelsius": 23, "UpperThresholdCritical": 47}]}
    power = {"PowerControl": [{"Name": "System", "PowerConsumedWatts": 464}]}
    served = Bmc({**TREE, f"{CHASSIS}/Thermal": thermal, f"{CHASSIS}/Power": power})
    yield served
    served.close()


def test_host_shows_what_the_bmc_tells(cli, bmc: Bmc) -> None:
    done = cli("host", "--bmc", bmc.url, "--json")
    assert done.code == 0, done.err
    sensors = json.loads(done.out)["sensors"]
    assert {one["id"]: one["value"] for one in sensors["readings"] if one["role"] == "bmc"} == {
        "redfish System": 464.0,
        "redfish Inlet": 23.0,
    }
    shown = cli("host", "--bmc", bmc.url).out
    assert "464 W (System)" in shown and "23.0 degC, 1 sensor" in shown


@pytest.mark.case("THM-14")
def test_a_bmc_that_is_gone_is_told_and_ends_nothing(cli, bmc: Bmc) -> None:
    url = bmc.url
    bmc.close()
    done = cli("host", "--bmc", url)
    assert done.code == 0 and "sensors.bmc: the BMC could not be reached" in done.out.replace("\n    ", " ")


def test_a_run_keeps_the_path_and_asks_the_bmc(cli, bmc: Bmc, tmp_path: Path) -> None:
    only = ("--probe", "selftest", "--only", "selftest/hash.64k", "--rounds", "1", "-q", "--json")
    done = cli("run", *only, "--bmc", bmc.url, "--storage", str(tmp_path))
    assert done.code == 0, done.err
    document = json.loads(done.out)
    (path,) = document["inventory"]["storage"]["paths"]
    assert path["path"] == str(tmp_path) and path["file_system"]
    machine = {one["case"]: one for one in document["outcomes"] if one["probe"] == "machine"}
    watts = [one for one in machine["power"]["metrics"] if one["name"] == "machine.power.highest"]
    heat = [one for one in machine["heat"]["metrics"] if one["name"] == "machine.temperature.room"]
    assert [one["median"] for one in watts] == [464.0] and [one["median"] for one in heat] == [24.0]
    assert machine["monitor"]["metrics"]


@pytest.mark.parametrize("command", ["host", "run"])
def test_an_address_that_is_never_asked_is_refused_before_any_work(cli, command: str) -> None:
    done = cli(command, "--bmc", "http://bmc.example.com")
    assert done.code == 2 and "in the clear" in done.err
