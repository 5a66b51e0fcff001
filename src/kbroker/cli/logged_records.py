"""Records that the Produce requests of a request log have appended, read back from the cluster and decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from kbroker.cli.record_output import RecordPrinter
from kbroker.cli.short_text import printable
from kbroker.client.cluster import Cluster, check
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.consumer import Consumer, Record
from kbroker.client.request_records import Row
from kbroker.common.errors import KafkaError
from kbroker.common.units import counted
from kbroker.decoders.decoders import Decoders

RECORDS = 10  # maximum number of shown records plus unreadable partitions of a request; the other records are counted
PARTITION_BYTES = 1 << 20  # maximum size of one Fetch; a larger batch is still read
LINE_CHARACTERS = 300
NO_OFFSETS = (
    "the log does not have the offsets of this Produce: the broker records them with kbroker.request.log.offsets=true"
)


class LoggedRecords:
    """Reader of the records of logged requests, with the rights of the caller.

    Args: ``cluster``: owned by the caller.
    """

    def __init__(self, cluster: Cluster, decoders: Decoders) -> None:
        self._cluster = cluster
        self._text = RecordPrinter("full", b": ", decoders=decoders)
        self._json = RecordPrinter("full", b": ", decoders=decoders, as_json=True)
        self._has_warned = False

    def lines(self, row: Row) -> Iterator[str]:
        """Yield a line for each record of the request, and the reason if they cannot be read."""
        left = 0
        for found in self._found(row):
            if isinstance(found, Record):
                line = self._text.line(found) or b""
                yield printable(line.decode("utf-8", "replace").rstrip("\n"), LINE_CHARACTERS)
            elif isinstance(found, str):
                yield printable(found, LINE_CHARACTERS)
            else:
                left += found
        if left:
            yield f"and {counted(left, 'more record')}"

    def documents(self, row: Row) -> list[dict[str, Any]]:
        """Return the records of the request in the form of `kbroker consume --json`; an error is an object too."""
        return [
            {"error": found} if isinstance(found, str) else json.loads(self._json.line(found) or b"{}")
            for found in self._found(row)
            if not isinstance(found, int)
        ]

    def _found(self, row: Row) -> Iterator[Record | str | int]:
        """Yield the records of a Produce, reasons for missing ones, and numbers of records beyond RECORDS."""
        if row["api_name"] != "PRODUCE":
            return
        if row["appended"] is None:
            if not row["error_code"] and not self._has_warned:
                self._has_warned = True
                click.echo(NO_OFFSETS, err=True)
            return
        left = RECORDS
        for part in row["appended"]:
            topic, partition, first, last = (
                part[name] for name in ("topic", "partition", "first_offset", "last_offset")
            )
            if None in (topic, partition, first, last) or min(partition, first) < 0:  # any client may write to the log
                yield f"expected a topic, a partition and offsets from 0 in the log, got {list(part.values())}"
                continue
            try:
                records = self._read(topic, partition, first, last, left)
            except (KafkaError, BrokerConnectionError) as error:
                left -= 1
                yield f"{topic}-{partition} offsets {first} to {last}: {error}"
                continue
            left -= len(records)
            yield from records
            if not left and len(records) < last - first + 1:
                yield last - first + 1 - len(records)
            elif not records:
                yield f"{topic}-{partition} offsets {first} to {last}: removed, or not replicated yet"

    def _read(self, topic: str, partition: int, first: int, last: int, limit: int) -> list[Record]:
        if not limit:
            return []
        (found_topic,) = self._cluster.fetch_metadata([topic])  # without retries: a missing topic was deleted
        check(found_topic.error, f"topic {topic!r}")
        consumer = Consumer(self._cluster, {(topic, partition): first}, max_partition_bytes=PARTITION_BYTES)
        found: list[Record] = []
        while len(found) < limit and consumer.positions[topic, partition] <= last and (batch := consumer.poll()):
            found += [record for record in batch if record.offset <= last]
        return found[:limit]
