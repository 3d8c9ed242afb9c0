from __future__ import annotations

import json
import subprocess
import sys


def test_starting_a_worker_imports_nothing_heavy() -> None:
    script = "import sys, json, k3gate.probing.worker; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    modules = set(json.loads(answer.stdout))
    heavy = {"numpy", "scipy", "sqlalchemy", "alembic", "click", "rich", "jinja2", "cattrs", "psutil"}
    assert "k3gate.probing.worker" in modules
    assert modules & (heavy | {"importlib.metadata", "asyncio", "k3gate.store", "k3gate.gate"}) == set()


def test_a_person_who_starts_a_worker_is_told_what_it_is() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "k3gate.probing.worker"], input="{}", capture_output=True, text=True
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1 and "started by k3gate run" in answer.stderr
