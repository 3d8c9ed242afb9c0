"""`k3gate routing`: which experts tokens use, from a trace or from the model that stands in for one."""

from __future__ import annotations

import sys

import click

from k3gate.cli.options import json_option, place, print_json, word
from k3gate.cli.output import check_output, write_output


@click.command("routing", short_help="Describe which experts tokens use: reuse, skew, hot sets.")
@click.argument("file", type=place, required=False, metavar="[FILE]")
@click.option(
    "--shape",
    type=word,
    metavar="k3|LAYERSxEXPERTSxUSED",
    help="Fit the trace to this shape; of the model: its shape. Default: the trace's own, the model k3.",
)
@click.option(
    "--experts", type=click.IntRange(1, 1 << 15), help="Experts of a layer, where FILE does not say."
)
@click.option(
    "--reuse",
    type=word,
    metavar="SHARE|chance",
    help="Of the model: experts that the token before used too; default: 0.295.",
)
@click.option(
    "--skew",
    type=click.FloatRange(1, 1 << 15),
    help="Of the model: uses of the busiest expert by the mean; default: 32.9 with 16 of 896.",
)
@click.option("--tokens", type=click.IntRange(1, 4096), help="Of the model: of each sequence; default: 512.")
@click.option("--sequences", type=click.IntRange(1, 4096), help="Of the model: independent ones; default: 1.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of what is drawn.")
@click.option(
    "--nodes", type=click.IntRange(1, 1024), default=2, show_default=True, help="That share the experts."
)
@click.option(
    "--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Sequences of a step."
)
@click.option("--by-layer", is_flag=True, help="A line for each layer too.")
@click.option(
    "--curve", "curve_place", type=place, metavar="FILE.toml", help="Write the curve that plan takes."
)
@click.option("--save", type=place, metavar="FILE.jsonl", help="Write what is described as a trace.")
@json_option
def command(
    file: str | None,
    shape: str | None,
    experts: int | None,
    reuse: str | None,
    skew: float | None,
    tokens: int | None,
    sequences: int | None,
    seed: int,
    nodes: int,
    batch: int,
    by_layer: bool,
    curve_place: str | None,
    save: str | None,
    as_json: bool,
) -> None:
    """Describe the trace in FILE: how often a token uses experts that the one before used, how uneven their load is,
    and what a hot set of them would catch. Without FILE, describe the model of routing that stands in for a trace.
    """
    from k3gate.errors import UsageError
    from k3gate.harness import routing
    from k3gate.model.routing import description, jsonl
    from k3gate.model.routing.synthesis import REUSE
    from k3gate.model.routing.text import text

    check_output(curve_place)
    check_output(save)
    wanted = routing.shape(shape)
    if file is not None:
        given = {"--reuse": reuse, "--skew": skew, "--tokens": tokens, "--sequences": sequences}
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} is of the model, and {file} is a trace: leave one of them out")
        made = routing.of_file(file, wanted, experts, seed, nodes, batch)
    else:
        if experts is not None:
            raise UsageError("--experts is of a trace in a file: name one, or give the model's --shape")
        asked = REUSE if reuse is None else _share(reuse)
        made = routing.of_model(wanted, tokens or 512, sequences or 1, asked, skew, seed, nodes, batch)
    if curve_place is not None:
        routing.check_curve(made, wanted)
        write_output(curve_place, description.curve_file(made))
    if save is not None:
        write_output(save, b"".join(jsonl.lines(made.trace)).decode())
    if as_json:
        print_json(description.document(made))
        return
    sys.stdout.write(text(made, by_layer))
    for what, path in (("curve", curve_place), ("trace", save)):
        if path is not None:
            sys.stdout.write(f"\n{what}: {path}")
    sys.stdout.write("\n" if curve_place or save else "")


def _share(text: str) -> float | None:
    """A share from 0 to 1; None: what chance gives."""
    if text == "chance":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise click.BadParameter(
            f"{text!r:.60} is no share from 0 to 1: write one, or chance", param_hint="--reuse"
        )
    return value
