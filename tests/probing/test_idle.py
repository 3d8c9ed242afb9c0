from __future__ import annotations

from pathlib import Path

import pytest

from k3gate.probing import idle


def reading(line: str, own: float) -> idle.Reading:
    return idle.Reading(idle.parse(f"{line}\ncpu0 1 1 1 1 1 1 1 1 0 0\n"), own)


def test_shares_are_of_all_cpu_time_less_our_own() -> None:
    before = reading("cpu 100 0 100 1000 0 0 0 50 30 0", 10.0)
    after = reading("cpu 500 10 200 1400 30 5 5 100 70 0", 14.0)
    # 400 + 10 + 100 + 5 + 5 busy, of which 400 ticks ours; 400 idle, 30 waiting, 50 stolen: 1000 in all.
    shares = idle.shares(before, after, ticks_per_second=100)
    assert shares == idle.Shares(pytest.approx(0.12), pytest.approx(0.05), None)


def test_rounding_of_ticks_gives_no_negative_share() -> None:
    shares = idle.shares(
        reading("cpu 0 0 0 0 0 0 0 0", 0.0), reading("cpu 1 0 0 9 0 0 0 0", 0.012), ticks_per_second=100
    )
    assert shares.other == 0.0


@pytest.mark.parametrize(
    "text", ["", "cpu\n", "cpu 1 2 3 4\n", "cpu a b c d e f g h\n", "cpu -1 0 0 0 0 0 0 0\n"]
)
def test_a_line_that_is_none_is_unknown_and_never_zero(text: str, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    bad = idle.read(tmp_path)
    assert bad.ticks is None
    shares = idle.shares(bad, reading("cpu 1 0 0 9 0 0 0 0", 0.0))
    assert shares.other is None and shares.steal is None and "no line of all CPUs" in shares.reason


def test_a_missing_file_and_standing_counters_have_a_reason(tmp_path: Path) -> None:
    assert "cannot be read" in idle.read(tmp_path).reason
    same = reading("cpu 1 0 0 9 0 0 0 0", 0.0)
    assert idle.shares(same, same) == idle.Shares(None, None, "the CPU times of this system do not advance")


def test_the_live_system_is_read() -> None:
    before = idle.read()
    assert before.ticks is not None and before.own_seconds > 0
