"""A trace as steps of a batch, and as the bytes that a worker reads without numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from k3gate.errors import ProbeError, UsageError
from k3gate.model.routing import packed
from k3gate.model.routing.synthesis import synthesize
from k3gate.model.routing.trace import Trace


def test_each_sequence_of_a_batch_has_its_own_place(drawn: Trace) -> None:
    steps = drawn.steps(40, 2)
    assert steps.shape == (40, 3, 2, 4) and steps.dtype == np.int16
    assert np.array_equal(steps[:, :, 0], drawn.experts[:40])
    assert np.array_equal(steps[:, :, 1], drawn.experts[40:])


def test_steps_go_on_from_the_last_token_to_the_first(drawn: Trace) -> None:
    steps = drawn.steps(200, 3)
    for step, sequence in ((0, 0), (79, 1), (199, 2)):
        token = (sequence * 80 // 3 + step) % 80
        assert np.array_equal(steps[step, :, sequence], drawn.experts[token])


def test_batches_that_cannot_be(drawn: Trace) -> None:
    with pytest.raises(UsageError, match="too few for a batch of 81"):
        drawn.steps(1, 81)
    with pytest.raises(UsageError, match="give 1 or more"):
        drawn.steps(0, 1)
    with pytest.raises(UsageError, match="ask for fewer steps"):
        drawn.steps(10**9, 80)


def test_a_worker_reads_the_bytes_as_they_were(drawn: Trace, tmp_path: Path) -> None:
    path = tmp_path / "routing"
    path.write_bytes(drawn.to_bytes(5, 2))
    ids = packed.load(path, (5, 3, 2, 4), 32)
    assert list(ids) == drawn.steps(5, 2).ravel().tolist()
    step, layer, sequence, used = 4, 2, 1, 3
    at = ((step * 3 + layer) * 2 + sequence) * 4 + used
    assert ids[at] == drawn.steps(5, 2)[step, layer, sequence, used]
    assert path.read_bytes()[:2] == int(drawn.experts[0, 0, 0]).to_bytes(2, "little")


def test_a_routing_file_that_does_not_fit_the_request(drawn: Trace, tmp_path: Path) -> None:
    path = tmp_path / "routing"
    path.write_bytes(drawn.to_bytes(5, 2))
    for shape in ((5, 3, 2, 5), (4, 3, 2, 4), (0, 3, 2, 4)):
        with pytest.raises(ProbeError, match="has not the"):
            packed.load(path, shape, 32)
    with pytest.raises(ProbeError, match="not from 0 to 3"):
        packed.load(path, (5, 3, 2, 4), 4)
    with pytest.raises(ProbeError, match="cannot be read"):
        packed.load(tmp_path / "none", (5, 3, 2, 4), 32)


def test_a_worker_needs_no_numpy() -> None:
    code = "import sys, k3gate.model.routing.packed; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "scipy", "orjson", "attr"} & set(done.stdout.split())


def test_a_batch_of_the_model_is_one_of_independent_sequences() -> None:
    trace = synthesize(6, 2, 64, 4, skew=3, seed=1, sequences=8).trace
    steps = trace.steps(6, 8)
    assert len({steps[:, :, sequence].tobytes() for sequence in range(8)}) == 8
    assert trace.starts == tuple(range(0, 48, 6))
