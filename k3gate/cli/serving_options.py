"""Options of commands that measure a runtime: what is started or asked, and how much of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from k3gate.cli.options import place, word

if TYPE_CHECKING:
    from k3gate.harness.serving import Asked

F = TypeVar("F", bound=Callable[..., Any])
_MOST_PROMPT = 1 << 21
_LONGEST_COMMAND = 20_000


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
    return tuple(dict.fromkeys(found))


def command_line(text: str) -> str:
    """The type of `--command`."""
    if not text.strip() or len(text) > _LONGEST_COMMAND or "\0" in text:
        raise click.BadParameter(f"write a command of 1 to {_LONGEST_COMMAND:,} characters")
    return text


_OPTIONS = (
    click.option(
        "--command", "command_text", type=command_line, metavar="LINE",
        help="Start this server, measure it and end it; its key, if any, is written $K3GATE_API_KEY.",
    ),
    click.option("--endpoint", type=place, metavar="URL", help="Ask a server that runs, OpenAI-compatible, up to /v1."),
    click.option(
        "--checkpoint", type=place, metavar="PATH", help="The weights that a started server must have open."
    ),
    click.option(
        "--model", type=word, metavar="NAME", help="Which model to ask; default: the only one that is offered."
    ),
    click.option(
        "--way", type=click.Choice(["chat", "completion"]), default="chat", show_default=True, help="Of asking."
    ),
    click.option(
        "--prompts", type=lengths, default="256,1024", show_default=True, metavar="N,...",
        help="Lengths of prompts in tokens.",
    ),
    click.option(
        "--tokens", type=click.IntRange(2, 65536), default=64, show_default=True, help="Of each answer."
    ),
    click.option(
        "--first-token-limit", type=click.FloatRange(1, 86400), default=1800.0, show_default=True,
        metavar="SECONDS", help="Beyond it an answer is too slow.",
    ),
    click.option(
        "--idle-limit", type=click.FloatRange(1, 86400), default=600.0, show_default=True, metavar="SECONDS",
        help="The same between two tokens.",
    ),
    click.option(
        "--load-limit", type=click.FloatRange(1, 86400), default=7200.0, show_default=True, metavar="SECONDS",
        help="The same from a server's start to its first answer.",
    ),
)  # fmt: skip


def serving_options(function: F) -> F:
    """All of them, in the order of the help."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def asked(told: dict[str, Any], streams: tuple[int, ...] = ()) -> Asked | None:
    """What the options ask for; None where no runtime is named. Raises `UsageError`."""
    from k3gate.errors import UsageError
    from k3gate.harness.serving import Asked

    if told["command_text"] is None and told["endpoint"] is None:
        if told["checkpoint"] is not None:
            raise UsageError("--checkpoint says what a server must have open: give the server with --command")
        return None
    return Asked(
        command=told["command_text"],
        endpoint=told["endpoint"],
        checkpoint=told["checkpoint"],
        model=told["model"],
        way=told["way"],
        prompts=told["prompts"],
        tokens=told["tokens"],
        streams=streams,
        first_token_s=told["first_token_limit"],
        idle_s=told["idle_limit"],
        load_s=told["load_limit"],
    )
