"""A page for each command, which names every option; pages and index lead to one another."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from k3gate import errors
from k3gate.cli import COMMANDS, cli
from k3gate.gate import criteria, targets
from k3gate.gate.steps import CHECKS
from k3gate.probing import profiles
from k3gate.records import RunStatus, Verdict

DOCS = Path(__file__).resolve().parents[2] / "docs"
OTHERS = {"README", "json", "exit-codes", "adding-a-probe"}
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


def text(page: str) -> str:
    return (DOCS / page).read_text()


def test_each_command_has_a_page_and_each_page_a_command() -> None:
    assert {name.removesuffix(".md") for name in PAGES} - OTHERS == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_names_every_option_and_no_other(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    page = text(f"{name}.md")
    rows = "\n".join(line.partition(" | ")[0] for line in page.splitlines() if re.match(r"\| `-", line))
    named = set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", rows))
    assert named == known
    assert {flag for flag in command.get_help(click.Context(command)).split() if flag.startswith("--")} - {
        "--help"
    } <= {*known, *re.findall(r"--[a-z-]+", page)}


def test_the_index_links_every_page() -> None:
    assert all(f"({page})" in text("README.md") for page in PAGES if page != "README.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", text(page)):
        assert (DOCS / link).exists(), link


def test_the_page_of_exit_codes_has_each_code_and_no_other() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text("exit-codes.md"), re.M)} == codes


def test_the_page_of_the_gate_explains_every_key_and_choice() -> None:
    page = text("gate.md")
    shipped = tomllib.loads(criteria.SHIPPED.read_text())
    keys = {key for entry in shipped["check"] for key in entry}
    for name in ("residency-lab", "hybrid", "production"):
        keys |= set(tomllib.loads((targets.FOLDER / f"{name}.toml").read_text())) - {"sources"}
    keys |= {*targets.KEYS, *targets.PRICES, *targets.SUBJECTS, *targets.TIERS, *targets.MODALITIES}
    keys |= {*criteria.RULES, *criteria.SUBJECTS, *criteria.PROOFS, *criteria.SETTLED_BY}
    keys |= {verdict.value for verdict in Verdict} | {"settled_by", "replicate_per_node", "licence_accepted"}
    assert {key for key in keys if not re.search(rf'[`"\[]{key}["`\]]', page)} == set()


def test_a_key_that_the_gate_page_does_not_explain_is_refused(tmp_path: Path) -> None:
    page = text("gate.md")
    for path, load in (
        (criteria.SHIPPED, criteria.load),
        (targets.FOLDER / "hybrid.toml", targets.load),
    ):
        broken = tmp_path / path.name
        broken.write_text(path.read_text().replace('name = "', 'nickname = "x"\nname = "', 1))
        assert "`nickname`" not in page
        with pytest.raises(errors.UsageError, match="nickname"):
            load(str(broken))


def test_profiles_statuses_and_the_number_of_checks_are_those_of_the_program() -> None:
    assert all(f"`{name}` " in text("run.md") for name in profiles.names())
    statuses = re.findall(r"^\| `(\w+)` \| .*", text("runs.md").partition("| option")[0], re.M)
    assert set(statuses) == {status.value for status in RunStatus}
    changes = (DOCS.parent / "CHANGELOG.md").read_text()
    assert f"{len(CHECKS)} checks" in changes
