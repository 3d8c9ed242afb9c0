"""`k3gate run`: measure this machine, store the run, judge it, report."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from k3gate.cli.options import (
    bmc_option,
    criteria_option,
    exit_code,
    json_option,
    place,
    print_json,
    short,
    storage_option,
    store_option,
    target_option,
    word,
)
from k3gate.cli.output import check_output, write_output
from k3gate.cli.serving_options import asked, serving_options
from k3gate.documents import printable
from k3gate.errors import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_OK, EXIT_PROBE_FAILED, EXIT_USAGE, UsageError
from k3gate.records import State

if TYPE_CHECKING:
    from k3gate.harness.run import Prepared
    from k3gate.harness.stored import Judged
    from k3gate.records import RunRecord
    from k3gate.store import Store

TRUNKS = ("bf16", "q8_0", "mxfp4", "gpu")


@click.command("run", short_help="Measure this machine, store the run, judge it.")
@click.option(
    "--profile",
    type=word,
    metavar="NAME",
    help="Time budget: smoke (20 s), quick (3 min, the default), standard (20 min), soak (30 min and more).",
)
@click.option(
    "--minutes",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="How long the profile soak is, 30 by default: what it has beyond 20 loads the whole machine at once; with "
    "--probe thermal all of it.",
)
@target_option("residency-lab, the least demanding")
@criteria_option
@click.option(
    "--probe", "probes", type=word, multiple=True, metavar="NAME", help="Only this probe; may be repeated."
)
@click.option(
    "--only",
    type=word,
    multiple=True,
    metavar="PATTERN",
    help="Only cases such as 'memory/read.*'; may be repeated.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 1000), help="Rounds of each case instead of the probes' own."
)
@click.option(
    "--working-set",
    "working_set",
    metavar="SIZE",
    help="Larger pools than 4 x the last-level caches, such as 8GB; smaller ones are refused.",
)
@click.option(
    "--memory-file",
    "memory_files",
    type=place,
    multiple=True,
    metavar="PATH",
    help="Read this file too, mapped as memory, and never write to it; of a folder: make a file there, "
    "and remove it. May be repeated.",
)
@click.option(
    "--trunk",
    type=word,
    metavar="FORMAT",
    help="How the decode replay lays out the trunk: bf16, q8_0, mxfp4, or gpu, which leaves it out. "
    "The target's own by default.",
)
@click.option(
    "--routing",
    type=place,
    metavar="FILE",
    help="Replay the experts of this trace (k3gate routing FILE describes it) instead of a model of routing.",
)
@click.option(
    "--peer",
    type=word,
    metavar="HOST[:PORT]",
    help="Measure the network to this machine, which runs `k3gate net serve`.",
)
@serving_options
@click.option(
    "--streams",
    type=click.IntRange(1, 1024),
    multiple=True,
    help="Answers at once of the runtime, besides those of the target; may be repeated.",
)
@storage_option
@bmc_option
@click.option("--machine", "machine_name", metavar="NAME", help="A name for this machine that people use.")
@click.option(
    "--resume", type=word, metavar="RUN", help="Go on with an interrupted run; measures only what is left."
)
@click.option("--dry-run", is_flag=True, help="Show the cases, seconds and bytes; measure nothing.")
@click.option("--report", "report_path", metavar="FILE", help="Write the HTML report too.")
@click.option(
    "--enforce", is_flag=True, help="Exit by the verdict: 0 pass, 1 fail, 3 unproven; 4 a probe failed."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@json_option
@store_option
def command(
    profile: str | None,
    minutes: int | None,
    target: str | None,
    criteria: str | None,
    probes: tuple[str, ...],
    only: tuple[str, ...],
    rounds: int | None,
    working_set: str | None,
    memory_files: tuple[str, ...],
    trunk: str | None,
    routing: str | None,
    peer: str | None,
    paths: tuple[str, ...],
    bmc: str | None,
    machine_name: str | None,
    resume: str | None,
    dry_run: bool,
    report_path: str | None,
    enforce: bool,
    quiet: bool,
    as_json: bool,
    store_location: str | None,
    streams: tuple[int, ...],
    **told: Any,
) -> int:
    """Measure this machine, store every sample, and judge the seven steps of the procurement gate.

    Nothing on the machine is changed and nothing needs root. Ctrl-C keeps what was measured;
    `k3gate run --resume RUN` goes on. Exit code: 0 measured and stored, whatever the verdict;
    4 a probe failed; 130 interrupted.
    """
    from k3gate.harness import run as harness
    from k3gate.harness import stored
    from k3gate.store import open_store

    check_output(report_path)
    if resume is not None:
        _refuse_with_resume(
            profile=profile,
            minutes=minutes,
            target=target,
            machine=machine_name,
            probe=probes,
            only=only,
            rounds=rounds,
            working_set=working_set,
            memory_file=memory_files,
            trunk=trunk,
            routing=routing,
            peer=peer,
            storage=paths,
            dry_run=dry_run,
            command=told["command_text"],
            endpoint=told["endpoint"],
            checkpoint=told["checkpoint"],
        )
    request = harness.Request(
        profile=profile or "quick",
        target=target or stored.DEFAULT_TARGET,
        criteria=criteria,
        probes=probes or None,
        only=only or None,
        rounds=rounds,
        machine_name=machine_name,
        working_set_bytes=_size(working_set),
        memory_files=memory_files,
        trunk=_trunk(trunk),
        routing=routing,
        peer=peer,
        storage=paths,
        store=store_location,
        bmc=bmc,
        minutes=minutes,
        command=printable(shlex.join(["k3gate", *sys.argv[1:]])),
        serving=asked(told, streams),
    )
    if dry_run:
        return _show_plan(harness.prepare(request), as_json)
    # Whatever can be refused is refused before the store is opened, or made.
    prepared = None if resume is not None else harness.prepare(request)
    for notice in prepared.notices if prepared else ():
        _tell(f"note: {notice}")
    with open_store(store_location, create=resume is None) as store:
        for lost in store.abandon_dead():
            _tell(f"run {lost} was killed: it is marked abandoned; go on with k3gate run --resume {lost}")
        run = (
            harness.start(store, prepared)
            if prepared
            else harness.take_up(store, resume or "", criteria=criteria)
        )
        from k3gate.cli.progress import listener

        with listener(quiet) as listening:
            try:
                harness.measure(store, run, listening, bmc=bmc)
            except KeyboardInterrupt:
                _tell(f"interrupted; what was measured is kept: k3gate run --resume {run.id}")
                return EXIT_INTERRUPTED
        try:
            judged = stored.judge(store, run.id, criteria=criteria)
        except UsageError as error:  # a file that is gone by now, perhaps
            raise UsageError(f"{error}; run {run.id} is stored: k3gate gate {run.id} judges it") from error
        # Before anything is printed: a full disk or a closed pipe behind stdout must not cost the page.
        written = _write_report(store, judged, report_path)
    _publish(judged, as_json=as_json, report_path=report_path if written else None)
    if not written:
        return EXIT_USAGE
    return _code(judged, enforce)


def _code(judged: Judged, enforce: bool) -> int:
    """A failed probe wins over pass and unproven, which it may have caused; a fail stands by other evidence."""
    code = exit_code(judged.result.verdict) if enforce else EXIT_OK
    failed = any(outcome.state is State.FAILED for outcome in judged.record.outcomes)
    return EXIT_PROBE_FAILED if failed and code != EXIT_FAIL else code


def _show_plan(prepared: Prepared, as_json: bool) -> int:
    from k3gate.cli.printing import say
    from k3gate.probing import plan

    if as_json:
        print_json(plan.document(prepared.plan))
    else:
        for notice in prepared.notices:
            _tell(f"note: {notice}")
        say(plan.text(prepared.plan).rstrip("\n"))
    return EXIT_OK


def _write_report(store: Store, judged: Judged, path: str | None) -> bool:
    """Write the page where one is asked for. False where that failed, which was told with the way out."""
    from k3gate.harness import stored

    if path is None:
        return True
    try:
        write_output(path, stored.page(store, judged))
    except UsageError as error:
        run_id = judged.record.run.id
        _tell(f"{error}; run {run_id} is stored: k3gate report {run_id} -o FILE writes the page")
        return False
    return True


def _publish(judged: Judged, *, as_json: bool, report_path: str | None) -> None:
    """The JSON document or the text on stdout, and the report's path."""
    from pathlib import Path

    from k3gate.cli.printing import (
        print_expectation,
        print_gate,
        print_left_out,
        print_measurements,
        run_line,
        say,
    )
    from k3gate.harness import stored

    record, result = judged.record, judged.result
    if as_json:
        print_json(stored.run_document(record, result))
    else:
        say(run_line(record))
        say(_split_line(record))
        say()
        print_measurements(record)
        print_left_out(record)
        print_expectation(stored.expectation(record, judged.target), result)
        say()
        print_gate(result, every_check=False)
    if report_path:
        path = Path(report_path).resolve()
        if as_json:
            _tell(f"report: {path}")
        else:
            say(f"Report: {path}")


def _split_line(record: RunRecord) -> str:
    """Where the wall time went: in timed regions, in set-up within workers, elsewhere."""
    split = record.run.split
    whole = split.get("workers", 0.0) + split.get("elsewhere", 0.0)
    if not whole:
        return "nothing was timed"
    timed, setup, elsewhere = (
        split.get(key, 0.0) / whole * 100 for key in ("timed", "setup_in_workers", "elsewhere")
    )
    parts = f"{timed:.0f} % was timed, {setup:.0f} % set-up in workers, {elsewhere:.0f} % elsewhere"
    return f"of the wall time {parts}"


def _refuse_with_resume(**given: object) -> None:
    for name, value in given.items():
        if value not in (None, (), False):
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"--resume goes on with the run's own plan: leave {option} away, or make a new run"
            )


def _trunk(text: str | None) -> str | None:
    if text is None or text in TRUNKS:
        return text
    from k3gate.probing.profiles import suggest

    raise UsageError(f"--trunk {short(text)} is no layout of the trunk: {suggest(text, TRUNKS)}")


def _size(text: str | None) -> int | None:
    """Bytes from "8GB", "512MiB" or a plain number; raises `UsageError` otherwise."""
    if text is None:
        return None
    import re

    flags = re.ASCII | re.IGNORECASE
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)(i?)b?", text.strip(), flags)
    number, prefix, binary = match.groups() if match else ("0", "", "")
    power = " KMGT".index(prefix.upper()) if prefix else 0
    size = int(float(number) * (1024 if binary else 1000) ** power)
    if size == 0:
        raise UsageError(f"--working-set {short(text)} is no size: write bytes, or such as 8GB or 512MiB")
    return size


def _tell(text: str) -> None:
    print(f"k3gate: {text}", file=sys.stderr)
