"""Addresses on a Hub: what is one, and what is refused."""

from __future__ import annotations

import pytest

from k3gate.errors import UsageError
from k3gate.model.checkpoint.hub.address import Address, parse


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("hf://a/b", Address("a/b")),
        ("hf://a/b/", Address("a/b")),
        ("hf://models/a/b", Address("a/b")),
        ("hf://a/b@v1", Address("a/b", "", "v1")),
        ("hf://a/b/c/d@v1", Address("a/b", "c/d", "v1")),
        ("hf://a/b/c@refs/pr/1", Address("a/b", "c", "refs/pr/1")),
        ("hf://a/b@refs/pr/1", Address("a/b", "", "refs/pr/1")),
        ("hf://a/b@refs/pr/1/c/d.gguf", Address("a/b", "c/d.gguf", "refs/pr/1")),
        ("hf://a/b@v1/c/d.gguf", Address("a/b", "c/d.gguf", "v1")),
        ("hf://a/b@feature%2Fx/c", Address("a/b", "c", "feature/x")),
        ("hf://a/b/c d/é.gguf", Address("a/b", "c d/é.gguf")),
    ],
)
def test_addresses(place: str, address: Address) -> None:
    assert parse(place) == address


@pytest.mark.parametrize(
    "place",
    [
        *("hf://", "hf://a", "hf:///a/b", "hf://a//b", "hf://a/b@", "hf://a/b@/c", "hf://a/..", "hf://../a"),
        *("hf://a/b/../c", "hf://a/b//c", "hf://a/b@..", "hf://a/b@v 1", "hf://a b/c", "hf://a/b?x=1"),
        *(
            "hf://a/b@x@y",
            "hf://a/b@x%0a",
            "hf://models/a",
            "hf://models",
            "hf://a/b\n/c",
            "hf://datasets/a/b",
        ),
        *("hf://a/b@x%2F..%2Fy", "hf://a/" + "b" * 200, "hf://a/b/" + "c" * 2000),
    ],
)
def test_what_is_no_address_is_refused_in_a_line(place: str) -> None:
    with pytest.raises(UsageError, match="hf://ORG/REPO"):
        parse(place)
