"""What `make` needs before it can set anything up; prints the one line that installs what is missing."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    if sys.version_info < (3, 11):
        have = ".".join(map(str, sys.version_info[:3]))
        print(
            f"k3gate needs Python 3.11 or newer, this is {have}: make PYTHON=python3.11 ...", file=sys.stderr
        )
        return 1
    packages = []
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        packages.append("python3-venv")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        packages.append("python3-dev")
    if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        packages.append("g++")
    if packages:
        print(
            f"Missing: {', '.join(packages)}. Install with: apt-get install {' '.join(packages)}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
