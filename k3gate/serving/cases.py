"""The cases of a runtime that serves the model: pure, from the profile alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve

from k3gate.documents import plain, printable
from k3gate.probing.contract import Planned
from k3gate.records import Case, LeftOut, Profile, Scalar, Serving

GROUP = "server"
ROUNDS = 3
WITHOUT = "no runtime was named: `k3gate run --command 'llama-server -m FILE' --checkpoint FILE` measures one"
LOAD, READING, MEMORY = "load", "reading", "memory"
_LIMIT_S = 86_400.0
"""Of a reading: each request has limits of its own, which slow machines need."""
# Rough guesses, which a plan needs before anything is known: a load, prefill and decode of a slow machine.
_LOAD_BYTES_PER_S, _START_S, _PREFILL, _DECODE, _END_S = 2e9, 3.0, 200.0, 20.0, 1.0


def plan(probe: str, profile: Profile) -> Planned:
    """The cases, most important first; without a runtime none, and why."""
    serving = profile.serving
    if serving is None:
        return Planned((), (LeftOut(probe, "all", WITHOUT),))
    told = what(serving)
    common = {**plain(evolve(serving, lengths=(), streams=())), "told": told}
    cases = []
    if serving.command is not None:
        cases.append(
            _case(probe, LOAD, f"Start {told}, until it answers", LOAD, common, _load_s(serving), {})
        )
    for length in serving.lengths:
        cases.append(_reading(probe, f"prompt.{length}", serving, common, length, 1))
    for streams in serving.streams:
        if streams > 1:
            cases.append(_reading(probe, f"streams.{streams}", serving, common, serving.lengths[0], streams))
    if serving.command is not None:
        cases.append(
            _case(probe, MEMORY, f"Memory and CPU time of {told}, and its end", MEMORY, common, _END_S, {})
        )
    return Planned(tuple(cases))


def seconds(serving: Serving, rounds: int) -> float:
    """What all rounds are taken to need, with some room."""
    planned = plan("prototype", Profile("", 0.0, serving=serving)).cases
    return 1.1 * rounds * (sum(case.seconds for case in planned) + 1.0)


def what(serving: Serving) -> str:
    """The runtime in words: its name, else its program, else where it listens."""
    if serving.runtime is not None:
        return serving.runtime
    if serving.command is not None:
        return printable(Path(serving.command[0]).name)[:80]
    return printable(serving.endpoint or "")[:120]


def _load_s(serving: Serving) -> float:
    return _START_S + serving.bytes / _LOAD_BYTES_PER_S


def _reading(
    probe: str, name: str, serving: Serving, common: dict[str, Any], length: int, streams: int
) -> Case:
    seconds = length * streams / _PREFILL + serving.tokens / _DECODE
    title = f"{f'{streams} answers at once' if streams > 1 else 'One answer'}, prompts of {length:,} tokens"
    own = {"length": length, "streams": streams}
    labels: dict[str, Scalar] = {"prompt_tokens": length, "streams": streams}
    return _case(probe, name, title, READING, {**common, **own}, seconds, labels)


def _case(
    probe: str, name: str, title: str, kind: str, parameters: dict[str, Any], seconds: float, labels: Any
) -> Case:
    limit = float(parameters["load_s"]) + 600.0 if kind == LOAD else _LIMIT_S
    return Case(
        probe=probe,
        name=name,
        title=title,
        group=GROUP,
        parameters={**parameters, "kind": kind},
        seconds=seconds,
        # What the server takes is its own: planned for by whoever wrote its command.
        bytes=0,
        rounds=ROUNDS,
        time_limit_s=limit,
        labels=labels,
    )
