"""`k3gate capture`: what this machine is, as one file that `k3gate host --root` reads elsewhere."""

from __future__ import annotations

import click

from k3gate.cli.options import place, storage_option


@click.command("capture", short_help="Write what this machine is to a file that travels.")
@click.option("-o", "--output", type=place, required=True, metavar="FILE.tar.gz", help="Write to this file.")
@click.option(
    "--root",
    type=place,
    default="/",
    metavar="FILE|DIR",
    help="Capture the machine in this place instead of /.",
)
@storage_option
def command(output: str, root: str, paths: tuple[str, ...]) -> int:
    """Write the files that describe this machine to one archive. Measures nothing, changes nothing.

    Serial numbers, UUIDs, MAC addresses and names of hosts and users are taken out. `k3gate host --root FILE` reads
    the archive, on any machine.
    """
    import os
    from pathlib import Path

    from k3gate import units
    from k3gate.cli.output import check_output, refused, shown_path, stream_number
    from k3gate.errors import UsageError
    from k3gate.host import capture, storage

    if root == "/":
        paths = storage.asked(paths)
    try:
        number = stream_number(output)
        if output == os.devnull or number is not None:
            if number is not None and os.isatty(number):
                raise UsageError("cannot write a capture to a terminal: name a file with -o")
            raw = capture.pack(root, paths)[0]
            if number is not None:
                with open(os.dup(number), "wb") as stream:
                    stream.write(raw)
            return 0
        target = Path(os.path.realpath(output))
        if not target.is_file() or target.stat().st_size == 0:
            check_output(output)
        elif not capture.is_capture(target):
            raise UsageError(
                f"cannot write {shown_path(output)}: it is there and is no capture; name another file with -o"
            )
        done = capture.write(target, root, paths)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise refused(output, error) from error
    click.echo(f"capture: {shown_path(str(target))}, {units.count(done.files, 'file')}, {done.bytes} bytes")
    if done.differs:
        few = ", ".join(done.differs[:5]) + (" ..." if len(done.differs) > 5 else "")
        click.echo(f"taken out with the names, so the capture gives these otherwise: {few}", err=True)
    return 0
