"""A run that is to refine a plan is of the machine that is planned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from k3gate.analysis import system_file
from k3gate.errors import UsageError
from k3gate.harness import planning


def _record(inventory: Any) -> Any:
    return SimpleNamespace(run=SimpleNamespace(id="abc", left_out=()), inventory=inventory, outcomes=())


def test_a_run_of_another_machine_is_refused(make_inventory: Any) -> None:
    record = _record(make_inventory("bare_metal"))
    text = (
        "name = 'box'\n[cpu]\nmodel = 'Celeron G3900'\nsockets = 1\n[memory]\nmodules = 2\nmodule_gib = 8\n"
    )
    with pytest.raises(UsageError) as error:
        planning.measured(record, system_file.read(text, "box.toml"))
    told = str(error.value)
    assert told.startswith("run abc is of another machine than 'box': processor Celeron G3900, the run's ")
    assert "sockets 1, the run's 2" in told and "\n" not in told


def test_a_run_of_the_machine_is_taken_for_its_reads(make_inventory: Any) -> None:
    record = _record(make_inventory("bare_metal"))
    described = system_file.read("name = 'box'\n[cpu]\nsockets = 2\ncores = 32\n", "box.toml")
    with pytest.raises(UsageError, match="run abc holds no sound read of the whole machine"):
        planning.measured(record, described)


def test_what_could_not_be_compared_with_a_run_is_said_and_another_size_refused(make_inventory: Any) -> None:
    """Without root no module is read: the kernel's own count still tells a machine of 2 TiB from one of 3."""
    record = _record(make_inventory("bare_metal", memory={"total_bytes": 2**41 - 2**35, "dimms": None}))
    text = "name = 'box'\n[cpu]\nsockets = 2\n[memory]\nmodules = {}\nmodule_gib = 128\nmts = 5600\nchannels = 8\n"
    told = planning.uncompared(record, system_file.read(text.format(16), "box.toml"))
    assert all(
        line.startswith("not compared with run abc, which may be of another machine: ") for line in told
    )
    (modules,) = [line for line in told if "needs root" in line or "not read" in line]
    for title in ("memory modules", "size of a module", "speed of memory"):
        assert title in modules
    assert any("processor (the file does not state it)" in line for line in told)
    with pytest.raises(UsageError, match="memory 3,072 GiB, the run's 2,016 GiB"):
        planning.measured(record, system_file.read(text.format(24), "box.toml"))
    with pytest.raises(UsageError, match="holds no sound read"):
        planning.measured(record, system_file.read(text.format(16), "box.toml"))
