"""Workers that crash, hang, lie and flood: each costs its own case, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import attrs
import pytest

from k3gate.probing import outcomes, plan, profiles, registry
from k3gate.probing.execute import (
    CaseDone,
    CaseStarted,
    Executor,
    Heartbeat,
    Watched,
    WorkerEnded,
    WorkerStarted,
)
from k3gate.probing.plan import Execution
from k3gate.records import Case, Outcome, State

DEADLINE_SECONDS = 30


def assert_gone(process: int) -> None:
    """The process ends within the deadline; waits on the kernel and not on a clock."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], DEADLINE_SECONDS)
    finally:
        os.close(descriptor)
    assert ready, f"process {process} is still there"


def descriptors() -> set[str]:
    """The open descriptors of this process."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def selftest_plan(make_inventory):
    return plan.plan(registry.load(["selftest"]), make_inventory(), profiles.load("smoke"))


def drive(executions, inventory, **options) -> tuple[dict[str, Outcome], list]:
    """A run as the harness drives it; outcomes by case name, and all events."""
    found: dict[str, Outcome] = {}
    events = []
    with Executor(inventory, **options) as executor:
        for execution in executions:
            left = outcomes.due(execution, found.values())
            for event in executor.run(left) if left else ():
                events.append(event)
                if isinstance(event, CaseDone):
                    name = event.case.name
                    found[name] = outcomes.merge(found.get(name), event.case, event.round, event.metrics)
    return found, events


def test_a_run_yields_every_round_with_its_times_and_leaves_nothing_behind(
    selftest_plan, make_inventory
) -> None:
    before = descriptors()
    found, events = drive(selftest_plan.executions, make_inventory())
    assert list(found) == ["hash.64k", "hash.256k", "hash.1024k", "hash.2048k", "hash.4096k"]
    for outcome in found.values():
        assert outcome.state in (State.OK, State.UNSTABLE)
        (metric,) = outcome.metrics
        assert len(metric.samples) == 9 and metric.median > 0 and metric.proofs[0].ok
        assert len({sample.process for sample in metric.samples}) == 3, "each round is a fresh process"
        for one in outcome.rounds:
            assert (
                0 < one.timed_seconds <= one.seconds and one.timed_seconds + one.setup_seconds <= one.seconds
            )
    starts = [sample.start_s for sample in found["hash.64k"].metrics[0].samples]
    assert starts == sorted(starts) and starts[0] > 0
    ended = [event for event in events if isinstance(event, WorkerEnded)]
    assert len(ended) == 6 and all(event.reason is None for event in ended)
    assert [event.notes for event in events if isinstance(event, WorkerStarted)] == [()] * 6
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("crash", State.FAILED, "died of SIGSEGV: it touched memory that is not its own"),
        ("sigill", State.FAILED, "died of SIGILL: it ran an instruction that this CPU lacks"),
        ("kill", State.FAILED, "died of SIGKILL: somebody killed it, most often the kernel"),
        ("exit", State.FAILED, "ended with exit code 7 before it was done"),
        ("exception", State.FAILED, "ValueError: an exception on purpose"),
        ("not_permitted", State.NOT_PERMITTED, "refused on purpose"),
        ("hang", State.FAILED, "ran longer than its limit of 0.2 s and was killed"),
        ("silent", State.FAILED, "gave no sign for 0.6 s and was killed"),
    ],
)
def test_a_fault_costs_its_case_alone(selftest_plan, make_inventory, monkeypatch, kind, state, words) -> None:
    monkeypatch.setenv("K3GATE_SELFTEST_FAULT", f"hash.256k:1:{kind}")
    options = {"silence_s": 0.6} if kind == "silent" else {}
    executions = [one for one in selftest_plan.executions if one.group == "small"] + [
        one for one in selftest_plan.executions if one.group == "large" and one.round == 0
    ]
    if kind == "hang":
        executions = [
            attrs.evolve(
                one,
                cases=tuple(
                    attrs.evolve(case, time_limit_s=0.2) if case.name == "hash.256k" else case
                    for case in one.cases
                ),
            )
            for one in executions
        ]
    before = descriptors()
    found, events = drive(executions, make_inventory(), **options)
    lost = found.pop("hash.256k")
    assert lost.state is state and words in lost.reason
    assert {sample.round for sample in lost.metrics[0].samples} == {0}, "the finished round is kept"
    assert len(lost.rounds) == 2, "it is not tried again"
    assert {name: len(outcome.rounds) for name, outcome in found.items()} == {
        "hash.64k": 3,
        "hash.1024k": 1,
        "hash.2048k": 1,
        "hash.4096k": 1,
    }
    assert all(one.state is State.OK for outcome in found.values() for one in outcome.rounds)
    if kind == "exception":
        (traceback,) = [
            event.output.stderr for event in events if getattr(event, "output", None) and event.output.stderr
        ]
        assert b"Traceback" in traceback and b"an exception on purpose" in traceback
    assert descriptors() == before


def test_the_rest_of_the_group_goes_on_in_a_fresh_worker(selftest_plan, make_inventory, monkeypatch) -> None:
    monkeypatch.setenv("K3GATE_SELFTEST_FAULT", "hash.1024k:0:kill")
    (execution,) = [one for one in selftest_plan.executions if (one.group, one.round) == ("large", 0)]
    found, events = drive([execution], make_inventory())
    workers = [event.process for event in events if isinstance(event, WorkerStarted)]
    assert len(workers) == 2
    assert found["hash.1024k"].rounds[0].process == workers[0]
    assert found["hash.2048k"].rounds[0].process == found["hash.4096k"].rounds[0].process == workers[1]


def test_a_flood_on_stdout_is_capped_and_costs_nothing(selftest_plan, make_inventory, monkeypatch) -> None:
    monkeypatch.setenv("K3GATE_SELFTEST_FAULT", "hash.64k:0:flood")
    found, events = drive(selftest_plan.executions[:1], make_inventory())
    assert found["hash.64k"].rounds[0].state is State.OK
    output = next(event.output for event in events if isinstance(event, CaseDone))
    assert len(output.stdout) == 2**18 and output.dropped > 8e6


@pytest.mark.case("STO-05")
def test_sto_05_stop_kills_the_worker_and_keeps_what_was_finished(
    selftest_plan, make_inventory, monkeypatch
) -> None:
    monkeypatch.setenv("K3GATE_SELFTEST_FAULT", "hash.256k:0:silent")
    before = descriptors()
    events = []
    with Executor(make_inventory()) as executor:
        for event in executor.run(selftest_plan.executions[0]):
            events.append(event)
            if isinstance(event, CaseStarted) and event.case.name == "hash.256k":
                executor.stop()
    assert [event.case.name for event in events if isinstance(event, CaseDone)] == ["hash.64k"]
    assert isinstance(events[-1], WorkerEnded) and events[-1].reason == "it was stopped"
    assert descriptors() == before


@pytest.mark.case("STO-05")
def test_sto_05_an_exception_in_the_caller_leaves_no_worker(
    selftest_plan, make_inventory, monkeypatch
) -> None:
    monkeypatch.setenv("K3GATE_SELFTEST_FAULT", "hash.64k:0:silent")
    seen = 0
    with pytest.raises(KeyboardInterrupt), Executor(make_inventory()) as executor:
        run = executor.run(selftest_plan.executions[0])
        with contextlib.closing(run):
            for event in run:
                if isinstance(event, CaseStarted):
                    seen = event.process
                    raise KeyboardInterrupt
    assert not Path(f"/proc/{seen}").exists()


def test_the_death_of_the_parent_kills_the_worker(selftest_plan, make_inventory, repository: Path) -> None:
    script = textwrap.dedent(
        """
        import os
        from k3gate.probing import plan, profiles, registry
        from k3gate.probing.execute import CaseStarted, Executor
        from k3gate.records import Cpu, Inventory, Kernel, Limits, Machine, Memory, Numa
        limits = Limits(usable_memory_bytes=2**30)
        inventory = Inventory(Machine(), Cpu(), Numa(True), Memory(), Kernel(), limits)
        planned = plan.plan(registry.load(["selftest"]), inventory, profiles.load("smoke"))
        for event in Executor(inventory).run(planned.executions[0]):
            if isinstance(event, CaseStarted):
                print(event.process, flush=True)
        """
    )
    environment = os.environ | {"K3GATE_SELFTEST_FAULT": "hash.64k:0:silent"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, cwd=repository
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        score = Path(f"/proc/{worker}/oom_score_adj").read_text().strip()
        own_group = os.getpgid(worker)
        parent.send_signal(signal.SIGKILL)
    assert_gone(worker)
    assert score == "1000" and own_group == worker


SPY = """
import ctypes, json, os, pathlib, signal, subprocess, sys, time
from k3gate.metrics import SELFTEST_RATE, MEMORY_READ
from k3gate.probing.contract import Applies, Planned

class Spy:
    name, title, metrics = "spy", "does as it is told", (SELFTEST_RATE,)
    def applies(self, inventory): return Applies()
    def cases(self, inventory, profile): return Planned(())
    def run(self, case, context):
        value, declaration, labels = 2000.5, SELFTEST_RATE, {}
        results = context._results._descriptor
        told = case.parameters["do"]
        exec(told, scope := {**globals(), **locals()})
        value, declaration, labels = scope["value"], scope["declaration"], scope["labels"]
        yield context.metric(declaration, [context.sample(value, 0.25)], labels)
"""


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_inventory):
    """Runs one round of cases that do as they are told in a worker; returns `CaseDone`s and all events."""
    (tmp_path / "spy_probe.py").write_text(SPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(*told: str, **options):
        cases = tuple(
            Case("spy", f"c{index}", "", "g", {"do": text}, 1.0, 0) for index, text in enumerate(told)
        )
        inventory = make_inventory()
        with Executor(inventory, references={"spy": "spy_probe:Spy"}, **options) as executor:
            events = list(executor.run(Execution(0, "spy", "g", cases)))
        return [event for event in events if isinstance(event, CaseDone)], events

    return run


@pytest.mark.case("STO-07")
def test_sto_07_a_worker_knows_no_decimal_comma(spy, monkeypatch) -> None:
    for name in ("LC_ALL", "LANG", "LC_NUMERIC", "LANGUAGE"):
        monkeypatch.setenv(name, "de_DE.UTF-8")
    look = """
import locale
locale.setlocale(locale.LC_ALL, "")
names = {n: v for n, v in os.environ.items() if n.startswith("LC_") or n in ("LANG", "LANGUAGE")}
labels = {"names": json.dumps(names), "point": locale.localeconv()["decimal_point"]}
ctypes.CDLL(None).printf(b"%.3f\\n", ctypes.c_double(4600.25)); ctypes.CDLL(None).fflush(None)
"""
    (done,), _ = spy(look)
    (metric,) = done.metrics
    assert metric.samples[0].value == 2000.5
    assert metric.labels == {"names": '{"LC_ALL": "C", "LANG": "C"}', "point": "."}
    assert done.output.stdout == b"4600.250\n"


@pytest.mark.case("TOP-07")
def test_top_07_a_worker_keeps_the_cpus_that_its_parent_was_given(spy) -> None:
    given = os.sched_getaffinity(0)
    one = max(given)
    try:
        os.sched_setaffinity(0, {one})
        (done,), _ = spy("labels = {'cpus': json.dumps(sorted(os.sched_getaffinity(0)))}")
    finally:
        os.sched_setaffinity(0, given)
    assert done.metrics[0].labels == {"cpus": f"[{one}]"}


def test_what_a_probe_started_dies_with_its_worker(spy) -> None:
    (done,), _ = spy("value = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']).pid")
    assert_gone(int(done.metrics[0].samples[0].value))


def test_a_worker_ignores_ctrl_c_and_has_no_core_dump(spy) -> None:
    (done,), _ = spy(
        "import resource; os.kill(os.getpid(), signal.SIGINT);"
        "value = resource.getrlimit(resource.RLIMIT_CORE)[0]"
    )
    assert done.round.state is State.OK and done.metrics[0].samples[0].value == 0


def test_a_case_sees_the_machine_as_the_parent_read_it(spy, make_inventory) -> None:
    (done,), _ = spy("labels = {'model': context.inventory.cpu.model, 'seconds': context.seconds}")
    assert done.metrics[0].labels == {"model": make_inventory().cpu.model, "seconds": 1.0}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("value = float('nan')", "a sample of nan timed over 0.25 s is no measurement"),
        ("declaration = MEMORY_READ", "yields 'memory.bandwidth.read', which its metrics do not declare"),
        ("labels = {'long': 'x' * 2**20}", "longer than the 1048576 allowed"),
        ("labels = {'odd': object()}", "a result cannot be sent: TypeError"),
        ("raise MemoryError", "MemoryError"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise ValueError('two\\nlines \\x1b[31m')", "ValueError: two lines \\x1b[31m"),
    ],
)
def test_a_mistake_of_a_probe_fails_its_case_with_one_line(spy, told: str, reason: str) -> None:
    (bad, good), _ = spy(told, "")
    assert bad.round.state is State.FAILED and reason in bad.round.reason and "\n" not in bad.round.reason
    assert good.round.state is State.OK
    assert bad.round.process == good.round.process, "the worker itself goes on"


def test_what_a_case_prints_is_kept_with_that_case(spy) -> None:
    told = [
        f"[print('case {n}', file=stream, flush=True) for stream in (sys.stdout, sys.stderr)]"
        for n in range(5)
    ]
    done, _ = spy(*told)
    for number, event in enumerate(done):
        assert event.output.stdout == event.output.stderr == f"case {number}\n".encode()


def test_the_next_case_waits_until_the_caller_has_stored_the_last(spy, make_inventory) -> None:
    told = {"do": "labels = {'begun': time.monotonic()}"}
    cases = tuple(Case("spy", f"c{number}", "", "g", told, 1.0, 0) for number in range(5))
    stored = 0.0
    with Executor(make_inventory(), references={"spy": "spy_probe:Spy"}) as executor:
        for event in executor.run(Execution(0, "spy", "g", cases)):
            if isinstance(event, CaseDone):
                assert event.metrics[0].labels["begun"] > stored
                outcomes.merge(None, event.case, event.round, event.metrics)
                stored = time.monotonic()


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("os.write(results, b'hello\\n'); signal.pause()", "sent a line that is no result: 'hello'"),
        (
            'os.write(results, b\'{"type": "metric", "metric": {}}\\n\'); signal.pause()',
            "a metric that is none",
        ),
        ("os.write(results, b'[' * 100000 + b'\\n'); signal.pause()", "sent a line that is no result"),
        (
            'os.write(results, b\'{"type": "started", "case": "c1"}\\n\'); signal.pause()',
            "began a case out of turn",
        ),
        ("os.write(results, b'x' * 2**21); signal.pause()", "sent a line longer than 1048576 bytes"),
        (
            'line = b\'{"type": "heartbeat", "note": "\' + b\'x\' * 10**6 + b\'"}\\n\'\n'
            "while True: os.write(results, line)",
            "sent more than 67108864 bytes of results",
        ),
        ("os.close(results); signal.pause()", "closed its results before it was done"),
        (
            "os.write(results, b'\\xff\\x00\\x1b[31m\\n'); signal.pause()",
            "sent a line that is no result: '\\xff\\x00\\x1b[31m'",
        ),
    ],
)
def test_garbage_from_a_worker_costs_the_case_under_way(spy, told: str, reason: str) -> None:
    (bad, good), events = spy(told, "")
    assert bad.round.state is State.FAILED and reason in bad.round.reason
    assert good.round.state is State.OK and good.round.process != bad.round.process
    assert all(len(event.note) <= 500 for event in events if isinstance(event, Heartbeat))


def test_series_of_a_worker_come_as_it_tells_them_on_the_clock_of_the_run(spy) -> None:
    (done,), events = spy(
        "[context.watched('load.rate', 'B/s', {'node': 1}, [time.monotonic()], [value]) for value in (5.0, None)]"
    )
    assert done.round.state is State.OK
    told = [event.series for event in events if isinstance(event, Watched)]
    assert [(one.name, dict(one.labels), one.values) for one in told] == [
        ("load.rate", {"node": 1}, (5.0,)),
        ("load.rate", {"node": 1}, (None,)),
    ]
    assert 0 < told[0].times[0] <= told[1].times[0] < 60


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("context.watched('temperature', 'degC', {}, [time.monotonic()], [20.0])", "is the monitor's own"),
        ("context.watched('x', '1', {}, [1.0, 2.0], [20.0])", "has 2 times and 1 values"),
        ("context.watched('x', '1', {}, [2.0, 1.0], [1.0, 1.0])", "goes back in time"),
        ("context.watched('x', '1', {}, [1.0], [float('inf')])", "no finite number"),
        ("context.watched('x', '1', {}, [1.0], [1.0])", "times at which it did not run"),
        (
            "now = time.monotonic(); context.watched('x', '1', {}, [now], [1.0]);"
            "context.watched('x', '1', {}, [now - 0.1], [1.0])",
            "times at which it did not run",
        ),
        (
            'os.write(results, b\'{"type": "series", "series": {"name": "power", "unit": "W", "labels": {}, '
            '"times": [9], "values": [1]}}\\n\'); signal.pause()',
            "a series that is no worker's: 'power'",
        ),
        (
            'os.write(results, b\'{"type": "series", "series": {}}\\n\'); signal.pause()',
            "a series that is none",
        ),
    ],
)
def test_a_series_that_is_none_costs_its_case(spy, told: str, reason: str) -> None:
    """What the store holds can be read back: no worker can put there what cannot."""
    (bad, good), _ = spy(told, "")
    assert bad.round.state is State.FAILED and reason in bad.round.reason
    assert good.round.state is State.OK


def test_a_worker_that_cannot_load_its_probe_fails_its_cases_once(spy, make_inventory) -> None:
    case = Case("spy", "c0", "", "g", {}, 1.0, 0)
    executor = Executor(make_inventory(), references={"spy": "no_such_module:Probe"})
    events = list(executor.run(Execution(0, "spy", "g", (case, attrs.evolve(case, name="c1")))))
    done = [event for event in events if isinstance(event, CaseDone)]
    assert [event.case.name for event in done] == ["c0", "c1"]
    assert all("before its first case" in event.round.reason for event in done)
    assert b"ModuleNotFoundError" in done[0].output.stderr
    assert len([event for event in events if isinstance(event, WorkerEnded)]) == 2, "it is started once more"


def test_a_worker_that_is_killed_before_its_first_case_is_started_once_more(make_inventory, tmp_path) -> None:
    """Somebody killed it by chance: nothing was begun, so nothing is lost."""
    mark = tmp_path / "killed"
    script = (
        "import os, pathlib, signal, sys\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "from k3gate.probing.worker import main\n"
        "sys.exit(main())\n"
    )
    (case,) = [Case("selftest", "hash.64k", "", "g", {"bytes": 65536}, 0.1, 0)]
    executor = Executor(make_inventory(), command=(sys.executable, "-P", "-c", script))
    events = list(executor.run(Execution(0, "selftest", "g", (case,))))
    (done,) = [event for event in events if isinstance(event, CaseDone)]
    assert "died" not in (done.round.reason or ""), done.round.reason
    assert mark.exists()
    ended = [event for event in events if isinstance(event, WorkerEnded)]
    assert len(ended) == 2 and "SIGKILL" in ended[0].reason


def test_a_program_that_is_missing_fails_the_cases_and_leaks_nothing(make_inventory) -> None:
    before = descriptors()
    case = Case("spy", "c0", "", "g", {}, 1.0, 0)
    executor = Executor(make_inventory(), references={}, command=["/no/such/program"])
    (done,) = executor.run(Execution(0, "spy", "g", (case,)))
    assert "no worker process can be started: FileNotFoundError" in done.round.reason
    assert descriptors() == before
