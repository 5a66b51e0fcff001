"""`kbroker registry`: subjects and schemas of a Schema Registry, and the schemas that the records of a topic use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.name_completion import topic_names
from kbroker.cli.options import CommandGroup, bootstrap_option, connect, json_option
from kbroker.cli.output import print_json, print_rows
from kbroker.cli.record_options import RegistryOptions, registry_options
from kbroker.common.units import counted

if TYPE_CHECKING:
    from kbroker.client.consumer import Record
    from kbroker.client.schema_registry import Schema, SchemaId, SchemaRegistry

CHECKED = 1000  # number of records to examine by default


@click.group(cls=CommandGroup)
def registry() -> None:
    """Show schemas of a Schema Registry, and their use."""


@registry.command("list")
@registry_options
@json_option
def list_(registry: RegistryOptions, as_json: bool) -> None:
    """List all subjects with their latest version."""
    client = registry.needed()
    rows = []
    for subject in client.subjects():
        latest = client.version(subject)
        rows.append({"subject": subject, "version": latest.version, "id": latest.id, "type": latest.schema.kind})
    print_rows(("SUBJECT", "VERSION", "ID", "TYPE"), rows, as_json)


@registry.command()
@click.argument("subject")
@registry_options
@json_option
def versions(subject: str, registry: RegistryOptions, as_json: bool) -> None:
    """List the versions of SUBJECT."""
    client = registry.needed()
    found = [client.version(subject, number) for number in client.versions(subject)]
    rows = [{"version": one.version, "id": one.id, "type": one.schema.kind} for one in found]
    print_rows(("VERSION", "ID", "TYPE"), rows, as_json)


@registry.command()
@click.argument("subject", required=False)
@click.option("--version", type=click.IntRange(min=1), help="Version of the subject.  [default: the latest]")
@click.option("--id", "number", type=click.IntRange(min=0), help="Id of a schema, in place of SUBJECT.")
@registry_options
@json_option
def show(
    subject: str | None, version: int | None, number: int | None, registry: RegistryOptions, as_json: bool
) -> None:
    """Print the schema of SUBJECT, or of an id."""
    if (subject is None) == (number is None) or (number is not None and version is not None):
        raise click.UsageError("expected either SUBJECT, with or without --version, or --id")
    client = registry.needed()
    document: dict[str, Any] = {"subject": subject, "version": None, "id": number}
    if subject is not None:
        found = client.version(subject, version)
        document.update(version=found.version, id=found.id)
        schema = found.schema
    else:
        from kbroker.client.schema_registry import ID, SchemaId

        schema = client.schema(SchemaId(ID, str(number)))
    if as_json:
        references = [{"name": name, "schema": text} for name, text in schema.references]
        print_json({**document, "type": schema.kind, "schema": schema.text, "references": references})
    else:
        click.echo(_readable(schema))


def _readable(schema: Schema) -> str:
    from kbroker.decoders.record_text import safe_text

    try:
        return json.dumps(json.loads(schema.text), indent=2, ensure_ascii=True)
    except (ValueError, RecursionError):
        return safe_text(schema.text)


@registry.command()
@click.argument("topic", shell_complete=topic_names)
@bootstrap_option
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=CHECKED,
    show_default=True,
    metavar="COUNT",
    help="Number of records to examine, the last ones of all partitions.",
)
@click.option("--from-beginning", is_flag=True, help="Examine all records.")
@registry_options
@json_option
def check(
    topic: str, bootstrap_server: str, last: int, from_beginning: bool, registry: RegistryOptions, as_json: bool
) -> None:
    """Show which schemas the records of TOPIC use.

    The exit status is 1 if the registry lacks one of them.
    """
    client = registry.needed()
    uses: Counter[tuple[str, SchemaId | None]] = Counter()
    with connect(bootstrap_server) as cluster:
        from kbroker.client.admin import EARLIEST, Admin
        from kbroker.client.consumer import Consumer
        from kbroker.client.record_range import RecordRange, last_records

        partitions = [(topic, one.partition) for one in cluster.topic(topic).partitions]
        if from_beginning:
            consumer = Consumer(cluster, dict.fromkeys(partitions, EARLIEST))
            found = RecordRange(consumer, Admin(cluster).offsets_at(partitions))
            while not found.is_ended:
                _count(found.poll(), uses)
        else:
            _count(last_records(cluster, partitions, last), uses)
    rows = [
        _row(part, schema_id, count, client)
        for (part, schema_id), count in sorted(uses.items(), key=lambda one: (one[0][0], -one[1]))
    ]
    print_rows(("PART", "SCHEMA", "TYPE", "RECORDS", "PROBLEM"), rows, as_json)
    missing = [row for row in rows if row["problem"]]
    if missing:
        raise click.ClickException(f"{counted(len(missing), 'schema')} cannot be read from {client.url}")


def _count(records: Iterable[Record], uses: Counter[tuple[str, SchemaId | None]]) -> None:
    from kbroker.decoders.decoded import Place
    from kbroker.decoders.framing import framed

    for record in records:
        for part, data in (("key", record.key), ("value", record.value)):
            if data is not None:
                found = framed(data, Place(record.topic, part == "key", record.headers))
                uses[part, None if found is None else found.schema_id] += 1


def _row(part: str, schema_id: SchemaId | None, count: int, client: SchemaRegistry) -> dict[str, object]:
    from kbroker.client.schema_registry import RegistryError

    row: dict[str, object] = {"part": part, "schema": None, "type": None, "records": count, "problem": None}
    if schema_id is not None:
        row["schema"] = str(schema_id)
        try:
            row["type"] = client.schema(schema_id).kind
        except RegistryError as error:
            row["problem"] = str(error)
    return row
