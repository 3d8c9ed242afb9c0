"""What versions of runtimes say, and when they say nothing."""

from __future__ import annotations

import pytest

from k3gate.serving import versions


@pytest.mark.case("RUN-01")
@pytest.mark.parametrize(
    ("text", "number", "trusted"),
    [
        ("version: 999 (abc1234)", 999, True),
        ("version: 8514 (406f4e3f6)\nbuilt with cc (Debian 12.2.0) for x86_64-linux-gnu", 8514, True),
        ("version: 10360 (90e6a9131)", 10360, True),
        ("version: 0.1.1-dev (build 10470, commit abc1234)", 10470, True),
        ("version: 0.2.0-dev (build 1, commit ...)", 1, False),
        ("b6432", 6432, True),
        ("version: 0 (unknown)", None, False),
        ("b4501-667d7284", 4501, True),
        ("llama-server: command failed", None, False),
        ("", None, False),
    ],
)
def test_run_01_builds_of_llama_cpp_are_told_in_several_ways(
    text: str, number: int | None, trusted: bool
) -> None:
    build = versions.llama_build(text)
    assert (build.number, build.trusted) == (number, trusted)


@pytest.mark.case("RUN-01")
def test_run_01_a_number_that_says_nothing_confirms_nothing() -> None:
    for text in ("version: 0.2.0-dev (build 1, commit ...)", "version: 0 (unknown)"):
        assert versions.build_at_least(versions.llama_build(text), 1) is None
    assert versions.build_at_least(versions.llama_build("b6432"), 6432) is True
    assert versions.build_at_least(versions.llama_build("b6432"), 6433) is False
    assert versions.llama_build("version: 0.2.0-dev (build 1, commit ...)").told == (
        "b1, a number that says nothing"
    )


@pytest.mark.case("RUN-06")
@pytest.mark.parametrize(
    ("version", "within"),
    [
        ("0.27.1", True),
        ("0.26.0", False),
        ("0.1.dev19253+g5f76ae224.d20260727", None),
        ("0.26.1rc1.dev255+g5e35a6f4f", None),
        ("0.28.0+cpu", None),
        ("0.27.0rc1", False),
        ("latest", None),
    ],
)
def test_run_06_development_and_local_builds_are_not_compared(version: str, within: bool | None) -> None:
    assert versions.within(version, ">=0.27") is within
