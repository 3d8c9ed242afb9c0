"""Emulated machines: QEMU without KVM boots the image with a given shape, runs commands, and says what came.

Bandwidth in such a machine means nothing, and node 1 is as fast as node 0: tests ask for counts, places and
proofs, never for speed.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import image
import pytest
from attrs import frozen

KERNEL_VARIABLE = "K3GATE_TEST_KERNEL"
SECONDS = 420
"""No boot lasts longer; on two cores that others use as well, the longest took 220."""
_COMMAND_LINE = 2000  # the kernel cuts what is longer than 2,048 bytes
_PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "mke2fs": "e2fsprogs"}


@frozen
class Answers:
    """What a guest sent: the files that its job left, among them NAME.code, NAME.out and NAME.err of each command."""

    files: Mapping[str, bytes]

    def json(self, name: str) -> Any:
        """The document on stdout of a command, which must have succeeded."""
        code, out, err = (
            self.files[f"{name}.{end}"].decode(errors="replace") for end in ("code", "out", "err")
        )
        assert code.strip() == "0", f"{name} ended with {code}{err[-2000:]}{out[-1000:]}"
        return json.loads(out)


@frozen
class Emulator:
    """All that a boot needs."""

    qemu: str
    kernel: Path
    image: Path
    folder: Path
    mke2fs: str

    def boot(self, name: str, shape: Sequence[str], job: str, removed: str | None = None) -> Answers:
        """Boots a machine of this shape and runs a job there: shell, with lines `run NAME COMMAND...`.

        `removed`: the id of a device that is unplugged as soon as the guest says REMOVE on its console. The test fails
        where the guest does not come to the end of its job within the limit.
        """
        console, answer = self.folder / f"{name}.console", self.folder / f"{name}.answer"
        packed = base64.b64encode(gzip.compress(job.encode(), mtime=0)).decode()
        words = f"console=ttyS0 quiet panic=-1 root=/dev/nvme0n1 rootwait rw init=/init -- {packed}"
        assert len(words) < _COMMAND_LINE, "the job is too long for the kernel's command line"
        command = [self.qemu, "-accel", "tcg,thread=multi", "-cpu", "max", "-M", "q35", "-nodefaults"]
        command += ["-display", "none", "-no-reboot", "-kernel", str(self.kernel), "-append", words]
        command += ["-serial", f"file:{console}", "-serial", f"file:{answer}", *shape]
        # Writes of the guest go to a temporary file, so that every boot finds the same image.
        command += ["-drive", f"file={self.image},if=none,id=root,format=raw,snapshot=on"]
        command += ["-device", "nvme,drive=root,serial=root,bus=pcie.0"]
        if removed is not None:
            control = self.folder / f"{name}.qmp"
            command += ["-qmp", f"unix:{control},server=on,wait=off"]
            threading.Thread(target=_unplug, args=(console, control, removed), daemon=True).start()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
            end = f"ended with {done.returncode} {done.stderr[-1000:]}"
        except subprocess.TimeoutExpired:
            end = f"was ended after {SECONDS} s"
        # QEMU ends with 0 after a panic too: only the last line tells that the guest came to the end.
        text = answer.read_text(errors="replace") if answer.exists() else ""
        found = re.fullmatch(r"BEGIN\n(.*)\nRC (\d+)\n", text, re.DOTALL)
        if found is None:
            tail = console.read_text(errors="replace")[-3000:] if console.exists() else ""
            pytest.fail(f"the guest {name} gave no answer; QEMU {end}\n{tail}", pytrace=False)
        return Answers(_unpacked(base64.b64decode(found[1])))


def _unplug(console: Path, control: Path, device: str) -> None:
    """Asks QEMU's monitor (QMP) to unplug a device once the guest's console says so, or gives up with the boot."""
    until = time.monotonic() + SECONDS
    while not (console.exists() and b"REMOVE" in console.read_bytes()):
        if time.monotonic() > until:
            return
        time.sleep(0.1)
    with socket.socket(socket.AF_UNIX) as monitor, monitor.makefile("rwb") as lines:
        monitor.connect(str(control))
        lines.readline()  # its greeting
        for order in (
            {"execute": "qmp_capabilities"},
            {"execute": "device_del", "arguments": {"id": device}},
        ):
            lines.write(json.dumps(order).encode() + b"\n")
            lines.flush()
            lines.readline()


def _unpacked(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        return {
            Path(member.name).name: file.read()
            for member in packed
            if (file := packed.extractfile(member)) is not None
        }


def emulator(folder: Path) -> Emulator:
    """Builds the image; skips where a tool or the kernel is missing, and fails for it where CI is set."""
    if platform.machine() != "x86_64":
        pytest.skip("the emulated machines run the interpreter of this one, and have x86-64 processors")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    tools = {tool: shutil.which(tool, path=path) for tool in _PACKAGES}
    missing = [_PACKAGES[tool] for tool, found in tools.items() if found is None]
    kernel = _kernel()
    if missing:
        _lacking(f"apt-get install {' '.join(missing)}")
    if kernel is None:
        _lacking(f"tests/emulated/fetch-kernel, or {KERNEL_VARIABLE}=FILE names a kernel")
    mke2fs = str(tools["mke2fs"])
    made = image.build(folder, str(tools["busybox"]), mke2fs, modules_of(kernel))
    return Emulator(str(tools["qemu-system-x86_64"]), kernel, made, folder, mke2fs)


PERSISTENT = ("libnvdimm", "nd_btt", "nd_pmem", "nfit")
"""The modules that persistent memory needs, in the order in which they are loaded."""


def modules_of(kernel: Path) -> list[Path]:
    """The files of these modules, which are unpacked beside the folder of the kernel; as many as are there."""
    version = kernel.name.removeprefix("vmlinuz-")
    folder = kernel.parent.parent / "lib/modules" / version / "kernel/drivers"
    return [found for name in PERSISTENT for found in folder.rglob(f"{name}.ko")]


def _kernel() -> Path | None:
    named = os.environ.get(KERNEL_VARIABLE)
    if named:
        return Path(named)
    return max((image.REPOSITORY / "build/kernel/boot").glob("vmlinuz-*"), default=None)


def _lacking(remedy: str) -> Any:
    text = f"emulated machines need: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


Figures = Mapping[tuple[int, int], tuple[int, int]]
"""What the firmware tells of reading: (node with CPUs, node with memory) -> (ns, GiB/s)."""


@frozen
class Node:
    """A NUMA node: MiB of memory (None: it has none), its CPUs, and the node whose CPUs are nearest (HMAT)."""

    memory: int | None
    cpus: Sequence[int] = ()
    initiator: int | None = None


def shape(*nodes: Node, near: Sequence[tuple[int, int]] = (), figures: Figures | None = None) -> list[str]:
    """QEMU's options for a machine of these nodes, each with as many CPUs as another, or none.

    Nodes of a pair in `near` are at distance 17, other ones at 31.
    """
    count = sum(len(node.cpus) for node in nodes)
    sockets = sum(bool(node.cpus) for node in nodes)
    options = ["-m", f"{sum(node.memory or 0 for node in nodes)}M"]
    options += ["-smp", f"{count},sockets={sockets},cores={count // sockets},threads=1"]
    for number, node in enumerate(nodes):
        described = [f"node,nodeid={number}", *(f"cpus={cpu}" for cpu in node.cpus)]
        if node.memory is not None:
            options += ["-object", f"memory-backend-ram,size={node.memory}M,id=memory{number}"]
            described.append(f"memdev=memory{number}")
        if node.initiator is not None:
            described.append(f"initiator={node.initiator}")
        options += ["-numa", ",".join(described)]
    for one, other in combinations(range(len(nodes)), 2):
        distance = 17 if (one, other) in near else 31
        options += ["-numa", f"dist,src={one},dst={other},val={distance}"]
    for (source, target), (latency, bandwidth) in (figures or {}).items():
        pair = f"hmat-lb,initiator={source},target={target},hierarchy=memory,data-type="
        options += ["-numa", f"{pair}access-latency,latency={latency}"]
        options += ["-numa", f"{pair}access-bandwidth,bandwidth={bandwidth}G"]
    return options + (["-M", "hmat=on"] if figures else [])
