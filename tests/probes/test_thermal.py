"""The lasting load: what it plans, that all parts work at once, and that it ends with all that it started."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest
from fakes import FakeContext
from hypothesis import given
from hypothesis import strategies as st

from k3gate.errors import ProbeError, UsageError
from k3gate.probes import thermal, thermal_load, thermal_plan
from k3gate.probes.gemm_kernels import Variant
from k3gate.probes.thermal import ThermalProbe
from k3gate.probes.thermal_load import Loader, Meter
from k3gate.probing import plan, profiles
from k3gate.probing.contract import Planned
from k3gate.probing.execute import Executor, Watched
from k3gate.records import (
    Case,
    LoadFile,
    LoadPath,
    NumaNode,
    Profile,
    SensorReading,
    Sensors,
    State,
    Storage,
    StoragePath,
)

VARIANTS = tuple(Variant("mxfp4", path, "bf16") for path in ("amx_int8", "avx512", "generic"))
MIB = 1 << 20


def planned(inventory: Any, profile: Profile | None = None, variants: Any = VARIANTS) -> Any:
    return thermal_plan.plan("thermal", inventory, profile or profiles.load("standard"), None, variants)


def test_three_quarters_of_a_nodes_cores_stream_and_one_multiplies(make_inventory: Any) -> None:
    (case,) = planned(make_inventory("bare_metal")).cases
    streams, products = case.parameters["streams"], case.parameters["products"]
    assert [(one["memory_node"], one["cpus"]) for one in streams] == [
        (0, list(range(24))),
        (1, list(range(32, 56))),
    ]
    assert [(one["memory_node"], one["cpus"], one["tokens"]) for one in products] == [
        (0, list(range(24, 32)), 64),
        (1, list(range(56, 64)), 64),
    ]
    assert all(one["pool"]["bytes"] >= 4 * one["cache_bytes"] for one in streams)
    assert case.rounds == 1 and case.labels["threads"] == 64
    assert case.bytes == sum(one["pool"]["bytes"] for one in (*streams, *products))
    assert "48 threads stream from memory, 16 multiply experts by amx_int8 with 64 tokens" in case.title
    # Every core is at work once.
    cpus = [cpu for one in (*streams, *products) for cpu in one["cpus"]]
    assert sorted(cpus) == list(range(64))


def test_a_node_of_memory_alone_is_read_by_a_core_that_is_near(make_inventory: Any) -> None:
    machine = make_inventory("bare_metal")
    far = NumaNode(7, (), 64 << 30, 60 << 30, "cxl", nearest=1)
    with_far = attrs.evolve(machine, numa=attrs.evolve(machine.numa, nodes=(*machine.numa.nodes, far)))
    (case,) = planned(with_far).cases
    assert {one["memory_node"]: len(one["cpus"]) for one in case.parameters["streams"]} == {
        0: 24,
        1: 23,
        7: 1,
    }


def test_a_core_that_is_alone_streams_and_slow_code_takes_few_tokens(make_inventory: Any) -> None:
    alone = planned(make_inventory("vm"))
    (case,) = alone.cases
    assert case.parameters["products"] == [] and "1 thread streams from memory" in case.title
    assert "node 0 has one core, which streams" in [one.reason for one in alone.left_out]
    (slow,) = planned(make_inventory("bare_metal"), variants=VARIANTS[-1:]).cases
    assert {(one["path"], one["tokens"]) for one in slow.parameters["products"]} == {("generic", 4)}


def test_the_places_that_were_named_are_read_beside_it(make_inventory: Any) -> None:
    shard = LoadFile("/srv/k3/a.safetensors", 8 << 30, 1, 2)
    places = (
        LoadPath("/srv/k3", "/srv/k3", (shard,)),
        LoadPath("/srv/new", "/srv/new", (), 100 << 30),
        LoadPath("/dev/shm", "/dev/shm", (), 1 << 30),
        LoadPath("/home", "/home", (), 100 << 30, asked=False),
    )
    lying = tuple(
        StoragePath(path, kind, kind, drives=drives)
        for path, kind, drives in (("/srv/k3", "block", ("nvme0n1",)), ("/dev/shm", "memory", ()))
    )
    machine = attrs.evolve(make_inventory("bare_metal"), storage=Storage((), lying))
    found = planned(machine, profiles.load("standard", load_paths=places))
    (case,) = found.cases
    drives = case.parameters["drives"]
    assert [(one["source"]["path"], one["drives"]) for one in drives] == [
        ("/srv/k3", ["nvme0n1"]),
        ("/srv/new", []),
    ]
    # A file of our own is held by the run, of the size that the storage probe reads too.
    assert case.parameters["scratch"] == ["/srv/new"] and drives[1]["source"]["bytes"] == 8 << 30
    assert "2 threads read from storage" in case.title
    assert case.seconds > planned(machine).cases[0].seconds + 20
    assert any("name a folder on a drive" in one.reason for one in found.left_out)


def test_what_is_too_short_or_has_no_room_is_left_out_with_the_reason(make_inventory: Any) -> None:
    for name in ("smoke", "quick"):
        found = planned(make_inventory("bare_metal"), profiles.load(name))
        assert found.cases == () and "too short to show that a rate lasts" in found.left_out[0].reason
    full = make_inventory("bare_metal", limits={"usable_memory_bytes": MIB})
    found = planned(full)
    assert found.cases == () and "more than the" in found.left_out[-1].reason
    assert "no place was named with --storage" in planned(make_inventory("vm")).left_out[0].reason


def test_the_parts_of_a_load_are_minutes_where_it_lasts_and_thirds_where_it_does_not() -> None:
    assert thermal_plan.spans(180.0, sensors=True) == thermal_plan.Spans(20.0, 60.0, 180.0, 60.0, 15.0)
    assert thermal_plan.spans(7200.0, sensors=True) == thermal_plan.Spans(20.0, 60.0, 7200.0, 720.0, 120.0)
    short = thermal_plan.spans(9.0, sensors=False)
    assert (short.warm_up, short.first, short.last, short.cool) == (1.0, 3.0, 3.0, 0.0)


def test_it_cools_only_where_something_sees_it(make_inventory: Any) -> None:
    machine = make_inventory("bare_metal")
    assert planned(machine).cases[0].parameters["cool_s"] == 0.0
    warm = SensorReading("coretemp 0", "coretemp", "Package id 0", "temperature", "degC", "cpu", "0", 40.0)
    seen = attrs.evolve(machine, sensors=Sensors(readings=(warm,)))
    assert planned(seen).cases[0].parameters["cool_s"] == 15.0
    broken = attrs.evolve(machine, sensors=Sensors(readings=(attrs.evolve(warm, state=State.FAILED),)))
    assert planned(broken).cases[0].parameters["cool_s"] == 0.0


def test_a_soak_is_as_long_as_is_asked_and_measures_the_rest_no_longer(make_inventory: Any) -> None:
    seen: list[float] = []

    class Spy(ThermalProbe):
        name = "spy"

        def cases(self, inventory: Any, profile: Profile) -> Any:
            seen.append(profile.seconds)
            return Planned(())

    loads = {}
    for minutes, alone in ((30, False), (120, False), (120, True)):
        profile = profiles.load("soak", minutes=minutes, load_alone=alone)
        whole = plan.plan([Spy(), ThermalProbe()], make_inventory("bare_metal"), profile)
        (case,) = whole.cases
        loads[minutes, alone] = case.parameters["load_s"]
        assert whole.seconds <= 0.9 * 60 * minutes
    assert loads == {(30, False): 540.0, (120, False): 5400.0, (120, True): 5760.0}
    assert seen[:2] == [1200.0, 1200.0]
    for name, minutes, words in (("soak", 29, "30 or more"), ("quick", 60, "--profile soak")):
        with pytest.raises(UsageError, match=words):
            profiles.load(name, minutes=minutes)


# --- the load itself ----------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0, 1e9)), min_size=1, max_size=30), st.floats(0.1, 3.0)
)
def test_windows_hold_all_bytes_of_the_spans_and_no_more(
    spans: list[tuple[float, float]], width: float
) -> None:
    meter, at = Meter(), 100.0
    for seconds, moved in spans:
        meter.add(at, at + seconds, moved)
        at += seconds
    windows = int((at - 100.0) / width) + 1
    held = sum(
        width * meter.rate(100.0 + width * place, 100.0 + width * (place + 1)) for place in range(windows)
    )
    assert held == pytest.approx(sum(moved for _, moved in spans), rel=1e-6, abs=1e-3)


def small(inventory: Any, load_s: float) -> Case:
    """The case of this machine over pools that fill at once; its working set is below the caches, as it says."""
    profile = attrs.evolve(profiles.load("standard"), load_s=load_s)
    (case,) = ThermalProbe().cases(inventory, profile).cases
    streams = [{**one, "pool": {**one["pool"], "bytes": 16 * MIB}} for one in case.parameters["streams"]]
    return attrs.evolve(case, parameters={**case.parameters, "streams": streams}, bytes=64 * MIB)


@pytest.fixture
def here() -> Any:
    from k3gate import host

    return host.read()


def test_all_parts_work_at_once_and_tell_their_rates(here: Any) -> None:
    class Context(FakeContext):
        def __init__(self) -> None:
            super().__init__(here)
            self.pieces: list[Any] = []

        def watched(self, name: str, unit: str, labels: Any, times: Any, values: Any) -> None:
            self.pieces.append((name, dict(labels), list(times), list(values)))

    context, case = Context(), small(here, 1.2)
    found = list(ThermalProbe().run(case, context))
    context.close()
    parts = {"memory", "kernels"} if case.parameters["products"] else {"memory"}
    ratios = {one.labels["part"]: one for one in found if one.name == "sustained.ratio"}
    rates = {one.labels["part"]: one for one in found if one.name == "sustained.rate"}
    assert set(ratios) == set(rates) == parts
    assert all(one.samples[0].value > 1e6 for one in rates.values())
    proofs = {name: {proof.name: proof.ok for proof in one.proofs} for name, one in rates.items()}
    assert proofs["memory"]["checksum"] and proofs["memory"]["working_set"] is False
    assert rates["memory"].state is State.FAILED and "working_set" in rates["memory"].reason
    if "kernels" in parts:
        assert proofs["kernels"]["kernel_reference"] and proofs["kernels"]["timed_output"]
    told = {(name, labels.get("part")): [] for name, labels, _, _ in context.pieces}
    for name, labels, times, values in context.pieces:
        told[name, labels.get("part")] += list(zip(times, values, strict=True))
    assert set(told) == {("load.others", None)} | {("load.rate", part) for part in parts}
    for points in told.values():
        times = [at for at, _ in points]
        assert len(points) >= 25 and times == sorted(times) and points[-1][1] is None
    # The windows of all parts are the same, whatever their regions were.
    assert len({tuple(at for at, _ in points) for points in told.values()}) == 1
    assert all(
        labels == {"part": labels["part"], "memory_node": 0} for _, labels, _, _ in context.pieces if labels
    )
    # The whole load is booked once, though all parts had it.
    assert sum(context.timed) == pytest.approx(1.2, abs=0.3)


def test_a_part_that_fails_ends_the_others_and_the_case(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        part, labels = "memory", {"part": "memory", "memory_node": 0}
        turns = 0

        def work(self) -> tuple[float, float, float]:
            self.turns += 1
            return (0.0, 1e9, 1.0)

        def proofs(self) -> list[Any]:
            return []

    class Broken(Endless):
        def work(self) -> tuple[float, float, float]:
            raise OSError(5, "a fault on purpose")

    loaders = [Loader(Endless()), Loader(Broken())]
    monkeypatch.setattr(thermal_load, "workers", lambda context, case: loaders)
    before = threading.active_count()
    with pytest.raises(ProbeError, match=r"memory: OSError: \[Errno 5\] a fault on purpose"):
        list(ThermalProbe().run(small(here, 600.0), FakeContext(here)))
    assert threading.active_count() == before


def test_windows_grow_so_that_a_load_of_hours_has_few_points(here: Any) -> None:
    case = attrs.evolve(small(here, 180.0), parameters={"load_s": 86400.0})
    tape = thermal._Tape(FakeContext(here), [], case)
    at, points = 0.0, 0
    while at < 86400.0:
        at, points = at + tape._width(at), points + 1
    assert points <= 600 + 3600
    assert tape._width(0.0) == 1.0


def test_a_load_that_is_stopped_ends_with_its_process_and_leaves_no_file(
    here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does: the worker's group is killed while native threads are at work."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shared = Path("/dev/shm")
    before = set(shared.iterdir())
    case = small(here, 3.0)
    descriptor = None
    with Executor(here) as executor:
        events = executor.run(plan.Execution(0, "thermal", "soak", (attrs.evolve(case, time_limit_s=60.0),)))
        for event in events:
            if descriptor is None and hasattr(event, "process"):
                descriptor = os.pidfd_open(event.process)
            if isinstance(event, Watched):
                executor.stop()
    assert descriptor is not None
    assert select.select([descriptor], [], [], 30)[0], "the worker is still there"
    os.close(descriptor)
    assert list(tmp_path.iterdir()) == [] and set(shared.iterdir()) == before
