"""`kbroker transactions`: list, describe and abort transactions, on any Kafka."""

from dataclasses import asdict
from typing import Any

import click

from kbroker.cli.options import CommandGroup, bootstrap_option, connect, json_option, wall_clock
from kbroker.cli.output import fields, print_done, print_json, print_rows, print_table
from kbroker.client.cluster import Cluster
from kbroker.client.transactions import Transactions
from kbroker.common.topic_names import TopicPartition

DEFAULT_MAX_TIMEOUT_MINUTES = 15  # transaction.max.timeout.ms of Kafka


@click.group(cls=CommandGroup)
def transactions() -> None:
    """List, describe and abort transactions."""


@transactions.command("list")
@bootstrap_option
@click.option("--state", "states", multiple=True, help="List only ids in this state, such as Ongoing. Repeatable.")
@click.option(
    "--producer-id",
    "producer_ids",
    type=int,
    multiple=True,
    help="List only transactions of this producer id. Repeatable.",
)
@click.option(
    "--duration-filter", type=int, default=-1, metavar="MS", help="List only transactions open for more milliseconds."
)
@click.option("--transactional-id-pattern", metavar="REGEX", help="List only ids that match the expression.")
@json_option
def list_transactions(
    bootstrap_server: str,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_filter: int,
    transactional_id_pattern: str | None,
    as_json: bool,
) -> None:
    """List transactional ids with their states."""
    with connect(bootstrap_server) as cluster:
        found = Transactions(cluster).list_transactions(
            states=states, producer_ids=producer_ids, duration_ms=duration_filter, pattern=transactional_id_pattern
        )
    header = ["TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"]
    print_rows(header, [asdict(one) for one in found], as_json)


@transactions.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap_server: str, as_json: bool) -> None:
    """Show the transactions of transactional ids.

    DURATION is the age of the open transaction in milliseconds, by this machine's clock.
    """
    with connect(bootstrap_server) as cluster:
        client = Transactions(cluster)
        found = [client.describe(name) for name in names]
    now_ms = wall_clock().wall_ms()
    rows: list[dict[str, Any]] = [
        {
            **fields(one, "transactional_id coordinator producer_id producer_epoch state timeout_ms start_time_ms"),
            "duration_ms": None if one.start_time_ms is None else now_ms - one.start_time_ms,
            "partitions": [{"topic": topic, "partition": index} for topic, index in one.partitions],
        }
        for one in found
    ]
    if as_json:
        print_json(rows)
        return
    header = ["TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "EPOCH", "STATE", "TIMEOUT", "START", "DURATION"]
    shown = [[*list(row.values())[:-1], [f"{p['topic']}-{p['partition']}" for p in row["partitions"]]] for row in rows]
    print_table([*header, "PARTITIONS"], shown)


@transactions.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@bootstrap_option
@click.option("--broker-id", type=int, help="Read from this replica.  [default: the leader]")
@json_option
def describe_producers(topic: str, partition: int, bootstrap_server: str, broker_id: int | None, as_json: bool) -> None:
    """Show the producers in the state of a partition.

    START OFFSET is the first offset of the producer's open transaction.
    """
    place = topic, partition
    with connect(bootstrap_server) as cluster:
        found = Transactions(cluster).describe_producers([place], broker_id)[place]
    header = ["PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "LAST SEQUENCE", "LAST TIMESTAMP", "START OFFSET"]
    print_rows(header, [asdict(one) for one in found], as_json)


@transactions.command()
@bootstrap_option
@click.option("--topic", help="Search only this topic.  [default: all topics]")
@click.option("--partition", type=click.IntRange(min=0), help="Search only this partition of the topic.")
@click.option("--broker-id", type=int, help="Search only the replicas of this broker.")
@click.option(
    "--max-transaction-timeout",
    "max_timeout_minutes",
    type=click.IntRange(min=0),
    default=DEFAULT_MAX_TIMEOUT_MINUTES,
    show_default=True,
    metavar="MINUTES",
    help="Leave out transactions whose last record is younger.",
)
@json_option
def find_hanging(
    bootstrap_server: str,
    topic: str | None,
    partition: int | None,
    broker_id: int | None,
    max_timeout_minutes: int,
    as_json: bool,
) -> None:
    """Find open transactions that no coordinator will end.

    Such transactions block read_committed consumers of their partition; `abort` ends one. DURATION is in minutes, since
    the producer's last record.
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    now_ms = wall_clock().wall_ms()
    with connect(bootstrap_server) as cluster:
        places = _places(cluster, topic, partition, broker_id)
        found = Transactions(cluster).find_hanging(
            places, now_ms=now_ms, max_timeout_ms=max_timeout_minutes * 60_000, broker_id=broker_id
        )
    rows = [
        {
            "topic": place[0],
            "partition": place[1],
            **fields(one, "producer_id producer_epoch coordinator_epoch start_offset last_timestamp_ms"),
            "duration_minutes": (now_ms - one.last_timestamp_ms) // 60_000,
        }
        for place, one in found
    ]
    header = ["TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "START OFFSET", "LAST TIMESTAMP"]
    print_rows([*header, "DURATION"], rows, as_json)


@transactions.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@bootstrap_option
@click.option(
    "--start-offset", type=click.IntRange(min=0), help="First offset of the transaction, as find-hanging shows."
)
@click.option(
    "--producer-id",
    type=click.IntRange(min=0),
    help="Id of the producer, in place of --start-offset, for brokers before 3.0.",
)
@click.option("--producer-epoch", type=click.IntRange(0, 32767), help="Epoch of the producer.")
@click.option("--coordinator-epoch", type=int, help="Epoch of the coordinator.")
@json_option
def abort(
    topic: str,
    partition: int,
    bootstrap_server: str,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    as_json: bool,
) -> None:
    """Abort a transaction in one partition.

    Use it for a hanging transaction: it bypasses the coordinator. The command does not prompt for confirmation.
    """
    place = topic, partition
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("expected either --start-offset, or --producer-id with both epochs")
    if producer_id is not None and (producer_epoch is None or coordinator_epoch is None):
        raise click.UsageError("--producer-id needs --producer-epoch and --coordinator-epoch")
    with connect(bootstrap_server) as cluster:
        client = Transactions(cluster)
        if start_offset is not None:
            ended = client.abort_at(place, start_offset)
            producer_id, producer_epoch = ended.producer_id, ended.producer_epoch
        elif producer_id is not None and producer_epoch is not None and coordinator_epoch is not None:
            client.abort(place, producer_id, producer_epoch, coordinator_epoch)
    done = {"topic": topic, "partition": partition, "producer_id": producer_id, "producer_epoch": producer_epoch}
    print_done(done, as_json, f"aborted the transaction of producer {producer_id} in {topic}-{partition}")


@transactions.command()
@click.argument("name", metavar="TRANSACTIONAL_ID")
@bootstrap_option
@json_option
def force_terminate(name: str, bootstrap_server: str, as_json: bool) -> None:
    """Abort the open transaction of a transactional id.

    Its producer is fenced and has to start again. The command does not prompt for confirmation.
    """
    with connect(bootstrap_server) as cluster:
        Transactions(cluster).force_terminate(name)
    print_done({"transactional_id": name, "terminated": True}, as_json, f"terminated {name}")


def _places(cluster: Cluster, topic: str | None, partition: int | None, broker_id: int | None) -> list[TopicPartition]:
    """Return the partitions to examine."""
    if topic is not None and partition is not None:
        return [(topic, partition)]
    found = cluster.fetch_metadata(None) if topic is None else [cluster.topic(topic)]
    return [
        (one.name, each.partition)
        for one in found
        for each in one.partitions
        if broker_id is None or broker_id in each.replicas
    ]
