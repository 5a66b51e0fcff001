"""Kafka's tools print the same lines through kbroker as through a broker of Apache Kafka."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import wait_for
from tests.support.kafka import KafkaCluster
from tests.support.kafka.tools import TOOLS, Tools
from tests.support.member_node import MemberNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPICS, CONFIGS, ACLS = f"{TOOLS}TopicCommand", "kafka.admin.ConfigCommand", f"{TOOLS}AclCommand"
QUORUM, CLUSTER, FEATURES = f"{TOOLS}MetadataQuorumCommand", f"{TOOLS}ClusterTool", f"{TOOLS}FeatureCommand"
REASSIGN, ELECT = f"{TOOLS}reassign.ReassignPartitionsCommand", f"{TOOLS}LeaderElectionCommand"
OFFSETS = f"{TOOLS}GetOffsetShell"

#: Values that differ between runs: ids, epochs, offsets of the metadata log, times.
CHANGING = (
    (re.compile(r"TopicId: \S{22}"), "TopicId: <id>"),
    (re.compile(r"(LeaderEpoch|HighWatermark|MaxFollowerLag|MaxFollowerLagTimeMs):( +)\d+"), r"\1:\2<number>"),
    (re.compile(r"Epoch: \d+"), "Epoch: <number>"),
    (re.compile(r"\[Thread-\d+\]"), "[Thread]"),
    (re.compile(r"(?<=\t)\d+ *(?=\t)"), "<number>"),
    (re.compile(r"\"lag[^}]*"), "<lag>"),
)


class Session:
    """Sequence of tools that are run through one broker, with their output.

    Args: ``bootstrap``: address for the tools that need one broker; ``everywhere``: addresses for the tools that need
    all brokers; ``name``: name of the topics and users, which the kept texts replace by a placeholder.
    """

    def __init__(self, bootstrap: str, everywhere: str, name: str, folder: Path) -> None:
        self.name = name
        self.printed: dict[str, list[str]] = {}
        self._tools, self._everywhere = Tools(bootstrap), Tools(everywhere)
        self._folder = folder

    def __call__(self, tool: str, *arguments: object, status: int | None = 0) -> str:
        needs_leaders = tool in (REASSIGN, ELECT, OFFSETS) or arguments[:2] == ("--describe", "--topic")
        needs_brokers = "list-endpoints" in tool or arguments[1:5:3] == ("--entity-type", 1)
        tools = self._everywhere if needs_leaders or needs_brokers else self._tools
        text = tools(tool, *arguments, status=status)
        label = " ".join(map(str, (tool.rpartition(".")[2], *arguments)))
        own = ((str(self._folder), "<folder>"), (self.name, "<name>"), (tools.bootstrap, "<bootstrap>"))
        for part, replacement in own:
            label, text = label.replace(part, replacement), text.replace(part, replacement)
        for pattern, replacement in CHANGING:
            text = pattern.sub(replacement, text)
        lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
        is_set = tool == ACLS  # the tool prints a set, in no fixed order
        self.printed[f"{len(self.printed)}. {label}"] = sorted(map(str.strip, lines)) if is_set else lines
        return text

    def until(self, found: str, tool: str, *arguments: object) -> None:
        """Run a tool until it prints a text: the metadata of a broker lags behind the controller."""

        def shows() -> bool:
            if found in self(tool, *arguments, status=None):
                return True
            self.printed.popitem()
            return False

        wait_for(f"{found} of {tool}", shows, 30, 0.1)

    def file(self, value: object) -> Path:
        path = self._folder / f"{self.name}-{len(self.printed)}.json"
        path.write_text(json.dumps(value), encoding="utf-8")
        return path


def work_with_topics(run: Session) -> None:
    """Create, change and delete topics, their configs and their replicas, with errors among the requests."""
    name = run.name
    two = ("--partitions", 2, "--replica-assignment", "1:2,2:1")
    run(TOPICS, "--create", "--topic", name, *two[2:], "--config", "retention.ms=100000")
    run(TOPICS, "--create", "--topic", name, *two[2:], status=1)
    run(TOPICS, "--create", "--topic", f"{name}/", *two[:2], status=1)
    run(TOPICS, "--create", "--topic", f"{name}-many", "--replication-factor", 7, *two[:2], status=1)
    run.until("PartitionCount: 2", TOPICS, "--describe", "--topic", name)
    run(TOPICS, "--alter", "--topic", name, "--partitions", 3, "--replica-assignment", "1:2,2:1,2:1")
    run(TOPICS, "--alter", "--topic", name, "--partitions", 1, status=1)
    about = ("--entity-type", "topics", "--entity-name", name)
    run(CONFIGS, "--alter", *about, "--add-config", "max.message.bytes=2000000", "--delete-config", "retention.ms")
    run(CONFIGS, "--alter", *about, "--add-config", "retention.ms=never", status=1)
    run.until("  max.message.bytes=2000000", CONFIGS, "--describe", *about)
    run.until("PartitionCount: 3", TOPICS, "--describe", "--topic", name)
    plan = run.file({"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": [2]}]})
    run(REASSIGN, "--reassignment-json-file", plan, "--execute", "--throttle", 1000000)
    run.until("No partition reassignments found.", REASSIGN, "--list")
    run.until("is completed", REASSIGN, "--reassignment-json-file", plan, "--verify")
    run(ELECT, "--election-type", "preferred", "--topic", name, "--partition", 0, status=None)
    configs = "Configs: min.insync.replicas=1,max.message.bytes=2000000\n"  # the reassignment has removed its throttle
    run.until(configs, TOPICS, "--describe", "--topic", name)
    run(OFFSETS, "--topic", name)
    run(TOPICS, "--delete", "--topic", name)
    run(TOPICS, "--delete", "--topic", f"{name}-absent", status=1)


def work_with_the_cluster(run: Session) -> None:
    """Change and describe brokers, features and the quorum."""
    run(CONFIGS, "--alter", "--entity-type", "brokers", "--entity-name", 1, "--add-config", "background.threads=12")
    run.until("  background.threads=12", CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", 1)
    run(CONFIGS, "--alter", "--entity-type", "brokers", "--entity-name", 1, "--delete-config", "background.threads")
    run(CONFIGS, "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "max.connections=many",
        status=1)  # fmt: skip
    run(CLUSTER + " cluster-id")
    run(CLUSTER + " list-endpoints")
    run(CLUSTER + " unregister", "--id", 77, status=None)
    run(FEATURES, "describe")
    run(FEATURES, "upgrade", "--feature", "metadata.version=99", status=1)
    run(FEATURES, "downgrade", "--feature", "group.version=0", "--dry-run", status=None)
    run(QUORUM, "describe", "--status")
    run(QUORUM, "describe", "--replication")
    run(QUORUM, "remove-controller", "--controller-id", 102, "--controller-directory-id", "A" * 22, status=1)


def work_with_users(run: Session) -> None:
    """Create, change and delete SCRAM users, quotas and ACLs."""
    name = run.name
    user = ("--entity-type", "users", "--entity-name", name)
    run(CONFIGS, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    run(CONFIGS, "--alter", *user, "--add-config", "producer_byte_rate=1000000,request_percentage=50")
    run(CONFIGS, "--alter", *user, "--add-config", "producer_byte_rate=-1", status=1)
    run.until("producer_byte_rate", CONFIGS, "--describe", *user)
    run(ACLS, "--add", "--allow-principal", f"User:{name}", "--operation", "Read", "--operation", "Write",
        "--topic", name, "--resource-pattern-type", "prefixed")  # fmt: skip
    run.until("WRITE", ACLS, "--list", "--topic", name, "--resource-pattern-type", "prefixed")
    run(ACLS, "--remove", "--force", "--topic", name, "--resource-pattern-type", "prefixed")
    run(CONFIGS, "--alter", *user, "--delete-config", "SCRAM-SHA-256,producer_byte_rate", status=1)
    run(CONFIGS, "--alter", *user, "--delete-config", "producer_byte_rate")
    run(CONFIGS, "--alter", *user, "--delete-config", "SCRAM-SHA-256")


@pytest.mark.parametrize("work", [work_with_topics, work_with_the_cluster, work_with_users])
def test_tools_print_the_same(
    work: Callable[[Session], None], kafka: KafkaCluster, member: MemberNode, tmp_path: Path
) -> None:
    """A sequence of changes, views and refused requests prints the same texts through either broker."""
    broker = kafka.brokers[0].bootstrap
    theirs, mine = (
        Session(broker, broker, "of-one", tmp_path),
        Session(member.front, member.bootstrap, "of-two", tmp_path),
    )
    for run in (theirs, mine):
        work(run)
    assert mine.printed == theirs.printed
