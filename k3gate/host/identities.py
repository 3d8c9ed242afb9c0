"""What in the kernel's texts names this one machine, container or user; cut out before an inventory keeps it."""

from __future__ import annotations

import re

REMOVED = "(removed)"
# Arguments that hold names, addresses or identities of this one machine.
_PRIVATE = re.compile(
    r"(?i)[\w.\-]*(?:hostname|host|machine_id|uuid|serial|password|passwd|token|secret|key|mac|addr|url|user|proxy)[\w.\-]*"
    r"|ip|ifname|bootif|nfsroot|ds|rd\.iscsi.*|netroot|iscsi_.*|nameserver|domain|inst\.\w+|systemd\.setenv|autoinstall.*|rd\.live.*"
)
_IDENTITY = re.compile(
    r"(?i)(?<=UUID=)[^\s,]+|(?<=by-id/)[^\s,]+|wwn-0x[0-9a-f]+|(?<=://)[^\s,;\"']+|(?<=root=nfs:)\S+|(?<=root=nfs4:)\S+"
    r"|\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}\b|\b\d{1,3}(?:\.\d{1,3}){3}\b"
)
# A container's id, whole or cut, and the UUID of a pod, which systemd writes with underscores.
_CONTAINER = re.compile(
    r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|(?<![0-9A-Za-z])[0-9a-f]{12,}(?![0-9A-Za-z])"
)
_DIGITS = re.compile(r"[0-9a-f]")


def of_command_line(command_line: str) -> str:
    """The kernel's command line without host names, addresses, URLs, UUIDs and secrets."""
    kept: list[str] = []
    for argument in command_line.split():
        name, equals, _ = argument.partition("=")
        if equals and _PRIVATE.fullmatch(name):
            kept.append(f"{name}={REMOVED}")
        else:
            kept.append(_IDENTITY.sub(REMOVED, argument))
    return " ".join(kept)


def of_group(path: str) -> str:
    """The path of a control group with the ids of containers and pods as zeros: same length, same parts."""
    return _CONTAINER.sub(lambda match: _DIGITS.sub("0", match[0]), path)
