"""`kbroker groups`, `configs` and `topics alter` with kbroker and with Apache Kafka, compared with Kafka's own tool."""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner

from kbroker.cli import cli
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from tests.support import need
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kafka.tools import TOOLS, Tools

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sigint_is_not_ignored")]

START_MS = 1_700_000_000_000
RESET_RULES = {
    "current": (["--to-current"], ["--all-topics"]),
    "back": (["--shift-by", "-30"], ["--topic", "{topic}:0"]),
    "time": (["--to-datetime", "2023-11-14T22:13:20.010"], ["--topic", "{topic}"]),  # 10 ms after START_MS
}


@pytest.fixture(scope="module", params=["kbroker", "kafka"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a kbroker, then of an Apache Kafka."""
    if request.param == "kbroker":
        settings = {"group.initial.rebalance.delay.ms": "0"}
        with BrokerProcess(tmp_path_factory.mktemp("cli-groups") / "data", settings) as broker:
            yield broker.bootstrap
        return
    yield request.getfixturevalue("kafka")


def run(address: str, *args: str, status: int = 0) -> str:
    """Return the output of a command, or the one line that it prints when it fails."""
    done = CliRunner().invoke(cli, [*args, "-b", address], prog_name="kbroker", catch_exceptions=False)
    assert done.exit_code == status, (args, done.output)
    if status:
        (line,) = done.stderr.splitlines()
        return line
    return done.stdout


@pytest.fixture
def topic(address: str) -> str:
    """Topic with three partitions of 5, 50 and 0 records, whose timestamps are 1 ms apart."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    run(address, "topics", "create", name, "-p", "3")
    with Cluster(address) as cluster, Producer(cluster) as producer:
        for partition, count in ((0, 5), (1, 50)):
            for number in range(count):
                producer.send(name, b"%d" % number, partition=partition, timestamp_ms=START_MS + number)
    return name


def new_offsets(address: str, group: str, *args: str) -> dict[int, int]:
    shown = json.loads(run(address, "groups", "reset", group, *args, "--json"))
    return {row["partition"]: row["new_offset"] for row in shown["offsets"]}


def committed(address: str, group: str) -> dict[int, tuple[int, int]]:
    """Return the offset and lag of each partition, as `groups describe` shows them."""
    (found,) = json.loads(run(address, "groups", "describe", group, "--json"))
    return {p["partition"]: (p["offset"], p["lag"]) for p in found["partitions"] if p["offset"] is not None}


def test_a_group_from_its_first_offset_to_its_end(address: str, topic: str) -> None:
    """Offsets can be set, moved and deleted while a group has no members; with a live member, that is refused."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    assert run(address, "groups", "describe", group, status=1).startswith("kbroker: GROUP_ID_NOT_FOUND: ")
    args = ["groups", "reset", group, "--topic", topic, "--to-earliest", "--execute"]
    assert len(run(address, *args).splitlines()) == 4
    assert committed(address, group) == {0: (0, 5), 1: (0, 50), 2: (0, 0)}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, "client.id": "reader"}
    )
    consumer.subscribe([topic])
    read: list[object] = []
    wait_for("every record", lambda: read.extend(consumer.consume(100, 0.5)) or len(read) >= 55, 60)  # type: ignore[func-returns-value]
    consumer.commit(asynchronous=False)
    (found,) = json.loads(run(address, "groups", "describe", group, "--json"))
    assert (found["state"], found["type"], found["assignor"]) == ("Stable", "classic", "range")
    assert {(p["partition"], p["offset"] or 0, p["lag"] or 0, p["client_id"]) for p in found["partitions"]} == {
        (0, 5, 0, "reader"),
        (1, 50, 0, "reader"),
        (2, 0, 0, "reader"),
    }
    assert f"{topic}:0,1,2" in run(address, "groups", "describe", group, "--members")
    assert run(address, *args, status=1).startswith("kbroker: NON_EMPTY_GROUP: ")
    assert run(address, "groups", "delete", group, status=1).startswith("kbroker: NON_EMPTY_GROUP: ")
    consumer.close()
    listed = json.loads(run(address, "groups", "list", "--json", "--state", "Empty"))
    assert {"group": group, "type": "classic", "protocol_type": "consumer", "state": "Empty"} in listed
    assert new_offsets(address, group, "--all-topics", "--shift-by", "-10", "--execute") == {0: 0, 1: 40, 2: 0}
    assert committed(address, group) == {0: (0, 5), 1: (40, 10), 2: (0, 0)}
    assert run(address, "groups", "delete", group) == f"deleted {group}\n"
    assert run(address, "groups", "delete", group, "--if-exists") == f"{group} does not exist\n"


def test_a_member_goes_on_where_the_last_one_stopped(address: str, topic: str) -> None:
    """`consume --group` commits the offsets of the records that it printed, and of no others that it fetched."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    command = ["consume", topic, "--group", group, "--from-beginning", "--json", "--timeout", "20"]

    def places(*args: str) -> list[tuple[int, int]]:
        rows = [json.loads(line) for line in run(address, *command, *args).splitlines()]
        return [(row["partition"], row["offset"]) for row in rows]

    first = places("--max-messages", "30")
    assert sum(offset for offset, _ in committed(address, group).values()) == 30
    second = places("--max-messages", "25")
    assert sorted(first + second) == [(0, n) for n in range(5)] + [(1, n) for n in range(50)]
    assert committed(address, group) == {0: (5, 0), 1: (50, 0), 2: (0, 0)}
    assert run(address, "consume", topic, "--group", group, "--timeout", "0.5") == ""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_a_member_shares_with_librdkafka(
    address: str, topic: str, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """The command and a librdkafka consumer share the partitions; a signal makes the command leave the group."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    printed = tmp_path / "printed"
    words = ["consume", topic, "--group", group, "--json", "-b", address]
    command = [sys.executable, "-m", "kbroker", *words]
    other = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "client.id": "other", "heartbeat.interval.ms": 300}
    )
    read: list[tuple[int, int]] = []

    def offsets() -> list[object]:
        known = [row["group"] for row in json.loads(run(address, "groups", "list", "--json"))]
        return list(committed(address, group)) if group in known else []

    def members() -> dict[str, int]:
        other.poll(0.1)
        (found,) = json.loads(run(address, "groups", "describe", group, "--json"))
        return {m["client_id"]: len(m["assignment"]) for m in found["members"]}

    with printed.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE) as process:
        try:
            wait_for("the first member has committed its first offsets", lambda: len(offsets()) == 3, 30)
            other.subscribe([topic])
            wait_for("both members have partitions", lambda: sorted(members().values()) == [1, 2], 60)
            with Cluster(address) as cluster, Producer(cluster) as producer:
                for n in range(30):
                    producer.send(topic, b"new %d" % n, partition=n % 3)

            def everything() -> bool:
                read.extend((m.partition(), m.offset()) for m in other.consume(100, 0.2))  # type: ignore[misc]
                return len(read) + len(printed.read_bytes().splitlines()) >= 30

            wait_for("every record", everything, 60)
            process.send_signal(number)
            assert process.wait(20) == status
            assert process.stderr is not None
            assert process.stderr.read().strip() == b""
            wait_for("the other to have all", lambda: members() == {"other": 3})
        finally:
            process.kill()
            other.close()
    rows = [json.loads(line) for line in printed.read_bytes().splitlines()]
    places = [(row["partition"], row["offset"]) for row in rows] + read
    new = [(0, n) for n in range(5, 15)] + [(1, n) for n in range(50, 60)] + [(2, n) for n in range(10)]
    assert sorted(places) == new
    assert rows
    assert read


def test_every_rule_of_a_reset(address: str, topic: str, tmp_path: Path) -> None:
    """Each rule finds the offsets that fit the records, and only `--execute` commits them."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    new_offsets(address, group, "--topic", f"{topic}:0", "--to-offset", "3", "--execute")
    all_of_it = ["--topic", topic]
    assert new_offsets(address, group, *all_of_it, "--to-earliest") == {0: 0, 1: 0, 2: 0}
    assert new_offsets(address, group, *all_of_it, "--to-latest") == {0: 5, 1: 50, 2: 0}
    assert new_offsets(address, group, *all_of_it, "--to-current") == {0: 3, 1: 50, 2: 0}
    assert new_offsets(address, group, *all_of_it, "--to-offset", "20") == {0: 5, 1: 20, 2: 0}
    assert new_offsets(address, group, "--all-topics", "--shift-by", "1") == {0: 4}
    assert new_offsets(address, group, *all_of_it, "--to-datetime", "2023-11-14T22:13:20.010") == {0: 5, 1: 10, 2: 0}
    assert new_offsets(address, group, *all_of_it, "--by-duration", "P1D") == {0: 5, 1: 50, 2: 0}
    assert new_offsets(address, group, *all_of_it, "--by-duration", "P36500D") == {0: 0, 1: 0, 2: 0}
    plan = tmp_path / "plan.csv"
    plan.write_text(run(address, "groups", "reset", group, *all_of_it, "--to-offset", "4", "--export"))
    assert new_offsets(address, group, "--from-file", str(plan)) == {0: 4, 1: 4, 2: 0}
    missing = ["groups", "reset", group, "--topic", f"{topic}:9", "--to-latest"]
    assert run(address, *missing, status=1).startswith("kbroker: UNKNOWN_TOPIC_OR_PARTITION: ")
    assert committed(address, group) == {0: (3, 2)}


def test_configs_and_partitions(address: str, topic: str) -> None:
    """Configs of topics and brokers change at run time; a refused change and a dry run have no effect."""

    def own(kind: str, name: str) -> dict[str, str]:
        (found,) = json.loads(run(address, "configs", "describe", kind, name, "--json"))
        return {c["name"]: c["value"] for c in found["configs"]}

    run(address, "topics", "alter", topic, "--partitions", "4", "--config", "retention.ms=99999")
    run(address, "configs", "alter", "topic", topic, "--append", "cleanup.policy=compact")
    both = {"retention.ms": "99999", "cleanup.policy": "delete,compact"}
    wait_for("both configs are known", lambda: own("topic", topic) == both)
    wait_for("the new partition is listed", lambda: f"{topic}           4" in run(address, "topics", "list"))
    run(address, "configs", "alter", "topic", topic, "--subtract", "cleanup.policy=delete", "--delete", "retention.ms")
    run(address, "configs", "alter", "topic", topic, "--set", "retention.ms=1", "--dry-run")
    wait_for("what is left is known", lambda: own("topic", topic) == {"cleanup.policy": "compact"})
    for args, code in (
        (["topics", "alter", topic, "--config", "retention.ms=x"], "INVALID_CONFIG"),
        (["topics", "alter", topic, "--partitions", "2"], "INVALID_PARTITIONS"),
        (["configs", "alter", "topic", "nope", "--set", "retention.ms=1"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["configs", "alter", "broker", "default", "--set", "node.id=5"], "INVALID_REQUEST"),
    ):
        assert run(address, *args, status=1).startswith(f"kbroker: {code}: "), args
    node = str(json.loads(run(address, "topics", "describe", topic, "--json"))[0]["partitions"][0]["leader"])
    run(address, "configs", "alter", "broker", "default", "--set", "log.retention.ms=77777777")
    wait_for("the brokers' default is known", lambda: own("broker", "default").get("log.retention.ms") == "77777777")
    assert own("broker", node) == {}
    shown = json.loads(run(address, "configs", "describe", "broker", node, "--key", "log.retention.ms", "--json"))
    assert shown[0]["configs"][0]["source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    run(address, "configs", "alter", "broker", "default", "--delete", "log.retention.ms")
    wait_for("the brokers' default is deleted", lambda: "log.retention.ms" not in own("broker", "default"))


@pytest.mark.parametrize("rule", list(RESET_RULES))
def test_kafkas_own_tool_plans_the_same(address: str, topic: str, rule: str) -> None:
    """A dry run of `kafka-consumer-groups` shows the same offsets as kbroker's command, with either broker."""
    need.kafka_tools()
    group = f"g-{uuid.uuid4().hex[:8]}"
    new_offsets(address, group, "--topic", f"{topic}:0,1", "--to-offset", "40", "--execute")
    args = [part.format(topic=topic) for parts in RESET_RULES[rule] for part in parts]
    tool = TOOLS + "consumer.group.ConsumerGroupCommand"
    printed = Tools(address)(tool, "--reset-offsets", "--dry-run", "--group", group, *args)
    rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
    assert rows, printed
    assert {int(row[2]): int(row[3]) for row in rows} == new_offsets(address, group, *args)
