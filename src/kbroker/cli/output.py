"""Output of results: tables for people, JSON for programs, raw bytes."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import click

from kbroker.cli.short_text import padded
from kbroker.common.errors import Errors, ignoring
from kbroker.common.java.java_text import replace_invalid_utf8
from kbroker.common.printable import columns_of, printable, printable_json

MAX_WIDTH = 100  # maximum width of a column: names of clients may have 32,767 characters


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[int] = ()) -> None:
    """Print columns as wide as their widest cell, numbers aligned right; only the header if there are no rows.

    A cell of more than MAX_WIDTH columns widens its own row only.

    Control characters are escaped: names are chosen by clients.
    Args: `right`: further columns, from 0, to align right: numbers with a unit.
    """
    cells = [[printable(_text(cell)) for cell in row] for row in rows]
    widths = [min(max(columns_of(line[i]) for line in [list(header), *cells]), MAX_WIDTH) for i in range(len(header))]
    is_right = [i in right or (bool(cells) and all(_is_number(line[i]) for line in cells)) for i in range(len(header))]
    for number, line in enumerate([list(header), *cells]):
        text = "  ".join(padded(c, w, right=r) for c, w, r in zip(line, widths, is_right, strict=True)).rstrip()
        click.echo(text if number else styled(text, bold=True))


def styled(text: str, **style: Any) -> str:
    """Return the text in colours, which `click.echo` removes unless it prints to a terminal.

    Plain text if NO_COLOR is set, and on a terminal without colours.
    Args: `style`: arguments of `click.style`: fg, bold ...
    Source: https://no-color.org
    """
    return text if os.environ.get("NO_COLOR") or is_dumb_terminal() else click.style(text, **style)


def is_dumb_terminal() -> bool:
    """Return whether the terminal prints control sequences instead of executing them."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def print_json(value: object) -> None:
    """Print one indented document; in ASCII if standard output cannot encode other characters."""
    from kbroker.cli.plain_characters import has_all_characters

    is_ascii = not has_all_characters(sys.stdout)
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=is_ascii)))


def print_rows(header: Sequence[str], rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    """Print documents with the same keys, as JSON or as the rows of a table."""
    if as_json:
        print_json(rows)
    else:
        print_table(header, [list(row.values()) for row in rows])


def print_done(document: Mapping[str, object], as_json: bool, *lines: str) -> None:
    """Print the result of a command, as JSON or as lines, in which no name controls the terminal."""
    if as_json:
        print_json(document)
    else:
        for line in lines:
            click.echo(printable(line))


def print_difference(what: str, before: str | None, after: str | None) -> None:
    """Print a line of a difference, coloured: set, removed or changed; None: not set."""
    texts = [printable(text) for text in (what, before or "", after or "")]
    if before is None:
        click.echo(styled(f"+ {texts[0]} {texts[2]}".rstrip(), fg="green"))
    elif after is None:
        click.echo(styled(f"- {texts[0]} {texts[1]}".rstrip(), fg="red"))
    else:
        click.echo(styled(f"~ {texts[0]} {texts[1]} -> {texts[2]}", fg="yellow"))


def fields(one: object, names: str) -> dict[str, Any]:
    """Return the attributes of an object that ``names`` lists, for JSON."""
    return {name: getattr(one, name) for name in names.split()}


def print_deleted(
    key: str, names: Iterable[str], delete: Callable[[str], object], missing: Errors | None, *, as_json: bool
) -> None:
    """Delete each name, and print whether it existed.

    Args: ``missing``: the error for a name that does not exist, which is then reported and not raised; None raises it.
    Raises: KafkaError for the first name that cannot be deleted.
    """
    with json_rows(as_json) as rows:
        for name in names:
            is_deleted = False
            with ignoring(*([] if missing is None else [missing])):
                delete(name)
                is_deleted = True
            rows.append({key: name, "deleted": is_deleted})
            if not as_json:
                click.echo(printable(f"deleted {name}" if is_deleted else f"{name} does not exist"))


@contextmanager
def json_rows(as_json: bool) -> Iterator[list[dict[str, object]]]:
    """Collect the results of a command's changes, and print them as JSON, even after a failure."""
    rows: list[dict[str, object]] = []
    try:
        yield rows
    except BaseException:
        if as_json and rows:
            print_json(rows)
        raise
    if as_json:
        print_json(rows)


def json_line(value: object) -> bytes:
    """Return a document as one line of UTF-8; invalid bytes in its texts are replaced."""
    return utf8(json.dumps(value, ensure_ascii=False)) + b"\n"


def utf8(text: str) -> bytes:
    """Return a text as UTF-8; bytes that are not, as in names of headers and files, are replaced."""
    return replace_invalid_utf8(text).encode()


def binary_stdout() -> BinaryIO:
    """Return the binary stream of standard output."""
    return sys.stdout.buffer


def is_output_closed() -> bool:
    """Return whether nothing can read standard output any more, as after `| head`.

    A FIFO of the file system may get another reader: only a write finds that it has none, as with Kafka's console
    consumer and kcat.
    """
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    try:
        number = sys.stdout.fileno()
        poller.register(number, 0)
        if _is_named_pipe(number):
            return False
    except (OSError, ValueError):  # not a descriptor
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def _is_named_pipe(number: int) -> bool:
    """Return whether a descriptor is a FIFO of a file system: pipes without a name are on another device."""
    status = os.fstat(number)
    if not stat.S_ISFIFO(status.st_mode):
        return False
    ends = os.pipe()
    try:
        return status.st_dev != os.fstat(ends[0]).st_dev
    finally:
        for end in ends:
            os.close(end)


def note(message: str) -> None:
    """Print a note for people on stderr, only if it is a terminal."""
    if sys.stderr.isatty():
        click.echo(message, err=True)


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, list | tuple):
        return ",".join(map(str, cell)) or "-"
    return str(cell)


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdigit() or text == "-"
