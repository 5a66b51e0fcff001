"""`kbroker produce`: lines of standard input become records."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import click

from kbroker.cli.name_completion import topic_names
from kbroker.cli.options import bootstrap_option, connect, json_option
from kbroker.cli.output import note, print_json
from kbroker.cli.record_options import BY_SCHEMA, ENCODERS, RegistryOptions, registry_options
from kbroker.client.connection import MAX_FRAME_BYTES
from kbroker.client.producer import CODECS, Delivery, Producer
from kbroker.common.errors import KafkaError, UserError
from kbroker.common.units import counted

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaRegistry

_Encode = Callable[[int, "bytes | None", "bytes | None"], "tuple[bytes | None, bytes | None]"]
ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}
READ_BYTES = 1 << 16

acks_option = click.option(
    "--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="Replicas that must acknowledge."
)


@click.command()
@click.argument("topic", shell_complete=topic_names)
@bootstrap_option
@click.option(
    "--key-separator", "-K", metavar="TEXT", help="Split each line at TEXT into key and value.  [default: no key]"
)
@click.option(
    "--encode",
    "value_encoder",
    type=click.Choice(ENCODERS),
    metavar="FORMAT",
    help=f"Encode values: {', '.join(ENCODERS[:-4])}; or, by the latest schema of the subject TOPIC-value, "
    f"{', '.join(ENCODERS[-4:])}.  [default: the bytes]",
)
@click.option("--encode-key", "key_encoder", type=click.Choice(ENCODERS), metavar="FORMAT", help="Encode keys.")
@registry_options
@click.option("--null-value", metavar="TEXT", help="Send a null value (a tombstone) where the value is exactly TEXT.")
@click.option(
    "--header", "-H", "header_words", multiple=True, metavar="NAME=VALUE", help="Header of every record. Repeatable."
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    help="Send to this partition.  [default: by key; without one, each batch to the next]",
)
@click.option(
    "--codec", type=click.Choice(list(CODECS)), default="none", show_default=True, help="Compression of the batches."
)
@acks_option
@click.option("--idempotent", is_flag=True, help="Write no duplicate when a batch is retried (needs --acks all).")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=262144, show_default=True, help="Maximum bytes of a batch."
)
@json_option
def produce(
    topic: str,
    bootstrap_server: str,
    key_separator: str | None,
    value_encoder: str | None,
    key_encoder: str | None,
    registry: RegistryOptions,
    null_value: str | None,
    header_words: tuple[str, ...],
    partition: int | None,
    codec: str,
    acks: str,
    idempotent: bool,
    batch_size: int,
    as_json: bool,
) -> None:
    """Send each line of standard input to TOPIC as a record.

    Sends the lines that were read as soon as no more input is waiting. At the end prints the partitions and offsets.
    """
    if key_separator == "":
        raise click.BadParameter("expected a text, got an empty one", param_hint="--key-separator")
    if idempotent and ACKS[acks] != -1:
        raise click.BadParameter(f"expected --acks all, got --acks {acks}", param_hint="--idempotent")
    headers = [_header(word) for word in header_words]
    deliveries: dict[int, list[int]] = {}  # partition: count, first offset, last offset

    def on_delivery(delivery: Delivery) -> None:
        known = deliveries.setdefault(delivery.partition, [0, delivery.base_offset, -1])
        known[0] += delivery.record_count
        if delivery.base_offset >= 0:
            known[2] = delivery.base_offset + delivery.record_count - 1

    stdin = sys.stdin.buffer
    if stdin.isatty():
        note("type one record per line; Ctrl-D ends the input")
    separator = None if key_separator is None else os.fsencode(key_separator)
    null = None if null_value is None else os.fsencode(null_value)
    encoded: _Encode | None = None
    if value_encoder or key_encoder:
        by_schema = BY_SCHEMA & {value_encoder, key_encoder}
        encoded = _encoder(topic, key_encoder, value_encoder, registry.needed() if by_schema else registry.client())
    with (
        connect(bootstrap_server) as cluster,
        Producer(
            cluster,
            acks=ACKS[acks],
            codec=codec,
            idempotent=idempotent,
            batch_size_bytes=batch_size,
            on_delivery=on_delivery,
        ) as producer,
    ):
        number = sent_count = 0
        try:
            for line in _lines(stdin):
                if line is None:
                    producer.flush()
                    continue
                number += 1
                key, text = _split(number, line, separator)
                value = None if text == null else text
                if encoded is not None:
                    key, value = encoded(number, key, value)
                try:
                    producer.send(topic, value, key, partition=partition, headers=headers)
                except ValueError as error:
                    raise click.BadParameter(str(error), param_hint="--partition") from None
                sent_count = number
        except click.BadParameter:
            raise
        except click.ClickException as error:
            sent = f"; sent the {counted(sent_count, 'record')} before it" if sent_count else ""
            try:
                producer.flush()
            except (KafkaError, UserError) as failure:
                sent = f"; not all records before it were sent: {failure}"
            raise click.ClickException(f"{error.message}{sent}") from None
        if not number:
            cluster.topic(topic)  # without a record nothing has looked it up: a misspelled name is an error here too
            note("standard input was empty: no records sent")
    rows = [
        {"partition": p, "records": count, "first_offset": first, "last_offset": last}
        for p, (count, first, last) in sorted(deliveries.items())
    ]
    if as_json:
        print_json({"topic": topic, "records": sum(r["records"] for r in rows), "partitions": rows})
    else:
        for r in rows:
            where = f", offsets {r['first_offset']} to {r['last_offset']}" if r["first_offset"] >= 0 else ""
            click.echo(f"{topic}-{r['partition']}: {counted(r['records'], 'record')}{where}")


def _encoder(
    topic: str, key_encoder: str | None, value_encoder: str | None, registry: SchemaRegistry | None
) -> _Encode:
    """Return a function that encodes the key and value of a line, by its number, and may raise ClickException."""
    from kbroker.decoders.decoded import MissingPackageError, Place, UnencodableError
    from kbroker.decoders.encoders import Encoders

    encoders = Encoders(registry)

    def part(number: int, data: bytes | None, name: str | None, is_key: bool) -> bytes | None:
        if data is None or name is None:
            return data
        try:
            return encoders.encode(name, data.decode(), Place(topic, is_key))
        except (UnencodableError, UnicodeDecodeError, MissingPackageError) as error:
            raise click.ClickException(f"line {number}: the {'key' if is_key else 'value'}: {error}") from None

    return lambda number, key, value: (part(number, key, key_encoder, True), part(number, value, value_encoder, False))


def _header(word: str) -> tuple[str, bytes]:
    name, equals, value = word.partition("=")
    if not equals:
        raise click.BadParameter(f"expected NAME=VALUE, got {word!r}", param_hint="--header")
    return name, os.fsencode(value)


def _split(number: int, line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        wanted, got = separator.decode(errors="replace"), line[:80].decode(errors="replace")
        raise click.ClickException(f"line {number}: expected the separator {wanted!r}, got {got!r}")
    return key, value


def _lines(stdin: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines without their end (LF or CRLF), and None whenever no more input is waiting."""
    rest = bytearray()
    while True:
        chunk = stdin.read1(READ_BYTES)  # type: ignore[attr-defined]
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        rest += first
        if len(rest) > MAX_FRAME_BYTES:
            raise click.ClickException(f"expected lines of at most {MAX_FRAME_BYTES:,} bytes, got a longer one")
        if others:
            yield bytes(rest).removesuffix(b"\r")
            for line in others[:-1]:
                yield line.removesuffix(b"\r")
            rest = bytearray(others[-1])
        if not _more_waiting(stdin):
            yield None
    if rest:
        yield bytes(rest).removesuffix(b"\r")


def _more_waiting(stdin: BinaryIO) -> bool:
    try:
        return bool(select.select([stdin], [], [], 0)[0])
    except (OSError, ValueError):  # not a descriptor, or not one that select accepts (Windows): send the lines so far
        return False
