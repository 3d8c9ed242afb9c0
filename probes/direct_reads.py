"""Reading open files past the page cache, until told to stop: the loop that the storage probe times, and that a soak
may run beside other work.

    with contextlib.closing(open_files(...)) as files:
        stream = Stream(files, block=1 << 20, threads=4, depth=16)
        while wanted:
            read = stream.read(seconds=0.25)      # read.bytes in read.seconds, going on where it ended
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from attrs import frozen

from k3gate.errors import ProbeError
from k3gate.probes import _storage
from k3gate.probes.storage_files import OpenFiles, Range, raise_for


@frozen
class Read:
    """A timed region: bytes that came, seconds of wall time, CPU seconds of the reading threads."""

    bytes: int
    seconds: float
    cpu_seconds: float
    region: _storage.ReadRegion

    @property
    def rate(self) -> float:
        """B/s."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Stream:
    """Threads that read all of some files over and over, each its own part, `depth` blocks of `block` bytes at a time.

    `cpus`: those that the threads are pinned to, in turn; none: wherever the kernel has them. `direct` False: through
    the page cache. `huge`: into transparent huge pages, where a block is one piece for the drive. `engine` says how
    reads are kept under way. Raises `ProbeError` and its kind.
    """

    def __init__(
        self,
        places: Sequence[OpenFiles],
        block: int,
        threads: int,
        depth: int,
        cpus: Sequence[int] = (),
        *,
        direct: bool = True,
        huge: bool = True,
    ) -> None:
        self._places = tuple(places)
        self.engine = "pread" if depth == 1 else "io_submit"
        lists = self._dealt(block, threads, direct)
        self.cpus = [cpus[index % len(cpus)] for index in range(len(lists))] if cpus else []
        try:
            self._reader = _storage.Reader(lists, block, depth, self.cpus, huge)
        except OSError as error:
            if depth == 1 or error.errno not in (errno.EAGAIN, errno.ENOSYS, errno.EPERM):
                raise ProbeError(
                    f"{error.strerror}: {block:,} bytes, {threads} threads, depth {depth}"
                ) from error
            # No queue is to be had (fs.aio-max-nr is used up, or the call is forbidden): a thread for each read.
            self.engine = "pread"
            lists = self._dealt(block, threads * depth, direct)
            self.cpus = [cpus[index % len(cpus)] for index in range(len(lists))] if cpus else []
            self._reader = _storage.Reader(lists, block, 1, self.cpus, huge)
        self.part_bytes = min(sum(part[2] for part in parts) for parts in lists)
        """What the thread with the least to read has before it begins again."""

    def _dealt(self, block: int, threads: int, direct: bool) -> list[list[Range]]:
        """Ranges by thread: of several places each has as many threads of its own."""
        return [part for place in self._places for part in place.ranges(block, threads, direct=direct)]

    def read(self, seconds: float) -> Read:
        """Read for so long; goes on where the last call ended. Raises what a failed read means."""
        region = self._reader.run(seconds)
        raise_for(region, self._name_of)
        return Read(
            sum(thread.bytes for thread in region.threads),
            region.seconds,
            sum(thread.cpu_seconds for thread in region.threads),
            region,
        )

    def stop(self) -> None:
        """From another thread: end the read under way."""
        self._reader.stop()

    def _name_of(self, descriptor: int) -> str:
        for place in self._places:
            if any(descriptor in (one.buffered, one.direct) for one in place.files):
                return place.name_of(descriptor)
        return self._places[0].place
