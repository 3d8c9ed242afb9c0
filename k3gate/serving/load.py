"""How fast an endpoint answers: prompts of growing length alone, then many answers at once.

A figure is of tokens that the server counted; where it counts none, of those that a tokenizer counts in the text; where
there is none, rates are of chunks and say so. Prompts are drawn
anew, so that no cache of a server knows their beginning; where the server says that it used one all the same, the
reading of the prompt is left out.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from attrs import define, evolve, field, frozen

from k3gate.serving import prompts
from k3gate.serving.answers import Answer, Collector
from k3gate.serving.client import (
    BrokenError,
    Client,
    Endpoint,
    Limits,
    ProtocolError,
    ServerError,
    TooSlowError,
    ask,
    open_client,
    tokenize,
)

CACHED = 0.05
"""Share of a prompt that may come from a cache before its reading is no longer a measurement."""
_FEWEST_ROUNDS = 3
_APART = 0.05
"""By how much the server's own clock may differ from ours, as a share, before it is told."""
Say = Callable[[str], None]
Count = Callable[[str], int]


@frozen
class Wanted:
    """What to measure: lengths of prompts in tokens, tokens of an answer, streams at once, rounds of each."""

    lengths: tuple[int, ...] = (256, 1024)
    tokens: int = 64
    streams: int = 1
    rounds: int = _FEWEST_ROUNDS


@frozen
class Reading:
    """Answers of one kind: of prompts of a length alone, or of many at once. `failures`: those that did not come, with
    why."""

    name: str
    length: int
    streams: int
    answers: tuple[Answer, ...]
    failures: tuple[str, ...]
    partial: tuple[Answer, ...] = ()
    """What came of those that failed."""
    retries: int = 0
    """Requests that were sent again, as the server was busy."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens/s of the steady part of each answer; of those whose tokens are counted."""
        return tuple(rate for one in self.answers if (rate := one.steady_tokens_per_s) is not None)

    @property
    def chunk_rates(self) -> tuple[float, ...]:
        """Chunks/s of each answer after its first."""
        return tuple(rate for one in self.answers if (rate := one.chunks_per_s) is not None)

    @property
    def first_s(self) -> tuple[float, ...]:
        """Seconds from sending a request to its first token, in any channel."""
        return tuple(one.first_s - one.begun_s for one in self.answers if one.first_s is not None)

    @property
    def prefill(self) -> tuple[float, ...]:
        """Tokens of the prompt by the time to the first token, which holds queueing and one decode step too; of answers
        whose prompt came from no cache."""
        found = []
        for one in self.answers:
            computed, whole = one.computed_prompt, one.usage.prompt
            if one.first_s is None or computed is None or whole is None:
                continue
            if computed >= (1 - CACHED) * whole > 0:
                found.append(computed / (one.first_s - one.begun_s))
        return tuple(found)

    @property
    def cached(self) -> int:
        """Answers whose prompt came from a cache in part."""
        return sum(
            one.computed_prompt is not None
            and one.usage.prompt is not None
            and one.computed_prompt < (1 - CACHED) * one.usage.prompt
            for one in self.answers
        )

    @property
    def together(self) -> float | None:
        """Tokens/s of all streams while all were decoding: from the last one's first token to the first one's last."""
        whole = [one for one in self.answers if one.tokens and one.first_s and one.last_s]
        if len(whole) < max(1, self.streams):
            return None
        last = whole[-self.streams :]
        begin = max(one.first_s for one in last if one.first_s is not None)
        end = min(one.last_s for one in last if one.last_s is not None)
        if end <= begin:
            return None
        tokens = 0.0
        for one in last:
            each = (one.tokens or 0) / one.chunks
            tokens += each * sum(begin < at <= end for at in one.times_s)
        return tokens / (end - begin)

    @property
    def about(self) -> str:
        """How long its prompts were: by the server's count, else in words, which is all that is known."""
        counted = [one.usage.prompt for one in self.answers if one.usage.prompt is not None]
        if not counted:
            return f"{self.length:,} words"
        return f"{round(statistics.median(counted)):,} tokens"

    @property
    def own_clock(self) -> tuple[float, float] | None:
        """(our rate, the server's own), medians; None where the server tells none."""
        both = [
            (rate, one.timings.predicted_per_s)
            for one in self.answers
            if (rate := one.tokens_per_s) is not None and one.timings.predicted_per_s is not None
        ]
        if not both:
            return None
        return statistics.median(a for a, _ in both), statistics.median(b for _, b in both)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the figures, as clauses."""
        found = []
        if self.answers and not self.rates:
            found.append("the server counts no tokens: rates are of chunks")
        if any(one.counted is not None for one in self.answers):
            found.append("the server counts no tokens: they were counted in the text, by a tokenizer")
        if self.cached:
            found.append(
                f"{self.cached} of {len(self.answers)} prompts came from a cache, though none was sent twice"
            )
        if any(one.empty and one.chunks for one in self.answers):
            found.append("an answer was reasoning alone, or empty")
        short = [one for one in self.answers if one.finish == "stop"]
        if short:
            found.append(f"{len(short)} of {len(self.answers)} answers ended by themselves")
        clocks = self.own_clock
        if clocks is not None and abs(clocks[0] / clocks[1] - 1) > _APART:
            found.append(f"the server's own clock says {clocks[1]:.3g} tokens/s")
        return (*found, *self.failures)

    def document(self) -> dict[str, Any]:
        """As `--json` has it; samples and all."""
        return {
            "name": self.name,
            "prompt_tokens_asked": self.length,
            "streams": self.streams,
            "answers": [_answer(one) for one in self.answers],
            "failures": list(self.failures),
            "partial": [_answer(one) for one in self.partial],
            "retries": self.retries,
            "decode_tokens_per_s": list(self.rates),
            "decode_chunks_per_s": list(self.chunk_rates),
            "first_token_s": list(self.first_s),
            "prefill_tokens_per_s": list(self.prefill),
            "together_tokens_per_s": self.together,
            "notes": list(self.notes),
        }


def _answer(one: Answer) -> dict[str, Any]:
    return {
        "begun_s": one.begun_s,
        "first_token_s": one.first_s,
        "first_visible_s": one.first_visible_s,
        "last_token_s": one.last_s,
        "chunks": one.chunks,
        "prompt_tokens": one.usage.prompt,
        "cached_tokens": one.usage.cached,
        "completion_tokens": one.usage.completion,
        "counted_tokens": one.counted,
        "finish": one.finish,
        "server_decode_tokens_per_s": one.timings.predicted_per_s,
        "server_prefill_tokens_per_s": one.timings.prompt_per_s,
    }


@define
class Driver:
    """Sends the requests of a measurement. What was read before an interruption stays in `readings`."""

    endpoint: Endpoint
    wanted: Wanted
    limits: Limits
    say: Say
    dice: random.Random = field(factory=random.SystemRandom)
    count: Count | None = None
    """Counts the tokens of a text, where neither answer nor server tells."""
    readings: list[Reading] = field(factory=list)
    _per_word: float = 1.0
    _fixed: float = 0.0
    _origin: float = field(factory=time.perf_counter)
    _retries: int = 0

    async def run(self) -> None:
        """All readings in turn. A request that fails is a failure of its reading; a server that is gone ends it."""
        async with open_client(self.limits, max(1, self.wanted.streams)) as client:
            await self.learn(client)
            for length in self.wanted.lengths:
                await self.read(client, length, 1, self.wanted.rounds)
            if self.wanted.streams > 1:
                await self.read(client, self.wanted.lengths[0], self.wanted.streams, self.wanted.rounds)

    async def learn(self, client: Client) -> None:
        """How many tokens a word takes, and warms the server up; where it counts none, a word is a token."""
        short, long = [
            (
                await ask(
                    client, self.endpoint, prompts.prompt(words, self.dice), 4, self.limits, self._origin
                )
            ).usage.prompt
            for words in (prompts.PROBE_WORDS, 2 * prompts.PROBE_WORDS)
        ]
        if short is not None and long is not None and long > short:
            self._per_word = (long - short) / prompts.PROBE_WORDS
            self._fixed = max(0.0, short - self._per_word * prompts.PROBE_WORDS)

    async def read(self, client: Client, length: int, streams: int, rounds: int) -> Reading:
        """One kind of answers, so often; it is in `readings` too, as far as it came."""
        name = f"prompt.{length}" if streams == 1 else f"streams.{streams}"
        answers: list[Answer] = []
        failures: list[str] = []
        partial: list[Answer] = []
        self._retries = 0
        self.readings.append(Reading(name, length, streams, (), ()))
        for number in range(1, rounds + 1):
            self.say(f"{name}: round {number} of {rounds}")
            words = prompts.words_for(length, self._per_word, self._fixed)
            collectors = [Collector(keep_reasoning=True) for _ in range(streams)]
            try:
                jobs = [self._one(client, words, name, one) for one in collectors]
                for found, collector in zip(await asyncio.gather(*jobs), collectors, strict=True):
                    if isinstance(found, Answer):
                        answers.append(await self._counted(client, found))
                        continue
                    failures.append(found)
                    if collector.begun:
                        partial.append(collector.answer())
            except asyncio.CancelledError:
                partial += [one.answer() for one in collectors if one.begun]
                raise
            finally:
                self.readings[-1] = Reading(
                    *(name, length, streams, tuple(answers), tuple(failures), tuple(partial), self._retries)
                )
            if len(failures) >= max(_FEWEST_ROUNDS, streams) and not answers:
                break
        return self.readings[-1]

    async def _one(self, client: Client, words: int, name: str, collector: Collector) -> Answer | str:
        try:
            return await ask(
                client,
                self.endpoint,
                prompts.prompt(words, self.dice),
                self.wanted.tokens,
                self.limits,
                self._origin,
                lambda chunks: self.say(f"{name}: {chunks} chunks") if chunks % 16 == 1 else None,
                collector,
                retried=self._again,
            )
        except TooSlowError as error:
            return f"too slow: {error}"
        except (BrokenError, ServerError, ProtocolError) as error:
            came = f" after {collector.chunks} chunks" if collector.chunks else ""
            return f"failed{came}: {error}"

    async def _counted(self, client: Client, found: Answer) -> Answer:
        """With the tokens of its text, where the server did not count them; without the text."""
        text = found.text
        found = evolve(found, text="")
        if found.usage.completion is not None or not text:
            return found
        ids = await tokenize(client, self.endpoint, text, self.limits, special=False)
        if ids is not None:
            return evolve(found, counted=len(ids))
        return found if self.count is None else evolve(found, counted=self.count(text))

    def _again(self) -> None:
        self._retries += 1
