"""`kbroker consume`: records of topics to standard output, alone or as a member of a group."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

import click

from kbroker.cli import ended_by
from kbroker.cli.name_completion import topic_names
from kbroker.cli.options import Finite, bootstrap_option, connect, json_option
from kbroker.cli.output import binary_stdout, is_output_closed
from kbroker.cli.record_options import DecodeOptions, decode_options, expression_of, pattern_of
from kbroker.cli.record_output import Format, RecordPrinter
from kbroker.cli.reset import datetime_ms
from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.client.consumer import Consumer, Record
from kbroker.client.record_range import RecordRange, last_records

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.common.topic_names import TopicPartition


LEAST_RETRIES_S, MOST_RETRIES_S = 5.0, 30.0  # a coordinator that is elected or loads is available after seconds


class _Source(Protocol):
    def poll(self) -> list[Record]: ...


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=topic_names)
@bootstrap_option
@click.option(
    "--regex", is_flag=True, help="Take each TOPIC as a regular expression of whole names, without internal topics."
)
@click.option("--from-beginning", is_flag=True, help="Start at the first record, not at the end.")
@click.option("--offset", type=click.IntRange(min=0), help="Start at this offset of each partition.")
@click.option(
    "--timestamp",
    metavar="MS|TIME",
    help="Start at the first record at or after this time: ms since 1970, or ISO 8601, UTC if it names no zone.",
)
@click.option(
    "--last", type=click.IntRange(min=1), metavar="COUNT", help="Print the last records by their timestamps, and stop."
)
@click.option("--end", "to_end", is_flag=True, help="Stop at the end that each partition has now.")
@click.option("--end-offset", type=click.IntRange(min=0), help="Stop before this offset of each partition.")
@click.option(
    "--end-timestamp",
    metavar="MS|TIME",
    help="Stop before the first record at or after this time; at the end if no record is that late.",
)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Read only this partition. Repeatable."
)
@click.option(
    "--group",
    metavar="NAME",
    help="Read as a member of this consumer group, from its committed offsets, and commit those of printed records.",
)
@click.option("--max-messages", "-n", type=click.IntRange(min=0), help="Stop after this many printed records.")
@click.option("--timeout", type=Finite(min=0), metavar="SECONDS", help="Stop when no record arrived for this long.")
@click.option("--read-committed", is_flag=True, help="Skip records of aborted and open transactions.")
@click.option("--grep", metavar="REGEX", help="Print only records whose key or value, as printed, contains a match.")
@click.option(
    "--filter",
    "expression",
    metavar="EXPR",
    help="Print only records for which this JMESPath expression over key, value, headers, topic, partition, offset and "
    "timestamp is true, such as 'value.amount > `100`'.",
)
@decode_options("auto with --decode-key, --registry or --filter, else the bytes")
@click.option(
    "--format",
    "form",
    type=Format(),
    default="value",
    show_default=True,
    metavar="value|key-value|full|TEMPLATE",
    help="Contents of each line, or a template with kcat's tokens: %s value, %k key, %h headers, %t topic, "
    "%p partition, %o offset, %T timestamp, %S and %K lengths, \\n newline.",
)
@click.option(
    "--key-separator", "-K", default=":", show_default=True, metavar="TEXT", help="Separator of key and value."
)
@json_option
def consume(
    topics: tuple[str, ...],
    bootstrap_server: str,
    regex: bool,
    from_beginning: bool,
    offset: int | None,
    timestamp: str | None,
    last: int | None,
    to_end: bool,
    end_offset: int | None,
    end_timestamp: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    timeout: float | None,
    read_committed: bool,
    grep: str | None,
    expression: str | None,
    decoding: DecodeOptions,
    form: str,
    key_separator: str,
    as_json: bool,
) -> None:
    """Print the records of topics until Ctrl-C.

    Each record is one line, with --json one document. With --group, a record may be printed again if its offset was
    not committed, after a rebalance or a kill.
    """
    starts = {"--from-beginning": from_beginning, "--offset": offset, "--timestamp": timestamp, "--last": last}
    ends = {"--end": to_end, "--end-offset": end_offset, "--end-timestamp": end_timestamp, "--last": last}
    for options in (starts, ends):
        if sum(value is not None and value is not False for value in options.values()) > 1:
            *names, final = options
            raise click.UsageError(f"expected at most one of {', '.join(names)} and {final}")
    if as_json and form != "value":
        raise click.UsageError("expected only one of --json and --format, got both")
    if group is not None:
        _check_group(topics, regex, {**starts, **ends, "--partition": partitions or None})
    starts_ms = None if timestamp is None else _timestamp_ms(timestamp, "--timestamp")
    ends_ms = None if end_timestamp is None else _timestamp_ms(end_timestamp, "--end-timestamp")
    start = offset if offset is not None else EARLIEST if from_beginning else LATEST
    printer = RecordPrinter(
        form,
        os.fsencode(key_separator),
        as_json=as_json,
        decoders=decoding.decoders(always=expression is not None),
        pattern=None if grep is None else pattern_of(grep, "--grep"),
        expression=expression_of(expression),
    )
    lines = _Lines(printer, max_messages)
    # a fetch waits half a second at most, less when the timeout is shorter
    max_wait_ms = 500 if timeout is None else max(1, min(500, int(timeout * 1000)))
    retries_s = MOST_RETRIES_S if timeout is None else min(MOST_RETRIES_S, max(LEAST_RETRIES_S, timeout))
    with connect(bootstrap_server, retry_timeout_s=retries_s) as cluster:
        if group is not None:
            from kbroker.client.group_consumer import GroupConsumer

            member = GroupConsumer(
                cluster, group, topics[0], start=start, read_committed=read_committed, max_wait_ms=max_wait_ms
            )
            # a member that does not leave its group holds its partitions until its session times out
            with ended_by(signal.SIGTERM), member:
                member.join()  # a rebalance may take longer than --timeout
                for batch in lines.of(member, timeout):
                    member.commit({(r.topic, r.partition): r.offset + 1 for r in batch})
            return
        chosen = _partitions(cluster, topics, regex, partitions)
        if last is not None:
            lines.print(last_records(cluster, chosen, last, read_committed=read_committed))
            return
        consumer = Consumer(
            cluster, dict.fromkeys(chosen, start), read_committed=read_committed, max_wait_ms=max_wait_ms
        )
        if starts_ms is not None:
            consumer.seek_to_timestamp(starts_ms)
        until: dict[TopicPartition, int] = {}
        if end_offset is not None:
            until = dict.fromkeys(chosen, end_offset)
        elif to_end or ends_ms is not None:
            wanted = LATEST if ends_ms is None else ends_ms
            until = Admin(cluster).offsets_at(chosen, wanted, read_committed=read_committed)
        for _ in lines.of(RecordRange(consumer, until, awaits_ends=end_offset is not None), timeout):
            pass


def _check_group(topics: Sequence[str], regex: bool, options: dict[str, object]) -> None:
    """Refuse options that do not apply to a member of a group. Raises: UsageError."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if [name for name in given if name != "--from-beginning"]:
        raise click.UsageError(
            "expected --group without --offset, --timestamp, --last, --end... and --partition: the group decides the "
            "offsets; `kbroker groups reset` moves it"
        )
    if len(topics) > 1 or regex:
        raise click.UsageError("expected --group with one TOPIC and without --regex")


def _partitions(
    cluster: Cluster, topics: Sequence[str], regex: bool, partitions: Sequence[int]
) -> list[TopicPartition]:
    """Return the partitions of the chosen topics. Raises: KafkaError; ClickException if no topic matches."""
    names = list(dict.fromkeys(topics))
    if regex:
        patterns = [pattern_of(text, "TOPIC") for text in topics]
        names = [n for n in Admin(cluster).list_topics() if any(pattern.fullmatch(n) for pattern in patterns)]
        if not names:
            raise click.ClickException(f"no topic matches {', '.join(topics)}")
    return [
        (name, p)
        for name in names
        for p in (list(dict.fromkeys(partitions)) or [one.partition for one in cluster.topic(name).partitions])
    ]


class _Lines:
    """Printer of at most ``max_messages`` records."""

    def __init__(self, printer: RecordPrinter, max_messages: int | None) -> None:
        self._printer, self._left, self._out = printer, max_messages, binary_stdout()

    def of(self, source: _Source, timeout_s: float | None) -> Iterator[Sequence[Record]]:
        """Print records as they arrive; yield those that were printed or do not match.

        The iteration ends after ``max_messages`` records, when no record has arrived for ``timeout_s``, and at the end
        of a range.
        Raises: BrokenPipeError if nothing reads the output any more.
        """
        last = time.monotonic()
        while (self._left is None or self._left > 0) and not (isinstance(source, RecordRange) and source.is_ended):
            batch = source.poll()
            if batch:
                yield self.print(batch)
                last = time.monotonic()
            elif is_output_closed():  # only a write would report it, possibly hours later
                raise BrokenPipeError
            elif timeout_s is not None and time.monotonic() - last >= timeout_s:
                return

    def print(self, batch: Sequence[Record]) -> Sequence[Record]:
        """Print the records that match; return those before ``max_messages`` was reached."""
        out: BinaryIO = self._out
        try:
            for count, record in enumerate(batch):
                if self._left == 0:
                    return batch[:count]
                line = self._printer.line(record)
                if line is not None:
                    out.write(line)
                    self._left = None if self._left is None else self._left - 1
        finally:
            out.flush()
        return batch


def _timestamp_ms(text: str, option: str) -> int:
    """Return a time in ms since 1970, from such a number or from ISO 8601; UTC by default. Raises: BadParameter."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return datetime_ms(text, option, "ms since 1970 or ")
