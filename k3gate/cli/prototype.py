"""`k3gate prototype`: how fast a running server answers."""

from __future__ import annotations

import sys

import click

from k3gate.cli.options import json_option, place, word
from k3gate.cli.output import check_output, emit

_MOST_PROMPT = 1 << 21


def lengths(text: str) -> tuple[int, ...]:
    """The type of `--prompts`: lengths in tokens, with commas between them."""
    try:
        found = tuple(int(one) for one in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(16 <= one <= _MOST_PROMPT for one in found) or len(found) > 16:
        raise click.BadParameter(
            f"{text!r:.60} are no lengths: write 1 to 16 numbers like 256,1024, each at least 16"
        )
    return found


@click.command("prototype", short_help="Measure how fast a running server answers.")
@click.option(
    "--endpoint", type=place, required=True, metavar="URL", help="An OpenAI-compatible one, up to /v1."
)
@click.option(
    "--model", type=word, metavar="NAME", help="Which model to ask; default: the only one that is offered."
)
@click.option(
    "--way", type=click.Choice(["chat", "completion"]), default="chat", show_default=True, help="Of asking."
)
@click.option(
    "--prompts", type=lengths, default="256,1024", show_default=True, metavar="N,...", help="Their tokens."
)
@click.option(
    "--tokens", type=click.IntRange(2, 65536), default=64, show_default=True, help="Of each answer."
)
@click.option(
    "--streams", type=click.IntRange(1, 1024), default=1, show_default=True, help="Answers at once, besides."
)
@click.option("--rounds", type=click.IntRange(3, 1000), default=3, show_default=True, help="Of each reading.")
@click.option(
    "--first-token-limit", type=click.FloatRange(1, 86400), default=1800.0, show_default=True, metavar="SECONDS",
    help="Beyond it an answer is too slow.",
)  # fmt: skip
@click.option(
    "--idle-limit", type=click.FloatRange(1, 86400), default=600.0, show_default=True, metavar="SECONDS",
    help="The same between two tokens.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write to a file.")
@json_option
def command(
    endpoint: str,
    model: str | None,
    way: str,
    prompts: tuple[int, ...],
    tokens: int,
    streams: int,
    rounds: int,
    first_token_limit: float,
    idle_limit: float,
    output: str | None,
    as_json: bool,
) -> int:
    """Ask a running server: prompts of growing length one at a time, then so many answers at once. Each prompt is new,
    so that no cache knows it. An API key is taken from K3GATE_API_KEY.

    Exit code: 0 answered, 4 where an answer did not come, 130 interrupted, with what was read until then.
    """
    from k3gate.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PROBE_FAILED
    from k3gate.harness import prototype
    from k3gate.serving.client import Limits
    from k3gate.serving.load import Wanted, told

    check_output(output)
    wanted = Wanted(prompts, tokens, streams, rounds)
    limits = Limits(first_token_s=first_token_limit, idle_s=idle_limit)
    made = prototype.driver(endpoint, model, way, wanted, limits, _life)
    interrupted = False
    try:
        prototype.drive(made)
    except KeyboardInterrupt:
        interrupted = True
    _life("")
    document = prototype.document(made, interrupted)
    page = told(made.readings) + f"\n{prototype.NO_EVIDENCE}\n"
    emit(output, as_json, document, page)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_PROBE_FAILED if any(one.failures for one in made.readings) else EXIT_OK


def _life(text: str) -> None:
    """A line that shows that something happens, on a terminal alone."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
