"""The root file system of the emulated machines: this interpreter, k3gate as it would be installed, busybox.

The kernel mounts it from an emulated NVMe drive, for which Debian's cloud kernel has everything built in: so
there is neither an initramfs nor a module. Nothing here needs root.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parent.parent.parent
HOME = "/k3gate"
"""The virtual environment within the image."""
INIT = Path(__file__).with_name("init")
_FOLDERS = ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "proc", "sys", "dev", "tmp", "run", "root", "etc")
_NOT_OF_THE_LIBRARY = shutil.ignore_patterns(
    *("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "lib2to3", "config-*", "*.a")
)
_MIB = 2**20


def build(folder: Path, busybox: str, mke2fs: str, modules: Sequence[Path]) -> Path:
    """The image, made in an empty folder; the kernel's modules lie in /lib/modules."""
    root = folder / "root"
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    interpreter = Path(os.path.realpath(sys._base_executable))
    _put(root, interpreter)
    _standard_library(root)
    _environment(root, interpreter)
    shutil.copy2(busybox, root / "usr/bin/busybox")
    _libraries(root, interpreter)
    shutil.copy2(INIT, root / "init")
    (root / "init").chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "usr/lib/modules").mkdir()
    for module in modules:
        shutil.copy2(module, root / "usr/lib/modules")
    made = file_system(root, folder / "root.img", mke2fs)
    shutil.rmtree(root)
    return made


def _put(root: Path, file: Path) -> None:
    """Copies a file to the same path inside; with its times, since stale byte code costs 10 s in the guest."""
    inside = root / re.sub(r"^/(bin|sbin|lib|lib64)/", r"usr/\1/", str(file)).lstrip("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    if not inside.exists():
        shutil.copy2(file, inside)


def _standard_library(root: Path) -> None:
    told = {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib", vars={"platbase": sys.base_prefix}),
        sysconfig.get_config_var("DESTSHARED"),
    }
    # Outermost first: the modules in C often lie within the others.
    for folder in sorted(path for path in told if path and Path(path).is_dir()):
        inside = root / folder.lstrip("/")
        shutil.copytree(folder, inside, symlinks=True, ignore=_NOT_OF_THE_LIBRARY, dirs_exist_ok=True)


def _environment(root: Path, interpreter: Path) -> None:
    """A virtual environment that holds k3gate and what it depends on, and nothing that only tests need."""
    home = root / HOME.lstrip("/")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    (home / "bin/python").symlink_to(interpreter)
    for needed in _dependencies("k3gate", {}).values():
        for file in needed.files or ():
            if ".." not in file.parts:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(needed.locate_file(file)), target)
    _install(packages)
    command = root / "usr/bin/k3gate"
    command.write_text(f'#!/bin/sh\nexec {HOME}/bin/python -m k3gate "$@"\n')
    command.chmod(0o755)


def _dependencies(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """What a distribution needs without its extras, by name."""
    for line in distribution(name).requires or ():
        needed = Requirement(line)
        if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found[needed.name] = distribution(needed.name)
            _dependencies(needed.name, found)
    return found


def _install(packages: Path) -> None:
    """k3gate as a user gets it, from a wheel: an editable install is only a pointer to the checkout."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if all(importlib.util.find_spec(name) for name in ("scikit_build_core", "nanobind")):
        command.append("--no-build-isolation")
    # A build folder of our own, which stays: compiling takes most of the time, and must disturb no other build.
    command += ["--config-settings", "build-dir=build/emulated/{wheel_tag}", "--target", str(packages)]
    done = subprocess.run([*command, str(REPOSITORY)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _libraries(root: Path, interpreter: Path) -> None:
    """The shared libraries of all that was put inside."""
    files = [str(interpreter), str(root / "usr/bin/busybox")]
    files += [str(path) for path in root.rglob("*.so*") if path.is_file()]
    for library in dict.fromkeys(_linked(files)):
        if not library.is_relative_to(root):
            _put(root, library)


def _linked(files: list[str]) -> Iterator[Path]:
    # ldd fails for a static busybox, and names as missing what one library finds by the path of another.
    for start in range(0, len(files), 100):
        done = subprocess.run(["ldd", *files[start : start + 100]], capture_output=True, text=True)
        for match in re.finditer(r"(?:=>|^)\s+(/\S+) \(", done.stdout, re.MULTILINE):
            yield Path(match[1])


def file_system(root: Path, image: Path, mke2fs: str, size: int | None = None) -> Path:
    """An ext4 image of what lies in a folder; of `size` MiB, or with a little room."""
    size = size or sum(path.lstat().st_size + 4096 for path in root.rglob("*")) * 115 // 100 // _MIB + 64
    options = [
        "-q",
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "^has_journal",
        "-m",
        "0",
        "-i",
        "8192",
        "-d",
        str(root),
    ]
    done = subprocess.run([mke2fs, *options, str(image), f"{size}m"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return image
