"""Headers of GGUF files: those that the package gguf writes are read, hostile counts are refused at once."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf as package
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate.model.checkpoint import gguf
from k3gate.model.checkpoint.tensors import Header, open_file

Read = Callable[[bytes], Header]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reading(raw: bytes) -> Header:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        with open_file(path) as source:
            return gguf.read(source)

    return reading


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)


def file(
    pairs: Sequence[bytes] = (), tensors: Sequence[bytes] = (), data: int = 0, version: int = 3
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join((*pairs, *tensors))
    return head + bytes(-len(head) % 32) + bytes(data)


def codes(header: Header) -> list[str]:
    return [problem.code for problem in header.problems]


def told(header: Header) -> str:
    return "\n".join(problem.text for problem in header.problems)


def test_the_types_are_those_of_the_package() -> None:
    sizes = {
        kind.value: (kind.name, *package.GGML_QUANT_SIZES[kind]) for kind in package.GGMLQuantizationType
    }
    assert {number: gguf.TYPES.get(number) for number in sizes} == sizes


def test_a_file_of_the_package_is_read_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = package.GGUFWriter(path, "kimi-k3")
    writer.add_block_count(93)
    writer.add_array("kimi-k3.attention.head_count_kv", [0, 0, 0, 1])
    writer.add_array("tokenizer.ggml.tokens", ["<a>", "b", "Zürich"])
    writer.add_bool("general.good", True)
    writer.add_tensor("blk.0.x", numpy.zeros((3, 64), numpy.float32))
    writer.add_tensor(
        "blk.0.ffn_up_exps",
        numpy.zeros((4, 2, 34), numpy.uint8),
        raw_dtype=package.GGMLQuantizationType.MXFP4,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_file(path) as source:
        header = gguf.read(source)
    assert header.problems == ()
    assert header.metadata["general.architecture"] == "kimi-k3"
    assert header.metadata["kimi-k3.block_count"] == 93
    assert header.metadata["kimi-k3.attention.head_count_kv"] == (0, 0, 0, 1)
    assert header.metadata["tokenizer.ggml.tokens"] == gguf.Passed(3, 8)
    assert header.metadata["general.good"] is True
    assert [(t.name, t.dtype, t.shape, t.bytes) for t in header.tensors] == [
        ("blk.0.x", "F32", (3, 64), 768),
        ("blk.0.ffn_up_exps", "MXFP4", (4, 2, 64), 4 * 2 * 34),
    ]
    reader = package.GGUFReader(path)
    assert [t.begin for t in header.tensors] == [t.data_offset for t in reader.tensors]


@pytest.mark.case("CKP-18")
@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"GGUF\0\0\0\3", "big-endian GGUF of version 3"),
        (b"GGUF\1\0\0\0", "little-endian GGUF of version 1"),
        (b"FUGG\0\0\0\3", "backwards (FUGG)"),
        (b"GGUF\4\0\0\0", "little-endian GGUF of version 4"),
        (b"GGML\3\0\0\0", "no GGUF file: it begins with b'GGML'"),
    ],
)
def test_ckp_18_byte_order_and_version_are_named(read: Read, head: bytes, words: str) -> None:
    header = read(head + struct.pack("<QQ", 2**40, 2**40))
    assert codes(header) == ["header"]
    assert words in told(header)


@pytest.mark.case("CKP-18")
@pytest.mark.parametrize("version", [2, 3])
def test_ckp_18_versions_2_and_3_are_read(read: Read, version: int) -> None:
    header = read(file([pair("general.architecture", 8, text("llama"))], [tensor("a", [4])], 16, version))
    assert header.problems == () and header.metadata == {"general.architecture": "llama"}


DEEP = struct.pack("<IQ", 9, 1) * 100 + struct.pack("<IQ", 4, 1)


@pytest.mark.case("CKP-19")
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (
            file([pair("k", 9, struct.pack("<IQ", 4, 2**63))]),
            "'k' declares 9,223,372,036,854,775,808 numbers",
        ),
        (file([pair("k", 9, DEEP)]), "arrays hold numbers or texts"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "declares 9,223,372,036,854,775,808 key-value pairs"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "declares 9,223,372,036,854,775,808 tensors"),
        (file([struct.pack("<Q", 2**62)]), "declares 4,611,686,018,427,387,904 bytes"),
        (file([], [text("t") + struct.pack("<I", 0xFFFFFFFF) + bytes(40)]), "declares 4,294,967,295 axes"),
        (file([pair("k", 9, struct.pack("<IQ", 8, 2**50))]), "'k' declares 1,125,899,906,842,624 texts"),
        (file([pair("k", 77, b"")]), "kind 77"),
        (b"GGUF\3\0\0\0", "the header ends inside"),
    ],
    ids=["array", "nested", "pairs", "tensors", "text", "axes", "texts", "kind", "short"],
)
def test_ckp_19_hostile_counts_are_refused_at_once(read: Read, raw: bytes, words: str) -> None:
    started = time.monotonic()
    header = read(raw)
    assert time.monotonic() - started < 1
    assert codes(header) == ["header"]
    assert words in told(header)


@pytest.mark.case("CKP-19")
@pytest.mark.parametrize("declared", [(2**17, 2**15), (2**17, 0), (0, 2**15)])
def test_ckp_19_counts_that_a_sparse_file_would_hold_end_at_its_zeros(
    tmp_path: Path, declared: tuple[int, int]
) -> None:
    path = tmp_path / "x.gguf"
    with path.open("wb") as stream:
        stream.write(b"GGUF" + struct.pack("<IQQ", 3, *declared))
        stream.truncate(2**40)
    with open_file(path) as source:
        header = gguf.read(source)
    assert codes(header) == ["header"]
    assert "empty key" in told(header) or "has no name" in told(header)


@pytest.mark.case("CKP-22")
def test_ckp_22_the_vocabulary_of_a_giant_is_passed_over(read: Read) -> None:
    words = [text(f"token{n}") for n in range(163_840)]
    pairs = [
        pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, len(words)) + b"".join(words)),
        pair("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, len(words)) + bytes(4 * len(words))),
        pair("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, len(words)) + bytes(4 * len(words))),
        pair("last", 4, struct.pack("<I", 7)),
    ]
    header = read(file(pairs, [tensor(f"t{n}", [8], 0, 32 * n) for n in range(1200)], 32 * 1200))
    assert header.problems == ()
    assert header.metadata["last"] == 7
    assert header.metadata["tokenizer.ggml.scores"] == gguf.Passed(163_840, 6)
    assert len(header.tensors) == 1200


@pytest.mark.parametrize(
    ("tensors", "data", "code", "words"),
    [
        ([tensor("a", [8], 0, 0), tensor("b", [8], 0, 32)], 40, "truncated", "24 are missing"),
        ([tensor("a", [8], 0, 0), tensor("b", [8], 0, 0)], 32, "overlap", "'a' and 'b' share bytes"),
        ([tensor("a", [8], 0, 0), tensor("b", [8], 0, 96)], 128, "hole", "64 bytes before tensor 'b'"),
        ([tensor("a", [8], 0, 0)], 200, "surplus", "168 bytes follow"),
        ([tensor("a", [8], 0, 4)], 64, "tensor", "no multiple of 32"),
        ([tensor("a", [31], 39, 0)], 64, "tensor", "no whole blocks of MXFP4"),
        ([tensor("a", [8], 0, 0), tensor("a", [8], 0, 32)], 64, "duplicate", "'a' twice"),
        ([tensor("a", [8], 99, 0), tensor("b", [8], 0, 960)], 992, "unknown_type", "GGML type 99"),
        ([tensor("a", [2**40, 2**40], 0, 0)], 64, "tensor", "beyond any file"),
    ],
)
def test_tensors_that_do_not_fit_the_file_are_named(
    read: Read, tensors: list[bytes], data: int, code: str, words: str
) -> None:
    header = read(file([], tensors, data))
    assert code in codes(header)
    assert words in told(header)
    assert code == "unknown_type" or "hole" not in codes(header) or code == "hole"


def test_an_alignment_of_the_file_is_kept_to_and_a_wrong_one_named(read: Read) -> None:
    raw = file([pair("general.alignment", 4, struct.pack("<I", 64))], [tensor("a", [8])])
    raw += bytes(-len(raw) % 64) + bytes(32)
    header = read(raw)
    assert header.problems == () and header.tensors[0].begin % 64 == 0
    wrong = read(file([pair("general.alignment", 4, struct.pack("<I", 0))], [tensor("a", [8])], 32))
    assert codes(wrong) == ["alignment"]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_any_bytes_behind_the_magic_give_a_header_or_a_problem(
    read: Read, raw: bytes, tensors: int, pairs: int
) -> None:
    header = read(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + raw)
    assert header.problems or (tensors, pairs) == (len(header.tensors), len(header.metadata))
