"""The management controller (BMC) asked over the network by Redfish (DMTF DSP0266): GET alone, and no session.

Certificates are checked: against the system's authorities, or against the file that the user names, which may be
the BMC's own certificate. Without TLS only this machine itself is asked. Redirects are not followed and no address
beside the BMC's is used, so that a name and a password go nowhere else.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.host.bmc import BmcReadings, reading
from k3gate.records import SensorReading, State

if TYPE_CHECKING:
    import ssl

    import httpx2

OPTION = "--bmc"
USER, PASSWORD, AUTHORITY = "K3GATE_BMC_USER", "K3GATE_BMC_PASSWORD", "K3GATE_BMC_CERTIFICATE"
ROOT = "/redfish/v1"
SECONDS = 20.0
"""How long one answer may take, and three times as long all of a reading."""
_BYTES = 4 * 2**20
_CHASSIS = 32
_MEMBERS = 1024
_LONGEST = 60
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


@frozen
class Access:
    """Where the BMC is, and as whom to ask it. `certificate`: a file of certificates to believe."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate: str | None = None


class NotOfferedError(Exception):
    """The service has no such resource."""


class RefusedError(Exception):
    """The service, or the way to it, gave no answer that can be used; the message says why."""

    def __init__(self, message: str, state: State = State.FAILED) -> None:
        super().__init__(message)
        self.state = state


def access(url: str) -> Access:
    """The access that an address and the environment give; `UsageError` for what is never asked."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or parts.scheme not in ("http", "https") or parts.path not in ("", "/") or parts.query:
        raise UsageError(
            f"{OPTION}: give the address of the BMC as https://HOST, not {printable(url)[:80]!r}"
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"{OPTION}: an address that holds a password is seen by others: set {USER} and {PASSWORD}"
        )
    if parts.scheme == "http" and host not in _LOCAL:
        raise UsageError(f"{OPTION}: a password would go to {host} in the clear: give https://{host}")
    name = f"[{host}]" if ":" in host else host
    place = f"{parts.scheme}://{name}" + (f":{port}" if port else "")
    return Access(place, os.environ.get(USER), os.environ.get(PASSWORD), os.environ.get(AUTHORITY))


class Service:
    """A Redfish service. `read` may be called again and again; use as a context, or `close`."""

    def __init__(self, access: Access, *, seconds: float = SECONDS) -> None:
        import ssl

        import httpx2

        self._seconds = seconds
        self._until = math.inf
        self._chassis: tuple[str, ...] | None = None
        self._not_offered: set[str] = set()
        verify: ssl.SSLContext | bool = True
        if access.certificate:
            try:
                verify = ssl.create_default_context(cafile=access.certificate)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"{AUTHORITY}: {printable(access.certificate)}: {error}: name a file of certificates in PEM form"
                ) from error
        # No environment: a proxy would be one more who hears the password.
        self._client = httpx2.Client(
            base_url=access.url,
            auth=(access.user, access.password or "") if access.user is not None else None,
            headers={"Accept": "application/json", "Accept-Encoding": "identity", "OData-Version": "4.0"},
            timeout=httpx2.Timeout(seconds),
            verify=verify,
            trust_env=False,
            follow_redirects=False,
        )

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def read(self) -> BmcReadings:
        """Temperatures, fans and power of all chassis. Never raises for what the service says or does not say."""
        self._until = time.monotonic() + 3 * self._seconds
        found: dict[str, SensorReading] = {}
        absent = 0
        try:
            for chassis in self._members():
                for one in self._of_chassis(chassis):
                    if one is None:
                        absent += 1
                    else:
                        found.setdefault(one.id, one)
        except NotOfferedError as error:
            return BmcReadings(State.NOT_PRESENT, f"the BMC does not offer {error}", (), absent)
        except RefusedError as error:
            # A part is no answer: what is missing could be the very sensor that is looked for.
            return BmcReadings(error.state, str(error), tuple(found.values()), absent)
        if not found:
            return BmcReadings(State.NOT_PRESENT, "the BMC told no temperature, fan or power", (), absent)
        return BmcReadings(State.OK, None, tuple(found.values()), absent)

    def _members(self) -> tuple[str, ...]:
        if self._chassis is None:
            start = self.get(f"{ROOT}/")
            collection = self.get(_link(start, "Chassis") or f"{ROOT}/Chassis")
            links = (_path(one) for one in _list(collection.get("Members"))[:_CHASSIS])
            self._chassis = tuple(link for link in links if link is not None)
        return self._chassis

    def _of_chassis(self, path: str) -> Iterator[SensorReading | None]:
        chassis = self.get(path)
        # The old resources first: they tell all at once. The new ones stand beside them, or instead.
        power = self._offered(_link(chassis, "Power") or f"{path}/Power")
        thermal = self._offered(_link(chassis, "Thermal") or f"{path}/Thermal")
        if power is not None:
            yield from _power(power)
        elif (metrics := self._offered(_link(chassis, "EnvironmentMetrics"))) is not None:
            yield from _metrics(metrics)
        if thermal is not None:
            yield from _thermal(thermal)
        elif (subsystem := self._offered(_link(chassis, "ThermalSubsystem"))) is not None:
            yield from self._subsystem(subsystem)

    def _subsystem(self, subsystem: dict[str, Any]) -> Iterator[SensorReading | None]:
        metrics = self._offered(_link(subsystem, "ThermalMetrics"))
        for one in _list((metrics or {}).get("TemperatureReadingsCelsius")):
            yield _reading(one, "DeviceName", "Reading", "temperature", "degC")
        fans = self._offered(_link(subsystem, "Fans"))
        for member in _list((fans or {}).get("Members"))[:_MEMBERS]:
            fan = self._offered(_path(member))
            if fan is not None:
                speed = fan.get("SpeedPercent")
                rpm = speed.get("SpeedRPM") if isinstance(speed, dict) else None
                yield _reading({"Name": fan.get("Name"), "Reading": rpm}, "Name", "Reading", "fan", "rpm")

    def _offered(self, path: str | None) -> dict[str, Any] | None:
        """A resource, or None where the service does not have it; it is not asked for again."""
        if path is None or path in self._not_offered:
            return None
        try:
            return self.get(path)
        except NotOfferedError:
            self._not_offered.add(path)
            return None

    def get(self, path: str) -> dict[str, Any]:
        """A resource; `NotOfferedError` or `RefusedError`. What follows a # names a part, which is no resource."""
        import httpx2

        path = path.partition("#")[0]
        if not path.startswith(f"{ROOT}/") and path != ROOT:
            raise RefusedError(f"the BMC names a place outside {ROOT}")
        left = min(self._seconds, self._until - time.monotonic())
        if left <= 0:
            raise RefusedError(f"unavailable: the BMC took longer than {3 * self._seconds:g} s")
        try:
            with self._client.stream("GET", path, timeout=httpx2.Timeout(left)) as response:
                return self._document(response, path, time.monotonic() + left)
        except httpx2.TimeoutException as error:
            raise RefusedError(f"unavailable: the BMC took longer than {left:.3g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            told = " ".join(printable(str(error)).split())[:200]
            hint = f"; name its certificate in {AUTHORITY}" if "certificate" in told.lower() else ""
            raise RefusedError(
                f"the BMC could not be reached: {told or type(error).__name__}{hint}"
            ) from error

    def _document(self, response: httpx2.Response, path: str, until: float) -> dict[str, Any]:
        status = response.status_code
        if status in (404, 405, 410, 501):
            raise NotOfferedError(path)
        if status in (401, 403):
            raise RefusedError(
                f"not permitted: set {USER} and {PASSWORD} to a user who may read", State.NOT_PERMITTED
            )
        if status != 200:
            raise RefusedError(f"the BMC answered with HTTP status {status}")
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > _BYTES:
                raise RefusedError(f"the BMC answered with more than {_BYTES} bytes")
            if time.monotonic() > until:
                raise RefusedError("unavailable: the BMC was too slow to end its answer")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RefusedError("the BMC answered with no JSON") from error
        if not isinstance(document, dict):
            raise RefusedError("the BMC answered with JSON that is no resource")
        return document


def _power(resource: dict[str, Any]) -> Iterator[SensorReading | None]:
    """What is consumed now. Limits, capacities and the inputs that supplies are rated for are no consumption."""
    for one in _list(resource.get("PowerControl")):
        yield _reading(one, "Name", "PowerConsumedWatts", "power", "W")
    for one in _list(resource.get("PowerSupplies")):
        yield _reading(one, "Name", "LastPowerOutputWatts", "power", "W", "output of ")


def _thermal(resource: dict[str, Any]) -> Iterator[SensorReading | None]:
    for one in _list(resource.get("Temperatures")):
        yield _reading(one, "Name", "ReadingCelsius", "temperature", "degC")
    for one in _list(resource.get("Fans")):
        if one.get("ReadingUnits") in (None, "RPM"):
            name = "Name" if one.get("Name") else "FanName"
            yield _reading(one, name, "Reading", "fan", "rpm")


def _metrics(resource: dict[str, Any]) -> Iterator[SensorReading | None]:
    watts = resource.get("PowerWatts")
    if isinstance(watts, dict):
        yield _reading({"Name": "power", **watts}, "Name", "Reading", "power", "W")


def _reading(
    one: dict[str, Any], name: str, value: str, quantity: str, unit: str, before: str = ""
) -> SensorReading | None:
    """A sensor; None where it has no value. A status that is not there says nothing, one that is off does."""
    status = one.get("Status")
    state = status.get("State") if isinstance(status, dict) else None
    number = _number(one.get(value))
    if number is None or state in ("Absent", "Disabled", "UnavailableOffline"):
        return None
    label = " ".join(printable(str(one.get(name) or one.get("MemberId") or "sensor")).split())[:_LONGEST]
    hot = quantity == "temperature"
    return reading(
        "redfish",
        f"{before}{label}",
        quantity,
        unit,
        number,
        maximum=_number(one.get("UpperThresholdNonCritical")) if hot else None,
        critical=_number(one.get("UpperThresholdCritical")) if hot else None,
    )


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def _list(value: Any) -> list[dict[str, Any]]:
    return [one for one in value[:_MEMBERS] if isinstance(one, dict)] if isinstance(value, list) else []


def _link(resource: dict[str, Any], name: str) -> str | None:
    inner = resource.get(name)
    return _path(inner) if isinstance(inner, dict) else None


def _path(value: dict[str, Any]) -> str | None:
    link = value.get("@odata.id")
    return link.rstrip("/") if isinstance(link, str) and link.startswith(ROOT) else None
