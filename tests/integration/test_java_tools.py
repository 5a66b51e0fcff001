"""Kafka's command line tools with kbroker: the tools work, and print what they print with Apache Kafka."""

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import need
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kafka import java_command
from tests.support.kafka.tools import TOOLS, Tools

GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextlib.contextmanager
def running(bootstrap: str, tool: str, *args: str, log: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run a tool in its own process until SIGTERM ends it; yield a function that reads its lines of JSON so far."""
    command = java_command(tool, "--bootstrap-server", bootstrap, *args)
    with log.open("w") as output, log.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)

    def lines() -> list[dict[str, Any]]:
        whole = log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    try:
        yield lines
        process.terminate()
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    need.kafka_tools()
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2", "node.id": "1"}
    with BrokerProcess(tmp_path_factory.mktemp("java-tools") / "data", settings) as broker:
        yield Tools(broker.bootstrap)


def rows(text: str) -> list[list[str]]:
    """Return the words of each line that is not blank."""
    return [line.split() for line in text.splitlines() if line.strip()]


def test_topics_and_configs(tools: Tools) -> None:
    """kafka-topics creates, describes, extends, lists and deletes a topic; kafka-configs changes topic and broker."""
    tool = TOOLS + "TopicCommand"
    made = tools(tool, "--create", "--topic", "made", "--partitions", "2", "--config", "retention.ms=100000")
    assert made == "Created topic made.\n"
    tools(tool, "--alter", "--topic", "made", "--partitions", "3")
    head, *partitions = tools(tool, "--describe", "--topic", "made").splitlines()
    assert re.search(r"Topic: made\tTopicId: \S{22}\tPartitionCount: 3\tReplicationFactor: 1\t", head)
    assert "retention.ms=100000" in head
    assert [line.split("\t")[2:6] for line in partitions] == [
        [f"Partition: {index}", "Leader: 1", "Replicas: 1", "Isr: 1"] for index in range(3)
    ]

    about = ("--entity-type", "topics", "--entity-name", "made")
    tools(CONFIGS, "--alter", *about, "--add-config", "max.message.bytes=2000000", "--delete-config", "retention.ms")
    described = tools(CONFIGS, "--describe", *about)
    assert (
        "max.message.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000, "
        in described
    )
    assert "retention.ms" not in described
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    tools(CONFIGS, "--alter", *broker, "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:" in tools(
        CONFIGS, "--describe", *broker
    )

    tools(tool, "--delete", "--topic", "made")
    assert "made" not in tools(tool, "--list").split()


def test_console_and_groups(tools: Tools) -> None:
    """The console consumer reads the console producer's records in a group, which kafka-consumer-groups resets and
    deletes.
    """
    lines = [f"line {number}" for number in range(20)]
    tools(TOOLS + "ConsoleProducer", "--topic", "lines", stdin="".join(line + "\n" for line in lines))
    consume = ("--topic", "lines", "--group", "readers", "--from-beginning", "--max-messages", "20")
    read = tools(TOOLS + "consumer.ConsoleConsumer", *consume, "--timeout-ms", "60000")
    assert sorted(read.splitlines()) == sorted(lines)

    assert "readers" in tools(GROUPS, "--list").split()
    described = [row for row in rows(tools(GROUPS, "--describe", "--group", "readers")) if row[0] == "readers"]
    assert {(row[1], row[2]) for row in described} == {("lines", "0"), ("lines", "1")}
    assert all(row[3] == row[4] and row[5] == "0" for row in described)
    assert sum(int(row[3]) for row in described) == 20
    state = rows(tools(GROUPS, "--describe", "--group", "readers", "--state"))[-1]
    assert (state[0], *state[-2:]) == ("readers", "Empty", "0")

    which = ("--group", "readers", "--topic", "lines:0,1")
    reset = rows(tools(GROUPS, "--reset-offsets", *which, "--to-earliest", "--execute"))
    assert sorted(row[1:] for row in reset[1:]) == [["lines", "0", "0"], ["lines", "1", "0"]]
    after = [row for row in rows(tools(GROUPS, "--describe", "--group", "readers")) if row[0] == "readers"]
    assert sum(int(row[5]) for row in after) == 20
    assert "successful" in tools(GROUPS, "--delete", "--group", "readers")
    assert "readers" not in tools(GROUPS, "--list").split()


def committed(tools: Tools, group: str) -> dict[tuple[str, int], int]:
    """Return the committed offsets of a group as kafka-consumer-groups describes them."""
    found = [row for row in rows(tools(GROUPS, "--describe", "--group", group)) if row[0] == group]
    return {(row[1], int(row[2])): int(row[3]) for row in found if row[3] != "-"}


def test_groups_with_members(tools: Tools, tmp_path: Path) -> None:
    """Members and their assignments are described; offsets of a subscribed topic can be neither reset nor deleted."""
    tools(TOOLS + "TopicCommand", "--create", "--topic", "busy", "--partitions", "4")
    sent = tools(TOOLS + "VerifiableProducer", "--topic", "busy", "--max-messages", "200", "--acks", "-1")
    events = [json.loads(line) for line in sent.splitlines()]
    acked = {(event["partition"], event["offset"]) for event in events if event["name"] == "producer_send_success"}
    assert len(acked) == 200
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (200, 200)

    how = ("--topic", "busy", "--group-id", "workers", "--reset-policy", "earliest", "--session-timeout", "10000")
    consumer = TOOLS + "VerifiableConsumer"
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(running(tools.bootstrap, consumer, *how, log=tmp_path / "one"))
        two = stack.enter_context(running(tools.bootstrap, consumer, *how, log=tmp_path / "two"))

        def share(lines: Callable[[], list[dict[str, Any]]]) -> int:
            """Return the number of partitions of the last assignment."""
            assigned = [line["partitions"] for line in lines() if line["name"] == "partitions_assigned"]
            return len(assigned[-1]) if assigned else 0

        def consumed() -> int:
            lines = [*one(), *two()]
            return sum(line["count"] for line in lines if line["name"] == "records_consumed")

        wait_for("half the partitions each", lambda: (share(one), share(two)) == (2, 2), 60)
        wait_for("all records are consumed", lambda: consumed() == 200, 60)
        state = rows(tools(GROUPS, "--describe", "--group", "workers", "--state"))[-1]
        assert (state[0], *state[-2:]) == ("workers", "Stable", "2")
        members = [row for row in rows(tools(GROUPS, "--describe", "--group", "workers", "--members")) if len(row) > 4]
        assert [(row[0], row[2], row[-1]) for row in members[1:]] == [("workers", "/127.0.0.1", "2")] * 2
        verbose = tools(GROUPS, "--describe", "--group", "workers", "--members", "--verbose")
        shares = re.findall(r"busy\((\d),(\d)\)|busy:(\d),(\d)", verbose)
        assert sorted(number for share in shares for number in share if number) == ["0", "1", "2", "3"], verbose
        where = ("--group", "workers", "--topic", "busy")
        refused = tools(GROUPS, "--delete-offsets", *where, status=None)
        assert "subscribed" in refused.lower(), refused
        before = committed(tools, "workers")
        tools(GROUPS, "--reset-offsets", *where, "--to-earliest", "--execute", status=None)
        assert committed(tools, "workers") == before
        assert sum(before.values()) == 200
    wait_for("the group is empty", lambda: "Empty" in tools(GROUPS, "--describe", "--group", "workers", "--state"), 60)

    deleted = tools(GROUPS, "--delete-offsets", "--group", "workers", "--topic", "busy:0,1")
    assert "Request succeeded for deleting offsets from group workers." in deleted
    assert {tuple(row[-3:]) for row in rows(deleted) if row[0] == "busy"} == {
        ("busy", "0", "Successful"),
        ("busy", "1", "Successful"),
    }
    assert committed(tools, "workers") == {place: offset for place, offset in before.items() if place[1] in (2, 3)}
    tools(GROUPS, "--delete-offsets", "--group", "workers", "--topic", "busy")
    assert committed(tools, "workers") == {}


def test_reset_offsets_in_every_way(tools: Tools, tmp_path: Path) -> None:
    """Offsets can be reset by offset, time, file and shift; a dry run has no effect; plans are exported as CSV."""
    tools(TOOLS + "TopicCommand", "--create", "--topic", "moved", "--partitions", "1")
    lines = "".join(f"{number}\n" for number in range(30))
    tools(TOOLS + "ConsoleProducer", "--topic", "moved", stdin=lines)

    def reset(*how: str, execute: bool = True) -> dict[tuple[str, int], int]:
        where = ("--group", "movers", "--topic", "moved")
        tools(GROUPS, "--reset-offsets", *where, *how, "--execute" if execute else "--dry-run")
        return committed(tools, "movers")

    place = ("moved", 0)
    assert reset("--to-offset", "7") == {place: 7}
    assert reset("--shift-by", "5", execute=False) == {place: 7}
    assert reset("--shift-by", "-3") == {place: 4}
    assert reset("--to-latest") == {place: 30}
    assert reset("--by-duration", "PT1H") == {place: 0}
    assert reset("--to-datetime", "2100-01-01T00:00:00.000") == {place: 30}
    plan = tmp_path / "plan.csv"
    plan.write_text("moved,0,11\n")
    assert reset("--from-file", str(plan)) == {place: 11}
    where = ("--group", "movers", "--topic", "moved")
    exported = tools(GROUPS, "--reset-offsets", *where, "--to-current", "--export", "--dry-run")
    assert '"moved",0,11' in exported or "moved,0,11" in exported
    assert "movers" in tools(GROUPS, "--list", "--state", "Empty")
    assert "successful" in tools(GROUPS, "--delete", "--group", "movers")


def test_records_and_offsets(tools: Tools, tmp_path: Path) -> None:
    """The performance tools send and read all records; offsets, deleted records and sizes of folders are correct."""
    how_many = ("--topic", "many", "--num-records", "2000")
    tools(TOOLS + "TopicCommand", "--create", "--topic", "many", "--partitions", "1")
    sent = tools(TOOLS + "ProducerPerformance", *how_many, "--record-size", "100", "--throughput", "-1")
    assert sent.startswith("2000 records sent")
    measured = tools(TOOLS + "ConsumerPerformance", *how_many, "--timeout", "60000")
    header, values = (line.split(", ") for line in measured.splitlines()[:2])
    assert values[header.index("data.consumed.in.nMsg")] == "2000"

    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps({"version": 1, "partitions": [{"topic": "many", "partition": 0, "offset": 7}]}))
    assert "partition: many-0\tlow_watermark: 7" in tools(
        TOOLS + "DeleteRecordsCommand", "--offset-json-file", str(cut)
    )
    assert tools(TOOLS + "GetOffsetShell", "--topic", "many") == "many:0:2000\n"
    offsets = TOOLS + "GetOffsetShell"
    assert tools(offsets, "--topic", "many", "--time", "earliest") == "many:0:7\n"
    assert tools(offsets, "--topic-partitions", "many:0", "--time", "1000") == "many:0:7\n"
    assert re.fullmatch(r"many:0:\d+\n", tools(offsets, "--topic", "many", "--time", "max-timestamp"))
    folders = json.loads(tools(TOOLS + "LogDirsCommand", "--describe", "--topic-list", "many").splitlines()[-1])
    (partition,) = folders["brokers"][0]["logDirs"][0]["partitions"]
    assert (partition["partition"], partition["offsetLag"], partition["isFuture"]) == ("many-0", 0, False)
    assert partition["size"] > 200_000


def test_one_node_cluster(tools: Tools, tmp_path: Path) -> None:
    """The tools for clusters show one node that is the leader; a reassignment to the same node completes."""
    assert re.fullmatch(r"Cluster ID: \S{22}\n", tools(TOOLS + "ClusterTool cluster-id"))
    versions = tools(TOOLS + "BrokerApiVersionsCommand")
    assert f"{tools.bootstrap} (id: 1 rack: null isFenced: false)" in versions
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    elected = ("--election-type", "preferred", "--all-topic-partitions")
    assert "Error" not in tools(TOOLS + "LeaderElectionCommand", *elected)
    features = re.findall(r"Feature: (\S+)\s.*MaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)\s+Epoch: [1-9]",
                          tools(TOOLS + "FeatureCommand", "describe"))  # fmt: skip
    assert ("metadata.version", "4.3-IV0", "4.3-IV0") in features
    assert ("transaction.version", "2", "2") in features
    status = tools(TOOLS + "MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\n", status)
    tools(TOOLS + "TopicCommand", "--create", "--topic", "still", "--partitions", "1")
    plan = tmp_path / "plan.json"
    partition = {"topic": "still", "partition": 0, "replicas": [1], "log_dirs": ["any"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    tool = TOOLS + "reassign.ReassignPartitionsCommand"
    assert "Successfully started partition reassignment for still-0" in tools(
        tool, "--reassignment-json-file", str(plan), "--execute"
    )
    assert "Reassignment of partition still-0 is completed." in tools(
        tool, "--reassignment-json-file", str(plan), "--verify"
    )
