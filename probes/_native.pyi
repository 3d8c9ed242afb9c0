"""Types of the native module; what they mean stands in probes/native/bindings.cpp."""

from collections.abc import Sequence
from typing import Any

PATTERN_STEP: int
CHASE_BLOCK: int

class Pool:
    def __init__(self, bytes: int, pages: str) -> None: ...  # noqa: A002
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def advice_error(self) -> int: ...
    def bind(self, node: int) -> int: ...
    def query_nodes(self, samples: int) -> tuple[int, list[int]]: ...
    def close(self) -> None: ...

class ThreadReport:
    start: float
    end: float
    bytes: int
    value: int
    cpu_before: int
    cpu_after: int
    error: int

class Region:
    seconds: float
    threads: list[ThreadReport]

class Chase:
    seconds: float
    steps: int
    blocks: int
    end: int
    load_seconds: float
    load_bytes: int
    threads: list[ThreadReport]

_Part = tuple[Pool, int, int, int]
_Parts = Sequence[Sequence[_Part]]

class Team:
    def __init__(self, cpus: Sequence[int]) -> None: ...
    @property
    def cpus(self) -> list[int]: ...
    def affinities(self) -> list[list[int]]: ...
    def touch(self, parts: _Parts) -> Region: ...
    def verify(self, parts: _Parts) -> Region: ...
    def prepare(self, kernel: str, parts: _Parts) -> Region: ...
    def count_unwritten(self, kernel: str, parts: _Parts) -> Region: ...
    def run(self, kernel: str, isa: str, parts: _Parts, passes: int) -> Region: ...
    def build_cycle(self, thread: int, part: _Part, window_bytes: int = 0) -> Region: ...
    def chase(self, thread: int, part: _Part, steps: int, start: int = 0) -> Chase: ...
    def chase_loaded(
        self,
        thread: int,
        part: _Part,
        steps: int,
        start: int,
        kernel: str,
        isa: str,
        loads: _Parts,
        delay: int,
        block_bytes: int = 4096,
    ) -> Chase: ...

def supported_isas() -> list[str]: ...
def kernels() -> list[dict[str, Any]]: ...
def allowed_cpus() -> list[int]: ...
def checksum_at(kernel: str, isa: str, address: int, words: int) -> int: ...
