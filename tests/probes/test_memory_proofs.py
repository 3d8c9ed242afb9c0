"""What the memory probe makes of what threads and pools report: fakes report it, so that it can be bent."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from fakes import SIZE, FakeContext, FakeMemory, FakeTeam, FakeThread, case_on_two_cpus, fake_pool

from k3gate.errors import ProbeError
from k3gate.probes import pools, residency
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Case, Metric, Proof, State

Bend = Callable[[str, int, list[FakeThread]], None]


def _proof(metric: Metric, name: str) -> Proof:
    return next(proof for proof in metric.proofs if proof.name == name)


def _stray(call: str, number: int, where: str) -> Bend:
    def bend(name: str, nth: int, threads: list[FakeThread]) -> None:
        if (name, nth) == (call, number):
            setattr(threads[1], where, 0)

    return bend


@pytest.mark.parametrize("where", ["cpu_before", "cpu_after"])
@pytest.mark.parametrize("call", ["touch", "verify"])
def test_a_thread_that_strays_while_memory_is_touched_or_verified_is_seen(
    fake, call: str, where: str
) -> None:
    metrics, _ = fake("residency.image", FakeTeam([0, 1], bend=_stray(call, 0, where)))
    assert _proof(metrics[0], "pinned").ok is False
    assert "CPUs 1" in _proof(metrics[0], "pinned").detail


def test_threads_that_stay_prove_the_pinning(fake) -> None:
    for name in ("residency.image", "read.node0.node0"):
        metrics, _ = fake(name, FakeTeam([0, 1]))
        assert {proof.name: proof.ok for proof in metrics[0].proofs}.items() >= {
            "placement": True,
            "pinned": True,
            "checksum": True,
        }.items()


def _two_pools(case: Case, *pages: str) -> Case:
    [spec] = case.parameters["pools"]
    specs = [{**spec, "pages": kind} for kind in pages]
    return attrs.evolve(case, parameters={**case.parameters, "pools": specs})


def test_the_image_is_given_back_when_the_worker_ends_and_not_within_the_case(
    make_inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[FakeMemory] = []

    def allocate(size: int, pages: str, node: int | None) -> pools.FilledPool:
        if given and refuse:
            raise OSError(errno.ENOMEM, "refused")
        given.append(FakeMemory(size))
        return pools.FilledPool(given[-1], node, pages, seed=1)

    monkeypatch.setattr(pools, "allocate", allocate)
    monkeypatch.setattr(pools, "make_team", lambda cpus: FakeTeam([0, 1]))
    inventory = make_inventory("vm")
    case = _two_pools(case_on_two_cpus(inventory, "residency.image"), "small", "small")
    for refuse in (False, True):
        given.clear()
        context = FakeContext(inventory)
        list(MemoryProbe().run(case, context))
        assert len(given) == (1 if refuse else 2)
        assert not any(memory.closed for memory in given)
        context.close()
        assert all(memory.closed for memory in given)


@pytest.mark.parametrize(
    ("kinds", "fits"),
    [(("small", "small"), False), (("small", "reserved_2m"), True), (("reserved_2m", "reserved_1g"), True)],
)
def test_all_pools_of_the_image_together_must_be_available(
    make_inventory, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, str], fits: bool
) -> None:
    """Each alone would fit in what is available; reserved pages are no part of it."""
    touched: list[int] = []

    def allocate(size: int, pages: str, node: int | None) -> pools.FilledPool:
        touched.append(size)
        return fake_pool(size, node, pages)

    monkeypatch.setattr(pools, "allocate", allocate)
    monkeypatch.setattr(pools, "make_team", lambda cpus: FakeTeam([0, 1]))
    monkeypatch.setattr(pools, "available_bytes", lambda: SIZE * 3 // 2)
    inventory = make_inventory("vm")
    case = _two_pools(case_on_two_cpus(inventory, "residency.image"), *kinds)
    if fits:
        list(MemoryProbe().run(case, FakeContext(inventory)))
        assert len(touched) == 2
    else:
        with pytest.raises(ProbeError, match="available now"):
            list(MemoryProbe().run(case, FakeContext(inventory)))
        assert not touched


@pytest.mark.parametrize(
    ("number", "wanted", "changes", "ok"),
    [
        (None, SIZE, {}, True),
        (errno.ENOMEM, SIZE, {}, False),
        (errno.ENOMEM, 9 * 2**30, {}, None),
        (errno.ENOMEM, SIZE, {"memory": {"total_bytes": None}}, None),
        (errno.ENOMEM, SIZE, {"kernel": {"overcommit_memory": 2}}, None),
        (errno.EPERM, SIZE, {}, None),
        (errno.EFAULT, SIZE, {}, None),
    ],
)
def test_the_machine_refused_only_where_it_is_large_enough_and_had_no_memory(
    make_inventory, number: int | None, wanted: int, changes: dict[str, Any], ok: bool | None
) -> None:
    trouble = None if number is None else residency._Trouble(number, "touching")
    proof = residency._allocation_proof(wanted, make_inventory("vm", **changes), trouble)
    assert (proof.name, proof.ok) == ("allocation", ok)
    if number is not None:
        assert errno.errorcode[number] in proof.detail


def test_a_limit_of_the_process_is_not_the_machines_refusal(
    make_inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (2**30, 2**30))
    trouble = residency._Trouble(errno.ENOMEM, "touching")
    proof = residency._allocation_proof(2**30, make_inventory("vm"), trouble)
    assert proof.ok is None
    assert "ulimit" in proof.detail


@pytest.mark.parametrize(
    ("swap", "ok", "word"), [(0, True, "0 bytes"), (4096, False, "4096 bytes"), (None, None, "does not say")]
)
def test_what_is_in_swap_after_touching_is_not_resident(
    monkeypatch: pytest.MonkeyPatch, swap: int | None, ok: bool | None, word: str
) -> None:
    fields = {"KernelPageSize": 4096} | ({} if swap is None else {"Swap": swap})
    monkeypatch.setattr(pools, "smaps_fields", lambda address: fields)
    proof = pools.resident([fake_pool(SIZE)])
    assert (proof.name, proof.ok) == ("resident", ok)
    assert word in proof.detail


def test_smaps_that_cannot_be_read_leave_residency_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: int) -> dict[str, int]:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(pools, "smaps_fields", refuse)
    assert pools.resident([fake_pool(SIZE)]).ok is None


def _fail_touch(at: int, number: int) -> Bend:
    def bend(call: str, nth: int, threads: list[FakeThread]) -> None:
        if (call, nth) == ("touch", at):
            threads[1].error = number

    return bend


def test_memory_refused_while_touching_keeps_what_was_filled_and_says_errno(fake) -> None:
    """Three slices; the second is refused: the first is held and verified, and no rate is taken of it."""
    size = 3 * 2 * pools.TOUCH_SLICE
    held, rate = fake("residency.image", FakeTeam([0, 1], bend=_fail_touch(1, errno.ENOMEM)), size=size)[0]
    assert [sample.value for sample in held.samples] == [size / 3]
    assert held.state is State.FAILED
    assert "ENOMEM" in (held.reason or "") and "touching" in (held.reason or "")
    assert _proof(held, "allocation").ok is False
    assert _proof(held, "checksum").ok is True
    assert rate.state is State.FAILED
    assert rate.samples == ()


def test_an_image_that_was_touched_to_the_end_has_every_proof_and_a_rate(fake) -> None:
    held, rate = fake("residency.image", FakeTeam([0, 1]))[0]
    assert {proof.name: proof.ok for proof in held.proofs} == {
        "placement": True,
        "page_size": True,
        "pinned": True,
        "checksum": True,
        "allocation": True,
        "resident": True,
    }
    assert [sample.value for sample in rate.samples] == [SIZE / 0.1]
    assert (held.state, rate.state) == (State.OK, State.OK)


def test_wrong_words_are_told_from_refused_memory(fake) -> None:
    def bend(call: str, nth: int, threads: list[FakeThread]) -> None:
        if call == "verify":
            threads[0].value = 3

    held, _ = fake("residency.image", FakeTeam([0, 1], bend=bend))[0]
    assert _proof(held, "checksum").ok is False
    assert _proof(held, "allocation").ok is True
    assert held.state is State.FAILED
    # The thread that found wrong words vouches for none of its bytes.
    assert [sample.value for sample in held.samples] == [SIZE / 2]


def test_right_bytes_and_wrong_words_add_up_over_all_slices(fake) -> None:
    def bend(call: str, nth: int, threads: list[FakeThread]) -> None:
        if (call, nth) in (("verify", 0), ("verify", 1)):
            threads[0].value = 3

    size = 3 * 2 * pools.TOUCH_SLICE
    held, _ = fake("residency.image", FakeTeam([0, 1], bend=bend), size=size)[0]
    assert [sample.value for sample in held.samples] == [size * 4 / 6]
    assert "6 words do not" in _proof(held, "checksum").detail
