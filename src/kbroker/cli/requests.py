"""`kbroker requests`: records of a broker's request log, in a terminal."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import CommandGroup, Duration, bootstrap_option, connect
from kbroker.cli.output import is_output_closed, note, styled
from kbroker.cli.record_options import DecodeOptions, decode_options
from kbroker.cli.short_text import or_dash, padded, printable, short_number, short_time
from kbroker.client.cluster import to_error
from kbroker.client.request_records import Filter, Row, document_of, file_rows, plain_name, topic_rows
from kbroker.common.similar_names import did_you_mean
from kbroker.protocol.schema import apis

if TYPE_CHECKING:
    from kbroker.cli.logged_records import LoggedRecords

LOOKED_BACK = 10_000  # maximum number of existing records read of each partition
HEADER = ("TIME (UTC)", "API", "CLIENT", "QUEUE", "LOCAL", "REMOTE", "SEND", "TOTAL", "THROT")
WIDTHS = (12, 12, 12, 6, 6, 6, 6, 6, 6)


@click.group(cls=CommandGroup)
def requests() -> None:
    """Show records of a request log, from its topic or files."""


@requests.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE|FOLDER]...")
@bootstrap_option
@click.option("--topic", default="__request_log", show_default=True, metavar="NAME", help="The log's topic.")
@click.option("--client", "clients", multiple=True, metavar="ID", help="Only requests of this client id. Repeatable.")
@click.option("--api", "apis", multiple=True, metavar="NAME", help="Only of this API, such as Fetch. Repeatable.")
@click.option(
    "--slower-than", type=Duration(), metavar="TIME", help="Only requests that took longer, from receipt to response."
)
@click.option("--throttled", is_flag=True, help="Only requests that a quota has delayed or refused.")
@click.option("--follow", "-f", is_flag=True, help="Print new records until Ctrl-C.")
@click.option(
    "--last",
    "-n",
    type=click.IntRange(0, 100_000),
    default=10,
    show_default=True,
    metavar="COUNT",
    help="Number of matching records to begin with, of the last 10,000 of each partition of a topic.",
)
@decode_options("auto with --decode-key, else no records are printed")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document a line, as in the log.")
def tail(
    paths: tuple[Path, ...],
    bootstrap_server: str,
    topic: str,
    clients: tuple[str, ...],
    apis: tuple[str, ...],
    slower_than: int | None,
    throttled: bool,
    follow: bool,
    last: int,
    decoding: DecodeOptions,
    as_json: bool,
) -> None:
    """Print the last requests of a request log, each with its times.

    The input is the log's topic, or its files: FILE, or all files of FOLDER.
    Times of day are UTC. A second line shows the quota that delayed a request, the code of an error,
    or the reason why a connection was closed without a response.

    With --decode or --decode-key, the first records of each Produce request are read from the cluster and printed
    below it, if the broker has kbroker.request.log.offsets=true and the user may read the topic.
    """
    wanted = Filter(frozenset(clients), _plain_names(apis), slower_than, throttled)
    decoders = decoding.decoders() if decoding.value or decoding.key else None
    with ExitStack() as stack:
        show, rows = _Lines(as_json), file_rows(paths, follow, time.sleep)
        if decoders is not None or not paths:
            cluster = stack.enter_context(connect(bootstrap_server))
            if decoders is not None:
                from kbroker.cli.logged_records import LoggedRecords

                show.records = LoggedRecords(cluster, decoders)
            if not paths:
                rows = topic_rows(cluster, topic, LOOKED_BACK, follow)
        _tail(rows, wanted, last, show)


def _plain_names(names: tuple[str, ...]) -> frozenset[str]:
    """Return names of APIs for the filter. Raises: click.BadParameter for an unknown name."""
    if not names:
        return frozenset()
    known = {plain_name(api.name): api.name for api in apis().values()}
    for name in names:
        if plain_name(name) not in known:
            meant = did_you_mean(plain_name(name), known.values())
            raise click.BadParameter(f"expected an API such as Fetch, got {name!r}{meant}", param_hint="--api")
    return frozenset(map(plain_name, names))


def _tail(batches: Iterator[list[Row]], wanted: Filter, last: int, show: _Lines) -> None:
    """Collect the latest existing records and print the last ones; then print each record as it arrives.

    Raises: BrokenPipeError if nothing reads the output any more.
    """
    held: deque[Row] | None = deque(maxlen=last)
    seen = fit = 0
    for rows in batches:
        taken = [row for row in rows if wanted.takes(row)]
        if held is None:
            if not rows and is_output_closed():  # only a write would report it, possibly hours later
                raise BrokenPipeError
            show.all(taken)
            continue
        seen, fit = seen + len(rows), fit + len(taken)
        held.extend(taken)
        if not rows:
            _show_first(held, seen, fit, show)
            held = None
    if held is not None:
        _show_first(held, seen, fit, show)


def _show_first(held: deque[Row], seen: int, fit: int, show: _Lines) -> None:
    """Print the last existing records; or a note if there are none or the filters match none."""
    if not seen:
        note("expected records of a request log, found none so far")
    elif not fit:
        note(f"the filters match no record of the last {seen:,}")
    show.all(held)


class _Lines:
    """Printer of requests, below a header at the beginning. ``records``: reader of their records, None without."""

    def __init__(self, as_json: bool) -> None:
        self.records: LoggedRecords | None = None
        self._as_json = as_json
        self._has_header = as_json

    def all(self, rows: Any) -> None:
        """Print several requests."""
        for row in rows:
            if self._as_json:
                document = document_of(row)
                if self.records is not None and (found := self.records.documents(row)):
                    document["records"] = found
                click.echo(json.dumps(document))
                continue
            if not self._has_header:
                self._has_header = True
                click.echo(styled(_aligned(HEADER), bold=True))
            line = _aligned(_cells(row))
            click.echo(styled(line, fg="yellow") if row["throttle_time_ms"] or row["verdicts"] else line)
            for text in (*notes_of(row), *(() if self.records is None else self.records.lines(row))):
                click.echo(f"{'':13}{text}")


def _aligned(cells: tuple[str, ...]) -> str:
    parts = enumerate(zip(cells, WIDTHS, strict=True))
    return " ".join(padded(cell, width, right=n >= 3) for n, (cell, width) in parts).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    at = "-" if row["time"] is None else f"{datetime.fromtimestamp(row['time'] / 1e6, timezone.utc):%H:%M:%S.%f}"[:12]
    api = _api_name(row["api_name"]) if row["api_name"] else "refused" if row["refusal"] else "-"
    if (row["repeated"] or 1) > 1:
        api = f"{api} x{row['repeated']}"
    times = ("request_queue_time_us", "local_time_us", "remote_time_us", "send_time_us", "total_time_us")
    return (
        at,
        printable(api, 12),
        or_dash(row["client_id"], 12),
        *(short_time(None if row[name] is None else row[name] / 1000) for name in times),
        short_time(row["throttle_time_ms"] or None),
    )


def _api_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _decision(verdict: Row, is_shadow: bool) -> str:
    """Return the decision of a quota, or of a shadow, as text."""
    unit = "" if verdict["quota_type"] in ("Request", "ControllerMutation", "ConnectionRate") else "B"
    who = [
        f"{kind} {printable(verdict[key], 20)}"
        for kind, key in (("user", "user"), ("client", "client_id"), ("address", "ip"))
        if verdict[key]
    ]
    waits, refused = ("would wait", "would be refused") if is_shadow else ("waits", "refused")
    served_ms = verdict["delay_served_ms"] or 0
    done = (
        refused
        if verdict["refused"]
        else f"{waits} {short_time(served_ms)}"
        if served_ms > 0
        else "waits longer anyway"
    )
    return (
        f"{'shadow: ' if is_shadow else ''}{printable(verdict['quota_type'], 20)} quota of {', '.join(who) or 'all'}: "
        f"{short_number(verdict['observed'])}{unit} of {short_number(verdict['limit'])}{unit}, {done}"
    )


def notes_of(row: Row) -> list[str]:
    """Return notes as text: quota decisions, the error, the reason why the connection was closed."""
    notes = [_decision(verdict, is_shadow=False) for verdict in row["verdicts"] or ()]
    notes += [_decision(verdict, is_shadow=True) for verdict in row["shadow_verdicts"] or ()]
    if row["error_code"]:
        notes.append(f"error {to_error(row['error_code']).name} ({row['error_code']}) x{row['error_count']}")
    if row["refusal"]:
        notes.append(
            f"closed {printable(row['connection'] or row['address'] or '?', 45)}: {printable(row['refusal'], 30)}"
        )
    return notes
