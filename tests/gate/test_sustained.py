"""Whether rates last: a fall fails with its domain, and nothing that is not a fall does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.records import LeftOut, PowerZone, RunStatus, Sensors, Series, State, Verdict

CHECK = "roofline.sustained"
PACKAGE = {"sensor": "coretemp platform Package id 1", "role": "cpu", "of": "1", "limit": 95.0}
COLD = {"sensor": "coretemp platform Package id 0", "role": "cpu", "of": "0", "limit": 95.0}
MODULE = {"sensor": "spd5118 3-0051 temp1", "role": "module", "of": None, "limit": 85.0}
DRIVE = {"sensor": "nvme 0000:41:00.0 Composite", "role": "drive", "of": "nvme0", "limit": 84.0}
FALL = {"memory of node 1": 0.2, "kernels of node 1": 0.25}


@pytest.fixture
def judged(made_soak: Any, make_record: Any, check: Any) -> Any:
    """`judged(inventory=..., status=..., **of made_soak)`: the check of a sound run with such a load in it."""

    def run(inventory: Any = None, status: RunStatus = RunStatus.COMPLETE, **made: Any) -> Any:
        return check(made_soak(make_record(inventory=inventory, status=status), **made), CHECK)

    return run


def test_a_rate_that_falls_while_a_sensor_rises_fails_with_the_domain_named(judged: Any) -> None:
    found = judged(fall=FALL, heat=[(COLD, 1.0, 60.0), (PACKAGE, 24.0, 66.0), (DRIVE, 30.0, 40.0)])
    assert found.verdict is Verdict.FAIL
    assert "Kernels of node 1 ran at 0.7" in found.reason
    # The drive grew hotter too, and neither memory nor kernels wait for it; the other package did not.
    assert (
        "No throttling was counted; hotter meanwhile: CPU package 1 (rose by 18.7 degrees to 90 degC)."
        in found.reason
    )
    assert "drive" not in found.reason and "package 0" not in found.reason
    assert found.interval[0] < found.observed < found.interval[1] < 0.95
    assert "stayed below 0.95 from 1 min" in found.reason


def test_a_sensor_at_its_limit_and_a_counter_are_surer_signs_than_heat(judged: Any) -> None:
    at_limit = judged(fall=FALL, heat=[(PACKAGE, 24.0, 66.0), (MODULE, 15.0, 70.0)])
    assert "memory modules (spd5118 3-0051 temp1) (85 degC, limit 85; rose by" in at_limit.reason
    assert at_limit.reason.index("modules") < at_limit.reason.index("CPU package 1")
    counted = judged(
        fall=FALL, heat=[(MODULE, 15.0, 70.0)], counter="CPU package 1, as a whole", others=(0.0, 0.2)
    )
    # A counter is proof, whatever others did.
    assert counted.verdict is Verdict.FAIL
    assert "Throttled: CPU package 1, as a whole (its counter rose by 5)" in counted.reason


@pytest.mark.case("NVM-07")
def test_a_drive_that_slows_down_is_named_and_neither_a_processor_nor_another_drive(judged: Any) -> None:
    """By its own counter where it has one, whatever its composite temperature says."""
    other = {**DRIVE, "sensor": "nvme 0000:42:00.0 Composite", "of": "nvme10"}
    warm = [(PACKAGE, 24.0, 66.0), (DRIVE, 30.0, 40.0), (other, 40.0, 40.0)]
    found = judged(path="/srv/k3", fall={"storage at /srv/k3": 0.4}, heat=warm)
    assert found.verdict is Verdict.FAIL
    assert "Storage at /srv/k3 ran at 0.6" in found.reason
    assert "drive nvme0 (rose by" in found.reason and "package" not in found.reason
    assert "nvme10" not in found.reason
    steady = [(DRIVE, 0.5, 50.0)]
    counted = judged(path="/srv/k3", fall={"storage at /srv/k3": 0.4}, heat=steady, counter="drive nvme0n1")
    assert "Throttled: drive nvme0n1 (its counter rose by 5)" in counted.reason


def test_a_package_that_draws_all_it_may_is_named(judged: Any, bare_metal: Any) -> None:
    zone = PowerZone("rapl package-1", "package-1", 1, limits={"long_term": 250.0})
    labels = {"sensor": "rapl package-1", "role": "cpu", "of": "1", "domain": "package-1"}
    power = Series("power", "W", labels, (0.0, 80.0, 190.0), (180.0, 249.0, 249.0))
    machine = attrs.evolve(bare_metal, sensors=Sensors(power_zones=(zone,)))
    found = judged(machine, fall=FALL, more=[power])
    assert found.verdict is Verdict.FAIL and "CPU package 1 (249 W, its limit is 250 W)" in found.reason


def test_a_fall_without_any_sign_fails_by_the_rate_and_says_that_the_cause_is_not_known(judged: Any) -> None:
    found = judged(fall=FALL)
    assert found.verdict is Verdict.FAIL
    assert "The cause is not known: no sensor was readable" in found.reason
    assert "others took no more of the processors (0.2 % at the end)" in found.reason
    seen = judged(fall=FALL, heat=[(PACKAGE, 1.0, 60.0)])
    assert "neither heat nor a counter that was watched shows throttling" in seen.reason


def test_others_that_took_more_as_the_rate_fell_make_it_unproven(judged: Any) -> None:
    found = judged(fall=FALL, heat=[(PACKAGE, 24.0, 66.0)], others=(0.01, 0.12))
    assert found.verdict is Verdict.UNPROVEN
    assert found.reason.startswith("Others: ")
    assert "12.0 % of the processors in the last part, after 1.0 % in the first minute" in found.reason
    assert "End what else runs" in found.remedy
    # As much as before explains nothing, nor does far less than was lost.
    assert judged(fall=FALL, others=(0.12, 0.12)).verdict is Verdict.FAIL
    # Of a machine that others have all the time nothing is learned.
    assert judged(fall=FALL, others=(0.6, 0.5)).reason.startswith("Others: ")
    assert judged(fall=FALL, others=(0.0, 0.02)).verdict is Verdict.FAIL


def test_stolen_time_counts_as_that_of_others(judged: Any) -> None:
    stolen = Series("cpu.stolen", "1", {}, (0.0, 100.0), (0.0, 0.15))
    found = judged(fall=FALL, more=[stolen])
    assert found.verdict is Verdict.UNPROVEN and "hypervisor took 15.2 %" in found.reason


def test_a_rate_that_holds_passes_and_tells_the_room_or_that_there_was_no_sensor(judged: Any) -> None:
    found = judged(heat=[(PACKAGE, 20.0, 55.0)])
    assert found.verdict is Verdict.PASS, found.reason
    assert "CPU package 1 stayed 20 degrees below its limit" in found.reason
    assert found.bound.min == 0.95 and found.interval[0] > 0.99 and found.unit == "1"
    bare = judged()
    assert bare.verdict is Verdict.PASS
    assert bare.reason.endswith("no sensor was readable, so that the rate alone decides.")


def test_a_sensor_that_still_rises_towards_its_limit_leaves_it_open(judged: Any) -> None:
    times = tuple(float(at) for at in range(0, 200, 2))
    rising = Series("temperature", "degC", PACKAGE, times, tuple(60 + 0.17 * at for at in times))
    found = judged(more=[rising])
    assert found.verdict is Verdict.UNPROVEN
    assert "CPU package 1 was still warming" in found.reason and "--profile soak" in found.remedy


@pytest.mark.parametrize(
    ("made", "reason", "remedy"),
    [
        ({"seconds": 100.0}, "loaded for 1 min 40 s, less than 2 min 30 s: too short", "--profile soak"),
        ({"load_s": 12.0}, "too short to tell", "--profile soak"),
        ({"state": State.FAILED}, "did not end as planned: failed, round 1 of 1: it was killed", "soak"),
        ({"status": RunStatus.INTERRUPTED}, "interrupted, not complete", "--resume"),
    ],
)
def test_a_load_that_merely_ended_early_does_not_fail(
    judged: Any, made: Any, reason: str, remedy: str
) -> None:
    """Even where its rate fell: what would settle it is said."""
    found = judged(fall=FALL, heat=[(PACKAGE, 24.0, 66.0)], **made)
    assert found.verdict is Verdict.UNPROVEN
    assert reason in found.reason and remedy in found.remedy


def test_noise_and_a_guest_decide_nothing(judged: Any, make_inventory: Any) -> None:
    noisy = judged(noise=0.4)
    assert noisy.verdict is Verdict.UNPROVEN and "Too noisy to tell" in noisy.reason
    guest = judged(make_inventory("vm"), fall=FALL)
    assert guest.verdict is Verdict.UNPROVEN and "virtual" in guest.reason and guest.observed < 0.8
    assert judged(make_inventory("vm")).verdict is Verdict.UNPROVEN


def test_a_run_without_a_load_says_why_and_what_has_one(make_record: Any, check: Any) -> None:
    record = make_record()
    left = LeftOut("thermal", "soak", "the quick profile is too short to show that a rate lasts")
    found = check(attrs.evolve(record, run=attrs.evolve(record.run, left_out=(left,))), CHECK)
    assert found.verdict is Verdict.UNPROVEN and found.observed is None
    assert "the quick profile is too short" in found.reason and "--profile standard" in found.remedy


def test_the_last_attempt_counts_where_an_earlier_one_was_interrupted(
    made_soak: Any, make_record: Any, check: Any
) -> None:
    first = made_soak(make_record(), fall=FALL, seconds=80.0)
    both = made_soak(attrs.evolve(first, outcomes=make_record().outcomes), begun=200.0)
    joined = [
        attrs.evolve(one, times=one.times + two.times, values=one.values + two.values)
        for one, two in zip(both.series[:5], both.series[5:], strict=True)
    ]
    found = check(attrs.evolve(both, series=tuple(joined)), CHECK)
    assert found.verdict is Verdict.PASS, found.reason
