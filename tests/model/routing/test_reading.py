"""Traces from files: the forms that are read, and the one line that each bad file gets."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate.errors import UsageError
from k3gate.model.routing import jsonl, reading
from k3gate.model.routing.reading import read
from k3gate.model.routing.trace import Trace

FIRST = '{"token": 0, "layers": [[1, 2], [3, 0]]}\n'
Write = Callable[[str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(content: str | bytes) -> str:
        path = tmp_path / "trace.x"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return made


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def refusal(path: str, **options: Any) -> str:
    with pytest.raises(UsageError) as error:
        read(path, **options)
    told = str(error.value)
    assert told.isprintable() and "\n" not in told
    return told


def test_json_lines_of_both_spellings_give_the_same(write: Write) -> None:
    ours = read(write(FIRST + '{"token": 1, "layers": [[2, 5], [1, 0]]}\n\n'))
    theirs = read(write(FIRST.replace("token", "tok") + '{"tok": 1, "layers": [[2, 5], [1, 0]]}'))
    assert ours.experts.tolist() == theirs.experts.tolist() == [[[1, 2], [3, 0]], [[2, 5], [1, 0]]]
    assert ours.experts.dtype == np.int16
    assert (ours.expert_count, ours.counted, ours.starts, ours.source) == (6, True, (0,), "trace.x")


def test_a_number_that_falls_begins_a_sequence(write: Write) -> None:
    lines = "".join(FIRST.replace("0,", f"{n},", 1) for n in (4, 5, 0, 1, 0))
    trace = read(write(lines))
    assert trace.starts == (0, 2, 4)
    assert trace.follows().tolist() == [True, False, True, False]


def test_the_first_line_states_what_the_rest_is(write: Write) -> None:
    header = '{"k3gate_routing": 1, "experts": 8, "tokens": 1, "source": "box\\n7"}\n'
    trace = read(write(header + FIRST))
    assert (trace.expert_count, trace.counted, trace.source) == (8, False, "trace.x (box 7)")
    assert "states 1 tokens and has 2" in refusal(write(header + FIRST + FIRST))
    assert "states 8 experts of a layer, not 9" in refusal(write(header + FIRST), experts=9)
    assert "version 2 is unknown" in refusal(write(header.replace("1,", "2,", 1) + FIRST))
    assert "experts must be a whole number" in refusal(write(header.replace("8", "true") + FIRST))
    assert "has no tokens" in refusal(write(header))


def test_what_is_written_is_read_as_it_was(drawn: Trace, write: Write) -> None:
    again = read(write(b"".join(jsonl.lines(drawn))))
    assert np.array_equal(again.experts, drawn.experts)
    assert (again.expert_count, again.starts, again.counted) == (32, (0, 40), False)


def test_npz_of_any_whole_numbers(write: Write, drawn: Trace) -> None:
    for kind in ("<i4", ">i8", "u1", "<i2"):
        array = np.asfortranarray(drawn.experts.astype(kind))
        trace = read(write(npz(experts=array, expert_count=np.int64(32))))
        assert np.array_equal(trace.experts, drawn.experts), kind
        assert (trace.expert_count, trace.counted) == (32, False)
    assert read(write(npz(experts=drawn.experts)), experts=64).expert_count == 64
    assert read(write(npz(experts=drawn.experts))).counted


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ('{"token": 1, "layers": [[1, -2], [3, 0]]}', "line 2, layer 0: expert -2 is below 0"),
        ('{"token": 1, "layers": [[1, 2], [3, 40000]]}', "line 2, layer 1: expert 40000 is above 32767"),
        ('{"token": 1, "layers": [[1, 2], [3, 3]]}', "line 2, layer 1: expert 3 is there twice"),
        ('{"token": 1, "layers": [[1, 2]]}', "line 2 has 1 layers and the first token 2"),
        ('{"token": 1, "layers": [[1, 2], [3]]}', "line 2, layer 1 has 1 experts and not 2"),
        ('{"token": 1, "layers": [[1, 2], [3, NaN]]}', "line 2 holds not-a-number"),
        ('{"token": 1, "layers": [[1, 2], [3, 0.5]]}', "line 2, layer 1: 0.5 is no expert id"),
        ('{"token": 1, "layers": [[1, 2], [3, true]]}', "line 2, layer 1: True is no expert id"),
        ('{"token": 1, "layers": [[1, 2], [3, null]]}', "line 2, layer 1: None is no expert id"),
        ('{"token": 1, "layers": [[1, 2], [3, 1e400]]}', "line 2"),
        ('{"token": 1, "layers": [[1, 2], [3, [0]]]}', "is no expert id"),
        ('{"token": 1, "layers": {"0": [1, 2]}}', "is no list of lists"),
        ('{"token": 1, "layers": []}', "is no list of lists"),
        ('{"token": 1, "experts": []}', 'line 2 has no "layers"'),
        ('{"token": "1", "layers": [[1, 2], [3, 0]]}', "'1' is no number from 0"),
        ('{"layers": [[1, 2], [3, 0]]}', '"token" is missing'),
        ('{"token": 7, "layers": [[1, 2], [3, 0]]}', "token 7 comes after token 0"),
        ("[1, 2]", "line 2 is no object"),
        ('{"token": 1, "layers": [[1, 2], [3', "line 2 is cut off"),
        ('{"token": 1, "layers": [[1, 2], [3\n', "line 2 is no JSON"),
        ("\udcff\x00".encode("utf-8", "surrogateescape").decode("latin1"), "line 2"),
    ],
)
def test_a_line_that_is_wrong_is_told_with_its_number(second: str, told: str, write: Write) -> None:
    assert told in refusal(write(FIRST + second))


def test_an_id_beyond_the_stated_number_of_experts(write: Write) -> None:
    assert "line 1, layer 1: expert 3 does not exist, since a layer has 3" in refusal(write(FIRST), experts=3)
    array = np.array([[[0, 1]], [[1, 7]]])
    assert "token 1, layer 0: expert 7 does not exist" in refusal(write(npz(experts=array)), experts=4)
    assert "expert_count 0 cannot be" in refusal(write(npz(experts=array, expert_count=0)))
    assert "states 9 experts" in refusal(write(npz(experts=array, expert_count=9)), experts=8)


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.array([[[0.0, float("nan")]]]), "holds float64, which may be not-a-number"),
        (np.array([[[True, False]]]), "holds bool"),
        (np.array([[[0, 1]], [[-1, 1]]]), "token 1, layer 0: expert -1 is below 0"),
        (np.array([[[0, 70000]]]), "expert 70000 is above 32767"),
        (np.array([[[0, 1], [4, 4]]]), "token 0, layer 1: expert 4 is there twice"),
        (np.array([[0, 1]]), "has 2 dimensions"),
        (np.zeros((0, 4, 2), int), "0 tokens x 4 layers x 2 experts are no trace"),
        (np.zeros((1, 2000, 2), int), "2,000 layers are more than 1,024"),
        (np.array([[["a"]]]), "expert ids are whole numbers"),
    ],
)
def test_an_array_that_is_wrong_is_told_with_its_place(array: Any, told: str, write: Write) -> None:
    assert told in refusal(write(npz(experts=array)))


def test_no_pickle_is_ever_loaded(write: Write, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    assert "is pickled, which is never read" in refusal(write(npz(experts=np.array([[[Trap()]]], object))))
    assert "is a pickle, which is never read" in refusal(write(pickle.dumps(Trap())))
    assert not (tmp_path / "sprung").exists()


def test_an_archive_that_claims_more_than_it_holds_or_than_is_read(write: Write) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<i8", "fortran_order": False, "shape": (10**6, 92, 16)}
    )
    head = file.getvalue()
    for shape, told in ((b"1000000, 92, 16", "more than"), (b"1000, 92, 16", "has not the")):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            header = head.replace(b"1000000, 92, 16", shape.ljust(15))
            archive.writestr("experts.npy", header + bytes(20 << 20))  # zeros, which take no room
        assert len(made.getvalue()) < 10**5
        assert told in refusal(write(made.getvalue()))


def test_archives_that_are_damaged_or_of_another_kind(write: Write, drawn: Trace) -> None:
    good = npz(experts=drawn.experts)
    assert "cut off or damaged" in refusal(write(good[: len(good) // 2]))
    twice = io.BytesIO(good)
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("experts.npy", b"")
    assert "two members of one name" in refusal(write(twice.getvalue()))
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 0xFF
    assert "damaged" in refusal(write(bytes(flipped)))
    many = npz(**{f"a{number}": 1 for number in range(65)}, experts=drawn.experts)
    assert "has 66 members in a directory" in refusal(write(many))
    long = bytearray(good)
    long[-10:-6] = (1 << 30).to_bytes(4, "little")
    assert "a directory of 1,073,741,824 bytes" in refusal(write(bytes(long)))
    assert "has no array 'experts'" in refusal(write(npz(ids=drawn.experts)))
    bare = io.BytesIO()
    np.save(bare, drawn.experts)
    assert "is a bare .npy file" in refusal(write(bare.getvalue()))
    assert "is compressed by gzip" in refusal(write(b"\x1f\x8b\x08\x00rest"))


def test_a_table_of_frequencies_is_told_from_a_trace(write: Write, shared_machines: Path) -> None:
    table = shared_machines / "trace-gptoss20b-expert-frequency-a" / "True_False.json"
    assert "tells how often experts are used and not which token used which" in refusal(str(table))


def test_other_documents(write: Write) -> None:
    table = {"layer_0": {"31": {"prob_density": 0.1, "count_frequency": 0.4}}}
    for text in (json.dumps(table), json.dumps(table, indent=2)):
        assert "tells how often experts are used" in refusal(write(text))
    assert "is one JSON document and no trace" in refusal(write(json.dumps({"layers_of": [1]}, indent=2)))
    assert "line 1 is no JSON" in refusal(write("# a trace\n"))


def test_files_that_are_none(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is no regular file" in refusal(str(tmp_path / "pipe"))
    assert "is empty" in refusal(write(""))
    assert "cannot read the trace" in refusal(str(tmp_path))
    assert "No such file" in refusal(str(tmp_path / "none"))
    assert "null" in refusal("a\0b")
    monkeypatch.setattr(reading, "MAX_BYTES", 10)
    assert "give a part of the trace" in refusal(write(FIRST))


def test_a_line_without_end_is_not_read_whole(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE", 1 << 20)
    assert "line 2 is longer than 1 MiB" in refusal(write(FIRST + " " * (3 << 20)))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["token", "layers", "x"]), inner)
    ),
    max_leaves=12,
)
records = st.fixed_dictionaries(
    {
        "token": st.integers(-1, 3) | values,
        "layers": st.lists(st.lists(st.integers(-1, 6), max_size=3)) | values,
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(records | values, max_size=4), cut=st.integers(0, 6))
def test_any_lines_are_a_trace_or_one_line(lines: list[Any], cut: int, tmp_path: Path) -> None:
    raw = "\n".join(map(json.dumps, lines)).encode()
    _read_or_refuse(tmp_path / "any", raw[: len(raw) - cut])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 600), byte=st.integers(0, 255), cut=st.integers(0, 40))
def test_any_damage_to_an_archive_is_a_trace_or_one_line(
    at: int, byte: int, cut: int, tmp_path: Path
) -> None:
    raw = bytearray(npz(experts=np.array([[[0, 1], [5, 2]]], np.int16), expert_count=np.int16(6)))
    raw[at % len(raw)] = byte
    _read_or_refuse(tmp_path / "any", bytes(raw[: len(raw) - cut]))


def _read_or_refuse(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    try:
        trace = read(str(path))
    except UsageError as error:
        assert str(error).isprintable() and "any" in str(error)
        return
    ids = trace.experts
    assert ids.ndim == 3 and ids.size and ids.min() >= 0 and ids.max() < trace.expert_count
    assert all(len(set(used)) == len(used) for token in ids.tolist() for used in token)
