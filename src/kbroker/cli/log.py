"""`kbroker log`: look at segment files, and judge or repair a data folder; no broker is asked."""

from pathlib import Path
from typing import Any

import click

from kbroker.cli.options import json_option
from kbroker.cli.output import binary_stdout, json_line, print_json

DAMAGED_STATUS = 3


@click.group()
def log() -> None:
    """Look into the files of a log, and verify or repair them."""


@log.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE...")
@json_option
def dump(files: tuple[Path, ...], as_json: bool) -> None:
    """Print the entries of .log, .index, .timeindex, .snapshot and checkpoint files."""
    from kbroker.log.dump import dump_file

    out = binary_stdout()
    for path in files:
        if not as_json and len(files) > 1:
            out.write(f"{path}:\n".encode())
        for entry in dump_file(path):
            out.write(json_line({"file": str(path), **_plain(entry)}) if as_json else _line(entry))
    out.flush()


@log.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option("--repair", is_flag=True, help="Cut what is damaged. The broker must not run; what is cut is gone.")
@json_option
def verify(folder: Path, repair: bool, as_json: bool) -> None:
    """Check every batch and index below DIR (a data folder or one partition); exit code 3 for damage found."""
    from kbroker.log.verify import verify as verify_folder

    findings = [_plain(entry) for entry in verify_folder(folder, repair=repair)]
    if as_json:
        print_json(findings)
    else:
        for entry in findings:
            click.echo(_line(entry).decode(), nl=False)
        click.echo(f"{len(findings)} finding{'s' * (len(findings) != 1)}" + (", repaired" if repair and findings else ""))
    if findings and not repair:
        raise SystemExit(DAMAGED_STATUS)


def _plain(value: Any) -> Any:
    """Bytes and paths as text, so that JSON can hold them."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _line(entry: dict[str, Any]) -> bytes:
    cells = []
    for name, value in _plain(entry).items():
        cells.append(f"{name}: {'-' if value is None else value}")
    return ("  ".join(cells) + "\n").encode(errors="backslashreplace")
