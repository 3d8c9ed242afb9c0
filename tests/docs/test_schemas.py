"""The documents of `--json` have the shape that docs/schemas promises, and others are refused."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from k3gate import host
from k3gate.documents import pretty
from k3gate.harness import ordering
from k3gate.store import open_store
from tests.gate.test_bom import ORDER, machine
from tests.harness.test_ordering import keep, waive_all

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
SYSTEMS = SCHEMAS.parents[1] / "examples" / "systems"
SERVER = SCHEMAS.parents[1] / "tests" / "serving" / "misbehaving_program.py"
ROUTING = SCHEMAS.parents[1] / "examples" / "routing"
NAMES = sorted(path.name.removesuffix(".schema.json") for path in SCHEMAS.iterdir())
Ask = Callable[..., Any]
Key = str | int

PROMISED = {
    "host": {
        "": "machine cpu numa memory pci gpus storage sensors kernel limits findings",
        "machine": "id fingerprint name board firmware hypervisor",
        "cpu": "model sockets cores threads isa amx",
        "cpu.amx": "tile int8 bf16 granted",
        "numa": "nodes",
        "numa.nodes.0": "id cpus memory_bytes kind distances",
        "memory": "slots populated channels configured_mts rated_mts theoretical_bytes_per_s dimms",
    },
    "inspect": {
        "": "architecture digest shards tensors bytes parameters bytes_per_token kv_bytes_per_token "
        "state_bytes_per_sequence findings",
        "shards": "expected found truncated missing",
        "bytes": "tensors files groups",
        "parameters": "total active",
        "bytes_per_token": "native trunk_q8_0 routed",
    },
    "quant": {
        "": "verdict lossless mistakes groups",
        "groups.lm_head": "nmse max_error cosine",
    },
    "run": {
        "": "run inventory outcomes gate",
        "run": "id machine profile version started ended",
        "outcomes.0": "probe case state reason seconds metrics",
        "outcomes.0.metrics.0": "name unit better labels samples median interval state reason proofs",
        "outcomes.0.metrics.0.samples.0": "value round process start_s",
    },
    "gate": {
        "": "run target criteria verdict waivers steps",
        "steps.0": "step name verdict checks",
        "steps.5.checks.1": "id claim verdict observed interval bound unit reason source remedy waiver evidence",
        "steps.5.checks.1.bound": "min max",
    },
    "diff": {
        "": "comparable reasons machines metrics verdict",
        "metrics.0": "name labels ratio interval verdict",
    },
    "plan": {
        "": "residency decode limiting_tier claims cost",
        "residency": "fits tiers",
        "residency.tiers.dram": "capacity_bytes need_bytes left_bytes items",
        "decode": "bytes_per_token ceiling_tokens_per_s expected_tokens_per_s",
        "claims.0": "claim verdict reasons",
        "changes.0": "title fits ceiling_tokens_per_s expected_tokens_per_s",
    },
    "bom": {
        "": "bom run verdict lines",
        "lines.0": "key title ordered found verdict reason",
    },
    "bom-freeze": {
        "": "lock verdict refusals",
        "lock": "k3gate_lock digest bom criteria target run verdicts lines parts",
        "lock.bom": "name digest text",
        "lock.run": "id digest machine fingerprint",
        "lock.verdicts": "gate digest checks waivers",
        "lock.verdicts.waivers.0": "check who when why",
        "lock.lines.0": "key title ordered found verdict reason",
        "lock.parts.dimms.:P0-DIMMA1": "place bytes type rank width part manufacturer rated_mts configured_mts",
    },
    "backtest": {
        "": "rows testable inside hit_rate median_width",
        "rows.0": "testable reason predicted published inside",
    },
    "routing": {
        "": "source tokens sequences layers experts experts_stated used uses slots reuse skew entropy imbalance "
        "coverage hot_set hot_slots by_layer",
        "skew": "mean_of_layers of_slots",
        "entropy": "bits uniform_bits",
        "imbalance": "nodes batch distinct_experts mean largest quantiles",
        "coverage.0": "share slots fraction",
        "hot_set.0": "experts caught caught_held_out",
        "by_layer.0": "reuse skew busiest_share entropy_bits experts_used imbalance",
        "fit": "kept reason unchanged layers of",
    },
    "runtimes": {
        "": "checkpoint places runtimes",
        "runtimes.0": "id name version build path architecture reason evidence gaps conflicts plugins confirmed",
        "runtimes.0.evidence.0": "name file line offset",
        "runtimes.0.gaps.0": "text source date versions",
    },
    "prototype": {
        "": "command endpoint model way runtime build checkpoint interrupted lost served_identity note load_seconds "
        "page_cache_share_before page_cache_share peak_memory_bytes memory_by_node readings",
        "readings.0": "name prompt_tokens_asked streams answers failures partial retries decode_tokens_per_s "
        "decode_chunks_per_s first_token_s prefill_tokens_per_s together_tokens_per_s notes",
        "readings.0.answers.0": "begun_s first_token_s first_visible_s last_token_s chunks prompt_tokens cached_tokens "
        "completion_tokens counted_tokens finish",
    },
    "plan-dry-run": {
        "": "profile seconds bytes cases left_out refused",
        "cases.0": "probe case title group rounds seconds bytes",
    },
    "probes": {
        "": "probes notices",
        "probes.0": "name title state reason metrics",
        "probes.0.metrics.0": "name unit better title divides",
    },
    "runs": {
        "": "runs",
        "runs.0": "id machine machine_name fingerprint profile status started seconds verdict target",
    },
}
"""By the path to an object in a real document: the keys that may not be missing."""


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return loaded


def validator(name: str) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema(name))
    return jsonschema.Draft202012Validator(schema(name))


def at(document: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        document = document[int(key) if key.isdigit() else key]
    return document


@pytest.fixture(scope="module")
def ask(shell: Callable[..., Any], stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """`ask("gate", 1, 3)`: the one document that a command prints, and the exit codes it may have."""
    folder = tmp_path_factory.mktemp("schemas")
    shutil.copy(stored, folder / "runs.sqlite")
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    models = folder / "site" / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "kimi_k3.py").write_text("EntryClass = KimiK3ForConditionalGeneration")
    info = folder / "site" / "sglang-0.5.23.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: sglang\nVersion: 0.5.23\n")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))

    def call(line: str, *codes: int, **environment: str) -> Any:
        environment = {"K3GATE_STORE": str(folder / "runs.sqlite"), **environment}
        done = shell(f"k3gate {line} --json", folder, errors=subprocess.PIPE, **environment)
        assert done.returncode in (codes or (0,)), done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture(scope="module")
def frozen(make_inventory: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What freezing a sound machine's order says; no run on a machine at hand could be frozen over."""
    folder = tmp_path_factory.mktemp("freeze")
    (folder / "order.toml").write_text(ORDER)
    inventory = make_inventory("bare_metal", memory={"total_bytes": 2**41, "available_bytes": 2**41 - 2**35})
    with open_store(str(folder / "runs.sqlite")) as store:
        run = keep(store, "aaaaaaa1", machine(inventory))
        waive_all(store, run)
        return ordering.freeze(store, str(folder / "order.toml"), run)


@pytest.fixture(scope="module")
def documents(ask: Ask, frozen: Any) -> dict[str, Any]:
    """A real document of each schema; the store holds two runs from here on."""
    return {
        "run": ask("run --probe selftest --only selftest/hash.64k --machine box-b --quiet"),
        "host": ask("host"),
        "inspect": ask("inspect model.safetensors"),
        "quant": ask("quant model.safetensors model.safetensors", 0, 3),
        "gate": ask("gate", 1, 3),
        "diff": ask("diff latest@box-a latest@box-b"),
        "plan-dry-run": ask("run --dry-run"),
        "plan": ask(f"plan {SYSTEMS / 'sp3-24x64.toml'}"),
        "backtest": ask("backtest"),
        "routing": ask(f"routing {ROUTING / 'drawn-128-tokens.jsonl'} --shape 2x96x6"),
        "bom": ask(f"bom check {SYSTEMS / 'xeon6-24x128.toml'}", 1, 3),
        "bom-freeze": json.loads(pretty(frozen.document())),
        "runtimes": ask("runtimes site"),
        "prototype": ask(
            f"prototype --command '{sys.executable} {SERVER} --open model.safetensors' --checkpoint model.safetensors "
            "--prompts 64 --tokens 4"
        ),
        "probes": ask("probes"),
        "runs": ask("runs"),
    }


def test_each_schema_is_tested_and_named_on_the_page() -> None:
    assert set(NAMES) == set(PROMISED)
    page = (SCHEMAS.parent / "json.md").read_text()
    assert all(f"(schemas/{name}.schema.json)" in page for name in NAMES)


# The documents are made once, by one process.
@pytest.mark.xdist_group("schemas")
@pytest.mark.parametrize("name", NAMES)
def test_a_real_document_fits_its_schema(name: str, documents: dict[str, Any]) -> None:
    validator(name).validate(documents[name])


@pytest.mark.xdist_group("schemas")
@pytest.mark.parametrize("name", NAMES)
def test_a_document_without_a_promised_key_is_refused(name: str, documents: dict[str, Any]) -> None:
    check = validator(name)
    for path, keys in PROMISED[name].items():
        for key in keys.split():
            broken = copy.deepcopy(documents[name])
            del at(broken, path)[key]
            assert not check.is_valid(broken), (path, key)


@pytest.mark.xdist_group("schemas")
@pytest.mark.parametrize("name", NAMES)
def test_a_promised_key_of_another_type_is_refused(name: str, documents: dict[str, Any]) -> None:
    check = validator(name)
    for path, keys in PROMISED[name].items():
        for key in keys.split():
            broken = copy.deepcopy(documents[name])
            place = at(broken, path)
            # An object where text, number or list belongs, a text where an object does.
            place[key] = "text" if isinstance(place[key], dict) else {"no": "such thing"}
            assert not check.is_valid(broken), (path, key)


@pytest.mark.xdist_group("schemas")
@pytest.mark.parametrize(
    ("name", "path", "key", "value"),
    [
        ("run", "run", "id", "../../etc"),
        ("run", "run", "started", "yesterday"),
        ("run", "outcomes.0", "state", "fine"),
        ("run", "outcomes.0.metrics.0", "median", "1 GB/s"),
        ("run", "outcomes.0.metrics.0", "interval", [1.0]),
        ("run", "outcomes.0.metrics.0.samples.0", "value", None),
        ("run", "gate.steps.0.checks.0", "verdict", "maybe"),
        ("host", "numa.nodes.0", "id", "0"),
        ("host", "numa.nodes.0", "memory_bytes", -1),
        ("host", "cpu", "cores", "64"),
        ("gate", "", "verdict", "ok"),
        ("gate", "", "steps", []),
        ("gate", "steps.0", "name", "bom"),
        ("gate", "steps.5.checks.1.bound", "max", "5 %"),
        ("diff", "metrics.0", "verdict", "faster"),
        ("diff", "metrics.0", "ratio", "0.9"),
        ("diff", "", "machines", []),
        ("plan", "decode", "expected_tokens_per_s", 3.1),
        ("plan", "decode", "ceiling_tokens_per_s", "at most 7"),
        ("plan", "residency", "fits", "yes"),
        ("plan", "claims.0", "verdict", "true"),
        ("plan", "claims.0", "reasons", []),
        ("backtest", "rows.0", "predicted", [1.0]),
        ("backtest", "", "hit_rate", 83),
        ("runtimes", "runtimes.0", "architecture", "yes"),
        ("runtimes", "runtimes.0", "build", "0.33.0"),
        ("prototype", "", "served_identity", "perhaps"),
        ("prototype", "", "page_cache_share", 1.5),
        ("prototype", "readings.0", "streams", 0),
        ("routing", "", "reuse", 29.5),
        ("routing", "coverage.0", "slots", 0),
        ("routing", "by_layer.0", "skew", 0.5),
        ("routing", "hot_set.0", "caught", 1.5),
        ("bom", "lines.0", "verdict", "unknown"),
        ("bom", "", "verdict", "maybe"),
        ("bom-freeze", "", "verdict", "frozen"),
        ("bom-freeze", "lock", "k3gate_lock", 1),
        ("bom-freeze", "lock.run", "digest", "abc"),
        ("backtest", "", "free_numbers", [1, 2, 3, 4, 5, 6, 7]),
        ("plan-dry-run", "cases.0", "seconds", "about 2 s"),
        ("plan-dry-run", "cases.0", "rounds", 0),
        ("probes", "probes.0.metrics.0", "better", "more"),
        ("runs", "runs.0", "status", "done"),
        ("runs", "runs.0", "seconds", "1.8 s"),
    ],
)
def test_a_broken_document_is_refused(
    name: str, path: str, key: str, value: object, documents: dict[str, Any]
) -> None:
    broken = copy.deepcopy(documents[name])
    at(broken, path)[key] = value
    assert not validator(name).is_valid(broken)


@pytest.mark.xdist_group("schemas")
@pytest.mark.parametrize("name", NAMES)
def test_keys_may_be_added_anywhere(name: str, documents: dict[str, Any]) -> None:
    extended = copy.deepcopy(documents[name])
    for path in PROMISED[name]:
        at(extended, path)["a_later_key"] = {"of": ["any", None, 1.5]}
    validator(name).validate(extended)


def test_what_refused_a_lock_fits_too(ask: Ask) -> None:
    refused = ask(f"bom freeze {SYSTEMS / 'xeon6-24x128.toml'}", 1, 3)
    validator("bom-freeze").validate(refused)
    assert refused["lock"] is None and refused["refusals"]


def test_the_model_of_routing_fits_too_and_what_one_token_leaves_unknown(ask: Ask) -> None:
    drawn = ask("routing --shape 2x32x4 --tokens 1")
    validator("routing").validate(drawn)
    assert drawn["reuse"] is None and drawn["fit"] is None and drawn["model"]["reuse_asked"] == 0.295
    assert drawn["hot_set"][0]["caught_held_out"] is None


def test_a_run_holds_a_host_and_a_gate() -> None:
    parts = {}
    for name in ("host", "gate"):
        parts[name] = schema(name)
        for key in ("$schema", "title", "description"):
            del parts[name][key]
    whole = schema("run")["properties"]
    assert whole["inventory"] == parts["host"]
    assert whole["gate"]["anyOf"] == [parts["gate"], {"type": "null"}]


def test_a_case_that_failed_a_run_that_was_not_judged_and_a_waiver_fit(ask: Ask) -> None:
    crash = "run --probe selftest --only selftest/hash.64k --quiet"
    failed = ask(crash, 4, K3GATE_SELFTEST_FAULT="hash.64k:0:crash")
    validator("run").validate(failed)
    outcome = failed["outcomes"][0]
    assert outcome["state"] == "failed" and "SIGSEGV" in outcome["reason"]
    validator("run").validate({**failed, "gate": None})
    waived = ask("waive latest roofline.power --who Buyer --why 'no meter at hand'")
    validator("gate").validate(waived)
    assert waived["waivers"] == 1
    assert [c["waiver"]["who"] for s in waived["steps"] for c in s["checks"] if c["waiver"]] == ["Buyer"]


@pytest.mark.parametrize("kind", ["vm", "bare_metal"])
def test_other_machines_fit_the_host_schema(kind: str, make_inventory: Callable[..., Any]) -> None:
    validator("host").validate(json.loads(json.dumps(host.document(make_inventory(kind)))))
    unknown = make_inventory(kind, cpu={"cores": None, "online": None}, memory={"total_bytes": None})
    validator("host").validate(json.loads(json.dumps(host.document(unknown))))
