"""nvbandwidth beside it: NVIDIA's own program on the same copies, of which it tells one figure for each GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from k3gate import metrics
from k3gate.documents import printable
from k3gate.errors import NotPresentError, ProbeError
from k3gate.probes import pcie_plan
from k3gate.probing.contract import Context
from k3gate.records import Case, Metric, Scalar

PROGRAM = "nvbandwidth"
TESTS = {
    "host_to_device_memcpy_ce": "host_to_device",
    "device_to_host_memcpy_ce": "device_to_host",
}
_OUTPUT_BYTES = 4 << 20
_SECONDS = 120.0
_LISTED = re.compile(
    r"\s*(\d{1,3}): .*\(([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.0)?\).*", re.ASCII
)


def find() -> str | None:
    """The program, where it is installed."""
    return shutil.which(PROGRAM)


@frozen
class Told:
    """What nvbandwidth told of a direction: B/s by the number of a GPU; `addresses`: of those that it lists."""

    direction: str
    rates: dict[int, float]


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """A run of nvbandwidth as a sample of each GPU and direction."""
    program = find()
    if program is None:
        raise NotPresentError(pcie_plan.WITHOUT_PEER)
    begun = time.monotonic()
    text = _run([program, "-j", "-t", *TESTS], context)
    seconds = time.monotonic() - begun
    context.setup(seconds)
    found, addresses, version = read(text)
    listed: Sequence[str] = case.parameters["listed"]
    for told in found:
        for number, rate in sorted(told.rates.items()):
            address = addresses.get(number) or (listed[number] if number < len(listed) else None)
            if address not in case.parameters["devices"]:
                continue
            labels: dict[str, Scalar] = {
                **case.labels,
                "device": address,
                "direction": told.direction,
                "version": version,
            }
            yield context.metric(metrics.PCIE_NVBANDWIDTH, [context.sample(rate, 0.0)], labels)


def read(text: str) -> tuple[list[Told], dict[int, str], str]:
    """(rates by direction, addresses of GPUs by number, version) of nvbandwidth's JSON, which words may come before.

    A test that did not pass gives nothing; `ProbeError` where none did, with what the program says.
    """
    try:
        document: Any = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
        whole = document["nvbandwidth"]
        tests = whole.get("testcases") or []
        error = printable(" ".join(str(whole.get("error") or "").split()))[:200]
        version = printable(str(whole.get("version") or whole.get("git_version") or "unknown"))[:40]
        listed = [_LISTED.fullmatch(str(one)) for one in whole.get("GPU Device list") or []]
        addresses = {int(one[1]): f"{one[2][-4:]}:{one[3]}:{one[4]}.0".lower() for one in listed if one}
        found = [
            Told(TESTS[one["name"]], _columns(one["bandwidth_matrix"]))
            for one in tests
            if one.get("name") in TESTS and one.get("status") == "Passed"
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = f": {printable(lines[0])[:200]}" if lines and "{" not in lines[0] else ""
        raise ProbeError(f"nvbandwidth's answer is none that this version understands{said}") from problem
    if not any(told.rates for told in found):
        raise ProbeError(f"nvbandwidth measured nothing: {error or 'no test passed'}")
    return found, addresses, version


def _columns(matrix: Any) -> dict[int, float]:
    """B/s by GPU of the one row that a copy from or to the host has."""
    rates = {}
    for number, value in enumerate(matrix[0]):
        try:
            rate = float(value) * 1e9
        except (TypeError, ValueError):  # N/A
            continue
        if 0 < rate < 1e14:
            rates[number] = rate
    return rates


def _run(line: Sequence[str], context: Context) -> str:
    """What it prints. It is ended where it takes too long; an error of it stands in what it prints."""
    # In this order its numbers follow the addresses, as those of NVIDIA's library do.
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    until = time.monotonic() + _SECONDS
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        try:
            while True:
                try:
                    output = process.communicate(timeout=1.0)[0]
                    break
                except subprocess.TimeoutExpired:
                    context.heartbeat("nvbandwidth measures")
                    if time.monotonic() > until:
                        raise ProbeError(f"nvbandwidth did not end within {_SECONDS:.0f} s") from None
        finally:
            process.kill()
    return output[:_OUTPUT_BYTES].decode(errors="replace")
