"""A system's file is read strictly: one line says what is wrong and where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.analysis import system_file
from k3gate.errors import UsageError

LEAST = 'name = "x"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "name is missing"),
        ("name = 3", "name must be a text"),
        (LEAST + "nodes = 0", "nodes must be a whole number from 1"),
        (
            LEAST + "[memory]\nmodules = 24\nmodule_gib = 64\nmst = 1",
            "memory: key 'mst' is unknown; did you mean 'mts'?",
        ),
        (LEAST + "[memory]\nmodules = 24", "memory: module_gib is missing"),
        (LEAST + "[memory]\nmodules = 24\nmodule_gib = 64\nmodule_gb = 64", "are both given"),
        (LEAST + "[memory]\nmodules = 24\nmodule_gib = 64\nslots = 16", "24 do not fit on 16 slots"),
        (LEAST + "[memory]\nmodules = 2\nmodule_gib = 64\npopulated_channels = 4", "more than 2 modules"),
        (LEAST + "gpu = 3", "gpu must be a list of tables: write it as [[gpu]]"),
        (LEAST + "[[gpu]]\nmodel = 'a'", "gpu 1: memory_gib is missing"),
        (LEAST + "[[tier]]\nkind = 'tape'\ngib = 1", "'tape' is unknown"),
        (LEAST + "[[tier]]\nkind = 'cxl'", "or gb must be given"),
        (LEAST + "[cpu]\nisa = 'avx1024'", "'avx1024' is unknown"),
        (LEAST + "[placement]\ntrunk = 'attic'", "'attic' is unknown"),
        (LEAST + "[precision]\ntrunk = 'q5'", "'q5' is unknown"),
        (LEAST + "[precision]\ntrunk = 900", "0.5 to 64 bits"),
        (LEAST + "[hot_experts]\nper_layer = 3\ncurve = [[5, 0.5], [4, 0.6]]", "curve must be a rising list"),
        (LEAST + "[hot_experts]\nper_layer = 3\ncurve = [[5, 1.5]]", "curve must be a rising list"),
        (LEAST + "[prices]\nutilisation = 1.5", "at most 1"),
        (LEAST + "[measured]\ndram_gb_per_s = 5", "source is missing"),
        (LEAST + "[claims.a]\nkind = 'decode'\nvalue = 3", "claims, a: source is missing"),
        (LEAST + "[claims.a]\nkind = 'speed'\nvalue = 3\nsource = 's'", "'speed' is unknown"),
        (LEAST + "[claims.a]\nkind = 'decode'\nsource = 's'", "or low and high instead"),
        (LEAST + "[claims.a]\nkind = 'decode'\nlow = 5\nhigh = 3\nsource = 's'", "5 is above high, 3"),
        (
            LEAST + "[claims.a]\nkind = 'decode'\nvalue = 1\nsource = 's'\npremises = { moon = 1 }",
            "'moon' is unknown",
        ),
        (LEAST + "[model]\npath = 'a'\n[model.stated]\nname = 'b'", "are both given"),
        (LEAST + "[model.stated]\nname = 'b'\nsource = 's'", "group is missing"),
        (LEAST + "notes = 3", "notes must be a list of texts"),
        (LEAST + "[reserve]\nos_gib = -1", "must not be below 0"),
        ("name = ", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        system_file.read(text, "box.toml")
    message = str(error.value)
    assert told in message and "box.toml" in message and "\n" not in message


@given(st.text(max_size=200))
def test_any_text_is_a_system_or_one_line(text: str) -> None:
    try:
        system_file.read(text, "box.toml")
    except UsageError as error:
        assert "\n" not in str(error)


VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.booleans(),
    st.lists(st.integers(), max_size=3),
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["cpu", "memory", "gpu", "tier", "storage", "network", "line", "runtime", "claims", "model"]
        ),
        st.one_of(
            VALUES,
            st.dictionaries(st.sampled_from(["modules", "module_gib", "mts", "model", "stated"]), VALUES),
        ),
    )
)
def test_any_table_is_a_system_or_one_line(data: dict[str, Any]) -> None:
    try:
        system_file.of_table("", {"name": "x", **data}, "box.toml")
    except UsageError as error:
        assert "\n" not in str(error)


def test_a_placement_on_what_is_not_there_is_refused(plan: Any) -> None:
    with pytest.raises(UsageError, match="trunk is to lie in GPU memory, and the file names none"):
        plan('name = "x"\n[memory]\nmodules = 1\nmodule_gib = 1\n[placement]\ntrunk = "gpu"')
    with pytest.raises(UsageError, match="names no memory at all"):
        plan('name = "x"')


def test_units_become_base_units() -> None:
    found = system_file.read(
        """name = "x"
[cpu]
ghz = 2.5
[network]
gb_per_s = 50
latency_us = 3
[line]
gbit_per_s = 8
[memory]
modules = 2
module_gib = 1
[[gpu]]
model = "g"
memory_gb = 96
tflops = 2
[claims.a]
kind = "bandwidth"
value = 3
source = "s"
""",
        "box.toml",
    )
    assert (found.hertz, found.network_bytes_per_s, found.network_seconds) == (2.5e9, 50e9, 3e-6)
    assert found.line_bytes_per_s == 1e9 and found.memory.bytes == 2 * 2**30
    assert (found.gpus[0].bytes, found.gpus[0].flops) == (96 * 10**9, 2e12)
    assert found.claims[0].low == 3e9
