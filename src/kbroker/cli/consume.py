"""`kbroker consume`: records of a topic to standard output, alone or as a member of a group."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.name_completion import topic_names
from kbroker.cli.options import Finite, bootstrap_option, connect, json_option
from kbroker.cli.output import binary_stdout, json_bytes, json_line
from kbroker.cli.reset import datetime_ms
from kbroker.client.admin import EARLIEST, LATEST
from kbroker.client.consumer import Consumer, Record

if TYPE_CHECKING:
    from kbroker.client.group_consumer import GroupConsumer

FORMATS = ("value", "key-value", "full")


@click.command()
@click.argument("topic", shell_complete=topic_names)
@bootstrap_option
@click.option("--from-beginning", is_flag=True, help="Start at the first record, not at the end.")
@click.option("--offset", type=click.IntRange(min=0), help="Start at this offset of each partition.")
@click.option(
    "--timestamp",
    metavar="MS|TIME",
    help="Start at the first record at or after this time: ms since 1970, or ISO 8601, UTC if it names no zone.",
)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Read only this partition. Repeatable."
)
@click.option(
    "--group",
    metavar="NAME",
    help="Read as a member of this consumer group, from its committed offsets on, and commit what was printed.",
)
@click.option("--max-messages", "-n", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option("--timeout", type=Finite(min=0), metavar="SECONDS", help="Stop when no record arrived for this long.")
@click.option("--read-committed", is_flag=True, help="Skip records of aborted and open transactions.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="value", show_default=True, help="Contents of each line."
)
@click.option(
    "--key-separator", "-K", default=":", show_default=True, metavar="TEXT", help="Separator of key and value."
)
@json_option
def consume(
    topic: str,
    bootstrap_server: str,
    from_beginning: bool,
    offset: int | None,
    timestamp: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    timeout: float | None,
    read_committed: bool,
    form: str,
    key_separator: str,
    as_json: bool,
) -> None:
    """Print the records of TOPIC until Ctrl-C.

    Each record is one line, with --json one document. With --group, a record may be printed again if its offset was
    not committed, after a rebalance or a kill.
    """
    if group is not None and (offset is not None or timestamp is not None or partitions):
        raise click.UsageError(
            "expected --group without --offset, --timestamp and --partition: the group decides the offsets; "
            "`kbroker groups reset` moves it"
        )
    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise click.UsageError("expected at most one of --from-beginning, --offset and --timestamp")
    timestamp_ms = None if timestamp is None else _timestamp_ms(timestamp)
    start = offset if offset is not None else EARLIEST if from_beginning else LATEST
    out = binary_stdout()
    separator = os.fsencode(key_separator)

    def show(batch: "list[Record]") -> None:
        for record in batch:
            out.write(_json(record) if as_json else _line(record, form, separator))
        out.flush()

    # a fetch waits half a second at most, less when the timeout is shorter
    max_wait_ms = 500 if timeout is None else max(1, min(500, int(timeout * 1000)))
    with connect(bootstrap_server) as cluster:
        if group is not None:
            from kbroker.client.group_consumer import GroupConsumer

            member = GroupConsumer(
                cluster, group, topic, start=start, read_committed=read_committed, max_wait_ms=max_wait_ms
            )
            with _ended_by_sigterm(), member:
                member.join()  # a rebalance may take longer than --timeout
                for batch in _batches(member, max_messages, timeout):
                    show(batch)
                    member.commit({(r.topic, r.partition): r.offset + 1 for r in batch})
            return
        chosen = list(dict.fromkeys(partitions)) or [p.partition for p in cluster.topic(topic).partitions]
        positions = {(topic, p): start for p in chosen}
        consumer = Consumer(cluster, positions, read_committed=read_committed, max_wait_ms=max_wait_ms)
        if timestamp_ms is not None:
            consumer.seek_to_timestamp(timestamp_ms)
        for batch in _batches(consumer, max_messages, timeout):
            show(batch)


@contextmanager
def _ended_by_sigterm() -> "Iterator[None]":
    """Let SIGTERM end the command like an exit, so that a member leaves its group: otherwise other members would wait
    for its partitions until the session times out. No effect if SIGTERM is ignored, or outside the main thread.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before in (None, signal.SIG_IGN) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one does not wait
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _batches(
    consumer: "Consumer | GroupConsumer", max_messages: int | None, timeout_s: float | None
) -> "Iterator[list[Record]]":
    """Yield the records of each poll, until ``max_messages`` have arrived or none has arrived for ``timeout_s``."""
    left = max_messages
    last = time.monotonic()
    while left is None or left > 0:
        batch = consumer.poll()
        if batch:
            batch = batch[:left]
            yield batch
            left = None if left is None else left - len(batch)
            last = time.monotonic()
        elif timeout_s is not None and time.monotonic() - last >= timeout_s:
            return


def _timestamp_ms(text: str) -> int:
    """Return the milliseconds of a number or an ISO 8601 time; UTC if it names no zone."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return datetime_ms(text, "--timestamp", "ms since 1970 or ")


def _line(record: "Record", form: str, separator: bytes) -> bytes:
    value = b"null" if record.value is None else record.value
    if form == "value":
        return value + b"\n"
    key = b"null" if record.key is None else record.key
    if form == "key-value":
        return key + separator + value + b"\n"
    where = f"{record.topic}-{record.partition} offset {record.offset} time {record.timestamp_ms} "
    headers = b"".join(b"%s=%s " % (name.encode(), b"null" if v is None else v) for name, v in record.headers)
    return where.encode() + headers + key + separator + value + b"\n"


def _json(record: "Record") -> bytes:
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        "headers": [{"name": name, **json_bytes("value", value)} for name, value in record.headers],
    }
    return json_line(document)
