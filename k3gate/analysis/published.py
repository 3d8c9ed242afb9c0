"""Published measurements as rows, and the system that each describes as far as it is told. Pure.

A row says what was run in words; here stand the words that are understood, and what is assumed where a row is silent.
Every assumption is a line of the prediction, none is fitted.

Several machines that share a model are predicted by the bandwidth of all of them. No row tells the latency of a network
or how many messages a token takes, so that its time is left out of the prediction and is in the band.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import evolve, frozen

from k3gate.analysis.layout import Demand
from k3gate.analysis.quantizations import stored
from k3gate.analysis.system import GB, GIB, Gpu, Measured, MemoryModules, Placement, Precision, System
from k3gate.errors import UsageError
from k3gate.model.known import sizes_of
from k3gate.model.sizes import ModelSizes

SHIPPED = Path(__file__).parent / "data" / "published-results.csv"
COLUMNS = (
    *("model", "quant", "runtime", "cpu", "sockets", "channels", "mem_speed_mts", "theoretical_gbs", "gpu"),
    *("gpu_count", "decode_tps", "batch", "context", "notes"),
)
"""What is read of a row; other columns may be there."""
MAX_ROWS = 5000
MAX_CELL = 2000

GPU_RATES: Mapping[str, float] = {
    "rtx 4090": 1008e9,
    "rtx 6000 ada": 960e9,
    "rtx pro 6000": 1792e9,
    "l20": 864e9,
    "a100": 2039e9,
    "b200": 8000e9,
}
"""Memory rates by the makers' data sheets. A row whose trunk lies on another GPU is not testable: a rate for it would
be a number of ours."""
MOST_SOCKETS = 8
"""Sockets of the largest machine with processors of these makers; rows of more are of several machines."""

_KT_NEEDS = "KTransformers keeps all but the routed experts on a GPU"
_EARLY = "llama.cpp could not place single tensors before April 2025, so the trunk stayed in DRAM"


@frozen
class Row:
    """One published measurement, as it stands; None: not told. `number`: line of the file."""

    number: int
    model: str
    quant: str
    runtime: str
    cpu: str
    sockets: int | None
    channels: int | None
    mts: int | None
    theoretical: float | None
    measured: float | None
    gpu: str
    gpus: int
    decode: float | None
    batch: int | None
    context: int | None
    notes: str

    @property
    def machine(self) -> str:
        """What is left out together: all rows of one processor."""
        return self.cpu.split(" (")[0].strip()


@frozen
class Described:
    """A testable row as a system and a demand, with the assumptions that were made.

    `uncounted`: tiers whose time is left out since no rate of them is stated, so that the interval errs to the fast.
    """

    system: System
    sizes: ModelSizes
    demand: Demand
    assumptions: tuple[str, ...]
    uncounted: tuple[str, ...] = ()


def parse(text: str, name: str) -> tuple[Row, ...]:
    """The rows of a CSV; `UsageError` names line and column of what cannot be read."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: list[Row] = []
    try:
        lacking = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if lacking:
            raise UsageError(f"{name}: the column {lacking[0]!r} is missing; needed are {', '.join(COLUMNS)}")
        for cells in reader:
            if len(found) >= MAX_ROWS:
                raise UsageError(f"{name}: more than {MAX_ROWS} rows; split the file")
            found.append(_row(cells, reader.line_num, name))
    except csv.Error as error:
        raise UsageError(f"{name}, line {reader.line_num}: {error}; correct the quoting") from error
    return _measured_once(found)


def _row(cells: Mapping[str, str | None], line: int, name: str) -> Row:
    def text(column: str) -> str:
        value = (cells.get(column) or "").strip()
        if len(value) > MAX_CELL:
            raise UsageError(
                f"{name}, line {line}: {column} is longer than {MAX_CELL} characters; shorten it"
            )
        return value

    def number(column: str) -> float | None:
        value = text(column)
        if not value:
            return None
        try:
            found = float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < 1e15:
            raise UsageError(
                f"{name}, line {line}: {column} is {value[:40]!r}; write a number of 0 or more, or leave it empty"
            )
        return found

    def whole(column: str) -> int | None:
        value = number(column)
        if value is not None and value != int(value):
            raise UsageError(
                f"{name}, line {line}: {column} is {value:g}; write a whole number, or leave it empty"
            )
        return None if value is None else int(value)

    rate = number("theoretical_gbs")
    if rate and rate < 0.1:
        raise UsageError(
            f"{name}, line {line}: theoretical_gbs is {rate:g}; no memory is so slow, correct it"
        )
    return Row(
        number=line,
        model=text("model"),
        quant=text("quant"),
        runtime=text("runtime"),
        cpu=text("cpu"),
        sockets=whole("sockets") or None,
        channels=whole("channels") or None,
        mts=whole("mem_speed_mts") or None,
        theoretical=rate * GB if rate else None,
        measured=_noted(text("notes")),
        gpu=text("gpu"),
        gpus=whole("gpu_count") or 0,
        decode=number("decode_tps") or None,
        batch=whole("batch") or None,
        context=whole("context"),
        notes=text("notes"),
    )


_NOTED = (
    re.compile(r"read (?:roof )?~?(\d{1,6}(?:\.\d{1,3})?) (Gi?B)/s"),
    re.compile(r"~?(\d{1,6}(?:\.\d{1,3})?) (Gi?B)/s measured"),
)


def _noted(notes: str) -> float | None:
    """A read bandwidth of the machine that the notes call measured, in B/s."""
    if "measured" not in notes:
        return None
    for pattern in _NOTED:
        found = pattern.search(notes)
        if found:
            return float(found[1]) * (GIB if found[2] == "GiB" else GB)
    return None


def _measured_once(rows: Iterable[Row]) -> tuple[Row, ...]:
    """A bandwidth noted in one row holds for the other rows of the same machine."""
    found = list(rows)
    noted = {(row.cpu, row.sockets, row.channels): row.measured for row in found if row.measured and row.cpu}
    return tuple(
        evolve(row, measured=row.measured or noted.get((row.cpu, row.sockets, row.channels))) for row in found
    )


_DENIED = re.compile(
    r"\b(?:not|no|non|without)[ -](?:an? )?"
    r"(?:aggregated?|speculative|speculation|drafts?|mtp|eagle|storage-bound|streamed|communication|infiniband)\b"
    # A draft of a text, and nodes that are parts of one machine.
    r"|\b(?:first|second|third|early|rough|working|final|last) drafts?\b"
    r"|\bdrafts? of (?:the|this) (?:table|text|page)\b"
    r"|\b(?:nps|snc|numa)[ -]?\d?[^;,.]{0,12}\b\d+ nodes\b|\b\d+ (?:numa|nps|snc)[ -]?\d? ?nodes\b"
)
_OTHER_FIGURE = re.compile(r"\b\d+(?:\.\d+)?(?:-\d+)? with (?:an? )?(?:drafts?|mtp|eagle)\b")
_CACHED = re.compile(r"\b9\d(?:\.\d+)?% cache hit\b")
_SEVERAL_TOKENS = re.compile(r"\b(?:speculative|speculation|drafts?|mtp|eagle|medusa|lookahead)\b")
_SEVERAL_MACHINES = re.compile(r"\b(?:[2-9]|[1-9]\d{1,3}) (?:nodes|machines|servers)\b|\binfiniband\b")


def exception(row: Row) -> str | None:
    """Why a row cannot test the predictor, or None: decode, batch 1, a CPU, a bandwidth, memory-bound."""
    words = _words(row)
    if row.decode is None:
        return "no decode rate"
    if "aggregate" in words or (row.batch or 1) > 1:
        return "aggregate over several requests"
    if row.batch is None:
        return "the batch is not stated"
    if _SEVERAL_TOKENS.search(words):
        return "speculative decoding: several tokens a step"
    if "storage-bound" in words or ("streamed" in words and not _CACHED.search(words)):
        return "storage-bound: experts come from drives"
    if "communication" in words:
        return "dominated by communication, as its notes say"
    if not row.cpu:
        return "the CPU is not stated"
    if row.theoretical is None and row.measured is None:
        return "neither channels and speed nor a measured bandwidth are stated"
    if sizes_of(row.model) is None:
        return f"the shapes of {row.model[:60]!r} are not known here"
    if stored(row.quant, row.model) is None:
        return f"what a token reads under {row.quant[:60]!r} is not known here"
    if _trunk(row)[0] == "gpu" and row.gpu and _gpu_rate(row) is None:
        return f"the memory rate of {row.gpu[:60]!r}, on which the trunk lies, is not known here"
    return None


def _words(row: Row) -> str:
    """Notes, quantization and runtime, without what they say is not there, or tell of another figure than the row's."""
    return _OTHER_FIGURE.sub("", _DENIED.sub("", f"{row.notes}; {row.quant}; {row.runtime}".lower()))


def _several(row: Row) -> bool:
    """Whether a row is of several machines that share the model."""
    return bool(_SEVERAL_MACHINES.search(_words(row))) or (row.sockets or 1) > MOST_SOCKETS


def _gpu_rate(row: Row) -> float | None:
    """B/s of the memory of the row's GPU by its data sheet; None where it is not named or not known here."""
    return next((rate for name, rate in GPU_RATES.items() if name in row.gpu.lower()), None)


def describe(row: Row) -> Described:
    """The system of a testable row."""
    sizes, held = sizes_of(row.model), stored(row.quant, row.model)
    assert sizes is not None and held is not None
    assumptions = [held.words]
    trunk, why = _trunk(row)
    if why:
        assumptions.append(why)
    gpus: tuple[Gpu, ...] = ()
    uncounted: tuple[str, ...] = ()
    if trunk == "gpu":
        gpus = (Gpu(row.gpu or "a GPU without a name", max(1, row.gpus), 1 << 44, _gpu_rate(row)),)
        if not row.gpu:
            uncounted = ("gpu",)
            assumptions.append("the time of the GPU is left out, since the row does not name it")
    channels, mts = row.channels or 1, row.mts
    if row.measured is None and (mts is None or abs(channels * mts * 8e6 - (row.theoretical or 0)) > 1e9):
        assert row.theoretical is not None
        channels, mts = 1, round(row.theoretical / 8e6)
    sockets = row.sockets
    if sockets is None:
        sockets = 1
        assumptions.append("one socket, since their number is not stated")
    if _several(row):
        assumptions.append(
            "several machines, by the bandwidth of all: the row states no latency, so that the network is in the band"
        )
    system = System(
        name=f"line {row.number}",
        text="",
        hash="",
        cpu_model=row.cpu,
        sockets=sockets,
        memory=MemoryModules(1, 1 << 50, mts, populated=channels),
        gpus=gpus,
        gpu_split="layer",
        runtime=row.runtime,
        engine=_engine(row),
        placement=Placement(experts="dram", trunk=trunk, embedding="dram", vision="dram", cache=trunk),
        precision=Precision(held.experts, held.trunk, held.kv),
        measured=Measured(dram=row.measured, source="noted with the result"),
    )
    context = row.context or 0
    if row.context is not None and sizes.max_context is not None:
        context = min(context, sizes.max_context)
    return Described(system, sizes, Demand(f"line {row.number}", context, 1), tuple(assumptions), uncounted)


def _engine(row: Row) -> str:
    """The class of a row's runtime, as `system.ENGINES` has it: ik_llama.cpp has no placement for a second socket."""
    plain = row.runtime.lower()
    tuned = "libxsmm" in plain or (plain.startswith("ik_llama") and (row.sockets or 1) == 1)
    return "tuned" if tuned else "general"


def _trunk(row: Row) -> tuple[str, str | None]:
    plain = row.runtime.lower()
    if plain.startswith("ktransformers"):
        return "gpu", _KT_NEEDS
    if not row.gpus:
        return "dram", None
    if "early 2025" in plain:
        return "dram", _EARLY
    return "gpu", "trunk on the GPUs"
