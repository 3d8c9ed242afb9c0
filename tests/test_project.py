"""The project as a whole: floors, start-up, field cases, and that it stands alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

FIELD_CASES = {
    *("BW-01", "BW-02", "BW-03", "BW-04", "BW-06", "BW-07", "BW-08", "BW-09", "BW-11"),
    *("STO-01", "STO-02", "STO-03", "STO-05", "STO-07", "STO-08", "STO-09", "STO-11"),
    *("REP-01", "REP-03"),
    *("TOP-01", "TOP-03", "TOP-05", "TOP-06", "TOP-07", "TOP-08", "TOP-09", "TOP-11", "TOP-12", "TOP-14"),
    *("TOP-16", "TOP-18"),
    *("MEM-01", "MEM-02", "MEM-03", "MEM-04", "MEM-05", "MEM-08"),
    *("CKP-01", "CKP-02", "CKP-03", "CKP-04", "CKP-05", "CKP-06", "CKP-07", "CKP-09", "CKP-10", "CKP-12"),
    *("CKP-13", "CKP-14", "CKP-16", "CKP-18", "CKP-19", "CKP-22", "CKP-23", "CKP-24", "CKP-26", "CKP-27"),
    *("CKP-28", "QNT-01", "QNT-02", "QNT-04", "QNT-06", "QNT-07", "QNT-10", "QNT-11", "QNT-13"),
    *("ISA-01", "ISA-02", "ISA-03", "ISA-05", "ISA-06"),
    *("RUN-01", "RUN-02", "RUN-05", "RUN-06", "RUN-07"),
    *("SRV-01", "SRV-02", "SRV-04", "SRV-06", "SRV-07", "SRV-09", "SRV-10", "SRV-11", "SRV-13", "SRV-15"),
    *("THM-01", "THM-02", "THM-06", "THM-07", "THM-08", "THM-09", "THM-10", "THM-12", "THM-14", "THM-15"),
    *("THM-16", "THM-17", "THM-20"),
    *("NVM-01", "NVM-02", "NVM-04", "NVM-06", "NVM-07", "NVM-09", "NVM-10", "NVM-11"),
    *("PCI-01", "PCI-02", "PCI-04", "PCI-06", "PCI-07", "PCI-08", "PCI-09", "PCI-10", "PCI-11", "PCI-13"),
    *("PCI-15", "PCI-16", "PCI-18", "PCI-20", "PCI-22"),
    *("CLM-01", "CLM-02", "CLM-03", "CLM-05", "CLM-09"),
}
"""Situations from the field that this version must answer; each has a test that carries its id."""


def test_every_field_case_has_a_test_that_carries_its_id() -> None:
    carried = set()
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        carried |= set(re.findall(r'mark\.case\("([A-Z]{3}-\d\d|[A-Z]{2}-\d\d)"\)', path.read_text()))
    assert carried >= FIELD_CASES, f"no test carries {sorted(FIELD_CASES - carried)}"


def test_imports_only_go_down_the_floors() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    if not lint.exists():
        pytest.skip("import-linter is not installed: pip install k3gate[dev]")
    done = subprocess.run([lint, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("k3gate.cli", {"numpy", "scipy", "sqlalchemy", "alembic", "jinja2", "rich", "cattrs", "attr"}),
        ("k3gate.probing.worker", {"numpy", "scipy", "sqlalchemy", "alembic", "jinja2", "rich", "click"}),
        (
            "k3gate.probes.memory",
            {"numpy", "scipy", "jinja2", "rich", "click", "k3gate.host", "k3gate.probing.plan"},
        ),
        ("k3gate.gate.evaluator", {"scipy", "sqlalchemy", "alembic", "jinja2", "rich", "numpy"}),
    ],
)
def test_what_must_start_fast_imports_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_the_version_is_the_same_everywhere() -> None:
    import tomllib

    import k3gate

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == k3gate.__version__


def test_nothing_that_ships_names_what_lies_beside_the_project() -> None:
    for folder in ("k3gate", "probes", "reports", "docs", "examples", "benchmarks"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and path.suffix in {".py", ".md", ".toml", ".j2", ".cpp", ".hpp", ".json"}:
                assert "../shared" not in path.read_text(), path
