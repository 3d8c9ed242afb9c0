"""The ways in which a loader gets weights, which are seldom as fast as the drives: through a cold page cache by reads,
by a mapping, tensor by tensor; from a warm one; and how fast checksums are, which a careful load computes.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from k3gate import metrics
from k3gate.errors import NotPresentError, ProbeError
from k3gate.model import k3
from k3gate.probes import storage_files, storage_proofs
from k3gate.probes.storage_direct import Evidence, figure
from k3gate.probes.storage_files import OpenFile, OpenFiles
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, Proof, Scalar

PIECE = 1 << 20
WARM_BYTES = 128 << 20
HASHED_BYTES = 16 << 20
SAMPLES = 3
_WARM_SHARE = 0.99
Piece = tuple[OpenFile, int, int]
"""(file, first byte, bytes)."""


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """`parameters`: sources (one), and the way in the labels."""
    way = str(case.labels["way"])
    if way == "hash":
        yield _hash(case, context)
        return
    place = storage_files.shared(context, case.parameters["sources"][0])
    if way == "warm":
        yield _warm(case, context, place)
    else:
        yield _cold(case, context, place, way)


def _cold(case: Case, context: Context, place: OpenFiles, way: str) -> Metric:
    """Pieces of the files in their order, each read once after the cache was dropped."""
    evidence = Evidence(context, case, [place], direct=False)
    pieces = _tensors(place) if way == "safetensors" else _even(place)
    use: Callable[[Piece], None] = {"read": _read, "mmap": _touch, "safetensors": _load}[way](place)
    samples: list[SampleToken] = []
    read, position = 0, 0
    for _ in range(SAMPLES):
        # A third of the time, but no more than a third of the pieces: none may come twice.
        begun, size, first = time.monotonic(), 0, position
        while position - first < max(1, len(pieces) // SAMPLES) and position < len(pieces):
            use(pieces[position])
            size += pieces[position][2]
            position += 1
            context.heartbeat("loading")
            if time.monotonic() - begun >= context.seconds / SAMPLES:
                break
        seconds = time.monotonic() - begun
        if size:
            samples.append(context.sample(size / seconds, seconds))
            read += size
    if not samples:
        raise ProbeError(f"{place.place} holds no whole tensor that could be read")
    return figure(context, metrics.STORAGE_LOADER, samples, dict(case.labels), evidence.proofs(read))


def _even(place: OpenFiles) -> list[Piece]:
    return [(one, at, min(PIECE, one.bytes - at)) for one in place.files for at in range(0, one.bytes, PIECE)]


def _tensors(place: OpenFiles) -> list[Piece]:
    """The tensors of each shard in the order of their file; of a file of our own, experts of Kimi K3."""
    from k3gate.model.checkpoint import safetensors
    from k3gate.model.checkpoint.tensors import LocalFile

    found: list[Piece] = []
    for one in place.files:
        if place.own or not one.path.endswith(".safetensors"):
            found += _experts(one)
            continue
        header = safetensors.read(LocalFile(one.buffered, one.path))
        spans = sorted((tensor.begin, tensor.end) for tensor in header.tensors)
        found += [(one, begin, end - begin) for begin, end in spans if begin < end <= one.bytes]
    return found


def _experts(one: OpenFile) -> list[Piece]:
    found, at = [], 0
    while at < one.bytes:
        for size in k3.EXPERT_TENSORS:
            if at < one.bytes:
                found.append((one, at, min(size, one.bytes - at)))
            at += size
    return found


def _read(place: OpenFiles) -> Callable[[Piece], None]:
    """Ordinary reads into one buffer."""
    buffer = memoryview(mmap.mmap(-1, PIECE))

    def use(piece: Piece) -> None:
        one, at, size = piece
        done = 0
        while done < size:
            try:
                got = os.preadv(one.buffered, [buffer[: size - done]], at + done)
            except OSError as error:
                raise storage_files.trouble(error, f"{one.path} at byte {at + done:,}") from error
            if not got:
                raise ProbeError(f"{one.path} ended at byte {at + done:,}: it was cut while it was read")
            done += got

    return use


def _touch(place: OpenFiles) -> Callable[[Piece], None]:
    """Copies out of a mapping, over and over into one buffer, which stays in the caches."""
    maps = _maps(place)
    buffer = memoryview(mmap.mmap(-1, PIECE))

    def use(piece: Piece) -> None:
        one, at, size = piece
        buffer[:size] = maps[one.buffered][at : at + size]

    return use


def _load(place: OpenFiles) -> Callable[[Piece], None]:
    """As loaders of safetensors do by default: a tensor is copied out of the mapping into memory of its own."""
    maps = _maps(place)

    def use(piece: Piece) -> None:
        one, at, size = piece
        fresh = memoryview(mmap.mmap(-1, size))
        fresh[:] = maps[one.buffered][at : at + size]

    return use


def _maps(place: OpenFiles) -> dict[int, memoryview]:
    return {
        one.buffered: memoryview(mmap.mmap(one.buffered, one.bytes, mmap.MAP_SHARED, mmap.PROT_READ))
        for one in place.files
    }


def _warm(case: Case, context: Context, place: OpenFiles) -> Metric:
    """A part of the first file, brought into the page cache, then copied into fresh memory."""
    one = place.files[0]
    size = min(WARM_BYTES, one.bytes)
    part = OpenFile(one.path, size, one.buffered, None)
    begun = time.monotonic()
    reader = _read(place)
    for at in range(0, size, PIECE):
        reader((one, at, min(PIECE, size - at)))
        context.heartbeat("bringing a file into memory")
    copy = _load(OpenFiles(place.place, [part], place.own))
    copy((part, 0, size))
    context.setup(time.monotonic() - begun)
    before = storage_proofs.resident([part])
    samples: list[SampleToken] = []
    spent = 0.0
    while len(samples) < SAMPLES or spent < context.seconds:
        begun = time.perf_counter()
        copy((part, 0, size))
        seconds = time.perf_counter() - begun
        spent += seconds
        samples.append(context.sample(size / seconds, seconds))
    if isinstance(before, str):
        proof = Proof("cached", None, before)
    else:
        proof = Proof("cached", before >= _WARM_SHARE, f"{before:.1%} of it was in memory (mincore)")
    labels: dict[str, Scalar] = {**case.labels, "window_bytes": size}
    return figure(context, metrics.STORAGE_CACHED, samples, labels, [proof])


def _hash(case: Case, context: Context) -> Metric:
    """k3gate's own checksums over files in memory."""
    from k3gate.model.checkpoint import checksums
    from k3gate.model.checkpoint.readers import Part

    threads = int(case.parameters["threads"])
    content = random.Random(1).randbytes(HASHED_BYTES)
    parts = []
    descriptors = [os.memfd_create(f"k3gate-hash-{number}", os.MFD_CLOEXEC) for number in range(threads)]
    try:
        for descriptor in descriptors:
            os.write(descriptor, content)
            parts.append(Part(str(descriptor), Path(f"/proc/self/fd/{descriptor}"), HASHED_BYTES))
        samples: list[SampleToken] = []
        spent = 0.0
        while len(samples) < SAMPLES or spent < context.seconds:
            begun = time.perf_counter()
            sums = list(checksums.hash_files(parts, threads))
            seconds = time.perf_counter() - begun
            context.heartbeat("hashing")
            if len({one.sha256 for one in sums}) != 1:
                raise ProbeError("the same bytes gave unlike checksums: this CPU computes wrongly")
            spent += seconds
            samples.append(context.sample(threads * HASHED_BYTES / seconds, seconds))
    except OSError as error:
        raise NotPresentError(f"no file in memory can be hashed: {error.strerror}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return context.metric(metrics.STORAGE_HASH, samples, dict(case.labels))
