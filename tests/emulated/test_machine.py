"""The emulated machines themselves: what is missing is told, and a guest that dies fails its test."""

from __future__ import annotations

from pathlib import Path

import machine
import pytest


def test_what_is_missing_is_told_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda tool, path: None if tool == "mke2fs" else tool)
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install e2fsprogs"):
        machine.emulator(tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install e2fsprogs"):
        machine.emulator(tmp_path)


def test_a_kernel_is_taken_from_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda tool, path: tool)
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine.image, "build", lambda folder, busybox, mke2fs, modules: folder / "root.img")
    monkeypatch.setattr(machine.image, "REPOSITORY", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv(machine.KERNEL_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="fetch-kernel"):
        machine.emulator(tmp_path)
    (tmp_path / "build/kernel/boot").mkdir(parents=True)
    prepared = tmp_path / "build/kernel/boot/vmlinuz-6"
    prepared.write_bytes(b"")
    assert machine.emulator(tmp_path).kernel == prepared
    monkeypatch.setenv(machine.KERNEL_VARIABLE, "/elsewhere/vmlinuz")
    assert machine.emulator(tmp_path).kernel == Path("/elsewhere/vmlinuz")


@pytest.mark.long
@pytest.mark.timeout(800)
@pytest.mark.xdist_group("emulated")
def test_a_guest_that_dies_fails_the_test_with_the_end_of_its_console(emulator: machine.Emulator) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"the guest dying gave no answer(?s:.*)Kernel panic"):
        emulator.boot("dying", machine.shape(machine.Node(512, [0])), "exit 5\n")
