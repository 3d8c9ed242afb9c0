"""Runtimes found by their files: what their registries name; nothing is imported, no name that is alike believed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from k3gate.errors import UsageError
from k3gate.harness import runtimes as wiring
from k3gate.records import Verdict
from k3gate.serving import runtimes, table
from k3gate.serving.runtimes import WANTED_K3, Runtime, Wanted

K3 = "KimiK3ForConditionalGeneration"
REGISTRY = "vllm/model_executor/models/registry.py"
WHOLE = b"\0kimi-linear\0kimi-k3\0%s.attn_res.block_size\0%s.activation.situ_beta\0%s.expert_latent_length\0"
Install = Callable[..., Path]


def vllm(*classes: str, previously: str = "Phi3SmallForCausalLM") -> str:
    """A registry as vLLM writes it."""
    rows = "".join(f'    "{name}": ("vllm.models.x", "{name}"),\n' for name in classes)
    return (
        f"_TEXT = {{\n{rows}}}\n_OTHER = {{'LlamaForCausalLM': ('llama', 'LlamaForCausalLM')}}\n"
        "_VLLM_MODELS = {\n    **_TEXT,\n    **_OTHER,\n}\n"
        f'_PREVIOUSLY_SUPPORTED_MODELS = {{"{previously}": "0.9"}}\n'
        'raise RuntimeError("imported")\n'
    )


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """`install("vllm", "0.33.0", {file: text}, requires=[...], plugins={...})`: as pip would leave it."""

    def make(
        name: str,
        version: str,
        files: Mapping[str, str | bytes],
        requires: tuple[str, ...] = (),
        entry_points: str = "",
        site: str = "env/lib/python3.11/site-packages",
    ) -> Path:
        folder = tmp_path / site
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
        (info / "METADATA").write_text("\n".join([*lines, "", "Text: of the package"]))
        (info / "RECORD").write_text(
            "".join(f"{file},sha256={hash(text)},1\n" for file, text in files.items())
        )
        if entry_points:
            (info / "entry_points.txt").write_text(entry_points)
        for file, text in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / "env"

    return make


def found(place: Path, wanted: Wanted = WANTED_K3) -> list[Runtime]:
    return list(runtimes.find(table.shipped(), wanted, [str(place)], {}))


def only(place: Path, wanted: Wanted = WANTED_K3) -> Runtime:
    (one,) = found(place, wanted)
    return one


def test_a_registry_that_names_the_class_is_shown_with_file_and_line(install: Install) -> None:
    one = only(install("vllm", "0.33.0", {REGISTRY: vllm("A", K3)}))
    assert (one.title, one.version, one.architecture, one.confirmed) == ("vLLM", "0.33.0", "supported", True)
    (seen,) = one.evidence
    assert seen.file.endswith(REGISTRY)
    assert Path(seen.file).read_text().splitlines()[(seen.line or 0) - 1].strip().startswith(f'"{K3}"')


@pytest.mark.parametrize(
    "classes", [("KimiLinearForCausalLM",), ("KimiK25ForConditionalGeneration", f"{K3}Draft"), (K3.lower(),)]
)
def test_nothing_follows_from_a_name_that_is_alike(install: Install, classes: tuple[str, ...]) -> None:
    """The language part of Kimi K3 alone calls itself KimiLinearForCausalLM, which is another model's name."""
    one = only(install("vllm", "0.33.0", {REGISTRY: vllm(*classes)}))
    assert (one.architecture, one.evidence) == ("not_listed", ())


def test_what_a_runtime_once_supported_is_not_in_its_registry(install: Install) -> None:
    assert only(install("vllm", "0.33.0", {REGISTRY: vllm("A", previously=K3)})).architecture == "not_listed"


@pytest.mark.parametrize("text", ["def broken(:\n", "_VLLM_MODELS = load()\n", "\0", "x = 1\n"])
def test_a_registry_that_cannot_be_read_is_not_one_that_lacks_it(install: Install, text: str) -> None:
    one = only(install("vllm", "0.33.0", {REGISTRY: text}))
    assert one.architecture == "unknown"
    assert one.reason.startswith("It could not be read: ")


def test_a_package_without_its_registry_is_not_known(install: Install) -> None:
    assert only(install("vllm", "0.33.0", {"vllm/__init__.py": ""})).architecture == "unknown"


def test_sglang_lists_a_class_by_its_entry(install: Install) -> None:
    models = "sglang/srt/models"
    listed = {
        f"{models}/kimi_k3.py": f"class {K3}: ...\n\nEntryClass = [{K3}, Other]\n",
        f"{models}/llama.py": "EntryClass = L",
    }
    one = only(install("sglang", "0.5.23", listed))
    assert (one.architecture, one.evidence[0].line, one.read) == ("supported", 3, 2)


def test_a_class_that_is_no_entry_is_not_listed(install: Install) -> None:
    one = only(
        install(
            "sglang", "0.5.23", {"sglang/srt/models/kimi_k3.py": f"class {K3}: ...\nEntryClass = Other\n"}
        )
    )
    assert one.architecture == "not_listed"


def test_a_runtime_without_a_registry_may_mention_a_model_and_is_not_believed(install: Install) -> None:
    one = only(install("kt-kernel", "0.7.2", {"kt_kernel/models.py": 'KNOWN = ["kimi_k3"]\n'}))
    assert (one.architecture, one.reason[:12]) == ("unknown", "It mentions ")


def test_a_library_that_holds_the_name_and_what_belongs_to_it(install: Install) -> None:
    place = install("llama-cpp-python", "0.3.36", {"llama_cpp/lib/libllama.so": b"\x7fELF" + WHOLE})
    one = only(place)
    assert one.architecture == "supported"
    assert {seen.name for seen in one.evidence} >= {"kimi-k3", "attn_res.block_size"}
    assert one.evidence[0].offset == 4 + WHOLE.index(b"kimi-k3")


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (b"\0kimi-linear\0models/kimi-k3.cpp\0", "not_listed"),
        (b"\0my-kimi-k3\0" + WHOLE.replace(b"kimi-k3\0", b""), "not_listed"),
        (b"\0kimi-k3\0", "unknown"),
        (b"\0kimi-k3\0%s.attnres.block_size\0%s.situ.beta\0", "unknown"),
        (b"", "not_listed"),
    ],
)
def test_a_library_of_another_or_an_early_build(install: Install, content: bytes, state: str) -> None:
    """A source file's name is no architecture, and early converters had other keys."""
    place = install("llama-cpp-python", "0.3.30", {"llama_cpp/lib/libllama.so": content})
    assert only(place).architecture == state


def test_the_name_is_sought_as_the_checkpoint_has_it(install: Install) -> None:
    place = install("vllm", "0.33.0", {REGISTRY: vllm("QwenForCausalLM")})
    qwen = Wanted("qwen", ("QwenForCausalLM",), "qwen", None)
    assert only(place, qwen).architecture == "supported"
    assert only(place, Wanted("llama", (), None, "llama")).architecture == "unknown", "a GGUF names no class"


@pytest.mark.case("RUN-05")
def test_run_05_dependencies_that_do_not_fit_are_listed_and_are_no_lack_of_support(install: Install) -> None:
    install("torch", "2.9.1", {"torch/__init__.py": ""})
    needs = ("torch<2.12,>=2.10", "numpy>=1", "absent>=3", "other>2; extra == 'gpu'")
    one = only(install("vllm", "0.33.0", {REGISTRY: vllm(K3)}, requires=needs))
    assert one.conflicts == ("requires torch<2.12,>=2.10, and 2.9.1 is there",)
    assert one.architecture == "supported"


@pytest.mark.case("RUN-06")
def test_run_06_a_development_build_asks_for_its_commit(install: Install) -> None:
    one = only(install("vllm", "0.26.1rc1.dev255+g5e35a6f4f", {REGISTRY: vllm(K3)}))
    assert one.confirmed is None
    assert any("cannot be compared with >=0.27: ask for its commit" in note for note in one.notes)
    assert only_version(install, "0.26.0").confirmed is False


def only_version(install: Install, version: str) -> Runtime:
    place = install("vllm", version, {REGISTRY: vllm(K3)}, site="older/lib/python3.11/site-packages")
    return only(place.parent / "older")


def test_a_plugin_that_registers_the_class(install: Install) -> None:
    place = install("vllm", "0.33.0", {REGISTRY: vllm("A")})
    install(
        "k3cpu",
        "1.0",
        {
            "k3cpu/__init__.py": f'def register():\n    ModelRegistry.register_model("{K3}", "k3cpu.model:Model")\n'
        },
        entry_points="[vllm.general_plugins]\nk3cpu = k3cpu:register\n",
    )
    one = only(place)
    assert (one.architecture, one.plugins) == ("supported", ("k3cpu 1.0",))
    assert "/k3cpu/" in one.evidence[0].file


def test_a_build_is_known_by_its_files_and_not_by_its_place(install: Install) -> None:
    one = only(install("vllm", "0.33.0", {REGISTRY: vllm(K3)}))
    files = {REGISTRY: vllm(K3)}
    same = only(install("vllm", "0.33.0", files, site="copy/lib/python3.12/site-packages").parent / "copy")
    other = only(
        install("vllm", "0.33.0", {REGISTRY: vllm("A")}, site="b/lib/python3.12/site-packages").parent / "b"
    )
    assert one.build == same.build != other.build
    assert one.path != same.path


def test_a_wheel_is_read_as_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(REGISTRY, vllm(K3))
        made.writestr("vllm-0.33.0.dist-info/METADATA", "Name: vllm\nVersion: 0.33.0\n\n")
    assert only(path).architecture == "supported"
    path.write_bytes(b"PK\x03\x04 no wheel")
    with pytest.raises(UsageError, match="it is no wheel; give a wheel that is whole"):
        found(path)


def program(folder: Path, text: bytes, name: str = "llama-server") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(text)
    path.chmod(0o755)
    return path


def test_a_program_is_known_by_the_libraries_that_lie_beside_it(tmp_path: Path) -> None:
    path = program(tmp_path / "llama" / "bin", b"#!/bin/sh\necho 'version: 10360 (90e6a9131)'\n")
    (tmp_path / "llama" / "lib").mkdir()
    (tmp_path / "llama" / "lib" / "libllama.so").write_bytes(WHOLE)
    (one,) = found(tmp_path / "llama")
    assert (one.id, one.version, one.architecture) == ("llama.cpp", "b10360 (90e6a9131)", "supported")
    assert one.path == str(path)
    (tmp_path / "llama" / "lib" / "libggml-base.so").write_bytes(b"\0MOE_FUSED_UP_GATE\0")
    (fork,) = found(path)
    assert (fork.id, fork.gaps[0].text) == (
        "ik_llama.cpp",
        "At most 512 experts in a layer; Kimi K3 has 896.",
    )


@pytest.mark.case("RUN-01")
@pytest.mark.parametrize(
    ("version", "capped"),
    [
        ("version: 10154 (90e6a9131)", True),
        ("version: 10360 (90e6a9131)", False),
        ("version: 1 (abc1234)", True),
    ],
)
def test_run_01_a_gap_goes_with_a_build_that_is_known_to_be_later(
    tmp_path: Path, version: str, capped: bool
) -> None:
    (one,) = found(program(tmp_path, f"#!/bin/sh\necho '{version}'\n".encode()))
    gaps = [gap for gap in one.gaps if "512 experts" in gap.text]
    assert bool(gaps) is capped, "a number that says nothing takes no gap away"
    assert [gap.told for gap in gaps] == ["builds before b10155"] * capped


def test_a_program_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_VERSION_SECONDS", 2.0)
    mark = tmp_path / "pid"
    path = program(tmp_path, f"#!/bin/sh\nsleep 600 &\necho $! > {mark}\nwait\n".encode())
    begun = time.monotonic()
    (one,) = found(path)
    assert time.monotonic() - begun < 30
    assert one.version == "an unknown build"
    state = Path(f"/proc/{mark.read_text().strip()}/stat")
    assert not state.exists() or " Z " in state.read_text(), "what it started ended with it"


@pytest.mark.parametrize("name", ["nothing-here", "a.txt", "pipe"])
def test_a_place_that_holds_no_runtime_is_bad_input(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        found(tmp_path / name)


def test_an_environment_without_a_runtime_has_none(install: Install) -> None:
    assert found(install("torch", "2.9.1", {"torch/__init__.py": ""})) == []


def test_a_table_of_ones_own_adds_and_replaces(install: Install, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[[runtime]]\nid = "mine"\ntitle = "Mine"\npackage = "My_Engine"\nnames = "transformers"\nway = "dictionary"\n'
        'given = ["mine/models.py", "MODELS"]\n'
    )
    place = install("my-engine", "1", {"mine/models.py": f'MODELS = {{"{K3}": 1}}\n'})
    (one,) = runtimes.find(table.with_own(str(own)), WANTED_K3, [str(place)], {})
    assert (one.title, one.architecture) == ("Mine", "supported")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ('way = "guess"', "way"),
        ('given = ["/etc/passwd", "MODELS"]', "leaves the package"),
        ('given = ["../../x.py", "MODELS"]', "leaves the package"),
        ('given = ["one"]', "must have 2 texts"),
        ('package = ""', "package"),
        ('color = "red"', "color"),
        ('confirmed = "about 3"', "is no range"),
    ],
)
def test_a_wrong_table_is_named_with_its_place(tmp_path: Path, changed: str, message: str) -> None:
    lines = {
        "id": '"mine"', "title": '"Mine"', "package": '"mine"', "names": '"transformers"', "way": '"dictionary"',
        "given": '["mine/models.py", "MODELS"]',
    }  # fmt: skip
    key, _, value = changed.partition(" = ")
    own = tmp_path / "own.toml"
    own.write_text("[[runtime]]\n" + "\n".join(f"{k} = {v}" for k, v in {**lines, key: value}.items()))
    with pytest.raises(UsageError, match=message):
        table.with_own(str(own))


@pytest.mark.parametrize(
    ("classes", "verdict"), [((K3,), Verdict.PASS), (("A",), Verdict.FAIL), ((), Verdict.UNPROVEN)]
)
def test_what_a_registry_proves_of_step_2(
    install: Install, classes: tuple[str, ...], verdict: Verdict
) -> None:
    text = vllm(*classes) if classes else "x = 1\n"
    one = only(install("vllm", "0.33.0", {REGISTRY: text}))
    proven = wiring.evidence(one, WANTED_K3, "2026-12-01T00:00:00+00:00")
    assert (proven.check, proven.subject, proven.subject_kind) == ("runtime.registry", one.build, "runtime")
    assert proven.verdict is verdict


def test_a_registry_that_names_another_model_proves_nothing(install: Install) -> None:
    qwen = Wanted("qwen", ("QwenForCausalLM",), "qwen", None)
    one = only(install("vllm", "0.33.0", {REGISTRY: vllm("QwenForCausalLM")}), qwen)
    assert wiring.evidence(one, qwen, "t").verdict is Verdict.UNPROVEN


def test_which_one_a_run_is_about_must_be_said(install: Install) -> None:
    place = install("vllm", "0.33.0", {REGISTRY: vllm(K3)})
    install("sglang", "0.5.23", {"sglang/srt/models/a.py": "EntryClass = A"})
    both = found(place)
    assert wiring.choose(both, "SGLang").id == "sglang"
    with pytest.raises(UsageError, match="2 runtimes were found: say with --runtime"):
        wiring.choose(both, None)
    with pytest.raises(UsageError, match="--runtime takes one of sglang, vllm"):
        wiring.choose(both, "llama.cpp")
    with pytest.raises(UsageError, match="no runtime was found"):
        wiring.choose([], None)


@pytest.mark.network
@pytest.mark.parametrize(
    ("requirement", "state"),
    [("vllm==0.33.0", "supported"), ("sglang==0.5.23", "supported"), ("kt-kernel==0.7.2", "not_listed")],
)
def test_the_wheels_that_are_published(tmp_path: Path, requirement: str, state: str) -> None:
    """Downloaded and not installed: some hundred megabytes."""
    wanted = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", requirement]
    done = subprocess.run([*wanted, "-d", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert only(wheel).architecture == state
