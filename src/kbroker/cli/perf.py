"""`kbroker perf`: throughput and latency of any Kafka, with the lines that Kafka's tools print."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.cli.name_completion import topic_names
from kbroker.cli.options import (
    CommandGroup,
    Finite,
    bootstrap_option,
    client_properties,
    connect,
    decorators,
    json_option,
    key_values,
    wall_clock,
)
from kbroker.cli.output import print_json
from kbroker.cli.perf_reports import (
    FIELDS,
    MIB,
    Latencies,
    ProduceStats,
    consume_line,
    consume_progress_line,
    histogram_lines,
    latency_lines,
    per_second,
)
from kbroker.cli.produce import ACKS, acks_option
from kbroker.cli.progress_display import ProgressDisplay, Step
from kbroker.client import perf_clients
from kbroker.client.perf_clients import LIBRDKAFKA, OWN
from kbroker.client.producer import CODECS, Producer
from kbroker.common.errors import Errors, ignoring
from kbroker.common.topic_names import invalid_name_reason

if TYPE_CHECKING:
    from kbroker._core.clock import BaseClock
    from kbroker.client.cluster import Cluster

INTERVAL_MS = 5_000
LATENCY_TIMEOUT_S = 60.0
LONGEST_SLEEP_S = 1e9  # the system rejects ten times this value
MAX_RECORD_SIZE = 100 << 20  # no broker accepts larger requests by default: socket.request.max.bytes


class _Run(NamedTuple):
    """Options of all three commands. ``client``: the measured client; ``extra``: properties of librdkafka."""

    topic: str
    bootstrap_server: str
    num_records: int
    client: str
    extra: dict[str, str]
    as_json: bool

    def config(self, **settings: object) -> dict[str, Any]:
        """Return a configuration of librdkafka: settings, those of the connection, and the user's."""
        try:
            connection = perf_clients.librdkafka_config(self.bootstrap_server, client_properties())
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--command-config") from None
        return {**settings, **connection, **self.extra}

    @contextmanager
    def begun(self, name: str) -> Iterator[tuple[Cluster, Step]]:
        """Connect, so that a broker that does not respond is an error at once with either client; show a bar."""
        display = ProgressDisplay(quiet=not sys.stderr.isatty())
        with connect(self.bootstrap_server) as cluster, display.step(name, self.num_records, "records") as step:
            cluster.fetch_metadata([])
            yield cluster, step


def perf_options(default_records: int) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that adds the options of all three commands; a command gets them as its first argument."""
    options = decorators(
        click.argument("topic", shell_complete=topic_names),
        bootstrap_option,
        click.option(
            "--num-records", "-n", type=click.IntRange(min=1), default=default_records, show_default=True,
            help="Number of records.",
        ),
        click.option(
            "--client", "client_name", type=click.Choice([LIBRDKAFKA, OWN]),
            help="Client that is measured.  [default: librdkafka, if confluent-kafka is installed]",
        ),
        click.option(
            "--client-property", "-X", "client_words", multiple=True, metavar="NAME=VALUE",
            help="Property of librdkafka, such as linger.ms=5. Repeatable.",
        ),
        json_option,
    )  # fmt: skip

    def of(command: Callable[..., None]) -> Any:
        @functools.wraps(command)
        def call(client_name: str | None, client_words: tuple[str, ...], **given: Any) -> None:
            shared = {name: given.pop(name) for name in ("topic", "bootstrap_server", "num_records", "as_json")}
            reason = invalid_name_reason(shared["topic"])
            if reason is not None:  # with such a name confluent-kafka may end the process
                raise click.BadParameter(reason, param_hint="TOPIC")
            client, extra = _chosen(client_name, client_words)
            command(_Run(client=client, extra=extra, **shared), **given)

        return options(call)

    return of


interval_option = click.option(
    "--reporting-interval", type=click.IntRange(min=1), default=INTERVAL_MS, show_default=True, metavar="MS",
    help="Time between two lines.",
)  # fmt: skip


@click.group(cls=CommandGroup)
def perf() -> None:
    """Measure throughput and latency of a cluster."""


@perf.command()
@perf_options(100_000)
@click.option(
    "--record-size", type=click.IntRange(0, MAX_RECORD_SIZE), default=100, show_default=True, help="Bytes of a record."
)
@click.option(
    "--throughput", type=Finite(-1), default=-1, show_default=True, help="Maximum records per second; -1: no limit."
)
@acks_option
@click.option("--codec", type=click.Choice(list(CODECS)), default="none", show_default=True, help="Compression.")
@interval_option
def produce(run: _Run, record_size: int, throughput: float, acks: str, codec: str, reporting_interval: int) -> None:
    """Send records to TOPIC as fast as possible, or at a rate.

    Prints the lines of kafka-producer-perf-test, and a histogram of the latencies: from the call that sends a record
    to its acknowledgement.
    """
    clock = wall_clock()

    def on_acknowledged(seconds: float) -> None:
        stats.add(seconds, record_size)

    with run.begun("producing") as (cluster, step):
        producer: perf_clients.PerfProducer
        if run.client == LIBRDKAFKA:
            config = run.config(**{"acks": acks, "compression.type": codec})
            producer = perf_clients.LibrdkafkaProducer(config, run.topic, on_acknowledged)
        else:
            own = Producer(cluster, acks=ACKS[acks], codec=codec)
            producer = perf_clients.OwnProducer(own, run.topic, on_acknowledged, clock)
        payload = os.urandom(record_size)
        stats = ProduceStats(
            run.num_records, reporting_interval, clock, (lambda line: None) if run.as_json else click.echo
        )
        pace = Pace(throughput, clock)
        for number in range(run.num_records):
            pace.wait(number)
            producer.send(payload)
            if not number % 256:
                step.at(stats.latencies.count)
        producer.flush()
    if run.as_json:
        elapsed_ms = stats.elapsed_ms()
        rates = _rates(stats.latencies.count, stats.byte_count, elapsed_ms)
        print_json({"client": run.client, "topic": run.topic, **rates, "latency_ms": stats.latencies.document()})
        return
    click.echo(stats.total_line())
    _echo(histogram_lines(stats.latencies.histogram()))


@perf.command()
@perf_options(100_000)
@click.option("--group", "-g", metavar="ID", help="Consumer group of librdkafka.  [default: a new one]")
@click.option("--from-latest", is_flag=True, help="Begin at the end of a partition without a committed offset.")
@click.option(
    "--timeout", "timeout_ms", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="MS",
    help="Stop when no record arrived for this long.",
)  # fmt: skip
@click.option("--show-detailed-stats", is_flag=True, help="Print a line for each interval.")
@interval_option
@click.option("--hide-header", is_flag=True, help="Omit the names of the columns.")
def consume(
    run: _Run,
    group: str | None,
    from_latest: bool,
    timeout_ms: int,
    show_detailed_stats: bool,
    reporting_interval: int,
    hide_header: bool,
) -> None:
    """Read records of TOPIC as fast as possible.

    Prints the lines of kafka-consumer-perf-test.
    """
    if perf_clients.is_empty_group(group):
        raise click.BadParameter(f"expected the name of a group, got {group!r}", param_hint="--group")
    clock = wall_clock()
    if not run.as_json and not hide_header:
        click.echo(f"{'time, threadId' if show_detailed_stats else 'start.time, end.time'}, {FIELDS}")
    byte_count = record_count = 0
    last_bytes = last_records = 0
    begin_ms = window_ms = clock.wall_ms()
    with run.begun("consuming") as (cluster, step):
        consumer: perf_clients.PerfConsumer
        if run.client == LIBRDKAFKA:
            consumer = perf_clients.LibrdkafkaConsumer(
                run.config(), run.topic, clock, from_latest=from_latest, group=group
            )
        else:
            consumer = perf_clients.OwnConsumer(cluster, run.topic, clock, from_latest=from_latest)
        try:
            while record_count < run.num_records:
                found = consumer.poll(timeout_ms / 1000)
                if not found:
                    click.echo(
                        f"WARNING: Exiting before consuming the expected number of records: timeout ({timeout_ms} ms) "
                        "exceeded. You can use the --timeout option to increase the timeout.",
                        err=run.as_json,
                    )
                    break
                record_count += len(found)
                byte_count += sum(map(len, found))
                step.at(record_count)
                now_ms = clock.wall_ms()
                if show_detailed_stats and not run.as_json and now_ms - window_ms >= reporting_interval:
                    join_ms = 0 if last_records else int(consumer.join_s * 1000)
                    window = (byte_count - last_bytes, record_count - last_records)
                    total = (byte_count, record_count)
                    click.echo(consume_progress_line(now_ms, now_ms - window_ms, total, window, join_ms))
                    last_bytes, last_records, window_ms = byte_count, record_count, now_ms
            end_ms = clock.wall_ms()
        finally:
            consumer.close()
    join_ms = int(consumer.join_s * 1000)
    if run.as_json:
        rates = _rates(record_count, byte_count, end_ms - begin_ms)
        print_json({"client": run.client, "topic": run.topic, **rates, "rebalance_ms": join_ms})
    elif not show_detailed_stats:
        click.echo(consume_line(begin_ms, end_ms, byte_count, record_count, join_ms))


@perf.command()
@perf_options(1_000)
@click.option(
    "--record-size", type=click.IntRange(1, MAX_RECORD_SIZE), default=100, show_default=True, help="Bytes of a record."
)
@click.option(
    "--acks", type=click.Choice(["1", "all"]), default="all", show_default=True, help="Replicas that must acknowledge."
)
def latency(run: _Run, record_size: int, acks: str) -> None:
    """Send single records to TOPIC, and read each back before the next.

    Creates a topic that does not exist. Prints the lines of kafka-e2e-latency, and a histogram.
    """
    clock, latencies = wall_clock(), Latencies(run.num_records)
    with run.begun("measuring") as (cluster, step):
        partitions = _made(cluster, run.topic, err=run.as_json)
        producer, consumer = _pair(run, cluster, partitions, acks, clock)
        try:
            for number in range(run.num_records):
                value = os.urandom(record_size)
                begun_ns = clock.now_ns()
                producer.send(value)
                producer.flush()
                found = consumer.poll(LATENCY_TIMEOUT_S)
                seconds = (clock.now_ns() - begun_ns) / 1e9
                _check_record(value, found)
                latencies.add(seconds)
                if not run.as_json and not number % 1000:
                    click.echo(f"{number}\t{seconds * 1000}")
                step.advance()
        finally:
            consumer.close()
    if run.as_json:
        print_json(
            {"client": run.client, "topic": run.topic, "records": latencies.count, "latency_ms": latencies.document()}
        )
        return
    _echo(latency_lines(latencies))
    _echo(histogram_lines(latencies.histogram()))


def _pair(
    run: _Run, cluster: Cluster, partitions: int, acks: str, clock: BaseClock
) -> tuple[perf_clients.PerfProducer, perf_clients.PerfConsumer]:
    """Return a producer, and a consumer at the end of all partitions."""
    if run.client == OWN:
        own = Producer(cluster, acks=ACKS[acks])
        return (
            perf_clients.OwnProducer(own, run.topic, lambda seconds: None, clock),
            perf_clients.OwnConsumer(cluster, run.topic, clock, from_latest=True),
        )
    consumer = perf_clients.LibrdkafkaConsumer(run.config(), run.topic, clock, partitions=partitions)
    config = run.config(**{"acks": acks, "linger.ms": 0})
    return perf_clients.LibrdkafkaProducer(config, run.topic, lambda seconds: None), consumer


def _check_record(value: bytes, found: list[bytes]) -> None:
    if not found:
        reason = f"expected the record within {LATENCY_TIMEOUT_S:.0f} s, found none"
    elif len(found) != 1:
        reason = f"expected one record, found {len(found)}: another client writes to the topic"
    elif found[0] != value:
        reason = "expected the record that was sent, found another: another client writes to the topic"
    else:
        return
    raise click.ClickException(reason)


def _made(cluster: Cluster, topic: str, *, err: bool) -> int:
    """Return the number of partitions of a topic, which is created if it does not exist."""
    from kbroker.client.admin import Admin, NewTopic

    with ignoring(Errors.UNKNOWN_TOPIC_OR_PARTITION):
        return len(cluster.topic(topic).partitions)
    click.echo(
        f'Topic "{topic}" does not exist. Will create topic with 1 partition(s) and replication factor = 1', err=err
    )
    Admin(cluster).create_topics([NewTopic(topic, 1, 1, {})])
    return len(cluster.topic(topic).partitions)


class Pace:
    """A rate of records. Args: ``rate``: records per second; 0 or less: no limit."""

    def __init__(self, rate: float, clock: BaseClock, sleep: Callable[[float], None] = time.sleep) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._begun_ns = clock.now_ns()

    def wait(self, number: int) -> None:
        """Wait until the record with this number is due."""
        if self._rate > 0:
            early_s = number / self._rate - (self._clock.now_ns() - self._begun_ns) / 1e9
            if early_s > 0.001:
                self._sleep(min(early_s, LONGEST_SLEEP_S))


def _chosen(client_name: str | None, words: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Return the client to measure, and its properties."""
    if client_name == LIBRDKAFKA and not perf_clients.has_librdkafka():
        raise click.UsageError('--client librdkafka needs confluent-kafka: pip install "kbroker[perf]"')
    name = client_name or (LIBRDKAFKA if perf_clients.has_librdkafka() else OWN)
    if name == OWN and words:
        raise click.UsageError("--client-property is a property of librdkafka, which is not the client here")
    properties = key_values(words, "--client-property")
    for problem in perf_clients.impossible_properties(properties):
        raise click.BadParameter(problem, param_hint="--client-property")
    return name, properties


def _rates(records: int, byte_count: int, elapsed_ms: int) -> dict[str, Any]:
    return {
        "records": records,
        "bytes": byte_count,
        "seconds": elapsed_ms / 1000,
        "records_per_second": per_second(records, elapsed_ms),
        "mib_per_second": per_second(byte_count, elapsed_ms) / MIB,
    }


def _echo(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)
