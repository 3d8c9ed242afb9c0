"""The machine's rows: what limits the run in truth, and that unknown is not read as no."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.records import Amx, Cpu, Inventory, Provenance, State
from k3gate.reports import machine
from k3gate.reports.machine import machine_kind, processor, settings

GIB = 2**30
RENTED = ". Figures are those of what was rented, not of the hardware"


def shown(inventory: Inventory, name: str) -> tuple[str, bool]:
    row = next(row for row in settings(inventory) if row.name.startswith(name))
    return row.found.replace("\N{NO-BREAK SPACE}", " "), row.spoils


def test_limits_above_what_the_machine_has_limit_nothing(make_inventory: Any) -> None:
    limits = {"cgroup_memory_bytes": 4096 * GIB, "cgroup_cpus": 512.0, "cpuset_cpus": tuple(range(256))}
    inventory = make_inventory("bare_metal", limits=limits)
    assert machine_kind(inventory) == ("Bare metal", True)
    assert shown(inventory, "Memory limit") == ("4,096 GiB", False)
    assert shown(inventory, "CPU limit") == ("512 CPUs", False)


def test_limits_that_hold_are_named(make_inventory: Any) -> None:
    limits = {"cgroup_memory_bytes": 100 * GIB, "cgroup_cpus": 64.0, "cpuset_mems": (0,), "restricted": True}
    inventory = make_inventory("bare_metal", limits=limits, cpu={"allowed": tuple(range(32))})
    told = "32 of 128 CPUs, 64.0 CPUs of time, 100 GiB of memory and the memory of nodes 0"
    assert machine_kind(inventory) == (f"Bare metal, limited to {told}{RENTED}", False)
    assert shown(inventory, "Memory limit") == ("100 GiB", True)
    assert shown(inventory, "CPU limit") == ("64 CPUs", True)
    without = attrs.evolve(inventory, limits=attrs.evolve(inventory.limits, cpuset_mems=None))
    assert "memory of nodes" not in machine_kind(without)[0]


def test_a_kernel_with_fewer_cpus_is_not_the_whole_machine(make_inventory: Any) -> None:
    inventory = make_inventory("bare_metal", kernel={"command_line": "nr_cpus=128"})
    assert machine_kind(inventory) == (
        f"Bare metal, limited to the 128 CPUs that nr_cpus=128 allows{RENTED}",
        False,
    )


def test_a_container_that_may_be_there_is_said(make_inventory: Any) -> None:
    notes = {"machine.container": Provenance(State.NOT_PRESENT, "proc/1/cgroup", "absent")}
    kind, bare = machine_kind(attrs.evolve(make_inventory("bare_metal"), provenance=notes))
    assert kind == f"Bare metal, in a container or not: not known{RENTED}"
    assert not bare


@pytest.mark.parametrize(
    ("amx", "words"),
    [
        (Amx(tile=True, granted=True), "present, granted to this process"),
        (Amx(tile=True, granted=False), "present, not granted to this process"),
        (Amx(tile=True), "present, not known whether granted to this process"),
        (Amx(tile=False), "not in this processor"),
        (Amx(), "unknown"),
    ],
)
def test_the_grant_of_amx_has_three_answers(make_inventory: Any, amx: Amx, words: str) -> None:
    inventory = attrs.evolve(make_inventory("vm"), cpu=Cpu(amx=amx))
    assert dict(processor(inventory))["AMX"] == words


@pytest.mark.parametrize(
    ("used", "words"),
    [(None, "8 GiB, how much is used is unknown"), (0, "8 GiB, 0 B used"), (GIB, "8 GiB, 1 GiB used")],
)
def test_swap_whose_use_is_unknown_is_not_unused(make_inventory: Any, used: int | None, words: str) -> None:
    inventory = make_inventory("vm", memory={"swap_total_bytes": 8 * GIB, "swap_used_bytes": used})
    assert shown(inventory, "Swap") == (words, True)


def test_one_of_a_kind_is_no_plural(make_inventory: Any) -> None:
    inventory = make_inventory("bare_metal", cpu={"sockets": 1, "cores": 12, "threads": None})
    assert dict(processor(inventory))["Sockets, cores, threads"] == "1 socket, 12 cores, threads unknown"


def test_a_drive_is_told_in_words_with_what_lies_within_it(bare_metal) -> None:
    from k3gate.records import Drive, DriveHealth, PcieLink, Storage

    health = DriveHealth(temperature=50.0, sensors={"1": 50.0, "2": 90.0})
    drive = Drive(
        "0000:41:00.0 namespace 1", "nvme0n1", kind="nvme", link=PcieLink("0000:41:00.0", 16.0), health=health
    )
    inventory = attrs.evolve(bare_metal().record.inventory, storage=Storage(drives=(drive,)))
    (rows,) = [rows for name, rows in machine.tables(inventory) if name == "Drives"]
    assert (
        "link gt per s: 16.0; health temperature: 50.0; health sensors 1: 50.0; health sensors 2: 90.0"
        in rows[0][2]
    )
