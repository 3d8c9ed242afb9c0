"""The examples in docs/ run, end with the code that they state, and print what the pages show.

A page's `console` blocks are run in order, in an empty folder whose store holds one run. Lines after a command are
what it prints, with `...` for lines left out; ids, figures, verdicts and folders differ between machines and are not
compared. A block marked `as-measured` shows what one machine printed: it is run, its output is not compared.
A `toml NAME` block becomes that file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import frozen

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
RUNNABLE = [name for name in PAGES if "```console" in (DOCS / name).read_text()]
Shell = Callable[..., subprocess.CompletedProcess[str]]


@frozen
class Example:
    """One command of a page, the exit codes it may have, and the lines shown (None: not compared)."""

    command: str
    codes: tuple[int, ...]
    shown: tuple[str, ...] | None


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Info string and lines of each fenced block."""
    for info, body in re.findall(r"^```([^\n]+)\n(.*?)^```$", (DOCS / page).read_text(), re.S | re.M):
        yield info, body.splitlines()


def examples(lines: list[str], compared: bool) -> Iterator[Example]:
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert starts and starts[0] == 0, lines
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        command, _, codes = lines[start][2:].partition("  # exit ")
        allowed = tuple(int(code) for code in re.findall(r"\d+", codes)) or (0,)
        yield Example(command, allowed, tuple(lines[start + 1 : end]) if compared else None)


def plain(line: str) -> str:
    """A line without what differs between machines: ids, hashes, folders, figures, units, verdicts."""
    line = re.sub(r"(?<!\w)/\S*/", "", line)
    line = re.sub(r"([x?] )?\b(fail|unproven)\b", "VERDICT", line)
    line = re.sub(r"sha256:[0-9a-f]+", "HASH", line)
    line = re.sub(r"\b[a-z0-9]{8}\b", "ID", line)
    line = re.sub(r"[\u2212-]?\d[\d,.:T+-]*(e-?\d+)?", "N", line)
    line = re.sub(r"\b[kMGT]B\b", "B", line)
    return " ".join(line.split())


def difference(shown: tuple[str, ...], printed: str) -> str | None:
    """The first shown line that was not printed where it stands, or None; `...` skips any number of lines."""
    real = [plain(line) for line in printed.rstrip("\n").split("\n")]
    at, skipping = 0, False
    for line in shown:
        if line.strip() == "...":
            skipping = True
            continue
        wanted = plain(line)
        end = len(real) if skipping else min(at + 1, len(real))
        found = next((number for number in range(at, end) if real[number] == wanted), None)
        if found is None:
            return line
        at, skipping = found + 1, False
    if not skipping and shown and at < len(real):
        return f"(nothing) where {real[at]!r} was printed"
    return None


@pytest.fixture(scope="module")
def example_probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/probe as pip would leave it, without asking pip."""
    folder, source = tmp_path_factory.mktemp("probe"), REPOSITORY / "examples" / "probe"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    shutil.copy(source / "k3gate_page_fault.py", folder)
    info = folder / f"k3gate_page_fault-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {value}" for name, value in project["entry-points"]["k3gate.probes"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[k3gate.probes]", *points, ""]))
    return folder


@pytest.mark.parametrize("page", RUNNABLE)
def test_examples_run_and_print_what_the_page_shows(
    page: str, shell: Shell, stored: Path, example_probe: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store" / "runs.sqlite"
    store.parent.mkdir()
    shutil.copy(stored, store)
    folder = tmp_path / "buyer"
    folder.mkdir()
    environment = {"K3GATE_STORE": str(store)}
    if page == "adding-a-probe.md":
        environment["PYTHONPATH"] = str(example_probe)
    for info, lines in blocks(page):
        if info.startswith("toml "):
            (folder / info.removeprefix("toml ")).write_text("\n".join(lines))
        if not info.startswith("console"):
            continue
        assert info in ("console", "console as-measured"), info
        for example in examples(lines, compared=info == "console"):
            done = shell(example.command, folder, **environment)
            assert done.returncode in example.codes, (example.command, done.returncode, done.stdout)
            assert "Traceback" not in done.stdout
            if example.shown is not None:
                wrong = difference(example.shown, done.stdout)
                assert wrong is None, f"{page}: {example.command}: shows {wrong}\n{done.stdout}"


def test_what_the_probe_page_quotes_stands_in_the_example() -> None:
    source = "".join(path.read_text() for path in (REPOSITORY / "examples" / "probe").iterdir())
    quoted = ["\n".join(lines) for info, lines in blocks("adding-a-probe.md") if info in ("python", "toml")]
    assert len(quoted) >= 4
    for text in quoted:
        assert all(line in source for line in text.splitlines()), text


def test_output_that_was_not_printed_is_noticed() -> None:
    printed = "run abcdefgh on box-a\n\n1  checkpoint  ? unproven\nGate: x fail\n"
    assert difference(("run zyxwvuts on box-a", "...", "Gate: ? unproven"), printed) is None
    assert difference(("...", "Gate: x fail"), printed) is None
    assert difference(("run zyxwvuts on box-b", "..."), printed) == "run zyxwvuts on box-b"
    assert difference(("...", "Gate: + pass"), printed) == "Gate: + pass"
    assert difference(("run zyxwvuts on box-a",), printed) == "(nothing) where '' was printed"
