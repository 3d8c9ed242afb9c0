"""The command line: each command in a file of its own, imported only when it is called.

Commands parse, call the harness and print. `main` turns the errors of `k3gate.errors` into one line on stderr
and an exit code; a traceback never reaches a user.
"""

from __future__ import annotations

from k3gate.cli import early  # before anything that takes its time

# isort: split
import errno
import importlib
import os
import re
import sys
from typing import Any

import click

from k3gate import __version__
from k3gate.cli import streams
from k3gate.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_PROBE_FAILED, EXIT_USAGE, K3GateError

COMMANDS = {
    "run": "Measure this machine, store the run, judge it.",
    "host": "Show what this machine is.",
    "capture": "Write what this machine is to a file that travels.",
    "inspect": "Show what a checkpoint is, and what is wrong with it.",
    "quant": "Hold a converted checkpoint against its source.",
    "runtimes": "Find installed runtimes, and whether they name Kimi K3.",
    "prototype": "Measure how fast a running server answers.",
    "probes": "List the probes and what they measure.",
    "runs": "List the stored runs.",
    "show": "Show a stored run: its cases, metrics and proofs.",
    "gate": "Judge a stored run, again, with any criteria and target.",
    "waive": "Let one check of a run be, with name and reason.",
    "report": "Write the HTML report of a stored run.",
    "diff": "Compare two runs.",
    "plan": "Plan a machine from its description, and judge claims about it.",
    "bom": "Check an order against a run, freeze it, verify what was delivered.",
    "backtest": "Hold the predictions of plan against published measurements.",
    "routing": "Describe which experts tokens use: reuse, skew, hot sets.",
    "export": "Write a run with everything in it to one file.",
    "import": "Take in a run from such a file.",
}
"""Name and short help; the help page must not import ten modules to print ten lines."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = {"import": "import_"}.get(cmd_name, cmd_name)
        command: click.Command = importlib.import_module(f"k3gate.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            from k3gate.cli.options import short

            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {short(name)}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, "-V", "--version", prog_name="k3gate", message="%(prog)s %(version)s")
def cli() -> None:
    """May this machine be bought to run Kimi K3 from CPU memory? An answer with evidence.

    Start with `k3gate run`; read the report it writes; compare machines with `k3gate diff`.
    """


def main() -> None:
    """Entry point of the `k3gate` command; exits with the code that docs/exit-codes.md promises."""
    try:
        streams.prepare()
        code = invoke(sys.argv[1:])
    except KeyboardInterrupt:  # a second one, while the first was told of
        code = EXIT_INTERRUPTED
    sys.exit(code)


def invoke(arguments: list[str]) -> int:
    """Run the command line and return its exit code; all expected errors become one line on stderr."""
    try:
        result = _call(arguments)
        sys.stdout.flush()
    except click.Abort:
        complain("interrupted")
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context else ""
        complain(f"{error.format_message()}{hint}")
        return EXIT_USAGE
    except K3GateError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader of our output went away (`k3gate runs | head`), which click turns into SystemExit: nothing
        # is left to say, and the code is that of a program that SIGPIPE ended, not one of a verdict.
        streams.silence(1)
        return EXIT_BROKEN_PIPE
    except OSError as error:
        streams.silence(1)
        reason = error.strerror or str(error)
        if error.filename and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            complain(f"cannot use {os.fsdecode(error.filename)!r}: {reason}; name another path")
            return EXIT_USAGE
        complain(
            f"cannot write the output: {reason}; free some space or write elsewhere; nothing that was stored is lost"
        )
        return EXIT_PROBE_FAILED
    return result if isinstance(result, int) else 0


def _call(arguments: list[str]) -> Any:
    try:
        return cli.main(args=arguments, prog_name="k3gate", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        return 0


LONGEST_WORD = 300
LONGEST_LINE = 3000


def complain(message: str) -> None:
    """One line on stderr, whatever the message holds and however long a word was typed."""
    from k3gate.documents import printable

    words = [w if len(w) <= LONGEST_WORD else f"{w[:80]}...{w[-20:]}" for w in message.split()]
    line = re.sub(r"'([^\s'/]{80})[^\s'/]+'", r"'\1...'", printable(" ".join(words)))
    print("k3gate: " + (line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ..."), file=sys.stderr)


early.over()
