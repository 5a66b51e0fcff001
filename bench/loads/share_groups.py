"""Measurements of share groups beside Apache Kafka: records that Kafka's own share consumers read and acknowledge."""

import itertools
import subprocess
import time
from collections.abc import Callable

from bench.loads import peers
from bench.loads.breadth import pair
from bench.loads.loads import Loads
from bench.loads.peers import Server
from bench.loads.report import Row, at_least, at_most_of_peer
from tests.support import wire
from tests.support.client import Client, set_configs
from tests.support.kafka.jars import java_command
from tests.support.share_member import ACCEPT, ShareMember
from tests.support.wire import Connection

RECORDS, IN_A_BATCH, CONSUMERS = 400_000, 100, 2
WARM_UP, DELIVERIES = 2_000, 3_000
GROUP = 32  # type of the config resource of groups
names = itertools.count()


def fill(server: Server) -> str:
    """Create a topic of one partition with records of 100 B, and a share group that reads from its start."""
    name = f"shared-{next(names)}"
    peers.make_topic(server, name)
    request = wire.produce(name, 0, wire.batch([b"x" * 100] * IN_A_BATCH))
    with Connection(server.bootstrap) as connection:
        for _ in range(RECORDS // IN_A_BATCH):
            if wire.produced(connection.ask(request)).error_code:
                raise RuntimeError(f"{server.name} refused a batch")
    with Client(server.bootstrap) as client:
        client.call("IncrementalAlterConfigs", 1, set_configs(GROUP, name, {"share.auto.offset.reset": "earliest"}))
    return name


def records_a_second(server: Server) -> float:
    """Return the rate of ``kafka-share-consumer-perf-test``, from the first fetch to the last record."""
    name = fill(server)
    command = java_command(
        "org.apache.kafka.tools.ShareConsumerPerformance",
        *("--bootstrap-server", server.bootstrap, "--topic", name, "--group", name),
        *("--num-records", str(RECORDS), "--threads", str(CONSUMERS), "--hide-header"),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    fields = done.stdout.strip().splitlines()[-1].split(", ") if done.stdout.strip() else []
    if done.returncode != 0 or len(fields) < 6 or float(fields[5]) < RECORDS:
        raise RuntimeError(f"share consumers of {server.name}: {done.stdout}{done.stderr}")
    return float(fields[4])


def delivery_us(server: Server) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time from a Produce to the response of a waiting ShareFetch."""
    name = f"delivered-{next(names)}"
    peers.make_topic(server, name)
    member = ShareMember(server.bootstrap, name, name)
    request = wire.produce(name, 0, wire.batch([b"x" * 100]))
    found = []
    with Connection(server.bootstrap) as connection:
        for number in range(WARM_UP + DELIVERIES):
            member.begin_fetch()
            time.sleep(0.001)  # the fetch waits by now
            begun = time.perf_counter()
            connection.send(request)
            acquired = member.end_fetch()
            found.append((time.perf_counter() - begun) * 1e6)
            connection.receive()
            member.acknowledge(*((first, last, ACCEPT) for first, last in acquired))
            if number == WARM_UP:
                found.clear()
    member.leave()
    found.sort()
    return found[len(found) // 2], found[len(found) * 99 // 100]


def share_groups(loads: Loads) -> list[Row]:
    """Measure two share consumers on one partition, and the delivery of single records to a waiting member."""
    row = Row("two Java share consumers, records of 100 B", "records/s", "> Kafka", is_reached=at_least(1.0))
    p50, p99 = (
        Row(f"Produce to a waiting share fetch, {of}", "us", "< Kafka", is_reached=at_most_of_peer(1.0))
        for of in ("p50", "p99")
    )
    with pair(loads) as servers:
        row.peer_name = p50.peer_name = p99.peer_name = servers[1].name
        for server in servers:
            records_a_second(server)  # Kafka's JVM compiles the code of share groups
        for _ in range(loads.plan.rounds):
            for server, figures in zip(servers, (row.ours, row.peer), strict=True):
                figures.append(records_a_second(server))
        for _ in range(loads.plan.rounds):
            for server, of in zip(servers, ("ours", "peer"), strict=True):
                for one, figure in zip((p50, p99), delivery_us(server), strict=True):
                    getattr(one, of).append(figure)
    return [row, p50, p99]


MEASURES: dict[str, Callable[[Loads], list[Row]]] = {"share": share_groups}
