"""Checkpoints as a whole: counted to the byte, told from their relatives, and damage named as what it is."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from k3gate.errors import UsageError
from k3gate.model import k3, traffic
from k3gate.model.checkpoint import files
from k3gate.model.checkpoint.costs import step_bytes
from k3gate.model.checkpoint.documents import document
from k3gate.model.checkpoint.inspection import Inspection, inspect
from k3gate.records import Severity
from tests.model.checkpoint import kimi_k3
from tests.model.checkpoint.conftest import Shapes, safetensors_bytes
from tests.model.checkpoint.test_gguf import file as gguf_file
from tests.model.checkpoint.test_gguf import pair, tensor, text

SHARED = Path(__file__).resolve().parents[4] / "shared"
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TWO: dict[str, Shapes] = {
    A: {"model.embed_tokens.weight": ("BF16", (8, 4))},
    B: {"lm_head.weight": ("BF16", (8, 4))},
}


def codes(found: Inspection) -> set[str]:
    return {finding.code for finding in found.findings}


def finding(found: Inspection, code: str) -> Any:
    return next(one for one in found.findings if one.code == code)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of shards with an index (unless `index` is False) and a config."""

    def write(
        shards: Mapping[str, Shapes] = TWO,
        config: Mapping[str, Any] | None = None,
        *,
        index: bool = True,
        **metadata: object,
    ) -> Path:
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        for name, shapes in shards.items():
            (folder / name).write_bytes(safetensors_bytes(shapes))
        total = sum(len(safetensors_bytes(one)) for one in shards.values())
        headers = sum(8 + int.from_bytes(safetensors_bytes(one)[:8], "little") for one in shards.values())
        if index:
            weight_map = {tensor: name for name, shapes in shards.items() for tensor in shapes}
            told = {"total_size": total - headers, **metadata}
            (folder / files.INDEX).write_text(json.dumps({"metadata": told, "weight_map": weight_map}))
        if config is not None:
            (folder / files.CONFIG).write_text(json.dumps(config))
        return folder

    return write


# --- Kimi K3 ---


@pytest.mark.xdist_group("kimi-k3")
@pytest.mark.case("CKP-27")
def test_kimi_k3_is_counted_to_the_byte(whole: Path, inspected: Any) -> None:
    """CKP-27: the language part stands in text_config, and vision is counted apart."""
    found = inspect(files.find(whole))
    assert found.findings == ()
    told = document(found)
    assert document(inspected) == told
    for batch in (1, 4):
        assert step_bytes(found, 8192, batch) == traffic.bytes_per_token("bf16", 8192, batch)
    assert told["architecture"] == "kimi-k3"
    assert (told["tensors"], told["bytes"]["tensors"]) == (497_220, 1_560_860_324_864)
    assert told["parameters"] == {"total": 2_779_931_837_184, "active": 104_189_614_848}
    assert told["bytes_per_token"] == {
        "native": 136_990_303_232,
        "trunk_q8_0": k3.TRUNK_Q8_0_READ_BYTES + 25_829_572_608,
        "routed": 25_829_572_608,
    }
    assert (told["kv_bytes_per_token"], told["state_bytes_per_sequence"]) == (27_648, 464_633_856)
    assert told["bytes"]["groups"] == dict(k3.BYTES_BY_GROUP)
    assert told["layers"] == {"total": 93, "attention": {"kda": 69, "mla": 24}, "with_experts": 92}
    assert told["experts"] == {
        "per_layer": 896,
        "per_token": 16,
        "parameters": 33_030_144,
        "bytes": 17_547_264,
        "layout": "single",
    }
    assert told["shards"]["expected"] == told["shards"]["found"] == 96
    assert told["bytes"]["files"] > told["bytes"]["tensors"]
    assert told["context"] == 1_048_576


def test_the_names_are_those_of_the_released_index() -> None:
    path = SHARED / "k3" / "model.safetensors.index.json.gz"
    if not path.exists():
        pytest.skip("the released index is not at hand")
    released = json.loads(gzip.decompress(path.read_bytes()))["weight_map"]
    ours = {
        name: f"model-{number:05d}-of-000096.safetensors"
        for number in range(1, 97)
        for name, _, _ in kimi_k3.shard(number)
    }
    assert ours == released


@pytest.mark.long
@pytest.mark.xdist_group("kimi-k3")
def test_a_relative_with_the_same_experts_does_not_pass_for_kimi_k3(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "relative"
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).symlink_to(path)
    config = kimi_k3.config()
    config["text_config"]["index_topk"] = 2048
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    found = inspect(files.find(folder))
    assert found.architecture.name == "kimi-k3.1-pro"
    assert "lightning indexer" in found.architecture.because
    (folder / "config.json").write_text(json.dumps({**kimi_k3.config(), "model_type": "kimi_k4"}))
    assert inspect(files.find(folder)).architecture.name == "not identified"


@pytest.mark.xdist_group("kimi-k3")
@pytest.mark.case("CKP-28")
def test_ckp_28_the_width_of_experts_comes_from_their_tensors(whole: Path, tmp_path: Path) -> None:
    """CKP-28: with the hidden size in place of the latent width an expert would have 66 million parameters."""
    folder = tmp_path / "narrow"
    folder.mkdir()
    for number in (2, 4):
        name = f"model-{number:05d}-of-000096.safetensors"
        (folder / name.replace("-of-000096", "-of-000002").replace("00004", "00001")).symlink_to(whole / name)
    config = kimi_k3.config()
    text_config = config["text_config"]
    for known in (True, False):
        if not known:
            del text_config["routed_expert_hidden_size"]
        (folder / "config.json").write_text(json.dumps(config))
        found = inspect(files.find(folder))
        assert found.content.expert_parameters == 33_030_144
        contradicted = finding(found, "config_contradicted").observed
        assert ("parameters in an expert" in contradicted) is not known


# --- files ---


@pytest.mark.case("CKP-09")
def test_ckp_09_a_shard_that_is_not_there(checkpoint: Any) -> None:
    folder = checkpoint()
    (folder / B).unlink()
    found = inspect(files.find(folder))
    missing = finding(found, "shard_missing")
    assert missing.severity is Severity.HIGH and found.damaged
    assert "1 of 2 files" in missing.title and "1 tensor" in missing.title and "64 bytes" in missing.title
    assert B in missing.observed and "not there" in missing.observed
    assert "not the whole again" in missing.remedy
    assert found.shards.missing == (B,)


@pytest.mark.case("CKP-10")
def test_ckp_10_index_and_headers_that_disagree(checkpoint: Any) -> None:
    folder = checkpoint()
    document = json.loads((folder / files.INDEX).read_text())
    document["weight_map"]["mtp.fc.weight"] = B
    del document["weight_map"]["model.embed_tokens.weight"]
    document["weight_map"]["other"] = A
    (folder / files.INDEX).write_text(json.dumps(document))
    found = inspect(files.find(folder))
    lost, unlisted = finding(found, "index_tensor_missing"), finding(found, "index_tensor_unlisted")
    assert (lost.severity, unlisted.severity) == (Severity.HIGH, Severity.MEDIUM)
    assert "2 tensors" in lost.title
    assert "model.embed_tokens.weight" in unlisted.observed


@pytest.mark.case("CKP-12")
def test_ckp_12_weight_files_beside_the_indexed_ones_are_not_counted(checkpoint: Any) -> None:
    folder = checkpoint()
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"x": ("F32", (1000,))}))
    found = inspect(files.find(folder))
    beside = finding(found, "files_beside")
    assert "model.safetensors" in beside.observed and not found.damaged
    assert found.content.bytes == 128


@pytest.mark.case("CKP-13")
@pytest.mark.parametrize("total", [96, 96.0, None, "96", [1]])
def test_ckp_13_a_wrong_total_is_told_and_the_sum_used(checkpoint: Any, total: object) -> None:
    found = inspect(files.find(checkpoint(total_size=total)))
    assert found.content.bytes == 128
    assert finding(found, "total_size").severity is Severity.LOW
    assert not found.damaged


@pytest.mark.case("CKP-04")
def test_ckp_04_one_name_in_two_shards_is_reported_with_both(checkpoint: Any) -> None:
    shapes = {"model.embed_tokens.weight": ("BF16", (8, 4))}
    found = inspect(files.find(checkpoint({A: shapes, B: shapes}, index=False)))
    duplicate = finding(found, "duplicate")
    assert A in duplicate.observed and B in duplicate.observed
    assert found.content.bytes == 64


@pytest.mark.case("CKP-04")
@pytest.mark.parametrize("processes", [1, 2])
def test_ckp_04_a_tensor_that_the_index_finds_elsewhere_is_counted_once(
    checkpoint: Any, processes: int
) -> None:
    shards: dict[str, Any] = {
        f"model-{n:05d}-of-00009.safetensors": {f"t{n}": ("U8", (4,))} for n in range(1, 10)
    }
    folder = checkpoint(shards)
    more = {"t9": ("U8", (4,)), "t1": ("U8", (4,))}
    (folder / "model-00009-of-00009.safetensors").write_bytes(safetensors_bytes(more))
    found = inspect(files.find(folder), processes)
    assert found.content.bytes == 36
    assert "'t1' is in model-00001-of-00009.safetensors as well" in finding(found, "duplicate").observed


@pytest.mark.case("CKP-23")
def test_ckp_23_links_of_the_hub_cache(checkpoint: Any, tmp_path: Path) -> None:
    plain = checkpoint()
    cache = tmp_path / "models--moonshotai--Kimi-K3"
    snapshot = cache / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for name in (A, files.INDEX):
        shutil.copy(plain / name, cache / "blobs" / f"hash-{name}")
        (snapshot / name).symlink_to(f"../../blobs/hash-{name}")
    (snapshot / B).symlink_to("../../blobs/gone")
    (cache / "blobs" / "gone.incomplete").write_bytes(b"half")
    found = inspect(files.find(cache))
    assert found.shards.missing == (B,)
    assert "../../blobs/gone, which is not there" in finding(found, "shard_missing").observed
    assert any("0123abcd" in note for note in found.notes)
    assert any("1 unfinished" in note and "gone.incomplete" in note for note in found.notes)
    (snapshot / B).unlink()
    (snapshot / B).symlink_to(B)
    assert "go in a circle" in finding(inspect(files.find(snapshot)), "shard_missing").observed


def test_a_name_in_the_index_does_not_lead_out_of_the_folder(checkpoint: Any) -> None:
    folder = checkpoint()
    for name in ("../secret", "/etc/passwd", "a/../../b", ""):
        (folder / files.INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
        assert finding(inspect(files.find(folder)), "index").severity is Severity.HIGH


@pytest.mark.parametrize("content", ["", "[]", "{", '{"weight_map": 3}', "[" * 100_000])
def test_an_index_that_is_none_is_a_finding(checkpoint: Any, content: str) -> None:
    folder = checkpoint()
    (folder / files.INDEX).write_text(content)
    assert codes(inspect(files.find(folder))) & {"json", "index"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "not a checkpoint"),
        (lambda path: path.write_text("x"), "not a checkpoint"),
        (os.mkfifo, "neither a folder nor a file"),
        (lambda path: path.symlink_to("nowhere"), "which is not there"),
        (lambda path: (path.mkdir(), (path / "a.bin").touch()), "'a.bin' is of a format that is not read"),
        (
            lambda path: (path.mkdir(), (path / "a.gguf").touch(), (path / "b.gguf").touch()),
            "several models (a.gguf, b.gguf)",
        ),
    ],
)
def test_a_place_without_a_checkpoint_is_refused_in_a_line(tmp_path: Path, make: Any, words: str) -> None:
    path = tmp_path / "place"
    make(path)
    with pytest.raises(UsageError) as refused:
        files.find(path)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_shards_without_an_index_are_told_by_their_names(checkpoint: Any) -> None:
    folder = checkpoint(index=False)
    assert codes(inspect(files.find(folder))) >= {"no_index"}
    (folder / B).unlink()
    assert inspect(files.find(folder)).shards.missing == (B,)
    assert any("is one of 2" in note for note in files.find(folder / A).notes)


# --- GGUF ---


def part(number: int, total: int, name: str, stated: int | None = None) -> bytes:
    pairs = [
        pair("general.architecture", 8, text("llama")),
        pair("split.no", 2, struct.pack("<H", number if stated is None else stated)),
        pair("split.count", 2, struct.pack("<H", total)),
    ]
    return gguf_file(pairs, [tensor(name, [8])], 32)


@pytest.mark.case("CKP-16")
@pytest.mark.parametrize("fault", ["absent", "empty", "wrong"])
def test_ckp_16_parts_that_are_absent_empty_or_wrong_fail_by_name(tmp_path: Path, fault: str) -> None:
    for number in range(3):
        path = tmp_path / f"m-{number + 1:05d}-of-00003.gguf"
        path.write_bytes(part(number, 3, f"t{number}", 0 if fault == "wrong" and number == 1 else None))
    second = tmp_path / "m-00002-of-00003.gguf"
    if fault == "absent":
        second.unlink()
    elif fault == "empty":
        second.write_bytes(b"")
    found = inspect(files.find(tmp_path))
    assert found.damaged
    assert any(
        "m-00002-of-00003.gguf" in one.observed for one in found.findings if one.severity is Severity.HIGH
    )


@pytest.mark.case("CKP-16")
def test_ckp_16_one_part_stands_for_the_whole_set(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"m-{number + 1:05d}-of-00003.gguf").write_bytes(part(number, 3, f"t{number}"))
    found = inspect(files.find(tmp_path / "m-00002-of-00003.gguf"))
    assert (found.content.tensors, found.damaged) == (3, False)
    assert "part 2 of 3: the whole set is read" in found.notes[0]


@pytest.mark.case("CKP-26")
@pytest.mark.parametrize("pairs", [[], [pair("general.architecture", 4, struct.pack("<I", 7))]])
def test_ckp_26_without_an_architecture_the_model_is_not_identified(
    tmp_path: Path, pairs: list[bytes]
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file(pairs, [tensor("a.weight", [8])], 32))
    found = inspect(files.find(path))
    assert found.architecture.name == "not identified"
    told = finding(found, "not_identified").observed
    assert told == "the checkpoint does not say what it is: general.architecture is absent, or no text"


def test_what_a_runtime_goes_by_is_in_the_digest(tmp_path: Path) -> None:
    digests = set()
    for used in (2, 9):
        path = tmp_path / "x.gguf"
        pairs = [pair("kimi-k3.expert_used_count", 4, struct.pack("<I", used))]
        path.write_bytes(gguf_file(pairs, [tensor("a.weight", [8])], 32))
        digests.add(inspect(files.find(path)).digest)
    assert len(digests) == 2


def test_nothing_to_load_is_damage(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf_file([], [], 0))
    found = inspect(files.find(tmp_path / "x.gguf"))
    assert found.damaged and finding(found, "empty").title == "No tensors"


def test_a_name_with_control_characters_is_shown_without_them(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    evil = "\x1b]0;owned\x07\x1b[2J"
    path.write_bytes(gguf_file([pair("general.architecture", 8, text(evil))], [tensor("a.weight", [8])], 32))
    kind = inspect(files.find(path)).architecture
    assert "\x1b" not in kind.name + kind.because


# --- quantization ---

EXPERTS = {
    f"model.layers.1.mlp.experts.{n}.{w}.{kind}": ("U8", (32, 32) if kind == "weight_packed" else (32, 2))
    for n in range(4)
    for w in ("w1", "w3")
    for kind in ("weight_packed", "weight_scale")
}
PLAIN = {
    f"{prefix}.weight": ("BF16", (4, 4))
    for prefix in (
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.shared_experts.up_proj",
        "lm_head",
        "vision_tower.a",
    )
}


def quantized(ignore: list[str]) -> dict[str, Any]:
    weights = {"num_bits": 4, "group_size": 32, "type": "float"}
    return {
        "model_type": "x",
        "quantization_config": {"config_groups": {"g": {"weights": weights}}, "ignore": ignore},
    }


@pytest.mark.case("QNT-01")
def test_qnt_01_entries_of_the_ignore_list_are_patterns(checkpoint: Any) -> None:
    ignore = ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*", "re:vision_tower.*"]
    found = inspect(files.find(checkpoint({A: {**EXPERTS, **PLAIN}}, quantized(ignore))))
    assert not codes(found) & {"ignore_contradicted", "ignore_unused", "ignore_unread"}


@pytest.mark.case("QNT-02")
def test_qnt_02_the_name_of_a_parent_matches_no_weight(checkpoint: Any) -> None:
    found = inspect(files.find(checkpoint({A: EXPERTS}, quantized(["model.layers.1.mlp.experts.0"]))))
    assert "model.layers.1.mlp.experts.0" in finding(found, "ignore_unused").observed
    assert "ignore_contradicted" not in codes(found)
    assert found.content.bytes == 4 * 2 * (32 * 32 + 32 * 2)


@pytest.mark.case("QNT-04")
def test_qnt_04_an_ignore_list_that_does_not_describe_the_files(checkpoint: Any) -> None:
    packed = {"mtp.fc.weight_packed": ("U8", (4, 16)), "mtp.fc.weight_scale": ("U8", (4, 1))}
    found = inspect(files.find(checkpoint({A: packed}, quantized(["re:mtp.*", "re:model\\.vision.*"]))))
    assert finding(found, "ignore_contradicted").severity is Severity.HIGH
    assert "mtp" in finding(found, "ignore_contradicted").observed
    assert "vision" in finding(found, "ignore_unused").observed
    assert found.content.pairs[0].number == 1


def test_a_hostile_pattern_is_given_up(checkpoint: Any) -> None:
    long = {f"{'a' * 60}.weight": ("BF16", (1,))}
    found = inspect(
        files.find(checkpoint({A: long}, quantized(["re:(a|aa|a?)+$", "re:(", "re:" + "x" * 600])))
    )
    assert finding(found, "ignore_unread").severity is Severity.LOW


@pytest.mark.case("QNT-06")
def test_qnt_06_exponents_that_are_stored_as_plain_bytes(checkpoint: Any) -> None:
    shapes = {"layers.0.ffn.w1.weight": ("F8_E4M3", (8, 64)), "layers.0.ffn.w1.weight_scale": ("U8", (8, 2))}
    found = inspect(files.find(checkpoint({A: shapes}, {"model_type": "x", "quantization_config": {}})))
    (only,) = found.content.pairs
    assert (only.scale_type, only.group) == ("U8", 32)
    assert only.meaning == "exponents, 2^(byte - 127): inferred, bytes are no other scale"


@pytest.mark.case("QNT-10")
def test_qnt_10_a_matrix_and_its_scale_in_different_shards(checkpoint: Any) -> None:
    name = "model.layers.3.mlp.experts.92.gate_proj.weight"
    shards = {A: {name: ("F8_E4M3", (256, 256))}, B: {f"{name}_scale_inv": ("F32", (2, 2))}}
    config = {"model_type": "x", "quantization_config": {"quant_method": "fp8"}}
    found = inspect(files.find(checkpoint(shards, config)))
    assert [(p.number, p.scale, p.group) for p in found.content.pairs] == [(1, "weight_scale_inv", 16_384)]
    assert "scale_missing" not in codes(found)


@pytest.mark.case("QNT-11")
@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_inv", None])
@pytest.mark.parametrize("declared", [True, False])
def test_qnt_11_names_of_scales_and_scales_that_are_missing(
    checkpoint: Any, scale: str | None, declared: bool
) -> None:
    shapes: dict[str, Any] = {"model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (128, 128))}
    if scale:
        shapes[f"model.layers.0.mlp.up_proj.{scale}"] = ("F32", (1, 1))
    config = {"model_type": "x", **({"quantization_config": {"quant_method": "fp8"}} if declared else {})}
    found = inspect(files.find(checkpoint({A: shapes}, config)))
    assert found.content.pairs[0].scale == scale
    assert ("scale_missing" in codes(found)) is (scale is None)
    assert ("quantization_undeclared" in codes(found)) is not declared
    assert found.damaged is (scale is None or not declared)


@pytest.mark.case("QNT-13")
def test_qnt_13_two_layouts_of_the_same_experts(checkpoint: Any, tmp_path: Path) -> None:
    at = "model.layers.1.mlp.experts"
    fused = {
        f"{at}.gate_up_proj_blocks": ("U8", (4, 64, 2, 16)),
        f"{at}.gate_up_proj_scales": ("U8", (4, 64, 2)),
    }
    (tmp_path / "fused.safetensors").write_bytes(safetensors_bytes(fused))
    (tmp_path / "single.safetensors").write_bytes(safetensors_bytes(EXPERTS))
    one, other = (inspect(files.find(tmp_path / f"{name}.safetensors")) for name in ("fused", "single"))
    for found in (one, other):
        assert found.content.experts == 4
        assert found.content.parameters == 4 * 64 * 64
        assert [pair.group for pair in found.content.pairs] == [32]
    assert [document(found)["experts"]["layout"] for found in (one, other)] == ["fused", "single"]
