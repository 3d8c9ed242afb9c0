"""Run clang-tidy over the native sources, where it is installed; `.ci/run` installs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import nanobind

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    tidy = shutil.which("clang-tidy")
    if tidy is None:
        if os.environ.get("CI"):
            print("clang-tidy is missing: apt-get install clang-tidy", file=sys.stderr)
            return 1
        print("clang-tidy: not installed, skipped (apt-get install clang-tidy)")
        return 0
    probes = ROOT / "probes" / "native"
    folders = (
        probes,
        probes / "decode",
        probes / "gemm",
        probes / "storage",
        ROOT / "k3gate" / "model" / "checkpoint" / "native",
    )
    sources = [source for folder in folders for source in sorted(folder.glob("*.cpp"))]
    flags = [
        "-std=c++20",
        f"-isystem{sysconfig.get_path('include')}",
        f"-isystem{nanobind.include_dir()}",
        f"-I{ROOT / 'probes' / 'native'}",
    ]
    return subprocess.run(
        [tidy, "--quiet", "--warnings-as-errors=*", *map(str, sources), "--", *flags]
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
