"""Which Hub is asked, and by whose token: from the variables and the file that the Hub's own tools use.

https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables. The token is sent to the Hub
alone; it is never stored, and no message shows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from attrs import field, frozen

from k3gate.documents import printable
from k3gate.errors import UsageError

PUBLIC = "https://huggingface.co"
_TOKEN = re.compile(r"[!-~]{1,4096}")
_TOKEN_BYTES = 8192
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


@frozen
class Access:
    """A Hub by its endpoint, without "/" at the end, and the token that it is shown, None for none."""

    endpoint: str
    token: str | None = field(default=None, repr=False)


def from_environment(variables: Mapping[str, str] = os.environ) -> Access:
    """HF_ENDPOINT, and the token of HF_TOKEN, else the one that `hf auth login` left in its file.

    `UsageError` where they hold something else, and where HF_HUB_OFFLINE forbids to ask.
    """
    if _true(variables.get("HF_HUB_OFFLINE")):
        raise UsageError(
            "HF_HUB_OFFLINE is set, so the Hub is not asked: unset it, or give a folder with the files"
        )
    endpoint = (variables.get("HF_ENDPOINT") or PUBLIC).rstrip("/")
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        good = good and not (parts.query or parts.fragment or parts.username or parts.password)
    except ValueError:
        good = False
    if not good or not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        # It is not shown: it may hold a password.
        raise UsageError("HF_ENDPOINT is no address of a Hub: write https://HOST, without name and password")
    return Access(endpoint, _token(variables))


def _token(variables: Mapping[str, str]) -> str | None:
    if _true(variables.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return None
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        token = variables.get(name, "").strip()
        if token:
            return _checked(token, name)
    path = _token_file(variables)
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None
    return _checked(token, printable(str(path))) if token else None


def _token_file(variables: Mapping[str, str]) -> Path:
    if variables.get("HF_TOKEN_PATH"):
        return Path(variables["HF_TOKEN_PATH"]).expanduser()
    if variables.get("HF_HOME"):
        return Path(variables["HF_HOME"]).expanduser() / "token"
    cache = variables.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "token"


def _checked(token: str, source: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise UsageError(f"{source}: what it holds is no token of the Hub; set it anew, or unset it")
    return token


def _true(value: str | None) -> bool:
    return (value or "").upper() in _TRUE
