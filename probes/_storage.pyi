"""Types of the native module; what they mean stands in probes/native/storage."""

from collections.abc import Sequence

class ReadReport:
    start: float
    end: float
    cpu_seconds: float
    bytes: int
    reads: int
    cpu_before: int
    cpu_after: int
    error: int
    file: int
    at: int

class ReadRegion:
    seconds: float
    threads: Sequence[ReadReport]

class Reader:
    def __init__(
        self,
        ranges: Sequence[Sequence[tuple[int, int, int]]],
        block_bytes: int,
        depth: int,
        cpus: Sequence[int] = (),
        huge: bool = True,
    ) -> None: ...
    def run(self, seconds: float) -> ReadRegion: ...
    def stop(self) -> None: ...

def resident(file: int, start: int, bytes: int) -> tuple[int, int, int]: ...  # noqa: A002  # as in the bindings
def write_random(file: int, start: int, bytes: int, seed: int) -> int: ...  # noqa: A002  # as above
