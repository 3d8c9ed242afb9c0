"""Storage against the load time of a target: which figures decide, and what is said where none does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate import metrics
from k3gate.analysis import loading
from k3gate.gate import storage
from k3gate.gate.targets import load
from k3gate.records import Drive, LeftOut, Metric, Outcome, PcieLink, Proof, State, Storage

TARGET = load("hybrid")
WANTED = TARGET.value("load_bytes_per_s") or 0.0
PROOFS = tuple(Proof(name, True, "seen") for name in ("uncached", "from_drives", "written", "incompressible"))
LABELS: dict[str, Any] = {
    "scope": "all",
    "path": "/models",
    "asked": True,
    "way": "direct",
    "lies_on": "ext4 on 2 NVMe drives",
    "drives": "nvme0n1, nvme1n1",
    "threads": 1,
    "depth": 32,
}


def figure(case: str, name: str, rate: float, **changes: Any) -> Outcome:
    labels = {**LABELS, **changes.pop("labels", {})}
    declaration = metrics.find(name)
    assert declaration is not None
    interval = (0.99 * rate, 1.01 * rate)
    plain = Metric(
        name, declaration.unit, declaration.better, labels, (), rate, interval, State.OK, None, PROOFS
    )
    metric = attrs.evolve(plain, **changes)
    return Outcome("storage", case, metric.state, metric.reason, 1.0, 3, (), (metric,))


def direct(rate: float, shape: str = "1m.t1.q32", **changes: Any) -> Outcome:
    return figure(f"path1.direct.{shape}", "storage.read.rate", rate, **changes)


def steady(rate: float, **changes: Any) -> Outcome:
    labels = {"way": "course", **changes.pop("labels", {})}
    return figure("path1.course", "storage.steady.rate", rate, labels=labels, **changes)


def way(key: str, rate: float) -> Outcome:
    return figure(f"path1.cold.{key}", "storage.loader.rate", rate, labels={"way": key})


@pytest.fixture
def judged(make_record, check) -> Any:
    """`judged(outcomes)`: how roofline.storage, or another check, comes out with these alone."""

    def run(*outcomes: Outcome, name: str = "roofline.storage", left_out: tuple[LeftOut, ...] = ()) -> Any:
        record = make_record(outcomes)
        record = attrs.evolve(record, run=attrs.evolve(record.run, left_out=left_out))
        return check(record, name, target=TARGET)

    return run


def test_the_best_way_to_read_decides_and_must_be_kept_up(judged) -> None:
    found = judged(direct(0.5 * WANTED, "1m.t1.q1"), direct(3 * WANTED), steady(2 * WANTED))
    assert (found.verdict, found.observed) == ("pass", pytest.approx(3.0))
    slow = judged(direct(3 * WANTED), steady(0.5 * WANTED))
    assert slow.verdict == "fail" and slow.observed == pytest.approx(0.5)
    assert "air or heat sinks" in slow.remedy
    assert judged(direct(0.5 * WANTED), steady(0.5 * WANTED)).verdict == "fail"


@pytest.mark.case("NVM-07")
def test_a_short_run_cannot_prove_what_a_drive_keeps_up(judged) -> None:
    left = LeftOut("storage", "path1.course", "a drive that slows down for heat does so after a minute")
    found = judged(direct(3 * WANTED), left_out=(left,))
    assert found.verdict == "unproven" and "slows down for heat" in found.reason


@pytest.mark.case("NVM-01")
@pytest.mark.parametrize("name", ["uncached", "from_drives", "written", "incompressible"])
@pytest.mark.parametrize("ok", [False, None])
def test_a_proof_that_is_lacking_leaves_it_unproven(judged, name: str, ok: bool | None) -> None:
    proofs = tuple(attrs.evolve(one, ok=ok) if one.name == name else one for one in PROOFS)
    found = judged(direct(3 * WANTED, proofs=proofs), steady(3 * WANTED))
    assert found.verdict == "unproven" and name.replace("_", " ") in found.reason


def test_a_withheld_figure_and_a_loaders_way_are_no_evidence(judged) -> None:
    withheld = direct(3 * WANTED, state=State.FAILED, reason="withheld: written: holes")
    assert judged(withheld, steady(3 * WANTED)).verdict == "unproven"
    found = judged(way("read", 3 * WANTED), way("safetensors", 3 * WANTED))
    assert found.verdict == "unproven" and "Not measured" in found.reason


def test_a_place_that_nobody_named_is_told_and_decides_nothing(judged) -> None:
    found = judged(direct(3 * WANTED, labels={"asked": False}), steady(3 * WANTED, labels={"asked": False}))
    assert found.verdict == "unproven" and found.observed is None
    assert "name the place of the weights with --storage" in found.reason


def test_of_several_places_the_worst_decides(judged) -> None:
    other = {"path": "/other"}
    found = judged(
        direct(3 * WANTED),
        steady(3 * WANTED),
        direct(0.5 * WANTED, "x", labels=other),
        steady(3 * WANTED, labels=other),
    )
    assert found.verdict == "fail" and "/other" in found.reason


def test_the_load_time_is_computed_where_no_runtime_loaded_anything(judged) -> None:
    size = storage.weight_bytes(TARGET)
    found = judged(
        direct(size / 600),
        way("safetensors", size / 1200),
        figure("warm", "storage.cached.rate", size / 1300, labels={"way": "warm"}),
        way("read", size / 700),
        name="prototype.load_time",
    )
    assert found.verdict == "unproven" and found.observed is None
    assert "Computed from storage, not as served" in found.reason
    assert "take 10 min 00 s at least" in found.reason
    assert "20 min 00 s as a loader of safetensors reads" in found.reason
    assert "bound by copying into memory by one thread" in found.reason


@pytest.mark.parametrize(
    ("rates", "bound"),
    [
        ({"safetensors": 0.9}, "the drives"),
        ({"safetensors": 0.5, "read": 0.6}, "the file system's page cache"),
        ({"safetensors": 0.5, "read": 0.8, "copy": 0.55}, "copying into memory by one thread"),
        ({"safetensors": 0.5, "read": 0.6, "copy": 0.9}, "the file system's page cache"),
    ],
)
def test_what_bounds_a_load_is_the_slowest_that_it_passes(
    make_record, rates: dict[str, float], bound: str
) -> None:
    outcomes = [direct(1e9)]
    for key, rate in rates.items():
        if key == "copy":
            outcomes.append(figure("warm", "storage.cached.rate", rate * 1e9, labels={"way": "warm"}))
        else:
            outcomes.append(way(key, rate * 1e9))
    found = loading.loading(make_record(outcomes), 10**12)
    assert found is not None and found.bound == bound
    assert found.floor.seconds == pytest.approx(1000.0)


@pytest.mark.case("NVM-01")
def test_links_are_named_where_the_drives_fill_them(make_record) -> None:
    link = PcieLink("0000:01:00.0", best_bytes_per_s=3.94e9)
    drives = tuple(Drive(name, name, link=link) for name in ("nvme0n1", "nvme1n1"))
    machine = attrs.evolve(make_record().inventory, storage=Storage(drives))
    found = loading.loading(make_record((direct(7.5e9), steady(7.0e9)), machine), 10**12)
    assert found is not None and found.bound == "the links of the drives"
    stage = found.stage("link")
    assert stage is not None and stage.rate == pytest.approx(7.88e9)
    assert found.floor.key == "steady"


def test_without_a_direct_read_nothing_is_computed(make_record) -> None:
    assert loading.loading(make_record((way("read", 1e9),)), 10**12) is None
