"""`k3gate plan` and `k3gate backtest` as a user calls them: codes, documents, files, one line where it goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k3gate import cli
from k3gate.analysis.published import SHIPPED

SYSTEMS = Path(__file__).resolve().parents[2] / "examples" / "systems"
SP3 = str(SYSTEMS / "sp3-24x64.toml")


def call(*arguments: str) -> int:
    return cli.invoke(list(arguments))


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert call(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_plan_of_a_config_and_of_the_built_in_facts_agree(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.model.checkpoint import kimi_k3

    inspected = tmp_path / "k3.json"
    groups = {
        "routed_experts_codes": {"bytes": 1_361_370_415_104, "parameters": 2_722_740_830_208},
        "routed_experts_scales": {"bytes": 85_085_650_944, "parameters": 0},
    }
    from k3gate.model import k3

    for name, size in k3.BYTES_BY_GROUP.items():
        if not name.startswith("routed"):
            groups[name] = {"bytes": size, "parameters": k3.PARAMETERS_BY_GROUP[name]}
    told = {
        "architecture": "kimi-k3",
        "digest": "sha256:00",
        "shards": {},
        "groups": groups,
        "layers": {"total": 93, "with_experts": 92},
        "experts": {"per_layer": 896, "per_token": 16},
        "kv_bytes_per_token": 27_648,
        "state_bytes_per_sequence": 464_633_856,
        "context": kimi_k3.config()["text_config"]["max_position_embeddings"],
    }
    inspected.write_text(json.dumps(told))
    built, ours = document(capsys, "plan", SP3), document(capsys, "plan", SP3, "--model", str(inspected))
    for key in ("residency", "decode", "prefill", "limiting_tier", "placements", "changes"):
        assert built[key] == ours[key], key


def test_another_models_config_plans_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.model.test_sizes import DEEPSEEK_V3

    config = tmp_path / "config.json"
    config.write_text(json.dumps(DEEPSEEK_V3))
    made = document(capsys, "plan", SP3, "--model", str(config), "--target", "residency-lab")
    routed = 58 * 8 * 3 * 2048 * 7168 * (1 + 4 / 128**2)
    assert made["decode"]["bytes_per_token"]["dram"] == pytest.approx(routed)
    assert made["residency"]["fits"] is True
    assert any("not from tensors" in note for note in made["notes"])


def test_enforce_says_no_and_not_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("plan", str(SYSTEMS / "xeon8368-two-servers.toml")) == 0
    assert call("plan", str(SYSTEMS / "xeon8368-two-servers.toml"), "--enforce") == 1
    assert call("plan", SP3, "--enforce") == 3, "5 tokens/s lie between what is expected and the ceiling"
    assert call("plan", str(SYSTEMS / "residency-lab.toml"), "--enforce") == 0
    hybrid = (SYSTEMS / "hybrid-8x96.toml").read_text()
    asked = tmp_path / "asked.toml"
    asked.write_text(hybrid)
    assert call("plan", str(asked), "--enforce") == 3, "ceilings promise neither prefill nor loading"
    lacking = [line for line in hybrid.splitlines() if not line.startswith(("ghz", "tflops", "gb_per_s = 7"))]
    asked.write_text("\n".join(lacking) + "\n")
    capsys.readouterr()
    assert call("plan", str(asked), "--enforce") == 3
    told = capsys.readouterr().out
    assert "[undecided] the prefill ceiling is not known" in told
    assert "[undecided] how long loading takes is not known" in told
    lazy = tmp_path / "unknown.toml"
    lazy.write_text('name = "x"\n[memory]\nmodules = 24\nmodule_gib = 128\n')
    assert call("plan", str(lazy), "--enforce", "--target", "hybrid") == 3


def test_a_page_is_written_and_replaced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    for _ in range(2):
        assert call("plan", SP3, "-o", str(page)) == 0
    assert "page: " in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "nowhere.toml"], "cannot read the system file nowhere.toml"),
        (["plan", SP3, "--target", "hybird"], "did you mean 'hybrid'?"),
        (["plan", SP3, "--model", "nowhere"], "nowhere: it is not there"),
        (["plan", SP3, "--run", "latest", "--store", "nowhere.sqlite"], "nowhere.sqlite"),
        (["backtest", "nowhere.csv"], "cannot read nowhere.csv"),
    ],
)
def test_what_goes_wrong_is_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and told in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "raw", [b"{", b"[]", b"{}", b'{"hidden_size": 3}', b"\xff\xfe", b'{"groups": 1, "shards": 2}']
)
def test_a_model_that_is_none_is_one_line(
    raw: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tmp_path / "config.json"
    model.write_bytes(raw)
    assert call("plan", SP3, "--model", str(model)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_backtest_enforces_what_it_promises(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("backtest", "--enforce") == 0
    assert "inside: 19 of 23" in capsys.readouterr().out
    lines = SHIPPED.read_text().splitlines()
    (tmp_path / "none.csv").write_text(lines[0] + "\n")
    assert call("backtest", str(tmp_path / "none.csv"), "--enforce") == 3
    bad = [lines[0], *(line for line in lines if "P-8136" in line)]
    (tmp_path / "bad.csv").write_text("\n".join(bad) + "\n")
    assert call("backtest", str(tmp_path / "bad.csv"), "--enforce") == 1
    assert call("backtest", str(tmp_path / "bad.csv")) == 0


def test_a_system_may_name_its_model_beside_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.model.test_sizes import MIXTRAL

    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    box = tmp_path / "box.toml"
    box.write_text('name = "x"\n[memory]\nmodules = 8\nmodule_gib = 32\n[model]\npath = "config.json"\n')
    made = document(capsys, "plan", str(box))
    assert made["model"]["name"] == "mixtral"
    assert made["model"]["parameters"]["total"] == pytest.approx(46.7e9, rel=1e-3)


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from k3gate import cli; "
        f"sys.stdout = open('/dev/null', 'w'); cli.invoke(['plan', {SP3!r}]); "
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "scipy", "sqlalchemy", "alembic", "jinja2", "cattrs"} & set(done.stderr.split())


def test_a_checkpoint_whose_attention_is_not_known_has_an_unknown_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.model.checkpoint.conftest import safetensors_bytes

    (tmp_path / "model.safetensors").write_bytes(
        safetensors_bytes({"model.layers.0.mlp.up_proj.weight": ("BF16", (64, 64))})
    )
    made = document(capsys, "plan", SP3, "--model", str(tmp_path), "--target", "residency-lab")
    assert made["model"]["kv_bytes_per_token"] is None
    assert made["residency"]["fits"] is None
    assert made["decode"]["ceiling_tokens_per_s"] is None


def test_a_checkpoint_without_any_shard_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.model.test_sizes import MIXTRAL

    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}})
    )
    assert call("plan", SP3, "--model", str(tmp_path)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "hold no weights at all" in captured.err


def test_a_targets_trunk_holds_unless_the_file_states_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from k3gate.gate import targets

    shipped = (targets.FOLDER / "residency-lab.toml").read_text()
    target, box = tmp_path / "small.toml", tmp_path / "box.toml"
    target.write_text(
        shipped.replace('trunk = "bf16"', 'trunk = "q8_0"') + "\n[prices]\nmachine_usd = 9000\n"
    )
    box.write_text('name = "x"\n[memory]\nmodules = 24\nmodule_gib = 128\n')
    made = document(capsys, "plan", str(box), "--target", str(target))
    routed, state, cache = 92 * 16 * 17_547_264, 2 * 434_110_464, 27_648 * 8192
    assert made["decode"]["bytes_per_token"]["dram"] == routed + 59_042_320_560 + state + cache
    assert made["cost"]["usd_per_year"] == 3000
    box.write_text(box.read_text() + '[precision]\ntrunk = "native"\n')
    made = document(capsys, "plan", str(box), "--target", str(target))
    assert made["decode"]["bytes_per_token"]["dram"] == routed + 111_160_730_624 + state + cache


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "pipe"], "it is no regular file; give a TOML file"),
        (["backtest", "pipe"], "it is no regular file; name a CSV file"),
        (["backtest", "/dev/zero"], "it is no regular file; name a CSV file"),
        (["bom", "verify", "pipe", "latest", "--store", "runs.sqlite"], "it is no regular file; name a lock"),
    ],
)
def test_a_pipe_that_nobody_writes_holds_nothing_up(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    import os

    from k3gate.store import open_store

    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with open_store("runs.sqlite"):
        pass
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.err.count("\n") == 1
