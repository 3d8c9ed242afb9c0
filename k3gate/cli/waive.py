"""`k3gate waive`: a person lets one check be, with name and reason."""

from __future__ import annotations

import click

from k3gate.cli.options import criteria_option, json_option, print_json, store_option, target_option, word


@click.command("waive", short_help="Let one check of a run be, with name and reason.")
@click.argument("run", type=word)
@click.argument("check", type=word)
@click.option("--who", required=True, help="Who answers for it.")
@click.option("--why", required=True, help="Why the check may be let be.")
@click.option("--accept-failure", is_flag=True, help="Needed to waive a check that fails.")
@criteria_option
@target_option("the one that the run was made for")
@json_option
@store_option
def command(
    run: str,
    check: str,
    who: str,
    why: str,
    accept_failure: bool,
    criteria: str | None,
    target: str | None,
    as_json: bool,
    store_location: str | None,
) -> int:
    """Waive CHECK (such as roofline.idle) of RUN.

    The waiver is bound to the run, the criteria, the target and the observed value, and lapses when one of
    them changes.
    """
    from k3gate.cli.printing import say, verdict_word
    from k3gate.gate import document
    from k3gate.harness import stored
    from k3gate.store import open_store
    from k3gate.units import count

    with open_store(store_location, create=False) as store:
        waiver, result = stored.waive(
            store,
            run,
            check,
            who=who,
            why=why,
            criteria=criteria,
            target=target,
            accept_failure=accept_failure,
        )
    if as_json:
        print_json(document(result))
    else:
        say(f"{waiver.check} of run {waiver.run} is waived by {waiver.who}: {waiver.why}")
        say(f"Gate: {verdict_word(result.verdict)} with {count(result.waivers, 'waiver')}")
    return 0
