"""Whether the process that writes a run is still there."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from k3gate.store.processes import Writer, current, is_gone


def proc(root: Path, stat: str | None) -> Path:
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text("boot-1\n")
    (root / "77").mkdir()
    if stat is not None:
        (root / "77/stat").write_text(stat)
    return root


def stat(name: str = "python3", state: str = "S", ticks: int = 5000) -> str:
    return f"77 ({name}) {state} " + " ".join(["1"] * 18) + f" {ticks} 0 0\n"


HERE = Writer(1, "boot-1", 9, "host-1")
WRITER = Writer(77, "boot-1", 5000, "host-1")


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (stat(), False),
        (stat(name="odd) S (name"), False),
        (stat(ticks=5001), True),
        (stat(state="Z"), True),
        (None, True),
        ("", True),
        ("77 (x) S", True),
    ],
    ids=["runs", "odd name", "number reused", "zombie", "ended", "empty", "cut"],
)
def test_a_writer_is_known_by_number_and_start(tmp_path: Path, text: str | None, gone: bool) -> None:
    assert is_gone(WRITER, HERE, proc(tmp_path, text)) is gone


def test_a_writer_of_an_earlier_boot_is_gone_and_one_of_another_machine_is_not_judged(tmp_path: Path) -> None:
    root = proc(tmp_path, stat())
    assert is_gone(attrs.evolve(WRITER, boot="boot-0"), HERE, root)
    assert not is_gone(attrs.evolve(WRITER, boot="boot-0", host="host-2"), HERE, root)
    assert is_gone(Writer(None, None, None, None), HERE, root)


def test_this_process_is_there() -> None:
    here = current()
    assert here.pid is not None
    assert here.ticks is not None
    assert not is_gone(here, here)
