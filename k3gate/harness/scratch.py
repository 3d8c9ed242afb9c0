"""Files that the workers of a run share: made without a name, so that nothing is left however the run ends.

The parent alone holds them open between workers. Where it ends, by Ctrl-C or SIGKILL too, the kernel gives their
bytes back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from k3gate.records import Case

PARAMETER = "scratch"
"""Of a case: the folders in which its files lie."""
_NAME = ".k3gate-scratch-"
_ABANDONED_S = 60.0
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""What a file system says that knows no files without a name."""


class Scratch:
    """An empty file in each folder that a case names; `files`: descriptors by folder, or a negative errno."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._folders = dict.fromkeys(
            folder for case in cases for folder in case.parameters.get(PARAMETER) or ()
        )
        self.files: dict[str, int] = {}

    def __enter__(self) -> Scratch:
        for folder in self._folders:
            try:
                self.files[folder] = _make(folder)
            except OSError as error:
                self.files[folder] = -(error.errno or errno.EIO)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self.files.values():
            if descriptor >= 0:
                os.close(descriptor)
        self.files.clear()


def sweep(folder: str) -> int:
    """Remove what a run left that was killed between making a file and taking its name away; returns how many.

    Only files of the very form that such a kill leaves: of this name, of this user, empty, and older than any run
    needs between the two. What cannot be listed or removed stays.
    """
    removed = 0
    with contextlib.suppress(OSError):
        for path in Path(folder).glob(f"{_NAME}*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                old = time.time() - found.st_mtime > _ABANDONED_S
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_size and old:
                    path.unlink()
                    removed += 1
    return removed


def _make(folder: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(folder, os.O_TMPFILE | flags, 0o600)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
    sweep(folder)
    # Named for a moment, empty and of our own: O_EXCL follows no link and takes no file that is there.
    path = Path(folder) / f"{_NAME}{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | flags, 0o600)
    try:
        path.unlink()
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
