"""`k3gate inspect`: what a checkpoint is, to the byte, and what is wrong with it."""

from __future__ import annotations

import click

from k3gate.cli.options import json_option, place, store_option, word
from k3gate.cli.output import check_output, emit


@click.command("inspect", short_help="Show what a checkpoint is, and what is wrong with it.")
@click.argument("path", type=place, metavar="PATH")
@click.option(
    "--context", type=click.IntRange(0, 2**30), default=8192, show_default=True, help="Tokens of context."
)
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Sequences at once."
)
@click.option("--checksums", is_flag=True, help="Read all of every file and hold its SHA-256 against a list.")
@click.option(
    "--manifest",
    type=place,
    metavar="FILE|hf://...",
    help="The list, or a repository whose digests the Hub lists; default: SHA256SUMS beside the weights.",
)
@click.option("--run", "run", type=word, metavar="RUN", help="The stored run that is about this checkpoint.")
@click.option("--no-store", is_flag=True, help="Keep nothing of it in the store.")
@click.option(
    "-o", "--output", metavar="FILE", help="Write to a file; one that ends in .html becomes a page."
)
@json_option
@store_option
def command(
    path: str,
    context: int,
    batch: int,
    checksums: bool,
    manifest: str | None,
    run: str | None,
    no_store: bool,
    output: str | None,
    as_json: bool,
    store_location: str | None,
) -> int:
    """Read the headers of the checkpoint at PATH: a folder, a .safetensors or .gguf file, a repository in the
    Hub's cache, or one on the Hub, hf://ORG/REPO[/FOLDER|/FILE][@REVISION]. No weight is loaded or fetched.

    What it proves is kept in the store by the checkpoint's digest, for the gate. Exit code: 0 whole, 1 damaged,
    2 no checkpoint; with --checksums 3 where there is nothing to hold the files against.
    """
    from contextlib import nullcontext

    from k3gate.cli.options import exit_code
    from k3gate.cli.pace import headers, shown
    from k3gate.errors import EXIT_FAIL, EXIT_OK, UsageError
    from k3gate.harness import checkpoints
    from k3gate.model.checkpoint import checksums as sums
    from k3gate.model.checkpoint import documents, text
    from k3gate.model.checkpoint.hub.address import is_address
    from k3gate.store import open_store

    check_output(output)
    if is_address(path) and checksums:
        raise UsageError(
            f"{path}: there is nothing here to hash; fetch the files, and give their folder with --checksums and "
            f"--manifest {path}"
        )
    if run is not None and no_store:
        raise UsageError("--run joins a stored run and --no-store keeps nothing: give one of them")
    if manifest is not None and not checksums:
        raise UsageError("--manifest is held against the files only with --checksums: add it")
    with headers() as progress:
        files, found = checkpoints.read(path, progress if is_address(path) else None)
    wanted = sums.manifest(files, manifest) if checksums else None
    compared = verdict = None
    with nullcontext() if no_store else open_store(store_location) as store:
        if store is not None:
            checkpoints.keep(store, found, run)
        if checksums:
            with shown() as pace:
                taken = checkpoints.sum_files(store, files, found.digest, pace)
            compared = sums.compare(taken, wanted)
            verdict, sentence = checkpoints.judge_checksums(files, compared)
            if store is not None:
                store.add_evidence(checkpoints.checksum_evidence(files, found.digest, compared))
    document = documents.document(found)
    page = text.page(found, context, batch)
    document["checksums"] = None
    if compared is not None:
        document["checksums"] = {**sums.document(taken, compared), "verdict": verdict, "reason": sentence}
        page += f"\nChecksums\n---------\n{verdict}: {sentence}\n"

    def render() -> str:
        from k3gate.harness.stored import now
        from k3gate.reports import checkpoint

        return checkpoint.render(found, now(), (verdict, sentence) if verdict is not None else None)

    emit(output, as_json, document, page, render)
    if found.damaged:
        return EXIT_FAIL
    return EXIT_OK if verdict is None else exit_code(verdict)
