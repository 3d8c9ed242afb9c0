"""A runtime as a worker has it for a round: started and watched, or only asked; and one loop for all requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from attrs import evolve

from k3gate.errors import ProbeError, UsageError
from k3gate.probes import _storage
from k3gate.records import Labels
from k3gate.serving import client, identity, starting, tokenizers
from k3gate.serving.client import BrokenError, Endpoint, Limits, ProtocolError, ServerError, TooSlowError
from k3gate.serving.identity import Served, WantedFile
from k3gate.serving.load import Driver, Reading, Wanted
from k3gate.serving.observing import Observer
from k3gate.serving.processes import SeenFile
from k3gate.serving.server import Server

T = TypeVar("T")
_BEAT_SECONDS = 1.0
_LAST_SECONDS = 1.0
_MOST_STREAMS = 1024
UNPROVEN = "unproven"
"""The architecture of figures that nothing ties to a checkpoint."""


class Life(Protocol):
    """What a session needs of a worker's context."""

    def heartbeat(self, note: str = "") -> None:
        """Tell that work goes on."""

    def watched(
        self, name: str, unit: str, labels: Labels, times: Sequence[float], values: Sequence[float | None]
    ) -> None:
        """A piece of a series."""


class Session:
    """One round. `lost`: why nothing can be asked any more. `close` ends the server."""

    def __init__(self, parameters: Mapping[str, Any], context: Life) -> None:
        self.lost: str | None = None
        self.server: Server | None = None
        self.observer: Observer | None = None
        self.load_s: float | None = None
        self.cached_before: float | str = "not looked at"
        self.cached: float | str = "not looked at"
        self.identity = Served(None, "An endpoint does not tell which files it has open.")
        self.tokens = 0
        self.begun_own = 0
        self._context = context
        self._parameters = parameters
        self._note = ""
        self._learned = False
        self._runner = asyncio.Runner()
        self._client: Any = None
        self._driver: Driver | None = None
        try:
            self._begin()
        except (ProbeError, UsageError) as error:
            self.lost = str(error)
        except BaseException:
            self.close()
            raise

    @property
    def readings(self) -> list[Reading]:
        """All so far, one that was interrupted too."""
        return [] if self._driver is None else self._driver.readings

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it answers."""
        return None if self._driver is None else self._driver.endpoint

    @property
    def architecture(self) -> str:
        """What the figures are of: only what has the inspected files open is that checkpoint."""
        told = self._parameters["architecture"]
        return str(told) if self.identity.ok and told else UNPROVEN

    def read(self, length: int, streams: int, rounds: int = 1) -> Reading:
        """One reading. Raises `ProbeError` where not even a word was learned."""
        driver = self._driver
        assert driver is not None
        try:
            if not self._learned:
                self._await(driver.learn(self._client))
                self._learned = True
            found = self._await(driver.read(self._client, length, streams, rounds))
        except (BrokenError, ServerError, ProtocolError, TooSlowError) as error:
            self._gone()
            raise ProbeError(
                self.lost or f"the server does not answer the first question: {error}"
            ) from error
        self.tokens += sum(
            (one.computed_prompt or 0) + (one.usage.completion or one.chunks)
            for one in (*found.answers, *found.partial)
        )
        self._gone(patient=bool(found.failures))
        if self.observer is not None and self.lost is None:
            self.observer.count()
        return found

    def look(self) -> None:
        """Judge anew which files the server has open; a server may open others later."""
        if self.observer is None:
            return
        own = identity.read(self._parameters["files"])
        if not own:
            self.identity = Served(
                None, "No checkpoint was named with --checkpoint to hold what it has open against."
            )
            return
        seen = self.observer.files
        found = identity.judge(own, seen)
        programs = tuple(self._parameters["programs"])
        if found.ok and programs and not _runs(programs, seen):
            found = Served(
                None, f"{found.detail} But it does not run {Path(programs[0]).name}, which was looked at."
            )
        self.identity = found

    def print_log(self) -> None:
        """Into the worker's output, which is bounded and stored beside the case."""
        if self.server is not None:
            print(self.server.log.text())

    def flush(self) -> None:
        """Hand on what was watched."""
        for name, unit, labels, times, values in self.observer.drain() if self.observer is not None else ():
            self._context.watched(name, unit, labels, times, values)

    def close(self) -> None:
        """End the server and all that belongs to it."""
        if self.server is not None:
            self.server.stop(lambda: self._context.heartbeat("ending the server"))
        if self.observer is not None:
            self.observer.close()
        with contextlib.suppress(RuntimeError):
            if self._client is not None:
                self._runner.run(self._client.aclose())
            self._runner.close()

    def _begin(self) -> None:
        told, key = self._parameters, client.key_of()
        limits = Limits(first_token_s=float(told["first_token_s"]), idle_s=float(told["idle_s"]))
        if told["command"] is None:
            endpoint = self._endpoint(key, limits)
        else:
            files = identity.read(told["files"])
            self.cached_before = in_page_cache(files)
            drop(files)
            self.cached = in_page_cache(files)
            self.server = Server(told["command"], key)
            self.observer = Observer(self.server)
            self.observer.__enter__()
            ready = self._await(
                starting.wait(
                    *(self.server, self.observer),
                    model=told["model"],
                    way=str(told["way"]),
                    key=key,
                    limits=evolve(limits, connect_s=5.0),
                    load_s=float(told["load_s"]),
                    beat=self._say,
                )
            )
            self.observer.loading = False
            self.load_s, endpoint = ready.seconds, ready.endpoint
            self.look()
            self.observer.count()
            self.begun_own = self.observer.now().own
        self._driver = Driver(
            endpoint,
            Wanted(tokens=int(told["tokens"])),
            limits,
            self._say,
            count=tokenizers.counter(told.get("tokenizer")),
        )
        self._client = self._await(_opened(limits))

    def _endpoint(self, key: str | None, limits: Limits) -> Endpoint:
        told, model = self._parameters, self._parameters["model"]
        url = client.endpoint_url(str(told["endpoint"]))
        if model is None:
            model = self._await(_only_model(url, key, limits))
        return Endpoint(url, str(model), str(told["way"]), key)

    def _gone(self, *, patient: bool = True) -> None:
        """Note that the server has ended, and why; `patient`: its end may be told a moment after its last words."""
        server = self.server
        if server is None or self.lost is not None:
            return
        if self._await(_ended(server, _LAST_SECONDS if patient else 0.0)):
            why = server.why()
            self.lost = f"the server ended in mid-measurement, {server.ended}. {why.told}"

    def _say(self, note: str) -> None:
        self._note = note

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it, with signs of life to the parent meanwhile."""
        return self._runner.run(self._alive(work))

    async def _alive(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=_BEAT_SECONDS)
                if done:
                    return task.result()
                self._context.heartbeat(self._note)
                self.flush()
        finally:
            task.cancel()


def in_page_cache(files: Sequence[WantedFile]) -> float | str:
    """The share of the files' pages that is in the page cache (mincore), or why that is not known."""
    pages = found = 0
    for one in files:
        try:
            descriptor = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            return f"{Path(one.path).name}: {error.strerror}"
        try:
            owner = os.fstat(descriptor).st_uid
            if os.geteuid() not in (0, owner) and not os.access(one.path, os.W_OK, effective_ids=True):
                return "how much is in memory is told to the files' owner alone (mincore)"
            refused, every, resident = _storage.resident(descriptor, 0, one.bytes)
        finally:
            os.close(descriptor)
        if refused:
            return f"mincore: {os.strerror(refused)}"
        pages, found = pages + every, found + resident
    return found / pages if pages else "no checkpoint was named with --checkpoint"


def drop(files: Sequence[WantedFile]) -> None:
    """Take the files' own pages out of the page cache, as far as nobody uses them, so that a load is a load."""
    for one in files:
        with contextlib.suppress(OSError):
            descriptor = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _runs(programs: Sequence[str], seen: Sequence[SeenFile]) -> bool:
    """Whether one of these files, or one below one of these folders, is open or mapped."""
    real = [os.path.realpath(one) for one in programs]
    known = set()
    for path in real:
        with contextlib.suppress(OSError):
            found = Path(path).stat()
            known.add((found.st_dev, found.st_ino))
    return any(
        (one.device, one.inode) in known or any(one.path.startswith(f"{path}/") for path in real)
        for one in seen
    )


async def _opened(limits: Limits) -> client.Client:
    return client.open_client(limits, _MOST_STREAMS)


async def _only_model(url: str, key: str | None, limits: Limits) -> str:
    async with client.open_client(limits, 1) as opened:
        try:
            names = await client.models(opened, url, key)
        except BrokenError as error:
            raise ProbeError(f"{url}: {error}") from None
    if len(names) != 1:
        if not names:
            raise ProbeError(f"{url} lists no models: name the one to ask with --model")
        few = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        raise ProbeError(f"{url} offers {len(names)} models: say with --model which one: {few}")
    return names[0]


async def _ended(server: Server, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while server.alive:
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(0.05)
    return True
