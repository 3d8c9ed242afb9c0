"""The example probe is found by its entry point alone, and runs as any other."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from k3gate.probing import outcomes, plan, profiles, registry
from k3gate.probing.execute import CaseDone, Executor
from k3gate.records import Outcome, State


@pytest.fixture
def installed(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example as pip would leave it: module and dist-info on the path of this process and of workers."""
    source = repository / "examples" / "probe"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    (tmp_path / "k3gate_page_fault.py").symlink_to(source / "k3gate_page_fault.py")
    info = tmp_path / f"k3gate_page_fault-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [f"[{group}]" for group in project["entry-points"]]
    lines += [f"{n} = {v}" for points in project["entry-points"].values() for n, v in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return source


def test_the_example_runs_through_registry_plan_and_worker(installed, make_inventory) -> None:
    probes = registry.load(["pagefault"])
    inventory = make_inventory()
    planned = plan.plan(probes, inventory, profiles.load("smoke"))
    outcome: Outcome | None = None
    with Executor(inventory) as executor:
        for execution in planned.executions:
            for event in executor.run(execution):
                if isinstance(event, CaseDone):
                    outcome = outcomes.merge(outcome, event.case, event.round, event.metrics)
    assert outcome is not None
    assert outcome.state in (State.OK, State.UNSTABLE), outcome.reason
    (metric,) = outcome.metrics
    assert metric.name == "pagefault.seconds" and metric.unit == "s"
    assert len(metric.samples) == 9 and 1e-8 < metric.median < 1e-3
    assert len({sample.process for sample in metric.samples}) == 3
    assert [proof.ok for proof in metric.proofs] == [True]


def test_the_example_is_part_of_a_default_run_once_it_is_installed(installed) -> None:
    names = [listing.name for listing in registry.installed()]
    assert "pagefault" in names and names.index("pagefault") > names.index("memory")


def test_the_example_is_one_module_under_80_lines(repository: Path) -> None:
    modules = list((repository / "examples" / "probe").rglob("*.py"))
    assert [module.name for module in modules] == ["k3gate_page_fault.py"]
    assert len(modules[0].read_text().splitlines()) < 80
