"""A BMC asked by Redfish on loopback: recorded answers, missing fields, slow and hostile services."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from k3gate import host
from k3gate.errors import UsageError
from k3gate.host import redfish
from k3gate.host.bmc import BmcReadings
from k3gate.host.redfish import Access
from k3gate.records import State

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "machines" / "redfish-dell"
CHASSIS = "/redfish/v1/Chassis/1"
TREE: dict[str, Any] = {
    "/redfish/v1/": {"Chassis": {"@odata.id": "/redfish/v1/Chassis"}},
    "/redfish/v1/Chassis": {"Members": [{"@odata.id": CHASSIS}]},
    CHASSIS: {"Power": {"@odata.id": f"{CHASSIS}/Power"}, "Thermal": {"@odata.id": f"{CHASSIS}/Thermal"}},
}


class Bmc:
    """A service on loopback. `asked`: method and path of each request; `late`: an event that holds answers back."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree = tree
        self.asked: list[tuple[str, str]] = []
        self.users: set[str | None] = set()
        self.late: threading.Event | None = None
        bmc = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                bmc.asked.append((self.command, self.path))
                bmc.users.add(self.headers.get("Authorization"))
                if bmc.late is not None:
                    bmc.late.wait(30)
                found = bmc.tree.get(self.path)
                status, body = (
                    found if isinstance(found, tuple) else (200 if found is not None else 404, found)
                )
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:9/redfish/v1/")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(raw)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = do_HEAD = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        if self.late is not None:
            self.late.set()
        self.server.shutdown()
        self.server.server_close()

    def read(self, *, seconds: float = 10.0, user: str | None = None) -> BmcReadings:
        with redfish.Service(Access(self.url, user, "word" if user else None), seconds=seconds) as service:
            return service.read()


@pytest.fixture
def serve() -> Iterator[Callable[..., Bmc]]:
    """`serve({path: document})`: a BMC that answers so."""
    made: list[Bmc] = []

    def start(*parts: dict[str, Any]) -> Bmc:
        made.append(Bmc({name: one for part in (TREE, *parts) for name, one in part.items()}))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize(("model", "supplies"), [("dell", {}), ("dell_c6615", {"PS1": 164.0, "PS2": 162.0})])
def test_the_recorded_answers_of_two_servers(
    serve: Callable[..., Bmc], model: str, supplies: dict[str, float]
) -> None:
    if not RECORDED.is_dir():
        pytest.skip("the captured machines are not beside the checkout")
    wanted = json.loads((RECORDED / "expected.json").read_text())
    parts = {}
    for name in ("Power", "Thermal"):
        parts[f"{CHASSIS}/{name}"] = json.loads((RECORDED / f"{model}_{name.lower()}.json").read_text())
    found = serve(parts).read()
    assert found.state is State.OK
    thermal, power = wanted[f"{model}_thermal.json"], wanted[f"{model}_power.json"]
    by_quantity: dict[str, dict[str, float | None]] = {"temperature": {}, "fan": {}, "power": {}}
    for one in found.readings:
        by_quantity[one.quantity][one.label] = one.value
    assert by_quantity["temperature"] == thermal["temperatures"]
    assert by_quantity["fan"] == thermal["fans"]
    (control,) = power["power"]
    assert by_quantity["power"] == {
        control["Name"]: control["PowerConsumedWatts"],
        **{f"output of {name} Status": watts for name, watts in supplies.items()},
    }


@pytest.mark.case("THM-17")
def test_a_missing_status_is_not_critical_and_null_is_unknown(serve: Callable[..., Bmc]) -> None:
    power = {
        "PowerControl": [{"Name": "System", "PowerConsumedWatts": 464}],
        "PowerSupplies": [{"Name": "PS1", "LastPowerOutputWatts": None, "PowerInputWatts": 900}],
    }
    found = serve({f"{CHASSIS}/Power": power}).read()
    assert found.state is State.OK
    assert [(one.label, one.value) for one in found.readings] == [("System", 464.0)]
    assert found.absent == 1


@pytest.mark.case("THM-20")
def test_the_resource_is_asked_for_and_never_a_part_of_it(serve: Callable[..., Bmc]) -> None:
    power = {"PowerControl": [{"@odata.id": f"{CHASSIS}/Power#/PowerControl/0", "PowerConsumedWatts": 210}]}
    link = {"Power": {"@odata.id": f"{CHASSIS}/Power#/PowerControl"}}
    bmc = serve({CHASSIS: link, f"{CHASSIS}/Power": power})
    found = bmc.read(user="reader")
    assert [one.value for one in found.readings] == [210.0]
    assert ("GET", f"{CHASSIS}/Power") in bmc.asked
    assert all("PowerControl" not in path for _, path in bmc.asked)
    # Neither Thermal (404) nor what else is not offered is taken for a wrong password.
    assert found.state is State.OK and found.reason is None


@pytest.mark.case("THM-20")
def test_a_service_without_chassis_is_not_offered(serve: Callable[..., Bmc]) -> None:
    found = serve({"/redfish/v1/Chassis": (404, b"")}).read()
    assert found.state is State.NOT_PRESENT
    assert found.reason == "the BMC does not offer /redfish/v1/Chassis"


def test_new_resources_stand_in_for_old_ones(serve: Callable[..., Bmc]) -> None:
    links = {name: {"@odata.id": f"{CHASSIS}/{name}"} for name in ("EnvironmentMetrics", "ThermalSubsystem")}
    base = f"{CHASSIS}/ThermalSubsystem"
    tree = {
        CHASSIS: links,
        f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": {"Reading": 612.5}},
        base: {
            "ThermalMetrics": {"@odata.id": f"{base}/ThermalMetrics"},
            "Fans": {"@odata.id": f"{base}/Fans"},
        },
        f"{base}/ThermalMetrics": {"TemperatureReadingsCelsius": [{"DeviceName": "CPU 0", "Reading": 61}]},
        f"{base}/Fans": {"Members": [{"@odata.id": f"{base}/Fans/0"}]},
        f"{base}/Fans/0": {"Name": "Fan 0", "SpeedPercent": {"Reading": 40, "SpeedRPM": 7200}},
    }
    found = serve(tree).read()
    assert {one.label: one.value for one in found.readings} == {
        "power": 612.5,
        "CPU 0": 61.0,
        "Fan 0": 7200.0,
    }


def test_only_get_is_ever_sent_and_the_password_goes_to_the_bmc_alone(serve: Callable[..., Bmc]) -> None:
    bmc = serve({f"{CHASSIS}/Power": {"PowerControl": [{"PowerConsumedWatts": 5}]}})
    bmc.read(user="reader")
    assert {method for method, _ in bmc.asked} == {"GET"}
    assert bmc.users == {"Basic " + base64.b64encode(b"reader:word").decode()}
    moved = serve({f"{CHASSIS}/Power": (302, b"")}).read(user="reader")
    assert (moved.state, moved.reason) == (State.FAILED, "the BMC answered with HTTP status 302")


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_password_is_no_missing_bmc(serve: Callable[..., Bmc], status: int) -> None:
    found = serve({"/redfish/v1/Chassis": (status, b"")}).read()
    assert found.state is State.NOT_PERMITTED and "K3GATE_BMC_USER" in (found.reason or "")


@pytest.mark.case("THM-14")
def test_a_bmc_that_never_answers_costs_its_limit(serve: Callable[..., Bmc]) -> None:
    bmc = serve()
    bmc.late = threading.Event()
    found = bmc.read(seconds=0.2)
    assert found.state is State.FAILED and (found.reason or "").startswith("unavailable: the BMC took longer")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "no JSON"),
        (b"[1]", "no resource"),
        (b"[" * 100_000, "no JSON"),
        (b" " * (4 * 2**20 + 1), "more than"),
        (json.dumps({"Chassis": {"@odata.id": "http://127.0.0.1:9/redfish/v1/x"}, "x": 1}).encode(), None),
    ],
)
def test_what_a_hostile_service_answers_is_refused_in_a_line(
    serve: Callable[..., Bmc], body: bytes, reason: str | None
) -> None:
    bmc = serve({"/redfish/v1/": (200, body)})
    found = bmc.read()
    assert "\n" not in (found.reason or "")
    if reason is not None:
        assert found.state is State.FAILED and reason in (found.reason or "")
    assert all(path.startswith("/redfish/v1") for _, path in bmc.asked)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://bmc.example.com", "in the clear"),
        ("https://reader:word@bmc.example.com", "seen by others"),
        ("bmc.example.com", "https://HOST"),
        ("https://bmc.example.com/redfish", "https://HOST"),
        ("ftp://bmc.example.com", "https://HOST"),
        ("https://[::1", "https://HOST"),
        ("https://bmc:99999", "https://HOST"),
    ],
)
def test_addresses_that_are_never_asked(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        redfish.access(url)


def test_access_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("K3GATE_BMC_USER", "reader")
    monkeypatch.setenv("K3GATE_BMC_PASSWORD", "word")
    found = redfish.access("https://bmc.example.com:8443/")
    assert (found.url, found.user, found.password) == ("https://bmc.example.com:8443", "reader", "word")
    assert "word" not in repr(found)
    bad = tmp_path / "none.pem"
    bad.write_text("nothing\n")
    with pytest.raises(UsageError, match="PEM"):
        redfish.Service(Access("https://bmc.example.com", certificate=str(bad)))


def test_what_the_bmc_told_stands_in_the_inventory(serve: Callable[..., Bmc], make_inventory: Any) -> None:
    hot = {"Temperatures": [{"Name": "CPU1 Temp", "ReadingCelsius": 99, "UpperThresholdNonCritical": 95}]}
    found = host.with_bmc(make_inventory("bare_metal"), serve({f"{CHASSIS}/Thermal": hot}).read())
    assert found.sensors is not None and found.sensors.bmc is not None
    assert [one.id for one in found.sensors.readings] == ["redfish CPU1 Temp"]
    assert found.sensors.bmc.state is State.OK
    assert "hot" in {finding.code for finding in found.findings}
