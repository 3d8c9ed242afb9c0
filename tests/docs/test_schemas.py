"""The documents of `--json` have the shape that docs/schemas promises."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("schemas")

    def call(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "k3gate", *arguments, "--json"],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "K3GATE_STORE": str(folder / "runs.sqlite")},
            timeout=60,
        )
        assert done.returncode in (0, 1, 3), done.stderr
        return json.loads(done.stdout)

    call("run", "--probe", "selftest", "-q")
    call("run", "--probe", "selftest", "-q")
    return call


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ("run", ["show"]),
        ("host", ["host"]),
        ("gate", ["gate"]),
        ("plan", ["run", "--dry-run"]),
        ("probes", ["probes"]),
        ("runs", ["runs"]),
    ],
)
def test_a_document_fits_its_schema(ask: Any, schema: str, arguments: list[str]) -> None:
    validator(schema).validate(ask(*arguments))


def test_a_comparison_and_a_judgement_with_a_waiver_fit_their_schemas(ask: Any) -> None:
    first, second = (run["id"] for run in ask("runs")["runs"])
    validator("diff").validate(ask("diff", first, second))
    document = ask("waive", first, "roofline.power", "--who", "A. Buyer", "--why", "no meter at hand")
    assert document["waivers"] == 1
    validator("gate").validate(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("run", "id"), 7),
        (("outcomes", 0, "state"), "fine"),
        (("outcomes", 0, "metrics", 0, "median"), "fast"),
        (("gate", "steps", 0, "checks", 0, "verdict"), "maybe"),
        (("inventory", "numa", "nodes", 0, "id"), "0"),
    ],
)
def test_a_broken_document_is_refused(ask: Any, path: tuple[str | int, ...], value: object) -> None:
    document = copy.deepcopy(ask("show"))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not validator("run").is_valid(document)
