"""Checkpoints on a Hub: read by ranges as the same files on disk are, whatever the server does.

The Hub is a fake one on loopback; see `fake_hub`.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.errors import UsageError
from k3gate.harness import checkpoints
from k3gate.model.checkpoint import files
from k3gate.model.checkpoint.documents import document
from k3gate.model.checkpoint.hub import reader as hub_reader
from k3gate.model.checkpoint.hub import repository, transport
from k3gate.model.checkpoint.hub.reader import FIRST, Ranged
from k3gate.model.checkpoint.inspection import Inspection, inspect
from tests.model.checkpoint import kimi_k3
from tests.model.checkpoint.conftest import safetensors_bytes
from tests.model.checkpoint.fake_hub import COMMIT, FakeHub, Reply, Request, error, serving
from tests.model.checkpoint.fake_hub import document as json_reply
from tests.model.checkpoint.test_gguf import file as gguf_file
from tests.model.checkpoint.test_gguf import pair, tensor, text

PLACE = "hf://maker/model"
TOKEN = "hf_secretsecret"
SHARDS = [f"model-{number:05d}-of-00020.safetensors" for number in range(1, 21)]


def shapes(number: int) -> dict[str, Any]:
    return {f"model.layers.{number}.mlp.up_proj.weight": ("BF16", (8, number))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of 20 shards with all that lies beside one."""
    place = tmp_path / "model"
    place.mkdir()
    weight_map = {}
    for number, name in enumerate(SHARDS, 1):
        (place / name).write_bytes(safetensors_bytes(shapes(number)))
        weight_map |= dict.fromkeys(shapes(number), name)
    (place / files.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (place / files.CONFIG).write_text(json.dumps({"model_type": "x", "num_hidden_layers": 20}))
    (place / "LICENSE").write_text("the licence\n")
    (place / "tokenizer.json").write_text("{}")
    (place / "chat_template.jinja").write_text("{{ a }}")
    (place / "extra.safetensors").write_bytes(safetensors_bytes({"y": ("U8", (3,))}))
    return place


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(transport, "WAITS", (0.01, 0.01, 0.01))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HOME", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with serving(repositories={"maker/model": folder}) as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        yield served


def told(found: Inspection) -> dict[str, Any]:
    """All that may not depend on where the files lie."""
    return {key: value for key, value in document(found).items() if key not in ("place", "revision")}


def remote(place: str = PLACE) -> Inspection:
    return checkpoints.read(place)[1]


def local(path: Path) -> Inspection:
    return inspect(files.find(path))


def unfetched(found: Inspection) -> str:
    return next(one for one in found.findings if one.code == "unfetched").observed


# --- the same as on disk ---


@pytest.mark.parametrize("page", [3, 1000])
def test_a_repository_is_told_as_the_same_files_on_disk(hub: FakeHub, folder: Path, page: int) -> None:
    hub.page = page
    found = remote()
    assert told(found) == told(local(folder))
    assert (found.place, found.revision) == (PLACE, COMMIT)
    assert found.licences and found.tokenizers and found.templates
    assert len(hub.asked("hub", "/tree/")) == (9 if page == 3 else 1)
    assert all(request.range for request in hub.requests if "/api/" not in request.path)
    assert all(f"/resolve/{COMMIT}/" in one.path for one in hub.asked("hub", "/resolve/"))


def test_a_header_takes_one_request_and_a_long_one_two(hub: FakeHub, folder: Path) -> None:
    remote()
    assert len(hub.asked("store")) == 20
    hub.requests.clear()
    for name in SHARDS:
        raw = safetensors_bytes({"x" * (FIRST + 100) + name: ("U8", (FIRST * 2,))})
        (folder / name).write_bytes(raw)
    (folder / files.INDEX).unlink()
    assert told(remote()) == told(local(folder))
    asked = hub.asked("store")
    assert 20 < len(asked) <= 20 + hub_reader.THREADS + 1
    assert max(one.range[1] + 1 - one.range[0] for one in asked if one.range) < 2 * FIRST


@pytest.mark.case("CKP-09")
def test_ckp_09_what_is_missing_there_is_told_as_on_disk(hub: FakeHub, folder: Path) -> None:
    (folder / SHARDS[4]).unlink()
    (folder / SHARDS[5]).write_bytes(b"")
    (folder / SHARDS[6]).write_bytes((folder / SHARDS[6]).read_bytes()[:-1])
    (folder / files.CONFIG).write_text("{")
    assert told(remote()) == told(local(folder))
    assert remote().damaged


@pytest.mark.long
def test_kimi_k3_takes_a_request_a_file(hub: FakeHub, tmp_path: Path) -> None:
    place = tmp_path / "k3"
    place.mkdir()
    kimi_k3.write(place)
    hub.repositories["moonshotai/Kimi-K3"] = place
    assert told(remote("hf://moonshotai/Kimi-K3")) == told(local(place))
    assert len(hub.asked("store")) == 96


def gguf_parts(place: Path, total: int) -> None:
    place.mkdir(parents=True)
    for number in range(total):
        words = struct.pack("<IQ", 8, 60_000) + b"".join(text(f"word {n:030d}") for n in range(60_000))
        pairs = [
            pair("general.architecture", 8, text("llama")),
            pair("split.no", 2, struct.pack("<H", number)),
            pair("split.count", 2, struct.pack("<H", total)),
            pair("tokenizer.ggml.tokens", 9, words),
            pair("numbers", 9, struct.pack("<IQ", 4, 900_000) + bytes(3_600_000)),
        ]
        raw = gguf_file(pairs, [tensor(f"t{number}", [8])], 32)
        (place / f"m-{number + 1:05d}-of-{total:05d}.gguf").write_bytes(raw)


@pytest.mark.case("CKP-16")
def test_ckp_16_gguf_in_folders_by_folder_and_by_file(hub: FakeHub, folder: Path) -> None:
    hub.repositories["maker/quants"] = place = folder.parent / "quants"
    gguf_parts(place / "Q4_K", 3)
    gguf_parts(place / "Q8_0", 1)
    (place / "Q8_0" / "mmproj-F16.gguf").write_bytes(gguf_file())
    for inside in ("Q4_K", "Q8_0", "Q4_K/m-00002-of-00003.gguf", "Q8_0/m-00001-of-00001.gguf"):
        found = remote(f"hf://maker/quants/{inside}@main")
        assert told(found) == told(local(place / inside)), inside
    with pytest.raises(UsageError, match="give one of its folders: Q4_K, Q8_0"):
        remote("hf://maker/quants")
    with pytest.raises(UsageError, match="no folder and no file 'Q2_K'"):
        remote("hf://maker/quants/Q2_K")


def test_files_in_other_folders_that_the_index_names(hub: FakeHub, folder: Path) -> None:
    index = json.loads((folder / files.INDEX).read_text())
    (folder / "deep").mkdir()
    (folder / SHARDS[0]).rename(folder / "deep" / SHARDS[0])
    index["weight_map"][next(iter(shapes(1)))] = f"deep/{SHARDS[0]}"
    index["weight_map"] |= {f"gone{n}": f"gone{n}/x.safetensors" for n in range(200)}
    (folder / files.INDEX).write_text(json.dumps(index))
    assert told(remote()) == told(local(folder))
    assert len(hub.asked("hub", "/tree/")) < 100


@given(
    size=st.integers(0, 5000),
    reads=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 6000)), max_size=20),
)
def test_bytes_by_position_are_those_of_the_file(size: int, reads: list[tuple[int, int]]) -> None:
    raw = bytes(n * 7 % 251 for n in range(size))
    names = ("FIRST", "_MOST_AHEAD", "_HELD", "_LONG")

    def fetch(offset: int, length: int) -> bytes:
        assert 0 <= offset < offset + length <= size
        return raw[offset : offset + length]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(names, (100, 400, 900, 1500), strict=True):
            patch.setattr(hub_reader, name, value)
        source = Ranged("x", size, fetch)
        source.hold(100)
        for offset, length in reads:
            assert source.read(offset, length) == raw[offset : offset + length]


# --- servers that do otherwise ---


def test_the_token_goes_to_the_hub_and_not_to_its_store(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    with pytest.raises(UsageError, match="private"):
        remote()
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    assert told(remote()) == told(local(folder))
    assert all("authorization" not in one.headers for one in hub.asked("store"))
    monkeypatch.delenv("HF_TOKEN")
    home = folder.parent / "home"
    home.mkdir()
    (home / "token").write_text("hf_secret\n")
    monkeypatch.setenv("HF_HOME", str(home))
    remote()
    (home / "token").write_text("hf_other")
    with pytest.raises(UsageError) as refused:
        remote()
    assert "gives no access" in str(refused.value) and "hf_other" not in str(refused.value)


def test_a_repository_that_was_renamed_is_followed_with_the_token(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    def moved(request: Request, right: Reply) -> Reply | None:
        if "/old/" in request.path and request.at == "hub":
            where = request.path.replace("old/name", "maker/model") + f"?{request.query}"
            return Reply(307, {"Location": where}, b"moved")
        return None

    hub.spoil.append(moved)
    assert told(remote("hf://old/name")) == told(local(folder))


def test_a_server_without_ranges_is_read_no_further_than_needed(hub: FakeHub, folder: Path) -> None:
    hub.has_ranges = False
    assert told(remote()) == told(local(folder))
    raw = (folder / SHARDS[0]).read_bytes()
    hub.always(SHARDS[0], Reply(200, {}, raw.ljust(2**20, b"\0"), endless=True), "store")
    before = len(hub.sent)
    assert remote().content.tensors == 20
    assert max(hub.sent[before:]) < 20 * 2**20  # what lay in buffers when the connection was closed
    long = safetensors_bytes({"x" * FIRST: ("U8", (FIRST * 2,))})
    (folder / SHARDS[1]).write_bytes(long)
    assert f"{SHARDS[1]}: it cannot be read: the Hub's store sends whole files alone" in unfetched(remote())


def test_an_answer_that_breaks_off_is_taken_up_where_it_ended(hub: FakeHub, folder: Path) -> None:
    def half(request: Request, right: Reply) -> Reply | None:
        if request.at == "store" and len(right.body) > 40:
            return Reply(206, right.headers, right.body[: len(right.body) // 2], declared=len(right.body))
        return None

    hub.spoil.append(half)
    assert told(remote()) == told(local(folder))
    ranges = [one.range for one in hub.asked("store", SHARDS[0]) if one.range]
    assert len(ranges) > 1 and ranges[0][0] == 0 < ranges[1][0]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(403), "the Hub's store does not give it: status 403"),
        (Reply(404), "lists it and does not have it"),
        (Reply(500), "it is busy (500)"),
        (Reply(429, {"Retry-After": "3600"}), "come again in 3600 s (429)"),
        (Reply(206, {}, b"x"), "another part of the file"),
        (Reply(206, {"Content-Range": "bytes 5-9/100"}, b"12345"), "another part of the file"),
        (Reply(206, {"Content-Range": "bytes 0-9/9999999"}, b"x" * 10), "sends one of 9,999,999"),
        (Reply(200, {}, b"<html>"), "sends one of 6"),
        (Reply(206, {"Content-Range": "bytes 0-9/*"}, b"", declared=10), "broke off"),
        # Where a redirect leads nowhere, the words are those of the library.
        (Reply(302, {"Location": "ftp://x/"}), ""),
        (Reply(302, {"Location": "http://127.0.0.1:x/"}), ""),
        (Reply(206, {"Content-Encoding": "gzip"}, b"x"), "compressed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_not_given_is_a_finding_and_proves_nothing(
    hub: FakeHub, reply: Reply, words: str
) -> None:
    hub.always(SHARDS[7], reply, "store")
    started = time.monotonic()
    found = remote()
    assert time.monotonic() - started < 20
    assert SHARDS[7] in unfetched(found) and words in unfetched(found)
    assert found.damaged and found.content.tensors == 19
    assert "127.0.0.1" not in unfetched(found) and "Signature" not in unfetched(found)
    assert checkpoints.evidence(found, "now") == []


def test_a_body_longer_than_its_range_is_cut(hub: FakeHub, folder: Path) -> None:
    def longer(request: Request, right: Reply) -> Reply | None:
        return Reply(206, right.headers, right.body + b"\0" * 3 * 2**20) if request.at == "store" else None

    hub.spoil.append(longer)
    assert told(remote()) == told(local(folder))


def test_a_circle_of_redirects_comes_to_an_end(hub: FakeHub) -> None:
    hub.spoil.append(
        lambda request, right: Reply(302, {"Location": request.path}) if SHARDS[3] in request.path else None
    )
    assert "more than 5 redirects" in unfetched(remote())


def test_a_config_that_is_not_given_proves_nothing(hub: FakeHub) -> None:
    hub.always("config.json", Reply(403))
    found = remote()
    assert "config.json: it cannot be read: the Hub does not give it" in unfetched(found)
    assert checkpoints.evidence(found, "now") == []


def test_who_is_busy_is_asked_again(hub: FakeHub, folder: Path) -> None:
    hub.once("/revision/", Reply(429, {"Retry-After": "0"}), Reply(503))
    hub.once("/tree/", Reply(429, {"RateLimit": '"api";r=0;t=0'}), Reply(500))
    hub.once(SHARDS[2], Reply(502), Reply(429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}))
    assert told(remote()) == told(local(folder))


def test_one_file_that_stays_refused_does_not_spoil_the_others(hub: FakeHub) -> None:
    hub.always(SHARDS[0], Reply(500), "store")
    for name in SHARDS[5:]:
        hub.once(f"{COMMIT}/{name}", Reply(503))
    found = remote()
    assert found.content.tensors == 19
    assert unfetched(found).count("it cannot be read") == 1


# --- listings ---


def entry(path: object, **more: Any) -> dict[str, Any]:
    return {"type": "file", "oid": "1" * 40, "size": 5, "path": path, **more}


def test_names_that_lead_elsewhere_and_sizes_that_are_none_are_left_out(hub: FakeHub) -> None:
    hub.listing = [
        *(entry(name) for name in ("../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "")),
        *(entry(name) for name in (7, None, "x\0.safetensors", "x\n.safetensors", "y" * 2000)),
        *([], None, "x", {"path": "z.safetensors"}, {"type": "file"}, entry("z", type="link")),
        *(entry(f"s{n}.safetensors", size=size) for n, size in enumerate((-1, 2**70, "5", None, 1.5, True))),
        entry("whole.safetensors", lfs={"oid": "../../etc"}),
    ]
    found = checkpoints.read(PLACE)[0]
    assert [part.name for part in found.parts] == [
        *(f"s{n}.safetensors" for n in range(6)),
        "whole.safetensors",
    ]
    assert [part.size for part in found.parts] == [None] * 6 + [5]
    assert {part.trouble for part in found.parts[:6]} == {"the Hub tells no size of it"}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (json_reply({"a": 1}), "its listing is no list"),
        (Reply(200, {}, b"<html>"), "its answer is no JSON"),
        (Reply(200, {}, b"[" * 100_000), "its answer is no JSON"),
        (Reply(200, {}, b" " * 2**20, endless=True), "an answer of more than 16,777,216 bytes"),
        (json_reply([entry(f"{n}") for n in range(100_001)]), "more than 100,000 names"),
        (Reply(200, {"Link": '</x?cursor=1>; rel="next"'}, b"[]"), "goes in a circle"),
        (Reply(200, {}, b"[]", declared=10), "broke off"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_listing_that_is_none_is_refused_in_a_line(hub: FakeHub, reply: Reply, words: str) -> None:
    hub.always("/tree/", reply)
    with pytest.raises(UsageError) as refused:
        remote()
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_pages_without_an_end_come_to_one(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "_MOST_PAGES", 30)

    def more(request: Request, right: Reply) -> Reply | None:
        if "/tree/" not in request.path:
            return None
        return Reply(200, {"Link": f'<?cursor={len(hub.requests)}>; rel="next"'}, b"[]")

    hub.spoil.append(more)
    with pytest.raises(UsageError, match="more than 100,000 names"):
        remote()
    assert len(hub.requests) == 31


def test_the_next_page_is_asked_of_the_hub_itself(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror may pass on links to the Hub that it mirrors; and a link gets nobody the token."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.page = 4

    def elsewhere(request: Request, right: Reply) -> Reply | None:
        if "Link" in right.headers:
            right.headers["Link"] = right.headers["Link"].replace(hub.endpoint, "https://other.invalid")
        return None

    hub.spoil.append(elsewhere)
    assert told(remote()) == told(local(folder))


# --- refusals ---


@pytest.mark.parametrize(
    ("place", "settings", "environment", "words"),
    [
        (
            "hf://maker/other",
            {},
            {},
            "no such repository, or it is private: check the name, and set HF_TOKEN",
        ),
        ("hf://maker/other", {}, {"HF_TOKEN": TOKEN}, "the token that is set gives no access"),
        (PLACE, {"token": "hf_right"}, {}, "set HF_TOKEN"),
        (PLACE, {"gated": True}, {}, "is gated: accept its terms on"),
        (PLACE, {"gated": True}, {"HF_TOKEN": TOKEN}, "with the account whose token is set"),
        (f"{PLACE}@v9", {}, {}, "no revision 'v9'; give a branch, a tag or a commit"),
        (f"{PLACE}/nowhere", {}, {}, "no folder and no file 'nowhere'"),
        (f"{PLACE}/LICENSE", {}, {}, "no folder and no file 'LICENSE'"),
        (f"{PLACE}/bare", {}, {}, "no .safetensors and no .gguf file"),
        (PLACE, {}, {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        (PLACE, {}, {"HF_ENDPOINT": "file:///etc"}, "HF_ENDPOINT is no address"),
        (PLACE, {}, {"HF_TOKEN": f"{TOKEN} {TOKEN}"}, "HF_TOKEN: what it holds is no token"),
    ],
)
def test_what_cannot_be_had_is_refused_in_a_line(
    hub: FakeHub,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    settings: dict[str, Any],
    environment: dict[str, str],
    words: str,
) -> None:
    (folder / "bare").mkdir()
    (folder / "bare" / "README.md").touch()
    for name, value in settings.items():
        setattr(hub, name, value)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        remote(place)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_names_with_strange_letters_are_asked_for_as_they_are(hub: FakeHub, folder: Path) -> None:
    place = folder / "a b#%?é"
    place.mkdir()
    (place / "ü %2F#.safetensors").write_bytes(safetensors_bytes({"a": ("U8", (3,))}))
    assert told(remote(f"{PLACE}/a b#%?é")) == told(local(place))


def test_a_refusal_that_names_no_reason(hub: FakeHub) -> None:
    hub.always("/revision/", error(404, ""))
    with pytest.raises(UsageError, match="no such repository"):
        remote()
    hub.spoil.clear()
    hub.always("/revision/", json_reply({"sha": "../../x"}))
    with pytest.raises(UsageError, match="it tells no commit"):
        remote()
