"""Headers of safetensors files: whole ones are read to the byte, and damage is named before anything is allocated."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate.model.checkpoint import safetensors
from k3gate.model.checkpoint.tensors import Header, open_file
from tests.model.checkpoint.conftest import safetensors_bytes, with_header

Read = Callable[[bytes], Header]


def entry(dtype: str, shape: Any, offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def codes(header: Header) -> list[str]:
    return [problem.code for problem in header.problems]


def told(header: Header) -> str:
    return "\n".join(problem.text for problem in header.problems)


def test_a_whole_file_is_read_to_the_byte(read: Read) -> None:
    raw = safetensors_bytes(
        {"a": ("BF16", (3, 4)), "b": ("U8", (5,)), "empty": ("F32", (0, 7))}, {"format": "pt"}
    )
    header = read(raw)
    assert header.problems == ()
    assert header.metadata == {"format": "pt"}
    assert [(t.name, t.dtype, t.shape, t.bytes, t.elements) for t in header.tensors] == [
        ("a", "BF16", (3, 4), 24, 12),
        ("b", "U8", (5,), 5, 5),
        ("empty", "F32", (0, 7), 0, 0),
    ]
    assert header.tensor_bytes == 29
    assert header.header_bytes + header.tensor_bytes == header.size == len(raw)


@pytest.mark.case("CKP-01")
def test_ckp_01_a_pointer_of_git_lfs_is_named_with_the_size_that_it_promises(read: Read) -> None:
    """CKP-01: its text read as a length would be 7 x 10^18 bytes."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 16000000000\n"
    header = read(pointer.encode())
    assert codes(header) == ["lfs_pointer"]
    assert header.problems[0].bytes == 16_000_000_000
    assert "16,000,000,000 bytes" in told(header) and "fetch it" in told(header)


@pytest.mark.case("CKP-02")
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "the file has 0 bytes"),
        (b"1234567", "the file has 7 bytes"),
        ((0).to_bytes(8, "little"), "a header of 0 bytes"),
        ((1000).to_bytes(8, "little") + b"{}", "the file has 10 bytes and declares a header of 1,000"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "declares a header of 18,446,744,073,709,551,615"),
        ((2**63).to_bytes(8, "little") + b"{}", "declares a header of 9,223,372,036,854,775,808"),
    ],
    ids=["empty", "seven", "zero", "beyond", "2^64-1", "2^63"],
)
def test_ckp_02_a_header_beyond_the_file_is_refused_unread(read: Read, raw: bytes, words: str) -> None:
    header = read(raw)
    assert codes(header) == ["header"]
    assert words in told(header)
    assert header.tensors == ()


def test_a_header_beyond_the_limit_is_refused_unread_though_the_file_is_as_long(tmp_path: Path) -> None:
    """A sparse file costs its maker nothing."""
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((2**40).to_bytes(8, "little") + b"{")
        file.truncate(2**41)
    with open_file(path) as source:
        header = safetensors.read(source)
    assert codes(header) == ["header"] and "are not read" in told(header)


@pytest.mark.case("CKP-03")
@pytest.mark.long
def test_ckp_03_a_header_above_the_limit_of_the_reference_is_read_and_warned_of(tmp_path: Path) -> None:
    """CKP-03: 101 MB of tiny tensors; in a process of its own, so that its memory is known."""
    path = tmp_path / "x.safetensors"
    parts, position = [], 0
    while sum(map(len, parts[-1:])) * len(parts) < 101_000_000:
        parts.append(
            f'"tensor.{position:09d}":{{"dtype":"U8","shape":[1],"data_offsets":[{position},{position + 1}]}}'
        )
        position += 1
    path.write_bytes(with_header("{" + ",".join(parts) + "}", position))
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from k3gate.model.checkpoint import safetensors; from k3gate.model.checkpoint.tensors import open_file\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\n"
        "with open_file(Path(sys.argv[1])) as source: header = safetensors.read(source)\n"
        "print(len(header.tensors), [(one.code, str(one.severity)) for one in header.problems])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert done.stdout == f"{position} [('long_header', 'medium')]\n", done.stderr


@pytest.mark.case("CKP-04")
def test_ckp_04_one_name_twice_in_a_header(read: Read) -> None:
    header = read(
        with_header(
            '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}',
            16,
        )
    )
    assert "duplicate" in codes(header)
    assert "'a' twice" in told(header)


@pytest.mark.case("CKP-05")
def test_ckp_05_ranges_that_overlap_or_leave_holes(read: Read) -> None:
    both = read(with_header(json.dumps({n: entry("F32", [2], [0, 8]) for n in "ab"}), 8))
    assert codes(both) == ["overlap"]
    assert "'a' [0, 8] and 'b' [0, 8]" in told(both)
    hole = read(
        with_header(json.dumps({"a": entry("F32", [2], [0, 8]), "b": entry("F32", [2], [12, 20])}), 20)
    )
    assert codes(hole) == ["hole"]
    assert "4 bytes before tensor 'b' [12, 20]" in told(hole)
    mixed = read(
        with_header(json.dumps({"b": entry("F32", [2], [8, 16]), "a": entry("F32", [2], [0, 8])}), 16)
    )
    assert mixed.problems == ()


@pytest.mark.case("CKP-06")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"shape": [1000, 1000], "data_offsets": [0, 4]},
            "takes 4,000,000 bytes, and its range [0, 4] has 4",
        ),
        ({"data_offsets": [8, 4]}, "[8, 4] are no range"),
        ({"data_offsets": [-4, 0]}, "[-4, 0] are no range"),
        ({"data_offsets": [0, 4, 8]}, "no two whole numbers"),
        ({"data_offsets": ["0", "4"]}, "no two whole numbers"),
        ({"data_offsets": [0.0, 4.0]}, "no two whole numbers"),
        ({"shape": [True]}, "no list of whole numbers"),
        ({"shape": [-1]}, "no list of whole numbers"),
        ({"shape": [2**62, 2**62]}, "more elements than any file"),
        ({"shape": [1] * 33}, "33 axes"),
        ({"dtype": 4}, "no dtype"),
        ({"data_offsets": [0, 2**63]}, "beyond any file"),
    ],
)
def test_ckp_06_ranges_that_do_not_fit_shape_and_type(
    read: Read, changes: dict[str, Any], words: str
) -> None:
    header = read(with_header(json.dumps({"weight": {**entry("F32", [1], [0, 4]), **changes}}), 4))
    assert codes(header)[0] == "tensor"
    assert "tensor 'weight'" in told(header) and words in told(header)


@pytest.mark.case("CKP-07")
def test_ckp_07_an_empty_metadata_object(read: Read) -> None:
    header = read(with_header(json.dumps({"__metadata__": {}, "a": entry("F32", [1], [0, 4])}), 4))
    assert (header.problems, header.metadata, len(header.tensors)) == ((), {}, 1)


@pytest.mark.case("CKP-14")
def test_ckp_14_types_of_less_than_a_byte_and_of_exponents(read: Read) -> None:
    whole = read(
        with_header(
            json.dumps({"s": entry("F8_E8M0", [2, 4], [0, 8]), "w": entry("F4", [2, 8], [8, 16])}), 16
        )
    )
    assert whole.problems == ()
    assert [(t.bytes, t.elements) for t in whole.tensors] == [(8, 8), (8, 16)]
    odd = read(with_header(json.dumps({"w": entry("F4", [2, 7], [0, 7])}), 7))
    assert codes(odd)[0] == "tensor"
    assert "rows of 7 elements of 4 bits fill no whole bytes" in told(odd)
    unknown = read(with_header(json.dumps({"w": entry("F2_NEW", [2, 8], [0, 4])}), 4))
    assert codes(unknown) == ["unknown_type"]
    assert unknown.tensor_bytes == 4


@pytest.mark.case("CKP-24")
def test_ckp_24_files_shorter_or_longer_than_their_header_says(read: Read) -> None:
    text = json.dumps({"a": entry("U8", [1000], [0, 1000])})
    short, long = read(with_header(text, 600)), read(with_header(text, 1016))
    assert [(p.code, p.bytes) for p in short.problems] == [("truncated", 400)]
    assert [(p.code, p.bytes) for p in long.problems] == [("surplus", 16)]
    assert f"has {608 + len(text):,} bytes, and its header tells of {1008 + len(text):,}" in told(short)


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"a"}',
        '{"a":1,}',
        '{"a":{"dtype":"F32","dtype":"F16"}}',
        '{"a":NaN}',
        "{" + '"a":' * 3,
        '{"a":' + "[" * 100_000,
        '{"a":[]} x',
        '{"a":1' + "0" * 10_000 + "}",
        b'{"\xff":1}',
    ],
)
def test_text_that_is_no_header_is_refused_in_a_sentence(read: Read, text: str | bytes) -> None:
    header = read(with_header(text, 0))
    assert codes(header)[0] in ("header", "tensor")
    assert max(map(len, (problem.text for problem in header.problems))) < 1000


def test_of_many_like_faults_the_first_are_told_and_the_rest_counted(read: Read) -> None:
    header = read(with_header(json.dumps({f"t{n}": entry("F32", [1], [0, 3]) for n in range(5000)}), 3))
    assert len(header.problems) < 30
    assert "4,980 more of this kind" in told(header)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: with_header("{" + text, 10)))
)
def test_any_bytes_give_a_header_or_a_problem(read: Read, raw: bytes) -> None:
    started = time.monotonic()
    header = read(raw)
    assert header.problems or header.tensors or header.header_bytes
    assert time.monotonic() - started < 5


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from(["U8", "BF16", "F32", "F8_E8M0"]),
            st.lists(st.integers(0, 5), max_size=3).map(tuple),
        ),
        max_size=12,
    )
)
def test_any_whole_file_is_given_back(read: Read, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    header = read(safetensors_bytes(tensors))
    assert header.problems == ()
    assert {t.name: (t.dtype, t.shape) for t in header.tensors} == tensors
