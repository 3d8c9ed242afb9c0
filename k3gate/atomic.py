"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` when the block ends well.

    Otherwise `path` is as it was and nothing is left beside it, also on Ctrl-C. Rights are those of a new
    file. Raises `OSError` as the system gives it.
    """
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".k3gate.")
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink(missing_ok=True)
