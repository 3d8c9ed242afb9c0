"""`k3gate show`: one stored run."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, print_json, store_option, word


@click.command("show", short_help="Show a stored run: its cases, metrics and proofs.")
@click.argument("run", type=word, default="latest", metavar="[RUN]")
@click.option("--samples", is_flag=True, help="Print every sample.")
@json_option
@store_option
def command(run: str, samples: bool, as_json: bool, store_location: str | None) -> int:
    """Show RUN (default: latest) as it was measured, whatever its status; nothing is judged."""
    from k3gate.cli.printing import (
        print_expectation,
        print_left_out,
        print_measurements,
        run_line,
        say,
        wrapped,
    )
    from k3gate.harness import stored
    from k3gate.store import open_store
    from k3gate.units import quantity

    with open_store(store_location, create=False) as store:
        store.abandon_dead()
        record = store.load(store.resolve(run))
        evaluations = store.evaluations(record.run.id)
        newest = store.evaluation(evaluations[-1].id) if evaluations else None
    if as_json:
        print_json(stored.run_document(record, newest))
        return 0
    say(run_line(record))
    for notice in record.run.notices:
        say(wrapped(f"note: {notice}", 0))
    say()
    print_measurements(record)
    print_left_out(record)
    print_expectation(stored.own_expectation(record))
    proofs = [
        (outcome, metric, proof)
        for outcome in record.outcomes
        for metric in outcome.metrics
        for proof in metric.proofs
        if proof.ok is not True
    ]
    for outcome, _, proof in proofs:
        word = "not proven" if proof.ok is None else "disproved"
        say(wrapped(f"{word}: {outcome.case}: {proof.name}: {proof.detail}", 0))
    if samples:
        for outcome in record.outcomes:
            for metric in outcome.metrics:
                say(f"\n{outcome.probe}/{outcome.case} {metric.name}")
                for sample in metric.samples:
                    say(
                        f"  round {sample.round + 1}  process {sample.process}  at {sample.start_s:9.3f} s  "
                        f"{quantity(sample.value, metric.unit, 4)}"
                    )
    say()
    for evaluation in evaluations:
        say(f"evaluated {evaluation.evaluated}: {evaluation.verdict.value} for target {evaluation.target}")
    if not evaluations:
        say(f"not judged yet: k3gate gate {record.run.id}")
    return 0
