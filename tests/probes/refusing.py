"""Runs a command whose system calls of some names the kernel answers with EPERM, as a container's profile does.

    python refusing.py mbind,move_pages COMMAND...

A real refusal: a seccomp filter, which the command and all that it starts inherit.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

NUMBERS = {"x86_64": {"mbind": 237, "move_pages": 279}, "aarch64": {"mbind": 235, "move_pages": 239}}
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050000 | 1


def refuse(numbers: Sequence[int]) -> None:
    """Let the kernel refuse these calls to this process from now on."""
    code = [(_LOAD, 0, 0, 0)]
    code += [
        (_EQUAL, left, 0, number) for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True)
    ]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    raw = b"".join(struct.pack("HBBI", *one) for one in code)
    buffer = ctypes.create_string_buffer(raw)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert libc.prctl(_SECCOMP, _FILTER, program, 0, 0) == 0, ctypes.get_errno()


if __name__ == "__main__":
    refuse([NUMBERS[os.uname().machine][name] for name in sys.argv[1].split(",")])
    os.execvp(sys.argv[2], sys.argv[2:])
