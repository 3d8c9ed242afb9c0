"""`k3gate inspect hf://...` as a user meets it; the Hub is a fake one on loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.test_inspect import checks
from tests.model.checkpoint.conftest import safetensors_bytes
from tests.model.checkpoint.fake_hub import COMMIT, FakeHub, Reply, serving

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
PLACE = "hf://maker/model"
TOKEN = "hf_secretsecret"
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    (place / A).write_bytes(safetensors_bytes({"model.embed_tokens.weight": ("BF16", (8, 4))}))
    (place / B).write_bytes(safetensors_bytes({"lm_head.weight": ("BF16", (8, 4))}))
    weight_map = {"model.embed_tokens.weight": A, "lm_head.weight": B}
    index = {"metadata": {"total_size": 128}, "weight_map": weight_map}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    (place / "config.json").write_text('{"model_type": "x"}')
    (place / "LICENSE").write_text("the licence\n")
    return place


@pytest.fixture
def hub(folder: Path) -> Iterator[FakeHub]:
    with serving(repositories={"maker/model": folder}) as served:
        yield served


def test_a_repository_is_told_and_joins_the_gate_as_its_files_would(
    cli: Any, selftest: str, hub: FakeHub, folder: Path
) -> None:
    done = cli("inspect", PLACE, "--json", "--run", selftest, env=hub.environment)
    assert (done.code, done.err) == (0, "")
    told, here = done.json(), cli("inspect", folder, "--json").json()
    jsonschema.validate(told, json.loads((DOCS / "schemas" / "inspect.schema.json").read_text()))
    assert (told.pop("place"), told.pop("revision")) == (PLACE, COMMIT)
    assert here.pop("revision") is None and here.pop("place") == str(folder)
    assert told == here
    found = checks(cli, selftest)
    assert found["checkpoint.complete"]["verdict"] == "pass"
    assert found["checkpoint.identity"]["observed"] == told["digest"]
    page = cli("inspect", f"{PLACE}@main", env=hub.environment).out
    assert f"\nrevision          {COMMIT}\n" in page


def test_a_file_that_is_not_given_damages_and_leaves_the_gate_unproven(
    cli: Any, selftest: str, hub: FakeHub
) -> None:
    hub.always(B, Reply(403), "store")
    done = cli("inspect", PLACE, "--run", selftest, env=hub.environment)
    assert done.code == 1 and done.err == ""
    told = " ".join(done.out.split())
    assert f"{B}: it cannot be read: the Hub's store does not give it: status 403" in told
    assert "nothing of it is kept" in told
    assert checks(cli, selftest)["checkpoint.complete"]["verdict"] == "unproven"


@pytest.mark.parametrize(
    ("place", "environment", "words"),
    [
        (PLACE, {"HF_TOKEN": TOKEN}, "gives no access to it: check the name and HF_TOKEN"),
        (PLACE, {"HF_ENDPOINT": f"https://me:{TOKEN}@127.0.0.1"}, "HF_ENDPOINT is no address"),
        (f"{PLACE}/../x", {}, "no address of a repository"),
    ],
)
def test_what_cannot_be_had_is_refused_in_a_line_without_the_token(
    cli: Any, folder: Path, place: str, environment: dict[str, str], words: str
) -> None:
    with serving(repositories={"maker/model": folder}, token="hf_right") as hub:
        done = cli("inspect", place, "--no-store", env={**hub.environment, **environment})
    assert words in done.complaint()
    assert "secret" not in done.err


def test_a_hub_that_is_not_there_is_told_at_once(cli: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    done = cli("inspect", PLACE, env={"HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1"})
    assert f"no answer from {endpoint} (" in done.complaint() and "check the network" in done.complaint()


# --- checksums ---


def test_files_are_held_against_the_digests_that_the_hub_lists(
    cli: Any, selftest: str, hub: FakeHub, folder: Path
) -> None:
    line = ("inspect", folder, "--checksums", "--manifest", f"{PLACE}@main")
    done = cli(*line, "--run", selftest, "--json", env=hub.environment)
    told = done.json()["checksums"]
    assert (done.code, told["verdict"], told["same"]) == (0, "pass", [A, B])
    assert told["source"] == f"{PLACE}@main at {COMMIT}"
    assert checks(cli, selftest)["checkpoint.checksums"]["verdict"] == "pass"
    assert not hub.asked("store")
    hub.listing = [
        {"type": "file", "size": 1, "path": A, "lfs": {"oid": told["files"][A].removeprefix("sha256:")}},
        {"type": "file", "size": 1, "path": B, "lfs": {"oid": "0" * 64}},
    ]
    done = cli(*line, env=hub.environment)
    assert done.code == 1 and f"1 file not as in {PLACE}@main at {COMMIT}: {B}" in done.out
    del hub.listing[1]["lfs"]
    done = cli(*line, env=hub.environment)
    assert done.code == 3 and "1 that it does not name" in done.out
    hub.listing = hub.listing[1:]
    assert "lists no SHA-256 of any of the 2 files" in cli(*line, env=hub.environment).complaint()


def test_one_file_is_held_against_the_file_of_an_address(cli: Any, hub: FakeHub, folder: Path) -> None:
    (folder / "q").mkdir()
    (folder / "q" / "x.safetensors").write_bytes(safetensors_bytes({"a": ("U8", (5,))}))
    for address in (f"{PLACE}/q", f"{PLACE}/q/x.safetensors"):
        line = ("inspect", folder / "q", "--checksums", "--no-store", "--manifest", address)
        assert cli(*line, env=hub.environment).code == 0
    refused = cli("inspect", folder, "--checksums", "--manifest", f"{PLACE}/z", env=hub.environment)
    assert "no folder and no file 'z'" in refused.complaint()


def test_there_is_nothing_to_hash_on_the_hub(cli: Any, hub: FakeHub) -> None:
    done = cli("inspect", PLACE, "--checksums", env=hub.environment)
    assert "nothing here to hash" in done.complaint() and f"--manifest {PLACE}" in done.complaint()
    assert hub.requests == []
