"""Types of the native module; what they mean stands in probes/native/bindings.cpp."""

from collections.abc import Sequence
from typing import Any

PATTERN_STEP: int
CHASE_BLOCK: int

class Pool:
    def __init__(self, bytes: int, pages: str) -> None: ...  # noqa: A002  # named as in the bindings
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def advice_error(self) -> int: ...
    @staticmethod
    def of_file(file: int, bytes: int, page_bytes: int, writable: bool = False) -> Pool: ...  # noqa: A002  # as above
    def count_resident(self) -> tuple[int, int]: ...
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
    def scatter(self, thread: int, part: _Part, steps: int, state: int = 0) -> Chase: ...

def supported_isas() -> list[str]: ...
def kernels() -> list[dict[str, Any]]: ...
def allowed_cpus() -> list[int]: ...
def file_is_dax(file: int) -> bool | None: ...
def checksum_at(kernel: str, isa: str, address: int, words: int) -> int: ...

class GemmComparison:
    checked: int
    wrong: int
    unwritten: int
    worst: float
    error: float
    drift: float
    first_row: int
    first_token: int
    @property
    def ok(self) -> bool: ...

class GemmTrial:
    def __init__(
        self,
        format: str,  # noqa: A002  # named as in the bindings
        path: str,
        expert: bool,
        rows: int,
        depth: int,
        pool_bytes: int,
        pages: str,
        seed: int,
        node: int = -1,
    ) -> None: ...
    @property
    def items(self) -> int: ...
    @property
    def pool(self) -> Pool: ...
    @property
    def bind_error(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def bytes_per_item(self) -> float: ...
    @property
    def packed_bytes(self) -> int: ...
    def flops_per_item(self, tokens: int) -> float: ...
    def run(self, team: Team, tokens: int, calls: int) -> Region: ...
    def check(self, sampled: int, seed: int) -> GemmComparison: ...
    def output_address(self, thread: int) -> int: ...

def gemm_paths() -> list[dict[str, Any]]: ...
def gemm_paths_of(flags: Sequence[str], error: int) -> list[dict[str, Any]]: ...
def gemm_variants() -> list[dict[str, str]]: ...
def gemm_multiply(
    format: str,  # noqa: A002  # as above
    path: str,
    values: bytes,
    scales: bytes,
    activations: bytes,
    tokens: int,
    rows: int,
    depth: int,
    modelled: bool = False,
) -> bytes: ...
def gemm_expect(
    format: str,  # noqa: A002  # as above
    activations_kind: str,
    values: bytes,
    scales: bytes,
    activations: bytes,
    tokens: int,
    rows: int,
    depth: int,
) -> bytes: ...
def gemm_packed_bytes(
    format: str,  # noqa: A002  # as above
    values: bytes,
    scales: bytes,
    rows: int,
    depth: int,
) -> int: ...
def gemm_situ(gate_up: bytes, tokens: int, width: int) -> bytes: ...
def gemm_prove(
    format: str,  # noqa: A002  # as above
    path: str,
    tokens: int,
    rows: int,
    depth: int,
    spread: int,
    seed: int,
    fault: str = "",
) -> GemmComparison: ...
def gemm_prove_expert(
    format: str,  # noqa: A002  # as above
    path: str,
    tokens: int,
    width: int,
    inner: int,
    seed: int,
    fault: str = "",
) -> GemmComparison: ...
def gemm_run_together(team: Team, trials: Sequence[GemmTrial], tokens: int, calls: int) -> Region: ...
def gemm_peaks() -> list[dict[str, Any]]: ...
def gemm_peak(team: Team, path: str, type: str, turns: int) -> Region: ...  # noqa: A002  # as above

class DecodeEngine:
    def __init__(self, arguments: dict[str, Any], fill: bool) -> None: ...
    def tensors(self) -> list[tuple[str, str, int, int]]: ...
    def load(self, name: str, kind: str, data: bytes, scales: bytes) -> None: ...
    def weights(self, name: str) -> bytes: ...
    def run(self, ids: bytes, steps: int, tokens: bytes, rows: bytes) -> dict[str, Any]: ...
    def prefill(self, ids: bytes, tokens: bytes) -> dict[str, Any]: ...
    def reset(self) -> None: ...
    def recheck(self, seed: int, sampled: int) -> dict[str, Any]: ...
    def allocated(self) -> dict[int, dict[str, int]]: ...
    def pools(self) -> list[tuple[int, Pool]]: ...
    def bind_errors(self) -> dict[int, int]: ...
    def affinities(self) -> list[list[int]]: ...
    def variants(self) -> list[tuple[str, str, str]]: ...
    def close(self) -> None: ...

def decode_bytes(arguments: dict[str, Any]) -> dict[int, dict[str, int]]: ...
def decode_prove(arguments: dict[str, Any], seed: int, fault: str) -> dict[str, Any]: ...

class NetworkSent:
    bytes: int
    first: float
    last: float
    cpu_seconds: float
    error: int

class NetworkReceived:
    bytes: int
    window_bytes: int
    probes: int
    wrong: int
    first: float
    last: float
    cpu_seconds: float
    error: int

class NetworkTrips:
    seconds: list[float]
    wrong: int
    cpu_seconds: float
    error: int

class NetworkEchoed:
    messages: int
    cpu_seconds: float
    error: int

def network_now() -> float: ...
def network_send(socket: int, seed: int, seconds: float) -> NetworkSent: ...
def network_receive(
    socket: int, seed: int, begun: float, warm_up: float, seconds: float
) -> NetworkReceived: ...
def network_ping(socket: int, bytes: int, seconds: float, most: int, seed: int) -> NetworkTrips: ...  # noqa: A002
def network_echo(socket: int, bytes: int) -> NetworkEchoed: ...  # noqa: A002
