"""One revision of a repository on a Hub: its commit, what is in its folders, and bytes of its files by position.

The Hub's API: https://huggingface.co/docs/hub/api (revision, tree) and "resolve", from which files are fetched.
All that it answers is hostile text: names are checked, numbers bounded, and lengths held against what was asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import orjson
from attrs import frozen

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.model.checkpoint.hub import access
from k3gate.model.checkpoint.hub.access import Access
from k3gate.model.checkpoint.hub.address import Address, is_path
from k3gate.model.checkpoint.hub.transport import BUSY, Answer, NoAnswerError, Transport, asked_wait
from k3gate.model.checkpoint.readers import MOST_NAMES

_PAGE_BYTES = 16 * 2**20
_MOST_PAGES = 500
_MOST_FOLDERS = 64
_RESUMPTIONS = 8
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r'<([^<>]{1,4096})>\s*;[^<>,]*\brel\s*=\s*"?next\b')
_PART = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


@frozen
class Entry:
    """What a folder of the repository holds. `size` in bytes, None for a folder or where none is told; `sha256`
    of those files that the Hub keeps by it."""

    name: str
    is_folder: bool
    size: int | None = None
    sha256: str | None = None


class Repository:
    """A repository at the commit that its address meant when it was opened; `place` is the address as it was given.

    `UsageError` where the Hub cannot be reached, has no such repository or revision, or does not give it to this
    user.
    """

    def __init__(self, place: str, address: Address, by: Access | None = None) -> None:
        self.place = printable(place)
        self.address = address
        self._access = by if by is not None else access.from_environment()
        self._transport = Transport(self._access)
        self._folders: dict[str, dict[str, Entry] | None] = {}
        self.commit = self._commit()

    def close(self) -> None:
        """Make an end of what other threads fetch."""
        self._transport.close()

    def _commit(self) -> str:
        revision = quote(self.address.revision, safe="")
        answer = self._ask(f"/api/models/{self.address.repository}/revision/{revision}?expand=sha")
        if answer.status != 200:
            raise self._refused(answer)
        told = self._json(answer)
        commit = told.get("sha") if isinstance(told, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise self._strange("it tells no commit")
        return commit

    # --- folders ---

    def folder(self, path: str) -> Mapping[str, Entry] | None:
        """What is in a folder, by name; None where there is no such folder.

        Names that lead elsewhere are left out. `UsageError` where the Hub does not tell, or tells without an end.
        """
        if path not in self._folders:
            if len(self._folders) >= _MOST_FOLDERS:
                return None
            self._folders[path] = self._listed(path)
        return self._folders[path]

    def _listed(self, path: str) -> dict[str, Entry] | None:
        tree = f"/api/models/{self.address.repository}/tree/{self.commit}"
        base = f"{tree}/{quote(path)}" if path else tree
        found: dict[str, Entry] = {}
        seen: set[str] = set()
        query = "recursive=false&expand=false"
        told = 0
        for _ in range(_MOST_PAGES):
            answer = self._ask(f"{base}?{query}")
            if answer.status == 404 and answer.headers.get("X-Error-Code") == "EntryNotFound":
                return None
            if answer.status != 200:
                raise self._refused(answer)
            page = self._json(answer)
            if not isinstance(page, list):
                raise self._strange("its listing is no list")
            told += len(page)
            if told > MOST_NAMES:
                break
            for one in page:
                entry = _entry(one, path)
                if entry is not None:
                    found[entry.name] = entry
            query = _next(answer.headers)
            if not query:
                return found
            if query in seen:
                raise self._strange("its listing goes in a circle")
            seen.add(query)
        raise UsageError(
            f"{self.place}: the Hub lists more than {MOST_NAMES:,} names; give a folder or a file of it"
        )

    # --- files ---

    def fetch(self, path: str, offset: int, length: int, size: int) -> bytes:
        """`length` bytes from `offset` of a file of `size` bytes, by range requests, as many as it takes.

        `OSError` where they are not given; `UsageError` where the Hub gives none of the repository's files.
        """
        url = f"{self._access.endpoint}/{self.address.repository}/resolve/{self.commit}/{quote(path)}"
        got = bytearray()
        for _ in range(_RESUMPTIONS):
            begin = offset + len(got)
            asked = {"Range": f"bytes={begin}-{offset + length - 1}"}
            answer = self._transport.get(url, asked, length - len(got), partial=True)
            got += self._part(answer, begin, size)
            if len(got) >= length:
                return bytes(got)
        raise OSError(f"the answer broke off after {len(got):,} of {length:,} bytes")

    def _part(self, answer: Answer, begin: int, size: int) -> bytes:
        """The body of an answer, if it is the part that was asked for, or a whole file that begins with it."""
        who = "the Hub" if answer.home else "the Hub's store"
        if answer.status == 206:
            match = _PART.fullmatch(answer.headers.get("Content-Range", "").strip())
            if match is None or int(match[1]) != begin or int(match[2]) < begin:
                raise OSError(f"{who} sends another part of the file than it was asked for")
            _same_size(who, match[3], size)
            return answer.body[: int(match[2]) + 1 - begin]
        if answer.status == 200:
            # A server that knows no ranges: the beginning will do, and no more than that was read.
            if begin:
                raise OSError(f"{who} sends whole files alone, not parts of them")
            _same_size(who, answer.headers.get("Content-Length", "*"), size)
            return answer.body
        if answer.home and (answer.status == 401 or answer.headers.get("X-Error-Code") == "GatedRepo"):
            raise self._refused(answer)
        if answer.status == 404:
            raise OSError(f"{who} lists it and does not have it (404)")
        raise OSError(f"{who} does not give it: {_status(answer)}")

    # --- answers ---

    def _ask(self, path: str) -> Answer:
        try:
            return self._transport.get(f"{self._access.endpoint}{path}", {}, _PAGE_BYTES)
        except NoAnswerError as error:
            raise UsageError(
                f"{self.place}: no answer from {self._access.endpoint} ({error}): check the network, and HF_ENDPOINT "
                "if it is set; or fetch the files and give their folder"
            ) from error

    def _json(self, answer: Answer) -> Any:
        if answer.more:
            raise self._strange(f"an answer of more than {_PAGE_BYTES:,} bytes")
        try:
            return orjson.loads(answer.body)
        except ValueError:
            raise self._strange("its answer is no JSON") from None

    def _strange(self, what: str) -> UsageError:
        return UsageError(
            f"{self.place}: {self._access.endpoint} does not answer as the Hub does ({what}): check HF_ENDPOINT"
        )

    def _refused(self, answer: Answer) -> UsageError:
        """Why the Hub refuses a repository or a revision, in one line."""
        code = answer.headers.get("X-Error-Code", "")
        has_token = self._access.token is not None
        if code == "RevisionNotFound":
            revision = printable(self.address.revision)
            return UsageError(
                f"{self.place}: the repository has no revision {revision!r}; give a branch, a tag or a commit after @"
            )
        if code == "GatedRepo":
            token = "with the account whose token is set" if has_token else "and set HF_TOKEN"
            page = f"{self._access.endpoint}/{self.address.repository}"
            return UsageError(f"{self.place}: the repository is gated: accept its terms on {page} {token}")
        if answer.status in (401, 403, 404):
            token = "the token that is set gives no access to it: check the name and HF_TOKEN"
            no_token = "it is private: check the name, and set HF_TOKEN if it is private or gated"
            return UsageError(
                f"{self.place}: the Hub has no such repository, or {token if has_token else no_token}"
            )
        return UsageError(
            f"{self.place}: the Hub refuses: {_status(answer)}; try again later, or give a folder with the files"
        )


def _entry(told: object, folder: str) -> Entry | None:
    """An entry of a listing; None for what is no name in the folder."""
    if not isinstance(told, dict):
        return None
    path, size, large = told.get("path"), told.get("size"), told.get("lfs")
    prefix = f"{folder}/" if folder else ""
    if not isinstance(path, str) or not path.startswith(prefix) or not is_path(path):
        return None
    name = path[len(prefix) :]
    if not name or "/" in name:
        return None
    if told.get("type") == "directory":
        return Entry(name, True)
    if told.get("type") != "file":
        return None
    digest = large.get("oid") if isinstance(large, dict) else None
    return Entry(
        name,
        False,
        size if type(size) is int and 0 <= size < 2**63 else None,
        digest if isinstance(digest, str) and _SHA256.fullmatch(digest) else None,
    )


def _next(headers: Mapping[str, str]) -> str:
    """The query of the next page; of the link nothing else is used, so that it leads to no other place."""
    match = _NEXT.search(headers.get("Link", ""))
    if match is None:
        return ""
    try:
        return urlencode(parse_qsl(urlsplit(match[1]).query, max_num_fields=20))
    except ValueError:
        return ""


def _same_size(who: str, told: str, size: int) -> None:
    if told.isascii() and told.isdigit() and int(told[:20]) != size:
        raise OSError(f"the Hub lists a file of {size:,} bytes, and {who} sends one of {int(told[:20]):,}")


def _status(answer: Answer) -> str:
    if answer.status in BUSY:
        wait = asked_wait(answer.headers)
        if wait:
            return f"it asks to come again in {wait:.0f} s ({answer.status})"
        return f"it is busy ({answer.status})"
    return f"status {answer.status}"
