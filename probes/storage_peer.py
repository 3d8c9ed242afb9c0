"""fio beside it: the same files, block, threads and depth, read by the program that everybody knows."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator

from k3gate import metrics
from k3gate.errors import NotPresentError, ProbeError
from k3gate.probes import storage_files
from k3gate.probes.storage_direct import Evidence, figure
from k3gate.probing.contract import Context
from k3gate.records import Case, Metric

PROGRAM = "fio"
INSTALL = "fio is not installed: `apt-get install fio`, or `dnf install fio`"
ENGINES = ("io_uring", "libaio")
"""The first that works is used; where a container forbids the first, the second mostly goes."""
_SLOWEST = 30.0


def find() -> str | None:
    """The program, where it is installed."""
    return shutil.which(PROGRAM)


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """A run of fio as a sample. `parameters`: sources (one), block, threads, depth."""
    program = find()
    if program is None:
        raise NotPresentError(INSTALL)
    place = storage_files.shared(context, case.parameters["sources"][0])
    if place.refusal:
        raise NotPresentError(f"the file system of {place.place} has no direct reads")
    evidence = Evidence(context, case, [place], direct=True)
    refused = ""
    for engine in ENGINES:
        begun = time.monotonic()
        command = arguments(program, engine, case, place, context.seconds)
        told, refused = _run(command, place, context)
        if told is None:
            context.setup(time.monotonic() - begun)
            continue
        read = told["read"]
        seconds = read["runtime"] / 1e3
        if not read["io_bytes"] or seconds <= 0:
            raise ProbeError("fio read nothing")
        rate = read["io_bytes"] / seconds
        context.setup(max(0.0, time.monotonic() - begun - seconds))
        samples = [context.sample(rate, seconds)]
        labels = {**case.labels, "engine": engine}
        yield figure(context, metrics.STORAGE_PEER, samples, labels, evidence.proofs(read["io_bytes"], rate))
        return
    raise ProbeError(f"fio could not read: {refused}")


def arguments(
    program: str, engine: str, case: Case, place: storage_files.OpenFiles, seconds: float
) -> list[str]:
    """The command line. Files are named by descriptors, so that no path is taken for two; `readonly` guards them."""
    parameters = case.parameters
    names = ":".join(f"/proc/self/fd/{one.buffered}" for one in place.files)
    threads = int(parameters["threads"])
    size = place.bytes // threads // parameters["block"] * parameters["block"]
    return [
        *(program, "--readonly", "--thread", "--group_reporting", "--output-format=json", "--name=load"),
        *(f"--filename={names}", "--rw=read", "--direct=1", f"--ioengine={engine}", "--invalidate=0"),
        *(f"--bs={parameters['block']}", f"--iodepth={parameters['depth']}", f"--numjobs={threads}"),
        *(f"--size={size}", f"--offset_increment={size if len(place.files) == 1 else 0}"),
        *(
            "--time_based",
            f"--runtime={max(0.2, seconds):.3f}s",
            "--norandommap",
            "--file_service_type=sequential",
        ),
    ]


def _run(
    command: list[str], place: storage_files.OpenFiles, context: Context
) -> tuple[dict[str, dict[str, int]] | None, str]:
    """(the job that fio tells of, what it said where it failed)."""
    descriptors = [one.buffered for one in place.files]
    limit = time.monotonic() + context.seconds + _SLOWEST
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
    ) as process:
        while True:
            try:
                out, err = process.communicate(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                context.heartbeat("fio reads")
                if time.monotonic() > limit:
                    process.kill()
                    process.communicate()
                    raise ProbeError(f"fio did not end within {context.seconds + _SLOWEST:.0f} s") from None
    text = out.decode(errors="replace")
    if process.returncode:
        said = (err.decode(errors="replace") or text).strip().splitlines()
        return None, said[0][:200] if said else f"exit code {process.returncode}"
    try:
        document = json.loads(text[text.index("{") :])
        job: dict[str, dict[str, int]] = document["jobs"][0]
    except (ValueError, LookupError, TypeError) as error:
        raise ProbeError("fio's answer is none that this version understands") from error
    return job, ""
