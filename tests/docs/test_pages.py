"""A page for each command, whose examples run and which names every option."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from k3gate.cli import COMMANDS, cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_names_every_option(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[-1]}" in page or f"`{parameter.opts[0]}" in page, parameter.opts


def test_the_index_links_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    assert all(f"({name}.md)" in index for name in COMMANDS)


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text()):
        assert (DOCS / link).exists(), link


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_page_run(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.S)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    assert lines
    shim = tmp_path / "bin" / "k3gate"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m k3gate "$@"\n')
    shim.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{shim.parent}:{os.environ['PATH']}",
        "K3GATE_STORE": str(tmp_path / "runs.sqlite"),
    }
    for line in lines:
        allowed = [int(code) for code in re.findall(r"\d+", line.partition("# exit")[2])] or [0]
        done = subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
        )
        assert done.returncode in allowed, (line, done.returncode, done.stderr)
        assert "Traceback" not in done.stderr
