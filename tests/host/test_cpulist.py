"""CPU lists and masks of the kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.host import cpulist
from k3gate.units import cpu_list


@pytest.mark.case("TOP-08")
def test_ids_beyond_1024() -> None:
    """TOP-08: id 1535 is parsed, in a list and in a mask."""
    assert cpulist.parse("0-1535") == tuple(range(1536))
    assert cpulist.parse("0-3,1535") == (0, 1, 2, 3, 1535)
    mask = "80000000" + ",00000000" * 46 + ",00000001"
    assert cpulist.parse_mask(mask) == (0, 1535)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("", ()), ("\n", ()), ("0\n", (0,)), ("0-109,111", (*range(110), 111)), ("0,8", (0, 8)), ("3-3", (3,))],
)
def test_lists(text: str, ids: tuple[int, ...]) -> None:
    assert cpulist.parse(text) == ids


@pytest.mark.parametrize(("text", "ids"), [("3", (0, 1)), ("00000000,0000010f", (0, 1, 2, 3, 8)), ("0", ())])
def test_masks(text: str, ids: tuple[int, ...]) -> None:
    assert cpulist.parse_mask(text) == ids


@pytest.mark.parametrize("text", ["a", "-1", "3-1", "1,,2", "0-999999999", "0-", "1;2", "٣", "0x3", "16384"])
def test_refuses_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpulist.parse(text)


@pytest.mark.parametrize("text", ["", "zz", "1,2", "-1", "f" * 200_000, "0x1", "1" + ",00000000" * 600])
def test_refuses_what_is_no_mask(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpulist.parse_mask(text)


@given(st.sets(st.integers(0, cpulist.LIMIT - 1), max_size=200))
def test_list_and_mask_give_back_what_was_written(ids: set[int]) -> None:
    expected = tuple(sorted(ids))
    assert cpulist.parse(cpu_list(expected) if ids else "") == expected
    bits = f"{sum(1 << i for i in ids):x}"
    bits = bits.zfill(-(-len(bits) // 8) * 8)
    assert cpulist.parse_mask(",".join(bits[i : i + 8] for i in range(0, len(bits), 8))) == expected


@given(st.one_of(st.text(max_size=60), st.text("0123456789-,\n abcdef", max_size=60)))
def test_any_text_is_a_bounded_list_or_refused(text: str) -> None:
    for parse in (cpulist.parse, cpulist.parse_mask):
        try:
            ids = parse(text)
        except ValueError:
            continue
        assert len(ids) <= cpulist.LIMIT
        assert list(ids) == sorted(set(ids))
        assert all(0 <= i < cpulist.LIMIT for i in ids)
