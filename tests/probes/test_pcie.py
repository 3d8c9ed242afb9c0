"""The engine of the PCIe probe against a fake driver, named so: rates, gate, what must arrive, and what withholds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fake_gpu import FakeDriver
from fakes import FakeContext
from gpus import FIRST, SECOND, card, with_gpus

from k3gate.errors import NotPermittedError, NotPresentError, ProbeError
from k3gate.host.files import Root
from k3gate.probes import pcie_clocks, pcie_copies, pcie_cuda, pcie_links, pcie_measures, thermal_load
from k3gate.probes.pcie import PcieProbe
from k3gate.probing import profiles
from k3gate.records import Case, Metric, Proof, State
from tests.host.pci_drawings import GPU, put_device

SIZE = 2 << 20
LINK = 32e9 * 128 / 130 / 8 * 16
"""B/s of 16 lanes of generation 5."""


class PatientWatch(pcie_links.LinkWatch):
    """Looks once more before copies end: the fake's take no time."""

    def end(self) -> None:
        self._look()
        super().end()


@pytest.fixture
def drawn(tmp_path: Path) -> Callable[..., None]:
    """`drawn(rate, width)`: what both ends of the cards' links tell from now on."""

    def draw(gt_per_s: float, width: int, at_port: float | None = None) -> None:
        for number, address in enumerate((FIRST, SECOND)):
            place = f"pci0000:{number}0/0000:{number}0:01.0"
            for path, rate in ((place, at_port or gt_per_s), (f"{place}/{address}", gt_per_s)):
                folder = tmp_path / "sys/devices" / path
                if not folder.is_dir():
                    put_device(tmp_path, path, code=GPU, now=(rate, width), best=(32.0, 16))
                (folder / "current_link_speed").write_text(f"{rate} GT/s PCIe\n")
                (folder / "current_link_width").write_text(f"{width}\n")

    draw(32.0, 16)
    return draw


@pytest.fixture
def contexts() -> Iterator[list[FakeContext]]:
    """Of each case that was run."""
    made: list[FakeContext] = []
    yield made
    for context in made:
        context.close()


@pytest.fixture
def run(
    make_inventory: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    drawn: Any,
    contexts: list[FakeContext],
) -> Callable[..., list[Metric]]:
    """`run(driver, name)`: the metrics of the case of that name on one CPU, over buffers of 2 MiB that are real."""

    def measured(driver: FakeDriver, name: str, *, cards: int = 2, limit: int | None = None) -> list[Metric]:
        root = Root(tmp_path)
        monkeypatch.setattr(pcie_measures, "LinkWatch", lambda addresses: PatientWatch(addresses, root))
        monkeypatch.setattr(pcie_cuda, "driver", lambda: driver)
        monkeypatch.setattr(pcie_copies, "WARM_UP_SECONDS", 0.0)
        monkeypatch.setattr(pcie_copies, "BATCH_SECONDS", 0.0004)
        monkeypatch.setattr(pcie_copies, "SAMPLE_SECONDS", 0.0002)
        monkeypatch.setattr(pcie_measures, "_SAMPLE_SECONDS", 0.0)
        gpus = [card(FIRST), card(SECOND)][:cards]
        cores = {"siblings": ((0,), (1,)), "cores": 2}
        inventory = with_gpus(make_inventory("vm", limits={"memlock_bytes": limit}, cpu=cores), *gpus)
        planned = PcieProbe().cases(inventory, profiles.load("standard"))
        case = small(next(one for one in planned.cases if one.name == name))
        contexts.append(FakeContext(inventory, 0.002))
        return list(PcieProbe().run(case, contexts[-1]))

    return measured


def small(case: Case) -> Case:
    """With buffers of 2 MiB in base pages, which need no NUMA."""

    def less(spec: dict[str, Any]) -> dict[str, Any]:
        return {**spec, "bytes": SIZE, "pages": "small", "touch": [0], "bind": None}

    memory = [
        {"source": less(one["source"]), "sink": less(one["sink"]), "cpus": [0]}
        for one in case.parameters["memory"]
    ]
    more: dict[str, Any] = {}
    if "stream" in case.parameters:
        stream = case.parameters["stream"]
        more = {"stream": {**stream, "cpus": [1], "pool": {**less(stream["pool"]), "touch": [1]}}}
    return attrs.evolve(case, parameters={**case.parameters, "memory": memory, **more})


def by_direction(found: list[Metric], name: str, **labels: Any) -> dict[str, Metric]:
    return {
        str(one.labels["direction"]): one
        for one in found
        if one.name == name and all(one.labels.get(key) == value for key, value in labels.items())
    }


def proof(metric: Metric, name: str) -> Proof:
    return next(one for one in metric.proofs if one.name == name)


# --- what is measured ---


def test_a_rate_is_what_the_device_took_without_launches_and_its_share_is_of_the_link(run: Any) -> None:
    driver = FakeDriver(FIRST, SECOND, seconds=0.0)
    found = run(driver, "copy.node0.41:00")
    found += run(FakeDriver(FIRST, SECOND, seconds=0.0), "both.node0.41:00")
    for together in (False, True):
        rates = by_direction(found, "pcie.copy.rate", together=together)
        shares = by_direction(found, "pcie.copy.link_share", together=together)
        for direction, rate in (("host_to_device", 24e9), ("device_to_host", 26e9)):
            metric = rates[direction]
            assert metric.state is State.OK, metric.reason
            assert [one.value for one in metric.samples] == pytest.approx([rate] * len(metric.samples))
            assert len(metric.samples) >= 3
            assert [one.value for one in shares[direction].samples] == pytest.approx(
                [rate / LINK] * len(metric.samples)
            )
            wanted = {"checksum", "gated", "ceiling"} | ({"overlap"} if together else set())
            assert all(proof(metric, name).ok for name in wanted)
            assert metric.labels["memory"] == "pinned" and metric.labels["bytes"] == SIZE
            assert metric.labels["device"] == FIRST
            assert metric.labels["scope"] == ("both" if together else "cell")
    link, _ = [one for one in found if one.name == "pcie.link.rate"]
    assert dict(link.labels) == {"device": FIRST, "gt_per_s": 32.0, "width": 16}
    assert link.samples[0].value == pytest.approx(LINK) and proof(link, "under_load").ok
    assert driver.gate_is_open
    assert {device.held for device in driver.devices.values()} == {0}  # memory of devices was given back


def test_what_a_worker_shares_is_given_back_before_the_driver(run: Any, contexts: list[FakeContext]) -> None:
    driver = FakeDriver(FIRST, SECOND)
    run(driver, "copy.node0.41:00")
    assert driver.pinned and not driver.closed
    contexts[-1].close()  # the fake driver refuses to close while memory is locked
    assert driver.closed


def test_a_slow_and_narrow_link_under_load_is_handed_over_and_the_share_is_of_it(
    run: Any, drawn: Any
) -> None:
    drawn(8.0, 8)
    found = run(FakeDriver(FIRST, SECOND, **{"in": 6.6e9, "out": 6.6e9, "seconds": 0.0}), "copy.node0.41:00")
    (link,) = [one for one in found if one.name == "pcie.link.rate"]
    assert (link.labels["gt_per_s"], link.labels["width"]) == (8.0, 8)
    share = by_direction(found, "pcie.copy.link_share", together=False)["host_to_device"]
    assert share.samples[0].value == pytest.approx(6.6 / (8 * 128 / 130 / 8 * 8))


def test_the_lower_of_both_ends_is_the_links(run: Any, drawn: Any) -> None:
    drawn(32.0, 16, at_port=16.0)
    found = run(FakeDriver(FIRST, SECOND), "copy.node0.41:00")
    assert {one.labels["gt_per_s"] for one in found if one.name == "pcie.link.rate"} == {16.0}


def test_a_link_that_sysfs_does_not_tell_leaves_the_rate_and_no_share(
    run: Any, tmp_path: Path, drawn: Any
) -> None:
    for file in tmp_path.rglob("current_link_*"):
        file.unlink()
    found = run(FakeDriver(FIRST, SECOND), "copy.node0.41:00")
    assert not [one for one in found if one.name == "pcie.link.rate"]
    assert by_direction(found, "pcie.copy.rate", together=False)["host_to_device"].state is State.OK
    share = by_direction(found, "pcie.copy.link_share", together=False)["host_to_device"]
    assert share.state is State.NOT_PRESENT and not share.samples


def test_rows_of_a_token_go_there_and_back_92_times(run: Any) -> None:
    rates = {"in": 7168 / 3e-6, "out": 7168 / 2e-6, "seconds": 0.0}
    found = run(FakeDriver(FIRST, SECOND, **rates), "trip.node0.41:00")
    told = {(one.name, one.labels.get("way")): one for one in found}
    assert [one.value for one in told["pcie.trip", "queued"].samples] == pytest.approx([5e-6] * 5)
    assert [one.value for one in told["pcie.trip.token", "queued"].samples] == pytest.approx([92 * 5e-6] * 5)
    called = told["pcie.trip", "called"]
    assert called.state is State.OK and called.samples[0].value > 0
    assert proof(called, "checksum").detail == "all 164864 copied words are those that were sent"
    assert not [one for one in called.proofs if one.name == "gated"]


def test_all_gpus_at_once_are_as_fast_as_the_slowest_lets_them(run: Any) -> None:
    driver = FakeDriver(FIRST, SECOND, seconds=0.0)
    driver.devices[SECOND].rates["in"] = 6e9
    found = run(driver, "together")
    rates = by_direction(found, "pcie.copy.rate", scope="all")
    assert rates["host_to_device"].samples[0].value == pytest.approx(12e9)
    assert rates["device_to_host"].samples[0].value == pytest.approx(52e9)
    assert rates["host_to_device"].labels["gpus"] == 2
    assert {one.labels["device"] for one in found if one.name == "pcie.link.rate"} == {FIRST, SECOND}


def test_copies_go_on_while_the_node_reads_its_memory(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thermal_load, "REGION_S", 0.01)
    found = run(FakeDriver(FIRST, SECOND), "loaded.node0.41:00")
    assert by_direction(found, "pcie.copy.rate", scope="loaded")["host_to_device"].state is State.OK
    assert set(by_direction(found, "pcie.copy.dram_rate")) == {"host_to_device", "device_to_host"}


def test_memory_that_is_not_locked_is_named_so_by_size_and_never_waits_at_the_gate(run: Any) -> None:
    driver = FakeDriver(FIRST, SECOND)
    found = run(driver, "pageable.node0.41:00")
    rates = [one for one in found if one.name == "pcie.copy.rate"]
    assert {one.labels["memory"] for one in rates} == {"pageable"}
    assert [one.labels["bytes"] for one in rates[::2]] == [4096, 16384, 65536, 262144, 1048576]
    assert all(one.state is State.OK and proof(one, "checksum").ok for one in rates)
    assert not driver.pinned


def test_small_copies_are_told_by_size(run: Any) -> None:
    found = run(FakeDriver(FIRST, SECOND, seconds=2e-6), "sizes.node0.41:00")
    rates = {
        one.labels["bytes"]: one.samples[0].value
        for one in found
        if one.name == "pcie.copy.rate" and one.labels["direction"] == "host_to_device"
    }
    assert rates[4096] == pytest.approx(4096 / (4096 / 24e9 + 2e-6))
    assert list(rates) == sorted(rates) and rates[4096] < rates[1 << 20]


def test_memory_of_the_device_is_read_and_written(run: Any) -> None:
    found = run(FakeDriver(FIRST, SECOND, seconds=0.0), "device.41:00")
    (metric,) = found
    assert metric.name == "pcie.device.bandwidth"
    # Two bytes pass for each that is copied; the paper rate of the fake's memory is 900 GB/s.
    assert metric.state is State.FAILED and "ceiling" in (metric.reason or "")
    driver = FakeDriver(FIRST, SECOND, within=400e9, seconds=0.0)
    (metric,) = run(driver, "device.41:00")
    assert metric.samples[0].value == pytest.approx(800e9) and proof(metric, "checksum").ok


@pytest.mark.case("PCI-15")
@pytest.mark.parametrize(("reachable", "access"), [(True, "direct"), (False, "through host memory")])
def test_pci_15_peers_are_measured_with_how_they_reach_each_other(
    run: Any, reachable: bool, access: str
) -> None:
    driver = FakeDriver(FIRST, SECOND, seconds=0.0)
    driver.devices[SECOND].reachable = reachable
    (metric, *_) = run(driver, "peer.41:00.81:00")
    assert metric.samples[0].value == pytest.approx(40e9)
    assert (metric.labels["device"], metric.labels["peer"]) == (FIRST, SECOND)
    assert metric.labels["access"] == access and proof(metric, "checksum").ok


def test_a_pair_that_hangs_costs_its_own_group_within_its_limit(make_inventory: Any) -> None:
    machine = with_gpus(make_inventory("vm"), card(FIRST), card(SECOND))
    peers = [
        one
        for one in PcieProbe().cases(machine, profiles.load("standard")).cases
        if one.name.startswith("peer")
    ]
    assert {one.group for one in peers} == {"peers"} and all(one.time_limit_s <= 60 for one in peers)


# --- what withholds a figure ---


@pytest.mark.parametrize(
    ("kind", "case", "failing"),
    [
        ("in", "copy.node0.41:00", "host_to_device"),
        ("out", "copy.node0.41:00", "device_to_host"),
        ("in", "pageable.node0.41:00", "host_to_device"),
        ("out", "together", "device_to_host"),
    ],
)
def test_a_copy_that_changes_a_bit_withholds_its_figure(run: Any, kind: str, case: str, failing: str) -> None:
    driver = FakeDriver(FIRST, SECOND)
    driver.flips = lambda one: one == kind
    found = run(driver, case)
    metric = by_direction(found, "pcie.copy.rate")[failing]
    assert metric.state is State.FAILED and metric.samples == ()
    assert (metric.reason or "").startswith("withheld: checksum")


def test_a_copy_that_is_not_made_withholds_its_figure(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lay in the sink before is never the source's pattern."""
    driver = FakeDriver(FIRST, SECOND)
    monkeypatch.setattr(
        type(driver.devices[FIRST]),
        "_copy",
        lambda self, stream, kind, *_: stream.queue.append(("copy", lambda: None, 1e-5)),
    )
    found = run(driver, "copy.node0.41:00")
    assert all(one.state is State.FAILED for one in found if one.name == "pcie.copy.rate")


def test_copies_that_did_not_wait_for_the_last_to_be_queued_are_withheld(run: Any) -> None:
    driver = FakeDriver(FIRST, SECOND)
    driver.ungated = True
    metric = by_direction(run(driver, "copy.node0.41:00"), "pcie.copy.rate")["host_to_device"]
    assert metric.state is State.FAILED and "began before all was queued" in (metric.reason or "")


def test_more_than_the_link_can_carry_fails_the_figure(run: Any) -> None:
    driver = FakeDriver(FIRST, SECOND, **{"in": 70e9, "seconds": 0.0})
    found = run(driver, "copy.node0.41:00")
    metric = by_direction(found, "pcie.copy.rate", together=False)["host_to_device"]
    assert metric.state is State.FAILED and "above the physical limit" in (metric.reason or "")
    assert by_direction(found, "pcie.copy.link_share", together=False)["host_to_device"].samples == ()


def test_the_other_direction_gets_copies_enough_to_last(run: Any) -> None:
    """Five times as fast, it has five times as many."""
    driver = FakeDriver(FIRST, SECOND, **{"in": 5e9, "out": 25e9, "seconds": 0.0})
    metric = by_direction(run(driver, "both.node0.41:00"), "pcie.copy.rate", together=True)["host_to_device"]
    assert metric.state is State.OK and proof(metric, "overlap").ok


def test_a_direction_that_ends_early_is_no_copy_both_ways(run: Any) -> None:
    driver = FakeDriver(FIRST, SECOND, **{"in": 0.5e9, "out": 25e9, "seconds": 0.0})
    metric = by_direction(run(driver, "both.node0.41:00"), "pcie.copy.rate", together=True)["host_to_device"]
    assert metric.state is State.FAILED and "overlap" in (metric.reason or "")


def test_copies_that_never_end_fail_the_case_and_leave_the_gate_open(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pcie_copies, "STUCK_SECONDS", 0.01)
    driver = FakeDriver(FIRST, SECOND)

    def sent(device: Any, place: int, source: int, size: int) -> None:
        driver.stuck = True

    monkeypatch.setattr(pcie_measures, "_sent", sent)
    with pytest.raises(ProbeError, match="did not end"):
        run(driver, "copy.node0.41:00")
    assert driver.gate_is_open


def test_a_gate_is_opened_when_queueing_fails(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(FIRST, SECOND)

    def refuse(*_: Any) -> None:
        raise ProbeError("the driver refused a copy")

    monkeypatch.setattr(type(driver.devices[FIRST]), "copy_out", refuse)
    with pytest.raises(ProbeError, match="refused a copy"):
        run(driver, "copy.node0.41:00")
    assert driver.gate_is_open and driver.devices[FIRST].held == 0


# --- locked memory ---


@pytest.mark.case("PCI-11")
def test_pci_11_less_memory_is_locked_where_the_limit_forbids_more(run: Any) -> None:
    """Halves are tried, and the size that was used and the limit stand beside the figure."""
    driver = FakeDriver(FIRST, SECOND)
    driver.pin_limit = 1 << 20
    found = run(driver, "copy.node0.41:00", limit=64 << 20)
    (pinned,) = [one for one in found if one.name == "pcie.pinned_bytes"]
    assert pinned.samples[0].value == 1 << 20 and pinned.labels["limit_bytes"] == 64 << 20
    assert "was refused" in (pinned.reason or "") and "ulimit -l" in (pinned.reason or "")
    rate = by_direction(found, "pcie.copy.rate", together=False)["host_to_device"]
    assert rate.state is State.OK and rate.labels["bytes"] == 1 << 20 and rate.labels["memory"] == "pinned"


@pytest.mark.case("PCI-11")
def test_pci_11_below_the_floor_the_limit_is_the_reason_and_pageable_memory_says_so(run: Any) -> None:
    driver = FakeDriver(FIRST, SECOND)
    driver.pin_limit = 64 << 10
    with pytest.raises(NotPermittedError, match=r"limit of .* on locked memory.*ulimit -l unlimited"):
        run(driver, "copy.node0.41:00", limit=64 << 10)
    found = run(driver, "pageable.node0.41:00", limit=64 << 10)
    assert {one.labels["memory"] for one in found if one.name == "pcie.copy.rate"} == {"pageable"}


def test_a_gpu_that_the_driver_does_not_show_is_not_present(run: Any) -> None:
    with pytest.raises(NotPresentError):
        run(FakeDriver(SECOND), "copy.node0.41:00")


# --- links under load ---


def test_links_are_read_while_copies_are_under_way_alone(tmp_path: Path, drawn: Any) -> None:
    watch = pcie_links.LinkWatch([FIRST], Root(tmp_path))
    try:
        assert watch.state(FIRST) is None
        watch.begin()
        until = time.monotonic() + 20
        while watch.state(FIRST) is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        watch.end()
        state = watch.state(FIRST)
        assert state is not None and (state.gt_per_s, state.width) == (32.0, 16)
        watch.forget()
        assert watch.state(FIRST) is None
    finally:
        watch.close()


def test_what_is_read_after_the_copies_have_ended_is_of_an_idle_link(tmp_path: Path, drawn: Any) -> None:
    watch = pcie_links.LinkWatch([FIRST], Root(tmp_path))
    watch.close()
    watch.end()
    watch._look()
    assert watch.state(FIRST) is None


class PatientClocks(pcie_clocks.ClockWatch):
    """Looks once more before copies end."""

    def end(self) -> None:
        self._look()
        super().end()


def test_a_gpu_that_is_slowed_down_meanwhile_is_told_beside_the_rates(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class RecordedNvml:
        nvmlDeviceGetHandleByPciBusId = staticmethod(bytes)  # noqa: N815  # the names are pynvml's
        nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda handle: 0x8)  # noqa: N815

    monkeypatch.setattr(pcie_measures, "ClockWatch", PatientClocks)
    monkeypatch.setattr(pcie_clocks, "library", RecordedNvml)
    (slowed,) = [
        one
        for one in run(FakeDriver(FIRST, SECOND), "copy.node0.41:00")
        if one.name == "pcie.gpu.slowed_share"
    ]
    assert slowed.samples[0].value == 1.0 and slowed.labels["device"] == FIRST
    assert "hardware slowdown" in proof(slowed, "clocks").detail


def test_a_state_that_a_link_passes_through_is_not_its_state(tmp_path: Path, drawn: Any) -> None:
    watch = pcie_links.LinkWatch([FIRST], Root(tmp_path))
    watch.close()
    watch._busy.set()
    drawn(2.5, 16)
    watch._look()
    drawn(32.0, 16)
    for _ in range(20):
        watch._look()
    state = watch.state(FIRST)
    assert state is not None and state.gt_per_s == 32.0
    drawn(2.5, 16)
    for _ in range(4):
        watch._look()
    state = watch.state(FIRST)
    assert state is not None and state.gt_per_s == 2.5
