"""Why a runtime did not start: what it cannot do, what is wrong with the file, and with the installation."""

from __future__ import annotations

import pytest

from k3gate.serving.failures import Kind, why

IMPORT_ERROR = """\
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/sglang/launch_server.py", line 12, in <module>
    from sglang.srt.server_args import ServerArgs
  File "/usr/lib/python3.11/dataclasses.py", line 815, in _get_field
    raise ValueError(...)
TypeError: non-default argument 'model' follows default argument
"""
CONFLICT = """\
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.
kt-kernel 0.5.1 requires torch<2.12,>=2.10, but you have torch 2.9.1 which is incompatible.
"""
PYTHON_REGISTRY = """\
  File "vllm/model_executor/models/registry.py", line 700, in _raise_for_unsupported
ValueError: Model architectures ['KimiLinearForCausalLM'] are not supported for now. Supported architectures: ['A', 'B']
"""


@pytest.mark.case("RUN-02")
@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "llama_model_load: error loading model: unknown model architecture: 'kimi-linear'\nexit 1",
            "unknown model architecture: 'kimi-linear'",
        ),
        (PYTHON_REGISTRY, "Model architectures ['KimiLinearForCausalLM'] are not supported"),
    ],
)
def test_run_02_an_architecture_that_a_build_does_not_know(output: str, line: str) -> None:
    found = why(output)
    assert found.kind is Kind.ARCHITECTURE
    assert found.told == f"Not supported by this build: {line}."


@pytest.mark.case("RUN-02")
@pytest.mark.parametrize(
    "output",
    [
        "gguf_init_from_file: invalid magic characters: 'PK'",
        "error loading model: tensor 'blk.3.ffn_up_exps.weight' data is not within the file bounds, model is corrupted",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ],
)
def test_run_02_a_damaged_file_is_not_an_unknown_architecture(output: str) -> None:
    assert why(output).kind is Kind.FILE
    assert why(output).told.startswith("The file is damaged: ")


@pytest.mark.case("RUN-05")
def test_run_05_an_import_that_fails_says_nothing_of_support() -> None:
    found = why(IMPORT_ERROR)
    assert found.kind is Kind.INSTALLATION
    assert found.told == (
        "Could not check: the runtime fails to import: TypeError: non-default argument 'model' follows default "
        "argument."
    )
    conflict = why(CONFLICT + IMPORT_ERROR)
    assert conflict.kind is Kind.INSTALLATION
    assert conflict.conflicts == ("kt-kernel 0.5.1 requires torch<2.12,>=2.10, and torch 2.9.1 is there",)
    assert why(CONFLICT).kind is Kind.INSTALLATION


@pytest.mark.case("RUN-07")
def test_run_07_a_format_that_a_gpu_generation_lacks_is_named_with_what_it_asks_for() -> None:
    output = "triton.compiler.errors.CompilationError: type fp8e4nv not supported in this architecture"
    found = why(output, capability=8.6)
    assert found.kind is Kind.FORMAT
    assert "F8_E4M3, which asks for compute capability 8.9 and the GPU has 8.6" in found.told
    assert "the GPU has" not in why(output).told, "nothing is said of a GPU that is not known"


@pytest.mark.parametrize("output", ["", "\n\n", "Segmentation fault", "\x1b[31mred\x1b[0m"])
def test_what_is_not_known_is_not_guessed(output: str) -> None:
    found = why(output)
    assert found.kind is Kind.UNKNOWN
    assert "\x1b" not in found.told
