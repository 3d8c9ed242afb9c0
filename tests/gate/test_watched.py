"""Errors, power and idleness as they were watched: zero is not unknown, and a short run proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from k3gate.harness import watch
from k3gate.probes import pcie_clocks
from k3gate.probing.bystanders import Others
from k3gate.records import Outcome, Phase, Provenance, Series, State, Verdict
from tests.probes.fakes import FakeContext

LOAD = (Phase("memory", "read.machine", 0, 0.0, 400.0), Phase("memory", "read.machine", 1, 400.0, 700.0))
RAPL = {"sensor": "rapl package-0", "role": "cpu", "of": "0", "domain": "package-0"}


def counter(name: str, kind: str, rose: float, domain: str | None = None) -> Series:
    labels = {"counter": name, "kind": kind, "domain": domain or name}
    return Series("events", "1", labels, (0.0, 700.0), (5.0, 5.0 + rose))


QUIET = (
    counter("edac mc0 corrected", "corrected", 0),
    counter("edac mc0 uncorrected", "uncorrected", 0),
    counter("aer 0000:41:00.0 fatal", "uncorrected", 0),
    counter("throttle package 0", "throttle", 0),
)
HEAT = Series(
    "temperature", "degC", {"sensor": "coretemp 0", "role": "cpu", "of": "0", "limit": 90.0}, (0.0,), (72.0,)
)
POWER = Series("power", "W", RAPL, (0.0, 350.0, 700.0), (200.0, 220.0, 220.0))


@pytest.fixture
def run(make_record: Any, bare_metal: Any, build: Any) -> Callable[..., Any]:
    """`run(series, phases=..., inventory=...)`: a sound run in which that was watched."""

    def make(series: Sequence[Series], phases: Sequence[Phase] = LOAD, inventory: Any = None) -> Any:
        machine = inventory or bare_metal
        told = watch.told(series, phases, machine, [], Others((), None), 700.0)
        outcomes: list[Outcome] = [
            watch._outcome(None, name, *told[name], 700.0)
            for name in ("heat", "power", "throttling", "errors")
        ]
        return make_record(
            (*build.sound(), *outcomes), inventory=machine, phases=tuple(phases), series=tuple(series)
        )

    return make


def test_a_quiet_run_passes_and_says_what_was_counted(run: Any, check: Any) -> None:
    found = check(run(QUIET), "roofline.errors")
    assert found.verdict is Verdict.PASS, found.reason
    assert "memory and links" in found.reason and "11 min" in found.reason


def test_an_uncorrected_error_fails_and_names_the_part(run: Any, check: Any) -> None:
    module = counter("edac mc0/dimm3 uncorrected", "uncorrected", 1, "memory module CPU0_DIMM_C1 of mc0")
    found = check(
        run([*QUIET[:1], counter("edac mc0 uncorrected", "uncorrected", 1), module]), "roofline.errors"
    )
    assert found.verdict is Verdict.FAIL
    # The controller's own count is the same error.
    assert found.reason.endswith("under load: memory module CPU0_DIMM_C1 of mc0 (1).") and found.observed == 1


def test_a_corrected_error_is_to_be_looked_at(run: Any, check: Any) -> None:
    rose = counter("aer 0000:41:00.0 correctable", "corrected", 12, "PCIe link 0000:41:00.0, correctable")
    found = check(run([*QUIET, rose]), "roofline.errors")
    assert found.verdict is Verdict.UNPROVEN
    assert "PCIe link 0000:41:00.0, correctable (12)" in found.reason


def test_errors_that_nobody_counts_are_not_none(run: Any, check: Any, bare_metal: Any) -> None:
    notes = {**bare_metal.provenance, "edac.corrected": Provenance(State.NOT_PRESENT, None, "no driver")}
    found = check(run(QUIET[2:], inventory=attrs.evolve(bare_metal, provenance=notes)), "roofline.errors")
    assert found.verdict is Verdict.UNPROVEN and "ECC is unverified (no driver)" in found.reason


@pytest.mark.parametrize("name", ["roofline.errors", "roofline.power"])
def test_a_short_run_and_a_guest_prove_nothing(run: Any, check: Any, make_inventory: Any, name: str) -> None:
    everything = [*QUIET, HEAT, POWER]
    assert check(run(everything), name).verdict is Verdict.PASS
    short = check(run(everything, LOAD[:1]), name)
    assert short.verdict is Verdict.UNPROVEN and "of load were watched, less than 10 min" in short.reason
    guest = check(run(everything, inventory=make_inventory("vm")), name)
    assert guest.verdict is Verdict.UNPROVEN and "virtual" in guest.reason


def test_an_interrupted_or_older_run_is_no_evidence(make_record: Any, check: Any) -> None:
    for name in ("roofline.errors", "roofline.power"):
        assert check(make_record(), name).verdict is Verdict.UNPROVEN


def test_power_is_told_with_the_room_to_the_limit(run: Any, check: Any) -> None:
    found = check(run([*QUIET, HEAT, POWER]), "roofline.power")
    assert found.verdict is Verdict.PASS and (found.observed, found.unit) == (210.0, "W")
    assert "rapl package-0 210 W" in found.reason and "coretemp 0 stayed 18 degrees below" in found.reason


def test_throttling_fails_with_its_domain(run: Any, check: Any) -> None:
    slowed = counter("throttle package 1", "throttle", 3, "CPU package 1, as a whole")
    found = check(run([*QUIET, HEAT, POWER, slowed]), "roofline.power")
    assert found.verdict is Verdict.FAIL and "CPU package 1, as a whole (3)" in found.reason


@pytest.mark.case("THM-10")
def test_a_module_at_its_own_limit_fails(run: Any, check: Any) -> None:
    labels = {"sensor": "spd5118 3-0051 temp1", "role": "module", "of": None, "limit": 55.0}
    found = check(
        run([*QUIET, POWER, Series("temperature", "degC", labels, (0.0,), (57.0,))]), "roofline.power"
    )
    assert found.verdict is Verdict.FAIL and "spd5118 3-0051 temp1 reached its limit" in found.reason


@pytest.mark.case("THM-02")
def test_power_that_root_alone_may_read_is_missing_and_not_zero(
    run: Any, check: Any, bare_metal: Any
) -> None:
    note = Provenance(State.NOT_PERMITTED, None, "not permitted; needs root")
    machine = attrs.evolve(bare_metal, provenance={**bare_metal.provenance, "sensors.power_zones": note})
    found = check(run([*QUIET, HEAT], inventory=machine), "roofline.power")
    assert found.verdict is Verdict.UNPROVEN and "not permitted; needs root" in found.reason


class RecordedMasks:
    """A recorded NVML that tells these reasons, one after the other."""

    def __init__(self, *masks: int) -> None:
        self._masks = list(masks)

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> bytes:  # noqa: N802  # the names are pynvml's
        return address

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: bytes) -> int:  # noqa: N802
        return self._masks.pop(0)


@pytest.mark.case("PCI-16")
@pytest.mark.parametrize(
    ("mask", "verdict", "word"),
    [
        *((mask, Verdict.PASS, "") for mask in (0x0, 0x1, 0x2, 0x4)),
        (0x8, Verdict.FAIL, "hardware slowdown"),
        (0x20, Verdict.FAIL, "too hot, by the driver"),
        (0x40, Verdict.FAIL, "too hot, by the hardware"),
        (0x80, Verdict.FAIL, "power brake"),
    ],
)
def test_pci_16_a_gpu_that_is_slowed_down_while_it_copies_fails_with_plain_names(
    run: Any, check: Any, mask: int, verdict: Verdict, word: str
) -> None:
    clocks = pcie_clocks.ClockWatch(["0000:41:00.0"], RecordedMasks(0x2, mask))
    clocks.close()
    clocks._look()
    clocks._look()
    metric = clocks.metric(FakeContext(None), "0000:41:00.0")
    share = metric.samples[0].value
    metric = attrs.evolve(metric, median=share, interval=(share, share))
    copied = Outcome("pcie", "copy.node0.41:00", State.OK, None, 1.0, 3, (), (metric,))
    record = run((*QUIET, HEAT, POWER))
    found = check(attrs.evolve(record, outcomes=(*record.outcomes, copied)), "roofline.power")
    assert found.verdict is verdict, found.reason
    if verdict is Verdict.FAIL:
        assert f"0000:41:00.0 (the GPU was slowed down: {word} in 1 reading" in found.reason


@pytest.mark.case("THM-16")
def test_power_without_a_sign_of_throttling_is_no_pass(run: Any, check: Any) -> None:
    found = check(run([*QUIET[:3], POWER]), "roofline.power")
    assert found.verdict is Verdict.UNPROVEN and "neither throttling is counted" in found.reason


def test_copies_of_others_disturb(make_record: Any, build: Any, check: Any) -> None:
    sound = [one for one in build.sound() if one.case != "idle"]
    for disk, verdict in ((1e6, Verdict.PASS), (5e8, Verdict.FAIL)):
        found = check(make_record([*sound, build.idle(disk=disk)]), "roofline.idle")
        assert found.verdict is verdict, found.reason
