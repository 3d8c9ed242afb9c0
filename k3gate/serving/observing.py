"""Watches a server's processes in a thread while it loads and answers: files, memory, CPU time, GPUs, over time."""

from __future__ import annotations

import contextlib
import threading
import time

from attrs import frozen

from k3gate.serving import processes
from k3gate.serving.gpus import Gpus
from k3gate.serving.processes import SeenFile
from k3gate.serving.server import Server

LOADING_S, SERVING_S = 0.1, 1.0
"""How often it looks: a file that is read and closed again must be seen meanwhile."""
FILES_EACH_S = 10.0
_COST = 20
"""It rests so many times as long as a look takes: a machine with thousands of processes is not to notice."""
_DEAR_S = 2.0
"""A walk over all pages that takes longer than this is done at the end alone: it holds up the server."""
MEMORY, CORES = "served.memory", "served.cores"
GPU_MEMORY, TO_GPU, FROM_GPU = "served.gpu.memory", "served.gpu.received", "served.gpu.sent"
"""Names of series."""
Piece = tuple[str, str, dict[str, str], list[float], list[float | None]]


@frozen
class Reading:
    """One look. Bytes: resident, `own` of no file; `cpu_s`: of all processes so far, those that ended too."""

    at: float
    own: int
    files: int
    cpu_s: float
    processes: int


class Observer:
    """The thread. `loading` True: it looks for files, often. Use as a context."""

    def __init__(self, server: Server, gpus: Gpus | None = None) -> None:
        self.loading = True
        self.peak_bytes: int | None = None
        self.peak_of = ""
        self.placed: dict[int, int] = {}
        self._server = server
        self._gpus = Gpus() if gpus is None else gpus
        self._files: dict[tuple[int, int, str], SeenFile] = {}
        self._listening: list[tuple[str, int]] = []
        self._cpu: dict[tuple[int, int], float] = {}
        self._high: dict[tuple[int, int], int] = {}
        self._most = 0
        self._walk_s = 0.0
        self._looked = -FILES_EACH_S
        self._last: Reading | None = None
        self._pieces: dict[tuple[str, str], Piece] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server's processes", daemon=True)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; a driver that hangs keeps it, and nobody else."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        if not self._thread.is_alive():
            self._gpus.close()

    @property
    def files(self) -> tuple[SeenFile, ...]:
        """All regular files that its processes had open or mapped so far."""
        with self._lock:
            return tuple(self._files.values())

    @property
    def listening(self) -> tuple[tuple[str, int], ...]:
        """Where its processes listen."""
        with self._lock:
            return tuple(self._listening)

    def now(self) -> Reading:
        """A look, taken now by the caller."""
        return self._look()

    def count(self, *, last: bool = False) -> None:
        """Walk over all pages: peak and placement. Not again where it was dear, but for the last time."""
        if self._walk_s > _DEAR_S and not last:
            return
        begun = time.monotonic()
        tree = self._server.tree()
        shares = [share for one in tree if (share := processes.proportional(one.pid)) is not None]
        self._most = max(self._most, sum(shares))
        placed: dict[int, int] = {}
        for one in tree:
            for node, size in (processes.placement(one.pid) or {}).items():
                placed[node] = placed.get(node, 0) + size
        self.placed = placed or self.placed
        self._look()
        with self._lock:
            high = list(self._high.values())
        if len(high) == 1:
            self.peak_bytes, self.peak_of = high[0], "the kernel's own peak of its one process (VmHWM)"
        elif self._most:
            self.peak_bytes = max(self._most, *high)
            self.peak_of = (
                f"{len(high)} processes, shared pages counted once (Pss), when ready and after each reading"
            )
        self._walk_s = time.monotonic() - begun

    def drain(self) -> list[Piece]:
        """Pieces of series since the last time."""
        with self._lock:
            pieces, self._pieces = list(self._pieces.values()), {}
        return pieces

    def _run(self) -> None:
        cost = 0.0
        while not self._ended.wait(max(LOADING_S if self.loading else SERVING_S, _COST * cost)):
            begun = time.thread_time()
            # What goes wrong here costs a point of a series.
            with contextlib.suppress(Exception):
                self._look(series=True)
            cost = time.thread_time() - begun

    def _look(self, *, series: bool = False) -> Reading:
        now = time.monotonic()
        tree = self._server.tree()
        own = files = 0
        for one in tree:
            memory = processes.memory(one.pid)
            if memory is not None:
                own, files = own + memory.own + memory.shared, files + memory.files
                with self._lock:
                    key = one.pid, one.started
                    self._high[key] = max(self._high.get(key, 0), memory.peak)
        with self._lock:
            for one in tree:
                key = one.pid, one.started
                self._cpu[key] = max(self._cpu.get(key, 0.0), one.cpu_s)
            reading = Reading(now, own, files, sum(self._cpu.values()), len(tree))
        if self.loading or now - self._looked > FILES_EACH_S:
            self._looked = now
            seen = [found for one in tree for found in processes.files(one.pid)]
            sockets = processes.listening([one.pid for one in tree])
            with self._lock:
                self._files.update({(one.device, one.inode, one.path): one for one in seen})
                self._listening = sockets
        if series:
            self._tell(reading, {one.pid for one in tree})
        return reading

    def _tell(self, reading: Reading, pids: set[int]) -> None:
        before, self._last = self._last, reading
        told: list[tuple[str, str, dict[str, str], float | None]] = [
            (MEMORY, "B", {"of": "own"}, float(reading.own)),
            (MEMORY, "B", {"of": "files"}, float(reading.files)),
        ]
        if before is not None and reading.at > before.at:
            busy = (reading.cpu_s - before.cpu_s) / (reading.at - before.at)
            told.append((CORES, "1", {}, max(0.0, busy)))
        for gpu in self._gpus.read(pids):
            of = {"gpu": gpu.address}
            told.append((GPU_MEMORY, "B", of, None if gpu.bytes is None else float(gpu.bytes)))
            told.append((TO_GPU, "B/s", of, gpu.to_gpu))
            told.append((FROM_GPU, "B/s", of, gpu.from_gpu))
        with self._lock:
            for name, unit, labels, value in told:
                key = name, str(labels)
                piece = self._pieces.setdefault(key, (name, unit, labels, [], []))
                piece[3].append(reading.at)
                piece[4].append(value)
