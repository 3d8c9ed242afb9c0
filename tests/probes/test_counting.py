"""Bytes by the processor's counters beside ours: agreement, contradiction, others' traffic, what is not permitted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from fakes import FakeContext, FakeTeam

from k3gate.host.perf_events import Event
from k3gate.probes import counting
from k3gate.probes.counting import Count, Counting
from k3gate.records import State

READ = Event("uncore_imc_0", "cas_count_read", "read", 24, (0xCF05, 0, 0), 64.0, (0,))
WRITTEN = Event("uncore_imc_0", "cas_count_write", "written", 24, (0xF005, 0, 0), 64.0, (0,))
ENERGY = Event("power", "energy-pkg", "energy", 9, (2, 0, 0), 2.0**-32, (0,))


class FakePerf:
    """Stands in for the kernel's counters: each reading adds `rise` to what is counted, for all of the time."""

    def __init__(
        self, events: Sequence[Event], rise: Sequence[int], running: float = 1.0, start: int = 0
    ) -> None:
        self.events, self._rise, self._running = list(events), list(rise), running
        self._values = [start] * len(self.events)
        self._time = 0
        self.closed = False

    def read(self) -> list[Count]:
        found = [Count(value, self._time, int(self._time * self._running)) for value in self._values]
        self._values = [(value + rise) % 2**64 for value, rise in zip(self._values, self._rise, strict=True)]
        self._time += 1000
        return found

    def close(self) -> None:
        self.closed = True


def counted(perf: FakePerf, own: float, bus: float | None = None) -> Counting:
    counters = Counting(perf)
    assert counters.around(lambda: "done", lambda result: (own, own if bus is None else bus)) == "done"
    return counters


def test_counters_that_agree_stand_beside_the_figure_with_energy() -> None:
    perf = FakePerf([READ, WRITTEN, ENERGY], [1000, 20, 2**32])
    proof = counted(perf, 64_000.0).proof(0.1)
    assert proof.ok is True
    assert proof.detail.startswith(
        "counter-checked: memory controllers moved 65.3 kB while 64.0 kB were counted here"
    )
    assert "1.00 J of processor and memory" in proof.detail


@pytest.mark.parametrize(
    ("lines", "cached", "ok"),
    [
        (1000, 0.0, True),
        (985, 0.0, True),  # within the slack
        (970, 0.0, False),
        (760, 0.25, True),  # a quarter may have come from caches
        (720, 0.25, False),
        (1240, 0.0, True),
        (1300, 0.0, None),  # others' traffic, which is no contradiction
        (0, 0.0, None),
    ],
)
def test_only_what_is_less_than_caches_explain_contradicts(
    lines: int, cached: float, ok: bool | None
) -> None:
    assert counted(FakePerf([READ], [lines]), 64_000.0).proof(cached).ok is ok


def test_a_cached_store_reads_what_it_overwrites_and_that_is_no_others_traffic() -> None:
    perf = FakePerf([READ, WRITTEN], [1000, 1000])
    assert counted(perf, 64_000.0, bus=128_000.0).proof(0.0).ok is True
    # A processor that spares itself that read is no contradiction either.
    assert counted(FakePerf([READ, WRITTEN], [0, 1000]), 64_000.0, bus=128_000.0).proof(0.0).ok is True


def test_a_counter_that_wraps_or_shares_its_hardware_is_made_good() -> None:
    assert counting.risen(Count(2**64 - 10, 0, 0), Count(90, 1000, 1000)) == 100
    assert counting.risen(Count(0, 1000, 500), Count(100, 3000, 1500)) == 200
    assert counting.risen(Count(0, 0, 0), Count(0, 1000, 0)) is None
    assert counted(FakePerf([READ], [500], running=0.5, start=2**64 - 100), 64_000.0).proof(0.0).ok is True


def test_a_counter_that_did_not_run_says_nothing() -> None:
    proof = counted(FakePerf([READ], [1000], running=0.0), 64_000.0).proof(0.0)
    assert proof.ok is None and "did not run" in proof.detail


def test_units_that_are_refused_name_the_setting_that_permits_them() -> None:
    def refuse(events: Sequence[Any]) -> Any:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    source, reason = counting.opened([READ], 2, refuse)
    assert source is None
    assert "kernel.perf_event_paranoid is 2" in reason and "sysctl kernel.perf_event_paranoid=0" in reason


def test_energy_that_is_refused_does_not_cost_the_bytes() -> None:
    def without_energy(events: Sequence[Any]) -> Any:
        if ENERGY in events:
            raise OSError(errno.EINVAL, "no")
        return FakePerf(events, [1] * len(events))

    source, reason = counting.opened([READ, ENERGY], 0, without_energy)
    assert source is not None and source.events == [READ] and reason == ""


def test_a_guest_has_no_such_counters_and_the_reason_says_so() -> None:
    source, reason = counting.opened([ENERGY], 0, lambda events: FakePerf(events, []))
    assert source is None and "a guest has none" in reason
    units = [path.name for path in Path(counting.DEVICES).glob("*")]
    if not any(name.startswith(("uncore_imc", "amd_umc")) for name in units):
        assert counting._opened() == (None, reason)


def test_software_events_are_counted_by_the_kernel_itself() -> None:
    clock = SimpleNamespace(type=1, config=(0, 0, 0), kind="read", scale=64.0, cpus=(0,))  # the CPU's clock
    try:
        perf = counting.Perf([clock])
    except OSError as error:
        pytest.skip(f"perf_event_open is refused here: {error}")
    before, after = perf.read()[0], perf.read()[0]
    perf.close()
    assert after.value > before.value and after.enabled >= after.running > before.running


@pytest.mark.parametrize(("share", "state"), [(1.0, State.OK), (0.3, State.FAILED)])
def test_a_figure_that_the_counters_contradict_is_failed(
    share: float, state: State, fake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(FakePerf):
        """Counts `share` of what the team's threads say that they read."""

        def read(self) -> list[Count]:
            return [Count(int(share * seen[0] / 64), 1000 * seen[1], 1000 * seen[1])]

    seen = [0, 0]

    def note(call: str, number: int, threads: list[Any]) -> None:
        if call == "run":
            seen[0] += sum(thread.bytes for thread in threads)
            seen[1] += 1

    monkeypatch.setattr(counting, "_opened", lambda: (Seen([READ], [0]), ""))
    [metric], context = fake("read.node0.node0", FakeTeam([0, 1], (0.1,), note))
    proof = next(proof for proof in metric.proofs if proof.name == "counter_check")
    assert metric.state is state
    assert proof.ok is (state is State.OK)
    assert ("counter_check" in str(metric.reason)) == (state is State.FAILED)
    context.close()


def test_memory_of_another_kind_is_not_held_against_the_processors_controllers(make_inventory) -> None:
    inventory = make_inventory()
    node = attrs.evolve(inventory.numa.nodes[0], kind="cxl")
    other = attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=(node,)))
    cached = attrs.evolve(inventory.numa.nodes[0], memory_side_cache_bytes=2**34)
    behind = attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, nodes=(cached,)))
    for machine, said in ((other, "another kind"), (behind, "cache on the side of memory")):
        context = FakeContext(machine)
        context.shared["counters"] = (FakePerf([READ], [1]), "")
        assert said in counting.of(context, {0}).reason
