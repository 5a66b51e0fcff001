"""`kbroker log`: look at segment files, and judge or repair a data folder; no broker is asked."""

from pathlib import Path
from typing import Any

import click

from kbroker.cli.options import json_option
from kbroker.cli.output import binary_stdout, json_line, print_json

DAMAGED_STATUS = 3
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def log() -> None:
    """Look into the files of a log, and verify or repair them."""


@log.command()
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@json_option
def dump(files: tuple[Path, ...], as_json: bool) -> None:
    """Print the entries of segments, indexes, snapshots and checkpoints.

    One entry a line, in the manner of Kafka's own tool; with --json one document a line.
    """
    from kbroker.log.checkpoints import CorruptFileError
    from kbroker.log.dump import UnknownFileError, describe, dump_file

    out = binary_stdout()
    try:
        for path in files:
            if not as_json and len(files) > 1:
                out.write(f"{path}:\n".encode())
            for row in dump_file(path):
                out.write(json_line({"file": str(path), **row}) if as_json else describe(row).encode() + b"\n")
    except (UnknownFileError, CorruptFileError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        out.flush()


@log.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--repair", is_flag=True, help="Cut out what is damaged; the broker must not run meanwhile.")
@json_option
def verify(folder: Path, repair: bool, as_json: bool) -> None:
    """Check every file below DIR, a data folder or one partition's.

    Exit code 3 says that damage was found and is still there. What --repair cuts out is kept beside the file.
    """
    from kbroker.log.folder_lock import FolderLockedError
    from kbroker.log.verify import verify as verify_folder

    try:
        findings = verify_folder(folder, repair=repair)
    except FolderLockedError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json([_document(finding) for finding in findings])
    else:
        for f in findings:
            offset = f", records from offset {f.offset} on" if f.offset >= 0 else ""
            done = f"; {f.repair}" if f.repair else ""
            click.echo(f"{f.path} at byte {f.position}, {f.size_bytes} bytes{offset}: {f.problem}{done}")
        click.echo(f"{len(findings)} damaged places" if len(findings) != 1 else "1 damaged place")
    if any(not f.repair for f in findings):
        raise click.exceptions.Exit(DAMAGED_STATUS)


def _document(finding: Any) -> dict[str, Any]:
    import dataclasses

    return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(finding).items()}
