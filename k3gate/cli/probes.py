"""`k3gate probes`: what can be measured, and by whom."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, print_json


@click.command("probes", short_help="List the probes and what they measure.")
@json_option
def command(as_json: bool) -> int:
    """List the installed probes, whether they apply to this machine, and their metrics."""
    from k3gate.cli.printing import say, wrapped
    from k3gate.harness import catalogue

    listing = catalogue.probes()
    if as_json:
        print_json(listing)
        return 0
    for probe in listing["probes"]:
        origin = "" if probe["ours"] else f"  (from {probe['distribution']})"
        say(f"{probe['name']:<12} {probe['title']}{origin}")
        if probe["reason"]:
            say(wrapped(f"does not apply here: {probe['reason']}", 13))
        for metric in probe["metrics"]:
            say(wrapped(f"{metric['name']} [{metric['unit']}]: {metric['divides']}", 13))
    for notice in listing["notices"]:
        say(wrapped(f"note: {notice}", 0))
    return 0
