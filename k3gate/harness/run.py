"""A run from the first look at the machine to the last stored round; and the same run taken up again.

Each round is stored as it ends. Whatever stops the run (Ctrl-C, a full disk, a closed terminal) leaves what
was measured, under a status that says so; what no handler sees (SIGKILL) is found by the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

import attrs
from attrs import frozen

from k3gate import __version__, host, topology
from k3gate.documents import printable
from k3gate.errors import StorageError, UsageError
from k3gate.gate import criteria as criteria_module
from k3gate.gate import targets
from k3gate.harness import checkpoints, neighbours, network
from k3gate.harness.listening import Listener
from k3gate.harness.scratch import Scratch
from k3gate.harness.stored import now
from k3gate.harness.watch import Watch
from k3gate.harness.watch import notices as notices_of
from k3gate.host import load_paths, memory_files, redfish, storage
from k3gate.probing import idle, outcomes, plan, profiles, registry
from k3gate.probing.execute import CaseDone, CaseStarted, Event, Executor, Heartbeat, Watched, WorkerEnded
from k3gate.probing.plan import Execution, Plan
from k3gate.records import Evidence, Inventory, Outcome, Routing, Run, RunRecord, RunStatus

if TYPE_CHECKING:
    from k3gate.harness.serving import Asked
    from k3gate.harness.serving import Prepared as Served
    from k3gate.store import Store

NAME_CHARACTERS = 100
LOAD = "thermal"
"""The probe that loads the whole machine at once."""
REPLAY = "replay"
"""The probe that replays a trace of routing."""
LOADING = "storage"
"""The probe that reads where weights lie."""
SERVING = "prototype"
"""The probe that measures a runtime."""
CLOCK_STEP_SECONDS = 2.0
"""Wall clock and monotonic clock may part by this much before it is called a step."""


@frozen
class Request:
    """What the user asked for. `probes` None: all but those that run only by name."""

    profile: str
    target: str
    criteria: str | None = None
    probes: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    rounds: int | None = None
    machine_name: str | None = None
    working_set_bytes: int | None = None
    memory_files: tuple[str, ...] = ()
    trunk: str | None = None
    routing: str | None = None
    peer: str | None = None
    storage: tuple[str, ...] = ()
    store: str | None = None
    bmc: str | None = None
    minutes: int | None = None
    command: str | None = None
    serving: Asked | None = None


@frozen
class Prepared:
    """Everything that could be refused was looked at: nothing was measured, nothing stored."""

    request: Request
    inventory: Inventory
    plan: Plan
    notices: tuple[str, ...]
    target_text: str | None = None
    evidence: tuple[Evidence, ...] = ()
    """Of the checkpoint and the runtime that are to be measured together."""


def prepare(request: Request) -> Prepared:
    """Read the machine and plan the run; raises `UsageError` for anything that cannot be used."""
    criteria_module.load(request.criteria)
    name = request.machine_name
    if name is not None and not (
        0 < len(name.strip()) <= len(name) <= NAME_CHARACTERS and name.isprintable()
    ):
        raise UsageError(
            f"a machine's name has 1 to {NAME_CHARACTERS} characters, printable ones on one line: "
            f"give --machine another name than '{printable(name[:80])}'"
        )
    if request.bmc is not None:
        redfish.access(request.bmc)
    target = targets.load(request.target)
    profiles.load(request.profile, minutes=request.minutes)
    asked = storage.asked(request.storage)
    places = asked or _own_place(request)
    inventory = host.read(name=request.machine_name, paths=places)
    image = target.image(len(topology.main_nodes(inventory)))
    served = _served(request, target)
    profile = profiles.load(
        request.profile,
        image_bytes=image.bytes,
        image_detail=image.arithmetic(),
        working_set_bytes=request.working_set_bytes,
        memory_files=memory_files.asked(request.memory_files, request.probes),
        trunk=request.trunk or target.trunk,
        routing=_routing(request),
        minutes=request.minutes,
        load_alone=request.probes == (LOAD,),
        load_paths=[load_paths.look(path, asked=bool(asked)) for path in places],
        peer=network.peer(request.peer, request.probes),
        serving=None if served is None else served.serving,
    )
    notices: list[str] = []
    probes = registry.load(request.probes, notices)
    try:
        planned = plan.plan(probes, inventory, profile, only=request.only, rounds=request.rounds)
    except UsageError as error:
        if not request.only:
            raise
        # A pattern may match nothing because the probe that it means cannot measure here.
        whole = plan.plan(probes, inventory, profile, rounds=request.rounds)
        meant = [one for one in whole.left_out if _meant(f"{one.probe}/{one.case}", one.probe, request.only)]
        refusals = _reasons(attrs.evolve(whole, left_out=tuple(meant)), notices)
        raise UsageError("; ".join([str(error), *refusals])) from error
    if not planned.cases and not planned.refused:
        because = "; ".join(_reasons(planned, notices)) or "no probe has a case"
        raise UsageError(f"nothing to measure here with profile {profile.name}: {because}")
    own = None if request.target in targets.TIERS else target.text
    gathered = () if served is None else served.evidence
    return Prepared(request, inventory, planned, tuple(notices), own, gathered)


def _served(request: Request, target: targets.Target) -> Served | None:
    """The runtime to measure; `UsageError` where nothing would measure it."""
    if request.serving is None:
        return None
    if request.probes and SERVING not in request.probes:
        raise UsageError(
            f"a runtime is measured by the probe {SERVING}, which --probe leaves out: add --probe {SERVING}"
        )
    from k3gate.harness import serving

    if request.serving.command is not None and request.serving.checkpoint is None:
        raise UsageError(
            "--command needs --checkpoint PATH, the files that the runtime opens: what answers is held against them"
        )
    return serving.prepare(request.serving, target, request.rounds)


def _own_place(request: Request) -> tuple[str, ...]:
    """Where the user names no place of weights: the folder of the store, as k3gate writes there anyway."""
    if request.probes is not None and LOADING not in request.probes:
        return ()
    from k3gate.store import folder_of

    folder = folder_of(request.store)
    return () if folder is None else (folder,)


def _routing(request: Request) -> Routing | None:
    """The trace to replay; raises `UsageError` for a file that is none, or where nothing would replay it."""
    if request.routing is None:
        return None
    if request.probes and REPLAY not in request.probes:
        raise UsageError(
            f"--routing is replayed by the probe {REPLAY}, which --probe leaves out: add --probe {REPLAY}"
        )
    from k3gate.model.routing import likeness, reading

    trace = reading.read(request.routing)
    likeness.check(trace)
    ids = trace.experts.astype("<i2").tobytes()
    return Routing(
        source=trace.source,
        digest=f"sha256:{hashlib.sha256(ids).hexdigest()}",
        tokens=trace.tokens,
        layers=trace.layers,
        used=trace.used,
        experts=trace.expert_count,
        starts=trace.starts,
        ids=ids,
    )


def _meant(name: str, probe: str, only: Sequence[str]) -> bool:
    return any(pattern == probe or fnmatchcase(name, pattern) for pattern in only)


def _reasons(planned: Plan, notices: Sequence[str]) -> list[str]:
    """Why what might have been measured is not in a plan: by case, by probe, and by probes that are broken."""
    return [
        *(f"{one.case}: {one.reason}" for one in planned.left_out),
        *(f"probe {one.probe}: {one.reason}" for one in planned.refused),
        *notices,
    ]


def start(store: Store, prepared: Prepared) -> Run:
    """Store a new run as `running`, with its plan; returns it."""
    machine = prepared.inventory.machine
    run = Run(
        id=_new_id(store),
        machine=machine.id,
        fingerprint=machine.fingerprint,
        machine_name=machine.name,
        profile=prepared.plan.profile.name,
        version=__version__,
        started=now(),
        ended=None,
        status=RunStatus.RUNNING,
        target=targets.reference(prepared.request.target),
        target_text=prepared.target_text,
        command=prepared.request.command,
        notices=prepared.notices,
        plan=prepared.plan.cases,
        left_out=prepared.plan.left_out,
    )
    store.begin_run(run, prepared.inventory)
    for refused in prepared.plan.refused:
        store.save_outcome(run.id, refused)
    if prepared.evidence:
        checkpoints.keep_evidence(store, prepared.evidence, run.id)
    return run


def take_up(store: Store, reference: str, *, criteria: str | None = None) -> Run:
    """Set an interrupted run back to `running`; raises `UsageError` where it cannot go on here.

    It goes on only on the machine it was begun on, under the same settings and limits, and with the version
    that began it: other rounds would be of something else. `criteria` will judge it, so they are read first.
    """
    criteria_module.load(criteria)
    store.abandon_dead()
    record = store.load(store.resolve(reference))
    run = record.run
    if run.status is RunStatus.COMPLETE:
        raise UsageError(f"run {run.id} is complete: nothing is left to resume (k3gate show {run.id})")
    if run.status is RunStatus.RUNNING:
        raise UsageError(f"run {run.id} is still running: wait for it, or end it first")
    if run.version != __version__:
        raise UsageError(
            f"run {run.id} was begun by k3gate {run.version}, this is {__version__}: make a new run"
        )
    lying = record.inventory.storage.paths if record.inventory.storage else ()
    _refuse_elsewhere(record, host.read(name=run.machine_name, paths=tuple(place.path for place in lying)))
    memory_files.refuse_changed(run.plan)
    # Declares the metrics of third parties, by whose meaning the rounds to come are summarised.
    registry.load(tuple(dict.fromkeys(case.probe for case in run.plan)))
    resumed = attrs.evolve(run, status=RunStatus.RUNNING, ended=None)
    store.update_run(resumed)
    return resumed


def _refuse_elsewhere(record: RunRecord, here: Inventory) -> None:
    """Raise `UsageError` unless `here` is the machine of the run, as it was when the run was begun.

    Twins have one fingerprint, and one machine has other figures with fewer CPUs or in a container.
    """
    from k3gate.analysis import comparison

    run, machine = record.run, here.machine
    begun = {"id": run.machine, "fingerprint": run.fingerprint}
    now_here = {"id": machine.id, "fingerprint": machine.fingerprint}
    for key, before in begun.items():
        if before and now_here[key] and before != now_here[key]:
            raise UsageError(
                f"run {run.id} was begun on the machine of {key} {before}, this one has {now_here[key]}: "
                "make a new run here"
            )
    bare = attrs.evolve(record, outcomes=())
    differing = comparison.compare(bare, attrs.evolve(bare, inventory=here)).differences
    if differing:
        shown = [f"{one.field} was {_short(one.a)}, is {_short(one.b)}" for one in differing[:FIELDS_SHOWN]]
        more = f", and {len(differing) - FIELDS_SHOWN} more" if len(differing) > FIELDS_SHOWN else ""
        raise UsageError(
            f"run {run.id} was begun under other conditions: {'; '.join(shown)}{more}: resume it as it was begun, "
            "or make a new run here"
        )


FIELDS_SHOWN = 3


def _short(value: object) -> str:
    text = "unknown" if value is None else printable(str(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def measure(store: Store, run: Run, listener: Listener, *, bmc: str | None = None) -> RunRecord:
    """Measure what is left of the run's plan and store each round as it ends; returns the whole record.

    Heat, power and counters are watched meanwhile; `bmc`: the address of a BMC that is asked too.
    Raises `KeyboardInterrupt` after the run was stored as interrupted, and `StorageError` where the store
    refused a write; rows stored before stay.
    """
    record = store.load(run.id)
    collected = {(o.probe, o.case): o for o in record.outcomes}
    executions = plan.executions(run.plan)
    left = outcomes.remaining(executions, tuple(collected.values()))
    listener.planned(_planned(run), len(executions) - len(left))
    access = None if bmc is None else redfish.access(bmc)
    timer = _Timer(run)
    watch = Watch(record.inventory, timer.base, partial(store.add_watched, run.id), access)
    try:
        with (
            _interruptible(),
            watch,
            Scratch(case for execution in left for case in execution.cases) as scratch,
            Executor(record.inventory, started=timer.base, files=scratch.files) as executor,
        ):
            for execution in left:
                listener.execution(execution)
                _measure_one(store, run, execution, executor, collected, timer, listener, watch)
    except KeyboardInterrupt:
        _close(store, run, timer, collected, RunStatus.INTERRUPTED, watch)
        raise
    except StorageError:
        with contextlib.suppress(StorageError):
            _close(store, run, timer, collected, RunStatus.STORAGE_FAILED, watch)
        raise
    _close(store, run, timer, collected, RunStatus.COMPLETE, watch)
    whole = store.load(run.id)
    if not any(case.probe == SERVING for case in run.plan):
        return whole
    from k3gate.harness import serving

    return serving.conclude(store, whole)


def _measure_one(
    store: Store,
    run: Run,
    execution: Execution,
    executor: Executor,
    collected: dict[tuple[str, str], Outcome],
    timer: _Timer,
    listener: Listener,
    watch: Watch,
) -> None:
    """One worker's work: store each round as it ends, then what the rest of the machine did meanwhile."""
    due = outcomes.due(execution, tuple(collected.values()))
    if due is None:
        return
    before, begun = idle.read(), time.monotonic()

    def watched() -> None:
        outcome = neighbours.merge(collected.get(neighbours.KEY), before, idle.read(), timer.elapsed())
        store.save_outcome(run.id, outcome, outcome.rounds[-1].round)
        collected[neighbours.KEY] = outcome

    try:
        _follow(store, run, executor.run(due), execution, collected, timer, listener, watch)
    except KeyboardInterrupt:
        # What disturbed the worker that was interrupted is evidence as well, and its time was used.
        timer.worker_seconds += time.monotonic() - begun
        watched()
        raise
    watched()
    watch.between_workers()


def _follow(
    store: Store,
    run: Run,
    events_of: Generator[Event, None, None],
    execution: Execution,
    collected: dict[tuple[str, str], Outcome],
    timer: _Timer,
    listener: Listener,
    watch: Watch,
) -> None:
    """Take in what a worker reports, until its end."""
    # Closed before the interrupt travels on: the worker is dead and reaped when the run's end is stored.
    with contextlib.closing(events_of) as events:
        for event in events:
            match event:
                case CaseStarted():
                    watch.begin(event.case, event.round)
                    listener.beat(event.case.name, "")
                case Heartbeat():
                    listener.beat(event.case.name if event.case else None, event.note)
                case Watched():
                    watch.add(event.series)
                    watch.within_case()
                case CaseDone():
                    watch.end()
                    _store_round(store, run, event, collected)
                    listener.measured(collected[event.case.probe, event.case.name], event.round)
                case WorkerEnded():
                    timer.worker_seconds += event.seconds
                    if event.reason:
                        told = f"worker of {execution.key}: {event.reason}"
                        listener.notice(told)
                        timer.told.append(told)


def _store_round(store: Store, run: Run, done: CaseDone, collected: dict[tuple[str, str], Outcome]) -> None:
    key = (done.case.probe, done.case.name)
    merged = outcomes.merge(collected.get(key), done.case, done.round, done.metrics)
    store.save_outcome(run.id, merged, done.round.round)
    collected[key] = merged
    for name, output in (("stdout", done.output.stdout), ("stderr", done.output.stderr)):
        if output:
            store.add_artifact(run.id, key, f"round-{done.round.round}.{name}", output)


class _Timer:
    """Where the wall time of a run goes, over all its sittings. `base` is what samples are stamped from."""

    def __init__(self, run: Run) -> None:
        self._earlier = run.seconds or 0.0
        self.base = time.monotonic() - self._earlier
        self._wall = time.time() - self._earlier
        self.worker_seconds = run.split.get("workers", 0.0)
        self.told: list[str] = []
        """What workers ended of, other than of having done their work."""

    def elapsed(self) -> float:
        """Seconds since the run began, less the pauses between sittings."""
        return time.monotonic() - self.base

    def clock_step(self) -> float:
        """How far the wall clock has moved against the monotonic one in this sitting."""
        return (time.time() - self._wall) - self.elapsed()


def _close(
    store: Store,
    run: Run,
    timer: _Timer,
    collected: dict[tuple[str, str], Outcome],
    status: RunStatus,
    watch: Watch,
) -> None:
    """Store what was watched, and the end of the run or of this sitting."""
    if status is not RunStatus.STORAGE_FAILED:
        watch.save()
        found = list(watch.outcomes(list(collected.values())))
        store.save_outcomes(run.id, found)
        collected.update({(outcome.probe, outcome.case): outcome for outcome in found})
        timer.told += notices_of(found)
    reasons = " ".join(outcome.reason or "" for outcome in collected.values())
    notices = [*run.notices, *(told for told in timer.told if told.partition(": ")[2] not in reasons)]
    step = timer.clock_step()
    if abs(step) > CLOCK_STEP_SECONDS:
        notices.append(
            f"clock stepped: the wall clock moved by {step:+.0f} s against the monotonic clock; "
            "durations are monotonic, stamps are as the wall clock had them"
        )
    store.update_run(
        attrs.evolve(
            run,
            status=status,
            ended=now(),
            seconds=timer.elapsed(),
            notices=tuple(dict.fromkeys(notices)),
            split=_split(timer, collected),
        )
    )


def _split(timer: _Timer, collected: Mapping[tuple[str, str], Outcome]) -> dict[str, float]:
    """Wall seconds in timed regions, in set-up within workers (with these: "workers"), and elsewhere."""
    timed = sum(round_.timed_seconds for outcome in collected.values() for round_ in outcome.rounds)
    return {
        "timed": timed,
        "setup_in_workers": max(0.0, timer.worker_seconds - timed),
        "elsewhere": max(0.0, timer.elapsed() - timer.worker_seconds),
        "workers": timer.worker_seconds,
    }


def _planned(run: Run) -> Plan:
    return Plan(profiles.load(run.profile), run.plan, plan.executions(run.plan), run.left_out)


def _new_id(store: Store) -> str:
    """Eight letters and digits that are hard to confuse, drawn again where they are taken."""
    alphabet = "abcdefghjkmnpqrstvwxyz0123456789"
    taken = {run.id for run in store.runs()}
    while True:
        drawn = "".join(secrets.choice(alphabet) for _ in range(8))
        if drawn not in taken and not drawn.isdigit():
            return drawn


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as Ctrl-C does; handlers are put back afterwards."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = {}
    with contextlib.suppress(ValueError):  # not in the main thread: the caller handles signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup asked for the run to outlive its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
